"""End of a rank that nobody ends when another one is missing: MPI_Finalize would hang.

A program may catch the error about a missing rank. While that rank lives and runs, this one waits for its
end, as MPI_Finalize does. If it was killed, or is stopped and stays so, nobody can end well any more: then
this rank says so and ends the job. Without an MPI launcher this one waits for every rank so: it sees those of
its node in shared memory, those of others say when they end, and torch_backend/torchrun.py hears who ends
before that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container

from ..core.comm import Comm
from ..node.segment import Region
from . import runtime

_LOOK_S = 0.02
_LOOKS = 50  # that find it so, one after the other; not time: this rank may have been stopped, too
_missed: dict[str, Region] = {}


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
