"""Dropped communicators: closed when all ranks have dropped them without a close()

To free one is collective, and Python's garbage goes at another time on each rank. So a dropped one is kept,
and closed when the one that it was made of makes more: there all ranks say which they still have. Members of
a group do so when they make another one of the same ranks, on that.
"""

from __future__ import annotations

import gc
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")

__all__ = ["Children", "Groups"]

_FEW = 8  # that may be open or dropped before ranks ask each other, which takes as long as a small all_reduce
_MANY = 64  # after so many Python is asked to look for garbage: a communicator's functions point back at it


class Children:
    """What one communicator has made, by number: the same on all its ranks, also on those in no part.

    Left out are those with ranks of other groups (inter-communicators): there is no call of all their ranks
    in which these could ask each other.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()  # that are not closed
        self._dropped: dict[int, Communicator] = {}
        self._open: list[int] = []  # numbers of those that some rank may still have
        self._next = 0
        self._room = _FEW

    def begin(self, comm: Communicator) -> None:
        """For another one, on all ranks of comm: now and then close those that nobody has any more."""
        if comm.is_inter:
            return
        if len(self._open) >= self._room:
            if len(self._open) >= _MANY:
                gc.collect()
            self.sweep(comm)
            self._room = _FEW + 2 * len(self._open)
        self._open.append(self._next)
        self._next += 1

    def sweep(self, comm: Communicator) -> None:
        """Close those that nobody has any more, and what they have made and nobody has; on all ranks."""
        if not self._open:
            return
        has = bytearray(map(self._has, self._open))
        comm.mpi_handle.Allreduce(MPI.IN_PLACE, [has, MPI.UINT8_T], MPI.MAX)
        gone = [number for number, here in zip(self._open, has, strict=True) if not here]
        self._open = [number for number, here in zip(self._open, has, strict=True) if here]
        for number in gone:
            if (child := self._dropped.pop(number, None)) is not None:
                child.children.sweep(child)
                child.close()

    def add(self, child: Communicator) -> None:
        """Note what was made last."""
        if not child.is_inter:
            child.home = self, self._next - 1
            self._known.add(self._next - 1)

    def drop(self, number: int, child: Communicator) -> None:
        """Keep a child that its program has dropped; in whatever call Python says so."""
        self._dropped[number] = child

    def forget(self, number: int) -> None:
        """Its program has closed it."""
        self._known.discard(number)

    def _has(self, number: int) -> bool:
        """Whether this rank has it, or does not know yet that it has been dropped."""
        if number in self._dropped:
            child = self._dropped[number]
            return bool(child.disagreed) or not all(request.done() for request in child.to_itself)
        return number in self._known  # also while Python is about to drop it


class Groups:
    """The groups that this rank is in, of one communicator: a list for each choice of members and tag."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, bytes], Children] = {}

    def note(self, group: Communicator, members: list[int], tag: int) -> None:
        """Note a new group, and close those of the same members that none of them has any more."""
        children = self._children.setdefault((tag, array("i", members).tobytes()), Children())
        children.begin(group)
        children.add(group)
