"""Carriers: MPI's communicators under one of ours, and what becomes of those of a closed duplicate.

To make MPI's communicators takes most of the time of a dup(), and MPI has room for few. Programs that make a
duplicate for each piece of work close it again. So the parent of a closed duplicate keeps its carriers for
the next one:

    in use ──close()──> spare ──the next dup(), if nobody has sent anything there──> in use
                          └────else, or when the parent closes─────────────────────> freed

What a rank sends may be left there, and must not arrive on another communicator. So the ranks tell each other
when they make the next one whose carriers they have, and whether they have touched them. Calls of the native
core do not.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._lazy import MPI
from ...agree import runtime

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
        is_there = any(mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, seen) for _ in range(_LOOKS))
        return (seen.source, seen.tag) if is_there else None

    def duplicate(self, name: str) -> Carriers:
        """Others of the same ranks. Collective."""
        return Carriers(self.plain.Dup(), self.plain.Dup(), name)


class Spare:
    """Carriers of a closed duplicate, which was its parent's of this number. is_unused: not touched here."""

    def __init__(self, carriers: Carriers, number: int, is_unused: bool) -> None:
        self.carriers, self.number, self.is_unused = carriers, number, is_unused
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
