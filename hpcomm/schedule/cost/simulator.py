"""Simulator: what a schedule costs on a machine, LogGP with ports and shared links, past 100,000 ranks.

A message of B bytes from rank a to rank b, in an iteration that a begins at time[a] and b at time[b]:

    sender's port     one message after the other, by rank of their receivers: overhead + B * per_byte[level]
    links             NIC of the node, uplink of the pod, and those of the receiver: all that passes one in an
                      iteration shares it evenly. So the tail leaves W after the head, W being what the
                      slowest needs for all that passes it: bytes * nic_per_byte (uplink_per_byte)
    latency[level]    level 0: same node, 1: same pod, 2: another one
    receiver's port   one after the other, by rank of their senders: overhead + B * per_byte, and
                      B * reduce_per_byte more if it is reduced; and each at least overhead after its tail

A rank goes on to the next iteration when all its messages of this one are sent, tails included, and received.
Sizes are real numbers: a chunk has bytes/chunks bytes. Nothing is random, and no link remembers the iteration
before.

So an iteration is a linear map in the algebra of (max, +), and its rows are known beforehand:

    time'[b] = max(time[b] + own[b],  time[a] + hop[a, b] for all messages into b)

Powers of such maps have closed forms, which are exact (max_plus_powers.py): where all go around circles,
where all give to the one d further on and d moves, where chunks follow each other down a chain. Rings and
chains of any length are known from the ranks at both ends (ring_cost.py). What is left is computed map by map
(max_plus_time.py); where all clocks advance alike the rest of it is one multiplication.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...core.types import NpArray
from ..registry import build, cut, parameters
from ..stream import Schedule, Stream
from .machine_model import Machine
from .max_plus_powers import short_ways, ways
from .max_plus_time import Clock, phases
from .ring_cost import few


@dataclass
class Simulation:
    """Result of a simulation.

    Attributes:
        nbytes: of x, or of one block (see simulate).
        on: the machine, with its values for this algorithm.
        seconds: from the common start to the end of the last rank.
        load: bytes by kind of link, "rank", "nic" and "uplink": sent by the busiest one, and by all.
        stepped, iterations: how many of the iterations were computed one by one.
        messages: with trace: (iteration, source, dest, bytes, begin, end) of every message.
        path: with trace: the critical path [(iteration, rank)]. Each entry waits for the one before.
    """

    schedule: Schedule
    on: Machine
    nbytes: float
    seconds: float
    load: dict[str, tuple[float, float]]
    stepped: int
    iterations: int
    messages: list[tuple[int, int, int, float, float, float]] = field(default_factory=list)
    path: list[tuple[int, int]] = field(default_factory=list)

    @cached_property
    def finish(self) -> NpArray:
        """When each rank has ended its messages, in seconds. Computed at the first use."""
        clock = Clock(self.schedule, self.on, self.nbytes / self.schedule.chunks, bool(self.messages))
        _run(clock)
        return clock.time


def simulate(schedule: Schedule, on: Machine, nbytes: float, trace: bool = False) -> Simulation:
    """Simulate a schedule.

    Args:
        nbytes: of x for all_reduce, broadcast, reduce and scan; of one block for the other verbs.
        trace: keep every message, and find the critical path. For small cases only.
    """
    on = on.running(schedule.name)
    chunk, ends = nbytes / schedule.chunks, 0 if trace else few(schedule, on)
    clock = Clock(schedule, on, chunk, trace, ends)
    if not _run(clock):
        clock = Clock(schedule, on, chunk, trace)
        _run(clock)
    seconds = float(clock.time.max(initial=0)) + on.base + on.copy_per_byte * nbytes * schedule.slots
    if on.cores and schedule.size > on.cores:
        seconds *= schedule.size / on.cores
    load = _loads(clock, schedule, nbytes)
    found = Simulation(schedule, on, nbytes, seconds, load, clock.stepped, schedule.iterations)
    if trace:
        found.messages, found.path = clock.messages, clock.critical()
        found.finish = clock.time
    return found


def _run(clock: Clock) -> bool:
    """Move the clock over the whole schedule; False: it follows few ranks, and these do not tell of all."""
    for streams in phases(clock.schedule):
        if clock.trace or not any(way(clock, streams) for way in (short_ways if clock.missing else ways)):
            if clock.missing:
                return False
            clock.stepwise(streams)
    return True


def predict(verb: str, algorithm: str, ranks: int, nbytes: float, on: Machine) -> Simulation:
    """Simulate an algorithm by its name, with the schedule of meant()."""
    return simulate(meant(verb, algorithm, ranks, nbytes, on), on, nbytes)


def meant(verb: str, algorithm: str, ranks: int, nbytes: float, on: Machine, root: int = 0) -> Schedule:
    """The schedule of an algorithm by its name, with as many chunks as the executor cuts nbytes into.

    Algorithms with a parameter `node` get the machine's ranks per node.
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
    return build(verb, cut(verb, algorithm, int(nbytes)), ranks, root)


