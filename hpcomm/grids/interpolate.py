"""Mappings by distance and between points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from . import geometry
from .geometry import distinct, listed, places, tangents
from .gradients import numbered
from .rows import Rows
from .triangulation import convex_parts
from .weights import Ask, Entries

spatial: Any = LazyModule("scipy.spatial")

FAR = 8.0  # farther than anything on the unit sphere is from anything else
_EDGE = 1e-12  # of a polygon: so far beside it a point counts as on its edge
_TINY = 1e-15  # of it: points on an edge are so far inside
DIGITS = 12  # to which distances count as equal; then the lower index wins, whatever the partition


def nearest(ask: Ask) -> Entries:
    _, which, needed = closest(ask, 1)
    return Entries.of_each(which, np.ones(which.shape), np.ones(len(which)), needed)


def to_nearest(ask: Ask) -> Entries:
    """The other way round: each of ask.points has an amount, which goes to the nearest of ask.given.

    With a radius, equal parts of it go to all of them that are so near to that one.
    """
    _, which, needed = closest(ask, 1)
    lists = which.tolist()
    if ask.options.radius:
        chord = 2 * np.sin(np.radians(ask.options.radius) / 2) if ask.target.sphere else ask.options.radius
        lists = spatial.cKDTree(ask.x).query_ball_point(ask.x[which[:, 0]], chord, return_sorted=True)
        needed += chord
    row, column = listed(lists)
    share = 1.0 / np.bincount(row)[row]
    return Entries(row, column, share, np.ones(len(ask.points)), needed)


def idw(ask: Ask) -> Entries:
    distance, which, needed = closest(ask, ask.options.neighbours)
    distance = distance / ask.scale
    share = 1.0 / np.maximum(distance, 1e-14) ** 2
    share = np.where(distance[:, :1] < 1e-13, np.arange(share.shape[1]) == 0, share)
    share = share / share.sum(axis=1, keepdims=True)
    row = np.repeat(np.arange(len(ask.points)), which.shape[1])
    return Entries(row, which.ravel(), share.ravel(), np.ones(len(ask.points)), needed)


def closest(ask: Ask, k: int) -> tuple[Floats, Ints, float]:
    """(distances, sources), k of each target point: of equally near ones the lower indices; and how far
    sources were needed."""
    n, most, tree = len(ask.points), len(ask.x), spatial.cKDTree(ask.x)
    count, kept = min(k + 6, most), min(k, most)
    distance, which = np.empty((n, kept)), np.empty((n, kept), np.int64)
    rest = np.arange(n)
    while len(rest):  # those that have more equally near ones than were asked for: around a pole
        far, at = (each.reshape(-1, count) for each in tree.query(ask.wanted[rest], k=count))
        near = np.round(far / ask.scale, DIGITS)
        order = np.lexsort((at, near), axis=1)[:, :kept]
        distance[rest], which[rest] = (np.take_along_axis(a, order, axis=1) for a in (far, at))
        rest = rest[(near[:, -1] == near[:, kept - 1]) & (count < most)]
        count = min(4 * count, most)
    return distance, which, float(distance.max(initial=0.0)) if most >= k else np.inf


def bilinear(ask: Ask) -> Entries:
    """Between the centres of the cells around a corner: of four that make a rectangle, bilinear.

    In other convex polygons by Wachspress (1975): in triangles barycentric. On the sphere the same in planes
    through its centre, and a plane is one of three dimensions, all of it at one height. Bare points have the
    corners of their Voronoi cells.
    """
    if isinstance(ask.source, Rows):
        index, share = ask.source.between(ask.wanted)
        at, there = places(ask.given, index)
        share = np.where(there, share, 0.0)
        total = share.sum(axis=1, keepdims=True)
        share = np.divide(share, total, out=np.zeros_like(share), where=total > 1e-12)
        return Entries.of_each(at, share, (total[:, 0] > 1e-12).astype(float), 0.0)
    lift = ((0, 0), (0, 3 - ask.x.shape[1]))
    x, wanted = (np.pad(each, lift, constant_values=ask.scale) for each in (ask.x, ask.wanted))
    is_bare = ask.shapes.shape[1] == 1
    if is_bare:
        corner, cell = _voronoi(ask, x)
    else:
        corner = numbered(ask.shapes[:, 1:], ask.scale).ravel()
        cell = np.repeat(np.arange(len(x)), ask.shapes.shape[1] - 1)
    done, needed = np.zeros(len(wanted), bool), 0.0
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for ring in _rings(x, corner, cell, ask.target.sphere):
        rest = np.flatnonzero(~done)
        at, which = _located(wanted[rest], x[ring], ask.target.sphere)
        row = rest[at]
        done[row] = True
        share = _wachspress(wanted[row], x[ring[which]])
        found.append((np.repeat(row, ring.shape[1]), ring[which].ravel(), share.ravel()))
        if is_bare and len(row):
            needed = max(needed, 2 * float(_circles(x[ring[which][:, :3]])[1].max()))
    row, column, value = (np.concatenate(each) for each in zip(*found, strict=True))
    kept = value != 0
    if is_bare and not done.all():
        needed = np.inf
    return Entries(row[kept], column[kept], value[kept], done.astype(float), needed)


def _on_surface(x: Floats, sphere: bool) -> Floats:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300) if sphere else x


def _voronoi(ask: Ask, x: Floats) -> tuple[Ints, Ints]:
    """(corner, point) for each corner of the points' Voronoi cells: middles of circles without points."""
    try:
        if ask.target.sphere:  # with the centre of the sphere as one more point, a region has no lid
            triangles = spatial.ConvexHull(np.concatenate([x, np.zeros((1, 3))])).simplices
            triangles = triangles[(triangles < len(x)).all(axis=1)]
        else:
            triangles = spatial.Delaunay(ask.x).simplices
    except spatial.QhullError:  # too few, or all on a line
        return np.empty(0, np.int64), np.empty(0, np.int64)
    middle, radius = _circles(x[triangles])
    real = radius < FAR * ask.scale
    return np.repeat(numbered(middle[real][:, None], ask.scale), 3), triangles[real].ravel()


