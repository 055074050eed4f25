"""Grids that fields live on: what all of them have, and points at any coordinates.

On the sphere everything is done in three dimensions, so no pole and no date line is special. Edges are those
of the grid, whatever it is mapped to: meridians and parallels in rows (rows.py), great circles between the
vertices of other cells (cells.py), straight lines on a plane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.buffer import refuse_masked
from ..core.types import Floats, Ints
from ..errors import ConfigError, DtypeError, LayoutError
from .geometry import moments, places, repeated
from .methods import KINDS


class Grid(ABC):
    """Points, each with a cell around it or without.

    Of grids by formula every rank knows all, and asks for global indices. Of others it has its own part, in
    the order of its field's points, and gets all of that, whatever it asks for.

    Attributes:
        kind: its name in specs (methods.KINDS).
        sphere: whether it lies on the unit sphere, and not on a plane.
        size: how many points it has; of points and cells that are given, this rank.
    """

    kind = ""
    sphere = True
    size: int

    @property
    def is_own(self) -> bool:
        """Whether this is a rank's own part."""
        return KINDS[self.kind].is_own

    @property
    def surface(self) -> str:
        """What it lies on: "sphere" or "plane", or, of points alone, "space"."""
        return "sphere" if self.sphere else "plane"

    @abstractmethod
    def centres(self, points: Ints) -> Floats:
        """Where the values live: (points, 3) on the unit sphere or in space, (points, 2) on a plane."""

    @abstractmethod
    def corners(self, points: Ints) -> Floats:
        """Of the cells, (points, corners, 3 or 2), anticlockwise seen from outside; none of bare points."""

    def moments(self, points: Ints) -> tuple[Floats, Floats]:
        """Of the cells: (area, integral of the position)."""
        return moments(self.corners(points))

    def areas(self, points: Ints) -> Floats:
        """Of the cells; those of the unit sphere fill 4π."""
        return self.moments(points)[0]

    def is_same(self, other: Grid) -> bool:
        """Whether both have the same cells under the same numbers, of grids by formula."""
        mine, theirs = (vars(each) for each in (self, other))
        return self.kind == other.kind and all(np.array_equal(mine[key], theirs[key]) for key in mine)

    def part(self, which: Ints) -> Grid:
        """Some of this rank's own part. A grid by formula stays whole: its points are asked for by index."""
        return self


class PointCloud(Grid):
    """Points at any coordinates: this rank's own, in the order of its field's points.

    Args:
        coordinates: (points, 2): longitude and latitude in degrees, or x and y. In space (points, 3).
    """

    kind = "points"

    def __init__(self, coordinates: object, *, sphere: bool = True) -> None:
        wide = (2,) if sphere else (2, 3)
        self.coordinates = numbers("PointCloud(coordinates)", coordinates, "(points, 2)", sphere, wide)
        self.sphere = sphere
        self.size = len(self.coordinates)

    @property
    def surface(self) -> str:
        return "space" if self.coordinates.shape[1] == 3 else super().surface

    def centres(self, points: Ints) -> Floats:
        return placed(self.coordinates, self.sphere)

    def corners(self, points: Ints) -> Floats:
        return self.centres(points)[:, None][:, :0]

    def part(self, which: Ints) -> PointCloud:
        return PointCloud(self.coordinates[which], sphere=self.sphere)


class Mesh(PointCloud):
    """Points and the edges or triangles between them: this rank's own points, in the order of its field's.

    Args:
        coordinates: as of PointCloud.
        cells: (cells, 2) or (cells, 3): the global indices of the points of each edge or triangle. All cells
            that have a point of this rank; others may be among them.
    """

    kind = "mesh"

    def __init__(self, coordinates: object, cells: object, *, sphere: bool = True) -> None:
        super().__init__(coordinates, sphere=sphere)
        found = np.asarray(cells)
        if not found.size:
            found = np.empty((0, 3), np.int64)
        is_table = found.ndim == 2 and found.shape[1] in (2, 3) and found.dtype.kind in "iu"
        if not is_table or found.min(initial=0) < 0:
            what = f"cells are {found.dtype} of shape {found.shape}"
            raise LayoutError(what, "Mesh(cells)", "global indices from 0, (cells, 2) or (cells, 3)")
        self.cells = np.pad(found.astype(np.int64), ((0, 0), (0, 3 - found.shape[1])), "edge")

    def cells_of(self, points: Ints) -> Ints:
        """The cells of each point, three numbers of points one after the other, (points, 3 n).

        An edge has its last point twice. Behind the last cell comes the point itself.
        """
        order = np.argsort(points)
        at, here = places(points[order], self.cells)
        row, cell = order[at[here]], np.nonzero(here)[0]
        first = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=len(points))
        found = np.tile(points[:, None, None], (1, max(1, int(counts.max(initial=0))), 3))
        found[row[first], repeated(counts)[1]] = self.cells[cell[first]]
        return found.reshape(len(points), 3 * found.shape[1])

    def part(self, which: Ints) -> Mesh:
        return Mesh(self.coordinates[which], self.cells, sphere=self.sphere)


