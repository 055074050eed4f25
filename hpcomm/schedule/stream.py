"""Representation of schedules: a few streams of messages, each a row of arrays over the ranks.

A stream is an affine flow of messages. Row i of it says: in its k-th active iteration, rank
`source[i] + k * source_step` gives rank `dest[i] + k * dest_step` some chunks, which are copied into the
receiver's or reduced with them. So a ring over 100,000 ranks is two streams, and pipelining costs nothing.

All ranks go through the iterations in order, each at its own pace. Within one iteration a rank posts all
its sends and receives, and waits for all: sends read what was there when the iteration began, receives
take effect when it ends, in the order of the streams. So no schedule can deadlock, whether the transport
below buffers messages or not. What one rank gives another in one iteration travels as one message.

    iteration   0 1 2 3 4 5          begin=1, end=6, every=2: active in 1, 3, 5 (k = 0, 1, 2)
    k             0   1   2

    chunks at the source: offset + (chunk + k * chunk_step + j * stride + 0 .. width-1) mod modulus, j < count
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .._lazy import NDArray
from ..core.html import sheet
from ..core.types import Ints

_BLOCK = 1 << 20  # messages looked at together
COPY, AFTER, BEFORE = 0, 1, 2  # mine = theirs; mine = mine op theirs; mine = theirs op mine


class Stream(NamedTuple):
    """One row of arrays; a scalar stands for an array of equal entries.

    source, dest: ranks; source_step, dest_step: how far each moves per active iteration, around the circle
        of ranks.
    chunk: the first chunk at the source; chunk_step: how far it moves per active iteration.
    dest_chunk, dest_chunk_step: the same at the receiver; None: as at the source.
    count, width, stride: as of an MPI vector type: count times width chunks in a row, stride apart
        (dest_stride: at the receiver).
    offset, dest_offset, modulus: where the window of chunks begins (at the receiver), and at how many chunks
        it wraps around.
    reduce: COPY, AFTER or BEFORE. begin, end, every: the active iterations.
    """

    source: Any
    dest: Any
    chunk: Any = 0
    dest_chunk: Any = None
    width: Any = 1
    count: Any = 1
    stride: int = 0
    dest_stride: int | None = None
    reduce: Any = COPY
    begin: int = 0
    end: int = 1
    every: int = 1
    chunk_step: int = 0
    dest_chunk_step: int | None = None
    dest_step: int = 0
    source_step: int = 0
    offset: Any = 0
    dest_offset: Any = None
    modulus: int = 1 << 30

    @property
    def active(self) -> int:
        """How many iterations it is active in."""
        return max(0, -(-(self.end - self.begin) // self.every))

    @property
    def rows(self) -> int:
        return int(np.size(self.source))

    @property
    def moves(self) -> bool:
        """Whether other ranks take part in each iteration."""
        return bool(self.source_step or self.dest_step)

    @property
    def is_even(self) -> bool:
        """Whether all rows carry equally many chunks, and reduce alike."""
        return not (np.ndim(self.width) or np.ndim(self.count) or np.ndim(self.reduce))

    @property
    def leaves(self) -> bool:
        """Whether any rank gives to another one in its first active iteration."""
        source, dest = np.atleast_1d(self.source), np.atleast_1d(self.dest)
        return bool(source.size and (source[0] != dest[0] or np.any(source != dest)))

    def turn(self, iteration: int) -> int:
        """k in this iteration, or -1."""
        k, rest = divmod(iteration - self.begin, self.every)
        return k if rest == 0 and 0 <= k < self.active else -1

    def ends(self, k: int, size: int) -> tuple[Ints, Ints]:
        """Sources and destinations in the k-th active iteration."""
        source = (np.atleast_1d(self.source) + k * self.source_step) % size
        return source, np.broadcast_to((np.atleast_1d(self.dest) + k * self.dest_step) % size, source.shape)

    @property
    def at_receiver(self) -> tuple[Any, int, int, Any]:
        """chunk, chunk_step, stride and offset there."""
        return (
            self.chunk if self.dest_chunk is None else self.dest_chunk,
            self.chunk_step if self.dest_chunk_step is None else self.dest_chunk_step,
            self.stride if self.dest_stride is None else self.dest_stride,
            self.offset if self.dest_offset is None else self.dest_offset,
        )

    def starts(self, k: int) -> tuple[Ints, Ints]:
        """First chunk in the window, at the source and at the receiver, for each row."""
        shape = np.shape(np.atleast_1d(self.source))
        chunk, step, _, _ = self.at_receiver
        here, there = np.asarray(self.chunk) + k * self.chunk_step, np.asarray(chunk) + k * step
        return np.broadcast_to(here, shape), np.broadcast_to(there, shape)

    def chunks(self, k: int, row: int) -> tuple[Ints, Ints]:
        """The chunks of one row, at the source and at the receiver."""
        first, dest_first = self.starts(k)
        j = np.arange(int(_at(self.count, row)))[:, None]
        w = np.arange(int(_at(self.width, row)))[None, :]
        _, _, dest_stride, dest_offset = self.at_receiver
        here = _at(self.offset, row) + (first[row] + j * self.stride + w) % self.modulus
        there = _at(dest_offset, row) + (dest_first[row] + j * dest_stride + w) % self.modulus
        return here.reshape(-1), there.reshape(-1)

    def traffic(self, size: Any, ranks: int) -> Iterator[tuple[Ints, Ints, NDArray[np.float64]]]:
        """(sources, destinations, sizes) of all messages, some at a time; those that repeat are one.

        size: of one message, for all rows or for each.
        """
        times = self.active if self.moves else min(1, self.active)
        several = max(1, _BLOCK // max(1, self.rows))
        for low in range(0, times, several):
            k = np.arange(low, min(low + several, times))[:, None]
            source = (np.atleast_1d(self.source) + k * self.source_step) % ranks
            dest = (np.atleast_1d(self.dest) + k * self.dest_step) % ranks
            source, dest, sent = np.broadcast_arrays(source, dest, size * (self.active / times))
            yield source, dest, sent

    def reduces(self, row: int) -> bool:
        """Whether a row's chunks are reduced with those of the receiver, and do not take their place."""
        return bool(_at(self.reduce, row) != COPY)

    def alike(self) -> list[tuple[Ints, int, int]]:
        """Rows that carry equally many chunks: (rows, times, width)."""
        if np.ndim(self.count) == 0 and np.ndim(self.width) == 0:
            return [(np.arange(self.rows), int(self.count), int(self.width))]
        shape = np.broadcast_to(np.asarray(self.count) * (1 << 32) + self.width, self.rows)
        kinds = np.unique(shape).tolist()
        return [(np.flatnonzero(shape == kind), kind >> 32, kind & 0xFFFFFFFF) for kind in kinds]


