"""Reductions in the order of ranks, or exact, of arrays too long for everybody to have all: a part by each
rank.

A part of the array has owners, who have the result first, and on each node a holder, who reduces what the
ranks of that node have:

    collect   each rank's to the holder on its node      holders fold: ((x0 op x1) op x2)
    cross     the holders' to each owner                 owners fold: ((node0 op node1) op node2), round
    spread    the owner's result to holders that do not own it
    share     each holder's to the ranks of its node

One holder owns a part: the ranks of N nodes take turns, and each node sends 2 n (N-1)/N elements. Between two
nodes, which send as much then, and for short arrays, all holders own it, and there is one step less between
nodes. Within one node there is nothing to cross. The result of a reduce goes from its owner to the root, and
that of a reduce_scatter stays there. Of a short array the other nodes' first ranks hold all, and the root
owns it. Exact sums are made as on one node, whichever nodes there are. So each rank sends and receives
at most 2 n (p-1)/p elements of a long array (Thakur, Rabenseifner and Gropp 2005).
Prefixes have no parts: each goes to the next rank, which adds its own. That is p - 1 messages of n elements.
Arrays go in pieces, which follow each other one step apart. Messages travel on a duplicate, with a tag for
each call, so any number of calls may be under way, in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..._lazy import MPI
from ...core.limits import ORDER_EXCHANGED, ORDER_PIECE, ORDER_PREFIX, ORDER_TO_ROOT, ORDER_TWICE
from ...core.operation import Carrier
from ...core.request import Again, Request
from ...core.verbs import PREFIXES
from .. import mpi as transport
from .comm_cache import begun, own
from .schedule_channels import LARGEST, Running, pieces, wait_all

if TYPE_CHECKING:
    from ...core.comm import Comm
    from ...core.operation import Call
    from ...core.request import Stages
    from ...core.types import NpArray
    from ..rank_order import Fold

    Messages = list[tuple[int, NpArray]]  # (peer, memory)


class Part(NamedTuple):
    """Elements low to high, the ranks that hold them on each node, and which of those own their result."""

    low: int
    high: int
    owners: tuple[int, ...]
    holders: tuple[int, ...]


def ordered_call(call: Call, fold: Fold, x: NpArray, out: NpArray | None) -> Call:
    """Let call be carried out by parts.

    Args:
        x, out: in one piece each; out may be x. None: this rank receives nothing.
    """
    flat = x.reshape(-1), None if out is None else out.reshape(-1)
    which = call.comm, call.verb, call.root
    carry = partial(by_parts, *which, fold, *flat)

    def stages() -> Stages:
        mine = begun(call.comm)
        tag, most = mine.tag(), mine.most if mine.is_settled else lambda peer: LARGEST
        fold.meet(call.mpi)

        def moves() -> Stages:
            if not mine.Test():
                yield [mine]
            if not fold.nodes.Test():
                yield [fold.nodes]
            yield from _Parts(*which, fold, *flat).stages(mine.mpi, tag, most)

        yield [Running(transport.in_our_words(call.comm, call.verb, moves()))]
        return call.finish(None)

    def prepare() -> Again:
        return Again("parts, folded in rank order", lambda: Request(call, stages()))

    call.carrier = Carrier(carry, stages, prepare)
    return call


def by_parts(comm: Comm, verb: str, root: int, fold: Fold, x: NpArray, out: NpArray | None) -> None:
    """Carry out a blocking call, of flat arrays."""
    fold.meet(comm.mpi_handle)
    fold.nodes.Wait()
    parts = _Parts(comm, verb, root, fold, x, out)
    if parts.is_twice:
        parts.all_reduce_by_two(comm.mpi_handle)
        return
    mine = own(comm)
    if parts.to_root:
        parts.reduce_at_root(mine.mpi, mine.tag(), mine.most)
        return
    for requests in parts.stages(mine.mpi, mine.tag(), mine.most):
        wait_all(requests)


def parts_of(low: int, high: int, nodes: list[list[int]], owning: slice | None = None) -> Iterator[Part]:
    """Elements low to high in parts: on each node ranks hold even shares, and own one part of each.

    owning: those of the holders that own all of a part.
    """
    n = high - low
    cuts = sorted({low + n * i // len(ranks) for ranks in nodes for i in range(len(ranks) + 1)})
    for a, b in pairwise(cuts):
        holders = tuple(_holder(a - low, n, ranks) for ranks in nodes)
        if owning is not None:
            yield Part(a, b, holders[owning], holders)
            continue
        ends = [a + (b - a) * j // len(nodes) for j in range(len(nodes) + 1)]
        yield from (Part(ends[j], ends[j + 1], (owner,), holders) for j, owner in enumerate(holders))


def _holder(at: int, n: int, ranks: list[int]) -> int:
    """Who of ranks has the even share of n elements in which one is."""
    k = len(ranks)
    return next(rank for i, rank in enumerate(ranks) if at < n * (i + 1) // k)


def blocks_of(low: int, high: int, whole: int, nodes: list[list[int]]) -> Iterator[Part]:
    """Elements low to high of each rank's block of whole ones, which that rank owns."""
    for rank in sorted(rank for ranks in nodes for rank in ranks):
        at = next(ranks.index(rank) for ranks in nodes if rank in ranks)
        holders = tuple(rank if rank in ranks else ranks[at % len(ranks)] for ranks in nodes)
        yield Part(rank * whole + low, rank * whole + high, (rank,), holders)


