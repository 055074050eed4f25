"""Prover of schedules: a schedule is carried out on sets of contributions.

What a chunk holds is the set of ranks whose x went into it, and where in x it belongs. A contribution that
would count twice, a chunk sent before it is there, two messages into one chunk, or a wrong end are refused
with rank, iteration and chunk.

Exact sets cost size^2 * cells bits. Beyond a limit fingerprints of 8 bytes take their place: each (rank,
place) has as its weight one of the 2^63 odd numbers of 64 bits, and a chunk holds the sum of the weights of
all that went in. A wrong chunk, in which some contribution is missing or counts too often by an odd number,
has the right sum for at most one value of that one's weight: it passes with a probability of 2^-63. (If all
are off by multiples of 2^k: 2^(k-63).) The weights are well mixed, but fixed, so that proofs can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.checksum import mixed
from ..core.types import NpArray
from ..core.verbs import REDUCTIONS
from .interpret import ScheduleError, checked, interpret, place
from .stream import AFTER, BEFORE, COPY, Schedule

EXACT_BYTES = 16 << 20  # up to here sets, beyond it fingerprints


@dataclass(frozen=True)
class Proof:
    """What a schedule that is right costs, beside the lower bounds.

    rounds: iterations with messages; least_rounds: ceil(log2 p).
    sent, reduced: units of x on the busiest rank; least_sent, least_reduced: no algorithm needs less.
    exact: counted, not fingerprinted.
    """

    rounds: int
    least_rounds: int
    sent: float
    least_sent: float
    reduced: float
    least_reduced: float
    exact: bool


def prove(schedule: Schedule, exact: bool | None = None) -> Proof:
    """Carry the schedule out on sets of contributions.

    Args:
        exact: count contributions (True), compare fingerprints (False), or what memory allows (None).

    Raises:
        ScheduleError: it does not do what its verb says; names rank, iteration and chunk.
    """
    p = schedule.size
    flows = checked(schedule)
    if exact is None:
        exact = p * p * schedule.cells <= 8 * EXACT_BYTES
    state = Sets(schedule) if exact or schedule.verb == "barrier" else _Weights(schedule)
    interpret(schedule, state, flows)
    state.check_end()
    sent, reduced = _bounds(schedule)
    return Proof(
        schedule.rounds(),
        (p - 1).bit_length(),
        float(schedule.sent().max()),
        sent,
        float(schedule.reduced().max()),
        reduced,
        exact,
    )


def keeps_order(schedule: Schedule) -> bool:
    """Whether all reductions join neighbouring intervals of ranks, so that the operator need not commute."""
    if schedule.verb not in REDUCTIONS:
        return True
    try:
        interpret(schedule, _Intervals(schedule))
    except ScheduleError:
        return False
    return True


class _Cells:
    """What all states know: of which schedule they are, and how to say what is wrong."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.iteration = 0

    def fail(self, what: str, wrong: Any, cells: NpArray) -> None:
        """Raise if any entry of wrong is set."""
        if wrong.any():
            cell = int(np.broadcast_to(cells, wrong.shape)[wrong][0])
            raise ScheduleError(what, self.schedule, *place(self.schedule, cell, self.iteration))


def beginning(schedule: Schedule, rank: NpArray) -> NpArray:
    """Where in x each chunk of these ranks belongs at first; -1 if it holds nothing. Shape (ranks, cells).

    A rank begins with nothing but contributions of its own. In all_to_all, where x differs from receiver
    to receiver, the place is the chunk of what the receiver is to be given.
    """
    cells, rank = schedule.cells, rank[:, None]
    slot = np.arange(cells) // schedule.chunks
    there = {
        "broadcast": rank == schedule.root,
        "scatter": rank == schedule.root,
        "all_gather": slot == rank,
        "gather": slot == rank,
        "all_to_all": slot < schedule.size,
    }.get(schedule.verb, np.True_)
    return np.where(np.broadcast_to(there, (rank.size, cells)), np.arange(cells), -1)


