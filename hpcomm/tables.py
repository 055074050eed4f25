"""Memory of a node in which the ranks of a communicator lay their arrays for each other; see within.py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .flags import MARK, Flags, numbers

if TYPE_CHECKING:
    import mmap

    import numpy as np

    from .communicator import Communicator
    from .flags import Suspect
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["Tables", "table_bytes"]

_HEAD = 128  # bytes before the elements: the two flags, a cache line each
_SECOND = 64  # where the second one stands
_KNOWN = (1 << MARK) - 1  # bits of a signature that a flag has


def table_bytes(room: int) -> int:
    """What a rank takes for its two places of so many bytes."""
    return 2 * (_HEAD + room)


class Tables:
    """A table for each rank, with two places that are used in turn.

    Args:
        memory: table_bytes(room) of each rank.
        suspect: see Flags.

    Attributes:
        lines: the words in which flags are raised, by place and rank; seconds: those of second flags.
    """

    def __init__(self, comm: Communicator, memory: mmap.mmap, room: int, suspect: Suspect) -> None:
        self.flags = flags = Flags(comm, suspect)
        self.room, self._rank = room, comm.rank
        whole, own = memoryview(memory), table_bytes(room)
        self._tables = [whole[rank * own : (rank + 1) * own] for rank in range(comm.size)]
        starts = (0, _HEAD + room)
        self.lines = [[table[at : at + 8].cast("q") for table in self._tables] for at in starts]
        self.seconds = [
            [table[at + _SECOND : at + _SECOND + 8].cast("q") for table in self._tables] for at in starts
        ]
        for rank in range(comm.size):
            for place in (0, 1):
                flags.know(rank, self.lines[place][rank])
                flags.know(rank, self.seconds[place][rank])
        self._others = [each[: comm.rank] + each[comm.rank + 1 :] for each in self.lines]
        self._number, self._flag, self._all_came = numbers(), 0, True
        self.steps = 0  # that were begun, which second flags say: not all steps have one

    def parts(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[list[np.ndarray[Any, Any]]]:
        """The elements of all ranks, on either place."""
        count = math.prod(shape)
        return [
            [np.frombuffer(table, dtype, count, at).reshape(shape) for table in self._tables]
            for at in (_HEAD, 2 * _HEAD + self.room)
        ]

    def enter(self, mine: int) -> tuple[int, int]:
        """Come to a step of a call with this signature; returns which place it has, and its flag."""
        number = self._number()
        place = number & 1
        if not self._all_came:
            for line in self._others[1 - place]:
                if line[0] != self._flag:
                    self.flags.look(line, self._flag, mine)
        self._flag = mine & _KNOWN | number << MARK
        self._all_came = False
        self.steps += 1
        return place, self._flag

    def meet(self, place: int, flag: int, mine: int) -> None:
        """Raise the flag, and wait for everybody's."""
        self.lines[place][self._rank][0] = flag
        for line in self._others[place]:
            if line[0] != flag:
                self.flags.look(line, flag, mine)
        self._all_came = True
