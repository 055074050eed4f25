"""Representation of schedules: a few streams of messages, each a row of arrays over the ranks.

A stream is an affine flow of messages. Row i of it says: in its k-th active iteration, rank
`source[i] + k * march` gives rank `dest[i] + k * hop` some chunks, which are copied into the receiver's
or reduced with them. So a ring over 100,000 ranks is two streams, and pipelining costs nothing.

All ranks go through the iterations in order, each at its own pace. Within one iteration a rank posts all
its sends and receives, and waits for all: sends read what was there when the iteration began, receives
take effect when it ends, in the order of the streams. So no schedule can deadlock, whether the transport
below buffers messages or not. What one rank gives another in one iteration travels as one message.

    iteration   0 1 2 3 4 5          begin=1, end=6, every=2: active in 1, 3, 5 (k = 0, 1, 2)
    k             0   1   2

    chunks at the source: base + (first + k * advance + j * stride + 0 .. width-1) mod modulus, j < times
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["AFTER", "BEFORE", "COPY", "Run", "Schedule", "Stream", "plus", "ranks"]

COPY, AFTER, BEFORE = 0, 1, 2  # mine = theirs; mine = mine op theirs; mine = theirs op mine


@dataclass(frozen=True)
class Run:
    """first, first + 1, ...: a column of so many entries that takes no memory; numpy takes it for an array.

    modulus: where it begins at 0 again; 0: never.
    """

    first: int
    size: int
    modulus: int = 0
    ndim = 1

    @property
    def shape(self) -> tuple[int]:
        return (self.size,)

    def __len__(self) -> int:
        return self.size

    def __add__(self, by: int) -> Run:
        first = self.first + by
        return Run(first % self.modulus if self.modulus else first, self.size, self.modulus)

    def __mod__(self, modulus: int) -> Run:
        return Run(self.first % modulus, self.size, modulus)

    def __getitem__(self, at: Any) -> Any:
        return np.asarray(self)[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        x = np.arange(self.first, self.first + self.size, dtype=np.int64)
        return (x % self.modulus if self.modulus else x).astype(dtype or np.int64, copy=False)


class Stream(NamedTuple):
    """One row of arrays; a scalar stands for an array of equal entries, a Run for one of consecutive ones.

    source, dest: ranks; march, hop: how far each moves per active iteration, around the circle of ranks.
    first: first chunk at the source; advance: how far it moves per active iteration.
    into, drift: the same at the receiver; None: as at the source.
    width, times, stride, land: so many chunks in a row, so many times, so far apart (land: at the receiver).
    base, lodge, modulus: where the window of chunks begins (lodge: at the receiver) and at how many it wraps.
    fold: COPY, AFTER or BEFORE. begin, end, every: the active iterations.
    """

    source: Any
    dest: Any
    first: Any = 0
    into: Any = None
    width: Any = 1
    times: Any = 1
    stride: int = 0
    land: int | None = None
    fold: Any = COPY
    begin: int = 0
    end: int = 1
    every: int = 1
    advance: int = 0
    drift: int | None = None
    hop: int = 0
    march: int = 0
    base: Any = 0
    lodge: Any = None
    modulus: int = 1 << 30

    @property
    def active(self) -> int:
        """How many iterations it is active in."""
        return max(0, -(-(self.end - self.begin) // self.every))

    @property
    def rows(self) -> int:
        return int(np.size(self.source))

    @property
    def leaves(self) -> bool:
        """Whether any rank gives to another one in its first active iteration."""
        if isinstance(self.source, Run) and isinstance(self.dest, Run):
            return self.source != self.dest
        source, dest = np.atleast_1d(self.source), np.atleast_1d(self.dest)
        return bool(source.size and (source[0] != dest[0] or np.any(source != dest)))

    def is_pass(self, size: int) -> bool:
        """Whether all of so many ranks but the last give to the next, once."""
        runs = isinstance(self.source, Run) and isinstance(self.dest, Run) and self.active == 1
        return runs and (self.source, self.dest) == (Run(0, size - 1), Run(1, size - 1))

    def turn(self, iteration: int) -> int:
        """k in this iteration, or -1."""
        k, rest = divmod(iteration - self.begin, self.every)
        return k if rest == 0 and 0 <= k < self.active else -1

    def ends(self, k: int, size: int) -> tuple[Ints, Ints]:
        """Sources and destinations in the k-th active iteration."""
        source = (np.atleast_1d(self.source) + k * self.march) % size
        return source, np.broadcast_to((np.atleast_1d(self.dest) + k * self.hop) % size, source.shape)

    def starts(self, k: int) -> tuple[Ints, Ints]:
        """First chunk in the window, at the source and at the receiver, for each row."""
        shape = np.shape(np.atleast_1d(self.source))
        first = np.asarray(self.first) + k * self.advance
        drift = self.advance if self.drift is None else self.drift
        into = first if self.into is None else np.asarray(self.into) + k * drift
        return np.broadcast_to(first, shape), np.broadcast_to(into, shape)

    def chunks(self, k: int, row: int) -> tuple[Ints, Ints]:
        """The chunks of one row, at the source and at the receiver."""
        first, into = self.starts(k)
        times, width = int(_at(self.times, row)), int(_at(self.width, row))
        j, w = np.arange(times)[:, None], np.arange(width)[None, :]
        land = self.stride if self.land is None else self.land
        lodge = self.base if self.lodge is None else self.lodge
        here = _at(self.base, row) + (first[row] + j * self.stride + w) % self.modulus
        there = _at(lodge, row) + (into[row] + j * land + w) % self.modulus
        return here.reshape(-1), there.reshape(-1)

    def alike(self) -> list[tuple[Ints, int, int]]:
        """Rows that carry equally many chunks: (rows, times, width)."""
        if np.ndim(self.times) == 0 and np.ndim(self.width) == 0:
            return [(np.arange(self.rows), int(self.times), int(self.width))]
        shape = np.broadcast_to(np.asarray(self.times) * (1 << 32) + self.width, self.rows)
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

    def folded(self) -> NDArray[np.float64]:
        """What each rank reduces, in units of one slot."""
        return self._load(1)

    def rounds(self) -> int:
        """Iterations in which a message travels."""
        busy = np.zeros(self.iterations, bool)
        for s in self.streams:
            if s.march or s.hop or s.leaves:
                busy[s.begin : s.end : s.every] = True
        return int(busy.sum())

    def _load(self, side: int) -> NDArray[np.float64]:
        total = np.zeros(self.size)
        for s in self.streams:
            if not s.active or (side and not np.any(s.fold)):
                continue
            size = np.multiply(s.width, s.times) / self.chunks
            size = size * (np.asarray(s.fold) != COPY) if side else size
            moves = bool(s.march or s.hop)
            several = max(1, (1 << 20) // max(1, s.rows))  # iterations at a time
            for low in range(0, s.active if moves else 1, several):
                k = np.arange(low, min(low + several, s.active))[:, None] if moves else 0
                source = (np.atleast_1d(s.source) + k * s.march) % self.size
                dest = (np.atleast_1d(s.dest) + k * s.hop) % self.size
                sent = (source != dest) * size * (1 if moves else s.active)
                ends = (dest if side else source) + np.zeros(sent.shape, np.int64)
                total += np.bincount(ends.reshape(-1), sent.reshape(-1), self.size)
        return total


def ranks(size: int) -> Ints:
    """0 .. size-1."""
    return np.arange(size, dtype=np.int64)


def plus(column: Any, by: Any) -> Any:
    """A column with so much added to each entry; a Run stays one."""
    return column + int(by) if isinstance(column, Run) and np.ndim(by) == 0 else np.add(column, by)


def _at(value: Any, row: int) -> Any:
    return value if np.ndim(value) == 0 else value[row]
