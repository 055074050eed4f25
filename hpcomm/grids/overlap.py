"""What the cells of two grids have in common: by C (_native/search.c), without a compiler by numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from . import geometry
from .grid import Grid
from .rows import Rows
from .triangulation import convex_parts

spatial: Any = LazyModule("scipy.spatial")

_ROUNDING = 1e-14  # of lengths beside coordinates of 1
_MOST = 50_000  # pairs at a time, by numpy
_PAIR = np.dtype([("a", "i8"), ("b", "i8"), ("area", "f8"), ("moment", "f8", 3)])
Overlaps: TypeAlias = tuple[Ints, Ints, Floats, Floats]


class Parts:
    """What cells consist of.

    Attributes:
        count: how many cells there are.
        shapes: convex polygons, (n, corners, 2 or 3), or rectangles on the sphere by their bounds, (n, 4).
        corners: of the shapes.
        owner: the cell that each shape is of.
    """

    def __init__(self, corners: Floats, bounds: Floats | None = None) -> None:
        self.count, whole = len(corners), (corners, np.arange(len(corners)))
        self.corners, self.owner = convex_parts(corners) if bounds is None else whole
        self.is_whole = self.corners is corners
        self.shapes = np.ascontiguousarray(self.corners if bounds is None else bounds, float)

    @classmethod
    def of(cls, grid: Grid | None, points: Ints, corners: Floats) -> Parts:
        """Of cells of a grid: polygons, unless they lie between meridians and parallels."""
        return cls(corners, grid.bounds(points) if isinstance(grid, Rows) and grid.sphere else None)


def overlaps(targets: Parts, sources: Parts, has_moments: bool = False) -> Overlaps:
    """(target, source, area, moment) of all overlaps of cells, by targets, then by sources.

    moment is the integral of the position over it, and not to be used without has_moments. At most one of the
    two consists of rectangles. Cells that only touch have no overlap.
    """
    if geometry.native is None:
        a, b, area, moment = _by_numpy(targets, sources)
    else:
        found = np.frombuffer(geometry.native.overlaps(targets.shapes, sources.shapes, has_moments), _PAIR)
        a, b, area, moment = (np.ascontiguousarray(found[name]) for name in _PAIR.names or ())
        moment = moment[:, : targets.corners.shape[2]]
    if targets.is_whole and sources.is_whole:
        return a, b, area, moment
    pairs, same = np.unique(targets.owner[a] * sources.count + sources.owner[b], return_inverse=True)
    row, column = np.divmod(pairs, max(1, sources.count))
    sums = [np.bincount(same, each, len(pairs)).astype(float) for each in (area, *moment.T)]
    return row, column, sums[0], np.stack(sums[1:], axis=1)


def _by_numpy(targets: Parts, sources: Parts) -> Overlaps:
    (middle, reach), (other, far) = _balls(targets.corners), _balls(sources.corners)
    reach_of_all = (reach + far.max(initial=0)) * (1 + _ROUNDING)
    a, b = geometry.listed(spatial.cKDTree(other).query_ball_point(middle, reach_of_all, return_sorted=True))
    chunks = range(0, max(1, len(a)), _MOST)
    pieces = [_common(targets, sources, a[i : i + _MOST], b[i : i + _MOST]) for i in chunks]
    area, moment = (np.concatenate(part) for part in zip(*pieces, strict=True))
    first = targets.corners[:, :1]
    length = np.linalg.norm(targets.corners - first, axis=2).max(axis=1)
    kept = area > (_ROUNDING * (np.linalg.norm(first[:, 0], axis=1) + length) * length)[a]
    return a[kept], b[kept], area[kept], moment[kept]


def _balls(corners: Floats) -> tuple[Floats, Floats]:
    """(middle, radius) of balls around cells."""
    middle = corners.mean(axis=1)
    reach = np.linalg.norm(corners - middle[:, None], axis=2).max(axis=1)
    over = reach**2 > 1 + (middle**2).sum(axis=1)  # half the sphere, whose cap has corners but not the cell
    return middle, np.where(over & (corners.shape[2] == 3), 2.0, reach)


def _common(ours: Parts, others: Parts, a: Ints, b: Ints) -> tuple[Floats, Floats]:
    """(area, moment) of these pairs."""
    if ours.shapes.ndim == 2:
        return _common(others, ours, b, a)
    if others.shapes.ndim == 2:
        return geometry.within_rectangles(ours.shapes[a], *others.shapes[b].T)
    return geometry.moments(geometry.clipped(ours.shapes[a], others.shapes[b]))
