"""Output of the apps: progress of what lasts longer, and the verdict at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from .. import Communicator
from ..job.command_line import table

__all__ = ["Progress", "sleep_until_all", "table", "verdict"]

_PATIENCE_S = 2.0  # between two lines of progress, and before the first


class Progress:
    """Says on rank 0's stderr how far a loop of `total` steps has come; silent while it is quick."""

    def __init__(self, comm: Communicator, what: str, total: int) -> None:
        self._speaks = comm.rank == 0
        self._what = what
        self._total = total
        self._done = 0
        self._spoke = time.monotonic()

    def step(self) -> None:
        """Count one step; say so when the last word is two seconds old."""
        self._done += 1
        if self._speaks and time.monotonic() - self._spoke > _PATIENCE_S:
            print(f"  {self._what}: {self._done} of {self._total}", file=sys.stderr, flush=True)
            self._spoke = time.monotonic()


def sleep_until_all(comm: Communicator) -> None:
    """Wait until all ranks have come here; a blocking barrier would keep the cores of who is early busy."""
    here = comm.barrier(async_op=True)
    while not here.done():
        time.sleep(0.005)
    here.wait()


def verdict(comm: Communicator, wrong: Sequence[str], right: str) -> int:
    """Print what went wrong on any rank, or `right`; return the exit status, the same on every rank.

    The ranks compare notes through raw mpi4py, so that a fault of hpcomm's cannot hide itself.
    """
    everyone = comm.mpi.allgather(list(wrong))
    if comm.rank == 0:
        for rank, lines in enumerate(everyone):
            for line in lines[:5]:
                print(f"WRONG on rank {rank}: {line}")
            if len(lines) > 5:
                print(f"WRONG on rank {rank}: and {len(lines) - 5} more")
        if not any(everyone):
            print(right)
        sys.stdout.flush()
    return int(any(everyone))
