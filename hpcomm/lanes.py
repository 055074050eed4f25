"""Fast lanes through the one door.

For the arrays that come a million times (plain, contiguous, of a type MPI knows) a lane is the whole
call in one closure: every check that the careful way makes, on that kind of array, and straight to
MPI. On any doubt it returns NotImplemented and the careful way takes over, which also says what is
wrong. A communicator's lanes are a dictionary that fills itself; while an observer is attached, or
after close(), it holds none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import HpcommError
from .signature import head

if TYPE_CHECKING:
    from .communicator import Communicator
    from .dtypes import Dtype

__all__ = ["Closed", "Lanes", "detour"]

Lane = Callable[..., Any]
Maker = Callable[["Communicator", Any, "Dtype", Any], Lane]


def detour(*arguments: Any) -> Any:
    """No lane: take the careful way."""
    return NotImplemented


class Lanes(dict[Any, Any]):
    """Three steps down to a lane, each made at first use: verb (for all_reduce the operator), type of
    the array, its dtype. Only types whose memory is known here have any."""

    def __init__(self, comm: Communicator, folds: bool) -> None:
        self._comm = comm
        self._folds = folds

    def __missing__(self, key: Any) -> Any:
        if self._folds and type(key) is not str:  # a new lambda every time must not be kept for ever
            return _NO_ROW
        found = self[key] = _Types(self._comm, *(("all_reduce", key) if self._folds else (key, None)))
        return found


class _Types(dict[Any, Any]):
    def __init__(self, comm: Communicator, verb: str, op: Any) -> None:
        self._call = comm, verb, op

    def __missing__(self, kind: Any) -> Any:
        torch = sys.modules.get("torch")
        numpy = sys.modules.get("numpy")
        makers = None
        if numpy is not None and kind is numpy.ndarray:
            makers = _NUMPY
        elif torch is not None and kind is torch.Tensor:
            makers = _TORCH
        elif self._call[1] == "barrier":
            makers = _BARRIER
        found = self[kind] = _Dtypes(*self._call, makers) if makers is not None else _NO_TYPE
        return found


class _Dtypes(dict[Any, Lane]):
    def __init__(self, comm: Communicator, verb: str, op: Any, makers: dict[str, Maker]) -> None:
        self._call = comm, verb, op, makers

    def __missing__(self, dtype: Any) -> Lane:
        lane = self[dtype] = self._build(dtype)
        return lane

    def _build(self, dtype: Any) -> Lane:
        comm, verb, op, makers = self._call
        if comm.is_inter:
            return detour
        if makers is _BARRIER:
            return _barrier(comm)
        from . import dtypes

        try:
            record = dtypes.from_torch(dtype) if makers is _TORCH else dtypes.from_numpy(dtype)
            if record.mpi is None or (
                makers is _TORCH and record.kind == "c"
            ):  # tensors may be lazy conjugates
                return detour
            return makers[verb](comm, op, record, dtype)
        except HpcommError:  # the careful way meets the same error and says where
            return detour


class Closed(dict[Any, Any]):
    """No lanes at all, whatever is asked, down to the last step."""

    def __init__(self, below: Any = None) -> None:
        self._below = below if below is not None else Closed(Closed(detour))

    def __missing__(self, key: Any) -> Any:
        return self._below


_NO_TYPE = Closed(detour)
_NO_ROW = Closed(_NO_TYPE)


def _barrier(comm: Communicator) -> Lane:
    barrier = comm.mpi.Barrier
    watched, code = comm._agreement.watch(barrier), head("barrier")
    return barrier if watched is None else lambda: watched(code)


def _folding(comm: Communicator, op: Any, record: Dtype) -> tuple[Any, int] | None:
    """MPI's operator and the call's signature, where MPI alone does the whole job."""
    from . import reduction

    fold = reduction.resolve(op, record)
    if fold.up is not None or fold.finish is not None or fold.fold is not None or fold.op.mpi is not None:
        return None
    return fold.mpi(), head("all_reduce", fold.code, record.code)


def _numpy_all_reduce(comm: Communicator, op: Any, record: Dtype, dtype: Any) -> Lane:
    import numpy as np
    from mpi4py import MPI

    from .transport import mpi

    found = _folding(comm, op, record)
    if found is None:
        return detour
    operator, code = found
    kind, in_place, ndarray, empty = getattr(MPI, str(record.mpi)), MPI.IN_PLACE, np.ndarray, np.empty
    all_reduce, most = comm.mpi.Allreduce, mpi.largest_count
    watched = comm._agreement.watch(all_reduce)
    may_share_memory = np.may_share_memory
    last_n, mine = 0, code  # the signature of the last call, mostly that of this one

    def lane(x: Any, out: Any) -> Any:
        nonlocal last_n, mine
        n = x.size
        if n > most:
            return NotImplemented
        if out is x:
            if not x.flags.carray:
                return NotImplemented
            send: Any = in_place
        else:
            if not x.flags.c_contiguous:
                return NotImplemented
            if out is None:
                out = empty(x.shape, dtype)
            elif (
                type(out) is not ndarray
                or out.dtype is not dtype
                or out.shape != x.shape
                or not out.flags.carray
                or ((out.base is not None or x.base is not None) and may_share_memory(x, out))
            ):
                return NotImplemented
            send = (x, n, kind)
        try:
            if watched is None:
                all_reduce(send, (out, n, kind), operator)
            else:
                if n != last_n:
                    last_n, mine = n, n << 32 | code
                watched(mine, send, (out, n, kind), operator)
        except MPI.Exception as error:
            raise mpi.failure(error, "all_reduce", comm) from None
        return out

    return lane


def _torch_all_reduce(comm: Communicator, op: Any, record: Dtype, dtype: Any) -> Lane:
    from mpi4py import MPI

    from .transport import mpi

    found = _folding(comm, op, record)
    if found is None:
        return detour
    operator, code = found
    torch = sys.modules["torch"]
    kind, in_place, tensor, empty_like = (
        getattr(MPI, str(record.mpi)),
        MPI.IN_PLACE,
        torch.Tensor,
        torch.empty_like,
    )
    all_reduce, most = comm.mpi.Allreduce, mpi.largest_count * record.itemsize
    least = 2 * record.itemsize  # a single element may be a lazy negative
    watched = comm._agreement.watch(all_reduce)
    known, window = _windows(kind, record.itemsize, code)

    def lane(x: Any, out: Any) -> Any:
        if not x.is_cpu:
            return NotImplemented
        try:
            nbytes = x.nbytes
            if not x.is_contiguous() or nbytes > most or nbytes < least:
                return NotImplemented
        except RuntimeError:  # sparse tensors have neither
            return NotImplemented
        here = x.data_ptr()
        if out is x:
            send = in_place
        else:
            look = known.get(here)
            send = look[1] if look is not None and look[0] == nbytes else window(here, nbytes)[1]
            if out is None:
                out = empty_like(x)
            elif (
                type(out) is not tensor
                or out.dtype is not dtype
                or not out.is_cpu
                or out.shape != x.shape
                or not out.is_contiguous()
            ):
                return NotImplemented
            there = out.data_ptr()
            if -nbytes < there - here < nbytes:
                return NotImplemented
            here = there
        look = known.get(here)
        if look is None or look[0] != nbytes:
            look = window(here, nbytes)
        try:
            if watched is None:
                all_reduce(send, look[1], operator)
            else:
                watched(look[2], send, look[1], operator)
        except MPI.Exception as error:
            raise mpi.failure(error, "all_reduce", comm) from None
        return out

    return lane


Window = tuple[int, Any, int]  # bytes, what mpi4py wants, signature of a call with that many elements


def _windows(
    kind: Any, itemsize: int, code: int = 0
) -> tuple[dict[int, Window], Callable[[int, int], Window]]:
    """Windows by address, kept because the same memory comes again and again; and how to make one."""
    from mpi4py import MPI

    fromaddress = MPI.buffer.fromaddress
    known: dict[int, Window] = {}

    def window(address: int, nbytes: int) -> Window:
        if len(known) > 1000:
            known.clear()
        n = nbytes // itemsize
        found = known[address] = (nbytes, (fromaddress(address, nbytes), n, kind), n << 32 | code)
        return found

    return known, window


def _torch_look(record: Dtype, writes: bool) -> Lane:
    from mpi4py import MPI

    from .transport import mpi

    least, most = 2 * record.itemsize, mpi.largest_count * record.itemsize
    known, window = _windows(getattr(MPI, str(record.mpi)), record.itemsize)

    def look(x: Any) -> Any:
        if not x.is_cpu:
            return None
        try:
            nbytes = x.nbytes
            if not x.is_contiguous() or nbytes > most or nbytes < least:
                return None
        except RuntimeError:
            return None
        address = x.data_ptr()
        found = known.get(address)
        return found[1] if found is not None and found[0] == nbytes else window(address, nbytes)[1]

    return look


def _broadcast(comm: Communicator, look: Lane, record: Dtype) -> Lane:
    from mpi4py import MPI

    from .transport import mpi

    bcast = comm.mpi.Bcast
    watched = comm._agreement.watch(bcast)
    codes = [head("broadcast", 0, record.code, root) for root in range(comm.size)]

    def lane(x: Any, root: Any) -> Any:
        spec = look(x)
        if spec is None or type(root) is not int or not 0 <= root < len(codes):
            return NotImplemented
        try:
            if watched is None:
                bcast(spec, root)
            else:
                watched(spec[1] << 32 | codes[root], spec, root)
        except MPI.Exception as error:
            raise mpi.failure(error, "broadcast", comm) from None
        return x

    return lane


def _numpy_look(record: Dtype, writes: bool) -> Lane:
    from mpi4py import MPI

    from .transport import mpi

    kind, most = getattr(MPI, str(record.mpi)), mpi.largest_count

    def look(x: Any) -> Any:
        n = x.size
        if n > most or not (x.flags.carray if writes else x.flags.c_contiguous):
            return None
        return x, n, kind

    return look


def _send(comm: Communicator, look: Lane) -> Lane:
    from mpi4py import MPI

    from .p2p import largest_tag
    from .transport import mpi

    send, size, rank, last_tag = comm.mpi.Send, comm.size, comm.rank, largest_tag()

    def lane(x: Any, dest: Any, tag: Any) -> Any:
        spec = look(x)
        if spec is None or type(dest) is not int or not 0 <= dest < size or dest == rank:
            return NotImplemented
        if type(tag) is not int or not 0 <= tag <= last_tag:
            return NotImplemented
        try:
            send(spec, dest, tag)
        except MPI.Exception as error:
            raise mpi.failure(error, "send", comm) from None
        return None

    return lane


def _recv(comm: Communicator, look: Lane, record: Dtype) -> Lane:
    from mpi4py import MPI

    from .p2p import check_length
    from .transport import mpi

    recv, size, new_status, itemsize = comm.mpi.Recv, comm.size, MPI.Status, record.itemsize
    any_tag = MPI.ANY_TAG

    def lane(out: Any, source: Any, tag: Any) -> Any:
        spec = look(out)
        if tag is None:
            tag = any_tag
        if spec is None or type(source) is not int or not 0 <= source < size or type(tag) is not int:
            return NotImplemented
        status = new_status()
        try:
            recv(spec, source, tag, status)
        except MPI.Exception as error:
            raise mpi.failure(error, "recv", comm) from None
        if status.count != spec[1] * itemsize:
            check_length(comm, "recv", status, spec[1] * itemsize)
        return out

    return lane


def _makers(look: Callable[[Dtype, bool], Lane], all_reduce: Maker) -> dict[str, Maker]:
    return {
        "all_reduce": all_reduce,
        "broadcast": lambda comm, op, record, dtype: _broadcast(comm, look(record, True), record),
        "send": lambda comm, op, record, dtype: _send(comm, look(record, False)),
        "recv": lambda comm, op, record, dtype: _recv(comm, look(record, True), record),
    }


_NUMPY = _makers(_numpy_look, _numpy_all_reduce)
_TORCH = _makers(_torch_look, _torch_all_reduce)
_BARRIER: dict[str, Maker] = {}
