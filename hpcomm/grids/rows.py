"""Grids in rows: cells between two parallels and two meridians, or straight lines on a plane.

Rows may have different numbers of columns. What two such grids have in common are intervals of rows and of
columns, so no polygon is cut. Longitudes go round: a column beyond the last one is the first.
"""

from __future__ import annotations

import numpy as np

from ..core.buffer import refuse_masked
from ..core.types import Floats, Ints
from ..errors import ConfigError, LayoutError
from .geometry import places, rectangle_moments, repeated
from .gradients import around_cells
from .grid import Grid, check_counts, on_sphere

_ROUND = 2 * np.pi
_LITTLE = 1e-13  # of coordinates: edges that are nearer are one
_FULL = 1e-9  # edges of columns this near to a full circle close it
_IS_EDGE = np.array([False, True, False, True, True, False, True, False])  # of the eight around a cell


class Rows(Grid):
    """Rows of cells, numbered row by row, west to east.

    Attributes:
        nu, nv: columns and rows. nu is the most that a row has.
        u_edges, v_edges: of columns, ascending, and of rows, in either order: longitudes and latitudes in
            radians, or x and y.
        u_centres, v_centres: where the values live.
        heights: v such that du dv is area, of the edges of rows.
        is_aligned: whether all rows have the same columns.
        widest: of all cells, along u.
    """

    is_aligned = True

    def __init__(
        self, u: tuple[Floats, Floats], v: tuple[Floats, Floats], heights: Floats | None = None
    ) -> None:
        (self.u_edges, self.u_centres), (self.v_edges, self.v_centres) = u, v
        self.nu, self.nv = len(self.u_edges) - 1, len(self.v_edges) - 1
        self.size = self.nu * self.nv
        self.heights = (np.sin(self.v_edges) if self.sphere else self.v_edges) if heights is None else heights
        # columns round the sphere; what lies beside a region of it counts as one more
        self._round = self.nu + int(self.sphere and self.u_edges[-1] - self.u_edges[0] < _ROUND - _FULL)
        self.widest = float(np.diff(self.u_edges).max(initial=0.0))
        self._descends = self.nv > 0 and self.v_edges[0] > self.v_edges[-1]

    # -- cells ---------------------------------------------------------------------------------------------
    def at(self, points: Ints) -> tuple[Ints, Ints]:
        """(row, column)."""
        return points // self.nu, points % self.nu

    def index(self, j: Ints, i: Ints) -> Ints:
        """Of row j and column i, which may be beyond the last one; -1: there is no such cell."""
        inside = (j >= 0) & (j < self.nv)
        i = i % self._round if self.sphere else i
        return np.asarray(np.where(inside & (i >= 0) & (i < self.nu), j * self.nu + i, -1), np.int64)

    def column(self, j: Ints, u: Floats) -> Ints:
        """The column of row j that u lies in, whichever way round."""
        turn = np.floor((u - self.u_edges[0]) / _ROUND).astype(np.int64) if self.sphere else 0
        found = np.searchsorted(self.u_edges, u - turn * _ROUND, "right") - 1
        return np.asarray(np.clip(found, 0, self._round - 1) + turn * self._round if self.sphere else found)

    def west(self, j: Ints, i: Ints) -> Floats:
        """The edge where column i of row j begins."""
        if not self.sphere:
            return self.u_edges[np.clip(i, 0, self.nu)]
        turn, i = np.divmod(i, self._round)
        return np.asarray(self.u_edges[i] + turn * _ROUND)

    def middle(self, j: Ints, i: Ints) -> Floats:
        """Where column i of row j has its value."""
        return self.u_centres[i]

    def place(self, u: Floats, v: Floats) -> Floats:
        return on_sphere(u, v) if self.sphere else np.stack([u, v], axis=-1)

    def centres(self, points: Ints) -> Floats:
        j, i = self.at(points)
        return self.place(self.middle(j, i), self.v_centres[j])

    def bounds(self, points: Ints) -> Floats:
        """Of each cell, (cells, 4): u from and to, height from and to."""
        j, i = self.at(points)
        return np.stack([self.west(j, i), self.west(j, i + 1), *self._between(self.heights, j)], axis=1)

    def _between(self, edges: Floats, j: Ints) -> tuple[Floats, Floats]:
        return np.minimum(edges[j], edges[j + 1]), np.maximum(edges[j], edges[j + 1])

    def corners(self, points: Ints) -> Floats:
        j, i = self.at(points)
        west, east = self.west(j, i), self.west(j, i + 1)
        south, north = self._between(self.v_edges, j)
        around = ((west, south), (east, south), (east, north), (west, north))
        return np.stack([self.place(u, v) for u, v in around], axis=1)

    def moments(self, points: Ints) -> tuple[Floats, Floats]:
        return rectangle_moments(self.sphere, *self.bounds(points).T)

    # -- mappings ------------------------------------------------------------------------------------------
    def overlaps(self, points: Ints, source: Rows) -> tuple[Ints, Ints, Floats, Floats]:
        """With the cells of source: (position in points, index, area, moment) of each."""
        low, high = self._between(self.heights, np.arange(self.nv))
        edges = source.heights[:: -1 if source._descends else 1]
        little = _LITTLE * float(np.abs(edges[[0, -1]]).max())
        first = np.maximum(np.searchsorted(edges, low + little, "right") - 1, 0)
        last = np.minimum(np.searchsorted(edges, high - little, "left"), source.nv)
        j, i = self.at(points)
        row, nth = repeated(np.maximum(last - first, 0)[j])
        b = first[j][row] + nth
        h0, h1 = np.maximum(low[j][row], edges[b]), np.minimum(high[j][row], edges[b + 1])
        b = source.nv - 1 - b if source._descends else b
        u0, u1 = self.west(j, i)[row], self.west(j, i + 1)[row]
        little = _LITTLE * float(np.abs(self.u_edges).max())
        west, east = source.column(b, u0 + little), source.column(b, u1 - little)
        k, nth = repeated(np.maximum(east - west + 1, 0))
        row, a, b = row[k], west[k] + nth, b[k]
        u0, u1 = np.maximum(u0[k], source.west(b, a)), np.minimum(u1[k], source.west(b, a + 1))
        index = source.index(b, a)
        kept = (index >= 0) & (u1 > u0)
        rectangle = (each[kept] for each in (u0, u1, h0[k], h1[k]))
        return row[kept], index[kept], *rectangle_moments(self.sphere, *rectangle)

    def around(self, given: Ints) -> tuple[Ints, Ints]:
        """(cell, neighbour), as positions in given, ascending: who is on the other side of an edge.

        Where these are few (coasts), or rows have other columns than the next: all eight around it.
        """
        j, i = self.at(given)
        u = self.middle(j, i)
        cells = []
        for b in (-1, 0, 1):
            row, beyond = self._across(j + b)
            a = self.column(row, u + beyond) if b else i
            cells += [self.index(row, a + more) for more in (-1, 0, 1) if b or more]
        index = np.stack(cells, axis=1)
        at, kept = places(given, index)
        if self.is_aligned:
            kept &= _IS_EDGE | (kept[:, _IS_EDGE].sum(axis=1) < 4)[:, None]
        return np.nonzero(kept)[0], at[kept]

    def _across(self, j: Ints) -> tuple[Ints, Floats]:
        """(row, how far round) for rows that may be beyond a pole: seen across it, half way round."""
        if not self.sphere:
            return j, np.zeros(j.shape)
        at_pole = np.abs(np.abs(self.heights[[0, -1]]) - 1) < _LITTLE
        row = np.where((j < 0) & at_pole[0], 0, np.where((j >= self.nv) & at_pole[1], self.nv - 1, j))
        return row, np.where(row == j, 0.0, np.pi)

    def between(self, x: Floats) -> tuple[Ints, Floats]:
        """(index, share) of the four that each place lies between, (places, 4); index -1: there is none."""
        u, v = x.T if not self.sphere else (np.arctan2(x[:, 1], x[:, 0]), np.arcsin(np.clip(x[:, 2], -1, 1)))
        order = -1 if self._descends else 1
        centres = self.v_centres[::order]
        ends = np.sort(self.v_edges[[0, -1]])
        reaches = [self.sphere and abs(abs(end) - np.pi / 2) < _LITTLE for end in ends]
        south = [-np.pi - centres[0]] if reaches[0] and centres[0] > ends[0] else []
        north = [np.pi - centres[-1]] if reaches[1] and centres[-1] < ends[1] else []
        b, share = _below(np.concatenate([south, centres, north]), v)
        b = b - len(south)
        index, shares = [], []
        for row, part in ((b, 1 - share), (b + 1, share)):
            j, beyond = self._across(row if order == 1 else self.nv - 1 - row)
            a, along = self._columns(np.clip(j, 0, self.nv - 1), u + beyond)
            index += [self.index(j, a), self.index(j, a + 1)]
            shares += [part * (1 - along), part * along]
        inside = np.ones(len(x), bool)
        for at, edges in ((v, ends), (self._unrolled(u), self.u_edges[[0, -1]])):
            little = 1e-14 * np.abs(edges).max()
            inside &= (at >= edges[0] - little) & (at <= edges[1] + little)
        return np.where(inside[:, None], np.stack(index, axis=1), -1), np.stack(shares, axis=1)

    def _unrolled(self, u: Floats) -> Floats:
        """Longitudes within one turn from the first edge on; x of a plane."""
        if not self.sphere:
            return u
        first = self.u_edges[0] - _LITTLE
        return np.asarray(first + (u - first) % _ROUND)

    def _columns(self, j: Ints, u: Floats) -> tuple[Ints, Floats]:
        """The column of row j whose centre is below u, and how far u is on the way to the next one."""
        u = self._unrolled(u)
        if not self.sphere or self._round > self.nu:
            return _below(self.u_centres, u)
        c = self.u_centres
        i, share = _below(np.concatenate([[c[-1] - _ROUND], c, [c[0] + _ROUND]]), u)
        return i - 1, share


