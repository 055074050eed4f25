"""Nearest projection: each point from the edge or triangle of a mesh that is nearest to it.

Looked at are the cells around the nearest points. The value is the linear function on the cell, at the place
of it that is nearest. So nothing goes beyond the values of the source.
"""

from __future__ import annotations

import numpy as np

from ..core.types import Floats, Ints
from .geometry import places
from .interpolate import DIGITS, closest
from .weights import Ask, Entries

_AROUND = 4  # points whose cells are looked at
_PART = 2000  # points at a time
_FLAT = 1e-14  # of the square of a triangle's sides: one that spans less is an edge


def projection(ask: Ask) -> Entries:
    _, which, needed = closest(ask, _AROUND)
    numbers = np.sort(ask.shapes[:, 1:, 0].reshape(len(ask.x), -1, 3).astype(np.int64), axis=2)
    cells, found = places(ask.given, numbers)
    lacks = ~found.all(axis=2)  # a point of it is masked, or not here yet
    cells[lacks] = np.nonzero(lacks)[0][:, None]
    parts = [slice(i, i + _PART) for i in range(0, max(1, len(which)), _PART)]
    made = [_nearest(ask, ask.wanted[part], cells[which[part]]) for part in parts]
    column, share = (np.concatenate(each) for each in zip(*made, strict=True))
    return Entries.of_each(column, share, np.ones(len(which)), np.inf if lacks[which].any() else needed)


def _nearest(ask: Ask, x: Floats, cells: Ints) -> tuple[Ints, Floats]:
    """(points, weights) of the cell that is nearest to each place, of these: (n, points, cells of each, 3)"""
    cells = cells.reshape(len(x), cells.shape[1] * cells.shape[2], 3)
    corners = ask.x[cells]
    share = _shares(x[:, None], corners)
    apart = np.linalg.norm((share[..., None] * corners).sum(axis=2) - x[:, None], axis=2)
    order = np.lexsort((*np.moveaxis(cells, 2, 0)[::-1], np.round(apart / ask.scale, DIGITS)), axis=1)
    first = np.arange(len(x)), order[:, 0]
    return cells[first], share[first]


def _shares(x: Floats, corners: Floats) -> Floats:
    """Weights of the corners at the place of each triangle that is nearest to x, (n, m, 3)."""
    a, b, c = np.moveaxis(corners, 2, 0)
    first, second, way = b - a, c - a, x - a
    g11, g12, g22, r1, r2 = (
        (u * v).sum(axis=2)
        for u, v in ((first, first), (first, second), (second, second), (first, way), (second, way))
    )
    area = g11 * g22 - g12 * g12
    wide = area > _FLAT * g11 * g22
    v, w = (
        np.divide(up, area, out=np.full_like(area, -1.0), where=wide)
        for up in (g22 * r1 - g12 * r2, g11 * r2 - g12 * r1)
    )
    share = np.stack([1 - v - w, v, w], axis=2)
    beside = ~(share >= 0).all(axis=2)
    least = np.full(area.shape, np.inf)
    for i, j in ((0, 1), (1, 2), (0, 2)):
        start, along = corners[:, :, i], corners[:, :, j] - corners[:, :, i]
        length = (along * along).sum(axis=2)
        u = np.divide(((x - start) * along).sum(axis=2), length, out=np.zeros_like(length), where=length > 0)
        u = np.clip(u, 0.0, 1.0)
        apart = ((start + u[..., None] * along - x) ** 2).sum(axis=2)
        nearer = beside & (apart < least)
        least[nearer] = apart[nearer]
        share[nearer] = 0.0
        share[nearer, i], share[nearer, j] = 1 - u[nearer], u[nearer]
    return share
