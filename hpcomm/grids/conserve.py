"""Mappings by area: what is kept is the integral."""

from __future__ import annotations

from itertools import chain
from typing import Any, TypeGuard

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from .geometry import moments, repeated
from .gradients import around_cells, gradients
from .grid import Grid
from .rows import Rows
from .triangulation import Boxes, Parts, overlaps
from .weights import Ask, Entries

spatial: Any = LazyModule("scipy.spatial")

_ROUNDING = 1e-14  # of lengths beside coordinates of 1
_TOLD = 1e-6  # of a cell: what is less is rounding
_ONE_PLACE = 1e-6  # of the size of a cell: another one whose middle is nearer lies over it


def conservative(ask: Ask) -> Entries:
    row, column, area, _ = _overlaps(ask)
    covered, fraction, doubled, overlap = _covered(ask, row, column, area)
    return Entries(row, column, area / covered[row], fraction, 0.0, doubled, overlap)


def conservative2(ask: Ask) -> Entries:
    """First order, and the gradient of each source cell times the way from its centre to the overlap."""
    row, column, area, moment = _overlaps(ask)
    covered, fraction, doubled, overlap = _covered(ask, row, column, area)
    whole, moments_ = _source_moments(ask)
    centre = moments_ / whole[:, None]
    way = moment / area[:, None] - centre[column]
    owner, neighbour, gradient = _gradients(ask, centre)
    first = np.searchsorted(owner, np.arange(len(ask.given) + 1))
    k, nth = repeated(np.diff(first)[column])
    e = first[column][k] + nth
    more = (way[k] * gradient[e]).sum(axis=1) * (area / covered[row])[k]
    rows, columns = np.concatenate([row, row[k]]), np.concatenate([column, neighbour[e]])
    value = np.concatenate([area / covered[row], more])
    return Entries(rows, columns, value, fraction, 0.0, doubled, overlap)


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


def _overlaps(ask: Ask) -> tuple[Ints, Ints, Floats, Floats]:
    """(target, source, area, moment) of each overlap; moment: the integral of the position over it."""
    if not isinstance(ask.source, Rows) or not isinstance(ask.target, Rows):
        return _polygon_overlaps(ask)
    row, index, area, moment = ask.target.overlaps(ask.points, ask.source)
    at = np.searchsorted(ask.given, index)
    at[at == len(ask.given)] = 0
    kept = ask.given[at] == index
    return row[kept], at[kept], area[kept], moment[kept]


def _source_moments(ask: Ask) -> tuple[Floats, Floats]:
    return ask.source.moments(ask.given) if isinstance(ask.source, Rows) else moments(ask.shapes[:, 1:])


def _polygon_overlaps(ask: Ask) -> tuple[Ints, Ints, Floats, Floats]:
    x, corners = ask.x, ask.shapes[:, 1:]
    mine, centre = ask.target.corners(ask.points), ask.wanted
    reach = np.linalg.norm(mine - centre[:, None], axis=2).max(axis=1)
    widest = float(np.linalg.norm(corners - x[:, None], axis=2).max())
    lists = spatial.cKDTree(x).query_ball_point(centre, reach + widest + 1e-12, return_sorted=True)
    row = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    column = np.fromiter(chain.from_iterable(lists), np.int64, len(row))
    targets = Boxes(ask.target.bounds(ask.points)) if _has_parallels(ask.target) else Parts(mine)
    sources = Boxes(ask.source.bounds(ask.given)) if _has_parallels(ask.source) else Parts(corners)
    parts = np.array_split(np.arange(len(row)), max(1, len(row) // 50_000))
    pieces = [overlaps(targets, sources, row[part], column[part]) for part in parts]
    area, moment = (np.concatenate(part) for part in zip(*pieces, strict=True))
    digits = _ROUNDING * (np.linalg.norm(centre, axis=1) + reach)  # where cells only touch
    kept = area > (digits * reach)[row]
    return row[kept], column[kept], area[kept], moment[kept]


def _has_parallels(grid: Grid | None) -> TypeGuard[Rows]:
    return isinstance(grid, Rows) and grid.sphere


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
    """The two of these cells that have most in common; all of them if that is not seen among neighbours."""
    x, corners = shapes[cells, 0], shapes[cells, 1:]
    beside = spatial.cKDTree(x).query(x, k=min(len(x), 12))[1].reshape(len(x), -1)
    first, second = np.repeat(np.arange(len(x)), beside.shape[1]), beside.ravel()
    first, second = first[first < second], second[first < second]
    area = overlaps(Parts(corners), Parts(corners), first, second)[0]
    return cells[[first[area.argmax()], second[area.argmax()]]] if area.max(initial=0.0) > 0 else cells


def _listed(numbers: Ints) -> str:
    found = [str(number) for number in np.sort(numbers)[:4]]
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else found[0]
