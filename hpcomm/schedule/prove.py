"""The proof of a schedule: an interpreter over sets of contributions.

What a chunk holds is the set of ranks whose x went into it, and where in x it belongs. The interpreter
carries out the rows on such sets; a contribution that would count twice, a chunk sent before it is there,
two messages into one chunk, or a wrong end are refused with rank, iteration and chunk.

Exact sets cost size^2 * cells bits. Beyond a limit random 64-bit weights take their place: a chunk holds
the sum of its contributors' weights, and a wrong set passes with a probability of about 2^-64 per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import HpcommError
from .stream import AFTER, BEFORE, COPY, Schedule, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["Proof", "ScheduleError", "keeps_order", "prove"]

EXACT_BYTES = 16 << 20  # up to here sets, beyond it fingerprints


class ScheduleError(HpcommError):
    """A schedule that does not do what its verb says. rank, iteration, chunk: where."""

    def __init__(self, what: str, schedule: Schedule, rank: int, iteration: int, chunk: int) -> None:
        super().__init__(
            f"rank {rank}, iteration {iteration}, chunk {chunk}: {what}",
            f"{schedule.verb} by '{schedule.name or '?'}' on {schedule.size} ranks, root {schedule.root}",
            "python -m hpcomm draw shows who sends what when",
        )
        self.rank, self.iteration, self.chunk = rank, iteration, chunk


@dataclass(frozen=True)
class Proof:
    """What a schedule that is right costs, beside the lower bounds.

    rounds: iterations with messages; least_rounds: ceil(log2 p).
    sent, folded: units of x on the busiest rank; least_sent, least_folded: no algorithm needs less.
    exact: counted, not fingerprinted.
    """

    rounds: int
    least_rounds: int
    sent: float
    least_sent: float
    folded: float
    least_folded: float
    exact: bool


def prove(schedule: Schedule, exact: bool | None = None) -> Proof:
    """Carry the schedule out on sets of contributions.

    Args:
        exact: count contributions (True), compare fingerprints (False), or what memory allows (None).

    Raises:
        ScheduleError: it does not do what its verb says; names rank, iteration and chunk.
    """
    p = schedule.size
    flows = _flows(schedule)
    _check_rows(schedule, flows)
    if exact is None:
        exact = p * p * schedule.cells <= 8 * EXACT_BYTES
    state: _State = _Sets(schedule) if exact or schedule.verb == "barrier" else _Weights(schedule)
    interpret(schedule, state, flows)
    state.check_end()
    sent, folded = _bounds(schedule)
    return Proof(
        schedule.rounds(),
        (p - 1).bit_length(),
        float(schedule.sent().max()),
        sent,
        float(schedule.folded().max()),
        folded,
        exact,
    )


_FOLDING = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")


def keeps_order(schedule: Schedule) -> bool:
    """Whether every fold joins neighbouring intervals of ranks, so that the operator need not commute."""
    if schedule.verb not in _FOLDING:
        return True
    try:
        interpret(schedule, _Intervals(schedule))
    except ScheduleError:
        return False
    return True


def interpret(schedule: Schedule, state: Any, flows: dict[int, Flow] | None = None) -> None:
    """Carry the rows out on state.

    state has read(cells) -> what is there, as a tuple of arrays, and put(cells, read, how, ranks); a cell is
    rank * schedule.cells + chunk, and both may raise through state.fail.
    """
    flows = flows or _flows(schedule)
    for t, streams in _iterations(schedule):
        state.iteration = t
        turns = [(flows[id(s)], k) for s, k in streams]
        blocks = [list(flow.cells(k)) if flow.small else None for flow, k in turns]
        reads = [
            [state.read(here) for _, here, _ in (known or flow.cells(k))]
            for (flow, k), known in zip(turns, blocks, strict=True)
        ]
        if len(turns) > 1 or turns[0][0].how is None:
            _refuse_collisions(schedule, turns, t)
        for (flow, k), known, found in zip(turns, blocks, reads, strict=True):
            found.reverse()
            for rows, _, to in known or flow.cells(k):
                read = found.pop()  # so that its memory is free at once
                if flow.how is not None:
                    state.put(to, read, flow.how)
                    continue
                for pick, how in _steps(flow.ends(k)[1][rows], flow.fold[rows]):
                    state.put(to[pick], tuple(each[pick] for each in read), how)


def _flows(schedule: Schedule) -> dict[int, Flow]:
    return {id(s): Flow(s, schedule) for s in schedule.streams}


class Flow:
    """A stream with its arrays at full length, made once for all iterations.

    how: how all rows fold, if they do so alike and nobody receives twice; else None.
    """

    def __init__(self, stream: Stream, schedule: Schedule) -> None:
        n, self.stream, self.size, self.room = stream.rows, stream, schedule.size, schedule.cells
        self.source, self.dest = _full(stream.source, n) % self.size, _full(stream.dest, n) % self.size
        self.first = _full(stream.first, n)
        self.into = self.first if stream.into is None else _full(stream.into, n)
        self.advance = stream.advance
        self.drift = stream.advance if stream.into is None or stream.drift is None else stream.drift
        self.base = _full(stream.base, n)
        self.lodge = self.base if stream.lodge is None else _full(stream.lodge, n)
        self.fold = _full(stream.fold, n)
        alike = bool(n) and (np.ndim(stream.fold) == 0 or bool((self.fold == self.fold[0]).all()))
        alone = alike and int(np.bincount(self.dest, minlength=1).max()) == 1
        self.how = int(self.fold[0]) if alone else None
        self.kept: list[tuple[Any, Array, Array]] | None = None
        self.steady = not (stream.march or stream.hop or self.advance or self.drift)
        land = stream.stride if stream.land is None else stream.land
        self.parts: list[tuple[Any, Array, Array]] = []
        for rows, times, width in stream.alike():
            j, w = np.arange(times)[:, None], np.arange(width)
            here, there = (j * stream.stride + w).reshape(-1), (j * land + w).reshape(-1)
            step = max(1, (1 << 20) // max(1, here.size))
            whole = rows.size == n <= step
            for i in range(0, rows.size, step):
                self.parts.append((slice(None) if whole else rows[i : i + step], here, there))
        self.small = len(self.parts) < 2 or sum(len(here) for _, here, _ in self.parts) * n < 1 << 20

    def fits(self, cells: int) -> bool:
        """Whether all chunks, at both ends and in all iterations, surely lie in 0 .. cells-1."""
        last, wide = self.stream.active - 1, self.stream.modulus

        def inside(base: Array, first: Array, step: int, offsets: list[Array]) -> bool:
            if base.min() < 0:
                return False
            if base.max() + wide <= cells:
                return True
            low, high = min(0, last * step), max(0, last * step)
            low += min(int(each.min(initial=0)) for each in offsets)
            high += max(int(each.max(initial=0)) for each in offsets)
            return bool(first.min() + low >= 0 and (base + first).max() + high < cells)

        here, there = ([part[i] for part in self.parts] for i in (1, 2))
        return inside(self.base, self.first, self.advance, here) and inside(
            self.lodge, self.into, self.drift, there
        )

    def ends(self, k: int) -> tuple[Array, Array]:
        """Sources and destinations in the k-th active iteration."""
        march, hop = k * self.stream.march, k * self.stream.hop
        source = (self.source + march) % self.size if march else self.source
        return source, (self.dest + hop) % self.size if hop else self.dest

    def cells(self, k: int) -> Iterator[tuple[Any, Array, Array]]:
        """(rows, cells at the source, cells at the receiver), a few rows at a time."""
        if self.kept is not None:
            yield from self.kept
            return
        if self.steady and len(self.parts) == 1 and self.stream.active > 1:
            self.kept = list(self._cells(k))
            yield from self.kept
            return
        yield from self._cells(k)

    def _cells(self, k: int) -> Iterator[tuple[Any, Array, Array]]:
        source, dest = self.ends(k)
        wide = self.stream.modulus
        for rows, here, there in self.parts:
            a = (self.first[rows] + k * self.advance)[:, None] + here
            b = (self.into[rows] + k * self.drift)[:, None] + there
            for x in (a, b):  # a power of two is worth its own case: no division
                np.remainder(x, wide, x) if wide & (wide - 1) else np.bitwise_and(x, wide - 1, x)
            a += (self.base[rows] + source[rows] * self.room)[:, None]
            b += (self.lodge[rows] + dest[rows] * self.room)[:, None]
            yield rows, a, b


def _full(value: Any, rows: int) -> Array:
    """An array of one entry per row."""
    entries = np.asarray(value, np.int64)
    return np.full(rows, entries) if entries.ndim == 0 or entries.size != rows else entries.reshape(-1)


def _steps(dest: Array, fold: Array) -> Iterator[tuple[Array, int]]:
    """Rows that can be carried out at once, and how they fold; later rows later."""
    for rows in _one_at_a_time(dest):
        for how in (COPY, AFTER, BEFORE):
            pick = rows[fold[rows] == how]
            if pick.size:
                yield pick, how


def _iterations(schedule: Schedule) -> Iterator[tuple[int, list[tuple[Stream, int]]]]:
    """Every iteration in which something happens, with its streams in order."""
    due: dict[int, list[tuple[Stream, int]]] = {}
    for s in schedule.streams:
        for k in range(s.active):
            due.setdefault(s.begin + k * s.every, []).append((s, k))
    yield from sorted(due.items(), key=lambda item: item[0])


def _one_at_a_time(dest: Array) -> list[Array]:
    """Rows in groups within which nobody receives twice, earlier rows in earlier groups."""
    order = np.argsort(dest, kind="stable")
    new = np.ones(dest.size, bool)
    new[1:] = dest[order][1:] != dest[order][:-1]
    if new.all():
        return [np.arange(dest.size)]
    starts = np.flatnonzero(new)
    turn = np.arange(dest.size) - np.repeat(starts, np.diff(np.append(starts, dest.size)))
    return [np.sort(order[turn == i]) for i in range(int(turn.max()) + 1)]


def _refuse_collisions(schedule: Schedule, turns: list[tuple[Flow, int]], t: int) -> None:
    """A chunk that is copied into must have no other message in the same iteration."""
    if not any((flow.fold == COPY).any() for flow, _ in turns):
        return
    if all(flow.how is not None for flow, _ in turns) and len(turns) > 1 and _is_dense(schedule, turns):
        _refuse_marked(schedule, turns, t)
        return
    ids, kinds = [], []
    for flow, k in turns:
        for rows, _, there in flow.cells(k):
            ids.append(there.reshape(-1))
            kinds.append(np.repeat(flow.fold[rows] == COPY, there.shape[1]))
    cells, copies = np.concatenate(ids), np.concatenate(kinds)
    order = np.argsort(cells, kind="stable")
    cells, copies = cells[order], copies[order]
    twice = (cells[1:] == cells[:-1]) & (copies[1:] | copies[:-1])
    if twice.any():
        raise ScheduleError(
            "two messages into one chunk", schedule, *_place(schedule, int(cells[1:][twice][0]), t)
        )


def _is_dense(schedule: Schedule, turns: list[tuple[Flow, int]]) -> bool:
    """Whether so many chunks travel that marking all cells is cheaper than sorting those."""
    moved = sum(len(here) * (flow.source[rows].size) for flow, _ in turns for rows, here, _ in flow.parts)
    return bool(moved * 32 > schedule.size * schedule.cells)


def _refuse_marked(schedule: Schedule, turns: list[tuple[Flow, int]], t: int) -> None:
    """The same where nobody receives twice from one stream: one byte a cell, 1 folded into, 2 copied into.

    Within one message no chunk comes twice: _check_rows has seen to that.
    """
    marks = np.zeros(schedule.size * schedule.cells, np.uint8)
    for flow, k in turns:
        for _, _, there in flow.cells(k):
            wrong = marks[there] > (0 if flow.how == COPY else 1)
            if wrong.any():
                place = _place(schedule, int(there[wrong][0]), t)
                raise ScheduleError("two messages into one chunk", schedule, *place)
            marks[there] = 2 if flow.how == COPY else 1


def _place(schedule: Schedule, cell: int, t: int) -> tuple[int, int, int]:
    return cell // schedule.cells, t, cell % schedule.cells


def _check_rows(schedule: Schedule, flows: dict[int, Flow]) -> None:
    """Ranks and chunks that exist, and within one message none twice."""
    cells = schedule.cells
    for s in schedule.streams:
        flow = flows[id(s)]
        if not (s.rows and s.active):
            continue
        low, high = min(np.min(s.source), np.min(s.dest)), max(np.max(s.source), np.max(s.dest))
        if (low < 0 and not (s.march or s.hop)) or high >= 2 * schedule.size + s.active:
            raise ScheduleError("there is no such rank", schedule, int(high), s.begin, 0)
        for rows, _, there in flow.parts:
            if len(there) > 1 and len(np.unique(there % s.modulus)) < len(there):
                where = int(flow.dest[rows][0]), s.begin, int((flow.into[rows][0] + there[0]) % s.modulus)
                raise ScheduleError("one message has a chunk twice", schedule, *where)
        for k in () if flow.fits(cells) else range(s.active):
            source, dest = flow.ends(k)
            for rows, here, there in flow.cells(k):
                for ends, ids in ((source, here), (dest, there)):
                    wrong = ids // cells != ends[rows, None] if ids.size else ids
                    if wrong.any():
                        row, col = np.argwhere(wrong)[0]
                        at, chunk = int(ends[rows][row]), int(ids[row, col])
                        raise ScheduleError(
                            f"there are only {cells} chunks",
                            schedule, at, s.begin + k * s.every, chunk - at * cells,
                        )  # fmt: skip


class _State:
    """What the interpreter works on: something for every cell."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.iteration = 0

    def fail(self, what: str, wrong: Any, cells: Array) -> None:
        """Raise if any entry of wrong is set."""
        if wrong.any():
            cell = int(np.broadcast_to(cells, wrong.shape)[wrong][0])
            raise ScheduleError(what, self.schedule, *_place(self.schedule, cell, self.iteration))

    def read(self, cells: Array) -> tuple[Array, ...]:
        raise NotImplementedError

    def put(self, cells: Array, read: tuple[Array, ...], how: int) -> None:
        raise NotImplementedError

    def check_end(self) -> None:
        raise NotImplementedError


