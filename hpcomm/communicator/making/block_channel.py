"""MPI communicator for payload blocks: one for all communicators that are made of one another.

MPI has room for few communicators (MPICH for 2046). Blocks need none of their own: each comes from a known
rank, under a number that its sender gives to no other block, whichever communicator its header is of.

No receive of any tag is posted here. So MPI makes groups here, which Open MPI does by messages: on a
communicator of the user's a receive of any tag took them, or one of the same tag.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from ..._lazy import MPI
from ...core.comm import Comm
from ...transport.late import transport

_serial = count()


def part_tag() -> int:
    """Tag of what follows a header from its rank: another one each time, in the first quarter."""
    return next(_serial) % (transport.largest_tag() // 4)


def passing_tag(tag: int, root: int, size: int) -> int:
    """Tag of root's parts of this tag, where others of size ranks pass them on: in the second quarter."""
    quarter = transport.largest_tag() // 4
    each = max(quarter // size, 1)
    return quarter + (root * each + tag % each) % quarter


def making(comm: Comm, tag: int) -> tuple[Any, int]:
    """The channel, for MPI to make a communicator on, and a tag there in the upper half.

    Tags of one communicator stay apart, and so do, by their marks, communicators that share the channel and
    of which several threads make groups.
    """
    theirs, half = comm.block_channel, transport.largest_tag() // 2
    mpi = theirs.mpi if type(theirs) is Blocks else theirs
    return mpi, half + 1 + (comm.tag_base + tag) % half


def channel(mpi: MPI.Comm, parent: Comm | None, is_apart: bool, is_duplicate: bool) -> Any:
    """Where blocks of mpi's ranks travel: with those of its parent, which has them all; else apart.

    Args:
        is_duplicate: the parent has the same ranks.
    """
    if is_apart or mpi.Is_inter():
        return mpi.Dup()
    theirs = None if parent is None else parent.block_channel
    if type(theirs) is not Blocks:
        return Blocks(mpi.Dup())
    return theirs.of(theirs.ranks if is_duplicate else _Ranks(mpi, theirs.mpi))


def rank_there(comm: Comm, rank: int) -> int:
    """A rank of comm as one of its channel."""
    theirs = comm.block_channel
    return rank if type(theirs) is not Blocks or theirs.ranks is None else theirs.ranks[rank]


class Blocks:
    """The channel as one communicator sees it, by its own ranks. Freed with the last that uses it.

    Args:
        channel: whose ranks are those of the communicator, in this order.
    """

    __slots__ = ("_users", "mpi", "ranks")

    def __init__(self, channel: MPI.Comm) -> None:
        self.mpi = channel
        self._users = [1]  # of all that share it
        self.ranks: Any = None  # in the channel; None: the same

    def of(self, ranks: Any) -> Blocks:
        """The same channel for another communicator of some of its ranks."""
        other = Blocks.__new__(Blocks)
        other.mpi, other._users, other.ranks = self.mpi, self._users, ranks
        self._users[0] += 1
        if ranks is not None:
            ranks.users += 1
        return other

    def Send(self, piece: object, dest: int, tag: int) -> None:  # noqa: N802  as MPI.Comm has them
        self.mpi.Send(piece, dest if self.ranks is None else self.ranks[dest], tag)

    def Isend(self, piece: object, dest: int, tag: int) -> MPI.Request:  # noqa: N802
        return self.mpi.Isend(piece, dest if self.ranks is None else self.ranks[dest], tag)

    def Recv(self, piece: object, source: int, tag: int) -> None:  # noqa: N802
        self.mpi.Recv(piece, source if self.ranks is None else self.ranks[source], tag)

    def Irecv(self, piece: object, source: int, tag: int) -> MPI.Request:  # noqa: N802
        return self.mpi.Irecv(piece, source if self.ranks is None else self.ranks[source], tag)

    def place(self, rank: int) -> tuple[int, int]:
        """A rank of the communicator as one of the channel, and how many there are."""
        return rank if self.ranks is None else self.ranks[rank], self.mpi.Get_size()

    def Free(self) -> None:  # noqa: N802
        if self.ranks is not None:
            self.ranks.lose_one()
        self._users[0] -= 1
        if not self._users[0]:
            self.mpi.Free()


class _Ranks(dict[int, int]):
    """Ranks of mpi as those of channel, asked for as they are needed."""

    users = 0  # a communicator and its duplicates, which may outlive it

    def __init__(self, mpi: MPI.Comm, channel: MPI.Comm) -> None:
        self._mpi, self._channel = mpi, channel
        self._here: MPI.Group | None = None  # mpi's, once that may be freed

    def __missing__(self, rank: int) -> int:
        here, there = self._here or self._mpi.Get_group(), self._channel.Get_group()
        self[rank] = found = MPI.Group.Translate_ranks(here, [rank], there)[0]
        if self._here is None:
            here.Free()
        there.Free()
        return int(found)

    def lose_one(self) -> None:
        """One of the users is about to be freed."""
        self.users -= 1
        if self.users and self._here is None:
            self._here = self._mpi.Get_group()
        elif not self.users and self._here is not None:
            self._here.Free()
