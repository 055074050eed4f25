"""Limited gradients of cell values, as sums over the cells around them.

They come from the cells on the other side of each edge, by least squares, and are limited: to the value of a
cell they add at any of its corners no more than the values around it differ from each other, and where these
cannot tell of a direction (all on one line, or none) there is no gradient in it. So a mapping with gradients
has no large weights, whatever the shapes of the cells are.
"""

from __future__ import annotations

import numpy as np

from ..core.types import Floats, Ints
from .geometry import distinct, repeated, tangents

_SAME = 1e-28  # square of no way, but for rounding: to itself, or through the sphere
_FEW = 4  # neighbours: from fewer a gradient has no second order
_UNIT = 2.0**-36  # of the largest coordinate: corners that are nearer are one
_WEAK = 0.1  # of the strongest direction: weaker ones are left out where they make gradients too large
_NONE = 1e-4  # of it: left out always
_MOST = 2.0  # the sum of magnitudes of weights that a gradient adds anywhere in its cell


def around_cells(corners: Floats, scale: float) -> tuple[Ints, Ints]:
    """(cell, neighbour), ascending: who is on the other side of an edge.

    Where these are few (triangles, coasts, cells beside smaller ones): all with a corner in common.

    Args:
        scale: the largest coordinate of all cells.
    """
    n, k, _ = corners.shape
    vertex = numbered(corners, scale)
    start, end = vertex.ravel(), np.roll(vertex, -1, axis=1).ravel()
    cell = np.repeat(np.arange(n), k)
    real = start != end  # not that of a corner to its repetition
    start, end, cell = start[real], end[real], cell[real]  # each corner of a cell is the start of one edge
    edge = np.minimum(start, end) * n * k + np.maximum(start, end)
    order = np.argsort(edge, kind="stable")
    same = np.flatnonzero(edge[order][1:] == edge[order][:-1])
    a, b = cell[order[same]], cell[order[same + 1]]
    few = np.bincount(np.concatenate([a, b]), minlength=n) < _FEW
    asks = np.flatnonzero(few[cell])
    order = np.argsort(start, kind="stable")
    first, last = (np.searchsorted(start[order], start[asks], side) for side in ("left", "right"))
    which, nth = repeated(last - first)  # of each corner of these, all cells that have it
    owner = np.concatenate([a, b, cell[asks[which]]])
    neighbour = np.concatenate([b, a, cell[order[first[which] + nth]]])
    return np.divmod(distinct((owner * n + neighbour)[owner != neighbour]), max(n, 1))


def numbered(corners: Floats, scale: float) -> Ints:
    """A number for each corner, the same for corners in one place."""
    # Off by a share of a unit, since coordinates that people choose lie at round numbers.
    places = np.floor(corners.reshape(-1, corners.shape[2]) / (scale * _UNIT) + 0.3180339887)
    order = np.lexsort(places.T)  # np.unique takes five times as long
    number = np.empty(len(places), np.int64)
    number[order] = np.cumsum((np.diff(places[order], axis=0, prepend=np.nan) != 0).any(axis=1))
    return number.reshape(corners.shape[:2])


def gradients(
    x: Floats, owner: Ints, neighbour: Ints, ways: Floats, sphere: bool
) -> tuple[Ints, Ints, Floats]:
    """Gradients as sums over neighbours: (cell, neighbour, vector), cells ascending, themselves among them.

    The sum of value[neighbour] * vector over the rows of a cell is the gradient there, in its tangent plane.

    Args:
        x: centres of the cells.
        owner, neighbour: cells, ascending, and others around them.
        ways: (cells, corners, 2 or 3): how far each corner is from where the gradient begins.
    """
    n = len(x)
    axes = _round_axes(np.stack(tangents(x), axis=1) if sphere else np.tile(np.eye(2), (n, 1, 1)), ways)
    way = x[neighbour] - x[owner]
    if sphere:
        way = way - np.einsum("ni,ni->n", way, x[owner])[:, None] * x[owner]
    apart = np.einsum("ni,ni->n", way, way) > _SAME * np.einsum("ni,ni->n", x, x)[owner]
    owner, neighbour, its = owner[apart], neighbour[apart], axes[owner[apart]]
    d = np.einsum("nij,nj->ni", its, way[apart])
    found = _limited(owner, d, np.einsum("nij,nkj->nki", axes, ways))
    vector = np.einsum("ni,nij->nj", found, its)
    own = np.stack([np.bincount(owner, each, n) for each in vector.T], axis=1)
    order = np.argsort(np.concatenate([owner, np.arange(n)]), kind="stable")
    owner, neighbour = (np.concatenate([each, np.arange(n)])[order] for each in (owner, neighbour))
    return owner, neighbour, np.concatenate([vector, -own])[order]