@dataclass(frozen=True)
class Schedule:
    """Who gives which part to whom, for one verb on `size` ranks.

    Every rank works on `slots` blocks of memory, each cut into `chunks` chunks as equal as can be; chunk
    ids run through all of them. all_reduce, broadcast, reduce and scan have one slot, which holds x.
    all_gather, gather, scatter, reduce_scatter have one slot per rank. all_to_all has x in its first
    `size` slots and leaves the result in the next `size`.
    """

    verb: str
    size: int
    streams: tuple[Stream, ...]
    slots: int = 1
    chunks: int = 1
    root: int = 0
    name: str = field(default="", compare=False)

    def _repr_html_(self) -> str:
        rows = [
            ("ranks", self.size),
            ("iterations", self.iterations),
            ("slots", self.slots),
            ("chunks", self.chunks),
        ]
        sent = [("messages", sum(s.active * s.rows for s in self.streams))]
        return sheet(f"{self.verb} by {self.name or '?'}", [*rows, *sent])

    @property
    def iterations(self) -> int:
        return max((s.begin + (s.active - 1) * s.every + 1 for s in self.streams if s.active), default=0)

    @property
    def cells(self) -> int:
        """Chunks in the memory of one rank."""
        return self.slots * self.chunks

    def active(self, iteration: int) -> list[tuple[Stream, int]]:
        """The streams that are active in an iteration, each with its k."""
        turns = [(stream, stream.turn(iteration)) for stream in self.streams]
        return [(stream, k) for stream, k in turns if k >= 0]

    def sent(self) -> NDArray[np.float64]:
        """What each rank sends, in units of one slot."""
        return self._load(0)

    def reduced(self) -> NDArray[np.float64]:
        """What each rank reduces, in units of one slot."""
        return self._load(1)

    def rounds(self) -> int:
        """Iterations in which a message travels."""
        busy = np.zeros(self.iterations, bool)
        for s in self.streams:
            if s.moves or s.leaves:
                busy[s.begin : s.end : s.every] = True
        return int(busy.sum())

    def _load(self, side: int) -> NDArray[np.float64]:
        total = np.zeros(self.size)
        for s in self.streams:
            if side and not np.any(s.reduce):
                continue
            size = np.multiply(s.width, s.count) / self.chunks
            size = size * (np.asarray(s.reduce) != COPY) if side else size
            for source, dest, sent in s.traffic(size, self.size):
                away, ends = source != dest, dest if side else source
                total += np.bincount(ends[away], sent[away], self.size)
        return total


def ranks(size: int) -> Ints:
    """0 .. size-1."""
    return np.arange(size, dtype=np.int64)


def _at(value: Any, row: int) -> Any:
    return value if np.ndim(value) == 0 else value[row]
