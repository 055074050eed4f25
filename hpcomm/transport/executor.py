"""The executor of schedules, over any channel.

A channel is what a schedule needs of a transport below: prepare(sends, recvs) -> exchange, and an exchange
has start() and wait(). transport.scheduled has it over MPI, transport.local between threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import dtypes
from ..schedule.stream import AFTER, COPY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..schedule.program import Message, Program

    Array = NDArray[Any]

__all__ = ["Channel", "Exchange", "Executor", "Fold"]

Fold = Callable[..., Any]  # fold(a, b, out=c): c = a op b


class Exchange(Protocol):
    """The messages of one round."""

    def start(self) -> None: ...
    def wait(self) -> None: ...


class Channel(Protocol):
    """Where a schedule's messages go."""

    def prepare(self, sends: list[tuple[int, Array]], recvs: list[tuple[int, Array]]) -> Exchange: ...


class Executor:
    """One rank's part of a schedule on memory of its own, to be run any number of times.

    Attributes:
        work: slots * count elements; filled by the caller before run(), the result after it.

    Args:
        wire: None, "float16" or "bfloat16": float32 travels narrower, and the result is what has travelled.
        work: memory to take instead of new one.
        room: bytes to take instead of new ones for what arrives to be folded; part.room elements.
    """

    def __init__(self, part: Program, channel: Channel, dtype: Any, fold: Fold | None, wire: Any = None,
                 work: Array | None = None, room: Array | None = None) -> None:  # fmt: skip
        self.part = part
        n = part.schedule.slots * part.count
        self.work: Array = np.zeros(n, dtype) if work is None else work
        self.wire = wire
        kind = np.dtype(np.uint16 if wire is not None else dtype)
        self.room: Array = (
            np.empty(part.room, kind) if room is None else room[: part.room * kind.itemsize].view(kind)
        )
        self.fold = fold
        self.rounds = [self._prepare(round_, channel) for round_ in part.rounds]

    def run(self) -> None:
        """Carry out all rounds."""
        for before, exchange, after in self.rounds:
            for step in before:
                step()
            exchange.start()
            exchange.wait()
            for step in after:
                step()
        if self.wire is not None:
            self.settle()

    def settle(self) -> None:
        """Round what this rank kept in full as the wire rounded it for the others: all end with the same."""
        if self.wire is not None and self.part.schedule.size > 1:
            self.work[:] = dtypes.widen(dtypes.narrow(self.work, self.wire), self.wire)

    def _prepare(self, round_: Any, channel: Channel) -> Any:
        def views(messages: list[Message]) -> list[tuple[int, Array]]:
            return [(m.peer, (self.room if m.staged else self.work)[m.low : m.high]) for m in messages]

        def parts(start: int, low: int, high: int) -> tuple[Array, Array]:
            return self.room[start : start + high - low], self.work[low:high]

        exchange = channel.prepare(views(round_.sends), views(round_.recvs))
        if self.wire is not None:
            narrow = [partial(self._narrow, *parts(*pack)) for pack in round_.packs]
            return narrow, exchange, [partial(self._widen, *parts(*at), how) for *at, how in round_.effects]
        pack = [self._effect(*parts(*at)[::-1], COPY) for at in round_.packs]
        return pack, exchange, [self._effect(*parts(*at), how) for *at, how in round_.effects]

    def _effect(self, theirs: Array, mine: Array, how: int) -> Callable[[], Any]:
        """What is to be done when theirs has arrived."""
        if how == COPY:
            return partial(mine.__setitem__, ..., theirs)  # half the price of np.copyto
        assert self.fold is not None
        return partial(self.fold, *((mine, theirs) if how == AFTER else (theirs, mine)), out=mine)

    def _narrow(self, room: Array, data: Array) -> None:
        room[:] = dtypes.narrow(data, self.wire)
        data[:] = dtypes.widen(room, self.wire)  # whoever folds it, here or there, folds the same

    def _widen(self, room: Array, mine: Array, how: int) -> None:
        self._effect(dtypes.widen(room, self.wire), mine, how)()