def _loads(clock: Clock, schedule: Schedule, nbytes: float) -> dict[str, tuple[float, float]]:
    """{kind of link: (bytes that leave by the busiest one, by all together)}."""
    p, found = schedule.size, {}
    for name, unit, _ in [("rank", 1, 0.0), *clock.on.links()]:
        units = -(-p // unit)
        sizes = [np.multiply(s.width, s.count) * (nbytes / schedule.chunks) for s in schedule.streams]
        alike = [_leave_alike(clock.shift(s), s, unit, p) for s in schedule.streams]
        if units > 2 and all(a is not None for a in alike):
            ends = sum((size * np.array(a) for size, a in zip(sizes, alike, strict=True)), np.zeros(3))
            found[name] = float(ends.max()), float(ends @ (1, units - 2, 1))
            continue
        total = np.zeros(units)
        for s, size, a in zip(schedule.streams, sizes, alike, strict=True):
            if a is None:
                _leave(s, unit, size, total, p)
            else:
                total[1:-1] += size * a[1]
                total[[0, -1]] += size * a[0], size * a[2]
        found[name] = float(total.max(initial=0)), float(total.sum())
    return found


def _leave_alike(way: tuple[int, int] | None, s: Stream, unit: int, p: int) -> tuple[int, int, int] | None:
    """How many messages leave the first unit, each in the middle, the last one; None: these are not alike.

    A chain leaves each unit that it passes once.
    """
    if not s.active:
        return 0, 0, 0
    if way is not None:
        return _leave_shifted(way, s.active, unit, p)
    first, last = _line(s, p)
    low, high = min(first, last), max(first, last)
    final = (p - 1) // unit * unit  # the first rank of the last unit, which is a rank, a node or a pod
    if final < 2 * unit or not 0 <= low <= unit or not final - 1 <= high < p:
        return None
    return (int(low < unit), 1, 0) if first <= last else (0, 1, int(high >= final))


def _leave_shifted(way: tuple[int, int], active: int, unit: int, p: int) -> tuple[int, int, int] | None:
    """The same where all give to the one d further on: min(d, its ranks) leave each of several units."""
    d = (way[0] + np.arange(active if way[1] else 1) * way[1]) % p
    near = np.minimum(d, p - d)
    if p < unit + int(near.max()):
        return None
    times = 1 if way[1] else active
    full = times * int(np.minimum(near, unit).sum())
    return full, full, times * int(np.minimum(near, (p - 1) % unit + 1).sum())


def _line(s: Stream, p: int) -> tuple[int, int]:
    """The first and the last rank that gives, where each gives to a neighbour in turn; (-1, -1): no such."""
    if s.is_pass(p):
        return 0, p - 2
    if s.rows != 1 or s.source_step != s.dest_step or abs(s.source_step) != 1:
        return -1, -1
    first, step = int(np.atleast_1d(s.source)[0]), s.source_step
    is_next = int(np.atleast_1d(s.dest)[0]) == first + step
    return (first, first + (s.active - 1) * step) if is_next else (-1, -1)


def _leave(s: Stream, unit: int, size: float, total: NpArray, p: int) -> None:
    """Message by message."""
    for source, dest, sent in s.traffic(size, p):
        source, away = source // unit, source // unit != dest // unit
        here = np.bincount(source[away], sent[away])
        total[: here.size] += here
