"""Triangulation of cells that are not convex, as the intersection of cells needs it.

On the sphere a cell is seen from the centre of the sphere on the plane that touches it at the cell's middle:
there great circles are straight lines.
"""

from __future__ import annotations

import numpy as np

from .._lazy import NDArray
from ..core.types import Floats, Ints
from .geometry import tangents, turn

_FLAT = 1e-12  # of a cell's size squared: three corners that span less lie on one line
_LOST = 1e-9  # of a cell's area: triangles of a cell that does not cross itself lose less


def convex_parts(corners: Floats) -> tuple[Floats, Ints]:
    """(convex polygons, the cell that each is of), in the order of the cells: themselves, or their triangles.

    Args:
        corners: (n, k, 2 or 3) of cells, anticlockwise; a cell with fewer corners repeats its last one.
    """
    n, k, _ = corners.shape
    bent = np.flatnonzero(~_are_convex(corners))
    if not len(bent):
        return corners, np.arange(n)
    which, area, _ = _triangles(_flattened(corners[bent]))
    of = np.repeat(bent, k - 2)
    parts = corners[of[:, None], which.reshape(-1, 3)]
    parts = np.pad(parts, ((0, 0), (0, k - 3), (0, 0)), "edge")
    real = (area > _FLAT * area.sum(axis=1, keepdims=True)).ravel()
    parts, of = parts[real], of[real]
    straight = np.setdiff1d(np.arange(n), bent)
    owner = np.concatenate([straight, of])
    order = np.argsort(owner, kind="stable")
    return np.concatenate([corners[straight], parts])[order], owner[order]


def crossing(corners: Floats) -> Ints:
    """The cells whose edges cross each other."""
    bent = np.flatnonzero(~_are_convex(corners))
    return bent[_triangles(_flattened(corners[bent]))[2]] if len(bent) else bent


def _are_convex(corners: Floats) -> NDArray[np.bool_]:
    """Whether no corner lies behind any edge."""
    x, y = np.ascontiguousarray(np.moveaxis(_flattened(corners), 0, 2).swapaxes(0, 1))
    least = -_FLAT * np.maximum(np.abs(x - x[0]), np.abs(y - y[0])).max(axis=0) ** 2
    found = np.ones(len(corners), bool)
    for e in range(len(x)):
        after = (e + 1) % len(x)
        bend = (x[after] - x[e]) * (y - y[e]) - (y[after] - y[e]) * (x - x[e])
        found &= (bend >= least).all(axis=0)
    return found


def _flattened(corners: Floats) -> Floats:
    """Corners on a plane, (n, k, 2), where edges are straight. Cells of half a sphere become points."""
    if corners.shape[2] == 2:
        return corners
    middle = corners.mean(axis=1)
    middle = middle / np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-300)
    off = corners - middle[:, None]  # of small cells, which would be lost in the digits of 1
    height = 1 + (off * middle[:, None]).sum(axis=2)
    seen = (height > 1e-3).all(axis=1)[:, None, None]
    across = np.stack([(off * axis[:, None]).sum(axis=2) for axis in tangents(middle)], axis=2)
    return np.where(seen, across / np.maximum(height, 1e-3)[..., None], 0.0)


def _triangles(flat: Floats) -> tuple[Ints, Floats, NDArray[np.bool_]]:
    """(corners and areas of k - 2 triangles each, whether the cell crosses itself).

    Ears are cut off, from all cells at once.
    An ear is a corner whose triangle with its neighbours has no other corner in it (Meisters 1975).
    """
    n, k, _ = flat.shape
    left = np.tile(np.arange(k), (n, 1))
    made = []
    for m in range(k, 3, -1):
        ear = _best_ears(np.take_along_axis(flat, left[..., None], axis=1))
        made.append(np.stack([left[np.arange(n), (ear + i) % m] for i in (-1, 0, 1)], axis=1))
        left = left[np.arange(m) != ear[:, None]].reshape(n, m - 1)
    which = np.stack([*made, left], axis=1)
    corners = flat[np.arange(n)[:, None, None], which]
    area = np.abs(turn(corners[:, :, 0], corners[:, :, 1], corners[:, :, 2]))
    whole = turn(flat[:, :1], flat[:, 1:-1], flat[:, 2:]).sum(axis=1)
    return which, area, np.abs(area.sum(axis=1) - whole) > _LOST * np.abs(whole)


def _best_ears(flat: Floats) -> Ints:
    """Of each polygon the ear with the largest area for its edges; if it has none, any corner."""
    before, after = np.roll(flat, 1, axis=1), np.roll(flat, -1, axis=1)
    bend = turn(before, flat, after)
    inside = np.ones((len(flat), flat.shape[1], flat.shape[1]), bool)
    for a, b in ((before, flat), (flat, after), (after, before)):
        inside &= turn(a[:, :, None], b[:, :, None], flat[:, None]) >= 0
    for corner in (before, flat, after):
        inside &= (corner[:, :, None] != flat[:, None]).any(axis=3)
    size = np.linalg.norm(flat - before, axis=2) * np.linalg.norm(after - flat, axis=2)
    score = np.divide(bend, size, out=np.zeros_like(bend), where=size > 0)
    return np.asarray(np.where(inside.any(axis=2) | (bend < 0), -2.0, score).argmax(axis=1))
