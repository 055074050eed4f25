"""Dissemination in rounds that double: how what every rank has for all others gets to them.

    round 0   rank r sends its own              to r-1
    round 1   its own, and that of r+1          to r-2
    round 2   its own, and that of r+1 ... r+3  to r-4

So each of p ranks sends to log2 p others, not to all, and nothing comes twice (Bruck et al. 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .payload import cut, pooled

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..core.request import Stages
else:
    from .._lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")

__all__ = ["spread"]

_ALIGN, _ALIGN_SHORT, _SHORT = 64, 16, 1024  # bytes on which a block begins; one of less than so many


def spread(
    mpi: Any, me: int, own: Sequence[Any], lengths: Sequence[Sequence[int]], tag: Callable[[int], int]
) -> Stages:
    """Give this rank's blocks to all ranks; returns what gives the blocks of a rank, but for its own.

    All that arrives lies in one piece of memory, of which any part goes on as one message.

    Args:
        mpi, me: what the messages go by, and this rank there.
        lengths: bytes of the blocks of each rank.
        tag: of a rank, a number of its own for the messages that it sends.
    """
    size = len(lengths)
    starts = [0, 0]  # of the rank that comes so many behind this one
    for i in range(1, size):
        starts.append(starts[-1] + sum(map(_aligned, lengths[(me + i) % size])))
    memory = memoryview(pooled(starts[-1]))

    def blocks(i: int) -> Iterator[Any]:
        at = starts[i]
        for nbytes in lengths[(me + i) % size]:
            yield memory[at : at + nbytes]
            at += _aligned(nbytes)

    have = 1
    while have < size:
        some = min(have, size - have)
        dest, source = (me - have) % size, (me + have) % size
        coming = cut([*blocks(have), memory[starts[have + 1] : starts[have + some]]])
        going = cut([*own, memory[: starts[some]]])
        yield [
            *(mpi.Isend([piece, MPI.BYTE], dest, tag(me)) for piece in going),
            *(mpi.Irecv([piece, MPI.BYTE], source, tag(source)) for piece in coming),
        ]
        have += some
    return lambda rank: blocks((rank - me) % size)


def _aligned(nbytes: int) -> int:
    step = _ALIGN if nbytes >= _SHORT else _ALIGN_SHORT
    return -(-nbytes // step) * step
