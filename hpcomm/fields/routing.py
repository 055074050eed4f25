"""Routes of halo exchanges and redistributions: one rank's part of who sends what to whom. Pure.

Pieces are regions in global indices; both ends of a message list its pieces in the same order, so that a
message needs no description.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from .._lazy import np
from ..core.partition import Box, Partition, Points, Shape, Widths, integers
from ..errors import LayoutError

Width = int | Sequence[int | Sequence[int]]
Region = Box | Any  # a Box, or an ascending array of global indices of the first axis


class Piece(NamedTuple):
    """What travels between this rank and peer; here: the region in this rank's own global indices.

    sum: it is a summand, to be added to what is there.
    """

    peer: int
    here: Region
    sum: bool = False


class Route(NamedTuple):
    """One rank's part of an exchange."""

    sends: list[Piece]
    receives: list[Piece]


def rings(periodic: bool | Iterable[int], ndim: int) -> tuple[int, ...]:
    """Array axes that close to rings, counted from the first; True: all of them, False: none."""
    if isinstance(periodic, bool):
        return tuple(range(ndim)) if periodic else ()
    if any(isinstance(axis, bool) for axis in (periodic if hasattr(periodic, "__iter__") else ())):
        raise LayoutError(f"periodic is {periodic}", hint="numbers of array axes, True for all or False")
    axes = integers(periodic, "periodic")
    if any(not -ndim <= axis < ndim for axis in axes):
        raise LayoutError(f"periodic is {list(axes)}, there are {ndim} axes", hint="numbers of array axes")
    return tuple(axis % ndim for axis in axes)


# -- halos ----------------------------------------------------------------------------------------------
def halo_width(width: Width, ndim: int) -> Widths:
    """(before, after) for every axis, from one number, one per axis, or a pair per axis."""
    each: Any = (width,) * ndim if hasattr(width, "__index__") else width
    sides = [integers(w, "the halo") for w in (each if hasattr(each, "__iter__") else (each,))]
    pairs: list[Any] = [side * 2 if len(side) == 1 else side for side in sides]
    if len(pairs) != ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        hint = "one number, one per axis, or (before, after)"
        raise LayoutError(f"halo width {width} does not fit {ndim} axes", hint=hint)
    return tuple(pairs)


def halo(
    partition: Partition | Points,
    rank: int,
    width: Width = 0,
    periodic: Iterable[int] = (),
    corners: bool = True,
) -> Route:
    """What rank sends and receives so that its box, grown by width, holds the values of the whole.

    A piece received lies in the grown box; along periodic axes its indices may be below 0 or past the
    end. Widths may exceed the boxes: pieces then come from further away, or several times from the same
    rank. For Points: the values at its ghosts.

    Args:
        width: see `halo_width`.
        periodic: array axes that close to a ring.
        corners: whether pieces that lie aside along several axes come too.

    Cost: time in the number of neighbours.
    """
    if isinstance(partition, Points):
        return _ghosts(partition, rank)
    widths = halo_width(width, partition.ndim)
    closed = rings(periodic, partition.ndim)
    here = partition.cell(rank)
    axes = range(partition.ndim)
    mine = [_segments(partition, a, here[a], widths[a], a in closed) for a in axes]
    theirs = [
        [
            (there, first, last, shift)
            for there in _reaching(partition, a, here[a], widths[a], a in closed)
            for (source, first, last, shift) in _segments(partition, a, there, widths[a], a in closed)
            if source == here[a]
        ]
        for a in axes
    ]
    receives = [
        Piece(_moved_to(partition, rank, cell), Box(starts, stops))
        for cell, starts, stops, shifts in _combined(mine)
        if _wanted(cell, here, shifts, corners)
    ]
    sends = [
        (_moved_to(partition, rank, cell), Box(starts, stops), shifts)
        for cell, starts, stops, shifts in _combined(theirs)
        if _wanted(here, cell, shifts, corners)
    ]
    sends.sort(key=lambda s: (s[0], s[1].start, s[1].stop))
    receives.sort(key=lambda p: (p.peer, p.here.start, p.here.stop))
    return Route(
        [Piece(peer, box.moved([-d for d in shifts])) for peer, box, shifts in sends],
        receives,
    )


