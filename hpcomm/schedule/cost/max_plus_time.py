"""Time evolution in (max, +) algebra: when each rank begins its next iteration.

With max for + and + for *, an iteration is a product of a matrix and the vector of clocks (Baccelli, Cohen,
Olsder and Quadrat 1992, "Synchronization and Linearity"):

    time'[b] = max over a of (A[b, a] + time[a])      A[b, b]: own work, A[b, a]: a message from a to b

A is kept as its rows, one for each message (Map); Clock applies the maps of a schedule in turn, and looks for
stretches of iterations whose powers have closed forms (max_plus_powers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...core.types import NpArray
from ..stream import COPY, Schedule, Stream
from .machine_model import Machine

_SHORT = 8  # messages into one rank, or out of one, up to which they are summed without sorting


class Rows(NamedTuple):
    """Messages in the order of receivers, then senders; which: of which stream."""

    source: NpArray
    dest: NpArray
    nbytes: NpArray
    reduced: NpArray
    which: NpArray

    @classmethod
    def of(cls, streams: list[tuple[Stream, int]], size: int, chunk: float) -> Rows:
        """From streams, each with its k."""
        parts = []
        for i, (s, k) in enumerate(streams):
            source, dest = s.ends(k, size)
            nbytes = np.broadcast_to(np.multiply(s.width, s.count) * chunk, source.shape)
            reduced = nbytes * np.broadcast_to(np.asarray(s.reduce) != COPY, source.shape)
            parts.append((source, dest, nbytes, reduced, np.full(source.size, i)))
        rows = cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        order = np.argsort(rows.dest * size + rows.source, kind="stable")
        return rows.pick(order[(rows.source != rows.dest)[order]])

    def pick(self, which: NpArray) -> Rows:
        return Rows(*(column[which] for column in self))

    def joined(self) -> Rows:
        """What one rank gives another is one message."""
        first = firsts(self.source, self.dest)
        if first.size == self.source.size:
            return self
        nbytes, reduced = (np.add.reduceat(column, first) for column in (self.nbytes, self.reduced))
        return Rows(self.source[first], self.dest[first], nbytes, reduced, self.which[first])


class Map:
    """One iteration: time' = max(time + own, time[source] + hop for each message)."""

    def __init__(self, rows: Rows, on: Machine, size: int) -> None:
        self.rows = rows = rows.joined()
        self.source, self.dest = source, dest = rows.source, rows.dest
        level, wide = np.zeros(source.size, np.int64), np.zeros(source.size)
        for _, unit, rate in on.links():
            a, b = source // unit, dest // unit
            far = a != b
            level += far
            if rate:
                at = np.flatnonzero(far)
                a, b, load = a[at], b[at], rows.nbytes[at] * rate
                wide[at] = np.maximum(wide[at], np.maximum(np.bincount(a, load)[a], np.bincount(b, load)[b]))
        busy = on.port(rows.nbytes, level)
        self.take = busy + rows.reduced * on.reduce_per_byte

        self.first = firsts(dest)  # messages into one rank stand together
        self.receivers = dest[self.first]
        rest = self.take + before(dest[::-1], self.take[::-1])[::-1]
        self.own = np.zeros(size)
        self.own[self.receivers] = rest[self.first]
        if source.size and int(np.bincount(source).max()) > 1:
            order = np.argsort(source, kind="stable")
            line = source[order]
            self.offset = np.empty(source.size)
            self.offset[order] = before(line, busy[order])
            gone = self.offset + np.maximum(busy, on.overhead + wide)
            senders = firsts(line)
            last, who = np.maximum.reduceat(gone[order], senders), line[senders]
        else:
            self.offset, last, who = np.zeros(source.size), np.maximum(busy, on.overhead + wide), source
        self.own[who] = np.maximum(self.own[who], last)
        self.senders = who
        self.head = self.offset + on.overhead + np.asarray(on.latency)[level]
        self.hop = self.head + np.maximum(rest, wide + on.overhead)

    def __call__(self, time: NpArray) -> NpArray:
        new: NpArray
        if self.source.size * 4 < time.size:
            new = time.copy()
            for who in (self.receivers, self.senders):
                new[who] = time[who] + self.own[who]
        else:
            new = time + self.own
        arrives = time[self.source] + self.hop
        if self.first.size < arrives.size:
            arrives = np.maximum.reduceat(arrives, self.first)
        new[self.receivers] = np.maximum(new[self.receivers], arrives)
        return new


