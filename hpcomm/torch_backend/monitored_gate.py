"""Barrier before every collective: it compares the calls, has a timeout, and names who does not come.

Once a rank is inside the MPI library nobody can call it back. So the ranks meet before: each says which call
it makes, waits for the others with a deadline, and compares. Who does not come is named. Ranks that mean
different calls all raise, and the group stays usable, because none of them has entered MPI. On one node they
meet in the node segment (node/segment.py), which costs a fraction of a microsecond; across nodes by a small
nonblocking all-reduce. torch's own word for it is a monitored barrier.

In the segment no rank may give up a call that another rank passes. So giving up takes two steps:

    entry of a rank in its call log, for one call

      0 ── comes ──> signature ── time is over, or a rank has ended ──> DOUBTS (tentative withdrawal)
                      ^   │                                              │  wait 1 ms, look again
                      │   └─ all others show a signature ──> pass        ├─ somebody is missing ──> GAVE_UP
                      └────────────── all have come meanwhile ───────────┘                     (withdrawn)

A rank passes only when it has seen all others there, none tentatively withdrawn, in one look that began
when all had come. A withdrawal that turned out to be justified was visible before that look began, so no
rank passes a call that another one has withdrawn from.
"""

from __future__ import annotations

import operator
import os
import struct
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.limits import (
    GATE_LOOKS,
    GATE_LOOKS_CROWDED,
    GATE_NEAR_S,
    GATE_SLEEP_S,
    GATE_SPIN_S,
    GATE_YIELDING_S,
)
from ..core.signature import describe
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, WaitTimeoutError
from ..node import segment
from ..node.segment import GONE, LAPS, cores, exchanged, last_call, post
from .shutdown import remember, state
from .torch_errors import as_torch

if TYPE_CHECKING:
    from ..communicator.communicator import Communicator
    from ..node.segment import Lookers, NodeSegment, Region

__all__ = ["LOOK_S", "MonitoredGate", "pause", "rest"]

GAVE_UP = -1  # posted instead of a signature by a rank that waits no more,
DOUBTS = -2  # and by one that is about to
_SETTLE_S = 1e-3  # until all see what was posted: a core that goes on, or changes its work, writes it out
_NOT_HERE = (0, GONE, DOUBTS)
LOOK_S = 0.05  # between looks whether the missing ranks still live
_ANSWER_S = 1.0  # for other ranks to say what they do
_TELL_S = 5.0  # for ranks that disagree to tell each other what they called
_WORDS = 256  # bytes of that
_CARD = struct.Struct("4q")  # what a rank tells those of its node: see Gate._meet
_BLOCK = 32  # ranks, or blocks of them, that are counted together,
_NAMED = 16  # and how many are named that have not come
_SAY_S = 1.0  # of waiting, then a rank says in the store that it is there


