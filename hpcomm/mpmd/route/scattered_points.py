"""Directory for points that lie in hardly any runs: one number per point, nothing sorted.

    giver ──number in the chunk──> home ──"my k-th that came to you goes to s"──> giver
    taker ──number in the chunk──> home ──"your k-th question: r has it"────────> taker

Both ends remember in which order they asked which home, so no answer repeats an index or a position. What
goes from r to s is in the order of homes, and for each home in the order in which s asked: both know it.
Homes look numbers up in a table of their own chunk, or where that had many holes, in a sorted list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..._lazy import MPI, NDArray
from ...core.types import AnyArray, Ints
from ...grids.geometry import places

Selection: TypeAlias = "slice | Ints"
T = TypeVar("T", bound=np.generic)
_PIECE = 1 << 16
_HOLES = 4  # numbers of a chunk for each one that is given, up to which a table is made


class Lack(NamedTuple):
    """What does not fit: how many indices, and the first of them (-1: none)."""

    missing: int  # wanted and given by nobody
    first_missing: int
    doubled: int  # given by two
    first_doubled: int


class Route(NamedTuple):
    """What this rank sends and receives: (rank, positions in its own array), ascending by rank.

    Positions are a slice where they are consecutive. The k-th position of a sender belongs to the k-th of
    its receiver.
    """

    gives: list[tuple[int, Selection]]
    takes: list[tuple[int, Selection]]
    lack: Lack


def plan(comm: MPI.Intracomm, gives: Ints, takes: Ints, chunk: int) -> Route:
    """The route, and what this rank's part of the directory lacks. Collective over comm.

    Index i is at home at rank i // chunk.
    """
    given, given_counts, gave, gave_counts = _ask(comm, gives, chunk)
    taken, taken_counts, took, took_counts = _ask(comm, takes, chunk)
    entry, doubled, first_doubled = _found(given, taken, chunk)
    missing, first_missing = 0, -1
    if entry.size and not doubled and int(entry.min()) < 0:
        lost = taken[entry < 0]
        missing, first_missing = len(lost), int(lost.min())
    first = comm.rank * chunk
    firsts = first + first_missing if missing else -1, first + first_doubled if doubled else -1
    lack = Lack(missing, firsts[0], doubled, firsts[1])
    rank = _kind(comm.size + 1)  # that number: nobody
    giver = np.append(np.repeat(np.arange(comm.size, dtype=rank), given_counts), rank.type(comm.size))[entry]
    answers = exchange(comm, giver, taken_counts, took_counts)
    taker = np.repeat(np.arange(comm.size, dtype=rank), taken_counts)
    counts, (entry, taker) = by_rank(giver, comm.size, entry, taker)
    nth: Any = (entry - np.repeat(_begins(given_counts), counts)).astype(given.dtype)
    arriving = told(comm, counts)
    nth, taker = (exchange(comm, x, counts, arriving) for x in (nth, taker))
    nth += np.repeat(_begins(gave_counts).astype(nth.dtype), arriving)
    to_taker = shares(nth, taker, comm.size)
    del given, taken, entry, giver, nth, taker  # each of some bytes for every point
    gives_to = [(r, _selection(gave[its])) for r, its in to_taker]
    takes_from = [(r, _selection(its)) for r, its in shares(took, answers, comm.size)]
    return Route(gives_to, takes_from, lack)


def _begins(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts


def by_rank(ranks: AnyArray, size: int, *columns: Any) -> tuple[Ints, list[Any]]:
    """How many rows go with each rank below size; columns with these rows, stably sorted by their ranks.

    In pieces that stay in the cache, so no list of all positions is made, of eight bytes for each row.
    """
    small = ranks.astype(_kind(size + 1), copy=False)  # of so few bits, numpy sorts by radix
    pieces = [slice(a, a + _PIECE) for a in range(0, len(small), _PIECE)]
    counts = np.zeros(size + 1, np.int64)
    for piece in pieces:
        counts += np.bincount(small[piece], minlength=size + 1)
    begins, made = _begins(counts), [np.empty(x.shape, x.dtype) for x in columns]
    for piece in pieces:
        order, mine = np.argsort(small[piece], kind="stable"), np.bincount(small[piece], minlength=size + 1)
        at = np.repeat(begins - _begins(mine), mine) + np.arange(len(order))
        for x, out in zip(columns, made, strict=True):
            out[at] = x[piece][order]
        begins += mine
    return counts[:size], [x[: len(x) - counts[size]] for x in made]


def shares(x: NDArray[T], ranks: AnyArray, size: int) -> Iterator[tuple[int, NDArray[T]]]:
    """The rows of x that go with each rank that has some, in their order."""
    counts, (ordered,) = by_rank(ranks, size, x)
    ends = np.cumsum(counts)
    return ((r, ordered[ends[r] - counts[r] : ends[r]]) for r in np.flatnonzero(counts).tolist())


def _kind(count: int) -> np.dtype[np.generic]:
    """The smallest type of numbers below count."""
    return np.min_scalar_type(count - 1)


def _ask(comm: MPI.Intracomm, points: Ints, chunk: int) -> tuple[Any, Ints, AnyArray, Ints]:
    """Send points to their homes, as numbers in the chunk: (what came, from whom how many, order, counts)."""
    home = np.floor_divide(points, chunk, out=np.empty(len(points), _kind(comm.size)), casting="unsafe")
    kind = np.uint32 if chunk <= 1 << 32 else np.int64
    inside = np.remainder(points, chunk, out=np.empty(len(points), kind), casting="unsafe")
    numbers = np.arange(len(points), dtype=kind)
    counts, (inside, numbers) = by_rank(home, comm.size, inside, numbers)
    arriving = told(comm, counts)
    return exchange(comm, inside, counts, arriving), arriving, numbers, counts


def told(comm: MPI.Intracomm, counts: Ints) -> Ints:
    """How many rows come from each rank, where counts go to each."""
    arriving = np.empty_like(counts)
    comm.Alltoall(counts, arriving)
    return arriving


def exchange(comm: MPI.Intracomm, x: NDArray[T], counts: Ints, arriving: Ints) -> NDArray[T]:
    """Send rows, ordered by their ranks; what came, in the order of its senders."""
    wide = int(np.prod(x.shape[1:], dtype=np.int64))
    got = np.empty((int(arriving.sum()), *x.shape[1:]), x.dtype)
    comm.Alltoallv([x, counts * wide], [got, arriving * wide])
    return got


def _found(given: AnyArray, taken: AnyArray, chunk: int) -> tuple[Ints, int, int]:
    """Where each of taken stands in given (-1: nowhere); how many are given twice, and the first of them."""
    entries = np.arange(len(given), dtype=np.int32 if len(given) < 1 << 31 else np.int64)
    if chunk <= _HOLES * len(given):
        table = np.full(chunk, -1, entries.dtype)
        table[given] = entries
        twice = given[table[given] != entries]
        return table[taken], len(twice), int(twice.min(initial=chunk))
    order = np.argsort(given, kind="stable")
    ascending = given[order]
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    at, there = places(ascending, taken)
    entry = np.append(entries[order], -1)[np.where(there, at, -1)]
    return entry, len(twice), int(twice.min(initial=chunk))


def _selection(some: AnyArray) -> Selection:
    positions = some.astype(np.int64)
    first, last = int(positions[0]), int(positions[-1])
    is_run = last - first == len(positions) - 1 and bool((np.diff(positions) == 1).all())
    return slice(first, last + 1) if is_run else positions