def _below(centres: Floats, x: Floats) -> tuple[Ints, Floats]:
    """The centre below each x, and how far x is on the way to the next; up to half a way beyond the last."""
    if len(centres) == 1:
        return np.zeros(len(x), np.int64), np.zeros(len(x))
    at = np.clip(np.searchsorted(centres, x, "right") - 1, 0, len(centres) - 2)
    share = (x - centres[at]) / (centres[at + 1] - centres[at])
    return at, np.clip(_snapped(share), -0.5, 1.5)


def _snapped(share: Floats) -> Floats:
    """0 and 1 but for rounding are 0 and 1."""
    return np.where(np.abs(share) < _LITTLE, 0.0, np.where(np.abs(share - 1) < _LITTLE, 1.0, share))


def _even(low: float, high: float, count: int) -> tuple[Floats, Floats]:
    edges = np.linspace(low, high, count + 1)
    return edges, _middles(edges)


def _middles(edges: Floats) -> Floats:
    return np.asarray((edges[1:] + edges[:-1]) / 2)


class Plane(Rows):
    """nx x ny cells of a rectangle x0, x1, y0, y1."""

    kind, sphere = "plane", False

    def __init__(self, nx: int, ny: int, bounds: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0)) -> None:
        check_counts("Plane(nx, ny)", nx, ny)
        is_box = len(bounds) == 4 and bounds[0] < bounds[1] and bounds[2] < bounds[3]
        if not (is_box and np.isfinite(bounds).all()):
            what = f"bounds are no x0, x1, y0, y1: {bounds}"
            raise ConfigError(what, "Plane", "Plane(nx, ny, (0, 1, 0, 1))")
        super().__init__(_even(bounds[0], bounds[1], nx), _even(bounds[2], bounds[3], ny))


