"""What a schedule costs on a machine: LogGP with ports and shared links, up to 100,000 ranks and more.

A message of B bytes from rank a to rank b, in an iteration that a begins at time[a] and b at time[b]:

    sender's port     one message after the other, by rank of their receivers: overhead + B * per_byte[level]
    links             NIC of the node, uplink of the pod, and those of the receiver: all that passes one in an
                      iteration shares it evenly. So the tail leaves W after the head, W being what the
                      slowest needs for all that passes it: bytes * nic_per_byte (uplink_per_byte)
    latency[level]    level 0: same node, 1: same pod, 2: another one
    receiver's port   one after the other, by rank of their senders: overhead + B * per_byte, and
                      B * fold_per_byte more if it is folded; and each at least overhead after its tail

A rank goes on to the next iteration when all its messages of this one are sent, tails included, and received.
Sizes are real numbers: a chunk has bytes/chunks bytes. Nothing is random, and no link remembers the iteration
before.

So an iteration is a linear map in the algebra of (max, +), and its rows are known beforehand:

    time'[b] = max(time[b] + own[b],  time[a] + hop[a, b] for all messages into b)

Powers of such maps have closed forms, which are exact: where all go around circles (`_circles`), where all
give to the one d further on and d moves (`_shifts`), where chunks follow each other down a chain (`_chain`).
What is left is computed map by map, and where all clocks advance alike the rest of it is one multiplication.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import ConfigError
from .schedule.registry import build, cut, parameters
from .schedule.stream import COPY, Schedule, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["Machine", "Simulation", "lower_bound", "machine", "machines", "predict", "simulate"]

PRESETS = Path(__file__).parent / "machines"
_BLOCK = 1 << 20  # messages looked at together


@dataclass(frozen=True)
class Machine:
    """A machine as data. Times in seconds, per byte where the name says so.

    node: ranks per node; pod: nodes per pod, 0: no pods. latency, per_byte: by level, node, pod, system.
    nic_per_byte, uplink_per_byte: of what the ranks of a node, the nodes of a pod share; 0: not shared.
    base: once per collective. curve: (bytes, seconds) of messages as measured, in place of per_byte; between
    them straight lines. copy_per_byte: of the memory that a schedule works on, to fill and to empty it.
    cores: where there are more ranks, they take turns; 0: they never do.
    families: other values for single algorithms, by name. nodewise: algorithms
    that treat nodes apart (their parameter node). sources: where each value comes from.
    """

    name: str
    about: str = ""
    node: int = 1
    pod: int = 0
    overhead: float = 0.0
    latency: tuple[float, ...] = (0.0, 0.0, 0.0)
    per_byte: tuple[float, ...] = (0.0, 0.0, 0.0)
    nic_per_byte: float = 0.0
    uplink_per_byte: float = 0.0
    fold_per_byte: float = 0.0
    base: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()
    copy_per_byte: float = 0.0
    cores: int = 0
    families: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodewise: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    def running(self, algorithm: str) -> Machine:
        """This machine as it is for one algorithm."""
        return replace(self, **self.families.get(algorithm.partition(":")[0], {}), families={})

    def port(self, nbytes: Array, level: Array) -> Array:
        """How long a port is busy with messages."""
        if not self.curve:
            return np.asarray(self.overhead + nbytes * np.asarray(self.per_byte)[level])
        size, seconds = np.array(self.curve).T
        beyond = np.maximum(nbytes - size[-1], 0) * self.per_byte[0]
        return np.asarray(self.overhead + np.interp(nbytes, size, seconds) + beyond)

    @property
    def group(self) -> int:
        """Ranks so far apart have nothing in common."""
        return self.node * max(1, self.pod)

    def links(self, ranks: int) -> list[tuple[str, Array, float]]:
        """What ranks share: (name, whose each rank uses, seconds per byte); by level, from 1."""
        r = np.arange(ranks)
        nic = [("nic", r // self.node, self.nic_per_byte)]
        return nic + [("uplink", r // self.group, self.uplink_per_byte)] * bool(self.pod)


def machines() -> list[str]:
    """Names of the machines that come along."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))


