"""What happened before what: vector clocks over hosts, streams and MPI requests, and the races they show.

An actor is a host, a stream or an MPI request; a clock says how far each actor's past is known. Two
accesses to the same bytes, one of them a write, by actors of which neither knew of the other's, are a race,
also where the data came out right (Lamport 1978; Fidge 1988).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

__all__ = ["Access", "Actor", "Clock", "Order", "races"]

Actor = tuple[int, str]  # process, name
Clock = dict[Actor, int]


@dataclass(frozen=True)
class Access:
    """Bytes low..high-1 of a memory, read or written by an actor at a time of its own; at: the line."""

    memory: str
    low: int
    high: int
    writes: bool
    actor: Actor
    time: int
    clock: Clock
    at: str

    def __str__(self) -> str:
        return (
            f"{'write' if self.writes else 'read'} by {self.actor[1]} of process {self.actor[0]} at {self.at}"
        )


class Order:
    """The clocks of one process, the accesses noted, and the edges between actors by name.

    without: the name of an edge that carries no knowledge, so that its absence can be tried out while
    everything is still carried out in order.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.host: Actor = (process, "host")
        self.clocks: dict[Actor, Clock] = {self.host: {}}
        self.accesses: list[Access] = []
        self.edges: set[str] = set()
        self.without: str | None = None

    def actor(self, name: str) -> Actor:
        made = (self.process, name)
        self.clocks.setdefault(made, {})
        return made

    def step(self, actor: Actor) -> Clock:
        """The next moment of actor, which is put to work by the host; its clock then."""
        clock = self.clocks[actor]
        if actor is not self.host:
            _join(clock, self.clocks[self.host])
        clock[actor] = clock.get(actor, 0) + 1
        return dict(clock)

    def access(self, actor: Actor, clock: Clock, memory: str, low: int, high: int, writes: bool) -> None:
        if high > low:
            self.accesses.append(Access(memory, low, high, writes, actor, clock[actor], clock, site()))

    def learn(self, actor: Actor, clock: Clock, edge: str) -> None:
        """actor goes on only after what clock stands for: an edge."""
        self.edges.add(edge)
        if edge != self.without:
            _join(self.clocks[actor], clock)

    def forget(self) -> None:
        """Begin a new run: the accesses and edges of this one are dropped."""
        self.accesses.clear()
        self.edges.clear()


def races(accesses: list[Access]) -> list[str]:
    """The pairs of accesses that nothing orders, each kind once."""
    by_memory: dict[str, list[Access]] = {}
    for access in accesses:
        by_memory.setdefault(access.memory, []).append(access)
    found: dict[str, None] = {}
    for each in by_memory.values():
        each.sort(key=lambda access: access.low)
        for i, a in enumerate(each):
            for b in each[i + 1 :]:
                if b.low >= a.high:
                    break
                if (a.writes or b.writes) and not (_knows(a, b) or _knows(b, a)):
                    found[f"{a}, and {b}"] = None
    return list(found)


def site() -> str:
    """The innermost line outside of this folder: `pipeline.py:41`."""
    frame = sys._getframe(1)
    while "/hpcomm/device/" in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _knows(a: Access, b: Access) -> bool:
    """Whether a comes after b."""
    return a.clock.get(b.actor, 0) >= b.time


def _join(clock: Clock, other: Clock) -> None:
    for actor, time in other.items():
        if time > clock.get(actor, 0):
            clock[actor] = time
