"""Barrier before every collective: it compares the calls, has a timeout, and names who does not come.

Once a rank is inside the MPI library nobody can call it back. So the ranks meet before: each says which call
it makes, waits for the others with a deadline, and compares. Who does not come is named. Ranks that mean
different calls all raise, and the group stays usable, because none of them has entered MPI. On one node they
meet in the communicator's own core.Node, whose collectives are such meetings themselves; across nodes by a
small nonblocking all-reduce. torch's own word for it is a monitored barrier.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Container
from contextlib import suppress
from textwrap import indent
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..agree import runtime, shutdown
from ..agree.arrivals import has_come
from ..agree.deadline import Stay
from ..agree.doing import answers
from ..agree.present_calls import call_of
from ..core.limits import ENTRY_SLEEP_S, ENTRY_SPIN_S, ENTRY_YIELDING_S
from ..core.signature import REFUSED, describe
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, WaitTimeoutError
from ..node import native, segment
from . import store_reports
from .torch_errors import as_torch

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch._C._distributed_c10d import Store

    from ..communicator.context import Context
    from ..node._native import core

_LOOK_S = 0.05  # between looks whether the missing ranks still live
_GOING_S, _GOING_POLLS = 0.5, 100  # for what a rank that has ended sent before
_LEAVING_S = 0.05  # for the end of a rank that left a call to be seen
_ANSWER_S = 1.0  # for other ranks to say what they do
_LONGEST_S = 1e9  # of waiting
_ANY_BYTES = 2**64 - 1
# In a signature, where no operator has a bit: whoever meets brings no data to those who make the call itself.
_MEETING = 16 << 6
_NAMED = 16  # ranks that are named of those that have not come
_ALIKE = "give every rank the same verb, operator, dtype, shape and root, in the same order"
_SAY_S = 1.0  # of waiting, then a rank says in the store that it is there


class EntryBarrier:
    """come(signature) returns when all ranks have come to the same call: the thread's present one.

    Attributes:
        node: the communicator's, in whose calls all ranks wait for all from now on; None: no shared memory.
        seconds: how long a call waits for the other ranks.
        failed: why no call can pass any more.
    """

    def __init__(self, comm: Context, name: str, store: Callable[[], Store], seconds: float) -> None:
        self._comm, self._name, self._store = comm, name, store
        self._before = self._meetings = 0  # calls of the node that were before, and meetings by message
        self._looked = 0.0
        self._lost: list[int] = []  # at the last look
        self._lonely: set[int | None] = set()  # for whose messages one waits in vain, by the last look
        self.failed: HpcommError | None = None
        self.node = node = comm.node or self._alone()
        if node is not None:
            self._before = node.number
            node.hook, node.checks, node.synchronous, node.most = self._look, True, True, _ANY_BYTES
        self.limit(seconds)

    def _alone(self) -> core.Node | None:
        """A node for a group of one rank, as of a mesh with an axis of length 1."""
        here = segment.current
        if here is None or self._comm.size > 1 or not (place := here.reserved([here.mine])):
            return None
        return native.node(here, place, 0, self._look, True)

    def limit(self, seconds: float) -> None:
        """From now on calls wait so long."""
        self.seconds = seconds
        if self.node is not None:
            self.node.timeout = min(seconds, _LONGEST_S)

    def close(self) -> None:
        """Let no call pass any more."""
        if self.node is not None:
            self.node.close()
        hint = "init_process_group() or new_group() makes a new one"
        self.failed = as_torch(UsageError(f"process group '{self._name}' has been destroyed", hint=hint))

    def come(self, mine: int) -> None:
        self.check()
        if self.node is not None:
            self.node.arrive_and_wait(mine | _MEETING)
        elif self._comm.size > 1:
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
        elif self._comm.size > 1:
            self._meetings += 1
            _abandoned.append(self._compares(REFUSED))
        else:
            return
        self._say_called(describe(REFUSED))

    def _say_called(self, words: str) -> None:
        store_reports.say_called(self._store, self._number, self._comm.rank, words)

    def _look(self, why: str, ranks: tuple[int, ...], mine: int, theirs: int) -> None:
        """The core's hook: it waits, or the call fails."""
        if why in ("message", "waits"):
            if why == "waits" and self.node is not None:
                self.node.move_messages()  # of ranks that wait to be rid of them
            if (now := time.monotonic()) - self._looked >= _LOOK_S:
                self._looked = now
                (self._look_at if why == "waits" else self._look_for_message)(*ranks)
        elif why == "mismatch":
            rows = {rank: describe(theirs & ~_MEETING) for rank in ranks} | {self._comm.rank: words()}
            raise self.disagree(f"call #{self._number}", rows, theirs == REFUSED)
        elif why == "late":
            raise self._late([*ranks])
        else:
            raise self._left([*ranks])

    def _look_at(self, *ranks: int) -> None:
        """Raise if one of those who have not come is lost, and not on its way as far as this look shows."""
        before, self._lost = self._lost, self.lost(ranks)
        some_came = self._lost != before and any(has_come(self._comm, rank) for rank in self._lost)
        if self._lost and not some_came:  # else the core looks again
            raise self._lacks(self._lost)

    def _look_for_message(self, peer: int | None = None) -> None:
        """Raise at the second look that shows its rank gone: what that sent before has been seen by then."""
        error = self.gone(peer, words())
        if error is not None and peer in self._lonely:
            raise error
        (self._lonely.discard if error is None else self._lonely.add)(peer)

    def gone(self, peer: int | None, call: str) -> HpcommError | None:
        """What ends a wait for a message: its rank has ended, or all others where it may be anybody's."""
        others = [r for r in range(self._comm.size) if r != self._comm.rank] if peer is None else [peer]
        lost = self.lost(others)
        if not lost or len(lost) < len(others):
            return None
        return self._ended(f"{call} on '{self._name}'", lost)

    def _left(self, some: list[int]) -> HpcommError:
        """Some have left this call: for another one that they waited for, or at their own end."""
        begin = time.monotonic()
        while not (lost := self.lost(range(self._comm.size))) and time.monotonic() - begin < _LEAVING_S:
            time.sleep(1e-3)
        if lost:
            return self._lacks(lost)
        what = f"{self._what} needs {named(some)}, which waited for it in vain and gave up"
        hint = "make this rank come in time, or give the group a longer timeout"
        return self._fail(PeerFailedError(what, self.where, hint, some))

    def _lacks(self, lost: list[int]) -> HpcommError:
        """Some ranks have ended."""
        self.remember(lost)
        return self._fail(self._ended(self._what, lost))

    def _ended(self, what: str, lost: list[int]) -> HpcommError:
        what += f" needs {named(lost)}, which {'have' if len(lost) > 1 else 'has'} ended"
        return PeerFailedError(what, self.where, "look at what that rank printed", lost)

    def _late(self, some: list[int]) -> HpcommError:
        """Some ranks have not come in time."""
        self.remember(some)
        who = named(some[:_NAMED]) + " and others" * (len(some) > _NAMED)
        what = f"{self._what} reached its timeout after it waited {self.seconds:.3g} s for {who}"
        hint = "look at what that rank does; init_process_group(timeout=...) sets the time"
        return self._fail(WaitTimeoutError("\n".join([what, *self.doings(some)]), self.where, hint))

    def _fail(self, error: HpcommError) -> HpcommError:
        self.failed = as_torch(error)
        return self.failed

    @property
    def _what(self) -> str:
        return f"{words()} (call #{self._number} on '{self._name}')"

    @property
    def _number(self) -> int:
        return self._meetings if self.node is None else self.node.number - self._before

    @property
    def where(self) -> str:
        return f"process group '{self._name}' (rank {self._comm.rank} of {self._comm.size})"

    def doings(self, some: Container[int]) -> list[str]:
        """Lines: what some ranks of this node do now, by their own words, and which hosts do not answer."""
        near = {rank: region for rank, region in self._comm.near.regions.items() if rank in some}
        asked = sorted(near)[:_NAMED]
        said = answers([near[rank] for rank in asked], _ANSWER_S)
        silent = "" if segment.current is None else segment.current.regions[0].note
        rows = [f"  rank {rank}: {text or 'does not answer'}" for rank, text in zip(asked, said, strict=True)]
        return [*rows, *indent(silent, "  ").splitlines()]

    def remember(self, missing: Container[int]) -> None:
        """Some ranks have not come, or have ended: this one may have to end without them."""
        for rank, region in self._comm.near.regions.items():
            if rank in missing:
                shutdown.remember(f"rank {rank} of process group '{self._name}'", region)

    def lost(self, needed: Container[int]) -> list[int]:
        """Those of the needed ranks that have ended, are about to end by failure, or were killed."""
        regions, notices = self._comm.near.regions, runtime.end_notices
        gone = {rank for rank in regions if rank in needed and (regions[rank].gone or regions[rank].failed)}
        far = [] if notices is None else notices.lost(self._comm, True)
        return sorted(gone.union(rank for rank in far if rank in needed))

    def stay(self, needs: Container[int]) -> Stay:
        """For calls inside MPI, of the ranks that they need."""
        return Stay(needs, self.lost, self._stuck)

    def _stuck(self, stay: Stay, lost: list[int]) -> HpcommError:
        what = f"{stay.words()} on '{self._name}' stands in MPI"
        if lost:
            return self._ended(f"{what} and", lost)
        what = "\n".join([f"{what} for more than {stay.seconds:g} s.", *self.doings(stay.needs)])
        return WaitTimeoutError(what, self.where, "look at the ranks that do something else, or nothing")

    def disagree(
        self, call: str, rows: dict[int, str], is_all: bool = False, hint: str = _ALIKE
    ) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Args:
            rows: what is known, this rank's words among it. If the others do not come to tell theirs, the
                group is broken.
            is_all: a rank has refused its call: there is nothing else to tell.
            hint: what to try.
        """
        self._say_called(rows[self._comm.rank])
        everybody: dict[int, str] = {}
        if not is_all:
            everybody = store_reports.all_called(self._store, self._number, self._comm.size, self.seconds)
        rows = {**rows, **everybody}
        if describe(REFUSED) in rows.values():
            hint = "look at the error of that rank"
        lines = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows) if rows[rank])
        error = MismatchError(f"ranks disagree about {call} on '{self._name}'.\n{lines}", self.where, hint)
        return as_torch(error) if everybody or is_all else self._fail(error)

    # -- by message ----------------------------------------------------------------------------------------
    def _compares(self, mine: int) -> tuple[MPI.Request, bytearray]:
        """A comparison of what all ranks call, and the memory for it."""
        from mpi4py import MPI

        both = bytearray(struct.pack("2q", mine, -mine))
        return self._comm.object_comm.Iallreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX), both

    def _comes(self, message: MPI.Request, seconds: float) -> tuple[bool, list[int]]:
        """Wait for a message of all ranks: whether it came in time, and which of this node had ended by then.

        What a rank that has ended sent before may still be under way.
        """
        begin = look = time.monotonic()
        lost: list[int] = []
        polls = 0  # since then: on a busy machine time alone says little
        while not message.Test():
            polls += bool(lost)
            waited = (now := time.monotonic()) - begin
            if now - look > _LOOK_S and not lost:
                look = now
                lost = self.lost(range(self._comm.size))
            if waited > seconds or (polls > _GOING_POLLS and now - look > _GOING_S):
                return False, lost
            pause(waited)
        return True, []

    def _by_message(self, mine: int) -> None:
        self._meetings += 1
        meeting, both = self._compares(mine)
        soon = min(self.seconds / 2, _SAY_S)
        came, lost = self._comes(meeting, soon)
        if not came and not lost:
            store_reports.say_here(self._store, self._meetings, self._comm.rank, self._comm.size)
            came, lost = self._comes(meeting, self.seconds - soon)
        if not came:
            _abandoned.append((meeting, both))
            raise self._lacks(lost) if lost else self._late(self._silent())
        high, low = struct.unpack("2q", both)
        if high != -low:
            raise self.disagree(f"call #{self._meetings}", {self._comm.rank: words()})

    def _silent(self) -> list[int]:
        found = store_reports.silent(self._store, self._meetings, self._comm.size, _NAMED + 1)
        if found is not None:
            return found
        near = {self._comm.rank, *self._comm.near.regions}  # it is cut off from those of other hosts
        return [rank for rank in range(self._comm.size) if rank not in near]


_abandoned: list[Any] = []  # requests that nobody answers: MPI still writes into their memory


def words() -> str:
    """What the calling thread calls."""
    return str(call_of(get_ident()))


def pause(waited: float) -> None:
    """Between two looks, the longer the longer one has waited; the first looks follow at once."""
    if waited > ENTRY_YIELDING_S:
        time.sleep(min(waited / 16, ENTRY_SLEEP_S))
    elif waited > ENTRY_SPIN_S:
        os.sched_yield()


def named(ranks: list[int]) -> str:
    """`rank 2`, `ranks 2, 5`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
