"""Powers of max-plus matrices in closed form, so that long schedules are not computed step by step.

Each function takes streams that are a phase of their own, and says whether it moved the clock over all of it.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd

import numpy as np

from ...core.types import NpArray
from ..stream import COPY, Stream
from .max_plus_time import Clock, Map, Rows


def _circles(clock: Clock, streams: list[Stream]) -> bool:
    """All that take part stand in circles of one size, and each gives to the next every time.

    After n times a rank's clock is the largest, over all h up to n, of the one h places back, with h hops
    and n - h times the largest `own` on the way. There are few values of `own`; for each one it is a
    largest value over a range, with a slope.
    """
    s = _lasting(streams)
    if s is None:
        return False
    way = clock.shift(s)
    if way is not None and gcd(way[0], clock.size) == 1:
        own, hop = (_everywhere(clock, x) for x in _uniform(clock, s, way[0]))
        circles: NpArray | None = (np.arange(clock.size) * way[0] % clock.size)[None, :]
    else:
        step = clock.map([(s, 0)])
        gives = np.zeros(clock.size, bool)
        gives[step.source] = True
        if not step.source.size == step.receivers.size == gives[step.receivers].sum():
            return False
        own, hop = step.own, np.zeros(clock.size)
        hop[step.dest] = step.hop
        circles = _circles_of(step.source, step.dest, clock.size)
    values = np.unique(own)
    if values.size > 8 or circles is None or circles.shape[1] < 2:
        return False
    time, own, hop = clock.time[circles], own[circles], hop[circles]
    left, most = s.active, circles.shape[1] - 1
    while left:
        time = _power(time, hop, own, values, min(left, most))
        left -= min(left, most)
    clock.time[circles] = time
    return True


def _shifts(clock: Clock, streams: list[Stream]) -> bool:
    """All give to the one d further on, and d moves by one each time.

    As long as that is farther than nodes and pods reach, hop and own are the same for all, hop the
    larger. The best way back over n iterations hops every time; or all but once, which reaches any rank
    that some d leads to; or all but twice, which reaches all of them.
    """
    (s, *others) = streams
    way = None if others else clock.shift(s)
    if way is None or s.every > 1 or abs(way[1]) != 1:
        return False
    p, group = clock.size, clock.on.group
    d = (way[0] + np.arange(s.active) * way[1]) % p
    far = (d >= group) & (d <= p - group)
    edges = [0, *(np.flatnonzero(far[1:] != far[:-1]) + 1).tolist(), s.active]
    for low, high in pairwise(edges):
        step = _shifted(clock, s, int(d[low]), p)
        if far[low] and 2 * (high - low) > p + 2 and np.ptp(step.hop) == 0 == np.ptp(step.own):
            hop, spare = step.hop[0] * (high - low), step.hop[0] - step.own[0]
            moved = np.roll(clock.time, int(d[low:high].sum() % p))
            once = _largest_ahead(moved, int(d[low:high].min()), high - low) - spare
            clock.time = hop + np.maximum(np.maximum(moved, once), clock.time.max() - 2 * spare)
            continue
        for k in range(low, high):
            clock.step(_shifted(clock, s, int(d[k]), p), s.begin + k, 1)
    return True


def _walk(clock: Clock, streams: list[Stream]) -> bool:
    """One message per iteration, in plain numbers."""
    (s, *others) = streams
    if others or not _is_single(s) or s.active < 3:
        return False
    k = np.arange(s.active)
    a, b = (
        (np.atleast_1d(x) + k * y) % clock.size for x, y in ((s.source, s.source_step), (s.dest, s.dest_step))
    )
    apart = a != b
    a, b = a[apart], b[apart]
    time = clock.time.tolist()
    columns = (a, b, *_single(clock, s, a, b))
    for source, dest, hop, take, gone in zip(*(c.tolist() for c in columns), strict=True):
        begin = time[source]
        time[source] = begin + gone
        time[dest] = max(time[dest] + take, begin + hop)
    clock.time = np.array(time)
    return True


def _chain(clock: Clock, streams: list[Stream]) -> bool:
    """Chunks that follow each other from rank to rank, one iteration apart.

    When a rank has chunk c: own after it had chunk c-1, or hop after its neighbour had chunk c.
    """
    streams = sorted(streams, key=lambda s: s.begin)
    s = streams[0]
    walks = abs(s.source_step) == 1 and s.source_step == s.dest_step and s.every == 1
    if not walks or s.active >= clock.size or not follow(streams):
        return False
    a, b = s.ends(0, clock.size)
    if (b - a - s.source_step) % clock.size:
        return False
    line = (a + np.arange(s.active + 1) * s.source_step) % clock.size
    hop, take, gone = _single(clock, s, line[:-1], line[1:])
    clock.time[line] = _passed(clock.time[line], len(streams), hop, take, gone)
    return True


def follow(streams: list[Stream]) -> bool:
    """Whether each is a chunk, like the first one, one iteration after the one before."""
    first = streams[0]
    return all(
        _is_single(s)
        and s.begin == first.begin + i
        and all(np.all(x == y) for x, y in zip(_kind(s), _kind(first), strict=True))
        for i, s in enumerate(streams)
    )


def _kind(s: Stream) -> tuple[object, ...]:
    """What makes chunks of a chain alike."""
    return s.source, s.dest, s.source_step, s.dest_step, s.width, s.count, s.reduce, s.every, s.active


def _passed(time: NpArray, chunks: int, hop: NpArray, take: NpArray, gone: NpArray) -> NpArray:
    """The clocks of a line of ranks after so many chunks.

    hop and take are those of all ranks but the first, gone of all but the last.
    """
    hop, take, gone = np.append(0.0, hop), np.append(0.0, take), np.append(gone, 0.0)
    far = np.cumsum(hop)
    had: NpArray = time + take
    for i in range(chunks):
        had = far + np.maximum.accumulate(had - far)
        had += np.maximum(take, gone) if i + 1 < chunks else gone
    return had


def _circles_of(source: NpArray, dest: NpArray, size: int) -> NpArray | None:
    """Ranks in the order in which each gives to the next, a row for each circle; None: of unlike sizes."""
    following = np.full(size, -1)
    following[source] = dest
    after, found = following.tolist(), []
    for start in source.tolist():
        circle = []
        while after[start] >= 0:
            circle.append(start)
            after[start], start = -1, after[start]
        if circle:
            found.append(circle)
    return np.array(found) if len({len(circle) for circle in found}) == 1 else None


def _power(time: NpArray, hop: NpArray, own: NpArray, values: NpArray, n: int) -> NpArray:
    """The clocks of circles (rows) after n times, fewer than they are long; values: those of own."""
    along = np.cumsum(hop, 1)
    behind = np.roll(along, n, 1)
    behind[:, :n] -= along[:, -1:]
    new: NpArray = np.roll(time, n, 1) + (along - behind)
    # That is n hops. Staying somewhere for `value` is worth it only if that rank begins so much later than
    # the one before.
    most = (hop + np.roll(time, 1, 1) - time).min()
    if not (values > most).any():
        return new
    q = time.shape[1]
    place = np.arange(2 * q)
    twice, owns = (np.concatenate([x, x], 1) for x in (time, own))
    along = np.concatenate([along, along + along[:, -1:]], 1)
    for value in values[values > most]:
        last = np.maximum.accumulate(np.where(owns >= value, place, -1), 1)[:, q:]  # one with so much
        first = place[q:] - n
        best = _largest_between(twice - along + place * value, first, last)
        new = np.maximum(new, np.where(last >= first, best + along[:, q:] - first * value, -np.inf))
    return new


def _largest_between(x: NpArray, first: NpArray, last: NpArray) -> NpArray:
    """The largest of x[:, first..last] for each column of first and last; nonsense where last < first."""
    length = np.maximum(last - first + 1, 1)
    power = np.frexp(length)[1] - 1  # 2**power fits in once, and twice covers it
    best = np.empty(last.shape)
    rows, first = np.arange(x.shape[0])[:, None], np.minimum(first, x.shape[1] - 1)
    for i in np.flatnonzero(np.bincount(power.ravel())).tolist():
        window, here = _largest_of(x, 1 << i), power == i
        both = np.maximum(window[rows, first], window[rows, np.maximum(last - (1 << i) + 1, 0)])
        best = np.where(here, both, best)
    return best


def _largest_of(x: NpArray, n: int) -> NpArray:
    """The largest of x[:, i .. i + n - 1], where there are so many (van Herk 1992: 3 comparisons each)."""
    q = x.shape[1]
    blocks = np.full((x.shape[0], -(-q // n) + 1, n), -np.inf)
    blocks.reshape(x.shape[0], -1)[:, :q] = x
    until = np.maximum.accumulate(blocks, 2).reshape(x.shape[0], -1)
    since = np.maximum.accumulate(blocks[:, :, ::-1], 2)[:, :, ::-1].reshape(x.shape[0], -1)
    return np.maximum(since[:, :q], until[:, n - 1 : n - 1 + q])


def _largest_ahead(x: NpArray, low: int, many: int) -> NpArray:
    """The largest of x[i + low .. i + low + many - 1], around the circle."""
    p = x.size
    place = np.arange(p) + low
    found = _largest_between(np.tile(x, 3)[None, :], place, (place + many - 1)[None, :])
    return np.asarray(found[0])


def _uniform(clock: Clock, s: Stream, d: int) -> tuple[NpArray, NpArray]:
    """(own, hop) of few ranks, enough for _everywhere(); all give equally much to the one d further on.

    If that is near, all groups (see Machine.group) are alike but the first and the last two.
    """
    p, group = clock.size, clock.on.group
    few = 3 * group + p % group
    if few >= p or min(d, p - d) > group:
        few = p
    step = _shifted(clock, s, d if d <= p // 2 else d + few - p, few)
    hop = np.empty(few)
    hop[step.dest] = step.hop
    return step.own, hop


def _everywhere(clock: Clock, x: NpArray) -> NpArray:
    """What _uniform() found of few ranks, for all."""
    p, group, few = clock.size, clock.on.group, x.size
    if few == p:
        return x
    found = np.empty(p)
    found[:group], found[p - few + 2 * group :] = x[:group], x[2 * group :]
    found[group : p - few + 2 * group].reshape(-1, group)[:] = x[group : 2 * group]
    return found


def _shifted(clock: Clock, s: Stream, d: int, size: int) -> Map:
    """All of a circle of so many give to the one d further on."""
    r = np.arange(size)
    nbytes = np.full(size, float(s.width * s.count * clock.chunk))
    return Map(Rows(np.roll(r, d), r, nbytes, nbytes * (s.reduce != COPY), r), clock.on, size)


def _single(clock: Clock, s: Stream, source: NpArray, dest: NpArray) -> tuple[NpArray, NpArray, NpArray]:
    """(hop, what the receiver does, what the sender does) of messages that share no link."""
    on, level, nbytes = clock.on, np.zeros(source.size, np.int64), float(s.width * s.count * clock.chunk)
    wide = np.zeros(source.size)
    for _, unit, rate in on.links():
        far = source // unit != dest // unit
        level += far
        wide = np.maximum(wide, far * nbytes * rate)
    busy = on.port(np.asarray(nbytes), level)
    take = busy + nbytes * on.reduce_per_byte * (s.reduce != COPY)
    hop = on.overhead + np.asarray(on.latency)[level] + np.maximum(take, wide + on.overhead)
    return hop, take, np.maximum(busy, on.overhead + wide)


def _is_single(s: Stream) -> bool:
    return s.rows == 1 and s.is_even


def _lasting(streams: list[Stream]) -> Stream | None:
    """The one stream, if in it the same ranks give to the same ones in each of three iterations or more."""
    (s, *others) = streams
    return None if others or s.moves or s.every > 1 or s.active < 3 else s


ways = (_circles, _shifts, _chain, _walk)