class MonitoredGate:
    """meet(signature, seconds, words, told=()) returns when all ranks have met for the same call.

    words(*told) says the call for messages; it is asked only when something is wrong.
    """

    def __init__(self, comm: Communicator, name: str, store: Callable[[], Any]) -> None:
        self._comm, self._name, self._store = comm, name, store
        self._meetings = 0  # by message
        self.failed: HpcommError | None = None  # why no call can pass any more
        node_segment = segment.current
        self._slot = node_segment.take_ring() if node_segment is not None else -1
        near = self._meet(node_segment)
        usable = reduce(operator.or_, (int.from_bytes(card[-1], "little") for card in near.values()), 0)
        self.crowded = len(near) > max(usable.bit_count(), 1)  # what other nodes are is theirs
        self.looks: Iterable[Any] = _GivingWay() if self.crowded else range(GATE_LOOKS)
        self._lives: dict[int, tuple[Region, int]] = {}  # of the other ranks on this node: region, pid
        self._lookers: Lookers = []
        rings: list[tuple[int, memoryview]] = []
        space = _pid_space()
        for rank, (here, slot, left, pid, its_space, _) in near.items():
            if node_segment is not None and rank != comm.rank and slot >= 0 and self._slot >= 0:
                rings.append((rank, node_segment.regions[here].ring(slot)))
                self._lookers.append((node_segment.regions[here], slot, left))
                self._lives[rank] = (node_segment.regions[here], pid if space == its_space else 0)
        self.on_node = len(rings) == comm.size - 1
        self.meet: Callable[..., None]
        if comm.size == 1:
            self.meet = lambda mine, seconds, words, told=(): None
        elif self.on_node and node_segment is not None:
            self._ring = node_segment.mine.ring(self._slot)
            self.meet = self._on_node(self._ring, rings)
        else:
            self.meet = self._by_message

    def _meet(self, node_segment: NodeSegment | None) -> dict[int, tuple[Any, ...]]:
        """By rank, of those of this node: region, ring, how often it was left, process, its space, cores.

        Ranks of other nodes tell nothing: what is kept of all grows with their number.
        """
        if node_segment is None:
            return {}
        left = node_segment.mine.left(self._slot) if self._slot >= 0 else 0
        mine = _CARD.pack(self._slot, left, os.getpid(), _pid_space()) + cores()
        here = dict(node_segment.near(self._comm.mpi_handle))
        cards = exchanged(self._comm.mpi_handle, [*here], mine)
        return {r: (here[r], *_CARD.unpack_from(cards[r]), cards[r][_CARD.size :]) for r in here}

    def close(self) -> None:
        """Let no call pass any more; the group's place in the node segment may serve another one."""
        self.failed = as_torch(
            UsageError(
                f"process group '{self._name}' has been destroyed",
                hint="init_process_group() or new_group() makes a new one",
            )
        )
        if self._slot >= 0 and segment.current is not None:
            segment.current.give_back(self._slot, self._lookers)
            self._slot = -1

    def _on_node(self, ring: memoryview, others: list[tuple[int, memoryview]]) -> Callable[..., None]:
        rings = [other for _, other in others]
        again = rings if len(rings) > 1 else []  # the last may have come after the first doubted
        step = post(ring)
        looks = self.looks

        def meet(mine: int, seconds: float, words: Callable[..., str], told: Any = ()) -> None:
            if self.failed is not None:
                raise self.failed
            i = step()
            ring[i] = mine
            for theirs in rings:
                # nobody is two calls ahead, it would have waited here for this rank: so what stands there
                # is of this call, or it is 0
                if theirs[i] != mine:
                    for _ in looks:
                        if theirs[i]:
                            break
                    if theirs[i] != mine:
                        self._wait(last_call(ring), mine, ring, others, seconds, partial(words, *told))
                        return
            for theirs in again:
                if theirs[i] != mine:
                    self._wait(last_call(ring), mine, ring, others, seconds, partial(words, *told))
                    return

        return meet

    def _wait(
        self,
        call: int,
        mine: int,
        ring: memoryview,
        others: list[tuple[int, memoryview]],
        seconds: float,
        words: Callable[[], str],
    ) -> None:
        begin = time.monotonic()
        look = begin + LOOK_S
        leave = self.leave()
        i = call % LAPS
        while True:
            seen = [theirs[i] for _, theirs in others]
            absent = [rank for (rank, _), value in zip(others, seen, strict=True) if value in _NOT_HERE]
            if not absent:  # all have come: one more look, whole, decides (see the head of this file)
                if any(value != mine for value in seen):
                    time.sleep(1e-4)  # where stores may be seen out of order
                if seen == [theirs[i] for _, theirs in others]:
                    break
                continue
            waited = (now := time.monotonic()) - begin
            if now > look or waited > seconds:
                look = now + LOOK_S
                lost = self.lost(absent)
                if (lost or waited > seconds) and (missing := self._give_up(i, mine, ring, others, lost)):
                    self._raise_absent(call, lost, missing, waited, words)
            leave(waited)
        if any(value != mine for value in seen):
            self._accuse(call, {rank: value for (rank, _), value in zip(others, seen, strict=True)}, words)

    def leave(self) -> Callable[[float], None]:
        """What the calling thread does between two looks, told for how long it has waited."""
        leave = pause if threading.current_thread() is threading.main_thread() else rest
        return partial(leave, spin_s=0.0) if self.crowded else leave

    def _give_up(
        self, i: int, mine: int, ring: memoryview, others: list[tuple[int, memoryview]], lost: list[int]
    ) -> list[int]:
        """Give this call up and return who is missing; unless all have come by now, lost ranks apart."""
        ring[i] = DOUBTS
        time.sleep(_SETTLE_S)
        missing = [rank for rank, theirs in others if theirs[i] in (0, GONE) or rank in lost]
        ring[i] = GAVE_UP if missing else mine
        return missing

    def _raise_absent(
        self, call: int, lost: list[int], missing: list[int], waited: float, words: Callable[[], str]
    ) -> NoReturn:
        if lost:
            error: HpcommError = PeerFailedError(
                f"{words()} (call #{call} on '{self._name}') needs {ranks(lost)}, which {has(lost)} ended",
                self.where,
                "look at what that rank printed",
                lost,
            )
        else:
            error = self._late(call, waited, ranks(missing), words)
        self.remember(lost or missing)
        self.failed = as_torch(error)
        raise self.failed

    def _late(self, call: int, waited: float, missing: str, words: Callable[[], str]) -> WaitTimeoutError:
        what = f"{words()} (call #{call} on '{self._name}') reached its timeout after it"
        return WaitTimeoutError(
            f"{what} waited {waited:.3g} s for {missing}",
            self.where,
            "look at what that rank does; init_process_group(timeout=...) sets the time",
        )

    def remember(self, missing: Container[int]) -> None:
        """Some ranks have not come in time: this one may have to end without them."""
        for rank, life in self._lives.items():
            if rank in missing:
                remember(f"rank {rank} of process group '{self._name}'", *life)

    def check(
        self,
        missing: list[int],
        gone: list[int],
        waited: float,
        seconds: float,
        words: Callable[..., str],
        told: Any = (),
    ) -> None:
        """Raise if ranks that are awaited within a call have ended or given it up, or the time is over."""
        absent = [rank for rank in missing if rank not in gone]
        lost, call, words = self.lost(absent), last_call(self._ring), partial(words, *told)
        if lost or (absent and waited > seconds):
            self._raise_absent(call, lost, absent, waited, words)
        if not absent:
            self._raise_gone(call, gone, words)

    def stuck(
        self, lost: list[int], seconds: float, words: Callable[..., str], told: Any = ()
    ) -> HpcommError:
        """What to say of a call that all ranks have begun and that does not end."""
        words = partial(words, *told)
        what = f"{words()} on '{self._name}' stands in MPI"
        if lost:
            what += f", which needs {ranks(lost)}, and {has(lost)} ended"
            return PeerFailedError(what, self.where, "look at what that rank printed", lost)
        asked = {rank: (region, region.ask()) for rank, (region, _) in self._lives.items()}
        time.sleep(_ANSWER_S)
        rows = [
            f"  rank {rank}: {region.answer_to(question) or 'does not answer'}"
            for rank, (region, question) in asked.items()
        ]
        what = "\n".join([f"{what} for more than {seconds:g} s.", *rows])
        return WaitTimeoutError(what, self.where, "look at the ranks that do something else, or nothing")

    def _accuse(self, call: int, posted: dict[int, int], words: Callable[[], str]) -> NoReturn:
        gone = sorted(rank for rank, value in posted.items() if value == GAVE_UP)
        if gone:
            self._raise_gone(call, gone, words)
        rows = {rank: describe(value) for rank, value in posted.items()}
        raise self._disagree(f"call #{call}", rows, words)

    def _raise_gone(self, call: int, gone: list[int], words: Callable[[], str]) -> NoReturn:
        self.failed = as_torch(
            PeerFailedError(
                f"{words()} (call #{call} on '{self._name}') needs {ranks(gone)}, which waited for it "
                "in vain and gave up",
                self.where,
                "make this rank come in time, or give the group a longer timeout",
                gone,
            )
        )
        raise self.failed

    def _disagree(self, call: str, rows: dict[int, str], words: Callable[[], str]) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Args:
            rows: what to say of ranks which do not come to tell it, and so break the group.
        """
        from mpi4py import MPI

        told, mine = bytearray(_WORDS * self._comm.size), bytearray(words().encode()[:_WORDS].ljust(_WORDS))
        telling = self._comm.object_comm.Iallgather([mine, MPI.BYTE], [told, MPI.BYTE])
        begin = time.monotonic()
        while not (over := telling.Test()) and (waited := time.monotonic() - begin) < _TELL_S:
            pause(waited)
        parts = [bytes(told[i : i + _WORDS]).decode(errors="replace") for i in range(0, len(told), _WORDS)]
        rows = dict(enumerate(map(str.strip, parts))) if over else {**rows, self._comm.rank: words()}
        lines = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows))
        error = as_torch(
            MismatchError(
                f"ranks disagree about {call} on '{self._name}'.\n{lines}",
                self.where,
                "give every rank the same verb, operator, dtype, shape and root, in the same order",
            )
        )
        if not over:
            _abandoned.append((telling, mine, told))
            self.failed = error
        return error

    def _by_message(self, mine: int, seconds: float, words: Callable[..., str], told: Any = ()) -> None:
        from mpi4py import MPI

        words = partial(words, *told)
        if self.failed is not None:
            raise self.failed
        self._meetings += 1
        both = bytearray(struct.pack("2q", mine, -mine))
        meeting = self._comm.object_comm.Iallreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX)
        begin = time.monotonic()
        said = False
        while not meeting.Test():
            waited = time.monotonic() - begin
            if not said and waited > min(seconds / 2, _SAY_S):
                self._say_here()
                said = True
            if waited > seconds:
                _abandoned.append((meeting, both))
                self.failed = as_torch(self._late(self._meetings, waited, self._silent(), words))
                raise self.failed
            pause(waited)
        high, low = struct.unpack("2q", both)
        if high != -low:
            raise self._disagree(f"call #{self._meetings}", {}, words)

    def _say_here(self) -> None:
        """Count this rank in the store, alone and in ever larger blocks of ranks: see _silent."""
        width = 1
        while width < _BLOCK * self._comm.size:
            self._store().add(self._block(self._comm.rank, width), 1)
            width *= _BLOCK

    def _block(self, rank: int, width: int) -> str:
        return f"gate/{self._meetings}/{width}/{rank // width}"

    def _silent(self) -> str:
        """The first ranks that have not said in the store that they are in this meeting, in words.

        Only blocks that are not whole are looked into, so few questions find few ranks among many.
        """
        store, size = self._store(), self._comm.size

        def absent(first: int, width: int) -> Iterator[int]:
            if store.add(self._block(first, width), 0) == min(width, size - first):
                return
            if width == 1:
                yield first
                return
            for at in range(first, min(first + width, size), width // _BLOCK):
                yield from absent(at, width // _BLOCK)

        width = 1
        while width < size:
            width *= _BLOCK
        some = list(islice(absent(0, width), _NAMED + 1))
        return ranks(some[:_NAMED]) + " and others" * (len(some) > _NAMED)

    def lost(self, missing: Container[int]) -> list[int]:
        """Those of the missing ranks that have ended, are about to end by failure, or were killed."""
        return [rank for rank, life in self._lives.items() if rank in missing and _is_gone(*life)]

    @property
    def where(self) -> str:
        return f"process group '{self._name}' (rank {self._comm.rank} of {self._comm.size})"


_abandoned: list[Any] = []  # requests that nobody answers: MPI still writes into their memory


def pause(waited: float, spin_s: float = GATE_SPIN_S) -> None:
    """Between two looks, the longer the longer one has waited; the first looks follow at once."""
    if waited > GATE_YIELDING_S:
        time.sleep(min(waited / 16, GATE_SLEEP_S))
    elif waited > spin_s:
        os.sched_yield()


def rest(waited: float, spin_s: float = GATE_SPIN_S) -> None:
    """Between two looks of a thread in the background: soon, the program's own thread wants to go on."""
    if waited < GATE_NEAR_S:
        pause(waited, spin_s)
    else:
        time.sleep(min(waited / 16, GATE_SLEEP_S))


class _GivingWay:
    """To be gone through as a range, with the core given to whoever wants it after each step."""

    def __iter__(self) -> Iterator[None]:
        for _ in range(GATE_LOOKS_CROWDED):
            yield
            os.sched_yield()


def ranks(some: list[int]) -> str:
    """`rank 2`, `ranks 2, 5`."""
    return f"rank{'s' * (len(some) > 1)} {', '.join(map(str, some))}"


def has(some: list[int]) -> str:
    return "have" if len(some) > 1 else "has"


def _is_gone(region: Region, pid: int) -> bool:
    return region.gone or region.failed or state(pid) in ("Z", "X")


def _pid_space() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0