class LatLon(Rows):
    """Cells between meridians and parallels: nlat x nlon equal ones of the sphere, or as they are given.

    Args:
        nlat, nlon: so many of equal angles, from the south pole and from longitude 0.
        lat, lon: where the values live, in degrees: latitudes in either order, longitudes eastward from
            anywhere. Edges are half way between, if none are given.
        lat_edges, lon_edges: one more of each, of the cells. They need not reach round the sphere.

    Raises:
        LayoutError: latitudes or longitudes are not in order, or not on the sphere.
    """

    kind = "latlon"

    def __init__(
        self,
        nlat: int | None = None,
        nlon: int | None = None,
        *,
        lat: object = None,
        lon: object = None,
        lat_edges: object = None,
        lon_edges: object = None,
    ) -> None:
        v, u = _axis("lat", lat, lat_edges), _axis("lon", lon, lon_edges)
        check_counts("LatLon(nlat, nlon)", nlat if v is None else 1, nlon if u is None else 1)
        super().__init__(u or _even(0, _ROUND, nlon or 1), v or _even(-np.pi / 2, np.pi / 2, nlat or 1))


def _axis(name: str, centres: object, edges: object) -> tuple[Floats, Floats] | None:
    """(edges, centres) in radians; None: neither is given."""
    is_lon = name == "lon"
    c, e = _angles(centres, is_lon), _angles(edges, is_lon)
    if e is None:
        if c is None:
            return None
        if c.ndim != 1 or len(c) < 2:
            raise LayoutError(f"{name} has the shape {c.shape}", "LatLon", f"two or more; or {name}_edges=")
        e = np.concatenate([[1.5 * c[0] - 0.5 * c[1]], _middles(c), [1.5 * c[-1] - 0.5 * c[-2]]])
        e = e if is_lon else np.clip(e, -np.pi / 2, np.pi / 2)
    middles = _middles(e)
    c = middles if c is None else c
    steps = np.diff(e) * (1.0 if is_lon else np.sign(e[-1] - e[0]))
    if c.shape != middles.shape or e.ndim != 1 or not (steps > 0).all():
        what = f"{len(c)} of {name} and {len(e)} edges are not in order"
        raise LayoutError(what, "LatLon", f"{name} one after the other, with one more of {name}_edges")
    c = c - _ROUND * np.round((c - middles) / _ROUND) if is_lon else c
    beyond = np.abs(c - middles) > steps / 2 + _LITTLE
    if beyond.any():
        first = beyond.argmax()
        what = f"{name} {np.degrees(c[first]):g} is not between its edges, the first of {beyond.sum()}"
        raise LayoutError(what, "LatLon", f"{name}_edges around each of {name}")
    wide = float(e[-1] - e[0] - _ROUND if is_lon else np.abs(e).max() - np.pi / 2)
    if wide > _FULL:
        what = f"{name} reaches {np.degrees(wide):.3g} degrees too far"
        raise LayoutError(what, "LatLon", "90 each way, or once round")
    if is_lon and wide > -_FULL:
        e[-1] = e[0] + _ROUND
    return e, c


