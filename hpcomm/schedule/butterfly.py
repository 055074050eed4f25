"""Butterfly algorithms: recursive doubling, Rabenseifner, Swing, Bine.

A butterfly on q = 2^L ranks is a function partner(rank, round). It needs nothing else: who keeps which
half in a reduce_scatter follows from it (`addresses`). On other sizes the surplus ranks are reduced into
their neighbours first:

    p = 6:   1 -> 0,  3 -> 2,   then a butterfly of 0, 2, 4, 5,   then  0 -> 1,  2 -> 3
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.types import Ints
from .combine import in_turn, later, tile
from .stream import AFTER, BEFORE, Schedule, Stream, ranks

Partner = Callable[[Ints, int, int], Ints]  # (ranks, round, number of rounds) -> their partners


def hypercube(r: Ints, k: int, rounds: int) -> Ints:
    """Partner at distance 2^k."""
    return r ^ (1 << k)


def halving(r: Ints, k: int, rounds: int) -> Ints:
    """Partner at distance 2^(rounds-1-k): far ones first."""
    return r ^ (1 << (rounds - 1 - k))


def swing(r: Ints, k: int, rounds: int) -> Ints:
    """Partner at distance (1 - (-2)^(k+1)) / 3 = 1, -1, 3, -5, 11: even ranks go one way, odd ones the other.

    Shorter ways on a torus than 2^k (De Sensi, Bonato, Saam and Hoefler 2024, "Swing").
    """
    far = (1 - (-2) ** (k + 1)) // 3
    return np.asarray((r + np.where(r % 2 == 0, far, -far)) % (1 << rounds))


def bine(r: Ints, k: int, rounds: int) -> Ints:
    """Swing's partners, far ones first: binomial negabinary trees (De Sensi et al. 2025, "Bine trees")."""
    return swing(r, rounds - 1 - k, rounds)


def recursive_doubling(p: int, partner: Partner = hypercube) -> Schedule:
    """all_reduce: everyone exchanges all of x with a partner, in each round another one.

        0 <-> 1   2 <-> 3        round 0
        0 <-----> 2   1 <-----> 3        round 1

    Cost: log2 p rounds of n bytes, two more where p is no power of two (Thakur et al. 2005). Small x.
    """
    rounds = p.bit_length() - 1
    r = ranks(1 << rounds)
    others = (partner(r, k, rounds) for k in range(rounds))
    streams = in_turn(Stream(r, other, reduce=np.where(r > other, AFTER, BEFORE)) for other in others)
    return _any_size(p, Schedule("all_reduce", len(r), streams))


def recursive_halving(p: int, partner: Partner = halving) -> Schedule:
    """all_reduce: exchange half of x, then half of that half ...; then back, doubling.

        0 <-> 2, 1 <-> 3  one half each;    0 <-> 1, 2 <-> 3  one quarter each;    and the same backwards

    Cost: 2 log2 p rounds, 2n(p-1)/p bytes where p is a power of two; else two rounds of n bytes more
    (Rabenseifner 2004). With `swing` and `bine` as partner: those algorithms.
    """
    rounds = p.bit_length() - 1
    r = ranks(1 << rounds)
    mine = addresses(len(r), partner)
    down: list[Stream] = []
    up: list[Stream] = []
    for k in range(rounds):
        half = len(r) >> (k + 1)
        other = partner(r, k, rounds)
        how = np.where(r > other, AFTER, BEFORE)
        down.append(Stream(r, other, chunk=mine[other] & -half, width=half, reduce=how))
        up.insert(0, Stream(r, other, chunk=mine & -half, width=half))
    q = Schedule("all_reduce", len(r), in_turn([*down, *up]), chunks=len(r))
    return _any_size(p, q)


def butterfly_broadcast(p: int, partner: Partner = bine) -> Schedule:
    """broadcast: whoever has it gives it to the partner of the round; surplus ranks at the end.

        p = 8, bine:   0 -> 3      0 -> 7, 3 -> 4      0 -> 1, 3 -> 2, 4 -> 5, 7 -> 6

    Cost: ceil(log2 p) rounds of n bytes, over shorter ways than the binomial tree's (De Sensi et al. 2025).
    """
    rounds = p.bit_length() - 1
    q = 1 << rounds
    streams, have = [], np.zeros(1, np.int64)
    for k in range(rounds):
        other = partner(have, k, rounds)
        streams.append(Stream(have, other))
        have = np.concatenate([have, other])
    if p > q:
        extra = np.arange(p - q)
        streams.append(Stream(extra, extra + q))
    return Schedule("broadcast", p, in_turn(streams))


def addresses(q: int, partner: Partner) -> Ints:
    """Which of q blocks each rank ends with, so that what it sends in each round lies in one piece.

    Two ranks that still exchange after round k agree about the half they took in it. So going backwards,
    the ranks that later rounds join form groups; round k joins two of them, which take a half each.
    """
    r, rounds = ranks(q), q.bit_length() - 1
    group, address = r.copy(), np.zeros(q, np.int64)
    for k in reversed(range(rounds)):
        other = group[partner(r, k, rounds)]
        address |= (group > other).astype(np.int64) << (rounds - 1 - k)
        group = np.minimum(group, other)
    return address


def _any_size(p: int, core: Schedule) -> Schedule:
    """The all_reduce core, on a power of two ranks, for p ranks: neighbours pair up beforehand."""
    q = core.size
    if p == q:
        return core
    odd = np.arange(p - q) * 2 + 1
    stay = np.concatenate([odd - 1, np.arange(2 * (p - q), p)])
    reduce_in = Stream(odd, odd - 1, width=core.chunks, reduce=AFTER)
    end = core.iterations + 1
    give_back = Stream(odd - 1, odd, width=core.chunks, begin=end, end=end + 1)
    inner = later(tile(core, stay[None, :], p), 1)
    return Schedule("all_reduce", p, (reduce_in, *inner, give_back), chunks=core.chunks)
