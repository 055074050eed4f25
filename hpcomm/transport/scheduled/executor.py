"""Executor of schedules, over any channel.

A channel is what a schedule needs of a transport below: prepare(sends, recvs) -> exchange, and an exchange
has start() and wait(). schedule_channels.py has it over MPI, a test between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...core import dtypes
from ...core.types import NpArray
from ...schedule.rank_program import Message, Program, Round
from ...schedule.stream import AFTER, COPY

Operator = Callable[..., Any]  # reduce(a, b, out=c): c = a op b
CollectiveSteps = list[Callable[[], Any]]


class Exchange(Protocol):
    """The messages of one round."""

    def start(self) -> None: ...
    def wait(self) -> None: ...


class Channel(Protocol):
    """Where a schedule's messages go."""

    def prepare(self, sends: list[tuple[int, NpArray]], recvs: list[tuple[int, NpArray]]) -> Exchange: ...


class Memory(NamedTuple):
    """work: see Executor. room: for what arrives to be reduced. given: what to begin with, if not with work.

    It is read until all rounds are over.
    """

    work: NpArray
    room: NpArray
    given: NpArray | None = None


def memory_for(
    part: Program, dtype: np.dtype[np.generic], wire: Any = None, work: NpArray | None = None,
    room: NpArray | None = None,
) -> Memory:  # fmt: skip
    """New memory, but for work and the bytes of room where they are given."""
    kind = np.dtype(np.uint16 if wire is not None else dtype)
    return Memory(
        np.zeros(part.schedule.slots * part.count, dtype) if work is None else work,
        np.empty(part.room, kind) if room is None else room[: part.room * kind.itemsize].view(kind),
    )


class Executor:
    """One rank's part of a schedule on memory of its own, to be run any number of times.

    Attributes:
        work: slots * count elements; filled by the caller before run(), the result after it.
        last: what is left to do after all rounds.

    Args:
        memory: for this part and wire.
        wire: None, "float16" or "bfloat16": float32 travels narrower, and the result is what has travelled.
    """

    def __init__(
        self, part: Program, channel: Channel, memory: Memory, reduce: Operator | None, wire: Any = None
    ) -> None:
        self.part = part
        self.work, self.room, given = memory
        self.wire = wire
        self.reduce = reduce
        self.unwritten = _Unwritten(self.work, given)
        self.rounds = [self._prepare(round_, channel) for round_ in part.rounds]
        self.last: CollectiveSteps = []
        self.unwritten.fill(list(self.unwritten.parts), self.last)
        if wire is not None and part.schedule.size > 1:
            self.last.append(self._round)

    def run(self) -> None:
        """Carry out all rounds."""
        for before, exchange, after in self.rounds:
            for step in before:
                step()
            exchange.start()
            exchange.wait()
            for step in after:
                step()
        for step in self.last:
            step()

    def _prepare(self, round_: Round, channel: Channel) -> Any:
        before: CollectiveSteps = []
        after: CollectiveSteps = []

        for start, low, high in round_.packs:
            theirs, mine = self.room[start : start + high - low], self.unwritten.read(low, high, before)
            narrow = partial(self._narrow, theirs, mine)
            before.append(narrow if self.wire is not None else partial(theirs.__setitem__, ..., mine))

        def at(m: Message, work: Callable[..., NpArray], *steps: CollectiveSteps) -> tuple[int, NpArray]:
            return m.peer, self.room[m.low : m.high] if m.staged else work(m.low, m.high, *steps)

        sends = [at(m, self.unwritten.read, before) for m in round_.sends]
        recvs = [at(m, self.unwritten.write) for m in round_.recvs]
        exchange = channel.prepare(sends, recvs)
        for start, low, high, how in round_.effects:
            theirs = self.room[start : start + high - low]
            held = None if how == COPY else self.unwritten.read(low, high, after)
            what = theirs, self.unwritten.write(low, high), how, held
            after.append(self._effect(*what) if self.wire is None else partial(self._widen, *what))
        return before, exchange, after

    def _effect(
        self, theirs: NpArray, mine: NpArray, how: int, held: NpArray | None = None
    ) -> Callable[[], object]:
        """What is to be done when theirs has arrived: reduce it with what is held, and put that to mine."""
        if how == COPY or held is None:
            return partial(mine.__setitem__, ..., theirs)  # half the price of np.copyto
        assert self.reduce is not None
        return partial(self.reduce, *((held, theirs) if how == AFTER else (theirs, held)), out=mine)

    def _narrow(self, room: NpArray, data: NpArray) -> None:
        room[:] = dtypes.narrow(data, self.wire)
        data[:] = dtypes.widen(room, self.wire)  # whoever reduces it, here or there, reduces the same

    def _widen(self, room: NpArray, mine: NpArray, how: int, held: NpArray | None) -> None:
        self._effect(dtypes.widen(room, self.wire), mine, how, held)()

    def _round(self) -> None:
        """Round what this rank kept in full as the wire rounded it for the others: all end with the same."""
        self.work[:] = dtypes.widen(dtypes.narrow(self.work, self.wire), self.wire)


class _Unwritten:
    """The parts of work that were not written yet: what was given stands for them.

    So x need not be copied into work memory before the first round: rounds read x itself where work would
    hold the same (copy on write), and `fill` copies what is still missing at the end.
    """

    def __init__(self, work: NpArray, given: NpArray | None) -> None:
        self.work, self.given = work, given
        self.parts = [] if given is None else [(0, work.size)]

    def read(self, low: int, high: int, steps: CollectiveSteps) -> NpArray:
        """Where elements low to high are; together in work, by further steps, if only some were written."""
        parts = [(max(a, low), min(b, high)) for a, b in self.parts if a < high and low < b]
        if self.given is not None and parts == [(low, high)]:
            return self.given[low:high]
        self.fill(parts, steps)
        return self.work[low:high]

    def write(self, low: int, high: int) -> NpArray:
        """Where elements low to high go to."""
        cut = [part for a, b in self.parts for part in ((a, min(b, low)), (max(a, high), b))]
        self.parts = [(a, b) for a, b in cut if a < b]
        return self.work[low:high]

    def fill(self, parts: list[tuple[int, int]], steps: CollectiveSteps) -> None:
        """Let steps bring these parts to work."""
        for low, high in parts:
            assert self.given is not None
            steps.append(partial(self.write(low, high).__setitem__, ..., self.given[low:high]))