def machine(name: str) -> Machine:
    """A machine by name, or from a JSON file.

    Raises:
        ConfigError: there is none, or the file says something that a machine does not have.
    """
    path = PRESETS / f"{name}.json"
    if not path.exists():
        path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"there is no machine {name!r}", hint=f"one of {', '.join(machines())}, or a JSON file"
        )
    given: dict[str, Any] = json.loads(path.read_text())
    unknown = set(given) - {f.name for f in fields(Machine)}
    if unknown:
        raise ConfigError(
            f"{path}: a machine has no {', '.join(sorted(unknown))}", hint="see Machine in simulate.py"
        )
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Machine(**values)


@dataclass
class Simulation:
    """What a simulation found.

    seconds: from the common start to the end of the last rank. finish: per rank. load: bytes by kind of link:
    {"rank": ..., "nic": ..., "uplink": ...}, what leaves by the busiest one and by all together. stepped,
    iterations: how many of the iterations were computed one by one.
    messages: with trace: (iteration, source, dest, bytes, begin, end) of every message. path: with trace, the
    critical one: [(iteration, rank)], each waiting for the one before.
    """

    schedule: Schedule
    seconds: float
    finish: Array
    load: dict[str, tuple[float, float]]
    stepped: int
    iterations: int
    messages: list[tuple[int, int, int, float, float, float]] = field(default_factory=list)
    path: list[tuple[int, int]] = field(default_factory=list)


def simulate(schedule: Schedule, on: Machine, nbytes: float, trace: bool = False) -> Simulation:
    """Simulate a schedule.

    Args:
        nbytes: of one slot: for all_reduce, broadcast, reduce and scan x, else one block.
        trace: keep every message, and find the critical path; for small cases.
    """
    on = on.running(schedule.name)
    clock = _Clock(schedule, on, nbytes / schedule.chunks, trace)
    clock.run()
    seconds = float(clock.time.max(initial=0)) + on.base + on.copy_per_byte * nbytes * schedule.slots
    if on.cores and schedule.size > on.cores:
        seconds *= schedule.size / on.cores
    load = loads(schedule, on, nbytes)
    found = Simulation(schedule, seconds, clock.time, load, clock.stepped, schedule.iterations)
    if trace:
        found.messages, found.path = clock.messages, clock.critical()
    return found


def predict(verb: str, algorithm: str, ranks: int, nbytes: float, on: Machine) -> Simulation:
    """Simulate an algorithm by name, in as many chunks as the executor cuts x into.

    Algorithms that can treat nodes apart do so where the machine says it.
    """
    name = algorithm.partition(":")[0]
    if (
        name in (*on.nodewise, "hierarchical")
        and on.node > 1
        and "node" in parameters(verb, name)
        and "node=" not in algorithm
        and ranks % on.node == 0
    ):
        algorithm += f"{',' if ':' in algorithm else ':'}node={on.node}"
    return simulate(build(verb, cut(verb, algorithm, int(nbytes)), ranks), on, nbytes)


def lower_bound(verb: str, ranks: int, nbytes: float, on: Machine) -> float:
    """Seconds that no algorithm can beat: the larger of latency and volume over the best link."""
    level = 0 if ranks <= on.node else 1
    rounds = (ranks - 1).bit_length()
    volume = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "broadcast": 1.0,
        "reduce": 1.0,
        "scan": 1.0,
        "barrier": 0.0,
    }
    least = volume.get(verb, ranks - 1.0) if ranks > 1 else 0.0
    hop = 2 * on.overhead + min(on.latency[: level + 1])
    return on.base + max(rounds * hop, least * nbytes * min(on.per_byte[: level + 1]))


