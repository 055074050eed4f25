"""Fast paths: functions specialised for one operation, operator, array type and dtype.

For the arrays that come a million times (plain, contiguous, of a type MPI knows) a fast path is the whole
call in one function: every check that the general path makes on that kind of array, and then one MPI
function. On any doubt it returns NotImplemented, and the general path takes over, which also says what is
wrong. A communicator finds its fast paths at comm.fastpaths[verb][operator][type][dtype]. While an observer
is attached, or after close(), it has none.

A fast path is composed as text (fastpath_text.py), of the verb's own lines and of fragments that say how to
look at an array of this kind and how the ranks agree, and compiled. A function that called others for these
parts would cost 60 ns for each of them, where 500 are all that a call may cost.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._lazy import loaded
from ..core.signature import VERBS, head, marked
from ..core.verbs import INPUT_BLOCKS, OUTPUT_BLOCKS, REDUCTIONS, ROOTED
from ..errors import HpcommError
from .fastpath_compile import PLAIN_CALL, compiled
from .fastpath_instance import fuse
from .fastpath_text import (
    ALIKE,
    APART,
    BODIES,
    IN_PLACE,
    NUMPY,
    ON_HOST,
    TORCH,
    out_of_place,
)

if TYPE_CHECKING:
    from ..core.dtypes import Dtype
    from .communicator import Communicator

__all__ = ["NO_FASTPATHS", "chosen", "detour", "find"]

FastPath = Callable[..., Any]
NO_FASTPATHS: Mapping[Any, Any] = MappingProxyType({})  # of a communicator that is watched, or closed

_NOTHING = object()  # which no caller gives
_KEPT = 256  # lengths of calls within a node


def detour(*arguments: Any) -> Any:
    """No fast path: take the general path."""
    return NotImplemented


def find(comm: Communicator, verb: str, op: Any, x: Any, algorithm: str | None = None) -> FastPath:
    """The fast path for arrays like x, kept from now on; detour if there is none.

    algorithm: that of its smallest sizes; larger ones it leaves to chosen().
    """
    if comm.fastpaths is NO_FASTPATHS:
        return detour
    if algorithm is not None:
        return _choose(comm, verb, op, x, algorithm, smallest=True)
    if verb == "barrier":
        fast = comm.fastpaths[verb] = detour if comm.is_inter else _barrier(comm)
    else:
        make = _maker(comm, verb, op, x)
        if make is None:
            return detour
        fast = detour if comm.is_inter else make(comm, verb, op, x.dtype)
        comm.fastpaths.setdefault(verb, {}).setdefault(op, {}).setdefault(type(x), {})[x.dtype] = fast
    if fast is not detour:
        fuse(comm, verb, op, x, fast)
    return fast


def _barrier(comm: Communicator) -> FastPath:
    return _compose(comm, "barrier", BODIES["barrier"], {"meet": ""}, {})


def _watched(comm: Communicator, verb: str) -> tuple[str, str]:
    """What records a call in the node segment, and looks at a neighbour's after it, where calls are watched.

    Who waits for the flags of all others need not look. But two roots of one broadcast would both go on.
    """
    if comm.agreement.level != "light":
        return "", ""
    if verb not in ROOTED:
        return "ring[step()] = mine", ""
    look = "(seen := theirs[i]) != mine and seen"
    if comm.size > 2:  # who comes later of two that differ sees it
        look = f"({look}) or ((seen := behind[i]) != mine and seen)"
    elif verb == "broadcast":  # who saw the root's flag saw its call, and there is no third
        look = f"rank == root and {look}"
    return "ring[i := step()] = mine", f"if {look}: suspect(mine)"


def _maker(comm: Communicator, verb: str, op: Any, x: Any) -> Callable[..., FastPath] | None:
    """What makes fast paths for arrays like x; None: there are none."""
    if comm.fastpaths is NO_FASTPATHS or (type(op) is not str if verb in REDUCTIONS else op is not None):
        return None  # and of operators, a new lambda every time must not be kept for ever
    torch, numpy = loaded("torch"), loaded("numpy")
    if numpy is not None and type(x) is numpy.ndarray:
        return _numpy
    return _torch if torch is not None and type(x) is torch.Tensor else None


def chosen(comm: Communicator, verb: str, op: Any, x: Any, algorithm: str) -> FastPath:
    """The fast path of algorithm="tuned" or "mpi:..." for arrays like x and of its size, chosen once."""
    try:
        limits, fast_paths = comm.fastpaths[algorithm, verb]
        return fast_paths[bisect_left(limits, x.nbytes)][op][type(x)][x.dtype]  # type: ignore[no-any-return]
    except (KeyError, AttributeError, TypeError):
        return _choose(comm, verb, op, x, algorithm)


def _choose(
    comm: Communicator, verb: str, op: Any, x: Any, algorithm: str, smallest: bool = False
) -> FastPath:
    make = _maker(comm, verb, op, x)
    if not isinstance(algorithm, str):
        return detour  # which refuses it
    if make is None or comm.is_inter or algorithm in VERBS:  # those are keys of their own in comm.fastpaths
        return detour
    from ..transport import library_algorithms, mpi, mpi_control_variables
    from ..transport.scheduled import comm_cache, schedule_transport, tuned

    one = tuned.Choices.of([(0, algorithm)])
    choices = comm_cache.own(comm).choices(verb) if algorithm == "tuned" else one
    blocks = comm.size if verb in INPUT_BLOCKS else 1
    limits, fast_paths = comm.fastpaths.setdefault(
        (algorithm, verb), ([n * blocks for n in choices.limits], [{} for _ in choices.names])
    )
    which = 0 if smallest else bisect_left(limits, x.nbytes)
    name, by, is_own = choices.names[which], None, False
    theirs = None if name is None else name.removeprefix("mpi:")
    if name is not None and theirs != name and theirs in mpi_control_variables.choices(verb):
        by = library_algorithms.by_library(comm, verb, theirs, mpi.function_of(comm, verb))
    elif verb == "all_reduce" and make is _numpy and name is not None and theirs == name:
        from ..core import dtypes, reduction

        with suppress(HpcommError):  # the general path raises it again, and says where
            is_own = True
            by = schedule_transport.by_schedule(
                comm, name, x.dtype, reduction.resolve(op, dtypes.from_numpy(x.dtype))
            )
    most = choices.limits[which] if which < len(choices.limits) else sys.maxsize
    known = by is not None or name is None
    fast = make(comm, verb, op, x.dtype, (by, algorithm, most, is_own)) if known else detour
    home = comm.fastpaths.setdefault(algorithm, {}).setdefault(verb, {}) if smallest else fast_paths[which]
    home.setdefault(op, {}).setdefault(type(x), {})[x.dtype] = fast
    return fast


def _numpy(comm: Communicator, verb: str, op: Any, dtype: Any, by: Any = None) -> FastPath:
    import numpy as np

    from ..core import dtypes

    names = {
        "dtype": dtype,
        "empty": np.empty,
        "may_share_memory": np.may_share_memory,
        "most": min(_most(comm, dtype.itemsize), by[2] if by else sys.maxsize) // max(dtype.itemsize, 1),
        "ndarray": np.ndarray,
    }
    return _make(comm, verb, op, dtypes.from_numpy, dtype, NUMPY, names, by)


def _torch(comm: Communicator, verb: str, op: Any, dtype: Any, by: Any = None) -> FastPath:
    from mpi4py import MPI

    from ..core import dtypes

    torch = sys.modules["torch"]
    try:
        record = dtypes.from_torch(dtype)
    except HpcommError:
        return detour
    if record.mpi is None or record.kind == "c":  # tensors may be lazy conjugates
        return detour
    kind = getattr(MPI, record.mpi)
    most = min(
        _most(comm, record.itemsize),
        by[2] * (comm.size if verb in INPUT_BLOCKS else 1) if by else sys.maxsize,
    )
    windows_x, window_x = _windows(kind, record, comm.size if verb in INPUT_BLOCKS else 1, most)
    out_blocks = comm.size if verb in OUTPUT_BLOCKS else 1
    windows_out, window_out = _windows(kind, record, out_blocks, most)
    names = {
        "dtype": dtype,
        "empty": torch.empty,
        "empty_like": torch.empty_like,
        "least": 2 * record.itemsize,  # a single element may be a lazy negative
        "tensor": torch.Tensor,
        "windows_x": windows_x,
        "window_x": window_x,
        "windows_out": windows_out,
        "window_out": window_out,
    }
    fragments = TORCH if _knows_devices(torch) else {k: v.replace(ON_HOST, "") for k, v in TORCH.items()}
    return _make(comm, verb, op, dtypes.from_torch, dtype, fragments, names, by)


def _knows_devices(torch: Any) -> bool:
    """Whether tensors of this build of torch may have an address that is not in the host's memory."""
    accelerator = getattr(torch, "accelerator", None)
    try:
        return accelerator is None or accelerator.current_accelerator() is not None
    except RuntimeError:  # torch 2.6, built for a device that this machine has not
        return True


