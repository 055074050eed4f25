"""Combinators of schedules: in sequence, reversed, renamed, on sub-groups, in more chunks, pipelined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from .._lazy import NDArray
from ..errors import UsageError
from .stream import AFTER, COPY, Schedule, Stream


def later(streams: Iterable[Stream], iterations: int) -> tuple[Stream, ...]:
    """The same streams so many iterations later."""
    return tuple(s._replace(begin=s.begin + iterations, end=s.end + iterations) for s in streams)


def in_turn(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """One stream per iteration."""
    return tuple(s._replace(begin=i, end=i + 1) for i, s in enumerate(streams))


def sequence(verb: str, *parts: Schedule, **changes: Any) -> Schedule:
    """One schedule after the other, on the same memory."""
    streams: tuple[Stream, ...] = ()
    done = 0
    for part in parts:
        streams += later(part.streams, done)
        done += part.iterations
    return replace(parts[0], verb=verb, streams=streams, **changes)


def reverse(verb: str, schedule: Schedule) -> Schedule:
    """The schedule backwards: who received now gives.

    Whoever was given a chunk gives back what it has reduced: an all_gather becomes a reduce_scatter, a
    broadcast a reduce; under the verb "gather" copies stay copies, so that a scatter becomes a gather.
    """
    how = COPY if verb == "gather" else AFTER
    total = schedule.iterations
    return replace(
        schedule, verb=verb, streams=tuple(_backwards(s, total, how) for s in reversed(schedule.streams))
    )


def _backwards(s: Stream, total: int, how: int) -> Stream:
    last = s.active - 1
    chunk, chunk_step, stride, offset = s.at_receiver
    begin = total - 1 - (s.begin + last * s.every)
    return s._replace(
        source=np.add(s.dest, last * s.dest_step),
        dest=np.add(s.source, last * s.source_step),
        source_step=-s.dest_step,
        dest_step=-s.source_step,
        chunk=np.add(chunk, last * chunk_step),
        chunk_step=-chunk_step,
        dest_chunk=np.add(s.chunk, last * s.chunk_step),
        dest_chunk_step=-s.chunk_step,
        stride=stride,
        dest_stride=s.stride,
        offset=offset,
        dest_offset=s.offset,
        reduce=how,
        begin=begin,
        end=begin + last * s.every + 1,
    )


def tile(schedule: Schedule, groups: NDArray[np.int64], size: int) -> tuple[Stream, ...]:
    """The streams of schedule on many groups at once.

    Args:
        groups: ranks, of shape (number of groups, schedule.size).
        size: ranks in all.
    """
    return tuple(piece for s in schedule.streams for piece in _tiled(s, groups, size))


def _tiled(s: Stream, groups: NDArray[np.int64], size: int) -> Iterable[Stream]:
    if not s.moves:
        yield _spread(s, groups)
        return
    for k in range(s.active):  # a circle within a group is none in the whole: written out
        source, dest = s.ends(k, groups.shape[1])
        chunk, dest_chunk = s.starts(k)
        begin = s.begin + k * s.every
        fixed = s._replace(
            source=source, dest=dest, source_step=0, dest_step=0,
            chunk=chunk, dest_chunk=dest_chunk, chunk_step=0, dest_chunk_step=0,
        )  # fmt: skip
        yield _spread(fixed._replace(begin=begin, end=begin + 1, every=1), groups)


def _spread(s: Stream, groups: NDArray[np.int64]) -> Stream:
    def same(value: Any) -> Any:
        return value if value is None or np.ndim(value) == 0 else np.tile(value, len(groups))

    names = ("chunk", "dest_chunk", "width", "count", "reduce", "offset", "dest_offset")
    changed = {name: same(getattr(s, name)) for name in names}
    source = groups[:, np.atleast_1d(s.source) % groups.shape[1]]
    dest = groups[:, np.broadcast_to(np.atleast_1d(s.dest) % groups.shape[1], (s.rows,))]
    return s._replace(source=source.reshape(-1), dest=dest.reshape(-1), **changed)


def window(streams: Iterable[Stream], base: Any) -> tuple[Stream, ...]:
    """Move streams to chunks base + ...; base may differ from group to group of a tile."""
    moved = []
    for s in streams:
        shift = base if np.ndim(base) == 0 else np.repeat(base, s.rows // len(base))
        dest_offset = None if s.dest_offset is None else np.add(s.dest_offset, shift)
        moved.append(s._replace(offset=np.add(s.offset, shift), dest_offset=dest_offset))
    return tuple(moved)


def refine(streams: Iterable[Stream], factor: int) -> tuple[Stream, ...]:
    """Cut each chunk into factor smaller ones that travel together."""
    if factor == 1:
        return tuple(streams)
    return tuple(
        s._replace(
            chunk=np.multiply(s.chunk, factor),
            dest_chunk=None if s.dest_chunk is None else np.multiply(s.dest_chunk, factor),
            width=np.multiply(s.width, factor),
            stride=s.stride * factor,
            dest_stride=None if s.dest_stride is None else s.dest_stride * factor,
            chunk_step=s.chunk_step * factor,
            dest_chunk_step=None if s.dest_chunk_step is None else s.dest_chunk_step * factor,
            offset=np.multiply(s.offset, factor),
            dest_offset=None if s.dest_offset is None else np.multiply(s.dest_offset, factor),
            modulus=min(1 << 30, s.modulus * factor),
        )
        for s in streams
    )


def pipeline(schedule: Schedule, pieces: int) -> Schedule:
    """Cut each chunk into pieces that follow each other, one iteration apart.

    Streams must be active once, and one chunk wide, as those of trees are.
    """
    streams = tuple(
        s._replace(
            chunk=np.multiply(s.chunk, pieces),
            dest_chunk=None if s.dest_chunk is None else np.multiply(s.dest_chunk, pieces),
            chunk_step=1,
            dest_chunk_step=None,
            end=s.begin + pieces,
        )
        for s in schedule.streams
    )
    return replace(schedule, streams=streams, chunks=schedule.chunks * pieces)


def turn(schedule: Schedule, by: int) -> Schedule:
    """The schedule of root 0 for root `by`: every rank renamed to `by` ranks further around the circle.

    Where each rank has a block (gather, scatter), the blocks are renamed with their ranks. No verb tells
    ranks apart but by root and by whose block it is, so a renamed schedule is right if and only if the one
    that was renamed is right: it needs no proof of its own. Only the order of ranks is lost.

    Raises:
        UsageError: its streams wrap around in windows of chunks, which cannot be renamed.
    """
    if by == 0:
        return schedule
    if schedule.slots == 1:
        streams = tuple(
            s._replace(source=np.add(s.source, by), dest=np.add(s.dest, by)) for s in schedule.streams
        )
    else:
        streams = tuple(_renamed(s, by, by * schedule.chunks, schedule.cells) for s in schedule.streams)
    return replace(schedule, streams=streams, root=(schedule.root + by) % schedule.size)


def _renamed(s: Stream, by: int, move: int, cells: int) -> Stream:
    if np.any(s.offset) or (s.dest_offset is not None and np.any(s.dest_offset)) or s.modulus < cells:
        raise UsageError("streams with windows of chunks cannot be turned", hint="a parameter root")
    return s._replace(
        source=np.add(s.source, by), dest=np.add(s.dest, by), chunk=np.add(s.chunk, move),
        dest_chunk=None if s.dest_chunk is None else np.add(s.dest_chunk, move), modulus=cells,
    )  # fmt: skip
