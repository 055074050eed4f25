"""Start-up monitor: ends the job when a process ends before MPI is up in all of them.

    mpirun, prted, hydra_pmi_proxy ─┬─ python ocean.py        has ended: MPI_Init of the others never does
                                    └─ python atmosphere.py   in MPI_Init, where no thread of Python's runs
                                         └─ this file         so a process of its own looks at the others

It sees the processes of its own host (Linux; launchers of Open MPI and MPICH, and Slurm's). For what ends on
other hosts it keeps a deadline. Needs the standard library only: it starts in 15 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import grouped, named
from . import variables
from .launcher import (
    SLURM,
    call,
    children_of,
    command_of,
    environ_of,
    launcher_of,
    line_of,
    name_of,
    words_of,
)
from .process_role import SIZES, told

INIT_S = 60.0  # MPI comes up within that, or the job ends
UNSEEN_S = 30.0  # the same where there are other hosts, whose processes cannot be seen
LIMIT = "HPCOMM_INIT_TIMEOUT"  # seconds, instead of both
GRACE_S = 2.0  # for a launcher that ends the job by itself, or still starts others
_LOOK_S = 0.5
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # processes of the job on this host


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within, this process is killed, and so its job ended, where MPI cannot come up any more."""
    words = call("job.startup_monitor", str(os.getpid()), f"{variables.seconds(LIMIT) or ''}")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as watcher:
        try:
            yield
        finally:
            watcher.kill()


class Look(NamedTuple):
    """What is to be seen of a job on this host: the ranks that live, of how many here, of how many in all."""

    ranks: frozenset[int]
    here: int
    size: int
    due: frozenset[int] = frozenset()  # those that should live here; empty: it is not known which


def judge(seen: Look, line: Sequence[str]) -> str | None:
    """The sentence about the processes that are missing; None if all live. line: the launcher's words."""
    lost = seen.here - len(seen.ranks)
    if lost <= 0:
        return None
    due = seen.due or (frozenset(range(seen.size)) if seen.here == seen.size else None)
    own = f"{lost} of the {seen.here} processes of this job on {os.uname().nodename}"
    who = _named(due - seen.ranks, line, " and ") if due else own
    return f"{who} {'has' if lost == 1 else 'have'} ended before MPI was up"


def cause(first: Look | None, seen: Look | None) -> Look | None:
    """The look that shows who has ended first; first: the one up to now. Whoever follows, ended for that."""
    if first and seen and len(first.ranks) < first.here and seen.ranks < first.ranks:
        return first
    return seen


def away(seen: Look, line: Sequence[str]) -> str:
    """Who is not on this host. line: the launcher's words, if known."""
    return _named({*range(seen.size)} - seen.ranks, line, ", or ")


def _named(ranks: Iterable[int], line: Sequence[str], between: str) -> str:
    """`rank 2 of the world (python ocean.py), or ...`: those of one command together."""
    groups = grouped((f" ({command_of(rank, line)})" if line else "", rank) for rank in sorted(ranks))
    return between.join(f"{named(some)} of the world{command}" for command, some in groups.items())


# -- the watcher's own process -------------------------------------------------------------------------


def main(words: Sequence[str]) -> None:
    """`PID LIMIT`: watch over a rank that brings MPI up; end with it, or end it."""
    pid, limit = int(words[0]), words[1]
    launcher, begin = launcher_of(pid), time.monotonic()
    last, since, first = None, begin, None
    while not select.select([0], [], [], _LOOK_S)[0]:  # its end closes the pipe
        now, seen = time.monotonic(), _look(pid, launcher)
        if seen != last:
            last, since, first = seen, now, cause(first, seen)
        place = sorted(seen.ranks).index(_rank(pid) or 0) if seen else 0  # so that not all speak at once
        why = None
        if seen and now - since > GRACE_S + place:
            why = judge(first or seen, line_of(launcher))
        why = why or _late(seen, launcher, now - begin, limit)
        if why:
            who = f"rank {_rank(pid) or 0} ({' '.join(words_of(pid))}) on {os.uname().nodename}"
            os.write(2, f"hpcomm: {why}; {who} waits for that, so the job ends\n".encode())
            os.kill(pid, signal.SIGKILL)
            return


def _late(seen: Look | None, launcher: int, waited_s: float, limit: str) -> str | None:
    """What is wrong if MPI takes too long; None: it does not."""
    sees_all = seen is not None and seen.here == seen.size
    limit_s = float(limit) if limit else INIT_S if sees_all else UNSEEN_S
    if waited_s <= limit_s:
        return None
    why = (
        f"MPI has not come up within {limit_s:g} s ({LIMIT} sets that): it waits for processes that"
        " have not begun it"
    )
    if not sees_all:
        why += ", or that have ended on a host that cannot be seen from here"
        why += f": {away(seen, line_of(launcher))}" if seen else ""
    return why


def _look(pid: int, launcher: int) -> Look | None:
    environ = environ_of(pid)
    size = told(SIZES, environ)
    tasks = environ.get("SLURM_GTIDS", "") if launcher and name_of(launcher) == SLURM else ""
    due = frozenset(int(rank) for rank in tasks.split(",") if rank.isdecimal())
    here = len(due) or told(_LOCAL_SIZES, environ)
    if not (launcher and size and here):
        return None
    ranks = map(_rank, children_of(launcher))
    living = frozenset(rank for rank in ranks if rank is not None)
    return Look(living, here, size, due) if _rank(pid) in living else None


def _rank(pid: int) -> int | None:
    return told(_RANKS, environ_of(pid))
