"""Vectors on the sphere: their components to the east and to the north, and the same in three dimensions.

East and north turn from point to point, and around a pole they turn a lot. So what is mapped is the vector in
space. Components may have other directions, as along the axes of a tripolar grid: the bases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.buffer import refuse_masked
from ..core.types import AnyArray, Floats
from ..errors import LayoutError

_UNIT = 1e-6  # by which a unit vector may be longer or shorter, and what the area between two is at least


def checked_bases(bases: object, count: int, whose: str, where: str) -> Floats:
    """The directions of both components at count points, (points, 2, 2): each to the east, to the north."""
    refuse_masked(bases, f"{whose} are", where)
    hint = "degrees from east, counterclockwise, of shape (points,); or (points, 2, 2): of both components, "
    hint += "to the east and to the north"
    try:
        found = np.asarray(bases, float)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape == (count,):
        east, north = np.cos(np.radians(found)), np.sin(np.radians(found))
        found = np.stack([np.stack([east, north], 1), np.stack([-north, east], 1)], 1)
    if found.shape != (count, 2, 2) or not np.isfinite(found).all():
        raise LayoutError(f"{whose} are no angles or vectors for {count} points", where, hint)
    if (abs((found**2).sum(axis=2) - 1) > _UNIT).any() or (abs(np.linalg.det(found)) < _UNIT).any():
        raise LayoutError(f"{whose} are not two unit vectors at each point, in two directions", where, hint)
    return found


def turned(values: Any, bases: Floats) -> Any:
    """Components (points, 2, ...) along bases as those to the east and to the north."""
    bases = bases.reshape(*bases.shape, *[1] * (values.ndim - 2))
    return values[:, :1] * bases[:, 0] + values[:, 1:] * bases[:, 1]


def directions(x: Floats, axes: int = 2) -> tuple[Floats, Floats]:
    """East and north at points of the unit sphere, (points, 3, 1, ...) with so many axes in all."""
    u = np.arctan2(x[:, 1], x[:, 0])
    east = np.stack([-np.sin(u), np.cos(u), np.zeros_like(u)], axis=1)
    shape = (len(x), 3, *[1] * (axes - 2))
    return east.reshape(shape), np.cross(x, east).reshape(shape)


def in_space(values: Any, x: Floats, bases: Floats | None = None) -> AnyArray:
    """Components (points, 2, ...) at x as those of space, (points, 3, ...)."""
    values = values if bases is None else turned(values, bases)
    east, north = directions(x, values.ndim)
    return np.asarray(values[:, :1] * east + values[:, 1:] * north)


def on_sphere(values: Any, x: Floats, bases: Floats | None = None) -> AnyArray:
    """What in_space makes, turned back at x; what points up or down is left out."""
    products = (values * each for each in directions(x, values.ndim))
    made = np.stack([each[:, 0] + each[:, 1] + each[:, 2] for each in products], axis=1)
    if bases is None:
        return made
    return np.asarray(turned(made, np.linalg.inv(bases).astype(float)))
