"""Cells: shared memory into which ranks write their operands for each other's collectives.

small cell, in the segment    flag (8 bytes) | elements, in the same cache line and behind it
large cell, in its own file   flag | ... 64 bytes ... | second flag | ... to 128 bytes | elements
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .arrival_flags import MARK, NUMBERS, ArrivalFlags, numbers

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    import numpy as np

    from ..core.comm import Comm
    from .arrival_flags import Suspect
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["Tables", "large", "table_bytes"]

_SMALL_HEAD = 8  # bytes before the elements: the flag, so that few elements share its cache line
_HEAD = 128  # two flags, a cache line each
_SECOND = 64  # where the second one stands
_KNOWN = (1 << MARK) - 1  # bits of a signature that a flag has


def table_bytes(room: int) -> int:
    """What a rank takes for its two large cells of so many bytes."""
    return 2 * (_HEAD + room)


def large(comm: Comm, memory: mmap.mmap, room: int, suspect: Suspect | None) -> Tables:
    """Large cells of so many bytes, with second flags, of all ranks. memory: table_bytes(room) of each."""
    whole, own = memoryview(memory), _HEAD + room
    places = [[whole[at : at + own] for at in (2 * r * own, (2 * r + 1) * own)] for r in range(comm.size)]
    return Tables(comm, places, suspect, _HEAD)


class Tables:
    """Two cells for each rank that are used in turn.

    Args:
        places: both, of each rank.
        suspect: see Flags; None: no rank compares calls, so flags are numbers only.
        head: bytes before the elements of a cell.

    Attributes:
        room: bytes of a cell.
        lines: the words in which flags are raised, by cell and rank; seconds: those of second flags.
        number: the next step's, whose last bit is its cell.
        owed: the last step's flag as long as other ranks may not have come to it; else 0.
    """

    def __init__(
        self,
        comm: Comm,
        places: Sequence[Sequence[memoryview]],
        suspect: Suspect | None,
        head: int = _SMALL_HEAD,
    ) -> None:
        self.flags = flags = ArrivalFlags(comm, suspect or (lambda *call: None))
        self._known, self._always = (_KNOWN, 0) if suspect else (0, 1)  # bits that a flag has
        self.room, self._rank, self._head = len(places[0][0]) - head, comm.rank, head
        self._places = [[both[i] for both in places] for i in (0, 1)]
        self.lines = [[place[:8].cast("q") for place in each] for each in self._places]
        self.seconds: list[list[memoryview]] = []
        if head > _SECOND:
            self.seconds = [
                [place[_SECOND : _SECOND + 8].cast("q") for place in each] for each in self._places
            ]
        for lines in (*self.lines, *self.seconds):
            for rank, line in enumerate(lines):
                flags.know(rank, line)
        self.others = [each[: comm.rank] + each[comm.rank + 1 :] for each in self.lines]
        self.number, self.owed = numbers(), 0
        self.steps = 0  # that were begun, which second flags say: not all steps have one

    def parts(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[list[np.ndarray[Any, Any]]]:
        """The elements of all ranks, in either cell."""
        count, head = math.prod(shape), self._head
        return [
            [np.frombuffer(place, dtype, count, head).reshape(shape) for place in each]
            for each in self._places
        ]

    def raised(self, mine: int) -> list[int]:
        """The flags of steps with this signature, by their number."""
        flag = mine & self._known | self._always
        return [flag | number << MARK for number in range(NUMBERS)]

    def enter(self, mine: int) -> tuple[int, int]:
        """Come to a step of a call with this signature; returns which cell it has, and its flag."""
        if self.owed:
            self.settle(mine)
        number = self.number()
        self.owed = mine & self._known | self._always | number << MARK
        self.steps += 1
        return number & 1, self.owed

    def settle(self, mine: int) -> None:
        """See that all others have come to the last step: so they are through with the one before."""
        flag = self.owed
        for line in self.others[flag >> MARK & 1]:
            if line[0] != flag:
                self.flags.look(line, flag, mine)
        self.owed = 0

    def meet(self, place: int, flag: int, mine: int) -> None:
        """Raise the flag, and wait for everybody's."""
        self.lines[place][self._rank][0] = flag
        for line in self.others[place]:
            if line[0] != flag:
                self.flags.look(line, flag, mine)
        self.owed = 0
