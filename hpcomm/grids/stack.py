"""Stacks of mappings: what one leaves uncovered, the next one takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..core.types import Ints
from .grid import Grid, joined
from .rows import around
from .weights import Weights, of_triples, sparse_matrices

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
    empty = joined(gather([each[rest] for each in mine]))
    seen = joined([empty, mine])
    owner, beside = around(target, seen[0], seen[1], scale)
    near = seen[0][beside[np.isin(seen[0][owner], empty[0])]]
    edge = np.setdiff1d(np.flatnonzero(np.isin(points, near)), rest)
    part = found.matrix[edge].tocoo()
    triples = points[edge][part.row], found.sources[part.col], part.data
    told = gather([*(each[edge] for each in mine), triples])
    index, corners = joined([empty, *(each[:2] for each in told)])
    joint = [*map(np.concatenate, zip(*filter(None, (each[2] for each in told)), strict=True))]
    _, first = np.unique(joint[:2], axis=1, return_index=True)  # a point may be of two ranks
    matrix, sources = of_triples(index, *(each[first] for each in joint))
    sparse, n = sparse_matrices(), len(index)
    owner, beside = around(target, index, corners, scale)
    neighbours = sparse.csr_matrix((np.ones(len(owner)), (owner, beside)), (n, n))
    has = ~np.isin(index, empty[0])
    while True:
        count = neighbours @ has.astype(float)
        new = ~has & (count > 0)
        if not new.any():
            break
        share = np.divide(1.0, count, out=np.zeros(n), where=new)
        matrix = matrix + sparse.diags(share) @ (neighbours @ (sparse.diags(has.astype(float)) @ matrix))
        has |= new
    matrix = sparse.csr_matrix(matrix[np.searchsorted(index, points[rest])])
    return Weights(matrix, sources, np.zeros(len(rest)))