def ending(schedule: Schedule, rank: NpArray) -> tuple[NpArray, NpArray, NpArray, NpArray]:
    """(wanted, low, high, place): which chunks of these ranks count at the end, the ranks low..high-1 whose
    contributions each must hold, and where in x it must belong. Of a shape that broadcasts to (ranks, cells).
    """
    p, c, root, rank = schedule.size, schedule.chunks, schedule.root, rank[:, None]
    place = np.arange(schedule.cells)[None, :]
    slot = place // c
    zero = np.zeros_like(slot)
    if schedule.verb == "all_to_all":  # block r of everybody's x
        return slot >= p, slot - p, slot - p + 1, rank * c + place % c
    table: dict[str, tuple[NpArray, NpArray, NpArray]] = {
        "all_reduce": (zero == 0, zero, zero + p),
        "barrier": (zero == 0, zero, zero + p),
        "reduce": (rank == root, zero, zero + p),
        "reduce_scatter": (slot == rank, zero, zero + p),
        "scan": (zero == 0, zero, rank + 1),
        "exscan": (rank > 0, zero, rank),
        "broadcast": (zero == 0, zero + root, zero + root + 1),
        "all_gather": (zero == 0, slot, slot + 1),
        "gather": (rank == root, slot, slot + 1),
        "scatter": (slot == rank, zero + root, zero + root + 1),
    }
    return (*table[schedule.verb], place)


class Sets(_Cells):
    """Exact: which ranks have contributed, one bit each (sets), and where in x a chunk belongs (place)."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        p, cells = schedule.size, schedule.cells
        place = beginning(schedule, np.arange(p))
        self.place = place.reshape(-1)
        own = np.zeros((p, (p + 63) // 64), np.uint64)
        own[np.arange(p), np.arange(p) // 64] = np.uint64(1) << (np.arange(p) % 64).astype(np.uint64)
        self.sets = np.repeat(own, cells, axis=0)
        self.sets[self.place < 0] = 0

    def read(self, cells: NpArray) -> tuple[NpArray, ...]:
        place = self.place[cells]
        self.fail("is sent, but has not arrived yet", place < 0, cells)
        return place, self.sets[cells]

    def put(self, cells: NpArray, read: tuple[NpArray, ...], how: int) -> None:
        place, sets = read
        if how != COPY:
            mine = self.sets[cells]
            self.fail("is reduced with another part of x, or with nothing", self.place[cells] != place, cells)
            if self.schedule.verb != "barrier":
                self.fail("a contribution would count twice", (mine & sets).any(-1), cells)
            sets = mine | sets
        self.sets[cells] = sets
        self.place[cells] = place

    def check_end(self) -> None:
        s = self.schedule
        self.iteration = s.iterations
        wanted, low, high, place = ending(s, np.arange(s.size))
        cell = np.arange(s.size * s.cells).reshape(s.size, s.cells)
        self.fail(
            "holds the wrong part of x at the end", wanted & (self.place.reshape(cell.shape) != place), cell
        )
        below = _below(s.size)
        sets = self.sets.reshape(s.size, s.cells, -1)
        right = below[high] & ~below[low]
        self.fail("lacks a contribution at the end", wanted & (right & ~sets).any(-1), cell)
        self.fail("holds a contribution too many at the end", wanted & (sets & ~right).any(-1), cell)


def _below(p: int) -> NpArray:
    """Row i: the set of ranks below i, for i up to p."""
    words = np.arange((p + 63) // 64) * 64
    bits = np.clip(np.arange(p + 1)[:, None] - words, 0, 64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    shift = np.clip(64 - bits, 0, 63).astype(np.uint64)
    return np.asarray(np.where(bits > 0, full >> shift, np.uint64(0)))


class _Weights(_Cells):
    """Fingerprints: the sum, modulo 2^64, of the weights of all that went in; 0 is nothing."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.sums = np.zeros(schedule.size * schedule.cells, np.uint64)  # untouched pages cost nothing
        for rank, cells in _blocks(schedule):
            place = beginning(schedule, rank)
            sums = _weight(rank[:, None], place)
            held = place >= 0
            self.sums[cells].reshape(held.shape)[held] = sums[held]

    def read(self, cells: NpArray) -> tuple[NpArray, ...]:
        found = self.sums[cells]
        self.fail("is sent, but has not arrived yet", found == 0, cells)
        return (found,)

    def put(self, cells: NpArray, read: tuple[NpArray, ...], how: int) -> None:
        if how == COPY:
            self.sums[cells] = read[0]
        else:
            self.sums[cells] += read[0]

    def check_end(self) -> None:
        s = self.schedule
        self.iteration = s.iterations
        below = _Totals(s.cells)
        for rank, cells in _blocks(s):
            wanted, low, high, place = ending(s, rank)
            if (high - low == 1).all():
                want = _weight(low, place)
            else:
                want = below.of(high[:, 0]) - below.of(low[:, 0])
            wrong = np.asarray(wanted & (self.sums[cells].reshape(rank.size, s.cells) != want))
            where = np.arange(cells.start, cells.stop).reshape(wrong.shape)
            self.fail("holds not what it should at the end", wrong, where)


