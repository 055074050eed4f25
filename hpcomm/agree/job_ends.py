"""How the ranks of a job end together: by MPI, or on one node without it by their records there.

a rank aborts   writes its status into its record, and ends once the others have seen it
the others      look a few times a second (watchdog.py), and end with the same status after it
one that does not look, because it is stopped or inside C, is killed after a second by those that leave
one that was killed is seen by its lock; after two seconds another one aborts

A program may catch the error about a missing rank. Where nobody ends it then, MPI_Finalize would hang. While
that rank lives and runs, this one waits for its end, as MPI_Finalize does. If it was killed, or is stopped
and stays so, nobody can end well any more: then this rank says so and ends the job. Without an MPI launcher
this one waits for every rank so: it sees those of its node in shared memory, those of others say when they
end, and torch_backend/torchrun.py hears who ends before that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container

from .._lazy import MPI
from ..core.comm import Comm
from ..core.limits import GRACE_S, NETWORK_PATIENCE_S
from ..core.patience import until
from ..node import segment
from ..node.segment import NodeSegment, Region
from . import runtime

_LAST_S = 2.0  # for a rank that aborts to end
_LOOK_S = 0.02
_LOOKS = 50  # that find it so, one after the other; not time: this rank may have been stopped, too
_missed: dict[str, Region] = {}


class ByMPI:
    """A job of MPI's.

    Attributes:
        rank, size: of this process, in the job. everybody: of its own, for meetings.
    """

    def __init__(self, everybody: MPI.Intracomm) -> None:
        self.everybody, self.rank, self.size = everybody, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

    def others(self) -> list[tuple[int, Region]]:
        """The records of the other ranks, as far as this one shares memory with them."""
        here = segment.current
        if here is None:
            return []
        return [(rank, here.regions[i]) for rank, i in here.near(MPI.COMM_WORLD) if rank != self.rank]

    def is_over(self) -> bool:
        """Whether this rank has come to its end, and belongs to the job no more."""
        return MPI.Is_finalized()

    def abort(self, status: int) -> None:
        """End all ranks; where this returns, nobody but this one is left."""
        runtime.abort_by_mpi(status)

    def meeting(self) -> Callable[[], bool]:
        """Come to the end by failure. What is returned says whether all others have come to theirs."""
        return self.everybody.Ibarrier().Test


class ByRecords:
    """The same without MPI. near: all ranks of the job, in their order."""

    def __init__(self, near: NodeSegment) -> None:
        self.rank, self.size, self._mine = near.here, len(near.regions), near.mine
        self._others = [(rank, region) for rank, region in enumerate(near.regions) if rank != near.here]
        self._lost_since = 0.0

    def others(self) -> list[tuple[int, Region]]:
        return self._others

    def is_over(self) -> bool:
        return self._mine.ended

    def abort(self, status: int) -> None:
        self._mine.aborted = status

        def stuck() -> list[Region]:
            return [region for _, region in self._others if region.is_held and not region.aborted]

        if not until(lambda: not stuck(), GRACE_S):
            for region in stuck():
                region.kill()

    def meeting(self) -> Callable[[], bool]:
        return lambda: all(region.failed or region.gone for _, region in self._others)

    def look(self) -> None:
        """End as well if another rank ends the job, or was killed; for the watchdog."""
        if runtime.ending is not None:
            return
        for _, region in self._others:
            if status := region.aborted:
                self._follow(region, status)
        lost = [rank for rank, region in self._others if region.gone and not region.ended]
        self._lost_since = (self._lost_since or time.monotonic()) if lost else 0.0
        if lost and time.monotonic() - self._lost_since > NETWORK_PATIENCE_S:
            runtime.abort(f"rank {lost[0]} was killed: look at what it printed; so the job ends")

    def _follow(self, region: Region, status: int) -> None:
        """End after the rank of this record: whoever started them takes the first for the cause."""
        self._mine.aborted = status  # which it waits for
        until(lambda: not region.is_held, _LAST_S)
        runtime.follow(status)


def remember(comm: Comm, ranks: Container[int]) -> None:
    """These ranks have not come in time, or have ended: this one may have to end without them."""
    if not _missed:
        runtime.farewells.append(_wait)
    _missed.update((f"rank {r} of '{comm.name}'", its) for r, its in comm.near.regions.items() if r in ranks)


def _wait() -> None:
    """Wait for the end of the ranks that were missed; end the job if there will be none."""
    found: Counter[str] = Counter()
    while runtime.ending is None and (
        left := {n: its for n, its in _missed.items() if not (its.ended or its.died)}
    ):
        for label, region in left.items():
            how = "was killed" if region.gone else "is stopped" * region.stopped
            found[label] = found[label] + 1 if how else 0
            if found[label] > _LOOKS:
                runtime.abort(
                    f"has come to its end, and {label}, which it missed, {how}: so the job ends, "
                    "with status 1"
                )
        time.sleep(_LOOK_S)


def await_all() -> None:
    """Wait for the end of all ranks, and end by failure if one does."""
    job, notices = runtime.job, runtime.end_notices
    assert job is not None
    near = job.others()
    seen = {job.rank, *(rank for rank, _ in near)}
    far = set(range(job.size)) - seen if notices is not None and notices.by_message else set()
    while runtime.ending is None and (near or far):
        near = [each for each in near if not each[1].ended]
        for rank, region in near:
            if region.gone and not region.ended:
                runtime.abort(f"has come to its end, but rank {rank} has failed: status 1")
        far = far - notices.ended() if notices is not None else far
        if near or far:
            time.sleep(_LOOK_S)
