"""Stacks of mappings: what one leaves uncovered, the next one takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..core.types import Floats, Ints
from .gradients import around_cells
from .grid import Grid
from .rows import Rows
from .weights import Weights, sparse_matrices

Gather: TypeAlias = Callable[[Any], list[Any]]  # what each rank says


def stacked(
    make: Callable[[str, Ints], Weights | None],
    methods: Sequence[str],
    target: Grid,
    points: Ints,
    scale: float,
    gather: Gather,
) -> Weights | None:
    """Weights by the first method, and by each further one of points that nothing reaches yet.

    Args:
        make: of some of this rank's points, by position. Collective; None on ranks that take nothing.
        scale: the largest coordinate of the target.
    """
    found = make(methods[0], np.arange(len(points)))
    for method in methods[1:]:
        rest = points[:0] if found is None else found.uncovered
        if not any(gather(len(rest) > 0)):
            break
        more = _crept(found, target, points, scale, gather) if method == "creep" else make(method, rest)
        if found is not None and more is not None:
            found = found.filled(rest, more)
    return found


def _crept(found: Weights | None, target: Grid, points: Ints, scale: float, gather: Gather) -> Weights | None:
    """Of points that nothing reaches: the mean of neighbours that have a value, step by step outward.

    All ranks hear of all these points and of their first neighbours, and compute the same.
    """
    if found is None:  # this rank takes nothing: it only makes the others' calls
        nothing = points[:0], np.empty((0, 3, 3))
        gather(nothing)
        gather((*nothing, None))
        return None
    mine, rest = (points, target.corners(points)), found.uncovered
    empty = _joined(gather([each[rest] for each in mine]))
    seen = _joined([empty, mine])
    owner, beside = _around(target, *seen, scale)
    near = seen[0][beside[np.isin(seen[0][owner], empty[0])]]
    edge = np.setdiff1d(np.flatnonzero(np.isin(points, near)), rest)
    told = gather([*(each[edge] for each in mine), _listed(found, edge, points)])
    index, corners = _joined([empty, *(each[:2] for each in told)])
    row, column, value = (
        np.concatenate(each) for each in zip(*filter(None, (each[2] for each in told)), strict=True)
    )
    _, first = np.unique(np.stack([row, column]), axis=1, return_index=True)  # a point may be of two ranks
    sources, column = np.unique(column[first], return_inverse=True)
    sparse, n = sparse_matrices(), len(index)
    matrix = sparse.csr_matrix(
        (value[first], (np.searchsorted(index, row[first]), column)), (n, len(sources))
    )
    owner, beside = _around(target, index, corners, scale)
    around = sparse.csr_matrix((np.ones(len(owner)), (owner, beside)), (n, n))
    has = ~np.isin(index, empty[0])
    while True:
        count = around @ has.astype(float)
        new = ~has & (count > 0)
        if not new.any():
            break
        share = np.divide(1.0, count, out=np.zeros(n), where=new)
        matrix = matrix + sparse.diags(share) @ (around @ (sparse.diags(has.astype(float)) @ matrix))
        has |= new
    matrix = sparse.csr_matrix(matrix[np.searchsorted(index, points[rest])])
    return Weights(matrix, sources, np.zeros(len(rest)))


def _joined(parts: Sequence[Sequence[Any]]) -> tuple[Ints, Floats]:
    """(indices, corners) of some parts, ascending, each once."""
    wide = max(corners.shape[1] for _, corners in parts)
    parts = [(index, corners) for index, corners in parts if len(index)] or parts[:1]
    padded = [np.pad(c, ((0, 0), (0, wide - c.shape[1]), (0, 0)), "edge") if len(c) else c for _, c in parts]
    index, first = np.unique(np.concatenate([each for each, _ in parts]), return_index=True)
    return index, np.concatenate(padded)[first]


def _around(target: Grid, index: Ints, corners: Floats, scale: float) -> tuple[Ints, Ints]:
    """(point, neighbour), as positions in index."""
    return target.around(index) if isinstance(target, Rows) else around_cells(corners, scale)


def _listed(found: Weights, which: Ints, points: Ints) -> tuple[Ints, Ints, Floats]:
    """(point, source, weight) of some points."""
    part = found.matrix[which].tocoo()
    return points[which][part.row], found.sources[part.col], part.data
