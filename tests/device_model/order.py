"""Race detector: vector clocks over hosts, streams and MPI requests.

An actor is a host, a stream or an MPI request; its clock says how far it knows of each other's past. Two
accesses to the same bytes, one of them a write, by actors of which neither knew of the other's, are a race,
also where the data came out right (Lamport 1978; Fidge 1988).

While a program runs each process only notes who learnt of what; clocks come of it afterwards, of all
processes together. So what would have been a race without an edge is told of the same run.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcomm import device

__all__ = ["Access", "Actor", "Moment", "Noted", "Order", "Run", "Tie", "races"]

_FOLDERS = (*device.__path__, str(Path(__file__).parent))

Table = NDArray[np.intp]
Actor = tuple[int, str]  # process, name
Moment = tuple[Actor, int]  # an actor, and how many moments it had had then


class Access(NamedTuple):
    """Bytes low..high-1 of a memory, read or written at a moment; at: the line."""

    memory: str
    low: int
    high: int
    writes: bool
    moment: Moment
    at: str

    def __str__(self) -> str:
        process, name = self.moment[0]
        return f"{'write' if self.writes else 'read'} by {name} of process {process} at {self.at}"


class Tie(NamedTuple):
    """From this moment of its on, an actor knows what was known at another; by an edge, or put to work."""

    moment: Moment
    before: Moment
    edge: str


class Noted(NamedTuple):
    """What one process has noted, in the order in which it happened there."""

    ties: list[Tie]
    accesses: list[Access]


class Order:
    """The moments of one process' actors, what they learnt, and their accesses to memory."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.host: Actor = (process, "host")
        self.noted = Noted([], [])
        self._times: dict[Actor, int] = {self.host: 0}

    def actor(self, name: str) -> Actor:
        made = (self.process, name)
        self._times.setdefault(made, 0)
        return made

    def step(self, actor: Actor) -> Moment:
        """The next moment of actor, which is put to work by the host."""
        if actor is self.host:
            return self._next(actor)
        return self._learn(actor, (self.host, self._times[self.host]), "")

    def access(self, moment: Moment, memory: str, low: int, high: int, writes: bool) -> None:
        if high > low:
            self.noted.accesses.append(Access(memory, low, high, writes, moment, site()))

    def learn(self, actor: Actor, before: Moment, edge: str) -> None:
        """actor goes on only after a moment of another: an edge, which has a name."""
        self._learn(actor, before, edge)

    def _learn(self, actor: Actor, before: Moment, edge: str) -> Moment:
        moment = self._next(actor)
        self.noted.ties.append(Tie(moment, before, edge))
        return moment

    def _next(self, actor: Actor) -> Moment:
        self._times[actor] += 1
        return actor, self._times[actor]

    def forget(self) -> None:
        """Begin a new run: what was noted of this one is dropped."""
        self.noted = Noted([], [])