def _angles(given: object, is_lon: bool) -> Floats | None:
    """Degrees in radians; of longitudes, that go eastward, a turn more each time they begin anew."""
    if given is None:
        return None
    refuse_masked(given, "the coordinates are", "LatLon")
    found = np.atleast_1d(np.radians(np.asarray(given, float)))
    anew = np.cumsum(np.diff(found, prepend=found[:1]) <= 0, axis=0) - 1
    return np.asarray(found + _ROUND * anew if is_lon else found)


def _gaussian(nlat: int) -> tuple[tuple[Floats, Floats], Floats]:
    """((edges, centres) of the rows, heights of the edges), from the south: areas are Gaussian weights."""
    z, w = np.polynomial.legendre.leggauss(nlat)
    heights = np.concatenate(([-1.0], np.cumsum(w) - 1.0))
    heights[-1] = 1.0
    return (np.arcsin(heights), np.arcsin(z)), heights


class Gaussian(Rows):
    """nlat Gaussian latitudes with their weights as areas x nlon longitudes, from the south."""

    kind = "gaussian"

    def __init__(self, nlat: int, nlon: int) -> None:
        check_counts("Gaussian(nlat, nlon)", nlat, nlon)
        super().__init__(_even(0, _ROUND, nlon), *_gaussian(nlat))


