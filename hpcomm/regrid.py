"""From one grid to another: sparse weights, each rank holding the rows of its own points.

mapping         order  conserves  reads from
nearest         1      no         anything
idw             1      no         anything: k nearest, weighted by 1/d²
bilinear        2      no         latlon, gaussian, plane
conservative    1      yes        cells: overlap areas (Jones 1999)
conservative2   2      yes        cells: with gradients of the source (Kritsikis et al. 2017)

On the sphere everything is done in three dimensions, so no pole and no date line is special. Cells given
by vertices have great circles as edges; cells of latlon and gaussian grids have parallels among
themselves, and great circles against cells. SciPy's trees and sparse matrices do the heavy work.

Points that are not given (masked, land) do not count: a target cell takes the mean over the part of it that
is covered, `Weights.fraction` says how large that is, and a point that nothing reaches keeps its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ConfigError

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.int64]

__all__ = [
    "MAPPINGS",
    "Cells",
    "Gaussian",
    "LatLon",
    "Plane",
    "Points",
    "Weights",
    "from_spec",
    "weights",
    "weights_between",
]

MAPPINGS = ("nearest", "idw", "bilinear", "conservative", "conservative2")
_FAR = 8.0  # farther than anything on the unit sphere is from anything else
_DIGITS = 12  # to which distances count as equal; then the lower index wins, whatever the partition


# -- grids -------------------------------------------------------------------------------------------


class _Rectangles:
    """Cells that are products of intervals: u x v, numbered row by row: index = j * nu + i."""

    kind = ""
    sphere = True

    def __init__(self, u: Array, v: Array) -> None:
        self.u_edges, self.v_edges = u, v
        self.nu, self.nv = len(u) - 1, len(v) - 1

    @property
    def size(self) -> int:
        return self.nu * self.nv

    @cached_property
    def u_centres(self) -> Array:
        return (self.u_edges[1:] + self.u_edges[:-1]) / 2

    @cached_property
    def v_centres(self) -> Array:
        return (self.v_edges[1:] + self.v_edges[:-1]) / 2

    def at(self, points: Indices) -> tuple[Indices, Indices]:
        return points // self.nu, points % self.nu

    def centres(self, points: Indices) -> Array:
        """Where the values live: (points, 3) on the unit sphere, (points, 2) on a plane."""
        j, i = self.at(points)
        return self.place(self.u_centres[i], self.v_centres[j])

    def corners(self, points: Indices) -> Array:
        """(points, 4, 3 or 2), anticlockwise seen from outside."""
        j, i = self.at(points)
        u, v = self.u_edges, self.v_edges
        around = [(u[i], v[j]), (u[i + 1], v[j]), (u[i + 1], v[j + 1]), (u[i], v[j + 1])]
        return np.stack([self.place(a, b) for a, b in around], axis=1)

    def place(self, u: Array, v: Array) -> Array:
        return np.stack([u, v], axis=-1)

    def areas(self, points: Indices) -> Array:
        """Of the cells; on the unit sphere, so that all of them are 4π."""
        j, i = self.at(points)
        return np.diff(self.u_edges)[i] * np.diff(self.heights)[j]

    @property
    def heights(self) -> Array:
        """v such that du dv is area."""
        return self.v_edges


class Plane(_Rectangles):
    """nx x ny cells of a rectangle x0, x1, y0, y1."""

    kind, sphere = "plane", False

    def __init__(self, nx: int, ny: int, bounds: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0)) -> None:
        super().__init__(np.linspace(bounds[0], bounds[1], nx + 1), np.linspace(bounds[2], bounds[3], ny + 1))


class _Sphere(_Rectangles):
    """u: longitude, v: latitude, in radians; the area of a cell is du d(sin v)."""

    def place(self, u: Array, v: Array) -> Array:
        return np.stack([np.cos(v) * np.cos(u), np.cos(v) * np.sin(u), np.sin(v)], axis=-1)

    @property
    def heights(self) -> Array:
        return np.sin(self.v_edges)


class LatLon(_Sphere):
    """nlat x nlon cells of equal angles, from the south pole, from longitude 0."""

    kind = "latlon"

    def __init__(self, nlat: int, nlon: int) -> None:
        super().__init__(np.linspace(0, 2 * np.pi, nlon + 1), np.linspace(-np.pi / 2, np.pi / 2, nlat + 1))


class Gaussian(_Sphere):
    """nlat Gaussian latitudes with their weights as areas x nlon longitudes, from the south."""

    kind = "gaussian"

    def __init__(self, nlat: int, nlon: int) -> None:
        z, w = np.polynomial.legendre.leggauss(nlat)
        edges = np.concatenate(([-1.0], np.cumsum(w) - 1.0))
        edges[-1] = 1.0
        super().__init__(np.linspace(0, 2 * np.pi, nlon + 1), np.arcsin(edges))
        self._latitudes = np.arcsin(z)

    @cached_property
    def v_centres(self) -> Array:
        return self._latitudes


class Points:
    """Points anywhere: this rank's own, in the order of its field's points.

    Args:
        coordinates: (points, 2): longitude and latitude in degrees, or x and y.
    """

    kind = "points"

    def __init__(self, coordinates: Any, *, sphere: bool = True) -> None:
        self.coordinates = np.asarray(coordinates, float)
        self.sphere = sphere

    def centres(self, points: Indices) -> Array:
        return _placed(self.coordinates, self.sphere)

    def part(self, which: Indices) -> Points:
        return Points(self.coordinates[which], sphere=self.sphere)


class Cells:
    """Convex cells given by their vertices: this rank's own, in the order of its field's points.

    Args:
        vertices: (cells, vertices, 2): longitude and latitude in degrees, or x and y, anticlockwise; a
            cell with fewer vertices repeats its last one.
    """

    kind = "cells"

    def __init__(self, vertices: Any, *, sphere: bool = True) -> None:
        self.vertices = np.asarray(vertices, float)
        self.sphere = sphere

    def corners(self, points: Indices) -> Array:
        return _placed(self.vertices, self.sphere)

    def centres(self, points: Indices) -> Array:
        area, moment = _moments(self.corners(points))
        return _on_surface(moment / area[:, None], self.sphere)

    def areas(self, points: Indices) -> Array:
        return _moments(self.corners(points))[0]

    def part(self, which: Indices) -> Cells:
        return Cells(self.vertices[which], sphere=self.sphere)


Grid = Plane | LatLon | Gaussian | Points | Cells


def from_spec(spec: Any) -> Any:
    """The grid that a spec describes; of points and cells only the kind stands there."""
    if spec.kind == "plane":
        return Plane(spec.shape[0], spec.shape[1], spec.bounds)
    if spec.kind in ("latlon", "gaussian"):
        return (LatLon if spec.kind == "latlon" else Gaussian)(*spec.shape)
    raise ConfigError(
        f"grid {spec.name!r} is of kind {spec.kind}: its coordinates are the program's",
        "grid",
        "hpcomm.regrid.Points(coordinates) or hpcomm.regrid.Cells(vertices)",
    )


def _placed(coordinates: Array, sphere: bool) -> Array:
    if not sphere:
        return coordinates
    lon, lat = np.radians(coordinates[..., 0]), np.radians(coordinates[..., 1])
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def _on_surface(x: Array, sphere: bool) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True) if sphere else x


def areas_against(grid: Any, points: Indices, other_kind: str | None) -> Array:
    """Areas with the edges that overlaps with a grid of that kind have: see the top of this file."""
    if "cells" in (grid.kind, other_kind):
        return _moments(grid.corners(points))[0]
    return np.asarray(grid.areas(points))


# -- weights -----------------------------------------------------------------------------------------


@dataclass
class Weights:
    """target = matrix @ source for the points of this rank.

    Attributes:
        matrix: SciPy CSR, (points here, sources).
        sources: global indices of the source points that are needed, ascending.
        fraction: (points here,): covered part of each target cell; 1 or 0 for mappings without areas.
    """

    matrix: Any
    sources: Indices
    fraction: Array

    @property
    def columns(self) -> int:
        return len(self.sources)

    @cached_property
    def rows(self) -> Indices:
        """Points that something reaches."""
        return np.flatnonzero(np.diff(self.matrix.indptr))

    def apply(self, values: NDArray[Any]) -> Array:
        """Map values of the sources, shape (sources, ...)."""
        flat = np.asarray(values, float).reshape(len(values), -1)
        return np.asarray(self.matrix @ flat).reshape(-1, *values.shape[1:])

    def save(self, path: Path) -> None:
        """Keep them as an npz file."""
        m = self.matrix
        np.savez(
            path,
            data=m.data,
            indices=m.indices,
            indptr=m.indptr,
            sources=self.sources,
            fraction=self.fraction,
        )

    @classmethod
    def load(cls, path: Path) -> Weights:
        """Read what save has written."""
        with np.load(path) as kept:
            shape = (len(kept["indptr"]) - 1, len(kept["sources"]))
            matrix = _sparse().csr_matrix((kept["data"], kept["indices"], kept["indptr"]), shape=shape)
            return cls(matrix, kept["sources"], kept["fraction"])

    @staticmethod
    def sizes(path: Path) -> tuple[int, int]:
        """Of what save has written: how many targets, and one more than the highest source. Needs no SciPy.

        Raises:
            ConfigError: there is nothing there that save has written.
        """
        try:
            with np.load(path) as kept:
                return len(kept["indptr"]) - 1, int(kept["sources"].max(initial=-1)) + 1
        except Exception as error:  # depends on what the file is instead
            raise ConfigError(
                f"no weights in {path}: {error}", "regrid", "hpcomm.regrid.weights(...).save(path)"
            ) from error

    def part(self, points: Indices) -> Weights:
        """Those of some of the points only: the same rows, to the last bit."""
        rows = self.matrix[points]
        used = np.unique(rows.indices)
        return Weights(rows[:, used], self.sources[used], self.fraction[points])


def weights(
    source: Grid, target: Grid, mapping: str, *, neighbours: int = 4, given: Any = None, points: Any = None
) -> Weights:
    """Weights between two grids in one process.

    Args:
        given: indices of the source points that there are; None: all.
        points: indices of the target points; None: all.
    """
    here = np.arange(_size(source)) if given is None else np.asarray(given, np.int64)
    there = np.arange(_size(target)) if points is None else np.asarray(points, np.int64)
    shapes = _shapes(source, np.arange(_size(source)), mapping)[here]
    if isinstance(target, (Points, Cells)) and points is not None:
        target = target.part(there)
    return _Mapper(source, target, there, mapping, neighbours).weights(here, shapes)


def _size(grid: Any) -> int:
    if isinstance(grid, _Rectangles):
        return grid.size
    return len(grid.coordinates if isinstance(grid, Points) else grid.vertices)


def weights_between(
    comm: MPI.Intracomm, grid: Any, points: Indices, is_giver: bool, mapping: str, neighbours: int
) -> Weights | None:
    """Weights between the grids of two programs. Collective over both; None on the giver's ranks.

    Givers send each taker only the points near its own: what lies within a box around them.
    """
    cards = comm.allgather(_Card.of(grid, points, is_giver, mapping))
    source = next(card.grid for card in cards if card.is_giver)
    boxes = [card.box for card in cards if not card.is_giver]
    margin = max(card.reach for card in cards) if mapping != "nearest" else max(c.reach for c in cards) / 2
    shapes = _shapes(grid, points, mapping) if is_giver else np.empty((0, 1, 3))
    found = None
    while True:
        got = _nearby(comm, cards, boxes, points, shapes, margin)
        if not is_giver:
            mapper = _Mapper(source or grid, grid, points, mapping, neighbours)
            found = mapper.weights(*got) if len(got[0]) else None
        reached = is_giver or (found is not None and mapper.needed <= margin) or margin >= _FAR * mapper.scale
        if comm.allreduce(not reached) == 0:
            break
        margin *= 2
    if is_giver:
        return None
    return found or Weights(
        _sparse().csr_matrix((len(points), 0)), np.empty(0, np.int64), np.zeros(len(points))
    )


@dataclass
class _Card:
    """What a rank says of its part: the box around its points, and how far mappings reach from them."""

    is_giver: bool
    grid: Any
    box: tuple[Array, Array]
    reach: float

    @classmethod
    def of(cls, grid: Any, points: Indices, is_giver: bool, mapping: str) -> _Card:
        kept = grid if is_giver and isinstance(grid, _Rectangles) else None
        if not len(points):
            wide = 3 if grid.sphere else 2
            return cls(is_giver, kept, (np.full(wide, np.inf), np.full(wide, -np.inf)), 0.0)
        x = grid.centres(points)
        reach = 4.0 * _radius(grid, points)
        return cls(is_giver, kept, (x.min(axis=0), x.max(axis=0)), reach)


def _radius(grid: Any, points: Indices) -> float:
    """The largest distance of a corner from its centre; of bare points, about half that to the next one."""
    x = grid.centres(points)
    if isinstance(grid, Points):
        extent = float(np.prod(np.maximum(x.max(axis=0) - x.min(axis=0), 1e-3))) ** (1 / x.shape[1])
        return float(extent / max(1.0, len(points)) ** 0.5)
    return float(np.linalg.norm(grid.corners(points) - x[:, None], axis=2).max())


def _shapes(grid: Any, points: Indices, mapping: str) -> Array:
    """What a giver says of each point: its centre, and for areas its corners behind it."""
    x = grid.centres(points)[:, None]
    return np.concatenate([x, grid.corners(points)], axis=1) if mapping.startswith("cons") else x


def _nearby(
    comm: MPI.Intracomm,
    cards: list[_Card],
    boxes: list[tuple[Array, Array]],
    points: Indices,
    shapes: Array,
    margin: float,
) -> tuple[Indices, Array]:
    """The givers' points that lie within the margin of this taker's box, ascending."""
    parcels: list[Any] = [None] * comm.size
    mine = cards[comm.rank]
    for rank, card in enumerate(cards):
        if mine.is_giver and not card.is_giver:
            low, high = card.box
            x = shapes[:, 0]
            near = ((x >= low - margin) & (x <= high + margin)).all(axis=1)
            parcels[rank] = (points[near], shapes[near])
    got = [part for part in comm.alltoall(parcels) if part is not None and len(part[0])]
    if not got:
        return np.empty(0, np.int64), shapes[:0]
    found, forms = np.concatenate([p for p, _ in got]), np.concatenate([s for _, s in got])
    order = np.argsort(found, kind="stable")
    return found[order], forms[order]


class _Mapper:
    """Makes weights for some target points. needed: how far the farthest source was that counted."""

    def __init__(self, source: Any, target: Any, points: Indices, mapping: str, neighbours: int) -> None:
        self.source, self.target, self.points = source, target, points
        self.mapping, self.neighbours = mapping, neighbours
        self.needed = 0.0
        self.scale = 1.0 if target.sphere else float(np.abs(target.centres(points)).max(initial=1.0))

    def weights(self, given: Indices, shapes: Array) -> Weights:
        """Rows for the target points, from source points given (ascending) with these shapes."""
        made = getattr(self, f"_{self.mapping}")(given, shapes)
        row, column, value, fraction = made
        sparse = _sparse()
        matrix = sparse.csr_matrix((value, (row, column)), shape=(len(self.points), len(given)))
        matrix.sum_duplicates()
        used = np.unique(matrix.indices)
        matrix = sparse.csr_matrix(matrix[:, used])
        matrix.sort_indices()  # sums run in the order of global indices, on any number of ranks
        return Weights(matrix, given[used], fraction)

    # -- by distance -----------------------------------------------------------------------------------
    def _closest(self, x: Array, k: int) -> tuple[Array, Indices]:
        """(distances, sources), k of each target point: of equally near ones the lower indices."""
        from scipy.spatial import cKDTree

        count = min(k + 6, len(x))
        distance, which = cKDTree(x).query(self.target.centres(self.points), k=count)
        distance, which = distance.reshape(-1, count), which.reshape(-1, count)
        order = np.lexsort((which, np.round(distance, _DIGITS)), axis=1)[:, :k]
        distance, which = (np.take_along_axis(a, order, axis=1) for a in (distance, which))
        self.needed = float(distance.max(initial=0.0)) if count > k or count == len(x) else _FAR
        return distance, which

    def _nearest(self, given: Indices, shapes: Array) -> Any:
        _, which = self._closest(shapes[:, 0], 1)
        n = len(self.points)
        return np.arange(n), which[:, 0], np.ones(n), np.ones(n)

    def _idw(self, given: Indices, shapes: Array) -> Any:
        distance, which = self._closest(shapes[:, 0], self.neighbours)
        share = 1.0 / np.maximum(distance, 1e-14) ** 2
        share = np.where(distance[:, :1] < 1e-13, np.arange(share.shape[1]) == 0, share)
        share = share / share.sum(axis=1, keepdims=True)
        row = np.repeat(np.arange(len(self.points)), which.shape[1])
        return row, which.ravel(), share.ravel(), np.ones(len(self.points))

    # -- between four ------------------------------------------------------------------------------------
    def _bilinear(self, given: Indices, shapes: Array) -> Any:
        s = self.source
        x = self.target.centres(self.points)
        u, v = (
            (np.arctan2(x[:, 1], x[:, 0]) % (2 * np.pi), np.arcsin(np.clip(x[:, 2], -1, 1)))
            if s.sphere
            else x.T
        )
        i, a = _between(s.u_centres, u, 2 * np.pi if s.sphere else None)
        j, b = _between(_beyond_poles(s.v_centres) if s.sphere else s.v_centres, v, None)
        j = j - 1 if s.sphere else j
        n = len(self.points)
        rows, columns, values = [], [], []
        for dj, wb in ((0, 1 - b), (1, b)):
            for di, wa in ((0, 1 - a), (1, a)):
                columns.append(_across(s, i + di, j + dj))
                rows.append(np.arange(n))
                values.append(wa * wb)
        row, column, value = (np.concatenate(part) for part in (rows, columns, values))
        at = np.searchsorted(given, column)
        at[at == len(given)] = 0
        there = (given[at] == column) & (value != 0)
        total = np.bincount(row[there], weights=value[there], minlength=n)
        kept = there & (total[row] > 1e-12)
        return row[kept], at[kept], value[kept] / total[row[kept]], (total > 1e-12).astype(float)

    # -- by area -----------------------------------------------------------------------------------------
    def _conservative(self, given: Indices, shapes: Array) -> Any:
        row, column, area, _ = self._overlaps(given, shapes)
        covered = np.bincount(row, weights=area, minlength=len(self.points))
        return row, column, area / covered[row], covered / self._target_areas()

    def _conservative2(self, given: Indices, shapes: Array) -> Any:
        """First order, and the gradient of each source cell times the way from its centre to the overlap."""
        row, column, area, moment = self._overlaps(given, shapes)
        covered = np.bincount(row, weights=area, minlength=len(self.points))
        whole, centre = self._source_moments(given, shapes)
        way = moment / area[:, None] - (centre / whole[:, None])[column]
        which, there = self._source_neighbours(given, shapes[:, 0])
        owner, neighbour, gradient = _gradients(shapes[:, 0], which, there, bool(self.target.sphere))
        first = np.searchsorted(owner, np.arange(len(given) + 1))
        k, nth = _repeated(np.diff(first)[column])
        e = first[column][k] + nth
        more = (way[k] * gradient[e]).sum(axis=1) * (area / covered[row])[k]
        return (
            np.concatenate([row, row[k]]),
            np.concatenate([column, neighbour[e]]),
            np.concatenate([area / covered[row], more]),
            covered / self._target_areas(),
        )

    def _target_areas(self) -> Array:
        """With the edges that overlaps are computed with."""
        t = self.target
        return np.asarray(
            t.areas(self.points) if self._both_rectangles else _moments(t.corners(self.points))[0]
        )

    def _source_neighbours(self, given: Indices, x: Array) -> tuple[Indices, Any]:
        """Eight cells around each source cell (positions in given), and which of them there are."""
        if not isinstance(self.source, _Rectangles):
            which = _near(x, 8)
            return which, np.ones(which.shape, bool)
        s = self.source
        j, i = s.at(given)
        around = [(a, b) for b in (-1, 0, 1) for a in (-1, 0, 1) if a or b]
        index = np.stack([_across(s, i + a, j + b) for a, b in around], axis=1)
        inside = np.ones(index.shape, bool)
        if not s.sphere:
            inside = np.stack(
                [(i + a >= 0) & (i + a < s.nu) & (j + b >= 0) & (j + b < s.nv) for a, b in around], axis=1
            )
        at = np.searchsorted(given, index)
        at[at == len(given)] = 0
        return at, inside & (given[at] == index)

    @property
    def _both_rectangles(self) -> bool:
        return isinstance(self.source, _Rectangles) and isinstance(self.target, _Rectangles)

    def _overlaps(self, given: Indices, shapes: Array) -> tuple[Indices, Indices, Array, Array]:
        """(target, source, area, moment) of each overlap; moment: the integral of the position over it."""
        if self._both_rectangles:
            return self._rectangle_overlaps(given)
        return self._polygon_overlaps(shapes)

    def _source_moments(self, given: Indices, shapes: Array) -> tuple[Array, Array]:
        if not self._both_rectangles:
            return _moments(shapes[:, 1:])
        s = self.source
        j, i = s.at(given)
        return _rectangle_moments(s.sphere, s.u_edges[i], s.u_edges[i + 1], s.heights[j], s.heights[j + 1])

    def _rectangle_overlaps(self, given: Indices) -> tuple[Indices, Indices, Array, Array]:
        s, t = self.source, self.target
        j, i = t.at(self.points)
        u_first, u_source, u_low, u_high = _meetings(t.u_edges, s.u_edges)
        v_first, v_source, v_low, v_high = _meetings(t.heights, s.heights)
        nu, nv = np.diff(u_first)[i], np.diff(v_first)[j]
        row, nth = _repeated(nu * nv)
        a, b = u_first[i][row] + nth % nu[row], v_first[j][row] + nth // nu[row]
        index = v_source[b] * s.nu + u_source[a]
        at = np.searchsorted(given, index)
        at[at == len(given)] = 0
        kept = given[at] == index
        row, at, a, b = row[kept], at[kept], a[kept], b[kept]
        return row, at, *_rectangle_moments(t.sphere, u_low[a], u_high[a], v_low[b], v_high[b])

    def _polygon_overlaps(self, shapes: Array) -> tuple[Indices, Indices, Array, Array]:
        from scipy.spatial import cKDTree

        x, corners = shapes[:, 0], shapes[:, 1:]
        mine, centre = self.target.corners(self.points), self.target.centres(self.points)
        reach = np.linalg.norm(mine - centre[:, None], axis=2).max(axis=1)
        widest = float(np.linalg.norm(corners - x[:, None], axis=2).max())
        lists = cKDTree(x).query_ball_point(centre, reach + widest + 1e-12, return_sorted=True)
        row = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        column = np.concatenate([np.asarray(each, np.int64) for each in lists]) if len(row) else row
        parts = np.array_split(np.arange(len(row)), max(1, len(row) // 50_000))
        pieces = [_moments(_clipped(mine[row[part]], corners[column[part]])) for part in parts]
        area, moment = (np.concatenate(part) for part in zip(*pieces, strict=True))
        kept = area > 1e-15
        return row[kept], column[kept], area[kept], moment[kept]


def _sparse() -> Any:
    try:
        import scipy.sparse
    except ImportError:
        raise ConfigError(
            "mappings between grids need SciPy", "regrid", "pip install 'hpcomm[mpmd]'"
        ) from None
    return scipy.sparse


def _repeated(counts: Indices) -> tuple[Indices, Indices]:
    k = np.repeat(np.arange(len(counts)), counts)
    return k, np.arange(len(k)) - np.repeat(np.cumsum(counts) - counts, counts)


# -- rectangles ----------------------------------------------------------------------------------------


def _between(centres: Array, x: Array, period: float | None) -> tuple[Indices, Array]:
    """The centre below each x, and how far x is on the way to the next; up to half a way beyond the last."""
    if period is not None:
        centres = np.concatenate(([centres[-1] - period], centres, [centres[0] + period]))
    at = np.clip(np.searchsorted(centres, x, "right") - 1, 0, len(centres) - 2)
    share = (x - centres[at]) / (centres[at + 1] - centres[at])
    share = np.where(np.abs(share) < 1e-13, 0.0, np.where(np.abs(share - 1) < 1e-13, 1.0, share))
    return at - (period is not None), share if period is not None else np.clip(share, -0.5, 1.5)


def _beyond_poles(latitudes: Array) -> Array:
    """With the first and last row once more, seen across the poles."""
    return np.concatenate(([-np.pi - latitudes[0]], latitudes, [np.pi - latitudes[-1]]))


def _across(grid: Any, i: Indices, j: Indices) -> Indices:
    """Index of column i and row j; a row beyond a pole is that row, half way round."""
    if grid.sphere:
        beyond = (j < 0) | (j >= grid.nv)
        i = np.where(beyond, i + grid.nu // 2, i) % grid.nu
        j = np.where(j < 0, 0, np.where(j >= grid.nv, grid.nv - 1, j))
    return np.asarray(j * grid.nu + i, np.int64)


def _meetings(target: Array, source: Array) -> tuple[Indices, Indices, Array, Array]:
    """Where intervals between ascending edges meet: (first of each target, source, low, high)."""
    edges = np.union1d(target, source)
    edges = edges[np.concatenate(([True], np.diff(edges) > 1e-13))]
    edges = edges[
        (edges >= max(target[0], source[0]) - 1e-13) & (edges <= min(target[-1], source[-1]) + 1e-13)
    ]
    middle = (edges[1:] + edges[:-1]) / 2
    t, s = (np.searchsorted(e, middle, "right") - 1 for e in (target, source))
    return np.searchsorted(t, np.arange(len(target))), s, edges[:-1], edges[1:]


def _rectangle_moments(sphere: bool, u0: Array, u1: Array, h0: Array, h1: Array) -> tuple[Array, Array]:
    """(area, integral of the position) over u0..u1 x h0..h1; on the sphere h = sin of the latitude."""
    area = (u1 - u0) * (h1 - h0)
    if not sphere:
        return area, area[:, None] * np.stack([(u0 + u1) / 2, (h0 + h1) / 2], axis=1)
    f0, f1 = ((h * np.sqrt(np.maximum(1 - h * h, 0)) + np.arcsin(np.clip(h, -1, 1))) / 2 for h in (h0, h1))
    x, y = (np.sin(u1) - np.sin(u0)) * (f1 - f0), (np.cos(u0) - np.cos(u1)) * (f1 - f0)
    return area, np.stack([x, y, (u1 - u0) * (h1 - h0) * (h1 + h0) / 2], axis=1)


# -- polygons ------------------------------------------------------------------------------------------


def _moments(corners: Array) -> tuple[Array, Array]:
    """(area, integral of the position) of convex polygons, (n, k, 2 or 3); on the sphere by great circles.

    Triangles fan out from the first corner. The area of a spherical one by Eriksson (1990), from
    differences of corners, so that small ones are as exact as large ones. The integral of the position
    over a spherical polygon is half the sum of arc length times normal over its edges.
    """
    if corners.shape[2] == 2:
        a, b, c = corners[:, :1], corners[:, 1:-1], corners[:, 2:]
        double = (b - a)[..., 0] * (c - a)[..., 1] - (b - a)[..., 1] * (c - a)[..., 0]
        moment = ((a + b + c) * double[..., None]).sum(axis=1) / 6
        return double.sum(axis=1) / 2, moment
    a, b, c = corners[:, :1], corners[:, 1:-1], corners[:, 2:]
    triple = (a * np.cross(b - a, c - a)).sum(axis=2)
    below = 1 + (a * b).sum(axis=2) + (b * c).sum(axis=2) + (c * a).sum(axis=2)
    area = 2 * np.arctan2(triple, below).sum(axis=1)
    following = np.roll(corners, -1, axis=1)
    normal = np.cross(corners, following - corners)
    sine = np.linalg.norm(normal, axis=2)
    arc = np.arctan2(sine, (corners * following).sum(axis=2))
    scale = np.divide(arc, sine, out=np.ones_like(arc), where=sine > 1e-300)
    return area, (normal * scale[..., None]).sum(axis=1) / 2


def _clipped(polygon: Array, window: Array) -> Array:
    """The part of each convex polygon inside its window: Sutherland & Hodgman (1974), all pairs at once.

    Both (n, k, 2 or 3), anticlockwise. On the sphere edges are great circles: the sides of planes through the
    centre. Corners that are no longer needed repeat the last one.
    """
    for e in range(window.shape[1]):
        start, end = window[:, e], window[:, (e + 1) % window.shape[1]]
        if polygon.shape[2] == 2:
            edge = end - start
            off = polygon - start[:, None]
            side = edge[:, None, 0] * off[..., 1] - edge[:, None, 1] * off[..., 0]
        else:
            normal = np.cross(start, end - start)
            side = (polygon * normal[:, None]).sum(axis=2)
        side[np.abs(side) < 1e-16] = 0.0
        polygon = _cut(polygon, side)
    return polygon


def _cut(polygon: Array, side: Array) -> Array:
    """What is left of polygons where side >= 0."""
    following, next_side = np.roll(polygon, -1, axis=1), np.roll(side, -1, axis=1)
    inside = side >= 0
    crosses = (side > 0) & (next_side < 0) | (side < 0) & (next_side > 0)
    if inside.all():
        return polygon
    share = np.divide(side, side - next_side, out=np.zeros_like(side), where=crosses)
    crossing = polygon + share[..., None] * (following - polygon)
    if polygon.shape[2] == 3:
        length = np.linalg.norm(crossing, axis=2, keepdims=True)
        crossing = crossing / np.where(length > 0, length, 1.0)
    n, k, wide = polygon.shape
    both = np.stack([polygon, crossing], axis=2).reshape(n, 2 * k, wide)
    kept = np.stack([inside, crosses], axis=2).reshape(n, 2 * k)
    order = np.argsort(~kept, axis=1, kind="stable")
    count = kept.sum(axis=1)
    most = max(1, int(count.max(initial=1)))
    last = np.maximum(count - 1, 0)[:, None]
    order = np.take_along_axis(order, np.minimum(np.arange(most)[None], last), axis=1)
    made = np.take_along_axis(both, order[..., None], axis=1)
    made[count == 0] = both[count == 0, :1]  # nothing left: a point, which has no area
    return made


def _near(x: Array, k: int) -> Indices:
    """The k nearest others of each point; of equally near ones the lower indices."""
    from scipy.spatial import cKDTree

    count = min(k + 7, len(x))
    distance, which = cKDTree(x).query(x, k=count)
    distance, which = distance.reshape(len(x), count), which.reshape(len(x), count)
    order = np.lexsort((which, np.round(distance, _DIGITS)), axis=1)[:, 1 : k + 1]
    return np.asarray(np.take_along_axis(which, order, axis=1), np.int64)


def _gradients(x: Array, which: Indices, there: Any, sphere: bool) -> tuple[Indices, Indices, Array]:
    """Gradients as sums over neighbours: (cell, neighbour, vector), by weighted least squares.

    The sum of value[neighbour] * vector over the rows of a cell is the gradient there, in its tangent plane.
    """
    n = len(x)
    d = x[which] - x[:, None]
    if sphere:
        d = d - (d * x[:, None]).sum(axis=2, keepdims=True) * x[:, None]
    square = (d * d).sum(axis=2, keepdims=True)
    weighted = np.where(there[..., None], d / np.maximum(square, 1e-300), 0.0)
    pseudo = np.linalg.pinv(np.einsum("nki,nkj->nij", weighted, d), rcond=1e-8, hermitian=True)
    vector = np.einsum("nij,nkj->nki", pseudo, weighted)
    owner = np.repeat(np.arange(n), which.shape[1] + 1)
    neighbour = np.concatenate([which, np.arange(n)[:, None]], axis=1).ravel()
    both = np.concatenate([vector, -vector.sum(axis=1, keepdims=True)], axis=1).reshape(-1, x.shape[1])
    return owner, neighbour, both
