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
where all give to the one d further on and d moves, where chunks follow each other down a chain. What is left
is computed map by map (max_plus_time.py); where all clocks advance alike the rest is one multiplication.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...core.types import NpArray
from ..registry import build, cut, parameters
from ..stream import Schedule, Stream
from .machine_model import Machine
from .max_plus_powers import follow, ways
from .max_plus_time import Clock, phases


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
        nbytes: of x for all_reduce, broadcast, reduce and scan; of one block for the other operations.
        trace: keep every message, and find the critical path. For small cases only.
    """
    on = on.running(schedule.name)
    clock = Clock(schedule, on, nbytes / schedule.chunks, trace)
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


def _run(clock: Clock) -> None:
    """Move the clock over the whole schedule."""
    for streams in phases(clock.schedule):
        if clock.trace or not any(way(clock, streams) for way in ways):
            clock.stepwise(streams)


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
    p, found, alike = schedule.size, {}, []
    for streams in phases(schedule):
        alike += [(streams[0], len(streams))] if follow(streams) else [(s, 1) for s in streams]
    for name, unit, _ in [("rank", 1, 0.0), *clock.on.links()]:
        total = np.zeros(-(-p // unit))
        for s, times in alike:
            size = np.multiply(s.width, s.count) * (times * nbytes / schedule.chunks)
            way = clock.shift(s)
            leave = None if way is None else _leave_shifted(way, s.active, unit, p)
            if leave is None:
                _leave(s, unit, size, total, p)
            else:
                total[1:-1] += size * leave[1]
                total[[0, -1]] += size * leave[0], size * leave[2]
        found[name] = float(total.max(initial=0)), float(total.sum())
    return found


def _leave_shifted(way: tuple[int, int], active: int, unit: int, p: int) -> tuple[int, int, int] | None:
    """How many messages leave the first unit, each in the middle, the last one; None: these are not alike.

    All give to the one d further on: of each of several units min(d, its ranks) leave it.
    """
    d = (way[0] + np.arange(active if way[1] else 1) * way[1]) % p
    near = np.minimum(d, p - d)
    if p < unit + int(near.max()):
        return None
    times = 1 if way[1] else active
    full = times * int(np.minimum(near, unit).sum())
    return full, full, times * int(np.minimum(near, (p - 1) % unit + 1).sum())


def _leave(s: Stream, unit: int, size: float, total: NpArray, p: int) -> None:
    """Message by message."""
    for source, dest, sent in s.traffic(size, p):
        source, away = source // unit, source // unit != dest // unit
        here = np.bincount(source[away], sent[away])
        total[: here.size] += here
