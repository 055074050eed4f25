"""Tree algorithms: binomial, two binary trees at once, and trees that scatter blocks.

Each is written downwards from rank 0, as a broadcast or scatter; backwards it is a reduce or gather, and
`turn` gives the other roots.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.types import Ints
from .combine import in_turn, later, reverse, tile
from .stream import Schedule, Stream, ranks


def binomial(p: int) -> Schedule:
    """broadcast: whoever has it gives it to the one 2^k further, k falling.

        0 -----------> 4            round 0
        0 ----> 2      4 ----> 6    round 1
        0->1    2->3   4->5   6->7  round 2

    Cost: ceil(log2 p) rounds of n bytes (folklore; MPICH's and Open MPI's small broadcast).
    """
    return Schedule("broadcast", p, in_turn(Stream(v, v + d) for d, v in _levels(p)))


def binomial_scatter(p: int) -> Schedule:
    """scatter: the binomial tree, each giving away the blocks of the half it does not keep.

        0 -> 4  {4, 5, 6, 7}      0 -> 2  {2, 3},  4 -> 6  {6, 7}      0 -> 1, 2 -> 3, 4 -> 5, 6 -> 7

    Cost: ceil(log2 p) rounds, n(p-1)/p bytes from the root: both bounds (folklore; MPICH's).
    """
    streams = in_turn(Stream(v, v + d, chunk=v + d, width=np.minimum(d, p - v - d)) for d, v in _levels(p))
    return Schedule("scatter", p, streams, slots=p)


def _levels(p: int) -> Iterator[tuple[int, Ints]]:
    """How far those of each level give, far ones first, and who they are."""
    for d in [1 << k for k in reversed(range((p - 1).bit_length()))]:
        yield d, np.arange(0, p - d, 2 * d)


def direct_scatter(p: int) -> Schedule:
    """scatter: root gives each rank its block, one after the other.

        0 -> 1      0 -> 2      0 -> 3 ...

    Cost: p-1 rounds, n(p-1)/p bytes (folklore; Open MPI's "linear").
    """
    rest = Stream([0], [1], chunk=1, chunk_step=1, dest_step=1, end=p - 1)
    return Schedule("scatter", p, (rest,) if p > 1 else (), slots=p)


def binary_tree(p: int) -> tuple[np.ndarray, np.ndarray]:
    """(parent, depth) of every place 1..p of the binary tree in order, at index place - 1; root: parent 0.

                  8
          4               12          places with lowest bit b have their children b/2 away on both
      2       6       10      14      sides, so odd places are leaves; where a place is missing (p = 11:
    1   3   5   7    9  11  13  15    no 12), what would hang below it moves up
    """
    place = np.arange(1, p + 1)
    bit = place & -place
    up = (place ^ bit) | (bit << 1)
    up[(1 << (p.bit_length() - 1)) - 1] = 0
    while (over := up > p).any():
        bit = up & -up
        up = np.where(over, (up ^ bit) | (bit << 1), up)
    depth = np.zeros(p + 1, np.int64)
    level = up.copy()
    while (level > 0).any():
        depth[1:] += level > 0
        level = np.where(level > 0, up[level - 1], 0)
    return up, depth[1:]


def two_trees(p: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(parent rank or -1, depth) of every rank, in both trees.

    The second tree is the first one moved on by one place, so that inner ranks of one are leaves of the
    other: everyone's links are busy in both directions (Sanders, Speck and Träff 2009; NCCL 2.4).

        p = 6        4                     3
                 2       6             1       5        inner: 1, 3, 5 (as ranks 0..5) in the first,
               1   3   5             0   2   4          the others in the second
    """
    up, depth = binary_tree(p)
    first = (up - 1, depth)
    moved = np.roll(np.where(up > 0, (up - 2) % p, -1), -1)
    return first, (moved, np.roll(depth, -1))


def double_tree(p: int, chunks: int = 2) -> Schedule:
    """all_reduce: one half of x goes up and down one binary tree, the other half its twin.

        first half            second half           chunk after chunk: while the first chunks come
             3                     2                 down, later ones still go up
         1       5             0       4
        0 2     4                 1 3     5

    Cost: about 2 log2(p) + c rounds of n/c bytes in each tree: 2n bytes sent per rank when c is large, and
    no more than 4 log2(p) messages of latency (Sanders, Speck and Träff 2009). chunks: of both trees.
    """
    pieces = max(1, chunks // 2)
    streams: list[Stream] = []
    for which, (parent, depth) in enumerate(two_trees(p) if p > 1 else ()):
        streams += _up_and_down(parent, depth, which * pieces, pieces)
    return Schedule("all_reduce", p, tuple(streams), chunks=2 * pieces)


def _up_and_down(parent: np.ndarray, depth: np.ndarray, first: int, pieces: int) -> list[Stream]:
    height, streams = int(depth.max()), []
    child = ranks(len(parent))
    for d in range(1, height + 1):
        c = child[depth == d]
        down = Stream(
            parent[c], c, chunk=first, chunk_step=1, begin=height + d - 1, end=height + d - 1 + pieces
        )
        right = np.where(c > parent[c], 1, 2)  # AFTER or BEFORE, so that a tree in order keeps the order
        begin = height - d
        streams.append(
            Stream(c, parent[c], chunk=first, chunk_step=1, begin=begin, end=begin + pieces, reduce=right)
        )
        streams.append(down)
    return streams


def double_tree_broadcast(p: int, chunks: int = 2) -> Schedule:
    """broadcast: root feeds the roots of two trees over the other ranks, half of x through each.

        p = 7, first half   0 -> 4            second half   0 -> 3
                               2   6                         1   5
                              1 3 5                       6 2 4

    Cost: about log2(p) + c rounds of n/c bytes in each tree, n bytes sent per rank (Sanders, Speck and Träff
    2009). chunks: of both trees.
    """
    pieces = max(1, chunks // 2)
    streams: list[Stream] = []
    for which, (parent, depth) in enumerate(two_trees(p - 1) if p > 1 else ()):
        for d in range(int(depth.max()) + 1):
            c = np.flatnonzero(depth == d)
            source = parent[c] + 1 if d else np.zeros_like(c)
            streams.append(Stream(source, c + 1, chunk=which * pieces, chunk_step=1, begin=d, end=d + pieces))
    return Schedule("broadcast", p, tuple(streams), chunks=2 * pieces)


def chained(p: int, node: int, outer: Schedule) -> Schedule:
    """all_reduce: a chain in each node of `node` ranks, outer among the first ranks of the nodes (NCCL 2.4).

    5 -> 4 -> 3 -> 2 -> 1 -> 0  ==outer==  6 <- 7 <- 8 <- 9 <- 10 <- 11    and back
    """
    pieces = outer.chunks
    v = ranks(p)
    down = []
    for i in range(node - 1):
        c = v[(v % node) == i + 1]
        down.append(Stream(c - 1, c, width=pieces, begin=i, end=i + 1))
    inward = Schedule("broadcast", p, tuple(down), chunks=pieces)
    leaders = v[::node][None, :]
    between = later(tile(outer, leaders, p), inward.iterations)
    up = reverse("reduce", inward).streams
    streams = up + between + later(inward.streams, inward.iterations + outer.iterations)
    return Schedule("all_reduce", p, streams, chunks=pieces)
