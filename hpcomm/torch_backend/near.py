"""Collective calls of ranks of one node, through memory that they share.

Each rank has a shelf there for a few pieces of data. A call cuts tensors into pieces, and each piece goes
through stages: lay it on one's own shelf, fold what lies on all of them, take from the others'. Between
two stages all ranks meet; the first meeting of a call is the gate's. While one piece is taken the next is
laid, so a piece needs one meeting, and memory is read while it is in a cache.

No rank enters MPI here, so none can be left there: who waits for a rank that ends, or comes too late, is
told by an exception.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import LayoutError
from ..observe.board import share
from .far import HALVES, Far
from .gate import LOOK_S, LOOKS, pause, rest

if TYPE_CHECKING:
    from ..communicator import Communicator
    from .gate import Gate

__all__ = ["Near", "carrier", "fit", "folding"]

Tensor = torch.Tensor
_PIECE = 1 << 20  # bytes of a shelf's place; half of it costs 2 MiB a sixth more, twice it 16 MiB a quarter
_PLACES = 3  # a piece is laid while the one before is folded, and the one before that is taken
_HEAD = 4096  # bytes before them; the number of the last meeting a rank has come to
_SHELF = _HEAD + _PLACES * _PIECE
_MOST = 16  # ranks; more have many cores, and algorithms of many steps
_SMALL = 128 * 1024  # bytes of all ranks up to which each folds all, in one stage less
_SMALL_HALVES = 16 * 1024
_CROWD = 1 << 20  # bytes from which MPI exchanges blocks in less turns where ranks share cores
_KEPT = 64  # lengths of blocks whose views are kept
_ORDERED = ("x86_64", "AMD64")  # stores are seen in order there; nothing in Python could see to it elsewhere
_FOLDS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
_KINDS = {
    *HALVES, torch.float32, torch.float64,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


def carrier(comm: Communicator, gate: Gate) -> Far:
    """What carries out the calls of comm: Near if all its ranks share memory, else Far. Collective."""
    if comm.size == 1 or not gate.on_board or comm.size > _MOST or platform.machine() not in _ORDERED:
        return Far(comm, gate)
    shared = share(comm.mpi, _SHELF, reserve=True)
    if shared is None:
        return Far(comm, gate)
    memory, file = shared
    os.close(file)
    return Near(comm, gate, memory)


class Near(Far):
    """Verbs of ranks that share memory; what they cannot carry out is Far's.

    Attributes:
        place: where on the shelves the next piece is laid, of so many places.
    """

    places = _PLACES

    def __init__(self, comm: Communicator, gate: Gate, memory: mmap.mmap) -> None:
        super().__init__(comm, gate)
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._others = [(rank, rank * _SHELF // 8) for rank in range(comm.size) if rank != comm.rank]
        self._count = 0  # meetings
        self.place = 0  # where the next piece is laid
        self._due = False  # the meeting at the gate
        cores = comm.all_gather_object(os.sched_getaffinity(0))
        self._crowded = comm.size > len(set().union(*cores))
        context = copy_context()
        context.run(np.seterr, all="ignore")
        self.calmly = context.run  # calls numpy's functions without its warnings
        self._scratch: Tensor | None = None
        self._known: dict[tuple[torch.dtype, int], list[list[list[Tensor]]]] = {}

    def most(self, verb: str, op: Any, dtype: torch.dtype) -> int:
        """Elements of a call of one piece, for which there may be a shorter way; see short.py."""
        p, most = self.size, _PIECE // dtype.itemsize
        if dtype not in _KINDS or (op is not None and op not in _FOLDS):
            return 0
        return most // p * p if verb in ("all_reduce", "reduce_scatter", "all_to_all") else most

    def folds_blocks(self, nbytes: int, dtype: torch.dtype) -> bool:
        """Whether of an all-reduce each rank folds a block only, in one stage more, or all of it."""
        return nbytes * self.size > (_SMALL_HALVES if dtype in HALVES else _SMALL)

    # -- meetings ------------------------------------------------------------------------------------------
    def expect(self, *call: Any) -> None:
        self.call, self._due = call, True

    def arrive(self) -> None:
        self._meet()
        self.inside = time.monotonic()

    def done(self) -> None:
        self.inside = None
        self._meet()

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
        words[self.rank * _SHELF // 8] = count
        for _, at in self._others:
            if words[at] < count:
                for _ in range(LOOKS):
                    if words[at] >= count:
                        break
                else:
                    self._wait(count)
                    return

    def _wait(self, count: int) -> None:
        begin = time.monotonic()
        look = begin + LOOK_S
        leave = pause if threading.current_thread() is threading.main_thread() else rest
        seconds = self.call[1]
        while missing := [rank for rank, at in self._others if self._words[at] < count]:
            waited = (now := time.monotonic()) - begin
            if now > look or waited > seconds:
                look = now + LOOK_S
                self.gate.check(missing, waited, *self.call[1:])
            leave(waited)

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
    def shelves(self, like: Tensor, n: int) -> list[list[list[Tensor]]]:
        """Blocks of n elements, by place, rank and number."""
        found = self._known.get((like.dtype, n))
        if found is None:
            if len(self._known) > _KEPT:
                self._known.clear()
            count = min(_PIECE // (n * like.itemsize), self.size) * n
            with torch.inference_mode(False):  # they are kept, and used elsewhere, too
                found = self._known[like.dtype, n] = [
                    [list(self._block(like.dtype, count, rank, place).split(n)) for rank in range(self.size)]
                    for place in range(_PLACES)
                ]
        return found

    def scratch(self, dtype: torch.dtype) -> Tensor:
        """Memory of this rank alone, as much as a piece has."""
        if self._scratch is None:
            self._scratch = torch.empty(_PIECE, dtype=torch.uint8)
        return self._scratch.view(dtype)

    def _block(self, dtype: torch.dtype, count: int, rank: int, place: int) -> Tensor:
        at = rank * _SHELF + _HEAD + place * _PIECE
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at)

    # -- verbs that fold -----------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """In place: out is x. Small: each rank folds all. Large: a block each, 2 n (p-1)/p moved."""
        if not _folds(x, op):
            self.arrive()
            return super().all_reduce(x, op, out=out)
        flat = _target(x)
        if not flat.numel():
            return None
        if not self.folds_blocks(flat.nbytes, flat.dtype):
            shelves = self.shelves(flat, flat.numel())
            self._through(
                1,
                lambda _, place: _copy(shelves[place][self.rank][0], flat),
                lambda _, place: fold(op, [shelf[0] for shelf in shelves[place]], flat),
            )
        else:
            self._all_reduce_by_blocks(flat, op)
        return _give_back(flat, x)

    def _all_reduce_by_blocks(self, flat: Tensor, op: str) -> None:
        p, me = self.size, self.rank
        step = _PIECE // flat.itemsize // p * p
        pieces = [piece.split(-(-len(piece) // p)) for piece in flat.split(step)]

        def lay(i: int, place: int) -> None:
            shelf = self.shelves(flat, len(pieces[i][0]))[place][me]
            for j, block in enumerate(pieces[i]):
                if j != me:
                    _copy(shelf[j], block)

        def fold_own(i: int, place: int) -> None:
            if me < len(pieces[i]):
                own, shelves = pieces[i][me], self.shelves(flat, len(pieces[i][0]))[place]
                fold(op, [own, *(fit(shelves[q][me], own) for q in range(p) if q != me)], own)
                _copy(shelves[me][me], own)

        def take(i: int, place: int) -> None:
            shelves = self.shelves(flat, len(pieces[i][0]))[place]
            for q, block in enumerate(pieces[i]):
                if q != me:
                    block.copy_(fit(shelves[q][q], block))

        self._through(len(pieces), lay, fold_own, take)

    def reduce(self, x: Tensor, op: Any, root: int, *, out: Tensor | None = None) -> Tensor | None:
        """The root folds all."""
        if not _folds(x, op):
            self.arrive()
            return self.comm.reduce(x, op, root, out=out)
        flat, me = _flat(x), self.rank
        if out is None and me == root:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        into = flat if out is None else _target(out)

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            if me == root:
                parts = [shelf[0] for rank, shelf in enumerate(shelves) if rank != me]
                fold(op, [cut(flat), *parts], cut(into))

        self._pass(flat, 1, [] if me == root else [(0, flat)], take)
        if out is not None:
            _give_back(into, out)
        return out

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor | None = None) -> Tensor:
        """Block r of x, of shape (size, ...), folded, to rank r."""
        if not _folds(x, op):
            self.arrive()
            return super().reduce_scatter(x, op, out=out)
        out = torch.empty_like(x[0]) if out is None else out
        blocks, into, me = [*_rows(x)], _target(out), self.rank

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            parts = [shelf[me] for rank, shelf in enumerate(shelves) if rank != me]
            fold(op, [cut(blocks[me]), *parts], cut(into))

        self._pass(into, self.size, [(j, block) for j, block in enumerate(blocks) if j != me], take)
        _give_back(into, out)
        return out

    # -- verbs that only move ------------------------------------------------------------------------------
    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        """In place: out is x."""
        flat = _bits(_target(x))

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            if self.rank != root:
                cut(flat).copy_(shelves[root][0])

        self._pass(flat, 1, [(0, flat)] if self.rank == root else [], take)
        if self.rank != root:
            _give_back(flat, x)

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
        flat, me = _bits(_flat(x)), self.rank
        rows = [_bits(row) for row in _rows(out)] if takes and out is not None else []
        if rows and rows[me].data_ptr() != flat.data_ptr():
            if flat.untyped_storage().data_ptr() == rows[me].untyped_storage().data_ptr():
                flat = flat.clone()
            rows[me].copy_(flat)

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            for q, row in enumerate(rows):
                if q != me:
                    cut(row).copy_(shelves[q][0])

        self._pass(flat, 1, [(0, flat)] if gives else [], take)

    def scatter(self, x: Tensor | None, root: int, *, out: Tensor) -> None:
        into, me = _bits(_target(out)), self.rank
        rows = [_bits(row) for row in _rows(x)] if x is not None and me == root else []

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            cut(into).copy_(cut(rows[me]) if rows else shelves[root][me])

        self._pass(into, self.size, [(j, row) for j, row in enumerate(rows) if j != me], take)
        _give_back(into, out)

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        """x and out, contiguous, have shape (size, ...)."""
        if self._crowded and x.nbytes > _CROWD:
            self.arrive()
            return super().all_to_all(x, out=out)
        rows, into, me = [_bits(row) for row in _rows(x)], [_bits(row) for row in _rows(out)], self.rank

        def take(shelves: list[list[Tensor]], cut: Callable[[Tensor], Tensor]) -> None:
            for q, row in enumerate(into):
                cut(row).copy_(cut(rows[q]) if q == me else shelves[q][me])

        self._pass(into[me], self.size, [(j, row) for j, row in enumerate(rows) if j != me], take)
        return None

    def _pass(
        self,
        like: Tensor,
        blocks: int,
        gives: list[tuple[int, Tensor]],
        take: Callable[[list[list[Tensor]], Callable[[Tensor], Tensor]], None],
    ) -> None:
        """Lay what this rank gives, as blocks of those numbers, and let it take from the shelves.

        Args:
            like: flat, as long as each of the blocks.
            take: called for each piece with the shelves and with what cuts it out of a tensor.
        """
        n, most = like.numel(), _PIECE // like.itemsize // blocks
        cuts = [(low, min(low + most, n) - low) for low in range(0, n, most)]

        def lay(i: int, place: int) -> None:
            low, length = cuts[i]
            shelf = self.shelves(like, length)[place][self.rank]
            for j, x in gives:
                shelf[j].copy_(x if length == n else x.narrow(0, low, length))

        def collect(i: int, place: int) -> None:
            low, length = cuts[i]
            take(
                self.shelves(like, length)[place],
                lambda x: x if length == n else x.narrow(0, low, length),
            )

        self._through(len(cuts), lay, collect)


def _folds(x: Tensor, op: Any) -> bool:
    return type(op) is str and op in _FOLDS and x.dtype in _KINDS


def _flat(x: Tensor) -> Tensor:
    """x as one row of plain memory, its own if it is; not seen by autograd, nor counted by its versions."""
    x = x.data
    if x.is_neg() or x.is_conj() or not x.is_contiguous():
        x = x.resolve_neg().resolve_conj().contiguous()
    return x if x.dim() == 1 else x.view(-1)


def _target(x: Tensor) -> Tensor:
    """As _flat, of a tensor that is to be filled."""
    if any(step == 0 and length > 1 for step, length in zip(x.stride(), x.shape, strict=True)):
        raise LayoutError(
            f"out is broadcast: shape {tuple(x.shape)}, strides {x.stride()}; several elements share memory",
            hint="give a tensor with memory for each element, x.contiguous()",
        )
    return _flat(x)


def _rows(x: Tensor) -> Tensor:
    """x, of shape (n, ...), as n rows; its own memory where that is contiguous."""
    return _flat(x).view(len(x), -1) if x.numel() else x.data.new_empty((len(x), 0))


def _give_back(flat: Tensor, x: Tensor) -> None:
    """Fill x from what _flat(x) gave."""
    if flat.data_ptr() != x.data_ptr():
        x.data.copy_(flat.view(x.dtype).view(x.shape))


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def _bits(x: Tensor) -> Tensor:
    """Elements of any type as such that memory can be seen as."""
    return x if x.dtype in _KINDS else x.view(_WORDS[x.itemsize])


def fit(view: Tensor, x: Tensor) -> Tensor:
    return view if len(view) == len(x) else view[: len(x)]


def _copy(view: Tensor, x: Tensor) -> None:
    fit(view, x).copy_(x)


def folding(op: str, parts: list[Tensor], out: Tensor) -> Callable[[], Any]:
    """What carries out fold(op, parts, out)."""
    if len(parts) == 2 and op != "avg":
        return partial(_FOLDS[op], *parts, out=out)
    return partial(fold, op, parts, out)


def fold(op: str, parts: list[Tensor], out: Tensor) -> None:
    """Fold parts, in their order, into out, which may be the first of them; halves are rounded once."""
    function = _FOLDS[op]
    if out.dtype in HALVES and op != "min" and op != "max" and (len(parts) > 2 or op == "avg"):
        wide = parts[0].float()
        for part in parts[1:]:
            function(wide, part, out=wide)
        out.copy_(wide.div_(len(parts)) if op == "avg" else wide)
        return
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
    if op == "avg":
        out.div_(len(parts))