class _Rows(NamedTuple):
    """Messages in the order of receivers, then senders; which: of which stream."""

    source: Array
    dest: Array
    nbytes: Array
    folded: Array
    which: Array

    @classmethod
    def of(cls, streams: list[tuple[Stream, int]], size: int, chunk: float) -> _Rows:
        """From streams, each with its k."""
        parts = []
        for i, (s, k) in enumerate(streams):
            source, dest = s.ends(k, size)
            nbytes = np.broadcast_to(np.multiply(s.width, s.times) * chunk, source.shape)
            folded = nbytes * np.broadcast_to(np.asarray(s.fold) != COPY, source.shape)
            parts.append((source, dest, nbytes, folded, np.full(source.size, i)))
        rows = cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        order = np.argsort(rows.dest * size + rows.source, kind="stable")
        return rows.pick(order[(rows.source != rows.dest)[order]])

    def pick(self, which: Array) -> _Rows:
        return _Rows(*(column[which] for column in self))

    def joined(self) -> _Rows:
        """What one rank gives another is one message."""
        first = _firsts(self.source, self.dest)
        if first.size == self.source.size:
            return self
        nbytes, folded = (np.add.reduceat(column, first) for column in (self.nbytes, self.folded))
        return _Rows(self.source[first], self.dest[first], nbytes, folded, self.which[first])


class _Map:
    """One iteration: time' = max(time + own, time[source] + hop for each message)."""

    def __init__(self, rows: _Rows, on: Machine, links: list[tuple[str, Array, float]], size: int) -> None:
        self.rows = rows = rows.joined()
        self.source, self.dest = source, dest = rows.source, rows.dest
        level, wide = np.zeros(source.size, np.int64), np.zeros(source.size)
        for _, uses, rate in links:
            a, b = uses[source], uses[dest]
            far = a != b
            level += far
            if rate:
                at = np.flatnonzero(far)
                a, b, load = a[at], b[at], rows.nbytes[at] * rate
                wide[at] = np.maximum(wide[at], np.maximum(np.bincount(a, load)[a], np.bincount(b, load)[b]))
        busy = on.port(rows.nbytes, level)
        self.take = busy + rows.folded * on.fold_per_byte

        self.first = _firsts(dest)  # messages into one rank stand together
        self.receivers = dest[self.first]
        rest = self.take + _before(dest[::-1], self.take[::-1])[::-1]
        self.own = np.zeros(size)
        self.own[self.receivers] = rest[self.first]
        if source.size and int(np.bincount(source).max()) > 1:
            order = np.argsort(source, kind="stable")
            line = source[order]
            self.offset = np.empty(source.size)
            self.offset[order] = _before(line, busy[order])
            gone = self.offset + np.maximum(busy, on.overhead + wide)
            senders = _firsts(line)
            last, who = np.maximum.reduceat(gone[order], senders), line[senders]
        else:
            self.offset, last, who = np.zeros(source.size), np.maximum(busy, on.overhead + wide), source
        self.own[who] = np.maximum(self.own[who], last)
        self.head = self.offset + on.overhead + np.asarray(on.latency)[level]
        self.hop = self.head + np.maximum(rest, wide + on.overhead)

    def __call__(self, time: Array) -> Array:
        new: Array = time + self.own
        arrives = time[self.source] + self.hop
        if self.first.size < arrives.size:
            arrives = np.maximum.reduceat(arrives, self.first)
        new[self.receivers] = np.maximum(new[self.receivers], arrives)
        return new


