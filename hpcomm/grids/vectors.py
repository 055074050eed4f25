"""Vectors on the sphere: their components to the east and to the north, and the same in three dimensions.

East and north turn from point to point, and around a pole they turn a lot. So what is mapped is the vector in
space.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.types import AnyArray, Floats


def directions(x: Floats, axes: int = 2) -> tuple[Floats, Floats]:
    """East and north at points of the unit sphere, (points, 3, 1, ...) with so many axes in all."""
    u = np.arctan2(x[:, 1], x[:, 0])
    east = np.stack([-np.sin(u), np.cos(u), np.zeros_like(u)], axis=1)
    shape = (len(x), 3, *[1] * (axes - 2))
    return east.reshape(shape), np.cross(x, east).reshape(shape)


def in_space(values: Any, x: Floats) -> AnyArray:
    """Components (points, 2, ...) at x as those of space, (points, 3, ...)."""
    east, north = directions(x, values.ndim)
    return np.asarray(values[:, :1] * east + values[:, 1:] * north)


def on_sphere(values: Any, x: Floats) -> AnyArray:
    """What in_space makes, turned back at x; what points up or down is left out."""
    products = (values * each for each in directions(x, values.ndim))
    return np.stack([each[:, 0] + each[:, 1] + each[:, 2] for each in products], axis=1)
