"""Barrier before every collective: it compares the calls, has a timeout, and names who does not come.

Once a rank is inside the MPI library nobody can call it back. So the ranks meet before: each says which call
it makes, waits for the others with a deadline, and compares. Who does not come is named. Ranks that mean
different calls all raise, and the group stays usable, because none of them has entered MPI. On one node they
meet in the communicator's own core.Node, whose collectives are such meetings themselves; across nodes by a
small nonblocking all-reduce. torch's own word for it is a monitored barrier.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING

from .._lazy import MPI
from ..agree import shutdown
from ..agree.agreement import Comparison
from ..agree.arrivals import Arrivals
from ..agree.deadline import lost
from ..agree.present_calls import call_of
from ..core.limits import WORK_LOOK_S
from ..core.patience import Pause
from ..core.present import waiting
from ..core.request import Stages, abandon
from ..core.signature import REFUSED, describe
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, WaitTimeoutError, has_ended
from ..node import native, segment
from . import store_reports
from .torch_errors import as_torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from ..communicator.context import Context

_ANY_BYTES = 2**64 - 1
# In a signature, where no operator has a bit: whoever meets brings no data to those who make the call itself.
_MEETING = 16 << 6
_ALIKE = "make the same call on every rank, in the same order: operator, dtype, shape, root"
_FAR_LOOKS = 10  # that find a rank of another node ended: what it sent before may still be on its way
_SAY_S = 1.0  # of waiting, then a rank says in the store that it is there


class EntryBarrier(Arrivals):
    """come(signature) returns when all ranks have come to the same call: the thread's present one.

    Attributes:
        node: the communicator's, in whose calls all ranks wait for all from now on; None: no shared memory.
        failed: why no call can pass any more.
    """

    hint = "look at what that rank does; init_process_group(timeout=...) sets the time"
    seconds, where = 0.0, ""
    failed: HpcommError | None = None

    def __init__(self, comm: Context, store: Store, seconds: float) -> None:
        super().__init__(comm)
        self._store = store
        self.where = f"process group '{comm.name}' (rank {comm.rank} of {comm.size})"
        self._before = self._meetings = 0  # calls of the node that were before, and meetings by message
        self._looked, self._gone = 0.0, list[int]()  # when somebody looked last, and who had ended by then;
        self._looks = 0  # how many looks before have found the same
        node, here = comm.node, segment.current
        if node is None and comm.size == 1 and here is not None and (place := here.reserved([here.mine])):
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
        if self.node is not None:
            self.node.arrive_and_wait(mine | _MEETING)
        elif self.comm.size > 1:
            self._by_message(mine)

    def refuse(self) -> None:
        """Tell the others that this rank does not make the call it has been asked for; waits for nobody."""
        if self.failed is not None:
            return
        if self.node is not None:
            with suppress(HpcommError):
                self.node.arrive(REFUSED)
        elif self.comm.size > 1:
            abandon(Comparison(self._compared(REFUSED)))
        store_reports.say(self._store, f"called/{self._number}", self.comm.rank, describe(REFUSED))

    def _by_message(self, mine: int) -> None:
        meeting, comm = Comparison(self._compared(mine)), self.comm
        begin, pause, says = time.monotonic(), Pause(), min(self.seconds / 2, _SAY_S)
        try:
            while not meeting.Test():
                if (waited := time.monotonic() - begin) > self.seconds:
                    found = store_reports.silent(self._store, f"here/{self._meetings}", comm.size)
                    here = {comm.rank}  # whose own word may be on its way
                    if found is None:  # it is cut off from those of other hosts
                        here, found = here | comm.near.regions.keys(), [*range(comm.size)]
                    self("late", [rank for rank in found if rank not in here])
                if waited > says:
                    says = self.seconds
                    store_reports.say(self._store, f"here/{self._meetings}", comm.rank, "")
                self("waits", range(comm.size))
                pause.sleep()
        except BaseException:
            abandon(meeting)
            raise

    def _compared(self, mine: int) -> Stages:
        self._meetings += 1
        both = bytearray(struct.pack("2q", mine, -mine))
        yield [self.comm.object_comm.Iallreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX)]
        high, low = struct.unpack("2q", both)
        if high != -low:
            raise self.disagree(f"call #{self._meetings}", words())

    # -- where ranks wait, or a call fails -----------------------------------------------------------------
    def __call__(self, reason: str, ranks: Sequence[int], mine: int = 0, theirs: int = 0) -> None:
        if reason in ("message", "waits"):
            if reason == "waits" and self.node is not None:
                self.node.move_messages()  # of ranks that wait to be rid of them
            if (now := time.monotonic()) - self._looked < WORK_LOOK_S:
                return
            self._looked = now
        if reason == "message":
            if error := self.gone(ranks[0] if ranks else None, words()):
                raise error
            return
        try:
            super().__call__(reason, ranks, mine, theirs)
        except (PeerFailedError, WaitTimeoutError) as error:
            shutdown.remember(self.comm, getattr(error, "ranks", ranks))
            self.failed = as_torch(error)
            raise self.failed from None

    @property
    def _number(self) -> int:
        return self._meetings if self.node is None else self.node.number - self._before

    @property
    def what(self) -> str:
        return f"{words()} (call #{self._number} on '{self.comm.name}')"

    def look_at(self, ranks: Sequence[int]) -> None:
        before, self._gone = self._gone, lost(self.comm, ranks)
        self._looks = self._looks + 1 if self._gone == before else 0
        if self._gone and self._looks >= (_FAR_LOOKS if self.node is None else 1):  # else it may have come
            raise has_ended(self.what, self.where, self._gone)

    def gone(self, peer: int | None, call: str) -> HpcommError | None:
        """What ends a wait for a message: its rank has ended, or all others where it may be anybody's."""
        others = [r for r in range(self.comm.size) if r != self.comm.rank] if peer is None else [peer]
        found = lost(self.comm, others)
        if not found or len(found) < len(others):
            return None
        return has_ended(f"{call} on '{self.comm.name}'", self.where, found)

    def left(self, rank: int) -> HpcommError:
        gone = lost(self.comm, range(self.comm.size))
        return has_ended(self.what, self.where, gone) if gone else super().left(rank)

    def differs(self, rank: int, mine: int, theirs: int) -> HpcommError:
        return self.disagree(f"call #{self._number}", words(), {rank: describe(theirs & ~_MEETING)})

    def disagree(self, call: str, mine: str, said: Mapping[int, str] = {}, hint: str = _ALIKE) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Args:
            mine: this rank's; "": it has none.
            said: what is known of others. Unless one has refused its call, all come to tell theirs, or the
                group is broken.
            hint: what to try.
        """
        rows, refused, key = {**said, self.comm.rank: mine}, describe(REFUSED), f"called/{self._number}"
        store_reports.say(self._store, key, self.comm.rank, mine)
        goes_on = refused in rows.values()
        if not goes_on and (all_said := store_reports.heard(self._store, key, self.comm.size, self.seconds)):
            rows, goes_on = dict(enumerate(all_said)), True
        if refused in rows.values():
            hint = "look at the error of that rank"
        lines = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows) if rows[rank])
        what = f"ranks disagree about {call} on '{self.comm.name}'.\n{lines}"
        error = as_torch(MismatchError(what, self.where, hint))
        if not goes_on:
            self.failed = error
        return error


def words() -> str:
    """What the calling thread calls, or waits for."""
    call = call_of(get_ident())
    return call.what.call if isinstance(call, waiting) else str(call)
