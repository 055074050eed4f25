"""Barrier before every collective: it compares the calls, has a timeout, and names who does not come.

Once a rank is inside the MPI library nobody can call it back. So the ranks meet before: each says which call
it makes, waits for the others with a deadline, and compares. Who does not come is named. Ranks that mean
different calls all raise, and the group stays usable, because none of them has entered MPI. On one node they
meet in the communicator's own core.Node, whose collectives are such meetings themselves; across nodes by
message (FarMeetings). torch's own word for it is a monitored barrier.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from contextlib import suppress

from torch._C._distributed_c10d import Store

from .._lazy import MPI
from ..agree import job_ends
from ..agree.arrivals import Arrivals
from ..agree.deadline import lost, unanswered
from ..agree.present_calls import words_now
from ..communicator.context import Context
from ..core.limits import WORK_LOOK_S
from ..core.patience import Pause
from ..core.request import abandon
from ..core.signature import REFUSED, describe
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, WaitTimeoutError, has_ended
from ..node import native, segment
from . import store_reports
from .torch_errors import as_torch

_ANY_BYTES = 2**64 - 1
_SAY_S = 1.0  # of waiting for other nodes, then a rank says in the store that it is there
# In a signature, where no operator has a bit: whoever meets brings no data to those who make the call itself.
_MEETING = 16 << 6
_ALIKE = "make the same call on every rank, in the same order: operator, dtype, shape, root"
_FAR_LOOKS = 10  # that find a rank of another node ended: what it sent before may still be on its way


class EntryBarrier(Arrivals):
    """come(signature) returns when all ranks have come to the same call: the thread's present one.

    Attributes:
        node: the communicator's, in whose calls all ranks wait for all from now on; None: no shared memory.
        failed: why no call can pass any more.
    """

    hint = "look at what that rank does; init_process_group(timeout=...) sets the time"
    seconds, where = 0.0, ""
    failed: HpcommError | None = None
    _before = 0  # calls of the node that were made before
    _looked, _looks = 0.0, 0  # when somebody looked last, and looks in a row that have found a rank ended

    def __init__(self, comm: Context, store: Store, seconds: float) -> None:
        super().__init__(comm)
        self.where = f"process group '{comm.name}' (rank {comm.rank} of {comm.size})"
        self._store, self._far = store, FarMeetings(comm, store, self)
        node, here = comm.node, segment.current
        if node is None and comm.size == 1 and here is not None and (place := here.reserved([here.here])):
            node = native.node(here, place, 0, self, True)  # as of a mesh with an axis of length 1
        if node is not None:
            self._before = node.number
            node.hook, node.checks, node.synchronous, node.most = self, True, True, _ANY_BYTES
        self.node = node
        self.limit(seconds)

    def limit(self, seconds: float) -> None:
        """From now on calls wait so long."""
        self.seconds = seconds
        if self.node is not None:
            self.node.timeout = seconds

    def close(self) -> None:
        """Let no call pass any more."""
        if self.node is not None:
            self.node.close()
        what, hint = "has been destroyed", "init_process_group() or new_group() makes a new one"
        self.failed = as_torch(UsageError(f"process group '{self.comm.name}' {what}", hint=hint))

    def check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def come(self, mine: int) -> None:
        self.check()
        (self.node or self._far).arrive_and_wait(mine | _MEETING)

    def refuse(self) -> None:
        """Tell the others that this rank does not make the call it has been asked for; waits for nobody."""
        if self.failed is None:
            with suppress(HpcommError):
                (self.node or self._far).arrive(REFUSED)
            store_reports.say(self._store, f"called/{self._number}", self.comm.rank, describe(REFUSED))

    # -- where ranks wait, or a call fails -----------------------------------------------------------------
    def __call__(self, reason: str, ranks: Sequence[int], mine: int = 0, theirs: int = 0) -> None:
        if reason == "waits" and self.node is not None:
            self.node.move_messages()  # of ranks that wait to be rid of them
        if reason in ("message", "waits"):
            if (now := time.monotonic()) - self._looked < WORK_LOOK_S:
                return
            self._looked = now
        if reason == "message":
            unanswered(self.comm, ranks[0] if ranks else None, words_now(), self.where)
            return
        try:
            super().__call__(reason, ranks, mine, theirs)
        except (PeerFailedError, WaitTimeoutError) as error:
            job_ends.remember(self.comm, getattr(error, "ranks", ranks))
            self.failed = as_torch(error)
            raise self.failed from None

    @property
    def _number(self) -> int:
        return self._far.number if self.node is None else self.node.number - self._before

    @property
    def what(self) -> str:
        return f"{words_now()} (call #{self._number} on '{self.comm.name}')"

    def look_at(self, ranks: Sequence[int]) -> None:
        gone = lost(self.comm, ranks)
        self._looks = self._looks + 1 if gone else 0
        if self._looks > (_FAR_LOOKS if self.node is None else 1):  # else it may have come
            raise has_ended(self.what, self.where, gone)

    def left(self, rank: int) -> HpcommError:
        gone = lost(self.comm, range(self.comm.size))
        return has_ended(self.what, self.where, gone) if gone else super().left(rank)

    def differs(self, rank: int, mine: int, theirs: int) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Unless one has refused its call, all come to tell theirs, or the group is broken.
        """
        key, refused = f"called/{self._number}", describe(REFUSED)
        rows = {rank: describe(theirs & ~_MEETING), self.comm.rank: words_now()}
        store_reports.say(self._store, key, self.comm.rank, rows[self.comm.rank])
        is_known = refused in rows.values()
        if not is_known and (heard := store_reports.heard(self._store, key, self.comm.size, self.seconds)):
            rows, is_known = dict(enumerate(heard)), True
        lines = [f"  rank {rank}: {rows[rank]}" for rank in sorted(rows)]
        what = "\n".join([f"ranks disagree about call #{self._number} on '{self.comm.name}'.", *lines])
        hint = "look at the error of that rank" if refused in rows.values() else _ALIKE
        error = as_torch(MismatchError(what, self.where, hint))
        if not is_known:
            self.failed = error
        return error


class FarMeetings:
    """Meetings of ranks of several nodes, as a core.Node has them on one: a nonblocking all-reduce each.

    Args:
        hook: what is called while this rank waits, and where the meeting fails.

    Attributes:
        number: of this rank's last one.
    """

    number = 0

    def __init__(self, comm: Context, store: Store, hook: Arrivals) -> None:
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