def _circles(corners: Floats) -> tuple[Floats, Floats]:
    """(middle, radius) of the circles through three points each, (n, 3, 3)."""
    b, c = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    normal = np.cross(b, c)
    way = (
        np.cross(normal, b) * (c * c).sum(axis=1)[:, None]
        + np.cross(c, normal) * (b * b).sum(axis=1)[:, None]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        way = way / (2 * (normal * normal).sum(axis=1))[:, None]
    return corners[:, 0] + way, np.linalg.norm(way, axis=1)


def _rings(x: Floats, corner: Ints, cell: Ints, sphere: bool) -> Iterator[Ints]:
    """Those around each corner, anticlockwise, in convex polygons (m, n): triangles first, then n = 4, 5, ...

    Their order and first corners depend on the order of the points alone.
    """
    corner, cell = np.divmod(distinct(corner * len(x) + cell), len(x))
    first = np.flatnonzero(np.diff(corner, prepend=-1))
    count = np.diff(first, append=len(corner))
    made: dict[int, list[Ints]] = {3: []}
    for n in distinct(count[count >= 3]).tolist():
        ring = cell[first[count == n][:, None] + np.arange(n)]
        places = x[ring]
        middle = np.einsum("mnd->md", places) / n
        up = _on_surface(middle, sphere) if sphere else np.tile([0.0, 0.0, 1.0], (len(ring), 1))
        places = places - middle[:, None]
        a, b = (np.einsum("mnd,md->mn", places, axis) for axis in tangents(up))
        ring = np.take_along_axis(ring, np.arctan2(b, a).argsort(axis=1, kind="stable"), axis=1)
        turn = (ring.argmin(axis=1)[:, None] + np.arange(n)) % n
        ring = np.take_along_axis(ring, turn, axis=1)
        if n > 3:  # a triangle is convex
            corners = x[ring][..., : 2 + sphere]
            parts, owner = convex_parts(corners)
            if parts is not corners:
                same = (parts[:, :, None] == corners[owner][:, None]).all(axis=3)
                ring = np.take_along_axis(ring[owner], same.argmax(axis=2), axis=1)
        cut = ring[:, -2] == ring[:, -1]
        made.setdefault(n, []).append(ring[~cut])
        made[3].append(ring[cut][:, :3])
    for _, rings in sorted(made.items()):
        if rings:
            ring = np.concatenate(rings)
            yield ring[np.lexsort(ring.T[::-1])]


def _located(x: Floats, corners: Floats, sphere: bool) -> tuple[Ints, Ints]:
    """(place, the first polygon it lies in): places (m, 3), polygons (k, n, 3), anticlockwise."""
    if geometry.native is not None:
        which = np.frombuffer(geometry.native.locate(x[:, None].copy(), corners), np.int64)
        row = np.flatnonzero(which >= 0)
        return row, which[row]
    middle = _on_surface(corners.mean(axis=1), sphere)
    reach = np.linalg.norm(corners - middle[:, None], axis=2).max(axis=1)
    which, row = listed(spatial.cKDTree(x).query_ball_point(middle, reach * (1 + 1e-9)))
    side, _ = _sides(x[row], corners[which])
    inside = np.flatnonzero((side >= -_EDGE * np.abs(side).max(axis=1, keepdims=True)).all(axis=1))
    row, first = np.unique(row[inside], return_index=True)
    return row, which[inside[first]]


def _sides(x: Floats, corners: Floats) -> tuple[Floats, Floats]:
    """(how far x is inside each edge, from a corner to the next one, the edge's normal)."""
    normal = np.cross(corners, np.roll(corners, -1, axis=1) - corners)
    return np.einsum("mnd,mnd->mn", x[:, None] - corners, normal), normal


def _wachspress(x: Floats, corners: Floats) -> Floats:
    """Share of each corner: x (m, 3) in polygons (m, n, 3), anticlockwise."""
    side, normal = _sides(x, corners)
    side = np.maximum(side, _TINY * np.abs(side).max(axis=1, keepdims=True))
    bend = np.einsum("mnd,mnd->mn", np.roll(corners, 1, axis=1) - corners, normal)
    share = bend / (side * np.roll(side, 1, axis=1))
    share = share / share.sum(axis=1, keepdims=True)
    share[np.abs(share) < _EDGE] = 0.0
    return np.asarray(share / share.sum(axis=1, keepdims=True))
