"""Hierarchical schedules: one algorithm within nodes, another one between them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .combine import later, refine, reverse, tile, window
from .stream import Schedule, ranks


def two_level(p: int, inner: Schedule, outer: Schedule) -> Schedule:
    """all_reduce: reduce_scatter within each node, all_reduce of each part between nodes, all_gather within.

        node 0: 0 1 2 | node 1: 3 4 5        inner on {0 1 2} and {3 4 5};   outer on {0 3}, {1 4}, {2 5}

    Where inner is a broadcast instead of an all_gather, the first ranks of the nodes act for all.
    Cost: of n bytes 2n(q-1)/q within a node of q ranks, and only 2n/q between nodes, per rank (Mikami et al.
    2018, "2D-torus"; with the first ranks alone: Jia et al. 2018).
    """
    nodes, parts = ranks(p).reshape(-1, inner.size), outer.chunks
    if inner.verb == "broadcast":
        between = tile(outer, nodes[:, :1].T, p)
    else:
        between = window(tile(outer, nodes.T, p), np.arange(inner.size) * parts)
        parts *= inner.size
    forth = replace(inner, streams=refine(inner.streams, parts // inner.cells), slots=1, chunks=parts)
    back = reverse("reduce", forth)
    begin = back.iterations
    between, inward = later(between, begin), later(tile(forth, nodes, p), begin + outer.iterations)
    streams = tile(back, nodes, p) + between + inward
    return Schedule("all_reduce", p, tuple(s for s in streams if s.active and s.rows), chunks=parts)


def divide(p: int) -> int:
    """The size of nodes where nobody says it: the greatest divisor of p up to its root."""
    return max(d for d in range(1, math.isqrt(p) + 1) if p % d == 0)