class _Totals:
    """Sums of the weights of all ranks below some rank, for every chunk; asked for in rising order."""

    def __init__(self, cells: int) -> None:
        self.cells = np.arange(cells)
        self.known: dict[int, NpArray] = {0: np.zeros(cells, np.uint64)}

    def of(self, ranks: NpArray) -> NpArray:
        return (
            np.stack([self._total(int(r)) for r in ranks]) if ranks.size > 1 else self._total(int(ranks[0]))
        )

    def _total(self, rank: int) -> NpArray:
        if rank not in self.known:
            below = max(r for r in self.known if r < rank)
            total = self.known[below].copy()
            step = max(1, (1 << 18) // self.cells.size)
            for r in range(below, rank, step):
                some = np.arange(r, min(r + step, rank))
                total += _weight(some[:, None], self.cells).sum(axis=0, dtype=np.uint64)
            self.known = {0: self.known[0], rank: total}
        found: NpArray = self.known[rank]
        return found


def _blocks(schedule: Schedule) -> Iterator[tuple[NpArray, slice]]:
    """Ranks, a few at a time, and their cells: temporaries stay small."""
    step = max(1, (1 << 18) // max(1, schedule.cells))
    for r in range(0, schedule.size, step):
        end = min(r + step, schedule.size)
        yield np.arange(r, end), slice(r * schedule.cells, end * schedule.cells)


def _weight(rank: NpArray, place: NpArray) -> NpArray:
    """A well mixed odd 64-bit number for (rank, place)."""
    z = np.asarray(rank).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = z + (np.asarray(place).astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    return np.asarray(mixed(z) | np.uint64(1))


class _Intervals(_Cells):
    """For order: a chunk holds the ranks low..high-1, and reductions must join neighbours."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.low = np.repeat(np.arange(schedule.size), schedule.cells)
        self.high = self.low + 1

    def read(self, cells: NpArray) -> tuple[NpArray, ...]:
        return self.low[cells], self.high[cells]

    def put(self, cells: NpArray, read: tuple[NpArray, ...], how: int) -> None:
        low, high = read
        if how == AFTER:
            self.fail("would be reduced out of order", self.high[cells] != low, cells)
            low = self.low[cells]
        elif how == BEFORE:
            self.fail("would be reduced out of order", self.low[cells] != high, cells)
            high = self.high[cells]
        self.low[cells], self.high[cells] = low, high


def _bounds(schedule: Schedule) -> tuple[float, float]:
    """The least that some rank must send and reduce, in slots (for stacked verbs: in blocks)."""
    p = schedule.size
    part = (p - 1) / p
    least = {
        "all_reduce": (2 * part, part),
        "reduce_scatter": (p - 1.0, p - 1.0),
        "all_gather": (p - 1.0, 0.0),
        "all_to_all": (p - 1.0, 0.0),
        "broadcast": (min(1.0, p - 1.0), 0.0),
        "reduce": (min(1.0, p - 1.0), part),
        "scatter": (p - 1.0, 0.0),
        "gather": (min(1.0, p - 1.0), 0.0),
        "scan": (min(1.0, p - 1.0), min(1.0, p - 1.0)),
        "exscan": (min(1.0, p - 1.0), 0.0),
        "barrier": (0.0, 0.0),
    }
    return least[schedule.verb]