def beginning(schedule: Schedule, rank: Array) -> Array:
    """Where in x each chunk of these ranks belongs at first; -1 if it holds nothing. Shape (ranks, cells).

    A rank begins with nothing but contributions of its own. In all_to_all, where x differs from receiver
    to receiver, the place is the chunk of what the receiver is to be given.
    """
    cells, rank = schedule.cells, rank[:, None]
    slot = np.arange(cells) // schedule.chunks
    there = {
        "broadcast": rank == schedule.root,
        "scatter": rank == schedule.root,
        "all_gather": slot == rank,
        "gather": slot == rank,
        "all_to_all": slot < schedule.size,
    }.get(schedule.verb, np.True_)
    return np.where(np.broadcast_to(there, (rank.size, cells)), np.arange(cells), -1)


def ending(schedule: Schedule, rank: Array) -> tuple[Array, Array, Array, Array]:
    """(wanted, low, high, place): which chunks of these ranks count at the end, the ranks low..high-1 whose
    contributions each must hold, and where in x it must belong. Of a shape that broadcasts to (ranks, cells).
    """
    p, c, root, rank = schedule.size, schedule.chunks, schedule.root, rank[:, None]
    place = np.arange(schedule.cells)[None, :]
    slot = place // c
    zero = np.zeros_like(slot)
    if schedule.verb == "all_to_all":  # block r of everybody's x
        return slot >= p, slot - p, slot - p + 1, rank * c + place % c
    table: dict[str, tuple[Array, Array, Array]] = {
        "all_reduce": (zero == 0, zero, zero + p),
        "barrier": (zero == 0, zero, zero + p),
        "reduce": (rank == root, zero, zero + p),
        "reduce_scatter": (slot == rank, zero, zero + p),
        "scan": (zero == 0, zero, rank + 1),
        "exscan": (rank > 0, zero, rank),
        "broadcast": (zero == 0, zero + root, zero + root + 1),
        "all_gather": (zero == 0, slot, slot + 1),
        "gather": (rank == root, slot, slot + 1),
        "scatter": (slot == rank, zero + root, zero + root + 1),
    }
    return (*table[schedule.verb], place)


