"""Mappings between grids: sparse weights, each rank holding the rows of its own points.

mapping         order  conserves  reads from
nearest         1      no         anything
idw             1      no         anything: k nearest, weighted by 1/d²
bilinear        2      no         rows
conservative    1      yes        cells: overlap areas (Jones 1999)
conservative2   2      yes        cells: with gradients of the source (Kritsikis et al. 2017)

SciPy's trees and sparse matrices do the heavy work. grid.py has the grids; what is quicker between rows is in
rows.py, and gradients.py has the gradients.

Points that are not given (masked, land) do not count: a target cell takes the mean over the part of it that
is covered, `Weights.fraction` says how large that is, and `Weights.uncovered` which points nothing reaches.
Cells that are given lie beside each other, not over each other.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from .._lazy import MPI, LazyModule, NDArray
from ..core.buffer import refuse_masked
from ..core.types import Floats, Ints
from ..errors import ConfigError, DtypeError, LayoutError, did_you_mean
from .geometry import moments, repeated
from .gradients import around_cells, gradients
from .grid import Grid, Points
from .methods import MAPPINGS, misfit
from .radians import Ends
from .rows import Rows
from .sparse_exchange import exchange_sparse
from .triangulation import Boxes, Parts, overlaps
from .weights import Weights, sparse_matrices

spatial: Any = LazyModule("scipy.spatial")
Entries: TypeAlias = tuple[Ints, Ints, Floats, Floats]  # of a matrix: rows, columns, values; and fractions

_FAR = 8.0  # farther than anything on the unit sphere is from anything else
_ROUNDING = 1e-14  # of lengths beside coordinates of 1
_OVER = 0.05  # of a cell may be covered twice, and is told: great circles are no parallels, so 0.002 is usual
_TOLD = 1e-6  # of a cell: what is less is rounding
_ONE_PLACE = 1e-6  # of the size of a cell: another one whose middle is nearer lies over it
_DIGITS = 12  # to which distances count as equal; then the lower index wins, whatever the partition


def weights(
    source: Grid,
    target: Grid,
    mapping: str,
    *,
    neighbours: int = 4,
    given: object = None,
    points: object = None,
) -> Weights:
    """Weights between two grids in one process.

    Args:
        given: indices of the source points that have values; None: all.
        points: indices of the target points that are wanted; None: all.

    Raises:
        ConfigError: there is no such mapping, or not between these grids.
        DtypeError, LayoutError: given or points are not indices of the grids, or cells overlap.
    """
    _check(source, target, mapping)
    here = np.unique(_indices("given", given, source))
    there = _indices("points", points, target)
    if mapping == "idw" and not (isinstance(neighbours, int) and 1 <= neighbours <= max(1, len(here))):
        raise ConfigError(
            f"{neighbours} neighbours of {len(here)} points that are given", "regrid.weights", "neighbours=4"
        )
    shapes = _shapes(source, np.arange(source.size), mapping)[here]
    if points is not None:
        target = target.part(there)
    mapper = _Mapper(source, target, there, mapping, neighbours, _scale(source, shapes[:, 0]))
    made = mapper.weights(here, shapes)
    if mapper.doubled > _OVER:
        raise _lie_over(made.overlap, "regrid.weights")
    looks = (("source", Ends.of(source).doubt()), ("target", Ends.of(target).doubt()))
    for doubt in [*(f"the {side} grid has {doubt}" for side, doubt in looks if doubt), made.overlap]:
        if doubt:
            warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    return made


def _scale(grid: Grid, *ends: Floats) -> float:
    """A power of two above all coordinates."""
    if grid.sphere:
        return 1.0
    finite = [np.abs(end[np.isfinite(end)]).max(initial=0.0) for end in ends]
    return float(2.0 ** np.ceil(np.log2(max(*finite, 1e-300))))


def _lie_over(what: str, where: str) -> LayoutError:
    return LayoutError(
        what,
        where,
        "each place once: leave copies (halo columns, the fold of a tripolar grid) out of the points given",
    )


def _check(source: Any, target: Any, mapping: str) -> None:
    if mapping not in MAPPINGS:
        hint = did_you_mean(mapping, MAPPINGS, f"one of {', '.join(MAPPINGS)}")
        raise ConfigError(f"there is no mapping {mapping!r}", "regrid.weights", hint)
    for each in (source, target):
        if not isinstance(each, Grid):
            raise ConfigError(
                f"{each!r:.60} is no grid", "regrid.weights", "hpcomm.regrid.LatLon(nlat, nlon)"
            )
    wrong = misfit(mapping, (source.kind, source.sphere), (target.kind, target.sphere))
    if wrong is not None:
        raise ConfigError(wrong[1], "regrid.weights", wrong[2])
    if mapping.startswith("cons") and not all(isinstance(each, Rows) for each in (source, target)):
        _check_widths(_is_halved(source) or _is_halved(target), "regrid.weights")


def _is_halved(grid: Grid) -> bool:
    """Whether cells may go half round the sphere: no two meridians have such a cell between them."""
    return isinstance(grid, Rows) and grid.sphere and grid.widest >= np.pi


def _check_widths(wrong: bool, where: str) -> None:
    if wrong:
        what = "a grid of one or two columns around the sphere has no areas in common with cells"
        raise ConfigError(what, where, "three columns or more")


def _indices(name: str, chosen: object, grid: Grid) -> Ints:
    """What was chosen of the points of a grid, None: all."""
    size = grid.size
    if chosen is None:
        return np.arange(size)
    refuse_masked(chosen, f"{name} is", "regrid.weights")
    found = np.asarray(chosen)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        hint = "np.flatnonzero(mask)" if found.dtype == bool else f"{name}=np.arange(first, last)"
        raise DtypeError(f"{name} is no list of indices, but {found.dtype}", "regrid.weights", hint)
    if found.size and not (found.min() >= 0 and found.max() < size):
        raise LayoutError(
            f"{name} has indices from {found.min()} to {found.max()}, and the grid has {size} points",
            "regrid.weights",
            "global indices from 0",
        )
    return found.astype(np.int64)


def weights_between(
    comm: MPI.Intracomm, grid: Any, points: Ints, is_giver: bool, mapping: str, neighbours: int
) -> Weights | None:
    """Weights between the grids of two programs. Collective over both. None on the ranks of the giver.

    Ranks that give send to each rank that takes only those points that are in a box around its own.

    Raises:
        LayoutError, ConfigError: cells that are given overlap, or are too wide. Every rank raises.
    """
    entries = _entries(comm, grid, points, is_giver)
    is_source = entries["is_giver"]
    source = comm.bcast(grid if isinstance(grid, Rows) else None, int(np.argmax(is_source)))
    if mapping.startswith("cons") and entries["is_cells"].any():
        _check_widths(bool(entries["is_halved"].any()), "connect")
    margin = float(entries["reach"].max()) / (1 + (mapping == "nearest"))
    scale = _scale(grid, entries["low"][is_source], entries["high"][is_source])
    mapper, found, shapes = None, None, np.empty((0, 1, 3))
    if is_giver:
        shapes = _shapes(grid, points, mapping)
    else:
        mapper = _Mapper(source, grid, points, mapping, neighbours, scale)
    while True:  # until every taker has been given all that may count
        given = _nearby(comm, entries, points, shapes, margin)
        if mapper is not None:
            found = mapper.weights(*given)
        if not comm.allreduce(mapper is not None and mapper.lacks(margin)):
            break
        margin *= 2
    most, turn = comm.allreduce((0.0 if mapper is None else mapper.doubled, -comm.rank), MPI.MAX)
    if most > _OVER:
        raise _lie_over(comm.bcast(found and found.overlap, -turn), "connect")
    if found is not None and comm.rank != -turn:
        found.overlap = ""  # one rank tells the worst
    return found


def _entries(comm: MPI.Intracomm, grid: Grid, points: Ints, is_giver: bool) -> NDArray[np.void]:
    """What all ranks say of their parts: the box around its points, and how far mappings reach from them."""
    wide = 3 if grid.sphere else 2
    ends = [("low", "f8", wide), ("high", "f8", wide)]
    entry = np.zeros(
        1, [*((name, "?") for name in ("is_giver", "is_cells", "is_halved")), ("reach", "f8"), *ends]
    )
    entry["is_giver"], entry["is_cells"], entry["is_halved"] = (
        is_giver,
        not isinstance(grid, Rows),
        _is_halved(grid),
    )
    entry["low"], entry["high"] = np.inf, -np.inf
    if len(points):
        x = grid.centres(points)
        entry["low"], entry["high"] = x.min(axis=0), x.max(axis=0)
        entry["reach"] = 4.0 * _radius(grid, points)
    entries = np.empty(comm.size, entry.dtype)
    comm.Allgather(entry.view(np.uint8), entries.view(np.uint8))
    return entries


def _radius(grid: Grid, points: Ints) -> float:
    """The largest distance of a corner from its centre; of bare points, about half that to the next one."""
    x = grid.centres(points)
    if isinstance(grid, Points):
        extent = float(np.prod(np.maximum(x.max(axis=0) - x.min(axis=0), 1e-3))) ** (1 / x.shape[1])
        return float(extent / max(1.0, len(points)) ** 0.5)
    return float(np.linalg.norm(grid.corners(points) - x[:, None], axis=2).max())


def _shapes(grid: Any, points: Ints, mapping: str) -> Floats:
    """What a giver says of each point: its centre, and for areas its corners behind it."""
    x = grid.centres(points)[:, None]
    return np.concatenate([x, grid.corners(points)], axis=1) if mapping.startswith("cons") else x


def _nearby(
    comm: MPI.Intracomm, entries: NDArray[np.void], points: Ints, shapes: Floats, margin: float
) -> tuple[Ints, Floats]:
    """The givers' points that lie within the margin of this taker's box, ascending."""
    parts: dict[int, tuple[Ints, Floats]] = {}
    if entries["is_giver"][comm.rank]:
        x, mine = shapes[:, 0], entries[comm.rank]
        low, high = entries["low"] - margin, entries["high"] + margin
        meets = (low <= mine["high"]).all(axis=1) & (high >= mine["low"]).all(axis=1)
        for rank in np.flatnonzero(meets & ~entries["is_giver"]).tolist():
            near = ((x >= low[rank]) & (x <= high[rank])).all(axis=1)
            if near.any():
                parts[rank] = (points[near], shapes[near])
    got = exchange_sparse(comm, parts)
    if not got:
        return np.empty(0, np.int64), shapes[:0]
    wide = max(form.shape[1] for _, form in got)  # some ranks' cells have more vertices than others'
    got = [(part, np.pad(form, ((0, 0), (0, wide - form.shape[1]), (0, 0)), "edge")) for part, form in got]
    found, forms = np.concatenate([p for p, _ in got]), np.concatenate([s for _, s in got])
    order = np.argsort(found, kind="stable")
    return found[order], forms[order]


@dataclass
class _Mapper:
    """Makes weights for some target points."""

    source: Any  # the grid that they come from, if it is Rows
    target: Any
    points: Ints
    mapping: str
    neighbours: int
    source_scale: float  # the source's largest coordinate
    needed: float = np.inf  # how far the farthest source was that counted
    doubled: float = 0.0  # part of a target that sources cover twice, at most; inf: two are in one place
    overlap: str = ""  # the same in words

    def lacks(self, margin: float) -> bool:
        """Whether sources farther away than margin may count."""
        scale = float(np.abs(self.target.centres(self.points)).max(initial=1.0))
        return margin < min(self.needed, _FAR * scale)

    def weights(self, given: Ints, shapes: Floats) -> Weights:
        """Rows for the target points, from source points given (ascending) with these shapes."""
        sparse, n = sparse_matrices(), len(self.points)
        if not len(given):
            return Weights(sparse.csr_matrix((n, 0)), given, np.zeros(n))
        self.needed = 0.0
        row, column, value, fraction = getattr(self, f"_{self.mapping}")(given, shapes)
        matrix = sparse.csr_matrix((value, (row, column)), shape=(n, len(given)))
        matrix.sum_duplicates()
        used = np.unique(matrix.indices)
        matrix = sparse.csr_matrix(matrix[:, used])
        matrix.sort_indices()  # sums run in the order of global indices, on any number of ranks
        return Weights(matrix, given[used], fraction, self.overlap)

    # -- by distance -----------------------------------------------------------------------------------
    def _closest(self, x: Floats, k: int) -> tuple[Floats, Ints]:
        """(distances, sources), k of each target point: of equally near ones the lower indices."""
        count = min(k + 6, len(x))
        distance, which = spatial.cKDTree(x).query(self.target.centres(self.points), k=count)
        distance, which = distance.reshape(-1, count), which.reshape(-1, count)
        order = np.lexsort((which, np.round(distance / self.source_scale, _DIGITS)), axis=1)[:, :k]
        distance, which = (np.take_along_axis(a, order, axis=1) for a in (distance, which))
        self.needed = float(distance.max(initial=0.0)) if count > k or count == len(x) else _FAR
        return distance, which

    def _nearest(self, given: Ints, shapes: Floats) -> Entries:
        _, which = self._closest(shapes[:, 0], 1)
        n = len(self.points)
        return np.arange(n), which[:, 0], np.ones(n), np.ones(n)

    def _idw(self, given: Ints, shapes: Floats) -> Entries:
        distance, which = self._closest(shapes[:, 0], self.neighbours)
        distance = distance / self.source_scale
        share = 1.0 / np.maximum(distance, 1e-14) ** 2
        share = np.where(distance[:, :1] < 1e-13, np.arange(share.shape[1]) == 0, share)
        share = share / share.sum(axis=1, keepdims=True)
        row = np.repeat(np.arange(len(self.points)), which.shape[1])
        return row, which.ravel(), share.ravel(), np.ones(len(self.points))

    # -- between four ------------------------------------------------------------------------------------
    def _bilinear(self, given: Ints, shapes: Floats) -> Entries:
        n = len(self.points)
        index, share = self.source.between(self.target.centres(self.points))
        row, column, value = np.repeat(np.arange(n), 4), index.ravel(), share.ravel()
        at = np.searchsorted(given, column)
        at[at == len(given)] = 0
        there = (given[at] == column) & (value != 0)
        total = np.bincount(row[there], weights=value[there], minlength=n)
        kept = there & (total[row] > 1e-12)
        return row[kept], at[kept], value[kept] / total[row[kept]], (total > 1e-12).astype(float)

    # -- by area -----------------------------------------------------------------------------------------
    def _conservative(self, given: Ints, shapes: Floats) -> Entries:
        row, column, area, _ = self._overlaps(given, shapes)
        covered, fraction = self._covered(given, shapes, row, column, area)
        return row, column, area / covered[row], fraction

    def _conservative2(self, given: Ints, shapes: Floats) -> Entries:
        """First order, and the gradient of each source cell times the way from its centre to the overlap."""
        row, column, area, moment = self._overlaps(given, shapes)
        covered, fraction = self._covered(given, shapes, row, column, area)
        whole, moments_ = self._source_moments(given, shapes)
        centre = moments_ / whole[:, None]
        way = moment / area[:, None] - centre[column]
        owner, neighbour, gradient = self._gradients(given, shapes, centre)
        first = np.searchsorted(owner, np.arange(len(given) + 1))
        k, nth = repeated(np.diff(first)[column])
        e = first[column][k] + nth
        more = (way[k] * gradient[e]).sum(axis=1) * (area / covered[row])[k]
        return (
            np.concatenate([row, row[k]]),
            np.concatenate([column, neighbour[e]]),
            np.concatenate([area / covered[row], more]),
            fraction,
        )

    def _covered(
        self, given: Ints, shapes: Floats, row: Ints, column: Ints, area: Floats
    ) -> tuple[Floats, Floats]:
        """(area, fraction) of each target cell that is covered; notes where sources lie over each other."""
        covered: Floats = np.bincount(row, area, len(self.points)).astype(float)
        fraction = np.asarray(covered / self.target.areas(self.points))
        if not isinstance(self.source, Rows):
            self.overlap = _in_one_place(given, shapes)
            self.doubled = np.inf if self.overlap else max(0.0, float(fraction.max(initial=1.0)) - 1.0)
            if _TOLD < self.doubled < np.inf:
                worst = int(fraction.argmax())
                which = _most_overlapping(column[row == worst], shapes)
                self.overlap = f"cells {_listed(given[which])} that are given lie over each other:"
                self.overlap += f" point {self.points[worst]} is covered {fraction[worst]:.7g} times"
        return covered, fraction

    def _gradients(self, given: Ints, shapes: Floats, centre: Floats) -> tuple[Ints, Ints, Floats]:
        """Of the source cells: (cell, neighbour, vector), positions in given."""
        if isinstance(self.source, Rows):
            around = self.source.around(given)
        else:
            around = around_cells(shapes[:, 1:], self.source_scale)
        ways = shapes[:, 1:] - centre[:, None]
        return gradients(shapes[:, 0], *around, ways, bool(self.target.sphere))

    def _overlaps(self, given: Ints, shapes: Floats) -> tuple[Ints, Ints, Floats, Floats]:
        """(target, source, area, moment) of each overlap; moment: the integral of the position over it."""
        if not isinstance(self.source, Rows) or not isinstance(self.target, Rows):
            return self._polygon_overlaps(given, shapes)
        row, index, area, moment = self.target.overlaps(self.points, self.source)
        at = np.searchsorted(given, index)
        at[at == len(given)] = 0
        kept = given[at] == index
        return row[kept], at[kept], area[kept], moment[kept]

    def _source_moments(self, given: Ints, shapes: Floats) -> tuple[Floats, Floats]:
        return self.source.moments(given) if isinstance(self.source, Rows) else moments(shapes[:, 1:])

    def _polygon_overlaps(self, given: Ints, shapes: Floats) -> tuple[Ints, Ints, Floats, Floats]:
        x, corners = shapes[:, 0], shapes[:, 1:]
        mine, centre = self.target.corners(self.points), self.target.centres(self.points)
        reach = np.linalg.norm(mine - centre[:, None], axis=2).max(axis=1)
        widest = float(np.linalg.norm(corners - x[:, None], axis=2).max())
        lists = spatial.cKDTree(x).query_ball_point(centre, reach + widest + 1e-12, return_sorted=True)
        row = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        column = np.fromiter(chain.from_iterable(lists), np.int64, len(row))
        targets = Boxes(self.target.bounds(self.points)) if _has_parallels(self.target) else Parts(mine)
        sources = Boxes(self.source.bounds(given)) if _has_parallels(self.source) else Parts(corners)
        parts = np.array_split(np.arange(len(row)), max(1, len(row) // 50_000))
        pieces = [overlaps(targets, sources, row[part], column[part]) for part in parts]
        area, moment = (np.concatenate(part) for part in zip(*pieces, strict=True))
        digits = _ROUNDING * (np.linalg.norm(centre, axis=1) + reach)  # where cells only touch
        kept = area > (digits * reach)[row]
        return row[kept], column[kept], area[kept], moment[kept]


def _has_parallels(grid: Grid) -> bool:
    return isinstance(grid, Rows) and grid.sphere


def _in_one_place(given: Ints, shapes: Floats) -> str:
    """What there is to say of cells that have their middle where another one has; "" if none does."""
    x = shapes[:, 0]
    if len(x) < 2:
        return ""
    distance, which = spatial.cKDTree(x).query(x, k=2)
    size = np.linalg.norm(shapes[:, 1:] - x[:, None], axis=2).max(axis=1)
    same = np.flatnonzero(distance[:, 1] < _ONE_PLACE * size)
    if not len(same):
        return ""
    return (
        f"cells {_listed(given[which[same[0]]])} that are given lie over each other, the first of {len(same)}"
    )


def _most_overlapping(cells: Ints, shapes: Floats) -> Ints:
    """The two of these cells that have most in common; all of them if that is not seen among neighbours."""
    x, corners = shapes[cells, 0], shapes[cells, 1:]
    beside = spatial.cKDTree(x).query(x, k=min(len(x), 12))[1].reshape(len(x), -1)
    first, second = np.repeat(np.arange(len(x)), beside.shape[1]), beside.ravel()
    first, second = first[first < second], second[first < second]
    area = overlaps(Parts(corners), Parts(corners), first, second)[0]
    return cells[[first[area.argmax()], second[area.argmax()]]] if area.max(initial=0.0) > 0 else cells


def _listed(numbers: Ints) -> str:
    found = [str(number) for number in np.sort(numbers)[:4]]
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else found[0]
