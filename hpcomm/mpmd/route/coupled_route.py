"""Route between two distributions of the same global indices: who sends which points to whom.

    givers' points ─┐                      ┌─> giver r: "send these of yours to s"
                    ├─> directory: rank h ─┤
    takers' points ─┘   knows only indices └─> taker s: "receive these of yours from r"
                        h·chunk .. (h+1)·chunk

A distributed directory (as in Zoltan and Trilinos): each index has a home, by its number alone, where the
runs of consecutive indices that givers have and takers want are intersected. No rank holds a full index.
With R runs on p ranks: O(R/p log R/p) work and 7 words per matched run to send. Where most runs would be
of a few points each, they are asked for one by one instead (`scattered`): O(points/p), 3 words a point.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..._lazy import MPI
from ...core.types import Ints
from ...grids.geometry import repeated
from . import scattered_points
from .scattered_points import Lack as Lack
from .scattered_points import Route, by_rank, exchange, shares, told
from .scattered_points import Selection as Selection

_SHORT = 8  # mean length of runs up to which points are quicker one by one
_PIECE = 1 << 16


def runs_of(points: Ints) -> tuple[Ints, Ints, Ints]:
    """First index, length and position of each run of consecutive indices in points."""
    at = np.concatenate([np.zeros(min(1, len(points)), np.int64), *_begins(points)])
    return points[at], np.diff(np.append(at, points.size)), at


def _begins(points: Ints) -> Iterator[Ints]:
    """Where runs begin after the first, found in pieces that stay in the cache."""
    for a in range(0, len(points) - 1, _PIECE):
        yield np.flatnonzero(np.diff(points[a : a + _PIECE + 1]) != 1) + (a + 1)


def _runs(points: Ints) -> int:
    return min(1, len(points)) + sum(len(begins) for begins in _begins(points))


def split(start: Ints, length: Ints, at: Ints, chunk: int) -> tuple[Ints, ...]:
    """Cut runs where homes meet: (home, start, length, position) of each piece."""
    first = start // chunk
    pieces = (start + length - 1) // chunk - first + 1
    k, nth = repeated(pieces)
    home = first[k] + nth
    low = np.maximum(start[k], home * chunk)
    high = np.minimum(start[k] + length[k], (home + 1) * chunk)
    return home, low, high - low, at[k] + low - start[k]


def plan(comm: MPI.Intracomm, gives: Ints | None, takes: Ints | None) -> Route:
    """Match what is given with what is taken. Collective over comm.

    Args:
        gives, takes: global indices (any order) of this rank's points; None or empty: none.
    """
    mine = [np.ascontiguousarray(x if x is not None else (), np.int64) for x in (gives, takes)]
    top = np.array([max((int(x.max()) for x in mine if x.size), default=-1)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, top, MPI.MAX)
    chunk = max(1, -(-(int(top[0]) + 1) // comm.size))
    held = np.array([sum(len(x) for x in mine), sum(map(_runs, mine))], np.int64)
    comm.Allreduce(MPI.IN_PLACE, held, MPI.SUM)
    if held[0] < _SHORT * held[1]:
        made = scattered_points.plan(comm, mine[0], mine[1], chunk)
        return made._replace(lack=_total(comm, made.lack))
    given, taken = (_to_homes(comm, points, chunk) for points in mine)
    pieces, lack = _intersect(given, taken)
    to_giver, to_taker = pieces[:, (0, 2, 1, 4)], pieces[:, (2, 0, 3, 4)]
    return Route(_partners(comm, to_giver), _partners(comm, to_taker), _total(comm, lack))


def _to_homes(comm: MPI.Intracomm, points: Ints, chunk: int) -> Ints:
    """Runs at their homes: rows of (rank, start, length, position), sorted by start."""
    home, start, length, at = split(*runs_of(points), chunk)
    rows, counts = _shuffle(comm, home, np.stack([start, length, at], axis=1))
    rank = np.repeat(np.arange(comm.size), counts)
    order = np.argsort(rows[:, 0], kind="stable")
    return np.column_stack([rank, rows])[order]


def _shuffle(comm: MPI.Intracomm, dest: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Send each row to its rank: (rows that arrived, in the order of their senders, how many from each)."""
    counts, (ordered,) = by_rank(dest, comm.size, rows)
    arriving = told(comm, counts)
    return exchange(comm, ordered, counts, arriving), arriving


def _intersect(given: Ints, taken: Ints) -> tuple[Ints, Lack]:
    """Rows (giver, its position, taker, its position, length) in ascending order of indices."""
    begin, end = given[:, 1], given[:, 1] + given[:, 2]
    overlap = np.minimum(np.maximum.accumulate(end)[:-1], end[1:]) - begin[1:]
    doubled = np.flatnonzero(overlap > 0)
    first_doubled = int(begin[doubled[0] + 1]) if doubled.size else -1
    low, high = taken[:, 1], taken[:, 1] + taken[:, 2]
    from_, to = np.searchsorted(end, low, "right"), np.searchsorted(begin, high, "left")
    k, nth = repeated(np.maximum(to - from_, 0))
    i = from_[k] + nth
    first, last = np.maximum(begin[i], low[k]), np.minimum(end[i], high[k])
    length = last - first
    found = np.bincount(k, weights=length, minlength=len(taken)).astype(np.int64)
    lost, first_missing = np.flatnonzero(found < taken[:, 2]), -1
    if lost.size:  # where the pieces of the first run that lacks some leave the first gap
        of = k == lost[0]
        ends = np.append(low[lost[0]], last[of])
        first_missing = int(ends[ends < np.append(first[of], high[lost[0]])][0])
    pieces = np.column_stack(
        [given[i, 0], given[i, 3] + first - begin[i], taken[k, 0], taken[k, 3] + first - low[k], length]
    )
    missing = int((taken[:, 2] - found).sum()) if not doubled.size else 0
    return pieces, Lack(missing, first_missing if missing else -1, int(overlap[doubled].sum()), first_doubled)


def _partners(comm: MPI.Intracomm, rows: Ints) -> list[tuple[int, Selection]]:
    """From rows (this end's rank, other end's rank, position, length) at the homes to this end's lists.

    Homes are asked in ascending order and each answers in the order of its indices, which both ends get
    alike; so a stable sort by partner brings both into the same order.
    """
    got, _ = _shuffle(comm, rows[:, 0], rows[:, 1:])
    return [(r, positions(*its.T)) for r, its in shares(got[:, 1:], got[:, 0], comm.size)]


def positions(start: Ints, length: Ints) -> Selection:
    """The positions in runs, one behind the other; a slice where they are consecutive."""
    if np.array_equal(start[1:], start[:-1] + length[:-1]):
        return slice(int(start[0]), int(start[-1] + length[-1]))
    before = np.cumsum(length) - length
    where = np.repeat(start - before, length)
    where += np.arange(len(where))
    return where


def _total(comm: MPI.Intracomm, lack: Lack) -> Lack:
    sums, firsts = np.array([lack[::2], lack[1::2]], np.int64)
    comm.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
    comm.Allreduce(MPI.IN_PLACE, firsts.view(np.uint64), MPI.MIN)  # of which -1 is the largest
    return Lack(int(sums[0]), int(firsts[0]), int(sums[1]), int(firsts[1]))