class _Sets(_State):
    """Exact: which ranks have contributed, one bit each."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        p, cells = schedule.size, schedule.cells
        place = beginning(schedule, np.arange(p))
        self.place = place.reshape(-1)
        own = np.zeros((p, (p + 63) // 64), np.uint64)
        own[np.arange(p), np.arange(p) // 64] = np.uint64(1) << (np.arange(p) % 64).astype(np.uint64)
        self.sets = np.repeat(own, cells, axis=0)
        self.sets[self.place < 0] = 0

    def read(self, cells: Array) -> tuple[Array, ...]:
        place = self.place[cells]
        self.fail("is sent, but has not arrived yet", place < 0, cells)
        return place, self.sets[cells]

    def put(self, cells: Array, read: tuple[Array, ...], how: int) -> None:
        place, sets = read
        if how != COPY:
            mine = self.sets[cells]
            self.fail("is folded with another part of x, or with nothing", self.place[cells] != place, cells)
            if self.schedule.verb != "barrier":
                self.fail("a contribution would count twice", (mine & sets).any(-1), cells)
            sets = mine | sets
        self.sets[cells] = sets
        self.place[cells] = place

    def check_end(self) -> None:
        s = self.schedule
        self.iteration = s.iterations
        wanted, low, high, place = ending(s, np.arange(s.size))
        cell = np.arange(s.size * s.cells).reshape(s.size, s.cells)
        self.fail(
            "holds the wrong part of x at the end", wanted & (self.place.reshape(cell.shape) != place), cell
        )
        below = _below(s.size)
        sets = self.sets.reshape(s.size, s.cells, -1)
        right = below[high] & ~below[low]
        self.fail("lacks a contribution at the end", wanted & (right & ~sets).any(-1), cell)
        self.fail("holds a contribution too many at the end", wanted & (sets & ~right).any(-1), cell)


def _below(p: int) -> Array:
    """Row i: the set of ranks below i, for i up to p."""
    words = np.arange((p + 63) // 64) * 64
    bits = np.clip(np.arange(p + 1)[:, None] - words, 0, 64)
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    shift = np.clip(64 - bits, 0, 63).astype(np.uint64)
    return np.asarray(np.where(bits > 0, full >> shift, np.uint64(0)))


class _Weights(_State):
    """Fingerprints: the sum, modulo 2^64, of the weights of all that went in; 0 is nothing."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.sums = np.zeros(schedule.size * schedule.cells, np.uint64)  # untouched pages cost nothing
        for rank, cells in _blocks(schedule):
            place = beginning(schedule, rank)
            sums = _weight(rank[:, None], place)
            held = place >= 0
            self.sums[cells].reshape(held.shape)[held] = sums[held]

    def read(self, cells: Array) -> tuple[Array, ...]:
        found = self.sums[cells]
        self.fail("is sent, but has not arrived yet", found == 0, cells)
        return (found,)

    def put(self, cells: Array, read: tuple[Array, ...], how: int) -> None:
        if how == COPY:
            self.sums[cells] = read[0]
        else:
            self.sums[cells] += read[0]

    def check_end(self) -> None:
        s = self.schedule
        self.iteration = s.iterations
        below = _Totals(s.cells)
        for rank, cells in _blocks(s):
            wanted, low, high, place = ending(s, rank)
            if (high - low == 1).all():
                want = _weight(low, place)
            else:
                want = below.of(high[:, 0]) - below.of(low[:, 0])
            wrong = np.asarray(wanted & (self.sums[cells].reshape(rank.size, s.cells) != want))
            where = np.arange(cells.start, cells.stop).reshape(wrong.shape)
            self.fail("holds not what it should at the end", wrong, where)


