"""Barrier before every collective: it compares the calls, has a timeout, and names who does not come.

Once a rank is inside the MPI library nobody can call it back. So the ranks meet before: each says which call
it makes, waits for the others with a deadline, and compares. Who does not come is named. Ranks that mean
different calls all raise, and the group stays usable, because none of them has entered MPI. On one node they
meet in the native core, whose collectives are such meetings themselves (node/_native/arrive.c); across nodes
by a small nonblocking all-reduce. torch's own word for it is a monitored barrier.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ..agree import runtime
from ..core.limits import ENTRY_SLEEP_S, ENTRY_SPIN_S, ENTRY_YIELDING_S, NODE_SPINS
from ..core.signature import REFUSED, describe
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, WaitTimeoutError
from ..node import native, segment
from ..node.segment import NodeSegment, Region, exchanged
from .shutdown import remember, state
from .torch_errors import as_torch

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch._C._distributed_c10d import Store

    from ..communicator.communicator import Communicator
    from ..node._native import core

_LOOK_S = 0.05  # between looks whether the missing ranks still live
_GOING_S, _GOING_POLLS = 0.5, 100  # for what a rank that has ended sent before
_LEAVING_S = 0.05  # for the end of a rank that left a call to be seen
_ANSWER_S = 1.0  # for other ranks to say what they do
_ASKING_S = 0.005  # between looks whether they have
_LONGEST_S = 1e9  # of waiting
# In a signature, where no operator has a bit: whoever meets brings no data to those who make the call itself.
_MEETING = 16 << 6
_WORDS = 256  # bytes of what a rank called, for ranks that disagree
_CUT = b" ..."  # where it has more
_ENTRY = struct.Struct("3q")  # what a rank tells those of its node: see EntryBarrier._near
_BLOCK = 32  # ranks, or blocks of them, that are counted together,
_NAMED = 16  # and how many are named that have not come
_ALIKE = "give every rank the same verb, operator, dtype, shape and root, in the same order"
_STORE_S = 5.0  # for the store to answer
_SAY_S = 1.0  # of waiting, then a rank says in the store that it is there


class Ended(Exception):  # noqa: N818  users never see it
    """A call of the core that fails; why is one of its hook's reasons, or "ended"."""

    def __init__(self, why: str, ranks: tuple[int, ...], theirs: int) -> None:
        self.why, self.ranks, self.theirs = why, list(ranks), theirs


