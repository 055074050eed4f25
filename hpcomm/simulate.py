"""What a schedule costs on a machine: LogGP with ports and shared links, up to 100,000 ranks and more.

A message of B bytes from a rank in iteration t:

    sender's port     waits its turn, then is busy for  overhead + B * per_byte[level]
    links             NIC of the node, uplink of the pod, and those of the receiver: each serves one message
                      after the other, iteration by iteration, in the order in which their heads arrive
                      (ties: by stream, then by rank), and is busy for B * nic_per_byte (uplink_per_byte)
    latency[level]    level 0: same node, 1: same pod, 2: another one
    receiver's port   once the receiver is in iteration t, one after the other: overhead + B * per_byte,
                      and B * fold_per_byte more if it is folded

A rank goes on to the next iteration when all its messages of this one are sent and received. Sizes are
real numbers: a chunk has bytes/chunks bytes. Nothing is random.

Three exact shortcuts: ranks that a rotation by whole nodes maps onto each other are computed once; where
every iteration of a stretch is like the one before and all clocks advance alike, the rest of it is one
multiplication (a system in (max, +) that is homogeneous); and a ring whose hops take longer than any port or
link is busy is a sum along the ring.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import ConfigError
from .schedule.registry import build, parameters
from .schedule.stream import COPY, Schedule, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["Machine", "Simulation", "lower_bound", "machine", "machines", "predict", "simulate"]

PRESETS = Path(__file__).parent / "machines"
_SAME = 1e-13  # s: heads that arrive closer together than this arrive together


@dataclass(frozen=True)
class Machine:
    """A machine as data. Times in seconds, per byte where the name says so.

    node: ranks per node; pod: nodes per pod, 0: no pods. latency, per_byte: by level, node, pod, system.
    nic_per_byte, uplink_per_byte: of what the ranks of a node, the nodes of a pod share; 0: not shared.
    base: once per collective. families: other values for single algorithms, by name. nodewise: algorithms
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
    families: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodewise: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    def running(self, algorithm: str) -> Machine:
        """This machine as it is for one algorithm."""
        return replace(self, **self.families.get(algorithm.partition(":")[0], {}), families={})

    def level(self, source: Array, dest: Array) -> Array:
        """0: same node, 1: same pod, 2: neither."""
        a, b = source // self.node, dest // self.node
        if not self.pod:
            return np.asarray(a != b, np.int64)
        return np.asarray(np.asarray(a != b, np.int64) + (a // self.pod != b // self.pod))


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

    seconds: from the common start to the end of the last rank. finish: per rank (or per class of ranks that
    behave alike). load: bytes by kind of link: {"node": ..., "nic": ..., "uplink": ...}, the busiest one and
    all together. stepped, iterations: how many of the iterations were computed one by one.
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
    load = loads(schedule, on, nbytes)
    if not trace:
        found = _around(schedule, on, nbytes)
        if found is not None:
            return Simulation(schedule, float(found.max()) + on.base, found, load, 0, schedule.iterations)
    clock = _Clock(schedule, on, nbytes, trace)
    clock.run()
    done = Simulation(
        schedule,
        float(clock.time.max(initial=0)) + on.base,
        clock.time,
        load,
        clock.stepped,
        schedule.iterations,
    )
    done.messages = clock.messages
    if trace:
        done.path = clock.critical()
    return done


def predict(verb: str, algorithm: str, ranks: int, nbytes: float, on: Machine) -> Simulation:
    """Simulate an algorithm by name; those that can treat nodes apart do so where the machine says it."""
    name = algorithm.partition(":")[0]
    if (
        name in (*on.nodewise, "hierarchical")
        and on.node > 1
        and "node" in parameters(verb, name)
        and "node=" not in algorithm
        and ranks % on.node == 0
    ):
        algorithm += f"{',' if ':' in algorithm else ':'}node={on.node}"
    return simulate(build(verb, algorithm, ranks), on, nbytes)


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


class _Line:
    """Customers of servers: whom each server serves, in which order those do who come together.

    table: a row for each server, of customers and, to fill it up, of their number; None: too uneven for one.
    """

    def __init__(self, key: Array, rank: Array) -> None:
        self.key, n = key, key.size
        self.order = np.argsort(rank, kind="stable")
        self.order = self.order[np.argsort(key[self.order], kind="stable")]
        line = key[self.order]
        first = np.flatnonzero(np.concatenate([[True], line[1:] != line[:-1]]))
        many = np.diff(np.append(first, n))
        self.servers, self.table = line[first], None
        if first.size * int(many.max()) <= 4 * n:
            table = np.full((first.size, int(many.max())), n)
            row = np.repeat(np.arange(first.size), many)
            table[row, np.arange(n) - first[row]] = self.order
            self.table = table

    def serve(self, ready: Array, busy: Array, free: Array | None) -> Array:
        """When the servers come to their customers, in the order of arrival; free: when they are, updated."""
        if self.table is None:
            return _serve(self.key, ready, busy, free, self.order)
        ready, busy = np.append(ready, np.inf), np.append(busy, 0.0)
        table = self.table
        turns = np.argsort(np.round(ready[table] / _SAME), axis=1, kind="stable")
        done = np.zeros(len(table)) if free is None else free[self.servers]
        start = np.empty(ready.size)
        for column in np.take_along_axis(table, turns, 1).T:
            start[column] = np.maximum(ready[column], done)
            done = np.where(column < ready.size - 1, start[column] + busy[column], done)
        if free is not None:
            free[self.servers] = done
        return start[:-1]


class _Batch(NamedTuple):
    """The messages of one iteration: what does not depend on the clock."""

    source: Array
    dest: Array
    nbytes: Array
    level: Array
    busy: Array  # of the port
    offset: Array  # when the sender's port comes to it
    send_end: Array  # when the sender's port is done with all of them, by position in senders
    senders: Array
    receive: Array  # how long the receiver's port takes
    by_dest: _Line | None  # None: nobody receives twice
    links: list[tuple[Array, Array, Array, _Line | None]]  # (messages, link, busy, None: nobody shares)
    latency: Array
    touched: Array  # ranks


class _Clock:
    """The state: when each rank begins its next iteration, and when each link is free."""

    def __init__(self, schedule: Schedule, on: Machine, nbytes: float, trace: bool) -> None:
        schedule = replace(schedule, streams=tuple(_by_sender(s, schedule.size) for s in schedule.streams))
        self.schedule, self.on = schedule, on
        self.chunk = nbytes / schedule.chunks
        self.trace = trace
        self.size = schedule.size
        self.period = self.size if trace else _symmetry(schedule, on)
        self.time = np.zeros(self.period)
        nodes = -(-self.size // on.node)
        pods = -(-nodes // on.pod) if on.pod else 0
        self.first_uplink = 2 * nodes
        self.free = np.zeros(2 * nodes + 2 * pods)
        self.stepped = 0
        self.messages: list[tuple[int, int, int, float, float, float]] = []
        self.causes: list[tuple[int, Array]] = []
        self._batches: dict[Any, _Batch] = {}
        self._wave = 0  # by how many ranks everybody gives further in this stretch, if all do alike

    def run(self) -> None:
        for begin, end, streams in stretches(self.schedule):
            self._stretch(begin, end, streams)

    def _stretch(self, begin: int, end: int, streams: list[Stream]) -> None:
        """Iterations with the same streams active; jumps ahead once all clocks advance alike."""
        if len(streams) == 1 and streams[0].rows == 1 and not self.trace:
            self._walk(streams[0], begin, end)
            return
        fixed = all(not (s.march or s.hop) for s in streams)
        symmetric = self.period < self.size or self.size == 1
        lags = [1, self.on.node] if fixed else []
        if not fixed and symmetric:  # who comes first at a link may change around the node
            lags = [self.period, self.period**2] if self.period <= 16 else [self.period]
        self._wave = self._circular(streams) if fixed and not symmetric and not self.trace else 0
        history: list[tuple[Array, Array]] = []
        t = begin
        while t < end:
            batch = self._batch(streams, t)
            if lags and not self.trace:
                history.append((self.time.copy(), self.free.copy()))
                history = history[-max(lags) - 1 :]
            self._step(batch, t)
            self.stepped += 1
            t += 1
            if len(history) > 1 and t < end:
                t = self._jump(batch, history, lags, streams, t, end)

    def _jump(
        self, batch: _Batch, history: list[Any], lags: list[int], streams: list[Stream], t: int, end: int
    ) -> int:
        touched = batch.touched
        used = np.unique(np.concatenate([link for _, link, _, _ in batch.links])) if batch.links else None
        for lag in lags:
            if lag > len(history):
                continue
            time, free = history[-lag]
            if self._wave and lag == self.on.node and self._roll(time, free, (end - t) // lag):
                history.clear()
                return t + (end - t) // lag * lag
            change = self.time[touched] - time[touched]
            if used is not None:
                change = np.concatenate([change, self.free[used] - free[used]])
            low, high = float(change.min()), float(change.max())
            if low <= 0 or high - low > 2e-15 * float(self.time.max()) + 1e-13 * low:
                continue
            stop = end if all(not s.hop for s in streams) else self._all_far(streams, t, end, lag)
            times = (stop - t) // lag
            if times < 1:
                continue
            self.time[touched] += times * (low + high) / 2
            if used is not None:
                self.free[used] += times * (low + high) / 2
            history.clear()
            return t + times * lag
        return t

    def _all_far(self, streams: list[Stream], t: int, end: int, lag: int) -> int:
        """Up to where moving partners stay as far (node or pod) as over the last lag iterations."""
        wide, p = self.period, self.size
        for s in streams:
            if wide == 1 or not s.hop:
                continue
            k = t - s.begin
            distance = (int(np.atleast_1d(s.dest)[0] - np.atleast_1d(s.source)[0]) + k * s.hop) % p
            before = distance - lag * s.hop
            if abs(s.hop) != 1 or not all(wide <= d <= p - wide for d in (distance, before)):
                return t
            end = min(end, t + (p - wide - distance if s.hop > 0 else distance - wide))
        return end

    def _circular(self, streams: list[Stream]) -> int:
        """By how many ranks everybody gives further, where all do so alike and nodes may be turned; or 0."""
        steps = {_step_around(s, self.size) for s in streams}
        return steps.pop() if len(steps) == 1 and not self.on.pod and self.size % self.on.node == 0 else 0

    def _roll(self, time: Array, free: Array, times: int) -> bool:
        """Jump where what was at one node is now at the next: a wave that goes round, however uneven it is.

        After `node` iterations everything has moved on by node * step ranks, that is by step nodes.
        """
        step, node = self._wave, self.on.node
        ways = [*self.free[: self.first_uplink].reshape(2, -1)] if self.on.nic_per_byte else []
        before = [*free[: self.first_uplink].reshape(2, -1)] if self.on.nic_per_byte else []
        change = np.concatenate([self.time - np.roll(time, step * node)] + [
            now - np.roll(old, step) for now, old in zip(ways, before, strict=True)
        ])  # fmt: skip
        low, high = float(change.min()), float(change.max())
        if times < 1 or low <= 0 or high - low > 2e-15 * float(self.time.max()) + 1e-13 * low:
            return False
        more = times * (low + high) / 2
        self.time = np.roll(self.time, times * step * node) + more
        for way in ways:
            way[:] = np.roll(way, times * step) + more
        return True

    def _walk(self, s: Stream, begin: int, end: int) -> None:
        """One message per iteration: plain numbers are faster than arrays of one."""
        on, p, time, free = self.on, self.size, self.time, self.free
        nodes, pods = self.first_uplink // 2, (len(free) - self.first_uplink) // 2
        nbytes = float(np.max(s.width) * np.max(s.times)) * self.chunk
        port = [on.overhead + nbytes * each for each in on.per_byte]
        fold = nbytes * on.fold_per_byte * bool(np.max(s.fold) != COPY)
        (a0,), (b0,) = (each.tolist() for each in s.ends(0, p))
        for t in range(begin, end, s.every):
            a, b = (a0 + s.turn(t) * s.march) % p, (b0 + s.turn(t) * s.hop) % p
            if a == b:
                continue
            na, nb = a // on.node, b // on.node
            pa, pb = (na // on.pod, nb // on.pod) if on.pod else (0, 0)
            level = (na != nb) + (pa != pb)
            start = time[a]
            head = tail = start + on.overhead
            nic, up = nbytes * on.nic_per_byte * (level > 0), nbytes * on.uplink_per_byte * (level > 1)
            way = [(na, nic), (2 * nodes + pa, up), (2 * nodes + pods + pb, up), (nodes + nb, nic)]
            for link, busy in way:
                if busy:
                    head = max(head, free[link])
                    free[link] = head + busy
                    tail = max(tail, free[link])
            ready = max(head + on.latency[level], time[b])
            time[b] = max(time[b], ready + port[level] + fold, tail + on.latency[level] + on.overhead)
            time[a] = max(time[a], start + port[level])
            self.stepped += 1

    def _batch(self, streams: list[Stream], t: int) -> _Batch:
        moving = any(s.march or s.hop for s in streams)
        key = (tuple(map(id, streams)), t if moving else -1)
        if moving:
            return self._make(streams, t)
        if key not in self._batches:
            self._batches = {key: self._make(streams, t)}
        return self._batches[key]

    def _make(self, streams: list[Stream], t: int) -> _Batch:
        sources, dests, sizes, folds = [], [], [], []
        for s in streams:
            source, dest = s.ends(s.turn(t), self.size)
            nbytes = np.broadcast_to(np.multiply(s.width, s.times) * self.chunk, source.shape)
            fold = np.broadcast_to(np.asarray(s.fold) != COPY, source.shape)
            if self.period < self.size:
                step = int((dest[0] - source[0]) % self.size)
                source = np.arange(self.period)
                dest = (source + step) % self.size
                nbytes, fold = nbytes[:1].repeat(self.period), fold[:1].repeat(self.period)
            sources.append(source)
            dests.append(dest)
            sizes.append(nbytes)
            folds.append(fold * nbytes)
        source, dest = np.concatenate(sources), np.concatenate(dests)
        nbytes, folded = np.concatenate(sizes), np.concatenate(folds)
        apart = source != dest
        source, dest, nbytes, folded = source[apart], dest[apart], nbytes[apart], folded[apart]
        if len(streams) > 1:
            source, dest, nbytes, folded = _merged(source, dest, nbytes, folded, self.size)
        return self._ready(source, dest, nbytes, folded)

    def _ready(self, source: Array, dest: Array, nbytes: Array, folded: Array) -> _Batch:
        on = self.on
        level = on.level(source, dest)
        busy = on.overhead + nbytes * np.asarray(on.per_byte)[level]
        offset, senders, send_end = _queue(source, busy)
        home = dest % self.period
        links = []
        nodes = self.first_uplink // 2
        for least, rate, ends, first in (
            (1, on.nic_per_byte, (source, home), 0),
            (2, on.uplink_per_byte, (source, home), self.first_uplink),
        ):
            far = np.flatnonzero(level >= least)
            if not rate or not far.size:
                continue
            group = on.node if least == 1 else on.node * on.pod
            half = nodes if least == 1 else (len(self.free) - self.first_uplink) // 2
            for side in (0, 1):
                link = first + side * half + ends[side][far] // group
                line = _Line(link, ends[side][far]) if _repeats(link) else None
                links.append((side, least, far, link, nbytes[far] * rate, line))
        links.sort(
            key=lambda item: (item[0], item[1] if item[0] == 0 else -item[1])
        )  # out: NIC first; in: last
        return _Batch(
            source, home, nbytes, level, busy, offset, send_end, senders,
            busy + folded * on.fold_per_byte, _Line(home, home) if _repeats(home) else None,
            [(far, link, occupied, line) for _, _, far, link, occupied, line in links],
            np.asarray(on.latency)[level], np.flatnonzero(np.bincount(np.concatenate([source, home]))),
        )  # fmt: skip

    def _step(self, b: _Batch, t: int) -> None:
        begin = self.time[b.source] + b.offset
        head = begin + self.on.overhead
        tail = head.copy()
        for far, link, busy, line in b.links:
            if line is None:
                start = np.maximum(head[far], self.free[link])
                self.free[link] = start + busy
            else:
                start = line.serve(head[far], busy, self.free)
            head[far] = start
            tail[far] = np.maximum(tail[far], start + busy)
        head = head + b.latency
        tail = tail + b.latency + self.on.overhead
        ready = np.maximum(head, self.time[b.dest])
        if b.by_dest is None:
            end = np.maximum(ready + b.receive, tail)
        else:
            end = np.maximum(b.by_dest.serve(ready, b.receive, None) + b.receive, tail)
        new = self.time.copy()
        new[b.senders] = np.maximum(new[b.senders], self.time[b.senders] + b.send_end)
        if b.by_dest is None:
            new[b.dest] = np.maximum(new[b.dest], end)
        else:
            np.maximum.at(new, b.dest, end)
        if self.trace:
            self._note(b, t, begin, end, new)
        self.time = new

    def _note(self, b: _Batch, t: int, begin: Array, end: Array, new: Array) -> None:
        rows = zip(
            b.source.tolist(), b.dest.tolist(), b.nbytes.tolist(), begin.tolist(), end.tolist(), strict=True
        )
        self.messages += [(t, *row) for row in rows]
        cause = np.arange(self.size)
        decides = end >= new[b.dest]
        cause[b.dest[decides]] = b.source[decides]
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


def stretches(schedule: Schedule) -> list[tuple[int, int, list[Stream]]]:
    """(begin, end, streams): iterations in which the same streams are active, every time."""
    cuts = {0, schedule.iterations}
    for s in schedule.streams:
        if not s.active:
            continue
        if s.every == 1 or s.active == 1:
            cuts |= {s.begin, s.begin + (s.active - 1) * s.every + 1}
        else:
            for t in range(s.begin, s.end, s.every):
                cuts |= {t, t + 1}
    edges = sorted(cuts)
    starts: dict[int, list[tuple[int, Stream]]] = {}
    for i, s in enumerate(schedule.streams):
        if s.active:
            starts.setdefault(s.begin, []).append((i, s))
    now: list[tuple[int, Stream]] = []
    found = []
    for begin, end in pairwise(edges):
        now = [(i, s) for i, s in now if s.begin + (s.active - 1) * s.every >= begin]
        now = sorted(now + starts.get(begin, []), key=lambda pair: pair[0])
        active = [s for _, s in now if s.turn(begin) >= 0]
        if active:
            found.append((begin, end, active))
    return found


def loads(schedule: Schedule, on: Machine, nbytes: float) -> dict[str, tuple[float, float]]:
    """{kind of link: (bytes on the busiest one, going out, and on all)}."""
    chunk = nbytes / schedule.chunks
    nodes = -(-schedule.size // on.node)
    totals = {"rank": np.zeros(schedule.size), "nic": np.zeros(nodes)}
    if on.pod:
        totals["uplink"] = np.zeros(-(-nodes // on.pod))
    for s in schedule.streams:
        moving = s.march or s.hop
        size = np.broadcast_to(np.multiply(s.width, s.times) * chunk, s.rows)
        turns = range(s.active) if moving and s.rows < 64 else range(min(1, s.active))
        repeat = s.active / max(1, len(turns))
        for k in turns:
            source, dest = s.ends(k, schedule.size)
            level = on.level(source, dest)
            apart = source != dest
            np.add.at(totals["rank"], source[apart], size[apart] * repeat)
            far = level > 0
            np.add.at(totals["nic"], source[far] // on.node, size[far] * repeat)
            if on.pod:
                far = level > 1
                np.add.at(totals["uplink"], source[far] // on.node // on.pod, size[far] * repeat)
    return {kind: (float(x.max(initial=0)), float(x.sum())) for kind, x in totals.items()}


def _symmetry(schedule: Schedule, on: Machine) -> int:
    """A number of ranks by which the whole schedule and machine can be turned without a change; or size."""
    period = on.node * max(1, on.pod)
    if schedule.size % period or schedule.size <= 2 * period:
        return schedule.size
    if not all(_step_around(s, schedule.size) for s in schedule.streams):
        return schedule.size
    if len({s.begin for s in schedule.streams if s.hop}) > 1:
        return schedule.size
    return period


def _step_around(s: Stream, p: int) -> int:
    """By how many ranks (p: none) all ranks in order give further at first, if everybody does alike; or 0."""
    if s.rows != p or s.march or np.ndim(s.width) or np.ndim(s.times) or np.ndim(s.fold):
        return 0
    source, dest = s.ends(0, p)
    step = (dest - source) % p
    return 0 if np.ptp(step) or np.ptp((source - np.arange(p)) % p) else int(step[0]) or p


def _by_sender(s: Stream, p: int) -> Stream:
    """The same messages, rows in the order of the senders, where all ranks send in every iteration."""
    if not s.march or (step := _step_around(s._replace(march=0), p)) == 0:
        return s
    r = np.arange(p)
    return s._replace(source=r, dest=(r + step) % p, hop=s.hop - s.march, march=0)


def _around(schedule: Schedule, on: Machine, nbytes: float) -> Array | None:
    """Finish of every rank, if all streams go once around the ring and hops outlast every port and link."""
    p, chunk = schedule.size, nbytes / schedule.chunks
    if p < 3 or on.overhead < 0:
        return None
    total, hops, phases = 0, [], []
    busiest = 0.0
    for s in sorted(schedule.streams, key=lambda s: s.begin):
        one_way = s.rows == p and not (np.ndim(s.width) or np.ndim(s.times) or np.ndim(s.fold))
        if not one_way or s.every != 1 or s.hop or s.march or s.begin != total:
            return None
        source, dest = s.ends(0, p)
        if ((dest - source) % p != 1).any():
            return None
        size = float(s.width * s.times * chunk)
        order = np.argsort(source)
        level = on.level(source, dest)[order]
        if on.node > 1 and p % on.node == 1 and p <= on.node + 1:
            return None
        port = on.overhead + size * np.asarray(on.per_byte)[level]
        fold = size * on.fold_per_byte * (s.fold != COPY)
        nic = np.where(level > 0, size * on.nic_per_byte, 0.0)
        up = np.where(level > 1, size * on.uplink_per_byte, 0.0)
        latency = np.asarray(on.latency)[level]
        hop = np.maximum(on.overhead + latency + port + fold, 2 * on.overhead + latency + np.maximum(nic, up))
        busiest = max(busiest, float((port + fold).max()), float(nic.max()), float(up.max()))
        hops.append(hop)
        phases.append(s.active)
        total += s.active
    if not hops or min(float(h.min()) for h in hops) < busiest:
        return None
    finish = np.zeros(p)
    back = 0
    for hop, n in reversed(list(zip(hops, phases, strict=True))):
        finish += _last_hops(hop, back, n)
        back += n
    return finish


def _last_hops(hop: Array, back: int, n: int) -> Array:
    """For each rank r the sum of hop[r - 1 - back], ..., n of them, around the circle."""
    p = hop.size
    laps, rest = divmod(n, p)
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([hop, hop]))])
    high = (np.arange(p) - back) % p + p
    return np.asarray(laps * hop.sum() + sums[high] - sums[high - rest])


def _merged(source: Array, dest: Array, nbytes: Array, folded: Array, size: int) -> tuple[Array, ...]:
    """What one rank gives another in one iteration is one message."""
    pair = source * size + dest
    line = np.sort(pair)  # far faster than what also says where
    if (line[1:] != line[:-1]).all():
        return source, dest, nbytes, folded
    _, index, inverse = np.unique(pair, return_index=True, return_inverse=True)
    order = np.argsort(index, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    where = place[inverse]
    keep = index[order]
    return (
        source[keep], dest[keep],
        np.bincount(where, nbytes, order.size), np.bincount(where, folded, order.size),
    )  # fmt: skip


def _repeats(key: Array) -> bool:
    return bool(key.size and np.bincount(key).max() > 1)


def _queue(key: Array, busy: Array) -> tuple[Array, Array, Array]:
    """(offset of each item behind those of the same key before it, keys, all that each key has to do)."""
    if not _repeats(key):
        return np.zeros(key.size), key, busy
    order = np.argsort(key, kind="stable")
    line = key[order]
    first = np.flatnonzero(np.concatenate([[True], line[1:] != line[:-1]]))
    sums = np.cumsum(busy[order])
    before = sums - busy[order]
    offset = np.empty(key.size)
    offset[order] = before - np.repeat(before[first], np.diff(np.append(first, key.size)))
    return offset, line[first], np.add.reduceat(busy[order], first)


def _serve(key: Array, ready: Array, busy: Array, free: Array | None, order: Array) -> Array:
    """When servers come to their customers: each key serves one after the other, in the order of arrival.

    Args:
        free: when each server is free; is updated. None: all are.
        order: who comes first of those that come together.
    """
    line = order[np.lexsort((np.round(ready[order] / _SAME), key[order]))]
    k, r, b = key[line], ready[line], busy[line]
    first = np.concatenate([[True], k[1:] != k[:-1]])
    if free is not None:
        r = np.where(first, np.maximum(r, free[k]), r)
    group = np.cumsum(first) - 1
    before = np.cumsum(b) - b
    before -= before[first][group]
    slack = r - before
    lift = (slack.max() - slack.min() + 1.0) if slack.size else 1.0
    start = np.maximum.accumulate(slack + group * lift) - group * lift + before
    start = np.maximum(start, r)
    out: Array = np.empty_like(start)
    out[line] = start
    if free is not None:
        last = np.concatenate([first[1:], [True]])
        free[k[last]] = start[last] + b[last]
    return out
