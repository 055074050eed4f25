"""End of a rank that nobody ends when another one is missing: MPI_Finalize would hang.

A program may catch the error about a missing rank. While that rank lives and runs, this one waits for its
end, as MPI_Finalize does. If it was killed, or is stopped and stays so, nobody can end well any more: then
this rank says so and ends the job. Without an MPI launcher this one waits for every rank so: it sees those of
its node in shared memory, those of others say when they end, and torchrun.py hears who ends before that.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from ..agree import runtime
from ..node import segment
from ..node.segment import Region

_LOOK_S = 0.02
_LOOKS = (
    50  # that find it stopped or dead, one after the other; not time: this rank may have been stopped, too
)
_HOPELESS = {"T": "is stopped", "Z": "was killed", "X": "was killed"}
_missed: dict[int, tuple[str, Region, int]] = {}


def remember(label: str, region: Region, pid: int) -> None:
    """A rank has not come in time; label: its name. pid: 0 if its process cannot be seen from here."""
    if not _missed:
        runtime.farewells.append(_wait)
    _missed[id(region)] = label, region, pid


def _wait() -> None:
    """Wait for the end of the ranks that were missed; end the job if there will be none."""
    found: Counter[str] = Counter()
    while runtime.ending is None and any(pid and not region.ended for _, region, pid in _missed.values()):
        for label, region, pid in _missed.values():
            how = _HOPELESS.get(state(pid))
            if how is None or region.ended:
                found[label] = 0
                continue
            found[label] += 1
            if found[label] > _LOOKS:
                runtime.abort(
                    f"has come to its end, and {label}, which it missed, {how}: so the job ends, "
                    "with status 1"
                )
        time.sleep(_LOOK_S)


def await_all() -> None:
    """Wait for the end of all ranks, and end by failure if one does."""
    from mpi4py import MPI

    world, here, notices = MPI.COMM_WORLD, segment.current, runtime.end_notices
    near = [] if here is None else [(rank, here.regions[i]) for rank, i in here.near(world)]
    seen = {world.rank, *(rank for rank, _ in near)}
    far = set(range(world.size)) - seen if notices is not None and notices.by_message else set()
    while runtime.ending is None and (near or far):
        near = [each for each in near if not each[1].ended]
        for rank, region in near:
            if region.gone and not region.ended:
                runtime.abort(f"has come to its end, but rank {rank} has failed: status 1")
        far = far - notices.ended() if notices is not None else far
        if near or far:
            time.sleep(_LOOK_S)


def state(pid: int) -> str:
    """A process of this host, in a letter of proc(5): "X" if there is none, "" if it cannot be seen."""
    if not pid:  # of another PID namespace
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123  in a loop that waits
            return stat.read().rpartition(b") ")[2][:1].decode()
    except FileNotFoundError:
        return "X" if os.path.isdir("/proc/self") else ""  # noqa: PTH112
    except OSError:
        return ""