class Clock:
    """When each rank begins its next iteration.

    With trace it keeps every message, and for every iteration whom each rank waited for.
    """

    def __init__(self, schedule: Schedule, on: Machine, chunk: float, trace: bool = False) -> None:
        self.schedule, self.on, self.size, self.chunk, self.trace = schedule, on, schedule.size, chunk, trace
        self.time = np.zeros(self.size)
        self.stepped = 0
        self.messages: list[tuple[int, int, int, float, float, float]] = []
        self.causes: list[tuple[int, NpArray]] = []
        self._shifts: dict[int, tuple[int, int] | None] = {}

    def shift(self, s: Stream) -> tuple[int, int] | None:
        """(d, e) if everybody gives equally much to the one d further on, and d moves by e each time."""
        if id(s) not in self._shifts:
            self._shifts[id(s)] = _shift(s, self.size)
        return self._shifts[id(s)]

    def map(self, streams: list[tuple[Stream, int]]) -> Map:
        """The map of an iteration in which these are active, each with its k."""
        return Map(Rows.of(streams, self.size, self.chunk), self.on, self.size)

    def stepwise(self, streams: list[Stream]) -> None:
        """Map by map."""
        still = [s for s in streams if not s.moves]
        rows = Rows.of([(s, 0) for s in still], self.size, self.chunk) if still else None
        for begin, end, active in stretches(streams):
            if any(s.moves for s in active):
                for t in range(begin, end):
                    self.step(self.map([(s, s.turn(t)) for s in active]), t, 1)
            else:
                assert rows is not None
                on = np.array([s.turn(begin) >= 0 for s in still])
                now = rows.pick(on[rows.which])
                self.step(Map(now, self.on, self.size), begin, end - begin)

    def step(self, step: Map, t: int, times: int) -> None:
        """Apply a map; once all clocks that it moves advance alike they do so for ever."""
        if times == 1 and not self.trace:
            self.time = step(self.time)
            self.stepped += 1
            return
        busy = np.flatnonzero(step.own)
        for left in range(times - 1, -1, -1):
            new = step(self.time)
            self.stepped += 1
            if self.trace:
                self._note(step, t + times - 1 - left, new)
            gain = (new - self.time)[busy]
            self.time = new
            if not left or self.trace or not busy.size:
                continue
            low, high = float(gain.min()), float(gain.max())
            if low > 0 and high - low <= 2e-15 * float(new.max()) + 1e-13 * low:
                self.time[busy] += left * (low + high) / 2
                return

    def _note(self, step: Map, t: int, new: NpArray) -> None:
        rows, time = step.rows, self.time
        ready = np.maximum(time[step.source] + step.head, time[step.dest])
        done: list[float] = []
        for i, (b, at, take, tail) in enumerate(
            zip(
                step.dest.tolist(), ready.tolist(), step.take.tolist(),
                (time[step.source] + step.hop).tolist(), strict=True,
            )
        ):  # fmt: skip
            before = done[-1] if i and b == step.dest[i - 1] else 0.0
            last = i + 1 == len(ready) or b != step.dest[i + 1]
            done.append(max(before, at) + take if not last else max(max(before, at) + take, tail))
        begin = time[step.source] + step.offset
        columns = (rows.source, rows.dest, rows.nbytes, begin, np.array(done))
        self.messages += [(t, *row) for row in zip(*(c.tolist() for c in columns), strict=True)]
        cause = np.arange(self.size)
        decides = time[step.source] + step.hop >= new[step.dest]
        cause[step.dest[decides]] = step.source[decides]
        self.causes.append((t, cause))

    def critical(self) -> list[tuple[int, int]]:
        """Back from the last rank: whom it waited for, iteration by iteration."""
        rank = int(self.time.argmax())
        path = []
        for t, cause in reversed(self.causes):
            if cause[rank] != rank:
                path.append((t, rank))
                rank = int(cause[rank])  # who sent the message of iteration t
        return [(-1, rank), *reversed(path)]


def phases(schedule: Schedule) -> list[list[Stream]]:
    """The streams in groups that follow each other in time; those that never leave a rank are left out."""
    found: list[list[Stream]] = []
    until = -1
    for s in sorted(schedule.streams, key=lambda s: s.begin):
        if not (s.active and s.rows and (s.moves or s.leaves)):
            continue
        if s.begin >= until:
            found.append([])
        found[-1].append(s)
        until = max(until, s.begin + (s.active - 1) * s.every + 1)
    return found


def _shift(s: Stream, p: int) -> tuple[int, int] | None:
    if s.rows != p or not s.is_even:
        return None
    source = np.atleast_1d(s.source)
    further = np.asarray(s.dest) - source
    d = int(further[0]) % p
    if not np.all((further == d) | (further == d - p)):
        return None
    gives = np.zeros(p, bool)
    gives[source if source.min() >= 0 and source.max() < p else source % p] = True
    if not gives.all():
        return None
    return d, s.dest_step - s.source_step


def stretches(streams: list[Stream]) -> Iterator[tuple[int, int, list[Stream]]]:
    """(begin, end, streams): iterations in which the same streams are active, every time."""
    cuts = set()
    for s in streams:
        last = s.begin + (s.active - 1) * s.every + 1
        cuts |= {s.begin, last}
        if s.every > 1:
            cuts |= {t + i for t in range(s.begin, last, s.every) for i in (0, 1)}
    for begin, end in pairwise(sorted(cuts)):
        active = [s for s in streams if s.turn(begin) >= 0]
        if active:
            yield begin, end, active


def firsts(*keys: NpArray) -> NpArray:
    """Where something new begins."""
    if not keys[0].size:
        return np.zeros(0, np.int64)
    new = np.ones(keys[0].size, bool)
    new[1:] = False
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def before(line: NpArray, x: NpArray) -> NpArray:
    """The sum of those before it in the same line, for each."""
    total = np.zeros(x.size)
    at = np.flatnonzero(line[1:] == line[:-1]) + 1 if x.size else np.zeros(0, np.int64)
    for _ in range(_SHORT):  # once as a second one, those that are further back again as a third one, ...
        if not at.size:
            return total
        total[at] = total[at - 1] + x[at - 1]
        at = at[1:][at[1:] == at[:-1] + 1]
    first = firsts(line)
    place = np.arange(x.size) - np.repeat(first, np.diff(np.append(first, x.size)))
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.append(0, np.bincount(place))).tolist()
    for low, high in pairwise(ends[_SHORT + 1 :]):
        at = order[low:high]
        total[at] = total[at - 1] + x[at - 1]
    return total