class _Totals:
    """Sums of the weights of all ranks below some rank, for every chunk; asked for in rising order."""

    def __init__(self, cells: int) -> None:
        self.cells = np.arange(cells)
        self.known: dict[int, Array] = {0: np.zeros(cells, np.uint64)}

    def of(self, ranks: Array) -> Array:
        return (
            np.stack([self._total(int(r)) for r in ranks]) if ranks.size > 1 else self._total(int(ranks[0]))
        )

    def _total(self, rank: int) -> Array:
        if rank not in self.known:
            below = max(r for r in self.known if r < rank)
            total = self.known[below].copy()
            for r in range(below, rank):
                total += _weight(np.asarray(r), self.cells)
            self.known = {0: self.known[0], rank: total}
        found: Array = self.known[rank]
        return found


def _blocks(schedule: Schedule) -> Iterator[tuple[Array, slice]]:
    """Ranks, a few at a time, and their cells: temporaries stay small."""
    step = max(1, (1 << 18) // max(1, schedule.cells))
    for r in range(0, schedule.size, step):
        end = min(r + step, schedule.size)
        yield np.arange(r, end), slice(r * schedule.cells, end * schedule.cells)


def _weight(rank: Array, place: Array) -> Array:
    """A well mixed odd 64-bit number for (rank, place): the finaliser of splitmix64 (Steele et al. 2014)."""
    z = np.asarray(rank).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = z + (np.asarray(place).astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(31))) | np.uint64(1))


