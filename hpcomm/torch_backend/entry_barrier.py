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
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..agree import shutdown
from ..agree.arrivals import Arrivals
from ..agree.deadline import lost
from ..agree.present_calls import call_of
from ..core.limits import WORK_LOOK_S
from ..core.patience import Pause
from ..core.present import waiting
from ..core.signature import REFUSED, describe
from ..errors import NAMED, HpcommError, MismatchError, PeerFailedError, UsageError, has_ended
from ..node import native, segment
from . import store_reports
from .torch_errors import as_torch

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch._C._distributed_c10d import Store

    from ..communicator.context import Context
    from ..node._native import core

_GOING_S, _GOING_POLLS = 0.5, 100  # for what a rank that has ended sent before
_LEAVING_S = 0.05  # for the end of a rank that left a call to be seen
_ANY_BYTES = 2**64 - 1
# In a signature, where no operator has a bit: whoever meets brings no data to those who make the call itself.
_MEETING = 16 << 6
_ALIKE = "give every rank the same verb, operator, dtype, shape and root, in the same order"
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

    def __init__(self, comm: Context, store: Callable[[], Store], seconds: float) -> None:
        super().__init__(comm)
        self._store = store
        self.where = f"process group '{comm.name}' (rank {comm.rank} of {comm.size})"
        self._before = self._meetings = 0  # calls of the node that were before, and meetings by message
        self._looked, self._gone = 0.0, list[int]()  # when somebody looked last, and who had ended by then
        self.node = node = comm.node or self._alone()
        if node is not None:
            self._before = node.number
            node.hook, node.checks, node.synchronous, node.most = self, True, True, _ANY_BYTES
        self.limit(seconds)

    def _alone(self) -> core.Node | None:
        """A node for a group of one rank, as of a mesh with an axis of length 1."""
        here = segment.current
        if here is None or self.comm.size > 1 or not (place := here.reserved([here.mine])):
            return None
        return native.node(here, place, 0, self, True)

    def limit(self, seconds: float) -> None:
        """From now on calls wait so long."""
        self.seconds = seconds
        if self.node is not None:
            self.node.timeout = seconds

    def close(self) -> None:
        """Let no call pass any more."""
        if self.node is not None:
            self.node.close()
        hint = "init_process_group() or new_group() makes a new one"
        self._fail(UsageError(f"process group '{self.comm.name}' has been destroyed", hint=hint))

    def come(self, mine: int) -> None:
        self.check()
        if self.node is not None:
            self.node.arrive_and_wait(mine | _MEETING)
        elif self.comm.size > 1:
            self._by_message(mine)

    def check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def refuse(self) -> None:
        """Tell the others that this rank does not make the call it has been asked for; waits for nobody."""
        if self.failed is not None:
            return
        if self.node is not None:
            with suppress(HpcommError):
                self.node.arrive(REFUSED)
        elif self.comm.size > 1:
            self._meetings += 1
            _abandoned.append(self._compares(REFUSED))
        store_reports.say_called(self._store, self._number, self.comm.rank, describe(REFUSED))

    @property
    def _number(self) -> int:
        return self._meetings if self.node is None else self.node.number - self._before

    # -- where the core waits, or a call fails -------------------------------------------------------------
    def __call__(self, reason: str, ranks: tuple[int, ...], mine: int, theirs: int) -> None:
        if reason in ("message", "waits"):
            if reason == "waits" and self.node is not None:
                self.node.move_messages()  # of ranks that wait to be rid of them
            if (now := time.monotonic()) - self._looked < WORK_LOOK_S:
                return
            self._looked = now
        if reason != "message":
            super().__call__(reason, ranks, mine, theirs)
        elif error := self.gone(ranks[0] if ranks else None, words()):
            raise error

    @property
    def what(self) -> str:
        return f"{words()} (call #{self._number} on '{self.comm.name}')"

    def look_at(self, ranks: Sequence[int]) -> None:
        before, self._gone = self._gone, lost(self.comm, ranks)
        if self._gone and self._gone == before:  # else it may have come: the core looks again
            raise self._lacks(self._gone)

    def gone(self, peer: int | None, call: str) -> HpcommError | None:
        """What ends a wait for a message: its rank has ended, or all others where it may be anybody's."""
        others = [r for r in range(self.comm.size) if r != self.comm.rank] if peer is None else [peer]
        found = lost(self.comm, others)
        if not found or len(found) < len(others):
            return None
        return has_ended(f"{call} on '{self.comm.name}'", self.where, found)

    def left(self, rank: int) -> HpcommError:
        """It has left for another call that it waited for, or at its own end."""
        begin = time.monotonic()
        while not (gone := lost(self.comm, range(self.comm.size))) and time.monotonic() - begin < _LEAVING_S:
            time.sleep(1e-3)
        if gone:
            return self._lacks(gone)
        what = f"{self.what} needs rank {rank}, which waited for it in vain and gave up"
        hint = "make this rank come in time, or give the group a longer timeout"
        return self._fail(PeerFailedError(what, self.where, hint, [rank]))

    def late(self, ranks: Sequence[int]) -> HpcommError:
        shutdown.remember(self.comm, ranks)
        return self._fail(super().late(ranks))

    def _lacks(self, gone: Sequence[int]) -> HpcommError:
        shutdown.remember(self.comm, gone)
        return self._fail(has_ended(self.what, self.where, gone))

    def _fail(self, error: HpcommError) -> HpcommError:
        self.failed = as_torch(error)
        return self.failed

    def differs(self, rank: int, mine: int, theirs: int) -> HpcommError:
        rows = {rank: describe(theirs & ~_MEETING), self.comm.rank: words()}
        return self.disagree(f"call #{self._number}", rows)

    def disagree(self, call: str, rows: dict[int, str], hint: str = _ALIKE) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Args:
            rows: what is known, this rank's words among it. Unless a rank has refused its call, the others
                come to tell theirs, or the group is broken.
            hint: what to try.
        """
        at, comm = (self._store, self._number), self.comm
        store_reports.say_called(*at, comm.rank, rows[comm.rank])
        goes_on = describe(REFUSED) in rows.values()
        if not goes_on and (everybody := store_reports.all_called(*at, comm.size, self.seconds)):
            rows, goes_on = everybody, True
        if describe(REFUSED) in rows.values():
            hint = "look at the error of that rank"
        lines = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows) if rows[rank])
        error = MismatchError(f"ranks disagree about {call} on '{comm.name}'.\n{lines}", self.where, hint)
        return as_torch(error) if goes_on else self._fail(error)

    # -- by message ----------------------------------------------------------------------------------------
    def _compares(self, mine: int) -> tuple[MPI.Request, bytearray]:
        """A comparison of what all ranks call, and the memory for it."""
        from mpi4py import MPI

        both = bytearray(struct.pack("2q", mine, -mine))
        return self.comm.object_comm.Iallreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX), both

    def _by_message(self, mine: int) -> None:
        self._meetings += 1
        meeting, both = self._compares(mine)
        begin = look = time.monotonic()
        pause, gone = Pause(), list[int]()
        polls = 0  # since some have gone: on a busy machine time alone says little
        says = min(self.seconds / 2, _SAY_S)
        while not meeting.Test():
            waited = (now := time.monotonic()) - begin
            polls += bool(gone)
            if now - look > WORK_LOOK_S and not gone:
                look, gone = now, lost(self.comm, range(self.comm.size))
            if waited > self.seconds or (polls > _GOING_POLLS and now - look > _GOING_S):
                _abandoned.append((meeting, both))
                raise self._lacks(gone) if gone else self.late(self._silent())
            if waited > says:
                says = self.seconds
                store_reports.say_here(self._store, self._meetings, self.comm.rank, self.comm.size)
            pause.sleep()
        high, low = struct.unpack("2q", both)
        if high != -low:
            raise self.disagree(f"call #{self._meetings}", {self.comm.rank: words()})

    def _silent(self) -> list[int]:
        found = store_reports.silent(self._store, self._meetings, self.comm.size, NAMED + 2)
        here = {self.comm.rank}  # whose own word may be on its way
        if found is None:  # it is cut off from those of other hosts
            here, found = here | self.comm.near.regions.keys(), [*range(self.comm.size)]
        return [rank for rank in found if rank not in here]


_abandoned: list[Any] = []  # requests that nobody answers: MPI still writes into their memory


def words() -> str:
    """What the calling thread calls, or waits for."""
    call = call_of(get_ident())
    return call.what.call if isinstance(call, waiting) else str(call)
