"""Mappings by area: what is kept is the integral."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from .geometry import moments, places
from .gradients import gradients
from .overlap import Parts, overlaps
from .rows import Rows, around
from .weights import Ask, Entries, sparse_matrices

spatial: Any = LazyModule("scipy.spatial")

_TOLD = 1e-6  # of a cell: what is less is rounding
_ONE_PLACE = 1e-6  # of the size of a cell: another one whose middle is nearer lies over it


def conservative(ask: Ask, has_gradients: bool = False) -> Entries:
    """First order, or also the gradient of each source cell times the way from its centre to the overlap."""
    source, target, shapes = ask.source, ask.target, ask.shapes[:, 1:]
    if isinstance(source, Rows) and isinstance(target, Rows):
        row, index, area, moment = target.overlaps(ask.points, source)
        at, kept = places(ask.given, index)
        row, column, area, moment = row[kept], at[kept], area[kept], moment[kept]
    else:
        parts = Parts.of(target, ask.points, target.corners(ask.points)), Parts.of(source, ask.given, shapes)
        row, column, area, moment = overlaps(*parts, has_gradients)
    m, n = len(ask.points), len(ask.given)
    covered: Floats = np.bincount(row, area, m).astype(float)
    fraction, share = np.asarray(covered / target.areas(ask.points)), area / covered[row]
    doubled, overlap = (0.0, "") if isinstance(source, Rows) else _doubled(ask, row, column, fraction)
    if has_gradients:
        is_rows = isinstance(source, Rows)
        whole, integral = source.moments(ask.given) if is_rows else moments(shapes)
        centre = integral / whole[:, None]
        way = share[:, None] * (moment / area[:, None] - centre[column])
        owner, beside = around(source, ask.given, shapes, ask.scale)
        corners = shapes - centre[:, None]
        owner, beside, vector = gradients(ask.x, owner, beside, corners, bool(target.sphere))
        sparse = sparse_matrices()
        ways = sparse.hstack([sparse.csr_matrix((w, (row, column)), (m, n)) for w in way.T], "csr")
        its = sparse.vstack([sparse.csr_matrix((g, (owner, beside)), (n, n)) for g in vector.T], "csr")
        more = (ways @ its).tocoo()
        row, column = np.concatenate([row, more.row]), np.concatenate([column, more.col])
        share = np.concatenate([share, more.data])
    return Entries(row, column, share, fraction, 0.0, doubled, overlap)


def _doubled(ask: Ask, row: Ints, column: Ints, fraction: Floats) -> tuple[float, str]:
    """Entries' doubled and overlap."""
    overlap = _in_one_place(ask)
    if overlap:
        return np.inf, overlap
    doubled = max(0.0, float(fraction.max(initial=1.0)) - 1.0)
    if doubled > _TOLD:
        worst = int(fraction.argmax())
        which = _most_overlapping(column[row == worst], ask.shapes)
        overlap = f"cells {_listed(ask.given[which])} that are given lie over each other:"
        overlap += f" point {ask.points[worst]} is covered {fraction[worst]:.7g} times"
    return doubled, overlap


def _in_one_place(ask: Ask) -> str:
    """What there is to say of cells that have their middle where another one has; "" if none does."""
    x = ask.x
    distance, which = spatial.cKDTree(x).query(x, k=2)  # infinite, where there is one alone
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
