"""Collectives between ranks of one node, through shared memory.

Each rank has shared memory for a few pieces of data:

    memory of a rank    head, 4096 bytes: number of the last meeting, addresses | 3 places of 1 MiB

A call cuts tensors into pieces, and each piece goes through stages: write it into one's own place, reduce
what stands in all of them, copy from the others'. Between two stages all ranks meet; the first meeting of a
call is the barrier before it (monitored_gate.py). While one piece is copied out the next one is written, so a
piece needs one meeting, and memory is read while it is in a cache.

    write           p0  p1  p2  p3
    reduce              p0  p1  p2  p3
    copy out                p0  p1  p2 ...        three places, so none is written while it is read
                   ──> time

No rank enters MPI here, so none can be left there: who waits for a rank that ends, or comes too late, is told
by an exception.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.limits import (
    TORCH_CROWDED,
    TORCH_MOVED_PIECE,
    TORCH_PIECE,
    TORCH_REDUCE_WHOLE,
    TORCH_REDUCE_WHOLE_HALVES,
)
from ..errors import HpcommError
from ..node.segment import share
from .monitored_gate import LOOK_S
from .network_collectives import HALVES, NetworkCollectives
from .tensor_memory import KINDS, Bytes, as_bytes, fit, flat_of, fold, folds, give_back, put, rows_of, target

if TYPE_CHECKING:
    from ..communicator.communicator import Communicator
    from .monitored_gate import MonitoredGate

__all__ = ["MOST", "RANK_BYTES", "SharedCollectives", "shared_memory_of"]

Tensor = torch.Tensor
_PLACES = 3  # a piece is laid while the one before is folded, and the one before that is taken
_HEAD = 4096  # bytes before them; the number of the last meeting a rank has come to
RANK_BYTES = _HEAD + _PLACES * TORCH_PIECE
MOST = 16  # ranks; more have many cores, and algorithms of many steps
_GAVE_UP = -1  # instead of the number of a meeting
_KEPT = 64  # lengths of blocks whose views are kept


def shared_memory_of(comm: Communicator) -> mmap.mmap | None:
    """Memory for the pieces of each rank of comm; None where they share none. Collective."""
    shared = share(comm.mpi_handle, RANK_BYTES, reserve=RANK_BYTES)
    if shared is None:
        return None
    memory, file = shared
    os.close(file)
    return memory


class SharedCollectives(NetworkCollectives):
    """Collectives of ranks that share memory; what they cannot carry out MPI does (Far).

    Attributes:
        place: where in shared memory the next piece is written, of so many places.
    """

    places = _PLACES

    def __init__(self, comm: Communicator, gate: MonitoredGate, memory: mmap.mmap) -> None:
        super().__init__(comm, gate)
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._bytes = np.frombuffer(memory, np.uint8)
        self._others = [(rank, rank * RANK_BYTES // 8) for rank in range(comm.size) if rank != comm.rank]
        self._count = 0  # meetings
        self.place = 0  # where the next piece is written
        self._due = False  # the meeting in the barrier
        context = copy_context()
        context.run(np.seterr, all="ignore")
        self.calmly = context.run  # calls numpy's functions without its warnings
        self._scratch: Tensor | None = None
        self._known: dict[tuple[torch.dtype, int], list[list[list[Tensor]]]] = {}

    def most(self, verb: str, op: Any, dtype: torch.dtype) -> int:
        """Elements of a call of one piece, for which there may be a shorter way; see cached_calls.py."""
        p, most = self.size, TORCH_PIECE // dtype.itemsize
        if dtype not in KINDS or (op is not None and not folds(dtype, op)):
            return 0
        return most // p * p if verb in ("all_reduce", "reduce_scatter", "all_to_all") else most

    def folds_blocks(self, nbytes: int, dtype: torch.dtype) -> bool:
        """Whether of an all-reduce each rank folds a block only, in one stage more, or all of it."""
        return nbytes * self.size > (TORCH_REDUCE_WHOLE_HALVES if dtype in HALVES else TORCH_REDUCE_WHOLE)

    # -- meetings ------------------------------------------------------------------------------------------
    def expect(self, *call: Any) -> None:
        self.call, self._due = call, True

    def arrive(self) -> None:
        self._meet()
        self.inside = time.monotonic()

    def done(self) -> None:
        self.inside = None
        try:
            self._meet()
        finally:
            super().done()

    def _meet(self) -> None:
        if self._due:
            self._due = False
            self.gate.meet(*self.call)

    def together(self) -> None:
        """Wait for all ranks to come here."""
        self.inside = None
        if self._due:
            self._meet()
            return
        self._count = count = self._count + 1
        words = self._words
        words[self.rank * RANK_BYTES // 8] = count
        for _, at in self._others:
            if words[at] < count:
                for _ in self.gate.looks:
                    if words[at] >= count:
                        break
                else:
                    self._wait(count)
                    return

    def _wait(self, count: int) -> None:
        begin = time.monotonic()
        look = begin + LOOK_S
        leave = self.gate.leave()
        seconds = self.call[1]
        while missing := [rank for rank, at in self._others if self._words[at] < count]:
            waited = (now := time.monotonic()) - begin
            if now > look or waited > seconds:
                look = now + LOOK_S
                self._check(missing, waited)
            leave(waited)

    def _check(self, missing: list[int], waited: float) -> None:
        """Raise if ranks that are awaited within a call will not come, or the time is over."""
        gone = [rank for rank in missing if self._words[rank * RANK_BYTES // 8] == _GAVE_UP]
        try:
            self.gate.check(missing, gone, waited, *self.call[1:])
        except HpcommError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Say that this rank returns: what the others have not read by now they must not read."""
        self._words[self.rank * RANK_BYTES // 8] = _GAVE_UP

    def _through(self, pieces: int, *stages: Callable[[int, int], None]) -> None:
        """Every piece through every stage(piece, its place), with a meeting between two stages."""
        last = pieces + len(stages) - 2
        for now in range(last + 1):
            for late, stage in enumerate(stages):
                if 0 <= now - late < pieces:
                    stage(now - late, (self.place + now - late) % _PLACES)
            if now < last:
                self.together()
        self.place = (self.place + pieces) % _PLACES

    # -- memory --------------------------------------------------------------------------------------------
    def cells(self, like: Tensor, n: int) -> list[list[list[Tensor]]]:
        """Blocks of n elements, by place, rank and number."""
        found = self._known.get((like.dtype, n))
        if found is None:
            if len(self._known) > _KEPT:
                self._known.clear()
            count = min(TORCH_PIECE // (n * like.itemsize), self.size) * n
            with torch.inference_mode(False):  # they are kept, and used elsewhere, too
                found = self._known[like.dtype, n] = [
                    [list(self._block(like.dtype, count, rank, place).split(n)) for rank in range(self.size)]
                    for place in range(_PLACES)
                ]
        return found

    def scratch(self, dtype: torch.dtype) -> Tensor:
        """Memory of this rank alone, as much as a piece has."""
        if self._scratch is None:
            self._scratch = torch.empty(TORCH_PIECE, dtype=torch.uint8)
        return self._scratch.view(dtype)

    def _block(self, dtype: torch.dtype, count: int, rank: int, place: int) -> Tensor:
        at = rank * RANK_BYTES + _HEAD + place * TORCH_PIECE
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at)

    # -- verbs that reduce -----------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """In place: out is x. Small: each rank reduces all. Large: a block each, 2 n (p-1)/p moved."""
        if not folds(x.dtype, op):
            self.arrive()
            return super().all_reduce(x, op, out=out)
        flat = target(x)
        if not flat.numel():
            return None
        if not self.folds_blocks(flat.nbytes, flat.dtype):
            cells = self.cells(flat, flat.numel())
            self._through(
                1,
                lambda _, place: put(cells[place][self.rank][0], flat),
                lambda _, place: fold(op, [cell[0] for cell in cells[place]], flat),
            )
        else:
            self._all_reduce_by_blocks(flat, op)
        return give_back(flat, x)

    def _all_reduce_by_blocks(self, flat: Tensor, op: str) -> None:
        p, me = self.size, self.rank
        step = TORCH_PIECE // flat.itemsize // p * p
        pieces = [piece.split(-(-len(piece) // p)) for piece in flat.split(step)]

        def lay(i: int, place: int) -> None:
            cell = self.cells(flat, len(pieces[i][0]))[place][me]
            for j, block in enumerate(pieces[i]):
                if j != me:
                    put(cell[j], block)

        def fold_own(i: int, place: int) -> None:
            if me < len(pieces[i]):
                own, cells = pieces[i][me], self.cells(flat, len(pieces[i][0]))[place]
                fold(op, [own, *(fit(cells[q][me], own) for q in range(p) if q != me)], own)
                put(cells[me][me], own)

        def take(i: int, place: int) -> None:
            cells = self.cells(flat, len(pieces[i][0]))[place]
            for q, block in enumerate(pieces[i]):
                if q != me:
                    block.copy_(fit(cells[q][q], block))

        self._through(len(pieces), lay, fold_own, take)

    def reduce(self, x: Tensor, op: Any, root: int, *, out: Tensor | None = None) -> Tensor | None:
        """The root reduces all."""
        if not folds(x.dtype, op):
            return super().reduce(x, op, root, out=out)
        flat, me = flat_of(x), self.rank
        if out is None and me == root:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        into = flat if out is None else target(out)

        def take(cells: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            if me == root:
                parts = [cell[0] for rank, cell in enumerate(cells) if rank != me]
                fold(op, [cut(flat), *parts], cut(into))

        self._pass(flat, 1, [] if me == root else [(0, flat)], take)
        if out is not None:
            give_back(into, out)
        return out

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor | None = None) -> Tensor:
        """Block r of x, of shape (size, ...), folded, to rank r."""
        if not folds(x.dtype, op):
            self.arrive()
            return super().reduce_scatter(x, op, out=out)
        out = torch.empty_like(x[0]) if out is None else out
        blocks, into, me = [*rows_of(x)], target(out), self.rank

        def take(cells: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            parts = [cell[me] for rank, cell in enumerate(cells) if rank != me]
            fold(op, [cut(blocks[me]), *parts], cut(into))

        self._pass(into, self.size, [(j, block) for j, block in enumerate(blocks) if j != me], take)
        give_back(into, out)
        return out

    # -- verbs that only move ------------------------------------------------------------------------------
    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        """In place: out is x."""
        flat = target(x)
        own, at_root = as_bytes(flat), self.rank == root
        self._carry(own.size, 1, [(0, own)] if at_root else [], [] if at_root else [(root, 0, own)])
        if not at_root:
            give_back(flat, x)

    def all_gather(self, x: Tensor, *, out: Tensor) -> None:
        """out, contiguous, has shape (size, ...)."""
        self._gather(x, out, takes=True, gives=True)

    def gather(self, x: Tensor, root: int, *, out: Tensor | None = None) -> Tensor | None:
        at_root = self.rank == root
        if at_root and out is None:
            out = x.new_empty((self.size, *x.shape))
        self._gather(x, out, takes=at_root, gives=not at_root)
        return out if at_root else None

    def _gather(self, x: Tensor, out: Tensor | None, *, takes: bool, gives: bool) -> None:
        flat, me = flat_of(x), self.rank
        rows = [*rows_of(out)] if takes and out is not None else []
        if rows and rows[me].data_ptr() != flat.data_ptr():
            flat = self._apart(flat, rows[me])
            rows[me].copy_(flat)
        own = as_bytes(flat)
        taken = [(q, 0, as_bytes(row)) for q, row in enumerate(rows) if q != me]
        self._carry(own.size, 1, [(0, own)] if gives else [], taken)

    def _apart(self, flat: Tensor, row: Tensor) -> Tensor:
        """flat, or a copy of it where it lies in the memory of row, and is not row."""
        same = flat.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
        return flat.clone() if same and flat.data_ptr() != row.data_ptr() else flat

    def scatter(self, x: Tensor | None, root: int, *, out: Tensor) -> None:
        into, me = target(out), self.rank
        if x is not None and me == root:
            rows = [*rows_of(x)]
            into.copy_(rows[me])
            given = [(j, as_bytes(row)) for j, row in enumerate(rows) if j != me]
            self._carry(into.nbytes, self.size, given, [])
        else:
            self._carry(into.nbytes, self.size, [], [(root, me, as_bytes(into))])
        give_back(into, out)

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        """x and out, contiguous, have shape (size, ...)."""
        if self.gate.crowded and x.nbytes > TORCH_CROWDED:
            self.arrive()
            return super().all_to_all(x, out=out)
        me = self.rank
        rows, into = [as_bytes(row) for row in rows_of(x)], [as_bytes(row) for row in rows_of(out)]
        given = [(j, row) for j, row in enumerate(rows) if j != me]
        taken = [(q, me, row) for q, row in enumerate(into) if q != me]
        self._carry(rows[me].size, self.size, given, taken, [(into[me], rows[me])])
        return None

    def _carry(
        self,
        n: int,
        blocks: int,
        gives: list[tuple[int, Bytes]],
        takes: list[tuple[int, int, Bytes]],
        own: Sequence[tuple[Bytes, Bytes]] = (),
    ) -> None:
        """Write blocks of n bytes, by their numbers, and take some: those of a rank, by their numbers.

        What does not fit into a place at once goes in small pieces, which stay in caches.

        Args:
            own: where to copy blocks of this rank, and which.
        """
        most = n if n * blocks <= TORCH_PIECE else TORCH_MOVED_PIECE // blocks
        cuts = [(low, min(low + most, n)) for low in range(0, n, most)] if n else []
        cells, copy = self._bytes, np.copyto

        def give(i: int, place: int) -> None:
            low, high = cuts[i]
            at, step = self.rank * RANK_BYTES + _HEAD + place * TORCH_PIECE, high - low
            for j, x in gives:
                copy(cells[at + j * step : at + j * step + step], x[low:high])

        def take(i: int, place: int) -> None:
            low, high = cuts[i]
            at, step = _HEAD + place * TORCH_PIECE, high - low
            for q, j, x in takes:
                there = at + q * RANK_BYTES + j * step
                copy(x[low:high], cells[there : there + step])
            for x, y in own:
                copy(x[low:high], y[low:high])

        self._through(len(cuts), give, take)

    def _pass(
        self,
        like: Tensor,
        blocks: int,
        gives: list[tuple[int, Tensor]],
        take: Callable[[list[list[Tensor]], Callable[[Tensor], Tensor]], None],
    ) -> None:
        """Write what this rank gives, as blocks of those numbers, and let it take from shared memory.

        Args:
            like: flat, as long as each of the blocks.
            take: called for each piece with shared memory and with what cuts it out of a tensor.
        """
        n, most = like.numel(), TORCH_PIECE // like.itemsize // blocks
        cuts = [(low, min(low + most, n) - low) for low in range(0, n, most)]

        def lay(i: int, place: int) -> None:
            low, length = cuts[i]
            cell = self.cells(like, length)[place][self.rank]
            for j, x in gives:
                cell[j].copy_(x if length == n else x.narrow(0, low, length))

        def collect(i: int, place: int) -> None:
            low, length = cuts[i]
            take(
                self.cells(like, length)[place],
                lambda x: x if length == n else x.narrow(0, low, length),
            )

        self._through(len(cuts), lay, collect)
