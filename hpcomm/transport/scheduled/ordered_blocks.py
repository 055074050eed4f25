"""Reductions in the order of ranks, of arrays too long for everybody to have all: a block by each rank.

    piece      0                    1                    2
    give       block q to rank q    block q to rank q    ...
    fold                            mine of piece 0      ...
    share                           mine of piece 0      ...     to all, to the root, or prefix q to rank q

Each rank sends and receives at most 2 n (p-1)/p bytes (Thakur, Rabenseifner and Gropp 2005), and needs memory
for two pieces besides. Pieces travel by messages on a duplicate with a tag for each call, so any number of
calls may be under way, in whatever order they end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ...core.limits import ORDER_PIECE
from ...core.operation import Carrier
from ...core.request import Again, Request
from .. import mpi as transport
from .comm_cache import begun, own
from .schedule_channels import Running, wait_all

if TYPE_CHECKING:
    from ...core.operation import Call
    from ...core.request import Stages
    from ...core.types import NpArray
    from ..rank_order import Fold


def ordered_call(call: Call, fold: Fold, x: NpArray, out: NpArray | None) -> Call:
    """Let call be carried out by blocks.

    Args:
        x, out: in one piece each; out may be x. None: this rank receives nothing.
    """
    blocks = _Blocks(call, fold, x.reshape(-1), None if out is None else out.reshape(-1))

    def carry() -> None:
        mine = own(call.comm)
        for requests in blocks.stages(mine.mpi, mine.tag()):
            wait_all(requests)

    def stages() -> Stages:
        mine = begun(call.comm)
        tag = mine.tag()

        def moves() -> Stages:
            if not mine.Test():
                yield [mine]
            yield from blocks.stages(mine.mpi, tag)

        yield [Running(transport.in_our_words(call.comm, call.verb, moves()))]
        return call.finish(None)

    def begin() -> Request[Any]:
        return Request(call, stages())

    call.carrier = Carrier(carry, stages, lambda: Again("blocks, reduced in rank order", begin))
    return call


class _Blocks:
    """What one rank gives, folds and receives."""

    def __init__(self, call: Call, fold: Fold, x: NpArray, out: NpArray | None) -> None:
        self.verb, self.root, self.fold, self.x, self.out = call.verb, call.root, fold, x, out
        self.rank, self.size = call.comm.rank, call.comm.size
        self.others = [(self.rank + i) % self.size for i in range(1, self.size)]
        self.step = max(ORDER_PIECE // x.itemsize, self.size)

    def stages(self, mpi: MPI.Comm, tag: int) -> Stages:
        n, p, me = self.x.size, self.size, self.rank
        most = -(-min(self.step, n) // p) * p
        memory = [np.empty(most, self.x.dtype) for _ in range(1 + (n > self.step))]
        shared: list[tuple[int, NpArray]] = []  # what is due of the piece before
        due: list[tuple[int, NpArray]] = []
        for i, low in enumerate(range(0, n + self.step, self.step)):
            high = min(low + self.step, n)
            ends = [low + max(high - low, 0) * r // p for r in range(p + 1)]
            mine = slice(ends[me], ends[me + 1])
            rows = memory[i % len(memory)][: p * (mine.stop - mine.start)].reshape(p, -1)
            coming = [(q, rows[q]) for q in self.others] + due
            going = [(q, self.x[ends[q] : ends[q + 1]]) for q in self.others] + shared
            rows[me] = self.x[mine]
            yield [
                *(mpi.Irecv(_bytes(part), q, tag) for q, part in coming if part.size),
                *(mpi.Isend(_bytes(part), q, tag) for q, part in going if part.size),
            ]
            shared = self._reduced(rows, mine)
            due = [(q, self._into(slice(ends[q], ends[q + 1]))) for q in self.others if self._receives()]

    def _reduced(self, rows: NpArray, mine: slice) -> list[tuple[int, NpArray]]:
        """Fold what has come, keep what is for us, and say what is for others."""
        if self.verb in ("scan", "exscan"):
            made, later = self.fold.prefixes(rows), self.verb == "exscan"
            if self._receives():
                self._into(mine)[...] = made[self.rank - later]
            return [(q, made[q - later]) for q in self.others if q >= later]
        total = self.fold.total(rows)
        if self._receives():
            self._into(mine)[...] = total
        return [(q, total) for q in self.others if self.verb == "all_reduce" or q == self.root]

    def _receives(self) -> bool:
        return self.out is not None and not (self.verb == "exscan" and self.rank == 0)

    def _into(self, part: slice) -> NpArray:
        assert self.out is not None
        return self.out[part]


def _bytes(part: NpArray) -> list[object]:
    return [part.view(np.uint8), part.nbytes, MPI.BYTE]