def _begun(
    begin: Callable[..., MPI.Request], messages: Messages, tag: int, most: Callable[[int], int]
) -> list[MPI.Request]:
    """Requests of messages, by MPI's Irecv or Isend."""
    return [begin(data, peer, tag) for peer, data in pieces(messages, most)]


class _Parts:
    """What one rank gives, folds and receives."""

    def __init__(self, comm: Comm, verb: str, root: int, fold: Fold, x: NpArray, out: NpArray | None) -> None:
        self.verb, self.root, self.fold, self.x, self.out = verb, root, fold, x, out
        self.rank, self.size = comm.rank, comm.size
        self.nodes = fold.nodes.groups
        self.here = next(j for j, ranks in enumerate(self.nodes) if comm.rank in ranks)
        self.near = self.nodes[self.here]
        others = len(self.nodes) - 1
        self.to_root = verb == "reduce" and 0 < x.nbytes * others <= ORDER_TO_ROOT
        is_short = verb == "all_reduce" and x.nbytes * self.size <= ORDER_TWICE
        self.is_twice = is_short and self.size == len(self.nodes)
        self.owning: slice | None = None  # those of the holders that own all of a part
        if len(self.nodes) == 2 or x.nbytes * len(self.nodes) <= ORDER_EXCHANGED:
            at = next((j for j, ranks in enumerate(self.nodes) if root in ranks), 0)
            self.owning = slice(at, at + 1) if verb == "reduce" else slice(None)

    def stages(self, mpi: MPI.Comm, tag: int, most: Callable[[int], int]) -> Stages:
        blocks = self.size if self.verb == "reduce_scatter" else 1
        n = self.x.size // blocks
        longest, made = (ORDER_PREFIX, self._prefix) if self.verb in PREFIXES else (ORDER_PIECE, self._piece)
        step = max(longest // (self.x.itemsize * blocks), self.size)
        lows = iter(range(0, n, step))
        under_way: list[Iterator[tuple[Messages, Messages]]] = []
        while True:
            low = next(lows, None)
            if low is not None:
                under_way.append(made(low, min(low + step, n), n))
            coming: Messages = []
            going: Messages = []
            for piece in tuple(under_way):
                messages = next(piece, None)
                if messages is None:
                    under_way.remove(piece)
                else:
                    coming += messages[0]
                    going += messages[1]
            if not under_way and low is None:
                return
            yield [*_begun(mpi.Irecv, coming, tag, most), *_begun(mpi.Isend, going, tag, most)]

    def reduce_at_root(self, mpi: MPI.Comm, tag: int, most: Callable[[int], int]) -> None:
        """A short reduce, at one go: with more ranks than cores each step of Python's lets others wait."""
        me, root, fold = self.rank, self.root, self.fold
        holder = root if root in self.near else self.near[0]
        if me != holder:
            wait_all(_begun(mpi.Isend, [(holder, self.x)], tag, most))
            return
        rows = np.empty((len(self.near), self.x.size), self.x.dtype)
        near = [(q, row) for q, row in zip(self.near, rows, strict=True) if q != me]
        coming = _begun(mpi.Irecv, near, tag, most)
        others: Messages = []
        if me == root:
            others = [(ranks[0], fold.room_for(self.x)) for ranks in self.nodes if me not in ranks]
        far = _begun(mpi.Irecv, others, tag, most)
        rows[self.near.index(me)] = self.x
        wait_all(coming)
        wide = fold.partial(rows)
        if me != root:
            wait_all(_begun(mpi.Isend, [(root, wide)], tag, most))
            return
        wait_all(far)
        folded = [row for _, row in others]
        folded.insert(self.here, wide)
        with np.errstate(all="ignore"):
            self._into(0, wide.size)[...] = fold.rounded(fold.in_turn(folded))

    def all_reduce_by_two(self, mpi: MPI.Comm) -> None:
        """A short all_reduce of nodes with one rank each, by two calls of MPI: what each rank reduces of the
        array comes, and what all have reduced."""
        n, p = self.x.size, self.size
        rows, given = np.empty((2, p, -(-n // p)), self.x.dtype)
        given.reshape(-1)[:n] = self.x
        each = rows[0].nbytes, MPI.BYTE
        mpi.Alltoall((given, *each), (rows, *each))
        given[self.rank] = self.fold.rounded(self.fold.partial(rows))
        mpi.Allgather(MPI.IN_PLACE, (given, *each))
        self._into(0, n)[...] = given.reshape(-1)[:n]

    def _piece(self, low: int, high: int, n: int) -> Iterator[tuple[Messages, Messages]]:
        """The messages of one piece, step by step: what comes, and what goes."""
        parts = [part for part in self._cut(low, high, n) if part.low < part.high]
        held = self._held(parts)
        rows = [np.empty((len(self.near), part.high - part.low), self.x.dtype) for part in held]
        yield (
            [(q, row[i]) for row in rows for i, q in enumerate(self.near) if q != self.rank],
            [(q, self.x[p.low : p.high]) for p in parts if (q := p.holders[self.here]) != self.rank],
        )
        for part, row in zip(held, rows, strict=True):
            row[self.near.index(self.rank)] = self.x[part.low : part.high]
        folded = {part: self.fold.partial(row) for part, row in zip(held, rows, strict=True)}
        if len(self.nodes) > 1:
            yield from self._cross(folded)
        owned = {part: self.fold.rounded(wide) for part, wide in folded.items() if self.rank in part.owners}
        yield from self._given(parts, owned)

    def _cut(self, low: int, high: int, n: int) -> Iterator[Part]:
        if self.verb == "reduce_scatter":
            return blocks_of(low, high, n, self.nodes)
        if self.to_root:
            holders = tuple(self.root if self.root in ranks else ranks[0] for ranks in self.nodes)
            return iter([Part(low, high, (self.root,), holders)])
        return parts_of(low, high, self.nodes, self.owning)

    def _cross(self, folded: dict[Part, NpArray]) -> Iterator[tuple[Messages, Messages]]:
        """Bring what the nodes have of a part to its owners, and fold it there."""
        owned = {
            part: np.empty((len(self.nodes), wide.size), wide.dtype)
            for part, wide in folded.items() if self.rank in part.owners
        }  # fmt: skip
        yield (
            [
                (q, row[j])
                for part, row in owned.items()
                for j, q in enumerate(part.holders)
                if j != self.here
            ],
            [(q, wide) for part, wide in folded.items() for q in part.owners if q != self.rank],
        )
        for part, row in owned.items():
            row[self.here] = folded[part]
            with np.errstate(all="ignore"):
                folded[part] = self.fold.in_turn(row)

    def _given(self, parts: list[Part], owned: dict[Part, NpArray]) -> Iterator[tuple[Messages, Messages]]:
        """Take the results to where they are wanted."""
        if self.verb == "reduce_scatter":
            for part, made in owned.items():
                low = part.low - self.rank * (self.x.size // self.size)
                self._into(low, low + made.size)[...] = made
            return
        for part, made in owned.items():
            if self.out is not None:
                self._into(part.low, part.high)[...] = made
        if self.verb == "reduce":
            is_root = self.rank == self.root
            yield (
                self._coming(parts) if is_root else [],
                [(self.root, made) for made in owned.values() if not is_root],
            )
            return
        yield from self._spread(parts, owned)

    def _spread(self, parts: list[Part], owned: dict[Part, NpArray]) -> Iterator[tuple[Messages, Messages]]:
        """Take the results to the holders, and from them to all."""
        if len(self.nodes) > 1:
            yield (
                self._coming(self._held(parts)),
                [(q, made) for p, made in owned.items() for q in p.holders if q not in p.owners],
            )
        coming: Messages = []
        going: Messages = []
        for holder, grouped in groupby(parts, key=lambda part: part.holders[self.here]):
            run = [*grouped]
            data = self._into(run[0].low, run[-1].high)
            coming += [(holder, data)] if holder != self.rank else []
            going += [(q, data) for q in self.near if q != self.rank] if holder == self.rank else []
        yield coming, going

    def _prefix(self, low: int, high: int, n: int) -> Iterator[tuple[Messages, Messages]]:
        """What the ranks before have, reduced, comes; with this rank's own it goes to the next."""
        mine, before, made = self.x[low:high], None, None
        if self.rank:
            before = self.fold.room_for(mine)
            yield [(self.rank - 1, before)], []
        if self.verb == "scan" or self.rank < self.size - 1:
            made = self.fold.onto(before, mine)
        if made is not None and self.rank < self.size - 1:
            yield [], [(self.rank + 1, made)]
        wide = made if self.verb == "scan" else before
        if self.out is not None and wide is not None:
            self._into(low, high)[...] = self.fold.rounded(wide)

    def _held(self, parts: list[Part]) -> list[Part]:
        """Those that this rank holds."""
        return [part for part in parts if part.holders[self.here] == self.rank]

    def _coming(self, parts: list[Part]) -> Messages:
        """Those parts of the result that this rank does not own."""
        return [(p.owners[0], self._into(p.low, p.high)) for p in parts if self.rank not in p.owners]

    def _into(self, low: int, high: int) -> NpArray:
        assert self.out is not None
        return self.out[low:high]