class ReducedGaussian(Rows):
    """A reduced Gaussian grid: 2 N Gaussian latitudes from the north, whose rows have ever more columns.

    The first column of each row has its value at longitude 0, as in GRIB files.

    Args:
        N: half the number of rows. Without rows the grid is octahedral: row i has 20 + 4 i columns.
        rows: columns of each row, from the north; of the first N rows, if the others are like them.
    """

    kind, is_aligned = "reduced_gaussian", False

    def __init__(self, N: int | None = None, *, rows: object = None) -> None:  # noqa: N803  # as it is called
        if rows is None or N is not None:
            check_counts("ReducedGaussian(N)", N)
        counts = np.asarray(20 + 4 * np.arange(N or 0) if rows is None else rows)
        if len(counts) == N:
            counts = np.concatenate([counts, counts[::-1]])
        wanted = 2 * (N or len(counts) // 2)
        if counts.shape != (wanted,) or counts.dtype.kind not in "iu" or not (counts > 0).all():
            what = f"rows are no numbers of columns of {wanted} rows"
            raise LayoutError(what, "ReducedGaussian", "rows=[20, 24, ...], from the north")
        (edges, centres), heights = _gaussian(len(counts))
        most = int(counts.max())
        u = (np.arange(most + 1) - 0.5) * _ROUND / most, np.arange(most) * _ROUND / most
        super().__init__(u, (edges[::-1], centres[::-1]), heights[::-1])
        self.counts, self.first = counts, np.concatenate([[0], np.cumsum(counts)])
        self.size, self.widest = int(self.first[-1]), float(_ROUND / counts.min())

    def at(self, points: Ints) -> tuple[Ints, Ints]:
        j = np.searchsorted(self.first, points, "right") - 1
        return j, points - self.first[j]

    def _count(self, j: Ints) -> Ints:
        return self.counts[np.clip(j, 0, self.nv - 1)]

    def index(self, j: Ints, i: Ints) -> Ints:
        found = self.first[np.clip(j, 0, self.nv - 1)] + i % self._count(j)
        return np.asarray(np.where((j >= 0) & (j < self.nv), found, -1), np.int64)

    def column(self, j: Ints, u: Floats) -> Ints:
        return np.floor(u * (self._count(j) / _ROUND) + 0.5).astype(np.int64)

    def west(self, j: Ints, i: Ints) -> Floats:
        return np.asarray((i - 0.5) * (_ROUND / self._count(j)))

    def middle(self, j: Ints, i: Ints) -> Floats:
        return np.asarray(i * (_ROUND / self._count(j)))

    def _columns(self, j: Ints, u: Floats) -> tuple[Ints, Floats]:
        x = u * (self._count(j) / _ROUND)
        i = np.floor(x + _LITTLE)
        return i.astype(np.int64), _snapped(x - i)


def around(grid: Grid | None, index: Ints, corners: Floats, scale: float) -> tuple[Ints, Ints]:
    """(cell, neighbour), as positions in index, ascending: who is on the other side of an edge."""
    return grid.around(index) if isinstance(grid, Rows) else around_cells(corners, scale)
