"""Dissemination in log2 p rounds: how what every rank, or one of them, has for all others gets to them.

Where every rank has something, each round doubles what a rank has.

    round 0   rank r sends its own              to r-1
    round 1   its own, and that of r+1          to r-2
    round 2   its own, and that of r+1 ... r+3  to r-4

So each of p ranks sends to log2 p others, not to all, and nothing comes twice (Bruck et al. 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

from ..._lazy import MPI
from ...core.comm import Comm
from ...core.request import Stages
from .payload import cut, pooled

FEW = 16  # ranks of a group up to which each sends to all: nothing passes through others
_ALIGN, _ALIGN_SHORT, _SHORT = 64, 16, 1024  # bytes on which a block begins; one of less than so many


def inside(mpi: MPI.Comm, parts: object) -> Any:
    """For what ranks of a group pass on to each other: parts, or one of large groups that mpi joins."""
    if not mpi.Is_inter() or max(mpi.Get_size(), mpi.Get_remote_size()) <= FEW:  # type: ignore[attr-defined]
        return parts
    both = mpi.Merge()  # type: ignore[attr-defined]
    made = both.Split(both.Get_rank() - mpi.Get_rank())
    both.Free()
    return made


def is_many(comm: Comm) -> bool:
    """Whether ranks pass on what is for others of their group."""
    return max(comm.size, comm.remote_size) > FEW


def spread(
    mpi: MPI.Comm,
    me: int,
    own: Sequence[memoryview],
    lengths: Sequence[Sequence[int]],
    tag: Callable[[int], int],
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

    def blocks(i: int) -> Iterator[memoryview]:
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


def descend(mpi: MPI.Comm, me: int, size: int, pieces: Sequence[memoryview], root: int, tag: int) -> Stages:
    """Give what root has in pieces to all ranks, which have room for them: down a binomial tree.

    A rank receives from the one whose place lacks the lowest bit of its own, and sends to those whose places
    have one bit more below that.
    """
    place = (me - root) % size
    step = place & -place or 1 << size.bit_length()
    if place and pieces:
        yield [mpi.Irecv([piece, MPI.BYTE], (me - step) % size, tag) for piece in pieces]
    going = []
    while step := step >> 1:
        if place + step < size:
            going += [mpi.Isend([piece, MPI.BYTE], (me + step) % size, tag) for piece in pieces]
    if going:
        yield going


def share_out(
    comm: Comm,
    own: Sequence[memoryview],
    lengths: Sequence[Sequence[int]],
    tag: Callable[[int], int],
    number: int,
) -> Stages:
    """Receive blocks of all ranks; returns what gives those of a rank, best asked for in their order.

    Args:
        own: this rank's.
        lengths: bytes of the blocks of each rank.
        tag: of a rank, that of its messages,
        number: and of those within a group which another one sends to.
    """
    if not comm.is_inter:
        arrived = yield from spread(comm.block_channel, comm.rank, own, lengths, tag)
        return lambda r: own if r == comm.rank else [*arrived(r)]
    return (yield from _share_out_theirs(comm, lengths, tag, number))


def _share_out_theirs(
    comm: Comm, lengths: Sequence[Sequence[int]], tag: Callable[[int], int], number: int
) -> Stages:
    """The same of the other group: a rank's blocks come to one of this one, in even shares, and go on from
    there."""
    size, many = comm.size, len(lengths)
    starts = [-(-i * many // size) for i in range(size + 1)]  # of the share of each rank of this group
    mine = {
        r: [pooled(nbytes) for nbytes in lengths[r]] for r in range(starts[comm.rank], starts[comm.rank + 1])
    }
    coming = [(r, piece) for r, blocks in mine.items() for piece in cut(blocks)]
    yield [comm.block_channel.Irecv([piece, MPI.BYTE], r, tag(r)) for r, piece in coming]
    shares = [[nbytes for r in range(*ends) for nbytes in lengths[r]] for ends in pairwise(starts)]
    brought = [block for blocks in mine.values() for block in blocks]
    arrived = yield from spread(comm.inner_comm, comm.rank, brought, shares, lambda _: number)

    @lru_cache(1)
    def of_share(home: int) -> dict[int, list[memoryview]]:
        blocks = arrived(home)
        return {r: [*islice(blocks, len(lengths[r]))] for r in range(starts[home], starts[home + 1])}

    return lambda r: mine[r] if r in mine else of_share(r * size // many)[r]


def _aligned(nbytes: int) -> int:
    step = _ALIGN if nbytes >= _SHORT else _ALIGN_SHORT
    return -(-nbytes // step) * step
