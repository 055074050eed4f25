"""Streams, events and memory of the modelled driver.

A stream's work is done as late as the rules allow: when the host, or other work, waits for it.
"""

from __future__ import annotations

import mmap
import pickle
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hpcomm.core.types import AnyArray

    from .order import Moment

__all__ = ["EVENT", "EVENTS", "HEAP", "Event", "Heap", "Stream", "Waited", "Work", "catch_up", "complete"]

HEAP = 1 << 28  # bytes of device memory a process has; pages that nobody touches cost nothing
EVENTS, EVENT = 512, 512  # events of a process that others may open, at the end of the heap; bytes of each
_STATE = 24  # bytes of an event before its mark

Work = Callable[[], None]


class Heap:
    """The device memory of one process, here or opened from there."""

    def __init__(self, process: int, file: int, base: int) -> None:
        self.process = process
        self.base = base
        self.memory = mmap.mmap(file, HEAP + EVENTS * EVENT)
        self.bytes: NDArray[Any] = np.frombuffer(self.memory, np.uint8)


class Stream:
    def __init__(self, actor: tuple[int, str]) -> None:
        self.actor = actor
        self.queue: deque[tuple[float, Any]] = deque()  # since when; work, or what is Waited for


class Event:
    """Recorded and reached so many times; in shared memory if other processes may see it.

    Other processes read while this one writes: each number is written by itself, what was recorded last.
    """

    def __init__(self, shared: AnyArray | None = None) -> None:
        memory = np.zeros(_STATE, np.uint8) if shared is None else shared
        self.numbers = memory[:_STATE].view(np.int64)  # recorded, reached, length of the mark
        self.shared = shared
        self.place = 0  # in the heap, of one that others may open
        self.stream: Stream | None = None  # where it was recorded here last
        self._reached: set[int] = set()  # which of the times: another stream may come to a later one first
        self._mark: Any = None

    def record(self, stream: Stream, mark: tuple[Moment, str]) -> int:
        """mark: the moment and the line; returns which time it is."""
        self.stream = stream
        if self.shared is None:
            self._mark = mark
        else:
            packed = pickle.dumps(mark)
            self.shared[_STATE : _STATE + len(packed)] = np.frombuffer(packed, np.uint8)
            self.numbers[2] = len(packed)
        self.numbers[0] += 1
        return int(self.numbers[0])

    def reach(self, number: int) -> None:
        self._reached.add(number)
        self.numbers[1] = max(number, int(self.numbers[1]))

    @property
    def recorded(self) -> int:
        return int(self.numbers[0])

    def has_reached(self, number: int) -> bool:
        if self.shared is None:
            return number == 0 or number in self._reached
        return number <= int(self.numbers[1])

    def mark(self) -> Any:
        """What it was recorded with last."""
        if self.shared is None:
            return self._mark
        return pickle.loads(self.shared[_STATE : _STATE + int(self.numbers[2])].tobytes())


class Waited(NamedTuple):
    """An event as it was when a wait for it began: which time of recording, and in which stream."""

    event: Event
    number: int
    stream: Stream | None


def complete(waited: Waited) -> bool:
    """Do what must be done before an event is reached, and no more; whether it was."""
    wanted = [waited]
    while wanted:
        event, number, stream = wanted[-1]
        if event.has_reached(number):
            wanted.pop()
        elif stream is None or not stream.queue:
            return False  # another process' work
        else:
            _, work = stream.queue[0]
            if isinstance(work, Waited) and not work.event.has_reached(work.number):
                wanted.append(work)
            else:
                stream.queue.popleft()
                if not isinstance(work, Waited):
                    work()
    return True


def catch_up(stream: Stream, before: float) -> None:
    """Do what has been waiting in stream since before a time, as far as events let it."""
    while stream.queue and stream.queue[0][0] < before:
        _, work = stream.queue[0]
        if isinstance(work, Waited) and not complete(work):
            break
        stream.queue.popleft()
        if not isinstance(work, Waited):
            work()
