"""Strided views as one MPI message: by a derived datatype, or packed by numpy, whichever is quicker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from .._lazy import MPI, np
from ..core.limits import VIEW_ALONE, VIEWS_ALONE
from ..core.types import NpArray
from .endpoints import Rows
from .late import transport


class _Habits(NamedTuple):
    """What a library does best with data that has just been written, measured in shared memory.

    at_once: bytes up to which it sends a message off without asking the receiver.
    strided_too: whether strided messages that short are quick.
    send_run, receive_run: mean length in bytes of a contiguous run below which numpy copies a longer message
        quicker than the library's engine for datatypes, which takes longer still over several views in one.
    solid: bytes from which messages in one piece are so much quicker that numpy copies whatever is not.
    scattered: bytes beyond which messages of single elements go quickest through that engine: it takes piece
        after piece, so what one was sent from is in the cache still when another is received beside it.
    """

    at_once: int
    strided_too: bool
    send_run: int
    receive_run: int
    solid: float
    scattered: float


_NEVER = float("inf")
_OPEN_MPI = _Habits(4000, False, 0, 0, 512 << 10, 128 << 10)
_MPICH = _Habits(8000, True, 16 << 10, 2 << 10, _NEVER, _NEVER)


@cache
def _habits() -> _Habits:
    if "MPICH" in MPI.Get_library_version():
        return _MPICH
    shared = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")) > (os.cpu_count() or 1)
    return _OPEN_MPI._replace(solid=_NEVER) if shared else _OPEN_MPI  # on shared cores copies cost turns


def alone(views: Sequence[NpArray], sending: bool) -> bool:
    """Whether these views travel quicker as messages of their own.

    They do if each is short enough to be sent off at once and all together would not be; and if they are
    long and not copied, so that one is under way while the next begins.
    """
    if len(views) < 2 or any(isinstance(view, Rows) for view in views):
        return False
    habits, sizes = _habits(), [view.nbytes for view in views]
    quick = habits.strided_too or all(view.flags.c_contiguous for view in views)
    if quick and len(views) <= VIEWS_ALONE and max(sizes) <= habits.at_once:
        return sum(sizes) > habits.at_once
    return min(sizes) >= VIEW_ALONE and not any(gathers([view], sending) for view in views)


def gathers(views: Sequence[Any], sending: bool) -> bool:
    """Whether what these views hold is copied by numpy into one piece, and not described to MPI."""
    if any(isinstance(view, Rows) for view in views):
        return True
    habits = _habits()
    nbytes = sum(view.nbytes for view in views)
    if nbytes <= habits.at_once or (len(views) == 1 and views[0].flags.c_contiguous):
        return False
    run = habits.send_run if sending else habits.receive_run
    runs = min(len(views), 2) * sum(_runs(view) for view in views)
    return bool(nbytes >= habits.solid or nbytes < run * runs)


def is_scattered(views: Sequence[NpArray | Rows]) -> bool:
    """Whether these are so many single elements that MPI is quicker than memory shared with the receiver."""
    if sum(view.nbytes for view in views) <= _habits().scattered:
        return False
    return all(not isinstance(view, Rows) and _runs(view) == view.size for view in views)


def _runs(view: NpArray) -> int:
    """How many contiguous pieces of memory a view has."""
    run = view.itemsize
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n > 1 and stride != run:
            break
        run *= n
    return view.nbytes // run


def gathered(views: Sequence[NpArray | Rows]) -> tuple[NpArray, list[NpArray]]:
    """Memory for all views one behind the other, and the part of each in its shape and dtype."""
    whole = np.empty(sum(view.nbytes for view in views), np.uint8)
    return whole, divided(whole, views)


def divided(whole: NpArray, views: Sequence[NpArray | Rows]) -> list[NpArray]:
    """The part of each view, in its shape and dtype, of memory for all of them one behind the other."""
    parts, at = [], 0
    for view in views:
        parts.append(whole[at : at + view.nbytes].view(view.dtype).reshape(view.shape))
        at += view.nbytes
    return parts


# -- datatypes ----------------------------------------------------------------------------------------------
_UNITS = {1: "BYTE", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T"}
_LARGEST = 1 << 30  # count of one type constructor: C ints, whatever the library could do beyond


def spec(views: Sequence[NpArray]) -> tuple[list[object], list[MPI.Datatype]]:
    """Views as mpi4py takes the buffer of one message, and the datatype to free, if one was made for it."""
    if len(views) == 1 and views[0].flags.c_contiguous and views[0].nbytes < _LARGEST:
        return [views[0].reshape(-1).view(np.uint8), MPI.BYTE], []
    if len(views) == 1:
        kind = strided(views[0].shape, views[0].strides, views[0].itemsize).Commit()
        start: Any = MPI.buffer.fromaddress(views[0].__array_interface__["data"][0], views[0].itemsize)
    else:
        kind, start = _together(views), MPI.BOTTOM
    return [start, 1, kind], [kind]


def _together(views: Sequence[NpArray]) -> MPI.Datatype:
    """A committed datatype that stands for all views, by their addresses (to be used with MPI.BOTTOM)."""
    parts = [strided(view.shape, view.strides, view.itemsize) for view in views]
    addresses = [view.__array_interface__["data"][0] for view in views]
    made = MPI.Datatype.Create_struct([1] * len(parts), addresses, parts).Commit()
    for part in parts:
        part.Free()
    return made


def strided(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> MPI.Datatype:
    """Elements relative to the first, of any strides (in bytes); not committed."""
    unit = getattr(MPI, _UNITS.get(itemsize, "BYTE"))
    count = 1 if itemsize in _UNITS else itemsize
    run = itemsize
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    while axes and axes[-1][1] == run:
        n, _ = axes.pop()
        count *= n
        run *= n
    if axes and count <= _LARGEST:  # one vector for the two innermost levels, which libraries know best
        n, stride = axes.pop()
        made: MPI.Datatype = unit.Create_hvector(n, count, stride)
    else:
        made = unit.Create_contiguous(count) if count <= _LARGEST else transport.contiguous(unit, count)
    for n, stride in reversed(axes):
        inner, made = made, made.Create_hvector(n, 1, stride)
        inner.Free()
    return made