class _Clock:
    """When each rank begins its next iteration."""

    def __init__(self, schedule: Schedule, on: Machine, chunk: float, trace: bool) -> None:
        self.on, self.size, self.chunk, self.trace = on, schedule.size, chunk, trace
        self.phases = phases(schedule)
        self.links = on.links(schedule.size)
        self.time = np.zeros(schedule.size)
        self.stepped = 0
        self.messages: list[tuple[int, int, int, float, float, float]] = []
        self.causes: list[tuple[int, Array]] = []

    def run(self) -> None:
        for streams in self.phases:
            ways = () if self.trace else (self._circles, self._shifts, self._chain, self._walk)
            if not any(way(streams) for way in ways):
                self._stepwise(streams)

    def _map(self, streams: list[tuple[Stream, int]]) -> _Map:
        return self._map_of(_Rows.of(streams, self.size, self.chunk))

    def _map_of(self, rows: _Rows) -> _Map:
        return _Map(rows, self.on, self.links, self.size)

    # -- map by map ------------------------------------------------------------------------------------

    def _stepwise(self, streams: list[Stream]) -> None:
        still = [s for s in streams if not (s.march or s.hop)]
        rows = _Rows.of([(s, 0) for s in still], self.size, self.chunk) if still else None
        for begin, end, active in stretches(streams):
            if any(s.march or s.hop for s in active):
                for t in range(begin, end):
                    self._step(self._map([(s, s.turn(t)) for s in active]), t, 1)
            elif rows is not None:
                on = np.array([s.turn(begin) >= 0 for s in still])
                now = rows if on.all() else rows.pick(np.flatnonzero(on[rows.which]))
                self._step(self._map_of(now), begin, end - begin)

    def _step(self, step: _Map, t: int, times: int) -> None:
        """Apply a map; once all clocks that it moves advance alike they do so for ever."""
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

    def _note(self, step: _Map, t: int, new: Array) -> None:
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
                rank = int(cause[rank])
        return [(-1, rank), *reversed(path)]

    # -- powers in closed form -------------------------------------------------------------------------

    def _circles(self, streams: list[Stream]) -> bool:
        """All that take part stand in circles of one size, and each gives to the next every time.

        After n times a rank's clock is the largest, over all h up to n, of the one h places back, with h hops
        and n - h times the largest `own` on the way. There are few values of `own`; for each one it is a
        largest value over a range, with a slope.
        """
        (s, *others) = streams
        if others or s.march or s.hop or s.every > 1 or s.active < 3:
            return False
        way = _shift(s, self.size)
        if way is not None and gcd(way[0], self.size) == 1:
            own, hop = self._uniform(s, way[0])
            circles: Array | None = (np.arange(self.size) * way[0] % self.size)[None, :]
        else:
            step = self._map([(s, 0)])
            gives = np.zeros(self.size, bool)
            gives[step.source] = True
            if not step.source.size == step.receivers.size == gives[step.receivers].sum():
                return False
            own, hop = step.own, np.zeros(self.size)
            hop[step.dest] = step.hop
            circles = _circles_of(step.source, step.dest, self.size)
        values = np.unique(own)
        if values.size > 8 or circles is None or circles.shape[1] < 2:
            return False
        time, own, hop = self.time[circles], own[circles], hop[circles]
        left, most = s.active, circles.shape[1] - 1
        while left:
            time = _power(time, hop, own, values, min(left, most))
            left -= min(left, most)
        self.time[circles] = time
        return True

    def _uniform(self, s: Stream, d: int) -> tuple[Array, Array]:
        """(own, hop into it) of every rank where all give equally much to the one d further on.

        If that is near, all groups (see Machine.group) are alike but the first and the last two.
        """
        p, group = self.size, self.on.group
        back = d > p // 2
        few = 3 * group + p % group
        if few >= p or (p - d if back else d) > group:
            few = p
        r = np.arange(few)
        nbytes = np.full(few, float(s.width * s.times * self.chunk))
        rows = _Rows(np.roll(r, d + few - p if back else d), r, nbytes, nbytes * (s.fold != COPY), r)
        step = _Map(rows, self.on, self.on.links(few), few)
        many = (p - few) // group + 1
        own, hop = (
            np.concatenate([x[:group], np.tile(x[group : 2 * group], many), x[2 * group :]])
            if many > 1
            else x
            for x in (step.own, step.hop)
        )
        return own, hop

    def _shifts(self, streams: list[Stream]) -> bool:
        """All give to the one d further on, and d moves by one each time.

        As long as that is farther than nodes and pods reach, hop and own are the same for all, hop the
        larger. The best way back over n iterations hops every time; or all but once, which reaches any rank
        that some d leads to; or all but twice, which reaches all of them.
        """
        (s, *others) = streams
        way = None if others else _shift(s, self.size)
        if way is None or s.every > 1 or abs(way[1]) != 1:
            return False
        p, group = self.size, self.on.group
        d = (way[0] + np.arange(s.active) * way[1]) % p
        far = (d >= group) & (d <= p - group)
        edges = [0, *(np.flatnonzero(far[1:] != far[:-1]) + 1).tolist(), s.active]
        for low, high in pairwise(edges):
            step = self._shifted(s, int(d[low]))
            if far[low] and 2 * (high - low) > p + 2 and np.ptp(step.hop) == 0 == np.ptp(step.own):
                hop, spare = step.hop[0] * (high - low), step.hop[0] - step.own[0]
                moved = np.roll(self.time, int(d[low:high].sum() % p))
                once = _largest_ahead(moved, int(d[low:high].min()), high - low) - spare
                self.time = hop + np.maximum(np.maximum(moved, once), self.time.max() - 2 * spare)
                continue
            for k in range(low, high):
                self._step(self._shifted(s, int(d[k])), s.begin + k, 1)
        return True

    def _shifted(self, s: Stream, d: int) -> _Map:
        r = np.arange(self.size)
        nbytes = np.full(self.size, float(s.width * s.times * self.chunk))
        return self._map_of(_Rows(np.roll(r, d), r, nbytes, nbytes * (s.fold != COPY), r))

    def _chain(self, streams: list[Stream]) -> bool:
        """Chunks that follow each other from rank to rank, one iteration apart.

        When a rank has chunk c: own after it had chunk c-1, or hop after its neighbour had chunk c.
        """
        streams = sorted(streams, key=lambda s: s.begin)
        s = streams[0]
        plain = (
            _is_single(s) and abs(s.march) == 1 and s.march == s.hop and s.every == 1 and s.active < self.size
        )
        like = [
            _is_single(o) and o.begin == s.begin + i and all(
                np.all(x == y) for x, y in
                zip(_kind(o), _kind(s), strict=True)
            )
            for i, o in enumerate(streams)
        ]  # fmt: skip
        a, b = s.ends(0, self.size)
        if not (plain and all(like)) or (b - a - s.march) % self.size:
            return False
        line = (a + np.arange(s.active + 1) * s.march) % self.size
        hop, take, gone = self._single(s, line[:-1], line[1:])
        hop, take, gone = np.append(0.0, hop), np.append(0.0, take), np.append(gone, 0.0)
        far = np.cumsum(hop)
        had = self.time[line] + take
        for i in range(len(streams)):
            had = far + np.maximum.accumulate(had - far)
            had += np.maximum(take, gone) if i + 1 < len(streams) else gone
        self.time[line] = had
        return True

    def _walk(self, streams: list[Stream]) -> bool:
        """One message per iteration, in plain numbers."""
        (s, *others) = streams
        if others or not _is_single(s) or s.active < 3:
            return False
        k = np.arange(s.active)
        a, b = ((np.atleast_1d(x) + k * y) % self.size for x, y in ((s.source, s.march), (s.dest, s.hop)))
        apart = a != b
        a, b = a[apart], b[apart]
        time = self.time.tolist()
        columns = (a, b, *self._single(s, a, b))
        for source, dest, hop, take, gone in zip(*(c.tolist() for c in columns), strict=True):
            begin = time[source]
            time[source] = begin + gone
            time[dest] = max(time[dest] + take, begin + hop)
        self.time = np.array(time)
        return True

    def _single(self, s: Stream, source: Array, dest: Array) -> tuple[Array, Array, Array]:
        """(hop, what the receiver does, what the sender does) of messages that share no link."""
        on, level, nbytes = self.on, np.zeros(source.size, np.int64), float(s.width * s.times * self.chunk)
        wide = np.zeros(source.size)
        for _, uses, rate in self.links:
            far = uses[source] != uses[dest]
            level += far
            wide = np.maximum(wide, far * nbytes * rate)
        busy = on.port(np.asarray(nbytes), level)
        take = busy + nbytes * on.fold_per_byte * (s.fold != COPY)
        hop = on.overhead + np.asarray(on.latency)[level] + np.maximum(take, wide + on.overhead)
        return hop, take, np.maximum(busy, on.overhead + wide)