def _round_axes(axes: Floats, ways: Floats) -> Floats:
    """The two directions of each cell, stretched and sheared so that it is as wide in every direction.

    What is far is then counted in widths of the cell, and long cells are no worse than square ones.
    """
    a = np.einsum("nij,nkj->nki", axes, ways)
    b = np.roll(a, -1, axis=1)
    area = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    c = a + b
    xx, xy, yy = (
        (area * (a[..., i] * a[..., j] + b[..., i] * b[..., j] + c[..., i] * c[..., j])).sum(axis=1)
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    size = (a * a).sum(axis=(1, 2))
    is_cell = (area.sum(axis=1) > 0) & (xx > 0) & (xx * yy - xy * xy > 1e-20 * (xx + yy) ** 2)
    mass = np.where(is_cell, np.maximum(area.sum(axis=1), 1e-300), 1.0)
    xx, yy = (np.where(is_cell, each / mass, np.maximum(size, 1e-300)) for each in (xx, yy))
    xy = np.where(is_cell, xy / mass, 0.0)
    wide = np.sqrt(xx)
    sheared = xy / wide
    high = np.sqrt(yy - sheared * sheared)
    first = axes[:, 0] / wide[:, None]
    return np.stack([first, (axes[:, 1] - sheared[:, None] * first) / high[:, None]], axis=1)


def _limited(owner: Ints, d: Floats, corners: Floats) -> Floats:
    """The vector of each neighbour that is d away, in two dimensions."""
    towards = d / np.einsum("ni,ni->n", d, d)[:, None]
    products = (towards[:, i] * d[:, j] for i in (0, 1) for j in (0, 1))
    normal = np.stack([np.bincount(owner, each, len(corners)) for each in products], 1).reshape(-1, 2, 2)
    strength, directions = np.linalg.eigh(normal)
    found = _solved(strength, directions, _NONE, owner, towards)
    large = _amplified(owner, found, corners) > _MOST * (1 + 1e-9)
    if large.any():
        strong = _solved(strength, directions, _WEAK, owner, towards)
        found = np.where(large[owner, None], strong, found)
        most = _amplified(owner, found, corners)
        found = found * np.minimum(1.0, _MOST / np.maximum(most, _MOST))[owner, None]
    return found


def _solved(strength: Floats, directions: Floats, least: float, owner: Ints, towards: Floats) -> Floats:
    """The vector of each neighbour, in the directions in which there are some."""
    kept = strength > np.maximum(least * strength[:, -1:], 1e-300)
    inverse = np.where(kept, 1.0 / np.where(kept, strength, 1.0), 0.0)
    pseudo = np.einsum("nij,nj,nkj->nik", directions, inverse, directions)
    return np.asarray(np.einsum("nij,nj->ni", pseudo[owner], towards))


def _amplified(owner: Ints, vector: Floats, corners: Floats) -> Floats:
    """For each cell the sum of magnitudes of the weights at the corner where it is largest."""
    most = np.zeros(len(corners))
    for c in range(corners.shape[1]):
        weight = np.einsum("ni,ni->n", corners[owner, c], vector)
        total, own = (np.bincount(owner, each, len(corners)) for each in (np.abs(weight), weight))
        most = np.maximum(most, total + np.abs(own))
    return most