def _most(comm: Communicator, itemsize: int) -> int:
    """Bytes up to which a fast path carries an array: what one MPI call takes, in this communicator's way."""
    from ..transport import mpi

    largest = mpi.largest_count * itemsize
    return largest if comm.devices is None else min(largest, comm.devices.eager)


# bytes, what mpi4py wants, number of elements as in signatures; the array as numpy sees it, as bytes, its
# end, and its elements as Python sees them
Window = tuple[int, Any, int, Any, memoryview | None, int, memoryview | None]


def _windows(
    kind: Any, record: Dtype, blocks: int, most: int
) -> tuple[dict[int, Window], Callable[[int, int], Window | None]]:
    """Windows by address, and how to make one of so many bytes at most.

    blocks: one of so many parts is what a call counts.
    """
    import numpy as np
    from mpi4py import MPI

    fromaddress = MPI.buffer.fromaddress
    known: dict[int, Window] = {}

    def window(address: int, nbytes: int) -> Window | None:
        if not address or nbytes > most:  # no address: a storage that was freed
            return None
        if len(known) > 1000:
            known.clear()
        n, memory = nbytes // record.itemsize // blocks, fromaddress(address, nbytes)
        flat = seen = elements = None
        if nbytes > 0:
            flat = np.frombuffer(memory, record.storage)  # type: ignore[call-overload]
            seen, elements = memoryview(memory), flat.data  # type: ignore[arg-type]
        found = known[address] = (nbytes, (memory, n, kind), n << 32, flat, seen, address + nbytes, elements)
        return found

    return known, window


