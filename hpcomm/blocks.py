"""The channel of blocks that follow cards: one MPI communicator for all that are made of one another.

MPI has room for few communicators (MPICH for 2046). Blocks need none of their own: each comes from a rank
that is known, under a number that its sender gives to no other block, whichever communicator its card is of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

    from .communicator import Communicator
else:
    from .lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")

__all__ = ["Blocks", "channel"]


def channel(mpi: MPI.Comm, parent: Communicator | None, is_apart: bool) -> Any:
    """Where blocks of mpi's ranks travel: with those of its parent, which has them all; else apart."""
    if is_apart or mpi.Is_inter():
        return mpi.Dup()
    theirs = None if parent is None else parent._parts
    return theirs.of(mpi) if type(theirs) is Blocks else Blocks(mpi.Dup())


class Blocks:
    """The channel as one communicator sees it, by its own ranks. Freed with the last that uses it.

    Args:
        channel: whose ranks are those of the communicator, in this order.
    """

    __slots__ = ("_channel", "_ranks", "_users")

    def __init__(self, channel: MPI.Comm) -> None:
        self._channel = channel
        self._users = [1]  # of all that share it
        self._ranks: Any = None  # in the channel; None: the same

    def of(self, mpi: MPI.Comm) -> Blocks:
        """The same channel for a communicator of some of its ranks."""
        other = Blocks.__new__(Blocks)
        other._channel, other._users, other._ranks = self._channel, self._users, _Ranks(mpi, self._channel)
        self._users[0] += 1
        return other

    def Send(self, piece: Any, dest: int, tag: int) -> None:  # noqa: N802  as MPI.Comm has them
        self._channel.Send(piece, dest if self._ranks is None else self._ranks[dest], tag)

    def Isend(self, piece: Any, dest: int, tag: int) -> MPI.Request:  # noqa: N802
        return self._channel.Isend(piece, dest if self._ranks is None else self._ranks[dest], tag)

    def Recv(self, piece: Any, source: int, tag: int) -> None:  # noqa: N802
        self._channel.Recv(piece, source if self._ranks is None else self._ranks[source], tag)

    def Irecv(self, piece: Any, source: int, tag: int) -> MPI.Request:  # noqa: N802
        return self._channel.Irecv(piece, source if self._ranks is None else self._ranks[source], tag)

    def Free(self) -> None:  # noqa: N802
        self._users[0] -= 1
        if not self._users[0]:
            self._channel.Free()


class _Ranks(dict[int, int]):
    """Ranks of mpi as those of channel, asked for as they are needed."""

    def __init__(self, mpi: MPI.Comm, channel: MPI.Comm) -> None:
        self._mpi, self._channel = mpi, channel

    def __missing__(self, rank: int) -> int:
        here, there = self._mpi.Get_group(), self._channel.Get_group()
        self[rank] = found = MPI.Group.Translate_ranks(here, [rank], there)[0]
        here.Free()
        there.Free()
        return int(found)