def phases(schedule: Schedule) -> list[list[Stream]]:
    """The streams in groups that follow each other in time; those that never leave a rank are left out."""
    found: list[list[Stream]] = []
    until = -1
    for s in sorted(schedule.streams, key=lambda s: s.begin):
        if not s.active or not s.rows:
            continue
        if not (s.march or s.hop) and np.all(np.asarray(s.source) == np.asarray(s.dest)):
            continue
        if s.begin >= until:
            found.append([])
        found[-1].append(s)
        until = max(until, s.begin + (s.active - 1) * s.every + 1)
    return found


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


def loads(schedule: Schedule, on: Machine, nbytes: float) -> dict[str, tuple[float, float]]:
    """{kind of link: (bytes that leave by the busiest one, by all together)}."""
    p = schedule.size
    kinds = [("rank", np.arange(p), 0.0), *on.links(p)]
    totals = {name: np.zeros(int(uses[-1]) + 1) for name, uses, _ in kinds}
    for s in schedule.streams:
        size = np.multiply(s.width, s.times) * (nbytes / schedule.chunks)
        if (way := _shift(s, p)) is not None:
            d = (way[0] + np.arange(s.active if way[1] else 1) * way[1]) % p
            each = 1 if way[1] else s.active
            far = (d >= on.group) & (d <= p - on.group)
            for name, uses, _ in kinds:
                times = np.full(p, far.sum() * each)
                for i in d[~far].tolist():
                    times += each * (uses != np.roll(uses, -i))
                totals[name] += np.bincount(uses, size * times)
            continue
        moving = bool(s.march or s.hop)
        k = np.arange(s.active if moving else min(1, s.active))
        several = max(1, _BLOCK // max(1, s.rows))
        for low in range(0, k.size, several):
            now = k[low : low + several, None]
            source = (np.atleast_1d(s.source) + now * s.march) % p
            dest = (np.atleast_1d(s.dest) + now * s.hop) % p
            source, dest, sent = np.broadcast_arrays(source, dest, size * (1 if moving else s.active))
            for name, uses, _ in kinds:
                away = uses[source] != uses[dest]
                totals[name] += np.bincount(uses[source[away]], sent[away], totals[name].size)
    return {name: (float(x.max(initial=0)), float(x.sum())) for name, x in totals.items()}


def _shift(s: Stream, p: int) -> tuple[int, int] | None:
    """(d, e) if everybody gives equally much to the one d further on, and d moves by e each time."""
    if s.rows != p or np.ndim(s.width) or np.ndim(s.times) or np.ndim(s.fold):
        return None
    source = np.asarray(s.source)
    d = (s.dest - source) % p
    gives = np.zeros(p, bool)
    gives[source % p] = True
    return (int(d[0]), s.hop - s.march) if gives.all() and not np.ptp(d) else None


def _is_single(s: Stream) -> bool:
    return s.rows == 1 and not (np.ndim(s.width) or np.ndim(s.times) or np.ndim(s.fold))


def _kind(s: Stream) -> tuple[Any, ...]:
    """What makes chunks of a chain alike."""
    return s.source, s.dest, s.march, s.hop, s.width, s.times, s.fold, s.every, s.active


def _circles_of(source: Array, dest: Array, size: int) -> Array | None:
    """Ranks in the order in which each gives to the next, a row for each circle; None: of unlike sizes."""
    following = np.full(size, -1)
    following[source] = dest
    after, found = following.tolist(), []
    for start in source.tolist():
        circle = []
        while after[start] >= 0:
            circle.append(start)
            after[start], start = -1, after[start]
        if circle:
            found.append(circle)
    return np.array(found) if len({len(circle) for circle in found}) == 1 else None


def _power(time: Array, hop: Array, own: Array, values: Array, n: int) -> Array:
    """The clocks of circles (rows) after n times, fewer than they are long; values: those of own."""
    along = np.cumsum(hop, 1)
    behind = np.roll(along, n, 1)
    behind[:, :n] -= along[:, -1:]
    new: Array = np.roll(time, n, 1) + (along - behind)
    # That is n hops. Staying somewhere for `value` is worth it only if that rank begins so much later than
    # the one before.
    most = (hop + np.roll(time, 1, 1) - time).min()
    if not (values > most).any():
        return new
    q = time.shape[1]
    place = np.arange(2 * q)
    twice, owns = (np.concatenate([x, x], 1) for x in (time, own))
    along = np.concatenate([along, along + along[:, -1:]], 1)
    for value in values[values > most]:
        last = np.maximum.accumulate(np.where(owns >= value, place, -1), 1)[:, q:]  # one with so much
        first = place[q:] - n
        best = _largest_between(twice - along + place * value, first, last)
        new = np.maximum(new, np.where(last >= first, best + along[:, q:] - first * value, -np.inf))
    return new


def _largest_between(x: Array, first: Array, last: Array) -> Array:
    """The largest of x[:, first..last] for each column of first and last; nonsense where last < first."""
    length = np.maximum(last - first + 1, 1)
    power = np.frexp(length)[1] - 1  # 2**power fits in once, and twice covers it
    best = np.empty(last.shape)
    rows, first = np.arange(x.shape[0])[:, None], np.minimum(first, x.shape[1] - 1)
    for i in np.flatnonzero(np.bincount(power.ravel())).tolist():
        window, here = _largest_of(x, 1 << i), power == i
        both = np.maximum(window[rows, first], window[rows, np.maximum(last - (1 << i) + 1, 0)])
        best = np.where(here, both, best)
    return best


def _largest_of(x: Array, n: int) -> Array:
    """The largest of x[:, i .. i + n - 1], where there are so many (van Herk 1992: 3 comparisons each)."""
    q = x.shape[1]
    blocks = np.full((x.shape[0], -(-q // n) + 1, n), -np.inf)
    blocks.reshape(x.shape[0], -1)[:, :q] = x
    until = np.maximum.accumulate(blocks, 2).reshape(x.shape[0], -1)
    since = np.maximum.accumulate(blocks[:, :, ::-1], 2)[:, :, ::-1].reshape(x.shape[0], -1)
    return np.maximum(since[:, :q], until[:, n - 1 : n - 1 + q])


def _largest_ahead(x: Array, low: int, many: int) -> Array:
    """The largest of x[i + low .. i + low + many - 1], around the circle."""
    p = x.size
    place = np.arange(p) + low
    found = _largest_between(np.tile(x, 3)[None, :], place, (place + many - 1)[None, :])
    return np.asarray(found[0])


def _firsts(*keys: Array) -> Array:
    """Where something new begins."""
    if not keys[0].size:
        return np.zeros(0, np.int64)
    new = np.ones(keys[0].size, bool)
    new[1:] = False
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _before(line: Array, x: Array) -> Array:
    """The sum of those before it in the same line, for each."""
    first = _firsts(line)
    total = np.zeros(x.size)
    if first.size == x.size:
        return total
    place = np.arange(x.size) - np.repeat(first, np.diff(np.append(first, x.size)))
    order = np.argsort(place, kind="stable")
    for i, (low, high) in enumerate(pairwise(np.cumsum(np.append(0, np.bincount(place))).tolist())):
        if i:
            at = order[low:high]
            total[at] = total[at - 1] + x[at - 1]
    return total
