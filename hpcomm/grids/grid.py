"""Grids that fields live on: latitudes and longitudes, planes, points, and cells given by vertices.

On the sphere everything is done in three dimensions, so no pole and no date line is special. Cells given
by vertices have great circles as edges; cells of latlon and gaussian grids have parallels among
themselves, and great circles against cells.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..core.buffer import refuse_masked
from ..core.types import Floats, Ints
from ..errors import ConfigError, LayoutError
from .geometry import moments
from .methods import GridSpec
from .triangulation import crossing


class Rectangles:
    """Cells that are products of intervals: u x v, numbered row by row: index = j * nu + i."""

    kind = ""
    sphere = True

    def __init__(self, u: Floats, v: Floats) -> None:
        self.u_edges, self.v_edges = u, v
        self.nu, self.nv = len(u) - 1, len(v) - 1

    @property
    def size(self) -> int:
        return self.nu * self.nv

    def is_same(self, other: Rectangles) -> bool:
        """Whether both have the same cells under the same numbers."""
        mine, theirs = (self.u_edges, self.v_edges), (other.u_edges, other.v_edges)
        return self.kind == other.kind and all(map(np.array_equal, mine, theirs))

    @cached_property
    def u_centres(self) -> Floats:
        return (self.u_edges[1:] + self.u_edges[:-1]) / 2

    @cached_property
    def v_centres(self) -> Floats:
        return (self.v_edges[1:] + self.v_edges[:-1]) / 2

    def at(self, points: Ints) -> tuple[Ints, Ints]:
        return points // self.nu, points % self.nu

    def centres(self, points: Ints) -> Floats:
        """Where the values live: (points, 3) on the unit sphere, (points, 2) on a plane."""
        j, i = self.at(points)
        return self.place(self.u_centres[i], self.v_centres[j])

    def corners(self, points: Ints) -> Floats:
        """(points, 4, 3 or 2), anticlockwise seen from outside."""
        j, i = self.at(points)
        u, v = self.u_edges, self.v_edges
        around = [(u[i], v[j]), (u[i + 1], v[j]), (u[i + 1], v[j + 1]), (u[i], v[j + 1])]
        return np.stack([self.place(a, b) for a, b in around], axis=1)

    def place(self, u: Floats, v: Floats) -> Floats:
        return np.stack([u, v], axis=-1)

    def areas(self, points: Ints) -> Floats:
        """Of the cells; on the unit sphere, so that all of them are 4π."""
        j, i = self.at(points)
        return np.diff(self.u_edges)[i] * np.diff(self.heights)[j]

    @property
    def heights(self) -> Floats:
        """v such that du dv is area."""
        return self.v_edges


class Plane(Rectangles):
    """nx x ny cells of a rectangle x0, x1, y0, y1."""

    kind, sphere = "plane", False

    def __init__(self, nx: int, ny: int, bounds: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0)) -> None:
        _check_counts("Plane(nx, ny)", nx, ny)
        if len(bounds) != 4 or not (
            np.isfinite(bounds).all() and bounds[0] < bounds[1] and bounds[2] < bounds[3]
        ):
            raise ConfigError(
                f"bounds are no x0, x1, y0, y1: {bounds}", "Plane", "Plane(nx, ny, (0, 1, 0, 1))"
            )
        super().__init__(np.linspace(bounds[0], bounds[1], nx + 1), np.linspace(bounds[2], bounds[3], ny + 1))


class _Sphere(Rectangles):
    """u: longitude, v: latitude, in radians; the area of a cell is du d(sin v)."""

    def place(self, u: Floats, v: Floats) -> Floats:
        return np.stack([np.cos(v) * np.cos(u), np.cos(v) * np.sin(u), np.sin(v)], axis=-1)

    @property
    def heights(self) -> Floats:
        return np.sin(self.v_edges)


class LatLon(_Sphere):
    """nlat x nlon cells of equal angles, from the south pole, from longitude 0."""

    kind = "latlon"

    def __init__(self, nlat: int, nlon: int) -> None:
        _check_counts("LatLon(nlat, nlon)", nlat, nlon)
        super().__init__(np.linspace(0, 2 * np.pi, nlon + 1), np.linspace(-np.pi / 2, np.pi / 2, nlat + 1))


class Gaussian(_Sphere):
    """nlat Gaussian latitudes with their weights as areas x nlon longitudes, from the south."""

    kind = "gaussian"

    def __init__(self, nlat: int, nlon: int) -> None:
        _check_counts("Gaussian(nlat, nlon)", nlat, nlon)
        z, w = np.polynomial.legendre.leggauss(nlat)
        edges = np.concatenate(([-1.0], np.cumsum(w) - 1.0))
        edges[-1] = 1.0
        super().__init__(np.linspace(0, 2 * np.pi, nlon + 1), np.arcsin(edges))
        self._latitudes = np.arcsin(z)

    @cached_property
    def v_centres(self) -> Floats:
        return self._latitudes


class Points:
    """Points at any coordinates: this rank's own, in the order of its field's points.

    Args:
        coordinates: (points, 2): longitude and latitude in degrees, or x and y.
    """

    kind = "points"

    def __init__(self, coordinates: object, *, sphere: bool = True) -> None:
        self.coordinates = _numbers("Points(coordinates)", coordinates, "(points, 2)", sphere)
        self.sphere = sphere

    def centres(self, points: Ints) -> Floats:
        return placed(self.coordinates, self.sphere)

    def part(self, which: Ints) -> Points:
        return Points(self.coordinates[which], sphere=self.sphere)


class Cells:
    """Cells given by their vertices: this rank's own, in the order of its field's points.

    Args:
        vertices: (cells, vertices, 2): longitude and latitude in degrees, or x and y, anticlockwise; a
            cell with fewer vertices repeats its last one. Edges of a cell must not cross each other. Cells
            that are not convex are cut into several triangles.

    Raises:
        LayoutError: vertices have another shape, or a cell has no area or goes clockwise.
    """

    kind = "cells"

    def __init__(self, vertices: object, *, sphere: bool = True) -> None:
        self.vertices = _numbers("Cells(vertices)", vertices, "(cells, vertices, 2)", sphere)
        self.sphere = sphere
        flat = np.flatnonzero(~(self.areas(np.arange(len(self.vertices))) > 0))
        if len(flat):
            raise LayoutError(
                f"{len(flat)} cells have no area, or go clockwise; the first is {flat[0]}",
                "Cells(vertices)",
                "vertices anticlockwise, seen from outside",
            )
        crossed = crossing(self.corners(np.arange(len(self.vertices))))
        if len(crossed):
            raise LayoutError(
                f"the edges of {len(crossed)} cells cross each other; the first is {crossed[0]}",
                "Cells(vertices)",
                "vertices in the order in which they go round the cell",
            )

    def corners(self, points: Ints) -> Floats:
        return placed(self.vertices, self.sphere)

    def centres(self, points: Ints) -> Floats:
        area, moment = moments(self.corners(points))
        x = moment / area[:, None]
        return x / np.linalg.norm(x, axis=-1, keepdims=True) if self.sphere else x

    def areas(self, points: Ints) -> Floats:
        return moments(self.corners(points))[0]

    def part(self, which: Ints) -> Cells:
        return Cells(self.vertices[which], sphere=self.sphere)


Grid = Plane | LatLon | Gaussian | Points | Cells


def from_spec(spec: GridSpec) -> Plane | LatLon | Gaussian:
    """The grid that a spec describes. Of points and cells a spec has only the kind."""
    if spec.kind == "plane":
        return Plane(spec.shape[0], spec.shape[1], spec.bounds)
    if spec.kind in ("latlon", "gaussian"):
        return (LatLon if spec.kind == "latlon" else Gaussian)(*spec.shape)
    raise ConfigError(
        f"grid {spec.name!r} is of kind {spec.kind}: its coordinates are the program's",
        "grid",
        "hpcomm.regrid.Points(coordinates) or hpcomm.regrid.Cells(vertices)",
    )


def _check_counts(what: str, *counts: object) -> None:
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in counts):
        raise ConfigError(f"a grid of {' x '.join(map(repr, counts))} cells", what, "whole numbers from 1")


def _numbers(what: str, given: object, shape: str, sphere: bool) -> Floats:
    """given as an array of this shape, each number finite, and each latitude one."""
    refuse_masked(given, "the coordinates are", what)
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise LayoutError(f"these are no coordinates: {error}", what, f"an array of shape {shape}") from None
    if not found.size:
        return found.reshape(0, *(1, 2)[-shape.count(",") :])
    if found.ndim != shape.count(",") + 1 or found.shape[-1] != 2:
        raise LayoutError(f"the shape is {found.shape}", what, f"an array of shape {shape}")
    if not np.isfinite(found).all():
        raise LayoutError("some coordinates are not finite", what, "nan marks nothing: leave such points out")
    if sphere and np.abs(found[..., 1]).max() > 90.0 + 1e-9:
        raise LayoutError(
            f"there is a latitude of {found[..., 1].flat[np.abs(found[..., 1]).argmax()]:g} degrees",
            what,
            "longitude first, then latitude; sphere=False on a plane",
        )
    return found


def placed(coordinates: Floats, sphere: bool) -> Floats:
    if not sphere:
        return coordinates
    lon, lat = np.radians(coordinates[..., 0]), np.radians(coordinates[..., 1])
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def areas_against(grid: Any, points: Ints, other_kind: str | None) -> Floats:
    """Areas of cells, with edges as in overlaps with a grid of the other kind."""
    if "cells" in (grid.kind, other_kind):
        return moments(grid.corners(points))[0]
    return np.asarray(grid.areas(points))


def size_of(grid: Grid) -> int:
    """How many points a grid has; of points and cells, this rank."""
    if isinstance(grid, Rectangles):
        return grid.size
    return len(grid.coordinates if isinstance(grid, Points) else grid.vertices)