def _segments(
    partition: Partition, axis: int, part: int, width: tuple[int, int], ring: bool
) -> list[tuple[int, int, int, int]]:
    """The parts that the grown interval of one part meets: (part, first, last, shift).

    first and last are global indices that may lie outside the axis; what is there belongs to index - shift.
    """
    edges, n = partition.edges[axis], partition.shape[axis]
    if edges[part] == edges[part + 1]:
        return []
    low, high = edges[part] - width[0], edges[part + 1] + width[1]
    found = []
    for image in range(low // n, (high - 1) // n + 1) if ring and n else (0,):
        shift = image * n
        begin = max(bisect_right(edges, low - shift) - 1, 0)
        for source in range(begin, bisect_left(edges, high - shift, 0, len(edges) - 1)):
            first, last = max(edges[source] + shift, low), min(edges[source + 1] + shift, high)
            if first < last:
                found.append((source, first, last, shift))
    return found


def _reaching(partition: Partition, axis: int, part: int, width: tuple[int, int], ring: bool) -> list[int]:
    """The parts whose grown intervals meet this part: those that it meets, grown as far the other way."""
    met = _segments(partition, axis, part, (width[1], width[0]), ring)
    return sorted({source for source, *_ in met})


def _combined(axes: list[list[tuple[int, int, int, int]]]) -> Iterator[tuple[Shape, Shape, Shape, Shape]]:
    for segments in product(*axes):
        if segments:
            parts, firsts, lasts, shifts = zip(*segments, strict=True)
            yield parts, firsts, lasts, shifts


def _wanted(source: Shape, target: Shape, shifts: Shape, corners: bool) -> bool:
    """Whether a segment lies outside the target's own box; without corners along one axis only."""
    aside = sum(s != t or shift != 0 for s, t, shift in zip(source, target, shifts, strict=True))
    return aside > 0 and (corners or aside == 1)


def _moved_to(partition: Partition, rank: int, cell: Shape) -> int:
    """The rank of cell with the same copy, and the same summand, as rank."""
    return rank + partition.holders(cell)[0] - partition.holders(partition.cell(rank))[0]


def _ghosts(points: Points, rank: int) -> Route:
    wanted = np.unique(points.ghosts[rank])
    sources = points.owners(wanted)
    receives = [Piece(int(peer), wanted[sources == peer]) for peer in np.unique(sources)]
    sends = []
    for peer, ghosts in enumerate(points.ghosts):
        theirs = np.unique(ghosts)
        share = theirs[points.owners(theirs) == rank]
        if share.size:
            sends.append(Piece(peer, share))
    return Route(sends, receives)


# -- from one partition to another ------------------------------------------------------------------------
def redistribute(
    source: Partition | Points,
    target: Partition | Points,
    rank: int,
    source_ranks: Sequence[int] | None = None,
    target_ranks: Sequence[int] | None = None,
) -> Route:
    """What rank sends and receives to bring an array from one partition into another.

    Every element goes once to every rank that is to hold it, straight from one that does: from the
    receiver itself where it can. Of a partial source all summands go, to be added (Piece.sum); of a
    partial target the first summand receives, and the others hold zeros.

    Args:
        rank: in a numbering common to both.
        source_ranks, target_ranks: the common number of each rank of the partition; default 0, 1, 2, ...
    """
    if source.shape != target.shape:
        raise LayoutError(
            f"the source has shape {source.shape}, the target {target.shape}",
            hint="both partitions are of one and the same whole",
        )
    origins = _numbering(source, source_ranks)
    tos = _numbering(target, target_ranks)
    if isinstance(source, Points) or isinstance(target, Points):
        return _between_points(_as_points(source), _as_points(target), rank, origins, tos)
    return _between_boxes(source, target, rank, origins, tos)


def _numbering(partition: Partition | Points, ranks: Sequence[int] | None) -> list[int]:
    found = list(range(partition.size)) if ranks is None else [int(r) for r in ranks]
    if len(found) != partition.size or len(set(found)) != len(found):
        raise LayoutError(
            f"ranks {found} are not the {partition.size} ranks of the partition {partition}",
            hint="one different common rank for each rank of the partition",
        )
    return found


def _between_boxes(
    source: Partition, target: Partition, rank: int, origins: list[int], tos: list[int]
) -> Route:
    sends, receives = [], []
    summing = source.summands > 1
    if rank in tos and target.summand(tos.index(rank)) == 0:
        for cell, common in source.meeting(target.box(tos.index(rank))):
            receives += [
                Piece(_holder(source, origins, cell, summand, rank), common, summing)
                for summand in range(source.summands)
            ]
    if rank in origins:
        me = origins.index(rank)
        mine, summand = source.cell(me), source.summand(me)
        for cell, common in target.meeting(source.box(me)):
            for holder in target.holders(cell):
                peer = tos[holder]
                if _holder(source, origins, mine, summand, peer) == rank:
                    sends.append(Piece(peer, common, summing))
    sends.sort(key=lambda p: (p.peer, p.here.start))
    receives.sort(key=lambda p: (p.peer, p.here.start))
    return Route(sends, receives)


def _holder(source: Partition, origins: list[int], cell: Shape, summand: int, receiver: int) -> int:
    """Which of those that hold cell gives it to receiver: itself, or else they take turns."""
    holders = [origins[h] for h in source.holders(cell, summand)]
    return receiver if receiver in holders else holders[receiver % len(holders)]


def _as_points(partition: Partition | Points) -> Points:
    if isinstance(partition, Points):
        return partition
    if partition.size != math.prod(partition.grid[:1]):
        raise LayoutError(
            f"points cannot be exchanged with the partition {partition}",
            hint="a partition of the first array axis only, without copies or partial sums",
        )
    boxes = [partition.box(r) for r in range(partition.size)]
    return Points(partition.shape, [np.arange(b.start[0], b.stop[0]) for b in boxes])


def _between_points(source: Points, target: Points, rank: int, origins: list[int], tos: list[int]) -> Route:
    sends, receives = [], []
    if rank in tos:
        wanted = np.sort(target.owned[tos.index(rank)])
        owners = source.owners(wanted)
        receives = [Piece(origins[int(r)], wanted[owners == r]) for r in np.unique(owners)]
    if rank in origins:
        held = np.sort(source.owned[origins.index(rank)])
        owners = target.owners(held)
        sends = [Piece(tos[int(r)], held[owners == r]) for r in np.unique(owners)]
    return Route(*(sorted(side, key=attrgetter("peer")) for side in (sends, receives)))


def held_shape(partition: Partition | Points, rank: int) -> Shape:
    """Shape of what rank owns."""
    if isinstance(partition, Points):
        return (len(partition.owned[rank]), *partition.shape[1:])
    return partition.box(rank).shape
