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
    """Three steps down to a lane, each made at first use: verb, or (verb, operator), or for all_reduce
    the operator; type of the array; its dtype. Only types whose memory is known here have any."""

    def __init__(self, comm: Communicator, folds: bool) -> None:
        self._comm = comm
        self._folds = folds

    def __missing__(self, key: Any) -> Any:
        verb, op = ("all_reduce", key) if self._folds else key if type(key) is tuple else (key, None)
        if not (op is None or type(op) is str):  # a new lambda every time must not be kept for ever
            return _NO_ROW
        found = self[key] = _Types(self._comm, verb, op)
        return found


class _Types(dict[Any, Any]):
    def __init__(self, comm: Communicator, verb: str, op: Any) -> None:
        self._call = comm, verb, op

    def __missing__(self, kind: Any) -> Any:
        torch = sys.modules.get("torch")
        numpy = sys.modules.get("numpy")
        known: _Kind | None = None
        if numpy is not None and kind is numpy.ndarray:
            known = _NUMPY
        elif torch is not None and kind is torch.Tensor:
            known = _TORCH
        elif self._call[1] != "barrier":
            return _NO_TYPE
        found = self[kind] = _Dtypes(*self._call, known)
        return found


class _Dtypes(dict[Any, Lane]):
    def __init__(self, comm: Communicator, verb: str, op: Any, known: _Kind | None) -> None:
        self._call = comm, verb, op, known

    def __missing__(self, dtype: Any) -> Lane:
        lane = self[dtype] = self._build(dtype)
        return lane

    def _build(self, dtype: Any) -> Lane:
        comm, verb, op, known = self._call
        if comm.is_inter:
            return detour
        if known is None:
            return _barrier(comm)
        from . import dtypes

        try:
            record = dtypes.from_torch(dtype) if known is _TORCH else dtypes.from_numpy(dtype)
            if record.mpi is None or (
                known is _TORCH and record.kind == "c"
            ):  # tensors may be lazy conjugates
                return detour
            return known.make(comm, verb, op, record, dtype)
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


def _folding(op: Any, record: Dtype) -> tuple[Any, int] | None:
    """MPI's operator and its code in signatures, where MPI alone does the whole job."""
    from . import reduction

    fold = reduction.resolve(op, record)
    if fold.up is not None or fold.finish is not None or fold.fold is not None or fold.op.mpi is not None:
        return None
    return fold.mpi(), fold.code


def _numpy_all_reduce(comm: Communicator, op: Any, record: Dtype, dtype: Any) -> Lane:
    import numpy as np
    from mpi4py import MPI

    from .transport import mpi

    found = _folding(op, record)
    if found is None:
        return detour
    operator, code = found[0], head("all_reduce", found[1], record.code)
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
                or out.size != n
                or (out.ndim != 1 and out.shape != x.shape)
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

    found = _folding(op, record)
    if found is None:
        return detour
    operator, code = found[0], head("all_reduce", found[1], record.code)
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


def _out_of_place(comm: Communicator, verb: str, op: Any, record: Dtype, kind: _Kind) -> Lane:
    """Every other collective from one plain array into another.

    Shapes as compose.py has them, but only the stacked form: block r is x[r] or out[r].
    """
    from mpi4py import MPI

    from .transport import mpi

    operator, fold = None, 0
    if op is not None:
        found = _folding(op, record)
        if found is None:
            return detour
        operator, fold = found
    function = getattr(comm.mpi, mpi.NAMES[verb])
    watched = comm._agreement.watch(function)
    p, rank = comm.size, comm.rank
    codes = [head(verb, fold, record.code, root) for root in range(p)]
    stacks, cuts = verb in ("gather", "all_gather"), verb in ("scatter", "reduce_scatter", "all_to_all")
    rooted = verb in ("gather", "scatter", "reduce")
    look_in, look_out, empty, disjoint = (
        kind.look(record, False),
        kind.look(record, True),
        kind.empty,
        kind.disjoint,
    )

    def lane(x: Any, out: Any, root: Any) -> Any:
        send = look_in(x)
        if send is None or x is out or type(root) is not int or not 0 <= root < p:
            return NotImplemented
        n, shape = send[1], tuple(x.shape)
        if stacks:
            shape = (p, *shape)
        elif cuts:
            if not shape or shape[0] != p:
                return NotImplemented
            n //= p
            if verb != "all_to_all":
                shape = shape[1:]
        recv: Any = None
        if rooted and verb != "scatter" and rank != root:
            out = None
        else:
            if out is None:
                out = empty(shape, x)
            elif (
                type(out) is not type(x) or out.dtype != x.dtype or out.shape != shape or not disjoint(x, out)
            ):
                return NotImplemented
            recv = look_out(out)
            if recv is None:
                return NotImplemented
            recv = (recv[0], n, recv[2])
        if verb == "scatter" and rank != root:
            send = None  # x only told the shape
        elif cuts:
            send = (send[0], n, send[2])
        arguments = (send, recv) if operator is None else (send, recv, operator)
        if rooted:
            arguments = (*arguments, root)
        try:
            if watched is None:
                function(*arguments)
            else:
                watched(n << 32 | codes[root], *arguments)
        except MPI.Exception as error:
            raise mpi.failure(error, verb, comm) from None
        return out

    return lane


class _Kind:
    """What lanes must know of an array library: look, empty(shape, like), disjoint(x, out)."""

    def __init__(
        self,
        look: Callable[[Dtype, bool], Lane],
        empty: Callable[[tuple[int, ...], Any], Any],
        disjoint: Callable[[Any, Any], bool],
        all_reduce: Maker,
    ) -> None:
        self.look = look
        self.empty = empty
        self.disjoint = disjoint
        self.all_reduce = all_reduce

    def make(self, comm: Communicator, verb: str, op: Any, record: Dtype, dtype: Any) -> Lane:
        """The lane of a verb for arrays of this kind."""
        if verb == "all_reduce":
            return self.all_reduce(comm, op, record, dtype)
        if verb == "broadcast":
            return _broadcast(comm, self.look(record, True), record)
        if verb == "send":
            return _send(comm, self.look(record, False))
        if verb == "recv":
            return _recv(comm, self.look(record, True), record)
        return _out_of_place(comm, verb, op, record, self)


def _numpy_empty(shape: tuple[int, ...], like: Any) -> Any:
    return sys.modules["numpy"].empty(shape, like.dtype)


def _numpy_disjoint(x: Any, out: Any) -> bool:
    return (x.base is None and out.base is None) or not sys.modules["numpy"].may_share_memory(x, out)


def _torch_empty(shape: tuple[int, ...], like: Any) -> Any:
    return sys.modules["torch"].empty(shape, dtype=like.dtype)


def _torch_disjoint(x: Any, out: Any) -> bool:
    """Of two contiguous tensors; look() sees to that."""
    here, there = x.data_ptr(), out.data_ptr()
    return bool(here + x.nbytes <= there or there + out.nbytes <= here)


_NUMPY = _Kind(_numpy_look, _numpy_empty, _numpy_disjoint, _numpy_all_reduce)
_TORCH = _Kind(_torch_look, _torch_empty, _torch_disjoint, _torch_all_reduce)