# -- putting it together ------------------------------------------------------------------------------


def _make(
    comm: Communicator,
    verb: str,
    op: Any,
    record_of: Callable[[Any], Dtype],
    dtype: Any,
    fragments: dict[str, str],
    names: dict[str, Any],
    by: Any = None,
) -> FastPath:
    """The fast path of a verb, or detour where MPI alone cannot do the whole job.

    by: what is called in place of what would be (None: nothing), the algorithm that the user named, up to
    how many bytes of x, or of one block, and whether it is an own schedule.
    """
    from mpi4py import MPI

    from ..transport import mpi

    try:
        record = record_of(dtype)
        if record.mpi is None:
            return detour
        folding = None if op is None else _folding(op, record)
    except HpcommError:  # the general path raises the same error, and says where
        return detour
    if op is not None and folding is None:
        return detour
    operator, fold = folding or (None, 0)
    kind = mpi.native(record) if op is None else getattr(MPI, record.mpi)
    names.update(operator=operator, kind=kind, itemsize=record.itemsize)
    function, algorithm, _, is_own = by or (None, "", 0, False)

    def sign(*what: Any) -> int:
        return marked(head(*what), algorithm) if algorithm else head(*what)

    names["code"] = sign(verb, fold, record.code)
    if verb in ROOTED:
        names["codes"] = _Codes(lambda root: sign(verb, fold, record.code, root), comm.size)
    if "CUT" in fragments["readable"]:
        cut = "// p" if verb in INPUT_BLOCKS else ""
        fragments = {**fragments, "readable": fragments["readable"].replace("CUT", cut)}
    if verb in IN_PLACE:
        fragments = {**fragments, "carry": APART if is_own else IN_PLACE[verb]}
    body = BODIES.get(verb) or out_of_place(verb, op is not None, comm.rank == 0)
    if verb == "exscan":
        names["neutral"] = _neutral(op, record)
    names["function"] = function
    return _compose(comm, verb, body, fragments, names)


class _Codes(dict[int, int]):
    """The code of a call by its root, made when that is first one; KeyError: that is no rank."""

    def __init__(self, of: Callable[[int], int], size: int) -> None:
        self._of, self._size = of, size

    def __missing__(self, root: int) -> int:
        if not 0 <= root < self._size:
            raise KeyError(root)
        self[root] = code = self._of(root)
        return code


def _folding(op: Any, record: Dtype) -> tuple[Any, int] | None:
    """MPI's operator and its code in signatures, where MPI alone does the whole job."""
    from ..core import reduction

    fold = reduction.resolve(op, record)
    if fold.widen is not None or fold.finish is not None or fold.fold is not None or fold.op.mpi is not None:
        return None
    return fold.mpi(), fold.code


def _neutral(op: Any, record: Dtype) -> Any:
    """What exscan leaves on rank 0, as a plain number."""
    from ..core import reduction

    return reduction.identity(reduction.named(op), record).item()


def _compose(
    comm: Communicator, verb: str, body: str, fragments: dict[str, str], names: dict[str, Any]
) -> FastPath:
    from mpi4py import MPI

    from ..transport import mpi

    names.setdefault("code", head(verb))
    names.update(
        IN_PLACE=MPI.IN_PLACE,
        MPIError=MPI.Exception,
        comm=comm,
        failure=mpi.failure,
        function=names.get("function") or getattr(comm.mpi_handle, mpi.function_of(comm, verb)),
        p=comm.size,
        rank=comm.rank,
        verb=verb,
    )
    code, source = compiled(verb, body, tuple((ALIKE | fragments).items()), PLAIN_CALL)
    names.update(__name__=f"fast path of {verb}", __loader__=source)
    exec(code, names)
    fast: FastPath = names["fast"]
    return fast