class EntryBarrier:
    """meet(signature, seconds, words, told=()) returns when all ranks have met for the same call.

    words(*told) says the call for messages; it is asked only when something is wrong.

    Attributes:
        node: these ranks in the native core; None where they do not share memory.
        failed: why no call can pass any more.
    """

    def __init__(self, comm: Communicator, name: str, store: Callable[[], Store], seconds: float) -> None:
        self._comm, self._name, self._store = comm, name, store
        self._seconds = seconds
        self._meetings = 0  # by message
        self._looked = 0.0
        self._lost: list[int] = []  # at the last look
        self.failed: HpcommError | None = None
        self._lives: dict[int, tuple[Region, int]] = {}  # of the other ranks on this node: region, pid
        self.node: core.Node | None = None
        if segment.current is not None:
            self._near(segment.current)

    def _near(self, here: NodeSegment) -> None:
        """Get to know the ranks of this node, and share memory with them if they are all.

        Ranks of other nodes tell nothing: what is kept of all grows with their number.
        """
        mpi, me, shared, core = self._comm.mpi_handle, self._comm.rank, here.shared, native.core()
        blocks, space = dict(here.near(mpi)), _pid_space()
        if not blocks:
            return
        place = None
        if me == 0 and len(blocks) == self._comm.size:
            place = here.reserved([here.regions[its] for its in blocks.values()])
        entries = exchanged(mpi, [*blocks], _ENTRY.pack(place or 0, os.getpid(), space))
        place = _ENTRY.unpack(entries[min(entries)])[0]  # of rank 0, if all are here
        del entries[me]
        for rank, entry in entries.items():
            _, pid, its_space = _ENTRY.unpack(entry)
            self._lives[rank] = here.regions[blocks[rank]], pid if space == its_space else 0
        if place and core is not None:
            spins = 0 if here.is_crowded else NODE_SPINS
            limits: dict[str, Any] = {"timeout": min(self._seconds, _LONGEST_S), "direct": here.direct}
            self.node = core.Node(shared, place, me, self._look, spins, synchronous=True, **limits)

    def close(self) -> None:
        """Let no call pass any more; the group's place in the node segment may serve another one."""
        self.failed = as_torch(
            UsageError(
                f"process group '{self._name}' has been destroyed",
                hint="init_process_group() or new_group() makes a new one",
            )
        )
        if self.node is not None:
            self.node.close()

    def set_timeout(self, seconds: float) -> None:
        """For calls of the node that have none of their own."""
        self._seconds = seconds
        self._limit(seconds)

    def _limit(self, seconds: float) -> None:
        if self.node is not None and self.failed is None:
            self.node.timeout = min(seconds, _LONGEST_S)

    def come(self, mine: int, seconds: float, words: Callable[..., str], told: Iterable[object] = ()) -> None:
        if self.failed is not None:
            raise self.failed
        if self.node is not None:
            self.enter(
                self.node.arrive_and_wait, (mine | _MEETING, min(seconds, _LONGEST_S)), seconds, words, told
            )
        elif self._comm.size > 1:
            self._by_message(mine, seconds, partial(words, *told))

    def refuse(self) -> None:
        """Tell the others that this rank does not make the call it has been asked for; waits for nobody."""
        if self.failed is not None:
            return
        if self.node is not None:
            with suppress(Ended):
                self.node.arrive(REFUSED)
        elif self._comm.size > 1:
            self._meetings += 1
            _abandoned.extend((self._compares(REFUSED), self._tells(describe(REFUSED))))

    def enter(
        self,
        call: Callable[..., object],
        arguments: tuple[object, ...],
        seconds: float,
        words: Callable[..., str],
        told: Iterable[object] = (),
    ) -> Any:
        """Make a call of the core, and return what it returns. seconds: its timeout."""
        if self.failed is not None:
            raise self.failed
        if is_own := seconds != self._seconds:
            self._limit(seconds)
        try:
            return call(*arguments)
        except Ended as end:
            raise self.judged(end, seconds, words(*told)) from None
        finally:
            if is_own:
                self._limit(self._seconds)

    # -- in the native core --------------------------------------------------------------------------------
    def _look(self, why: str, ranks: tuple[int, ...], mine: int, theirs: int) -> None:
        """The core's hook: it waits, or the call fails."""
        if why == "waits":
            if (now := time.monotonic()) - self._looked < _LOOK_S:
                return
            self._looked = now
            before, self._lost = self._lost, self.lost(ranks)
            if not self._lost or (self._lost != before and self._have_come(self._lost)):
                return  # since the core looked: it looks again
            why, ranks = "ended", tuple(self._lost)
        raise Ended(why, ranks, theirs)

    def _have_come(self, ranks: list[int]) -> bool:
        """Whether one of ranks has come to the call in which this one waits."""
        assert self.node is not None
        calls = self.node.calls()
        return any(calls[rank][0] >= calls[self._comm.rank][0] for rank in ranks)

    def judged(self, end: Ended, seconds: float, words: str) -> HpcommError:
        """What to raise for a call of the core that ended so."""
        assert self.node is not None
        number = self.node.calls()[self._comm.rank][0]
        what = f"{words} (call #{number} on '{self._name}')"
        if end.why == "mismatch":
            rows = {rank: describe(end.theirs & ~_MEETING) for rank in end.ranks} | {self._comm.rank: words}
            return self.disagree(f"call #{number}", rows, seconds, end.theirs == REFUSED)
        if end.why == "late":
            return self._absent(what, [], end.ranks, seconds)
        begin = time.monotonic()  # who left may have done so for another one, or be just ending
        while not (lost := self.lost(range(self._comm.size))) and time.monotonic() - begin < _LEAVING_S:
            time.sleep(1e-3)
        if lost:
            return self._absent(what, lost, lost, seconds)
        self.failed = as_torch(
            PeerFailedError(
                f"{what} needs {ranks(end.ranks)}, which waited for it in vain and gave up",
                self.where,
                "make this rank come in time, or give the group a longer timeout",
                end.ranks,
            )
        )
        return self.failed

    def _absent(self, what: str, lost: list[int], missing: list[int], waited: float) -> HpcommError:
        if lost:
            error: HpcommError = PeerFailedError(
                f"{what} needs {ranks(lost)}, which {has(lost)} ended",
                self.where,
                "look at what that rank printed",
                lost,
            )
        else:
            error = self._late(what, waited, missing)
        self.remember(lost or missing)
        self.failed = as_torch(error)
        return self.failed

    def _late(self, what: str, waited: float, missing: list[int]) -> WaitTimeoutError:
        who = ranks(missing[:_NAMED]) + " and others" * (len(missing) > _NAMED)
        what = f"{what} reached its timeout after it waited {waited:.3g} s for {who}"
        return WaitTimeoutError(
            "\n".join([what, *self.doings(missing)]),
            self.where,
            "look at what that rank does; init_process_group(timeout=...) sets the time",
        )

    def doings(self, some: Container[int]) -> list[str]:
        """Lines: what some ranks of this node do now, by their own words, and which hosts do not answer."""
        near = [rank for rank in sorted(self._lives) if rank in some][:_NAMED]
        asked = {rank: (self._lives[rank][0], self._lives[rank][0].ask()) for rank in near}
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and any(region.answer_to(n) is None for region, n in asked.values()):
            time.sleep(_ASKING_S)
        silent = "" if segment.current is None else segment.current.regions[0].note
        return [
            *(f"  rank {r}: {region.answer_to(n) or 'does not answer'}" for r, (region, n) in asked.items()),
            *indent(silent, "  ").splitlines(),
        ]

    def remember(self, missing: Container[int]) -> None:
        """Some ranks have not come in time: this one may have to end without them."""
        for rank, life in self._lives.items():
            if rank in missing:
                remember(f"rank {rank} of process group '{self._name}'", *life)

    # -- for all -------------------------------------------------------------------------------------------
    def disagree(
        self, call: str, rows: dict[int, str], seconds: float, is_all: bool = False, hint: str = _ALIKE
    ) -> HpcommError:
        """The error that all ranks raise; its rows say what each of them called, by its own words.

        Args:
            rows: what is known, this rank's words among it. If the others do not come to tell theirs, the
                group is broken.
            is_all: a rank has refused its call: there is nothing else to tell.
            hint: what to try.
        """
        everybody = None if is_all else self._words_of_all(rows[self._comm.rank], seconds)
        rows = everybody or rows
        if describe(REFUSED) in rows.values():
            hint = "look at the error of that rank"
        lines = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows) if rows[rank])
        error = as_torch(
            MismatchError(
                f"ranks disagree about {call} on '{self._name}'.\n{lines}",
                self.where,
                hint,
            )
        )
        if everybody is None and not is_all:
            self.failed = error
        return error

    def _words_of_all(self, words: str, seconds: float) -> dict[int, str] | None:
        """What all ranks say they called; None: not all came to say it."""
        telling, _, told = message = self._tells(words)
        if not self._comes(telling, seconds)[0]:
            _abandoned.append(message)
            return None
        parts = [bytes(told[i : i + _WORDS]).decode(errors="ignore") for i in range(0, len(told), _WORDS)]
        return dict(enumerate(map(str.strip, parts))) | {self._comm.rank: words}

    def _tells(self, words: str) -> tuple[MPI.Request, bytearray, bytearray]:
        """Words on their way to all ranks, and those of all on theirs to here."""
        from mpi4py import MPI

        told, said = bytearray(_WORDS * self._comm.size), words.encode()
        if len(said) > _WORDS:
            said = said[: _WORDS - len(_CUT)] + _CUT
        mine = bytearray(said.ljust(_WORDS))
        return self._comm.object_comm.Iallgather([mine, MPI.BYTE], [told, MPI.BYTE]), mine, told

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

    def lost(self, missing: Container[int]) -> list[int]:
        """Those of the missing ranks that have ended, are about to end by failure, or were killed."""
        gone = [rank for rank, life in self._lives.items() if _is_gone(*life)]
        if runtime.end_notices is not None:
            gone += runtime.end_notices.lost(self._comm, True)
        return [rank for rank in sorted({*gone}) if rank in missing]

    @property
    def where(self) -> str:
        return f"process group '{self._name}' (rank {self._comm.rank} of {self._comm.size})"

    def stuck(
        self,
        lost: list[int],
        needs: Container[int],
        seconds: float,
        words: Callable[..., str],
        told: Iterable[object] = (),
    ) -> HpcommError:
        """What to say of a call inside MPI that does not end, of the ranks that it needs."""
        words = partial(words, *told)
        what = f"{words()} on '{self._name}' stands in MPI"
        if lost:
            what += f", which needs {ranks(lost)}, and {has(lost)} ended"
            return PeerFailedError(what, self.where, "look at what that rank printed", lost)
        what = "\n".join([f"{what} for more than {seconds:g} s.", *self.doings(needs)])
        return WaitTimeoutError(what, self.where, "look at the ranks that do something else, or nothing")

    # -- by message ----------------------------------------------------------------------------------------
    def _by_message(self, mine: int, seconds: float, words: Callable[[], str]) -> None:
        self._meetings += 1
        meeting, both = self._compares(mine)
        soon = min(seconds / 2, _SAY_S)
        came, lost = self._comes(meeting, soon)
        if not came and not lost:
            self._say_here()
            came, lost = self._comes(meeting, seconds - soon)
        if not came:
            _abandoned.append((meeting, both))
            what = f"{words()} (call #{self._meetings} on '{self._name}')"
            if lost:
                raise self._absent(what, lost, lost, seconds)
            self.failed = as_torch(self._late(what, seconds, self._silent()))
            raise self.failed
        high, low = struct.unpack("2q", both)
        if high != -low:
            raise self.disagree(f"call #{self._meetings}", {self._comm.rank: words()}, seconds)

    def _say_here(self) -> None:
        """Count this rank in the store, alone and in ever larger blocks of ranks: see _silent."""
        blocks, width = [], 1
        while width < _BLOCK * self._comm.size:
            blocks.append(self._block(self._comm.rank, width))
            width *= _BLOCK
        _ask(lambda: [self._store().add(block, 1) for block in blocks])

    def _block(self, rank: int, width: int) -> str:
        return f"entry/{self._meetings}/{width}/{rank // width}"

    def _silent(self) -> list[int]:
        """The first ranks that have not said in the store that they are in this meeting.

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
        found: list[list[int]] = []
        _ask(lambda: found.append(list(islice(absent(0, width), _NAMED + 1)))).join(_STORE_S)
        if found:
            return found[0]
        # It is cut off from those of other hosts.
        return [rank for rank in range(size) if rank != self._comm.rank and rank not in self._lives]


def _ask(store: Callable[[], object]) -> threading.Thread:
    """Ask the store in a thread of its own: where its host does not answer, it waits for many minutes."""

    def ask() -> None:
        with suppress(RuntimeError):
            store()

    asking = threading.Thread(target=ask, daemon=True, name="hpcomm-store")
    asking.start()
    return asking


_abandoned: list[Any] = []  # requests that nobody answers: MPI still writes into their memory


def pause(waited: float) -> None:
    """Between two looks, the longer the longer one has waited; the first looks follow at once."""
    if waited > ENTRY_YIELDING_S:
        time.sleep(min(waited / 16, ENTRY_SLEEP_S))
    elif waited > ENTRY_SPIN_S:
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
