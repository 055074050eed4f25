"""Meetings of ranks of several nodes, as a core.Node has them on one: a small nonblocking all-reduce each."""

from __future__ import annotations

import time
from array import array

from torch._C._distributed_c10d import Store

from .._lazy import MPI
from ..agree.arrivals import Arrivals
from ..core.comm import Comm
from ..core.patience import Pause
from ..core.request import abandon
from . import store_reports

_SAY_S = 1.0  # of waiting, then a rank says in the store that it is there


class FarMeetings:
    """Those of one communicator.

    Args:
        hook: what is called while this rank waits, and where the meeting fails.

    Attributes:
        number: of this rank's last one.
    """

    number = 0

    def __init__(self, comm: Comm, store: Store, hook: Arrivals) -> None:
        self._comm, self._store, self._hook = comm, store, hook

    def _begun(self, mine: int) -> tuple[MPI.Request, array[int]]:
        """A meeting, and once it is over the largest signature there, and the negative of the least one."""
        self.number += 1
        both = array("q", (mine, -mine))
        return self._comm.object_comm.Iallreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX), both

    def arrive(self, mine: int) -> None:
        abandon(self._begun(mine))

    def arrive_and_wait(self, mine: int) -> None:
        (meeting, both), hook, store = self._begun(mine), self._hook, self._store
        key, ranks = f"here/{self.number}", range(self._comm.size)
        begin, pause, says = time.monotonic(), Pause(), min(hook.seconds / 2, _SAY_S)
        try:
            while not meeting.Test():
                if (waited := time.monotonic() - begin) > hook.seconds:
                    cut_off = [rank for rank in ranks if rank not in self._comm.near.regions]
                    found = store_reports.silent(store, key, len(ranks), cut_off)
                    hook("late", [rank for rank in found if rank != self._comm.rank])
                if waited > says:
                    says = hook.seconds
                    store_reports.say(store, key, self._comm.rank, "")
                hook("waits", ranks)
                pause.sleep()
        except BaseException:
            abandon(meeting, both)
            raise
        if both[0] != -both[1]:
            hook("mismatch", [self._comm.rank], mine, mine)
