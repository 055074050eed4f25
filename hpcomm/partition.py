"""Who owns which part of an index space, and who sends what to whom: thought only, no communication.

    Partition((6, 8), {"p": 3}, ("p", None))        Partition((6, 8), {"y": 2, "x": 2}, ("y", "x"))

    +--------+                                      +----+----+
    |   0    |                                      | 0  | 1  |
    +--------+                                      |    |    |
    |   1    |                                      +----+----+
    +--------+                                      | 2  | 3  |
    |   2    |                                      |    |    |
    +--------+                                      +----+----+

A Partition cuts an n-dimensional index space into boxes over the axes of a mesh. Mesh axes that cut no
array axis hold copies ("replicated"), or summands ("partial"): the value is the sum over those ranks.
Points own arbitrary global indices of the first array axis, as unstructured grids do.

`halo` and `redistribute` say for one rank what it sends and receives, as regions in global indices; both
ends of a message list its pieces in the same order, so that a message needs no description.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import LayoutError, RankError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["Box", "Partition", "Piece", "Points", "Route", "cuts", "halo", "halo_width", "redistribute"]

Shape = tuple[int, ...]
Split = str | Sequence[str] | None
Width = int | Sequence[int | Sequence[int]]
Widths = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Box:
    """The indices from start up to but without stop, along every axis."""

    start: Shape
    stop: Shape

    @property
    def shape(self) -> Shape:
        """How many indices along every axis."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """How many indices."""
        return math.prod(self.shape)

    def __and__(self, other: Box) -> Box:
        """The indices in both."""
        start = tuple(map(max, self.start, other.start))
        return Box(start, tuple(map(max, start, map(min, self.stop, other.stop))))

    def __contains__(self, index: Sequence[int]) -> bool:
        return all(a <= i < b for a, i, b in zip(self.start, index, self.stop, strict=True))

    def slices(self, origin: Sequence[int] | None = None) -> tuple[slice, ...]:
        """To take the box out of an array whose element [0, 0, ...] has the global index origin."""
        base = origin or (0,) * len(self.start)
        return tuple(slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, base, strict=True))

    def moved(self, by: Sequence[int]) -> Box:
        """The box further along each axis by so many indices."""
        return Box(
            tuple(a + d for a, d in zip(self.start, by, strict=True)),
            tuple(b + d for b, d in zip(self.stop, by, strict=True)),
        )

    def grown(self, widths: Widths) -> Box:
        """The box with a rim of (before, after) indices along each axis."""
        return Box(
            tuple(a - w for a, (w, _) in zip(self.start, widths, strict=True)),
            tuple(b + w for b, (_, w) in zip(self.stop, widths, strict=True)),
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


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


def cuts(n: int, parts: int) -> Shape:
    """Where to cut n indices into parts of almost equal length, the longer ones first: (0, ..., n).

    Same as numpy.array_split and PETSc's DMDA.
    """
    short, longer = divmod(n, parts)
    return tuple(i * short + min(i, longer) for i in range(parts + 1))


@dataclass(frozen=True)
class Partition:
    """Boxes of an index space over a mesh whose ranks count row by row, the last axis fastest.

    Args:
        shape: of the whole.
        mesh: sizes of the mesh axes by name; {} is one rank.
        split: for each array axis the mesh axis that cuts it, several of them (the first varies slowest),
            or None. Default: the mesh axes in order, one each, as far as there are.
        bounds: {array axis: (0, ..., n)} where the cuts are not `cuts(n, parts)`.
        partial: mesh axes over which the value is the sum of what the ranks hold.

    Raises:
        LayoutError: an axis that the mesh does not have, that cuts twice, or bounds that do not fit.
    """

    shape: Shape
    mesh: Mapping[str, int]
    split: Sequence[Split] | None = None
    bounds: Mapping[int, Sequence[int]] = field(default_factory=dict)
    partial: Sequence[str] = ()

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(int(n) for n in self.shape)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "mesh", {str(k): int(v) for k, v in self.mesh.items()})
        names = list(self.mesh)
        chosen: Sequence[Split]
        if self.split is None:
            free = [name for name in names if name not in self.partial]
            chosen = (*free[: len(shape)], *([None] * (len(shape) - len(free))))
        else:
            chosen = tuple(self.split)
        object.__setattr__(self, "split", chosen)
        object.__setattr__(self, "partial", tuple(self.partial))
        if len(chosen) != len(shape):
            raise LayoutError(
                f"split {tuple(chosen)} has {len(chosen)} entries, the shape {shape} {len(shape)} axes",
                hint="one entry per array axis: a mesh axis, several, or None",
            )
        used = [name for axes in self.axes for name in axes] + list(self.partial)
        wrong = sorted({name for name in used if name not in self.mesh or used.count(name) > 1})
        if wrong:
            raise LayoutError(
                f"mesh axes {wrong} do not exist or are used twice; the mesh has {dict(self.mesh)}",
                hint="each mesh axis cuts one array axis at most, or is partial",
            )
        for axis, (n, parts) in enumerate(zip(shape, self.grid, strict=True)):
            given = tuple(int(b) for b in self.bounds.get(axis, cuts(n, parts)))
            if len(given) != parts + 1 or given[0] != 0 or given[-1] != n or list(given) != sorted(given):
                raise LayoutError(
                    f"bounds {given} do not cut the {n} indices of axis {axis} into {parts} parts",
                    hint=f"{parts + 1} ascending numbers from 0 to {n}, such as {cuts(n, parts)}",
                )
        object.__setattr__(self, "bounds", {int(a): tuple(b) for a, b in self.bounds.items()})

    # -- shape of the thing -------------------------------------------------------------------------
    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.mesh.values())

    @property
    def ndim(self) -> int:
        """The number of array axes."""
        return len(self.shape)

    @cached_property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each array axis the mesh axes that cut it."""
        return tuple(() if s is None else (s,) if isinstance(s, str) else tuple(s) for s in self.split or ())

    @cached_property
    def grid(self) -> Shape:
        """The number of parts along each array axis."""
        return tuple(math.prod(self.mesh[name] for name in axes) for axes in self.axes)

    @cached_property
    def replicated(self) -> tuple[str, ...]:
        """Mesh axes along which the ranks hold the same."""
        used = {name for axes in self.axes for name in axes} | set(self.partial)
        return tuple(name for name in self.mesh if name not in used)

    @cached_property
    def edges(self) -> tuple[Shape, ...]:
        """The cuts along each array axis."""
        return tuple(
            tuple(self.bounds.get(a, cuts(n, p)))
            for a, (n, p) in enumerate(zip(self.shape, self.grid, strict=True))
        )

    @cached_property
    def _strides(self) -> dict[str, int]:
        strides, step = {}, 1
        for name, size in reversed(list(self.mesh.items())):
            strides[name] = step
            step *= size
        return strides

    # -- who owns what ------------------------------------------------------------------------------
    def coords(self, rank: int) -> dict[str, int]:
        """Where rank sits on the mesh."""
        self._check(rank)
        return {name: rank // self._strides[name] % size for name, size in self.mesh.items()}

    def cell(self, rank: int) -> Shape:
        """Which part rank holds along each array axis."""
        at = self.coords(rank)
        found = []
        for axes in self.axes:
            i = 0
            for name in axes:
                i = i * self.mesh[name] + at[name]
            found.append(i)
        return tuple(found)

    def box(self, rank: int) -> Box:
        """The indices that rank holds."""
        return self.cell_box(self.cell(rank))

    def cell_box(self, cell: Shape) -> Box:
        """The indices of one part along each axis."""
        return Box(
            tuple(e[i] for e, i in zip(self.edges, cell, strict=True)),
            tuple(e[i + 1] for e, i in zip(self.edges, cell, strict=True)),
        )

    def summand(self, rank: int) -> int:
        """Which of the summands rank holds: 0 if nothing is partial."""
        at = self.coords(rank)
        i = 0
        for name in self.partial:
            i = i * self.mesh[name] + at[name]
        return i

    @property
    def summands(self) -> int:
        """Of how many summands a value is made: 1 if nothing is partial."""
        return math.prod(self.mesh[name] for name in self.partial)

    def holders(self, cell: Shape, summand: int = 0) -> list[int]:
        """The ranks that hold a copy of cell (of one summand of it), ascending."""
        base = self._offset(self.partial, summand) + sum(
            self._offset(axes, i) for axes, i in zip(self.axes, cell, strict=True)
        )
        copies = range(math.prod(self.mesh[name] for name in self.replicated))
        return [base + self._offset(self.replicated, i) for i in copies]

    def owner(self, index: Sequence[int]) -> int:
        """The first rank that holds index."""
        for i, n in zip(index, self.shape, strict=True):
            if not 0 <= i < n:
                raise LayoutError(f"index {tuple(index)} is not in the shape {self.shape}")
        return self.holders(tuple(bisect_right(e, i) - 1 for e, i in zip(self.edges, index, strict=True)))[0]

    def is_first(self, rank: int) -> bool:
        """Whether rank is the first holder of its box: each element has exactly one."""
        return self.holders(self.cell(rank))[0] == rank

    def meeting(self, box: Box) -> Iterator[tuple[Shape, Box]]:
        """The cells that share indices with box, in ascending order, and what they share."""
        ranges = []
        for e, a, b in zip(self.edges, box.start, box.stop, strict=True):
            if a >= b:
                return
            ranges.append(range(bisect_right(e, a) - 1, bisect_right(e, b - 1)))
        for cell in product(*ranges):
            common = self.cell_box(cell) & box
            if common.size:
                yield cell, common

    def _offset(self, axes: Sequence[str], i: int) -> int:
        """What the i-th combination of coordinates on these mesh axes adds to a rank."""
        offset = 0
        for name in reversed(axes):
            i, at = divmod(i, self.mesh[name])
            offset += at * self._strides[name]
        return offset

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise RankError(f"rank {rank} is not on the mesh {dict(self.mesh)}", hint=f"0 to {self.size - 1}")

    def __str__(self) -> str:
        how = ", ".join("+".join(a) if a else "-" for a in self.axes)
        more = f", partial over {', '.join(self.partial)}" if self.partial else ""
        return f"{self.shape} over {dict(self.mesh)} as ({how}){more}"


@dataclass(frozen=True, eq=False)
class Points:
    """Arbitrary global indices of the first array axis, each owned by one rank.

    Args:
        shape: of the whole: (number of points, *shape at each point).
        owned: for every rank its global indices, in the order in which it keeps them.
        ghosts: for every rank the indices of others whose values it wants, kept behind its own.

    Every rank holds all of these lists: 8 bytes for each point of the whole.

    Raises:
        LayoutError: an index that does not exist, or is owned twice or by nobody.
    """

    shape: Shape
    owned: Sequence[NDArray[np.int64]]
    ghosts: Sequence[NDArray[np.int64]] | None = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(int(n) for n in self.shape)
        object.__setattr__(self, "shape", shape)
        owned = tuple(np.asarray(mine, np.int64).reshape(-1) for mine in self.owned)
        ghosts = self.ghosts if self.ghosts is not None else [np.empty(0, np.int64)] * len(owned)
        object.__setattr__(self, "owned", owned)
        object.__setattr__(self, "ghosts", tuple(np.asarray(g, np.int64).reshape(-1) for g in ghosts))
        times = np.zeros(shape[0], np.int64)
        for indices in (*owned, *(self.ghosts or ())):
            if indices.size and (indices.min() < 0 or indices.max() >= shape[0]):
                raise LayoutError(
                    f"indices from {indices.min()} to {indices.max()} do not fit {shape[0]} points",
                    hint=f"global indices from 0 to {shape[0] - 1}",
                )
        for indices in owned:
            np.add.at(times, indices, 1)
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            raise LayoutError(
                f"{wrong.size} points are not owned exactly once, the first is {wrong[0]} "
                f"({times[wrong[0]]} times)",
                hint="every global index on one rank; what a rank wants of others belongs into ghosts",
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.owned)

    @cached_property
    def _owner(self) -> NDArray[np.int32]:
        owner = np.empty(self.shape[0], np.int32)
        for rank, indices in enumerate(self.owned):
            owner[indices] = rank
        return owner

    def owner(self, index: int) -> int:
        """The rank that owns a global index."""
        return int(self._owner[index])

    def owners(self, indices: NDArray[Any]) -> NDArray[np.int32]:
        """The rank that owns each of the global indices."""
        found: NDArray[np.int32] = self._owner[indices]
        return found

    def __str__(self) -> str:
        return f"{self.shape}, points over {self.size} ranks"


# -- halos ----------------------------------------------------------------------------------------------
def halo_width(width: Width, ndim: int) -> Widths:
    """(before, after) for every axis, from one number, one per axis, or a pair per axis.

    Raises:
        LayoutError: not as many widths as axes, or a negative one.
    """
    each: Sequence[Any] = (width,) * ndim if isinstance(width, int) else tuple(width)
    pairs = tuple((w, w) if isinstance(w, int) else tuple(w) for w in each)
    if len(pairs) != ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise LayoutError(
            f"halo width {width} does not fit {ndim} axes",
            hint="one number, one per axis, or (before, after)",
        )
    return pairs


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

    Cost: time in the number of neighbours, plus for each axis the square of its number of parts.
    """
    if isinstance(partition, Points):
        return _ghosts(partition, rank)
    widths = halo_width(width, partition.ndim)
    rings = {a % partition.ndim for a in periodic} if partition.ndim else set()
    here = partition.cell(rank)
    axes = range(partition.ndim)
    mine = [_segments(partition, a, here[a], widths[a], a in rings) for a in axes]
    theirs = [
        [
            (there, first, last, shift)
            for there in range(partition.grid[a])
            for (source, first, last, shift) in _segments(partition, a, there, widths[a], a in rings)
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
        for source, (a, b) in enumerate(pairwise(edges)):
            first, last = max(a + shift, low), min(b + shift, high)
            if first < last:
                found.append((source, first, last, shift))
    return found


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
    at = partition.coords(rank)
    rest = sum(partition._strides[name] * at[name] for name in (*partition.replicated, *partition.partial))
    return rest + sum(partition._offset(axes, i) for axes, i in zip(partition.axes, cell, strict=True))


def _ghosts(points: Points, rank: int) -> Route:
    assert points.ghosts is not None
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

    Raises:
        LayoutError: the shapes differ, or the ranks are not as many as the partition's.
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
            hint="a partition of the first array axis only, without copies or summands",
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
    return Route(sorted(sends, key=_by_peer), sorted(receives, key=_by_peer))


def _by_peer(piece: Piece) -> int:
    return piece.peer
