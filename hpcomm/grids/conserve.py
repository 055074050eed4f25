"""Mappings by area: what is kept is the integral."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from .geometry import moments, places
from .gradients import around_cells, gradients
from .overlap import Overlaps, Parts, overlaps
from .rows import Rows
from .weights import Ask, Entries, sparse_matrices

spatial: Any = LazyModule("scipy.spatial")

_TOLD = 1e-6  # of a cell: what is less is rounding
_ONE_PLACE = 1e-6  # of the size of a cell: another one whose middle is nearer lies over it


def conservative(ask: Ask) -> Entries:
    row, column, area, _ = _overlaps(ask, False)
    covered, fraction, doubled, overlap = _covered(ask, row, column, area)
    return Entries(row, column, area / covered[row], fraction, 0.0, doubled, overlap)


def conservative2(ask: Ask) -> Entries:
    """First order, and the gradient of each source cell times the way from its centre to the overlap."""
    row, column, area, moment = _overlaps(ask, True)
    covered, fraction, doubled, overlap = _covered(ask, row, column, area)
    source, shapes = ask.source, ask.shapes[:, 1:]
    whole, integral = source.moments(ask.given) if isinstance(source, Rows) else moments(shapes)
    centre = integral / whole[:, None]
    share, n = area / covered[row], len(ask.given)
    way, wide = moment / area[:, None] - centre[column], centre.shape[1]
    owner, neighbour, gradient = _gradients(ask, centre)
    # Both as CSR, since rows ascend already. Axis d of cell c has the number d * n + c.
    matrix, axes = sparse_matrices().csr_matrix, np.arange(wide)[:, None] * n
    first, each = (np.searchsorted(of, np.arange(m + 1)) for of, m in ((row, len(covered)), (owner, n)))
    ways = matrix(
        ((share[:, None] * way).ravel(), (column + axes).T.ravel(), first * wide), (len(covered), n * wide)
    )
    ends = np.append((each[:-1] + np.arange(wide)[:, None] * len(owner)).ravel(), wide * len(owner))
    more = (ways @ matrix((gradient.T.ravel(), np.tile(neighbour, wide), ends), (n * wide, n))).tocoo()
    rows, columns = np.concatenate([row, more.row]), np.concatenate([column, more.col])
    return Entries(rows, columns, np.concatenate([share, more.data]), fraction, 0.0, doubled, overlap)


def _covered(ask: Ask, row: Ints, column: Ints, area: Floats) -> tuple[Floats, Floats, float, str]:
    """(area of each target cell that is covered, and Entries' fraction, doubled and overlap)."""
    covered: Floats = np.bincount(row, area, len(ask.points)).astype(float)
    fraction = np.asarray(covered / ask.target.areas(ask.points))
    doubled, overlap = 0.0, ""
    if not isinstance(ask.source, Rows):
        overlap = _in_one_place(ask)
        doubled = np.inf if overlap else max(0.0, float(fraction.max(initial=1.0)) - 1.0)
        if _TOLD < doubled < np.inf:
            worst = int(fraction.argmax())
            which = _most_overlapping(column[row == worst], ask.shapes)
            overlap = f"cells {_listed(ask.given[which])} that are given lie over each other:"
            overlap += f" point {ask.points[worst]} is covered {fraction[worst]:.7g} times"
    return covered, fraction, doubled, overlap


def _gradients(ask: Ask, centre: Floats) -> tuple[Ints, Ints, Floats]:
    """Of the source cells: (cell, neighbour, vector), positions in given."""
    if isinstance(ask.source, Rows):
        around = ask.source.around(ask.given)
    else:
        around = around_cells(ask.shapes[:, 1:], ask.scale)
    ways = ask.shapes[:, 1:] - centre[:, None]
    return gradients(ask.x, *around, ways, bool(ask.target.sphere))


def _overlaps(ask: Ask, has_moments: bool) -> Overlaps:
    """(target, source, area, moment) of each overlap; moment: the integral of the position over it."""
    if not isinstance(ask.source, Rows) or not isinstance(ask.target, Rows):
        targets = Parts.of(ask.target, ask.points, ask.target.corners(ask.points))
        return overlaps(targets, Parts.of(ask.source, ask.given, ask.shapes[:, 1:]), has_moments)
    row, index, area, moment = ask.target.overlaps(ask.points, ask.source)
    at, kept = places(ask.given, index)
    return row[kept], at[kept], area[kept], moment[kept]


def _in_one_place(ask: Ask) -> str:
    """What there is to say of cells that have their middle where another one has; "" if none does."""
    x = ask.x
    if len(x) < 2:
        return ""
    distance, which = spatial.cKDTree(x).query(x, k=2)
    size = np.linalg.norm(ask.shapes[:, 1:] - x[:, None], axis=2).max(axis=1)
    same = np.flatnonzero(distance[:, 1] < _ONE_PLACE * size)
    if not len(same):
        return ""
    pair = _listed(ask.given[which[same[0]]])
    return f"cells {pair} that are given lie over each other, the first of {len(same)}"


def _most_overlapping(cells: Ints, shapes: Floats) -> Ints:
    """The two of these cells that have most in common; all of them if none have."""
    parts = Parts(shapes[cells, 1:])
    a, b, area, _ = overlaps(parts, parts)
    two = np.flatnonzero(a < b)
    if not len(two):
        return cells
    worst = two[area[two].argmax()]
    return cells[[a[worst], b[worst]]]


def _listed(numbers: Ints) -> str:
    found = [str(number) for number in np.sort(numbers)[:4]]
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else found[0]
