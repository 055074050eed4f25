"""Intersections of cells: intervals, rectangles and convex polygons, on the plane and the unit sphere."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.types import Floats, Ints


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """(0, 0, 1, 2, 2, 2, ...), each number as often as counts says; and which of its kind each is."""
    k = np.repeat(np.arange(len(counts)), counts)
    return k, np.arange(len(k)) - np.repeat(np.cumsum(counts) - counts, counts)


def tangents(x: Floats) -> tuple[Floats, Floats]:
    """Two directions on the sphere at each point, at right angles to it and to each other."""
    first = np.cross(np.eye(3)[np.abs(x).argmin(axis=1)], x)
    first = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-300)
    return first, np.cross(x, first)


# -- rectangles ----------------------------------------------------------------------------------------


def between(centres: Floats, x: Floats, period: float | None) -> tuple[Ints, Floats]:
    """The centre below each x, and how far x is on the way to the next; up to half a way beyond the last."""
    if period is not None:
        centres = np.concatenate(([centres[-1] - period], centres, [centres[0] + period]))
    if len(centres) == 1:
        return np.zeros(len(x), np.int64), np.zeros(len(x))
    at = np.clip(np.searchsorted(centres, x, "right") - 1, 0, len(centres) - 2)
    share = (x - centres[at]) / (centres[at + 1] - centres[at])
    share = np.where(np.abs(share) < 1e-13, 0.0, np.where(np.abs(share - 1) < 1e-13, 1.0, share))
    return at - (period is not None), share if period is not None else np.clip(share, -0.5, 1.5)


def beyond_poles(latitudes: Floats) -> Floats:
    """With the first and last row once more, seen across the poles."""
    return np.concatenate(([-np.pi - latitudes[0]], latitudes, [np.pi - latitudes[-1]]))


def across(grid: Any, i: Ints, j: Ints) -> Ints:
    """Index of column i and row j; a row beyond a pole is that row, half way round."""
    if grid.sphere:
        beyond = (j < 0) | (j >= grid.nv)
        i = np.where(beyond, i + grid.nu // 2, i) % grid.nu
        j = np.where(j < 0, 0, np.where(j >= grid.nv, grid.nv - 1, j))
    return np.asarray(j * grid.nu + i, np.int64)


def meetings(target: Floats, source: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Where intervals between ascending edges meet: (first of each target, source, low, high)."""
    edges = np.union1d(target, source)
    little = 1e-13 * float(np.abs(edges[[0, -1]]).max())
    edges = edges[np.concatenate(([True], np.diff(edges) > little))]
    edges = edges[
        (edges >= max(target[0], source[0]) - little) & (edges <= min(target[-1], source[-1]) + little)
    ]
    middle = (edges[1:] + edges[:-1]) / 2
    t, s = (np.searchsorted(e, middle, "right") - 1 for e in (target, source))
    return np.searchsorted(t, np.arange(len(target))), s, edges[:-1], edges[1:]


def rectangle_moments(sphere: bool, u0: Floats, u1: Floats, h0: Floats, h1: Floats) -> tuple[Floats, Floats]:
    """(area, integral of the position) over u0..u1 x h0..h1; on the sphere h = sin of the latitude."""
    area = (u1 - u0) * (h1 - h0)
    if not sphere:
        return area, area[:, None] * np.stack([(u0 + u1) / 2, (h0 + h1) / 2], axis=1)
    f0, f1 = ((h * np.sqrt(np.maximum(1 - h * h, 0)) + np.arcsin(np.clip(h, -1, 1))) / 2 for h in (h0, h1))
    x, y = (np.sin(u1) - np.sin(u0)) * (f1 - f0), (np.cos(u0) - np.cos(u1)) * (f1 - f0)
    return area, np.stack([x, y, (u1 - u0) * (h1 - h0) * (h1 + h0) / 2], axis=1)


# -- polygons ------------------------------------------------------------------------------------------


def moments(corners: Floats) -> tuple[Floats, Floats]:
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
