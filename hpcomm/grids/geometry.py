"""Intersections of cells: rectangles and convex polygons, on the plane and the unit sphere.

Edges are straight on a plane, and on the sphere great circles or, where it is said, parallels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from .._lazy import NDArray
from ..core.types import Floats, Ints

try:
    from ._native import geometry as _native
except ImportError:  # installed without a compiler
    _native = None  # type: ignore[assignment]

native: Any = _native  # for other modules, too
Bools: TypeAlias = "NDArray[np.bool_]"
_TOUCHES = 4e-16  # of heights: a corner that is nearer lies on the parallel
_STRAIGHT = 1e-8  # shorter edges rise above their ends by less than that


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """(0, 0, 1, 2, 2, 2, ...), each number as often as counts says; and which of its kind each is."""
    k = np.repeat(np.arange(len(counts)), counts)
    return k, np.arange(len(k)) - np.repeat(np.cumsum(counts) - counts, counts)


def listed(lists: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """(which list, each of its elements)"""
    which = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    return which, np.fromiter(chain.from_iterable(lists), np.int64, len(which))


def places(ascending: Any, wanted: Any) -> tuple[Ints, Any]:
    """(where each wanted number stands among ascending ones, whether it is there)"""
    at = np.searchsorted(ascending, wanted)
    at[at == len(ascending)] = 0
    return at, ascending[at] == wanted if len(ascending) else np.zeros(at.shape, bool)


def distinct(x: Ints) -> Ints:
    """Each number once, ascending; np.unique takes five times as long."""
    x = np.sort(x)
    return np.asarray(x[np.append(True, x[1:] != x[:-1])[: len(x)]])


def last_repeated(numbers: Ints, given: Any) -> Ints:
    """(rows, most) of numbers, in each row the last one before in place of those that are not given."""
    last = np.maximum.accumulate(np.where(given, np.arange(numbers.shape[1]), 0), axis=1)
    return np.take_along_axis(numbers, last, axis=1)


def tangents(x: Floats) -> tuple[Floats, Floats]:
    """Two directions on the sphere at each point, at right angles to it and to each other."""
    first = np.cross(np.eye(3)[np.abs(x).argmin(axis=1)], x)
    first = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-300)
    return first, np.cross(x, first)


def turn(a: Floats, b: Floats, c: Floats) -> Floats:
    """Twice the area of the triangle a, b, c on a plane: positive if anticlockwise."""
    return np.asarray((b - a)[..., 0] * (c - a)[..., 1] - (b - a)[..., 1] * (c - a)[..., 0])


# -- rectangles ----------------------------------------------------------------------------------------


def rectangle_moments(sphere: bool, u0: Floats, u1: Floats, h0: Floats, h1: Floats) -> tuple[Floats, Floats]:
    """(area, integral of the position) over u0..u1 x h0..h1; on the sphere h = sin of the latitude."""
    area = (u1 - u0) * (h1 - h0)
    if not sphere:
        return area, area[:, None] * np.stack([(u0 + u1) / 2, (h0 + h1) / 2], axis=1)
    f0, f1 = ((h * np.sqrt(np.maximum(1 - h * h, 0)) + np.arcsin(np.clip(h, -1, 1))) / 2 for h in (h0, h1))
    x, y = (np.sin(u1) - np.sin(u0)) * (f1 - f0), (np.cos(u0) - np.cos(u1)) * (f1 - f0)
    return area, np.stack([x, y, (u1 - u0) * (h1 - h0) * (h1 + h0) / 2], axis=1)


# -- polygons ------------------------------------------------------------------------------------------


def moments(corners: Floats, parallel: Bools | None = None) -> tuple[Floats, Floats]:
    """(area, integral of the position) of convex polygons, (n, k, 2 or 3).

    Triangles fan out from the first corner. The area of a spherical one by Eriksson (1990), from
    differences of corners, so that small ones are as exact as large ones. The integral of the position
    over a spherical polygon is half the sum of arc length times normal over its edges.

    Args:
        parallel: (n, k): the edges, each from the corner of that number to the next one, that run along a
            parallel. All others on the sphere are great circles.
    """
    if native is not None and parallel is None and corners.size:
        found = np.frombuffer(native.moments(np.ascontiguousarray(corners, float))).reshape(-1, 4)
        return found[:, 0], found[:, 1 : 1 + corners.shape[2]]
    a, b, c = corners[:, :1], corners[:, 1:-1], corners[:, 2:]
    if corners.shape[2] == 2:
        double = turn(a, b, c)
        return double.sum(axis=1) / 2, ((a + b + c) * double[..., None]).sum(axis=1) / 6
    triple = (a * np.cross(b - a, c - a)).sum(axis=2)
    below = 1 + (a * b).sum(axis=2) + (b * c).sum(axis=2) + (c * a).sum(axis=2)
    area = 2 * np.arctan2(triple, below).sum(axis=1)
    following = np.roll(corners, -1, axis=1)
    normal = np.cross(corners, following - corners)
    sine = np.linalg.norm(normal, axis=2)
    arc = np.arctan2(sine, (corners * following).sum(axis=2))
    scale = np.divide(arc, sine, out=np.ones_like(arc), where=sine > 1e-300)
    along = normal * scale[..., None]
    if parallel is not None and parallel.any():
        beside, along[parallel] = _along_parallels(corners[parallel], following[parallel])
        area = area + np.bincount(np.nonzero(parallel)[0], beside, len(area))
    return area, along.sum(axis=1) / 2


def _along_parallels(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Of edges from a to b: (area from the great circle to the parallel, integral of r x dr along this)."""
    z, ring = (a[:, 2] + b[:, 2]) / 2, (a[:, 0] ** 2 + a[:, 1] ** 2 + b[:, 0] ** 2 + b[:, 1] ** 2) / 2
    angle = np.arctan2(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1])
    t, high = np.tan(angle / 2), np.abs(z)
    below = ring / (1 + high)  # 1 - |z|, with all its digits
    beside = below * angle - 2 * np.arctan(below * t / (1 + high * t * t))  # = 2 arctan(|z| t) - |z| angle
    across = b - a
    return np.sign(z) * beside, np.stack([-z * across[:, 1], z * across[:, 0], ring * angle], axis=1)