class Run:
    """What all processes noted of a run, together.

    edges: their names. A moment of before the run is no news to anybody.
    """

    def __init__(self, parts: list[Noted]) -> None:
        self.edges = sorted({tie.edge for part in parts for tie in part.ties} - {""})
        self._columns: dict[Actor, int] = {}
        self._times: dict[Actor, list[int]] = {}  # of an actor's ties
        self._rows_of: dict[Actor, list[int]] = {}  # of these, as far as they are laid out
        # Of each row after the first, which knows nothing: the actor's row before, the moment it learns of
        # (row, column, time), its own column and time, the edge.
        self._rows: list[tuple[int, int, int, int, int, int, str]] = []
        self._lay_out([part.ties for part in parts])
        accesses = [access for part in parts for access in part.accesses]
        self._pairs = _conflicts(accesses)
        self._accesses = accesses
        self._places = np.array([self._place(access.moment) for access in accesses], np.intp).reshape(-1, 3)

    def races(self, without: str = "") -> list[str]:
        """The pairs of accesses that nothing orders, each kind once.

        Args:
            without: the name of an edge that is taken for missing.
        """
        clocks = self._clocks(without)
        a, b = self._pairs
        unknown = ~(self._knows(clocks, a, b) | self._knows(clocks, b, a))
        found = zip(a[unknown].tolist(), b[unknown].tolist(), strict=True)
        return list(dict.fromkeys(f"{self._accesses[i]}, and {self._accesses[j]}" for i, j in found))

    def _knows(self, clocks: Table, a: Table, b: Table) -> Any:
        """Whether each of accesses a comes after the one of b."""
        _, column, time = self._places[b].T
        return clocks[self._places[a, 0], column] >= time

    def _lay_out(self, parts: list[list[Tie]]) -> None:
        """Rows for the ties of all processes, each after those that it builds on."""
        for tie in (tie for ties in parts for tie in ties):
            self._times.setdefault(tie.moment[0], []).append(tie.moment[1])
        left = [iter(ties) for ties in parts]
        heads = [next(ties, None) for ties in left]
        while any(heads):
            before = len(self._rows)
            for i, head in enumerate(heads):
                while head is not None and self._is_laid_out(head.before):
                    actor, time = head.moment
                    row, column, _ = self._place((actor, time - 1))
                    self._rows.append((row, *self._place(head.before), column, time, head.edge))
                    self._rows_of.setdefault(actor, []).append(len(self._rows))
                    head = heads[i] = next(left[i], None)
            if len(self._rows) == before:
                raise AssertionError("each process learnt of what another did only later")

    def _is_laid_out(self, moment: Moment) -> bool:
        return len(self._rows_of.get(moment[0], ())) >= self._ties_until(moment)

    def _ties_until(self, moment: Moment) -> int:
        return bisect_right(self._times.get(moment[0], ()), moment[1])

    def _place(self, moment: Moment) -> tuple[int, int, int]:
        """The row of what is known at a moment, but for itself: its actor's column, and its time."""
        actor, time = moment
        ties = self._ties_until(moment)
        row = self._rows_of[actor][ties - 1] if ties else 0
        return row, self._columns.setdefault(actor, len(self._columns)), time

    def _clocks(self, without: str) -> Table:
        table = np.zeros((len(self._rows) + 1, len(self._columns)), np.intp)
        for row, (last, before, column, moment, own, time, edge) in enumerate(self._rows, 1):
            clock = table[row]
            clock[:] = table[last]
            if not edge or edge != without:
                np.maximum(clock, table[before], out=clock)
                clock[column] = max(clock[column], moment)
            clock[own] = time
        return table


def races(parts: list[Noted]) -> list[str]:
    """The races in what all processes noted."""
    return Run(parts).races()


def _conflicts(accesses: list[Access]) -> tuple[Table, Table]:
    """The pairs of accesses to the same bytes by two actors of which one writes: their places in the list."""
    memories = {access.memory: i for i, access in enumerate(accesses)}
    actors = {access.moment[0]: i for i, access in enumerate(accesses)}
    numbers = [(memories[x.memory], x.low, x.high, x.writes, actors[x.moment[0]]) for x in accesses]
    memory, low, high, writes, actor = np.array(numbers, np.intp).reshape(-1, 5).T
    # Those of each memory by where they begin; with each go the ones after it that begin before its end.
    order = np.lexsort((low, memory))
    begin, end = ((memory * (high.max(initial=0) + 1) + x)[order] for x in (low, high))
    first = np.arange(1, order.size + 1)
    count = np.searchsorted(begin, end) - first
    a = np.repeat(first - 1, count)
    b = np.arange(a.size) - np.repeat(np.cumsum(count) - count - first, count)
    a, b = order[a], order[b]
    real = (writes[a] | writes[b]).astype(bool) & (actor[a] != actor[b])
    return a[real], b[real]


def site() -> str:
    """The innermost line outside of this folder and hpcomm.device: `pipeline.py:41`."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_FOLDERS) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
