"""Cost of rings and chains in closed form, of any length: a few ranks at both ends are enough.

Why they are. Groups of ranks (see Machine.group) are alike, and numbered g = 0, 1, 2, ... For each place in a
group, f(g) is the clock of the rank that has this place in group g.

1. Before the first message f is constant, and so convex.
2. What a stream does to clocks keeps them convex. It adds constants. It takes the larger of several clocks.
   And a message that runs through groups takes the largest of f(h) + slope * h over a stretch of groups h.
3. A convex function is largest at an end of a stretch. So the cost, which is the largest clock, is that of
   the first or the last group. And of a stretch only its two ends count: these are near g, or are the first
   or the last group.

So ranks near the ends never wait for one in the middle.

How many to follow. Next to ranks that are left out clocks come out too early. Each stream spoils two groups
more there, and makes two groups more at either end unlike the rest: `few` follows so many that some are left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.types import NpArray
from ..stream import COPY, Run, Schedule, Stream
from .machine_model import Machine
from .max_plus_time import Clock, Map, Rows


def few(schedule: Schedule, on: Machine) -> int:
    """How many ranks to follow at either end, if all streams are rings or chains; 0 where it must be all."""
    ends = (4 * len(schedule.streams) + 3) * on.group
    alike = all(isinstance(s.source, Run) or is_single(s) for s in schedule.streams)
    return ends if alike and 4 * ends < schedule.size else 0


def ring(clock: Clock, streams: list[Stream]) -> bool:
    """All give to a neighbour, always on the same side, until what they gave has been everywhere."""
    s = lasting(streams)
    way = None if s is None else clock.shift(s)
    if s is None or way is None or way[0] not in (1, clock.size - 1) or s.active != clock.size - 1:
        return False
    own, hop = uniform(clock, s, way[0])
    if np.unique(own).size > 8:
        return False
    along, gap = slice(None), clock.gap
    if way[0] != 1:
        along, gap = slice(None, None, -1), clock.time.size - clock.gap
    over, place = everywhere(clock, hop)[along], None
    if clock.missing:
        group = clock.on.group
        over[gap] += hop[group : 2 * group].sum() * (clock.missing // group)
        place = clock.place[along]
        place = abs(place - place[0])
    owns = lambda: everywhere(clock, own)[along]  # noqa: E731 - many, and seldom asked for
    clock.time[along] = _once_around(clock.time[along], over, own, owns, place)
    return True


def _once_around(
    time: NpArray, hop: NpArray, own: NpArray, owns: Callable[[], NpArray], place: NpArray | None = None
) -> NpArray:
    """The clocks of a circle of p after p-1 times.

    p-1 hops begin at the one that stands ahead. With stays of `value` at some rank on the way, the way begins
    anywhere: up to the last rank behind that has so much, or ahead, in the turn before.

    own: the values that owns() has. place: where the ranks stand in the circle, if it is not all of them.
    """
    total = float(hop.sum())
    rest = hop - time
    new = np.empty(time.size)
    np.subtract(total, rest[1:], out=new[:-1])
    new[-1] = total - rest[0]
    rest[1:] += time[:-1]
    rest[0] += time[-1]
    values = np.unique(own)
    if place is None:
        values = values[values > rest.min()]  # else staying is never worth it
    if not values.size:
        return new
    p = time.size if place is None else int(place[-1]) + 1
    along = owns()
    begin = int(along.argmax())  # the circle is cut there, so that there is one behind everybody
    time, hop, along, new = (np.roll(x, -begin) for x in (time, hop, along, new))
    order = np.arange(time.size)
    far, place = np.cumsum(hop), (order if place is None else np.roll(place - place[begin], -begin) % p)
    place = place.astype(float)
    for value in values.tolist():
        begun = time - far
        begun += place * value
        last = np.maximum.accumulate(np.where(along >= value, order, 0))
        best = np.maximum.accumulate(begun)[last]
        ahead = np.maximum.accumulate(begun[:0:-1])[::-1]
        ahead += total - p * value
        np.maximum(best[:-1], ahead, out=best[:-1])
        best += far
        best += (p - 1 - place) * value
        np.maximum(new, best, out=new)
    return np.roll(new, begin)


def passing(clock: Clock, streams: list[Stream]) -> bool:
    """All but the last give to the next, once; only where few ranks are followed."""
    (s, *others) = streams
    on, p = clock.on, clock.size
    if others or not clock.missing or not s.is_pass(p):
        return False
    few = 3 * on.group + p % on.group
    r = np.arange(few - 1)
    nbytes = np.full(few - 1, float(s.width * s.count * clock.chunk))
    step = Map(Rows(r, r + 1, nbytes, nbytes * (s.reduce != COPY), r), on, few)
    own, hop = (everywhere(clock, x) for x in (step.own, np.append(0.0, step.hop)))
    before, clock.time = clock.time, clock.time + own
    hop[clock.gap] = -np.inf  # whoever gives to this one is left out
    np.maximum(clock.time[1:], before[:-1] + hop[1:], out=clock.time[1:])
    return True


def chain(clock: Clock, streams: list[Stream]) -> bool:
    """Chunks that follow each other from rank to rank, one iteration apart.

    When a rank has chunk c: own after it had chunk c-1, or hop after its neighbour had chunk c.
    """
    streams = sorted(streams, key=lambda s: s.begin)
    s = streams[0]
    walks = abs(s.source_step) == 1 and s.source_step == s.dest_step and s.every == 1
    if not walks or s.active >= clock.size or not _follow(streams):
        return False
    a, b = s.ends(0, clock.size)
    if (b - a - s.source_step) % clock.size:
        return False
    if clock.missing:
        return _followed_chain(clock, streams, int(a[0]))
    line = (a + np.arange(s.active + 1) * s.source_step) % clock.size
    hop, take, gone = single(clock, s, line[:-1], line[1:])
    clock.time[line] = _passed(clock.time[line], len(streams), hop, take, gone)
    return True


def _follow(streams: list[Stream]) -> bool:
    """Whether each is a chunk, like the first one, one iteration after the one before."""
    first = streams[0]
    return all(
        is_single(s)
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


def _followed_chain(clock: Clock, streams: list[Stream], first: int) -> bool:
    """A chain through all groups, of which only those at the ends are followed."""
    s, p, group = streams[0], clock.size, clock.on.group
    last = first + s.active * s.source_step
    low, high = min(first, last), max(first, last)
    if low > group or high < p - 1 - group or low < 0 or high >= p:
        return False
    at = np.flatnonzero((clock.place >= low) & (clock.place <= high))[:: s.source_step]
    line = clock.place[at]
    hop, take, _ = single(clock, s, line[1:] - s.source_step, line[1:])
    _, _, gone = single(clock, s, line[:-1], line[:-1] + s.source_step)
    jump = int(np.flatnonzero(abs(np.diff(line)) > 1)[0])
    some = np.arange(2 * group, 3 * group)
    hop[jump] += single(clock, s, some - s.source_step, some)[0].sum() * (clock.missing // group)
    clock.time[at] = _passed(clock.time[at], len(streams), hop, take, gone)
    return True


def uniform(clock: Clock, s: Stream, d: int) -> tuple[NpArray, NpArray]:
    """(own, hop) of few ranks, enough for everywhere(); all give equally much to the one d further on.

    If that is near, all groups (see Machine.group) are alike but the first and the last two.
    """
    p, group = clock.size, clock.on.group
    few = 3 * group + p % group
    if few >= p or min(d, p - d) > group:
        few = p
    step = shifted(clock, s, d if d <= p // 2 else d + few - p, few)
    hop = np.empty(few)
    hop[step.dest] = step.hop
    return step.own, hop


def everywhere(clock: Clock, x: NpArray) -> NpArray:
    """What uniform() found of few ranks, for all that the clock follows."""
    p, group, few = clock.size - clock.missing, clock.on.group, x.size
    if few == p:
        return x
    found = np.empty(p)
    found[:group], found[p - few + 2 * group :] = x[:group], x[2 * group :]
    found[group : p - few + 2 * group].reshape(-1, group)[:] = x[group : 2 * group]
    return found


def shifted(clock: Clock, s: Stream, d: int, size: int) -> Map:
    """All of a circle of so many give to the one d further on."""
    r = np.arange(size)
    nbytes = np.full(size, float(s.width * s.count * clock.chunk))
    return Map(Rows(np.roll(r, d), r, nbytes, nbytes * (s.reduce != COPY), r), clock.on, size)


def single(clock: Clock, s: Stream, source: NpArray, dest: NpArray) -> tuple[NpArray, NpArray, NpArray]:
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


def is_single(s: Stream) -> bool:
    return s.rows == 1 and s.is_even


def lasting(streams: list[Stream]) -> Stream | None:
    """The one stream, if in it the same ranks give to the same ones in each of three iterations or more."""
    (s, *others) = streams
    return None if others or s.moves or s.every > 1 or s.active < 3 else s