def checked_areas(areas: object, count: int, whose: str, where: str) -> Floats:
    """The areas that a model has of count cells, as numbers above 0."""
    refuse_masked(areas, f"{whose} are", where)
    try:
        found = np.asarray(areas, float)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (count,) or not (np.isfinite(found) & (found > 0)).all():
        what = f"{whose} are no numbers above 0, one for each of {count} cells"
        raise LayoutError(what, where, "an array of shape (cells,), in the order of the points")
    return found


def indices(chosen: object, size: int, name: str, where: str) -> Ints:
    """What was chosen of a grid's points, if these are global indices."""
    refuse_masked(chosen, f"{name} is", where)
    found = np.asarray(chosen)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        hint = "np.flatnonzero(mask)" if found.dtype == bool else f"{name}=np.arange(first, last)"
        raise DtypeError(f"{name} is no list of indices, but {found.dtype}", where, hint)
    if found.size and not (found.min() >= 0 and found.max() < size):
        what = f"{name} has indices from {found.min()} to {found.max()}, and the grid has {size} points"
        raise LayoutError(what, where, "global indices from 0")
    return found.astype(np.int64)


def check_counts(what: str, *counts: object) -> None:
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in counts):
        raise ConfigError(f"a grid of {' x '.join(map(repr, counts))} cells", what, "whole numbers from 1")


def numbers(what: str, given: object, shape: str, sphere: bool, wide: tuple[int, ...] = (2,)) -> Floats:
    """given as an array of this shape, its last axis so wide, each number finite, and each latitude one."""
    refuse_masked(given, "the coordinates are", what)
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise LayoutError(f"these are no coordinates: {error}", what, f"an array of shape {shape}") from None
    if not found.size:
        last = found.shape[-1] if found.shape[-1] in wide else 2
        return found.reshape(0, *(1, last)[-shape.count(",") :])
    if found.ndim != shape.count(",") + 1 or found.shape[-1] not in wide:
        raise LayoutError(f"the shape is {found.shape}", what, f"an array of shape {shape}")
    if not np.isfinite(found).all():
        raise LayoutError("some coordinates are not finite", what, "nan marks nothing: leave such points out")
    if sphere and np.abs(found[..., 1]).max() > 90.0 + 1e-9:
        wrong = f"there is a latitude of {found[..., 1].flat[np.abs(found[..., 1]).argmax()]:g} degrees"
        raise LayoutError(wrong, what, "longitude first, then latitude; sphere=False on a plane")
    return found


def placed(coordinates: Floats, sphere: bool) -> Floats:
    """Degrees of longitude and latitude as points of the unit sphere; coordinates of a plane as they are."""
    return on_sphere(*np.radians(np.moveaxis(coordinates, -1, 0))) if sphere else coordinates


def on_sphere(u: Floats, v: Floats) -> Floats:
    return np.stack([np.cos(v) * np.cos(u), np.cos(v) * np.sin(u), np.sin(v)], axis=-1)


def degrees(x: Floats) -> Floats:
    """Longitudes and latitudes of points of the unit sphere, (points, 2)."""
    return np.asarray(np.degrees(np.stack([np.arctan2(x[:, 1], x[:, 0]), np.arcsin(x[:, 2])], axis=1)))


def joined(parts: Sequence[Sequence[Any]]) -> Any:
    """(indices, corners, ...) of some parts of a grid, ascending, each point once.

    Some ranks' cells have more vertices than others': these repeat their last one.
    """
    parts = [part for part in parts if len(part[0])] or [*parts[:1]]
    wide = max(part[1].shape[1] for part in parts)
    index, corners, *more = zip(*parts, strict=True)
    corners = tuple(np.pad(c, ((0, 0), (0, wide - c.shape[1]), (0, 0)), "edge") for c in corners)
    found, first = np.unique(np.concatenate(index), return_index=True)
    return found, *(np.concatenate(each)[first] for each in (corners, *more))
