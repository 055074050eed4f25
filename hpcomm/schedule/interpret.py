"""Interpreter of schedules: their rows, iteration by iteration, on sets for proofs.

Within one iteration sends read what was there when it began; receives take effect in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from ..core.types import NpArray
from ..errors import HpcommError
from .stream import AFTER, BEFORE, COPY, Schedule, Stream


class ScheduleError(HpcommError):
    """A schedule that does not do what its verb says. rank, iteration, chunk: where."""

    def __init__(self, what: str, schedule: Schedule, rank: int, iteration: int, chunk: int) -> None:
        super().__init__(
            f"rank {rank}, iteration {iteration}, chunk {chunk}: {what}",
            f"{schedule.verb} by '{schedule.name or '?'}' on {schedule.size} ranks, root {schedule.root}",
            "look at the stream that ends there; python -m hpcomm prove FILE says when it is right",
        )
        self.rank, self.iteration, self.chunk = rank, iteration, chunk


class State(Protocol):
    """What rows are carried out on: something for every cell; cell is rank * schedule.cells + chunk."""

    iteration: int

    def read(self, cells: NpArray) -> tuple[NpArray, ...]:
        """What is there; may refuse to give it."""

    def put(self, cells: NpArray, read: tuple[NpArray, ...], how: int) -> None:
        """Copy what was read there, or reduce it with what is there."""


def interpret(schedule: Schedule, state: State, flows: dict[int, Flow] | None = None) -> None:
    """Carry the rows out on state, to the end."""
    for _ in advance(schedule, state, flows):
        pass


def advance(schedule: Schedule, state: State, flows: dict[int, Flow] | None = None) -> Iterator[int]:
    """Carry the rows out on state, iteration by iteration: those in which something happens.

    Per iteration: first all reads of all streams, then all effects in the order of the streams and rows. So
    what is sent is what was there when the iteration began, as with messages that are all under way at once.
    """
    flows = flows or flows_of(schedule)
    for t, streams in _iterations(schedule):
        state.iteration = t
        turns = [_Turn(flows[id(s)], k) for s, k in streams]
        reads = [turn.read(state) for turn in turns]
        if len(turns) > 1 or turns[0].flow.how is None:
            _refuse_collisions(schedule, turns, t)
        for turn, found in zip(turns, reads, strict=True):
            turn.put(state, found)
        yield t


def flows_of(schedule: Schedule) -> dict[int, Flow]:
    return {id(s): Flow(s, schedule) for s in schedule.streams}


class Flow:
    """A stream with its arrays at full length, made once for all iterations.

    how: how all rows reduce, if they do so alike and nobody receives twice; else None.
    """

    def __init__(self, stream: Stream, schedule: Schedule) -> None:
        n, self.stream, self.size, self.room = stream.rows, stream, schedule.size, schedule.cells
        self.source, self.dest = _full(stream.source, n) % self.size, _full(stream.dest, n) % self.size
        chunk, self.dest_chunk_step, dest_stride, offset = stream.at_receiver
        self.chunk_step = stream.chunk_step
        self.chunk, self.dest_chunk = _both(stream.chunk, chunk, n)
        self.offset, self.dest_offset = _both(stream.offset, offset, n)
        self.reduce = _full(stream.reduce, n)
        alike = bool(n) and (np.ndim(stream.reduce) == 0 or bool((self.reduce == self.reduce[0]).all()))
        alone = alike and int(np.bincount(self.dest, minlength=1).max()) == 1
        self.how = int(self.reduce[0]) if alone else None
        self.kept: list[tuple[Any, NpArray, NpArray]] | None = None
        self.steady = not (stream.moves or self.chunk_step or self.dest_chunk_step)
        self.parts = list(_parts(stream, dest_stride))
        self.small = len(self.parts) < 2 or sum(len(here) for _, here, _ in self.parts) * n < 1 << 20

    def fits(self, cells: int) -> bool:
        """Whether all chunks, at both ends and in all iterations, surely lie in 0 .. cells-1."""
        last, wide = self.stream.active - 1, self.stream.modulus

        def inside(base: NpArray, first: NpArray, step: int, offsets: list[NpArray]) -> bool:
            if base.min() < 0:
                return False
            if base.max() + wide <= cells:
                return True
            low, high = min(0, last * step), max(0, last * step)
            low += min(int(each.min(initial=0)) for each in offsets)
            high += max(int(each.max(initial=0)) for each in offsets)
            return bool(first.min() + low >= 0 and (base + first).max() + high < cells)

        here, there = ([part[i] for part in self.parts] for i in (1, 2))
        return inside(self.offset, self.chunk, self.chunk_step, here) and inside(
            self.dest_offset, self.dest_chunk, self.dest_chunk_step, there
        )

    def ends(self, k: int) -> tuple[NpArray, NpArray]:
        """Sources and destinations in the k-th active iteration."""
        here, there = k * self.stream.source_step, k * self.stream.dest_step
        source = (self.source + here) % self.size if here else self.source
        return source, (self.dest + there) % self.size if there else self.dest

    def cells(self, k: int) -> Iterator[tuple[slice, NpArray, NpArray]]:
        """(rows, cells at the source, cells at the receiver), a few rows at a time."""
        if self.kept is not None:
            yield from self.kept
            return
        if self.steady and len(self.parts) == 1 and self.stream.active > 1:
            self.kept = list(self._cells(k))
            yield from self.kept
            return
        yield from self._cells(k)

    def _cells(self, k: int) -> Iterator[tuple[slice, NpArray, NpArray]]:
        source, dest = self.ends(k)
        wide = self.stream.modulus
        for rows, here, there in self.parts:
            a = (self.chunk[rows] + k * self.chunk_step)[:, None] + here
            b = (self.dest_chunk[rows] + k * self.dest_chunk_step)[:, None] + there
            for x in (a, b):  # a power of two is worth its own case: no division
                np.remainder(x, wide, x) if wide & (wide - 1) else np.bitwise_and(x, wide - 1, x)
            a += (self.offset[rows] + source[rows] * self.room)[:, None]
            b += (self.dest_offset[rows] + dest[rows] * self.room)[:, None]
            yield rows, a, b


def _parts(stream: Stream, dest_stride: int) -> Iterator[tuple[Any, NpArray, NpArray]]:
    """(rows, chunks at the source, chunks at the receiver) of rows with equally many; not all at once."""
    for rows, times, width in stream.alike():
        j, w = np.arange(times)[:, None], np.arange(width)
        here, there = (j * stream.stride + w).reshape(-1), (j * dest_stride + w).reshape(-1)
        step = max(1, (1 << 20) // max(1, here.size))
        whole = rows.size == stream.rows <= step
        for i in range(0, rows.size, step):
            yield slice(None) if whole else rows[i : i + step], here, there


class _Turn:
    """A stream in one of its active iterations."""

    def __init__(self, flow: Flow, k: int) -> None:
        self.flow, self.k = flow, k
        self._known = list(flow.cells(k)) if flow.small else None

    def cells(self) -> Iterable[tuple[slice, NpArray, NpArray]]:
        """As of a Flow."""
        return self._known or self.flow.cells(self.k)

    def read(self, state: State) -> list[tuple[NpArray, ...]]:
        """What is sent, a few rows at a time."""
        return [state.read(here) for _, here, _ in self.cells()]

    def put(self, state: State, found: list[tuple[NpArray, ...]]) -> None:
        """Let what was read take effect; it is taken out of found."""
        flow = self.flow
        found.reverse()
        for rows, _, to in self.cells():
            read = found.pop()  # so that its memory is free at once
            if flow.how is not None:
                state.put(to, read, flow.how)
                continue
            for pick, how in _steps(flow.ends(self.k)[1][rows], flow.reduce[rows]):
                state.put(to[pick], tuple(each[pick] for each in read), how)


def _full(value: object, rows: int) -> NpArray:
    """An array of one entry per row."""
    entries = np.asarray(value, np.int64)
    return np.full(rows, entries) if entries.ndim == 0 or entries.size != rows else entries.reshape(-1)


def _both(here: object, there: object, rows: int) -> tuple[NpArray, NpArray]:
    """An entry per row at both ends, one array if they are the same."""
    first = _full(here, rows)
    return first, first if there is here else _full(there, rows)


def _steps(dest: NpArray, reduce: NpArray) -> Iterator[tuple[NpArray, int]]:
    """Rows that can be carried out at once, and how they reduce; later rows later."""
    for rows in _one_at_a_time(dest):
        for how in (COPY, AFTER, BEFORE):
            pick = rows[reduce[rows] == how]
            if pick.size:
                yield pick, how


def _iterations(schedule: Schedule) -> Iterator[tuple[int, list[tuple[Stream, int]]]]:
    """Every iteration in which something happens, with its streams in order."""
    due: dict[int, list[tuple[Stream, int]]] = {}
    for s in schedule.streams:
        for k in range(s.active):
            due.setdefault(s.begin + k * s.every, []).append((s, k))
    yield from sorted(due.items(), key=lambda item: item[0])


def _one_at_a_time(dest: NpArray) -> list[NpArray]:
    """Rows in groups within which nobody receives twice, earlier rows in earlier groups."""
    order = np.argsort(dest, kind="stable")
    new = np.ones(dest.size, bool)
    new[1:] = dest[order][1:] != dest[order][:-1]
    if new.all():
        return [np.arange(dest.size)]
    starts = np.flatnonzero(new)
    turn = np.arange(dest.size) - np.repeat(starts, np.diff(np.append(starts, dest.size)))
    return [np.sort(order[turn == i]) for i in range(int(turn.max()) + 1)]


def _refuse_collisions(schedule: Schedule, turns: list[_Turn], t: int) -> None:
    """A chunk that is copied into must have no other message in the same iteration."""
    if not any((turn.flow.reduce == COPY).any() for turn in turns):
        return
    if all(turn.flow.how is not None for turn in turns) and len(turns) > 1 and _is_dense(schedule, turns):
        _refuse_marked(schedule, turns, t)
        return
    ids, kinds = [], []
    for turn in turns:
        for rows, _, there in turn.cells():
            ids.append(there.reshape(-1))
            kinds.append(np.repeat(turn.flow.reduce[rows] == COPY, there.shape[1]))
    cells, copies = np.concatenate(ids), np.concatenate(kinds)
    order = np.argsort(cells, kind="stable")
    cells, copies = cells[order], copies[order]
    twice = (cells[1:] == cells[:-1]) & (copies[1:] | copies[:-1])
    if twice.any():
        raise ScheduleError(
            "two messages into one chunk", schedule, *place(schedule, int(cells[1:][twice][0]), t)
        )


def _is_dense(schedule: Schedule, turns: list[_Turn]) -> bool:
    """Whether so many chunks travel that marking all cells is cheaper than sorting those."""
    flows = [turn.flow for turn in turns]
    moved = sum(len(here) * flow.source[rows].size for flow in flows for rows, here, _ in flow.parts)
    return bool(moved * 32 > schedule.size * schedule.cells)


def _refuse_marked(schedule: Schedule, turns: list[_Turn], t: int) -> None:
    """The same where nobody receives twice from one stream: one byte a cell, 1 reduced into, 2 copied into.

    Within one message no chunk comes twice: _check_rows has seen to that.
    """
    marks = np.zeros(schedule.size * schedule.cells, np.uint8)
    for turn in turns:
        copies = turn.flow.how == COPY
        for _, _, there in turn.cells():
            wrong = marks[there] > (0 if copies else 1)
            if wrong.any():
                where = place(schedule, int(there[wrong][0]), t)
                raise ScheduleError("two messages into one chunk", schedule, *where)
            marks[there] = 2 if copies else 1


def place(schedule: Schedule, cell: int, t: int) -> tuple[int, int, int]:
    return cell // schedule.cells, t, cell % schedule.cells


def checked(schedule: Schedule) -> dict[int, Flow]:
    """The flows of a schedule whose ranks and chunks exist, and within one message none twice."""
    flows = flows_of(schedule)
    for s in schedule.streams:
        flow = flows[id(s)]
        if not (s.rows and s.active):
            continue
        low, high = min(np.min(s.source), np.min(s.dest)), max(np.max(s.source), np.max(s.dest))
        if (low < 0 and not s.moves) or high >= 2 * schedule.size + s.active:
            raise ScheduleError("there is no such rank", schedule, int(high), s.begin, 0)
        for rows, _, there in flow.parts:
            # Two chunks of one message may not land in one place: who would be last?
            if len(there) > 1 and len(np.unique(there % s.modulus)) < len(there):
                where = (
                    int(flow.dest[rows][0]),
                    s.begin,
                    int((flow.dest_chunk[rows][0] + there[0]) % s.modulus),
                )
                raise ScheduleError("one message has a chunk twice", schedule, *where)
        _check_chunks(schedule, flow)
    return flows


def _check_chunks(schedule: Schedule, flow: Flow) -> None:
    """Raise a ScheduleError for a chunk that its rank does not have."""
    cells, s = schedule.cells, flow.stream
    for k in () if flow.fits(cells) else range(s.active):
        source, dest = flow.ends(k)
        for rows, here, there in flow.cells(k):
            for ends, ids in ((source, here), (dest, there)):
                wrong = ids // cells != ends[rows, None] if ids.size else ids
                if wrong.any():
                    row, col = np.argwhere(wrong)[0]
                    at, chunk = int(ends[rows][row]), int(ids[row, col])
                    where = at, s.begin + k * s.every, chunk - at * cells
                    raise ScheduleError(f"there are only {cells} chunks", schedule, *where)
