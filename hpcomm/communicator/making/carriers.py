"""Carriers: MPI's communicators under one of ours, and what becomes of those of a closed one.

To make MPI's communicators takes most of the time of a dup() or split(), and MPI has room for few. Programs
that make one for each piece of work close it again. So where the native core has all ranks of the parent,
that keeps the carriers of a closed one for the next that is made by the same call:

    in use ──close(), nothing sent there──> spare ──the same call, all ranks have it──> in use
       └─────else─────────> freed <───────────┴─────else, or when the parent closes

What a rank sends may be left there, and must not arrive on another communicator. So when the ranks make the
next one they tell each other whose carriers they have. Calls of the native core send nothing there.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._lazy import MPI
from ...agree import runtime, survival
from ...core.comm import Comm

_LOOKS = 8  # each may only let MPI see the next message that has arrived, of whatever communicator


class Carriers(NamedTuple):
    """plain: for messages of one array. objects: for objects and ragged arrays, which have headers."""

    plain: MPI.Comm
    objects: MPI.Comm
    name: str  # of the communicator

    def Free(self) -> None:  # noqa: N802  as MPI.Comm has it
        """Give them back to MPI, but for one in which a message is left: a later one would receive it."""
        for mpi in (self.objects, self.plain):
            if (left := self.unreceived(mpi)) is not None:
                which = f"a message of rank {left[0]} with tag {left[1]}"
                what = f"{which} on '{self.name}', which is closed, was never received"
                runtime.say(f"{what}\n  try: receive every message before close()")
            else:
                mpi.Free()

    @staticmethod
    def unreceived(mpi: MPI.Comm) -> tuple[int, int] | None:
        """Source and tag of a message that has come there."""
        seen = MPI.Status()
        for _ in range(_LOOKS):
            if survival.looked(mpi, mpi.Iprobe, MPI.ANY_TAG, seen):
                return seen.source, seen.tag
        return None

    def duplicate(self, name: str) -> Carriers:
        """Others of the same ranks. Collective."""
        return Carriers(self.plain.Dup(), self.plain.Dup(), name)


class Spare:
    """Carriers of a closed communicator, its parent's of this number, which have not been touched here."""

    def __init__(self, closed: Comm, carriers: Carriers, number: int) -> None:
        self.carriers, self.number = carriers, number
        self.rank, self.size, self.near = closed.rank, closed.size, closed.near
        self._is_idle, self._is_wanted = False, True

    def Free(self) -> None:  # noqa: N802
        """Nothing is under way there any more."""
        self._is_idle = True
        if not self._is_wanted:
            self.carriers.Free()

    def give_up(self) -> None:
        """Free them, now or when nothing is under way there."""
        self._is_wanted = False
        if self._is_idle:
            self.carriers.Free()