class _Intervals(_State):
    """For order: a chunk holds the ranks low..high-1, and folds must join neighbours."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.low = np.repeat(np.arange(schedule.size), schedule.cells)
        self.high = self.low + 1

    def read(self, cells: Array) -> tuple[Array, ...]:
        return self.low[cells], self.high[cells]

    def put(self, cells: Array, read: tuple[Array, ...], how: int) -> None:
        low, high = read
        if how == AFTER:
            self.fail("would be folded out of order", self.high[cells] != low, cells)
            low = self.low[cells]
        elif how == BEFORE:
            self.fail("would be folded out of order", self.low[cells] != high, cells)
            high = self.high[cells]
        self.low[cells], self.high[cells] = low, high


def _bounds(schedule: Schedule) -> tuple[float, float]:
    """The least that some rank must send and fold, in units of one slot (for stacked verbs: of one block)."""
    p = schedule.size
    part = (p - 1) / p
    least = {
        "all_reduce": (2 * part, part),
        "reduce_scatter": (p - 1.0, p - 1.0),
        "all_gather": (p - 1.0, 0.0),
        "all_to_all": (p - 1.0, 0.0),
        "broadcast": (min(1.0, p - 1.0), 0.0),
        "reduce": (min(1.0, p - 1.0), part),
        "scatter": (p - 1.0, 0.0),
        "gather": (min(1.0, p - 1.0), 0.0),
        "scan": (min(1.0, p - 1.0), min(1.0, p - 1.0)),
        "exscan": (min(1.0, p - 1.0), 0.0),
        "barrier": (0.0, 0.0),
    }
    return least[schedule.verb]


def interpret_values(schedule: Schedule, given: list[Any], op: Any) -> list[Any]:
    """What every rank's memory holds at the end, computed on real arrays, in the executor's order.

    Args:
        given: per rank the memory it begins with: arrays of one axis, slots * count elements.
        op: op(a, b, out=c) folds two arrays element by element.
    """
    from .layout import edges

    memory = [np.array(x) for x in given]
    bounds = edges(schedule, memory[0].size // schedule.slots)
    for t in range(schedule.iterations):
        moves = []
        for stream, k in schedule.active(t):
            source, dest = stream.ends(k, schedule.size)
            for row in range(stream.rows):
                here, there = stream.chunks(k, row)
                fold = int(np.broadcast_to(stream.fold, source.shape)[row])
                for a, b in zip(here, there, strict=True):
                    moves.append(
                        (int(dest[row]), b, memory[source[row]][bounds[a] : bounds[a + 1]].copy(), fold)
                    )
        for d, b, data, fold in moves:
            mine = memory[d][bounds[b] : bounds[b + 1]]
            if fold == COPY:
                mine[:] = data
            elif fold == AFTER:
                op(mine, data, out=mine)
            else:
                op(data, mine, out=mine)
    return memory
