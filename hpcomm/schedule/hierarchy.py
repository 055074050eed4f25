"""Two levels: one algorithm within nodes, another one between them."""

from __future__ import annotations

import math

import numpy as np

from .combine import later, refine, reverse, tile, window
from .stream import Schedule, ranks

__all__ = ["divide", "two_level"]


def two_level(p: int, inner: Schedule, outer: Schedule) -> Schedule:
    """all_reduce: reduce_scatter within each node, all_reduce of each part between nodes, all_gather within.

        node 0: 0 1 2 | node 1: 3 4 5        inner on {0 1 2} and {3 4 5};   outer on {0 3}, {1 4}, {2 5}

    Where inner is a broadcast instead of an all_gather, the first ranks of the nodes act for all.
    Cost: of n bytes 2n(q-1)/q within a node of q ranks, and only 2n/q between nodes, per rank.
    """
    q = inner.size
    nodes = ranks(p).reshape(-1, q)
    if inner.verb == "broadcast":
        between, parts = tile(outer, nodes[:, 0][None, :], p), outer.chunks
    else:
        parts = outer.chunks
        between = window(tile(outer, nodes.T, p), np.arange(q) * parts)
        parts *= q
    within = refine(inner.streams, parts // inner.cells)
    inward = Schedule(inner.verb, q, within, chunks=parts)
    back = reverse("reduce", inward)
    start = back.iterations
    streams = (
        *tile(back, nodes, p),
        *later(between, start),
        *later(tile(inward, nodes, p), start + outer.iterations),
    )
    return Schedule("all_reduce", p, tuple(s for s in streams if s.active and s.rows), chunks=parts)


def divide(p: int) -> int:
    """The size of nodes where nobody says it: the greatest divisor of p up to its root."""
    return max(d for d in range(1, math.isqrt(p) + 1) if p % d == 0)