def clipped(polygon: Floats, window: Floats) -> Floats:
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
            little = 1e-16 * np.abs(edge).max(axis=1) * (np.abs(start) + np.abs(edge)).max(axis=1)
        else:
            normal = np.cross(start, end - start)
            side = (polygon * normal[:, None]).sum(axis=2)
            little = np.full(len(side), 1e-16)
        side[np.abs(side) < little[:, None]] = 0.0
        polygon = _cut(polygon, side)
    return polygon


def _cut(polygon: Floats, side: Floats) -> Floats:
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
    left = _left(np.stack([inside, crosses], axis=2))
    return np.asarray(np.stack([polygon, crossing], axis=2).reshape(len(side), -1, polygon.shape[2])[left])


def _left(kept: Bools) -> tuple[Ints, Ints]:
    """(polygon, candidate) of corners that are kept, in order: kept is (n, k, candidates an edge).

    The last one is repeated. Where nothing is left it is a point, which has no area.
    """
    kept = kept.reshape(len(kept), -1)
    order = np.argsort(~kept, axis=1, kind="stable")
    count = kept.sum(axis=1)
    last = np.maximum(count - 1, 0)[:, None]
    order = np.take_along_axis(order, np.minimum(np.arange(max(1, count.max(initial=1)))[None], last), axis=1)
    order[count == 0] = 0
    return np.arange(len(kept))[:, None], order


def within_rectangles(
    polygon: Floats, u0: Floats, u1: Floats, h0: Floats, h1: Floats
) -> tuple[Floats, Floats]:
    """(area, moment) of the part of each polygon, with great circles as edges, in its rectangle.

    Args:
        u0, u1: longitudes, less than half a turn apart.
        h0, h1: heights above the equator, sines of latitudes.
    """
    for u, sign in ((u0, 1.0), (u1, -1.0)):  # first: what is cut by meridians has great circles as edges yet
        side = sign * (np.cos(u)[:, None] * polygon[..., 1] - np.sin(u)[:, None] * polygon[..., 0])
        side[np.abs(side) < 1e-16] = 0.0
        polygon = _cut(polygon, side)
    parallel = np.zeros(polygon.shape[:2], bool)
    for height, sign in ((h0, 1.0), (h1, -1.0)):
        polygon, parallel = _cut_by_parallels(polygon, parallel, height[:, None], sign)
    return moments(polygon, parallel)


def _cut_by_parallels(polygon: Floats, parallel: Bools, height: Floats, sign: float) -> tuple[Floats, Bools]:
    """What is left of polygons where sign * (z - height) >= 0, and which of its edges are parallels.

    A great circle may cross a parallel twice: before and behind its highest or lowest point. It is
    followed from there: at an angle w from its highest point, z = steep * cos(w).
    """
    end = np.roll(polygon, -1, axis=1)
    normal = np.cross(polygon, end - polygon)
    length = np.linalg.norm(normal, axis=2)
    normal /= np.maximum(length, 1e-300)[..., None]
    steep = np.maximum(np.hypot(normal[..., 0], normal[..., 1]), 1e-300)
    rise, rise_at_end = (normal[..., 0] * at[..., 1] - normal[..., 1] * at[..., 0] for at in (polygon, end))
    turns = np.where((rise > 0) & (rise_at_end < 0), 1, np.where((rise < 0) & (rise_at_end > 0), -1, 0))
    turns[parallel | (length < _STRAIGHT)] = 0
    inside = sign * (polygon[..., 2] - height)
    here = _signs(inside)
    there = np.roll(here, -1, axis=1)
    far = np.where(turns == 0, 0, _signs(sign * (turns * steep - height)))  # at its highest or lowest point
    first = np.where(here != 0, here, np.where(far != 0, far, there))
    last = np.where(there != 0, there, np.where(far != 0, far, here))
    if (first >= 0).all() and (far >= 0).all():
        return polygon, parallel
    once, twice = first * last < 0, (first * last > 0) & (far * first < 0)
    across = np.stack([normal[..., 1], -normal[..., 0], np.zeros_like(steep)], axis=2) / steep[..., None]
    top = np.cross(across, normal)
    cosine = np.clip(height / steep, -1.0, 1.0)[..., None]
    up, down = (top * cosine + way * across * np.sqrt(1 - cosine * cosine) for way in (-1.0, 1.0))
    upwards = np.where(once, sign * last > 0, turns > 0)[..., None]
    share = inside / np.where(once, inside - np.roll(inside, -1, axis=1), 1.0)
    straight = polygon + share[..., None] * (end - polygon)
    up, down = (np.where((length < _STRAIGHT)[..., None], straight, each) for each in (up, down))
    left = _left(np.stack([here >= 0, once | twice, twice], axis=2))
    corners = np.stack([polygon, np.where(upwards, up, down), np.where(upwards, down, up)], axis=2)
    along = np.stack([parallel | (first < 0), np.where(once, last < 0, first > 0), last < 0], axis=2)
    return corners.reshape(len(polygon), -1, 3)[left], along.reshape(len(polygon), -1)[left]


def _signs(x: Floats) -> Ints:
    return np.where(np.abs(x) < _TOUCHES, 0, np.sign(x)).astype(np.int64)
