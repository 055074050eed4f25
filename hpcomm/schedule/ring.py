"""Ring-like algorithms: ring, Bruck, circulant, parallel aggregated trees, pairwise.

n is the size of x in bytes (all_gather: of the result), p the number of ranks. Each is written as an
all_gather; backwards it is a reduce_scatter, and both together an all_reduce.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise as pairwise_of

from .combine import in_turn
from .stream import AFTER, BEFORE, Schedule, Stream, ranks


def ring(p: int, step: int = 1) -> Schedule:
    """all_gather: everyone passes on to the right what came from the left (step -1: the other way).

        0 -> 1 -> 2 -> 3 -+      iteration t: rank r sends block r - t
        ^                 |
        +-----------------+

    Cost: p-1 rounds, n(p-1)/p bytes sent per rank: the bound (Patarasuk and Yuan 2009).
    """
    r = ranks(p)
    return _gather(p, [Stream(r, (r + step) % p, chunk=r, chunk_step=-step, end=p - 1, modulus=p)])


def bruck(p: int) -> Schedule:
    """all_gather: the blocks held double each round.

        round 0:  r -> r-1   1 block       round 1:  r -> r-2   2 blocks       round 2:  r -> r-4   4 ...

    Cost: ceil(log2 p) rounds, n(p-1)/p bytes: both bounds at any p (Bruck et al. 1997).
    """
    return _skips(p, [min(1 << k, p) for k in range((p - 1).bit_length() + 1)])


def circulant(p: int) -> Schedule:
    """all_gather: as Bruck, with skips that halve p, so that the rounds are as equal as can be.

        p = 6:   skips 1, 2, 3, 6:   r -> r-1  1 block,   r -> r-2  1 block,   r -> r-3  3 blocks

    Backwards it is Träff's optimal reduce_scatter. Cost: ceil(log2 p) rounds, n(p-1)/p bytes, and n(p-1)/p
    reduced: all three bounds, at any p (Träff 2024, "Optimal, non-pipelined reduce-scatter and allreduce").
    """
    skips = [p]
    while skips[0] > 1:
        skips.insert(0, -(-skips[0] // 2))
    return _skips(p, skips)


def parallel_trees(p: int) -> Schedule:
    """all_gather: far partners first, while there is little to send ("pat" of NCCL 2.23).

        p = 8:   r -> r+4  {r},   r -> r+2  {r, r-4},   r -> r+1  {r, r-2, r-4, r-6}

    Cost: ceil(log2 p) rounds, n(p-1)/p bytes, the most of them between neighbours (Jeaugey 2025).
    """
    r = ranks(p)
    far = [1 << k for k in reversed(range((p - 1).bit_length()))]
    return _gather(p, in_turn(
        Stream(r, (r + d) % p, chunk=r, count=-(-(p - d) // (2 * d)), stride=-2 * d, modulus=p) for d in far
    ))  # fmt: skip


def pairwise(p: int) -> Schedule:
    """all_gather: in iteration t rank r gives its block to r+1+t itself.

        iteration 0:  r -> r+1      iteration 1:  r -> r+2      iteration 2:  r -> r+3 ...

    Cost: p-1 rounds, n(p-1)/p bytes (Thakur, Rabenseifner and Gropp 2005, "pairwise exchange").
    """
    r = ranks(p)
    return _gather(p, [Stream(r, (r + 1) % p, chunk=r, dest_step=1, end=p - 1)])


def pairwise_exchange(p: int) -> Schedule:
    """all_to_all: in iteration t rank r gives r+1+t what is his.

        iteration 0:  r -> r+1      iteration 1:  r -> r+2      iteration 2:  r -> r+3 ...

    Cost: p-1 rounds, n(p-1)/p bytes: the bound (Thakur, Rabenseifner and Gropp 2005, "pairwise exchange").
    """
    r = ranks(p)
    own = Stream(r, r, chunk=r, dest_offset=p)
    rest = Stream(
        r, (r + 1) % p, dest_step=1, chunk=r + 1, chunk_step=1, modulus=p, end=p - 1,
        dest_chunk=r, dest_chunk_step=0, dest_offset=p,
    )  # fmt: skip
    return Schedule("all_to_all", p, (own, rest), slots=2 * p)


def bruck_exchange(p: int) -> Schedule:
    """all_to_all: what has to go i ranks on goes 2^k on in round k, if i has bit k.

        cell r+i of rank r holds what must go i on;   round k:  r -> r+2^k   all cells with bit k in i

    Cost: ceil(log2 p) rounds, about n/2 bytes in each (Bruck et al. 1997). For small blocks.
    """
    r, rounds = ranks(p), []
    for d in [1 << k for k in range((p - 1).bit_length())]:
        whole, rest = divmod(p, 2 * d)
        parts = [(d, whole, d)] if whole else []
        parts += [(min(d, rest - d), 1, 2 * d * whole + d)] if rest > d else []
        rounds.append([
            Stream(r, (r + d) % p, chunk=r + at, dest_chunk=r + d + at, width=w, count=m, stride=2 * d,
                   modulus=p)
            for w, m, at in parts
        ])  # fmt: skip
    rounds.append([Stream(r, r, chunk=r, count=p, stride=1, dest_stride=-1, dest_offset=p, modulus=p)])
    streams = [s._replace(begin=i, end=i + 1) for i, part in enumerate(rounds) for s in part]
    return Schedule("all_to_all", p, tuple(streams), slots=2 * p)


def chain(p: int, chunks: int = 1) -> Schedule:
    """broadcast: everyone passes on to the right what came, chunk after chunk.

        0 -> 1 -> 2 -> 3 ...

    Cost: p-2+c rounds of n/c bytes for c chunks: n bytes sent per rank, the bound, when c is large (Watts and
    van de Geijn 1995).
    """
    streams = [
        Stream([0], [1], chunk=i, source_step=1, dest_step=1, begin=i, end=i + p - 1)
        for i in range(chunks if p > 1 else 0)
    ]
    return Schedule("broadcast", p, tuple(streams), chunks=chunks)


def chain_scan(p: int, chunks: int = 1) -> Schedule:
    """scan: rank r reduces what r-1 gives before its own, and passes it on.

        0 -> 1 -> 2 -> 3 ...       chunk after chunk

    Cost: p-2+c rounds of n/c bytes for c chunks (Sanders and Träff 2006, "linear pipeline").
    """
    streams = tuple(s._replace(reduce=BEFORE) for s in chain(p, chunks).streams)
    return Schedule("scan", p, streams, chunks=chunks)


def prefix(p: int) -> Schedule:
    """scan: in round k rank r reduces what r - 2^k has; it then holds the last 2^(k+1) ranks up to itself.

        round 0:  0 -> 1, 1 -> 2, 2 -> 3 ...      round 1:  0 -> 2, 1 -> 3 ...      round 2:  0 -> 4 ...

    Cost: ceil(log2 p) rounds of n bytes (Hillis and Steele 1986).
    """
    r = ranks(p)
    far = [1 << k for k in range((p - 1).bit_length())]
    return Schedule("scan", p, in_turn(Stream(r[: p - d], r[d:], reduce=BEFORE) for d in far))


def dissemination(p: int) -> Schedule:
    """barrier: in round k rank r tells r + 2^k.

        round 0:  r -> r+1      round 1:  r -> r+2      round 2:  r -> r+4 ...

    Cost: ceil(log2 p) rounds: the bound (Hensgen, Finkel and Manber 1988).
    """
    r = ranks(p)
    far = [1 << k for k in range((p - 1).bit_length())]
    return Schedule("barrier", p, in_turn(Stream(r, (r + d) % p, reduce=AFTER) for d in far))


def ring_barrier(p: int) -> Schedule:
    """barrier: everyone tells the next what it knows.

        0 -> 1 -> 2 -> ... -> p-1 -> 0      all at once, p-1 times

    Cost: p-1 rounds (folklore).
    """
    r = ranks(p)
    return Schedule("barrier", p, (Stream(r, (r + 1) % p, reduce=AFTER, end=p - 1),))


def _skips(p: int, skips: list[int]) -> Schedule:
    r = ranks(p)
    pairs = pairwise_of(skips)
    return _gather(p, in_turn(Stream(r, (r - s) % p, chunk=r, width=b - s, modulus=p) for s, b in pairs))


def _gather(p: int, streams: Iterable[Stream]) -> Schedule:
    return Schedule("all_gather", p, tuple(s for s in streams if s.active and p > 1), slots=p)
