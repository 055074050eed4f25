"""Reductions in the order of ranks, or exact, of arrays too long for everybody to have all: a part by each
rank. And all_gather between nodes.

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
Blocks of an all_gather go to the ranks of their node and, once, to each other node, where the one that has it
gives it to the others. Prefixes have no parts: each goes to the next rank, which adds its own. That is p - 1
messages of n elements.
Arrays go in pieces, which follow each other one step apart. Messages travel on a duplicate, with a tag for
each call, so any number of calls may be under way, in whatever order they end. Blocking calls on short arrays
keep memory and persistent requests for the next one like them: steps in Python, with more ranks than cores,
would take longer than the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._lazy import MPI
from ...core.limits import ORDER_EXCHANGED, ORDER_KEPT, ORDER_PIECE, ORDER_PREFIX, ORDER_TO_ROOT
from ...core.operation import Carrier
from ...core.request import Again, Request
from ...core.verbs import PREFIXES
from .. import mpi as transport
from .comm_cache import MIDWAY, begun, own
from .executor import Channel, Executor
from .schedule_channels import LARGEST, Running, pieces, wait_all

if TYPE_CHECKING:
    from ...core.comm import Comm
    from ...core.operation import Call
    from ...core.request import Stages
    from ...core.types import NpArray
    from ..rank_order import Fold

    Messages = list[tuple[int, NpArray]]  # (peer, memory)


_KEEPS = ("all_reduce", "reduce", "reduce_scatter")  # memory and requests, of short arrays


class Part(NamedTuple):
    """Elements low to high, the ranks that hold them on each node, and which of those own their result."""

    low: int
    high: int
    owners: tuple[int, ...]
    holders: tuple[int, ...]


class _Given(NamedTuple):
    """A call on flat arrays: what a rank gives, how that is reduced, and where the result goes, if at all."""

    comm: Comm
    verb: str
    root: int
    fold: Fold
    x: NpArray
    out: NpArray | None


def ordered_call(call: Call, fold: Fold, x: NpArray, out: NpArray | None) -> Call:
    """Let call be carried out by parts.

    Args:
        x, out: in one piece each; out may be x. None: this rank receives nothing.
    """
    flat = x.reshape(-1), None if out is None else out.reshape(-1)
    given = _Given(call.comm, call.verb, call.root, fold, *flat)
    carry = partial(by_parts, *given)

    def stages() -> Stages:
        mine = begun(call.comm)
        tag, most = mine.tag(), mine.most if mine.is_settled else lambda peer: LARGEST
        fold.meet(call.mpi)

        def moves() -> Stages:
            if not mine.Test():
                yield [mine]
            if not fold.nodes.Test():
                yield [fold.nodes]
            yield from _Parts(given).stages(mine.mpi, tag, most)

        yield [Running(transport.in_our_words(call.comm, call.verb, moves()))]
        return call.finish(None)

    def prepare() -> Again:
        how = "blocks, once to each node" if call.verb == "all_gather" else "parts, folded in rank order"
        return Again(how, lambda: Request(call, stages()))

    call.carrier = Carrier(carry, stages, prepare)
    return call


def by_parts(comm: Comm, verb: str, root: int, fold: Fold, x: NpArray, out: NpArray | None) -> None:
    """Carry out a blocking call, of flat arrays."""
    fold.meet(comm.mpi_handle)
    fold.nodes.Wait()
    mine, given = own(comm), _Given(comm, verb, root, fold, x, out)
    try:
        if verb in _KEEPS and 0 < x.nbytes <= ORDER_KEPT:
            reduce, at = fold.reduce, root if verb == "reduce" else 0
            key = "ordered", verb, at, x.nbytes, x.itemsize, fold.code, reduce.mpi_type, reduce.exact
            kept = mine.executor(key, lambda channel: _Kept(channel, given))
            kept.carry_out(fold, x, out)  # type: ignore[attr-defined]
            return
        parts = _Parts(given, mine.room if x.nbytes <= ORDER_PIECE else None)
        for requests in parts.stages(mine.mpi, mine.tag(), mine.most):
            wait_all(requests)
    except BaseException:  # also of a signal's handler
        comm.fall_out(MIDWAY)
        raise


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


class _Owned(NamedTuple):
    """A part whose result a rank has first.

    Attributes:
        run, low, high: where it is in what this rank's node has; where: in the result.
        others: the ranks of other nodes that hold it.
    """

    run: int
    low: int
    high: int
    others: list[int]
    where: slice


class _Cut:
    """What one rank does of a piece of an array, or of each rank's block of it.

    Args:
        piece: from where to where, of how many elements.
        sorts: of reduce_scatter: the blocks stand by their holders here, in this order, not by their ranks.

    Attributes:
        here, many: which node this is, of how many; shares: some node has several ranks.
        ranks, at: how many are on this node, and which of them this one is; others: (which, rank).
        held: (low, high) of what this rank holds, runs of parts; given: (holder, low, high) of other runs.
        crossing: (owner, run, low, high): parts of runs, for those that own their results.
        owned: this rank's own; results: (peer, which of them); wanted: (owner, where) of others'.
        moves: whether any rank has those.
        order: of the blocks, if they do not stand by their ranks.
    """

    moves = False
    order: list[int] | None = None

    def __init__(self, call: _Given, piece: tuple[int, int, int], sorts: bool = False) -> None:
        nodes, self.rank = call.fold.nodes.groups, call.comm.rank
        self.many, self.shares = len(nodes), any(len(ranks) > 1 for ranks in nodes)
        self.here = next(j for j, ranks in enumerate(nodes) if self.rank in ranks)
        near = nodes[self.here]
        self.ranks, self.at = len(near), near.index(self.rank)
        self.others = [(i, q) for i, q in enumerate(near) if q != self.rank]
        parts = [part for part in self._parts(call, nodes, *piece) if part.low < part.high]
        if sorts and call.verb == "reduce_scatter" and self.shares:
            n = piece[2]
            parts.sort(key=lambda part: part.holders[self.here])
            self.order = [part.owners[0] for part in parts]
            parts = [part._replace(low=i * n, high=(i + 1) * n) for i, part in enumerate(parts)]
        self._know_results(call, parts, self._runs(parts), slice(*piece[:2]))

    def _parts(self, call: _Given, nodes: list[list[int]], low: int, high: int, n: int) -> Iterator[Part]:
        verb, root, nbytes = call.verb, call.root, call.x.nbytes
        if verb == "reduce_scatter":
            return blocks_of(low, high, n, nodes)
        if verb == "reduce" and 0 < nbytes * (self.many - 1) <= ORDER_TO_ROOT:
            holders = tuple(root if root in ranks else ranks[0] for ranks in nodes)
            return iter([Part(low, high, (root,), holders)])
        owning: slice | None = None  # those of the holders that own all of a part
        if self.many == 2 or nbytes * self.many <= ORDER_EXCHANGED:
            at = next((j for j, ranks in enumerate(nodes) if root in ranks), 0)
            owning = slice(at, at + 1) if verb == "reduce" else slice(None)
        self.moves = verb == "reduce" or (owning is None and self.many > 1)
        return parts_of(low, high, nodes, owning)

    def _runs(self, parts: list[Part]) -> list[tuple[Part, int, int, int]]:
        """Join parts that one rank holds; those of this one, their run, and from where to where in it."""
        runs: list[tuple[int, int, int]] = []
        mine: list[tuple[Part, int]] = []
        self.held: list[tuple[int, int]] = []
        for part in parts:
            begin, holder = part.low, part.holders[self.here]
            if runs and runs[-1][::2] == (holder, begin):
                begin = runs.pop()[1]
            runs.append((holder, begin, part.high))
            if holder == self.rank:
                self.held[len(self.held) - (begin < part.low) :] = [(begin, part.high)]
                mine.append((part, len(self.held) - 1))
        self.given = [run for run in runs if run[0] != self.rank]
        return [(part, i, part.low - self.held[i][0], part.high - self.held[i][0]) for part, i in mine]

    def _know_results(
        self, call: _Given, parts: list[Part], mine: list[tuple[Part, int, int, int]], block: slice
    ) -> None:
        verb, rank, to_all = call.verb, self.rank, call.verb == "all_reduce"
        self.crossing = [(q, *its) for part, *its in mine for q in part.owners if q != rank]
        own = [each for each in mine if rank in each[0].owners]
        self.owned = [
            _Owned(
                i, a, b, [q for q in part.holders if q != rank],
                block if verb == "reduce_scatter" else slice(part.low, part.high),
            )
            for part, i, a, b in own
        ]  # fmt: skip
        self.results = [
            (q, i) for i, (part, *_) in enumerate(own)
            for q in (part.holders if to_all else (call.root,)) if q not in part.owners
        ]  # fmt: skip
        self.wanted = [
            (part.owners[0], slice(part.low, part.high)) for part in parts
            if rank not in part.owners and rank == (part.holders[self.here] if to_all else call.root)
        ]  # fmt: skip


class _Piece:
    """One rank's part of a piece, on memory that stays.

    Attributes:
        fold: how it is reduced.

    Args:
        rows: makes memory of so many rows of so many elements.
    """

    def __init__(self, cut: _Cut, call: _Given, rows: Callable[[int, int, np.dtype[Any]], NpArray]) -> None:
        self.cut, (_, self.verb, _, fold, x, out) = cut, call
        self.fold, self.x, self.out = fold, x, out
        wide = fold.wide(x)
        given = self.given = [x[a:b] for a, b in cut.held]
        self.is_alone = cut.ranks == 1 < cut.many  # what it has is only read, and crosses
        self.rows = [] if self.is_alone else [rows(cut.ranks, each.size, x.dtype) for each in given]
        self.folded = given if self.is_alone else [row[0] for row in self.rows]
        if wide != x.dtype:
            self.folded = [rows(1, each.size, wide)[0] for each in given]
        self.came = [rows(cut.many - 1, its.high - its.low, wide) for its in cut.owned]
        narrow = fold.rounded(np.zeros(1, wide)).dtype
        self.made = [
            rows(1, its.high - its.low, narrow)[0] if out is None else out[its.where] for its in cut.owned
        ]

    def rounds(self) -> Iterator[tuple[Messages, Messages, Callable[[], None]]]:
        """What comes, what goes, and what is done then."""
        cut, x = self.cut, self.x

        def into(where: slice) -> NpArray:
            assert self.out is not None
            return self.out[where]

        def nothing() -> None:
            pass

        if cut.shares or cut.many == 1:
            coming = [(q, row[i]) for row in self.rows for i, q in cut.others]
            yield coming, [(q, x[a:b]) for q, a, b in cut.given], self._collect
        if cut.many > 1:
            pairs = zip(cut.owned, self.came, strict=True)
            coming = [(q, row[i]) for its, row in pairs for i, q in enumerate(its.others)]
            yield coming, [(q, self.folded[i][a:b]) for q, i, a, b in cut.crossing], self._finish
        if cut.moves:
            coming = [(q, into(where)) for q, where in cut.wanted]
            yield coming, [(q, self.made[i]) for q, i in cut.results], nothing
        if self.verb == "all_reduce" and cut.shares:
            going = [(q, into(slice(*run))) for run in cut.held for _, q in cut.others]
            yield [(q, into(slice(a, b))) for q, a, b in cut.given], going, nothing

    def begin(self) -> None:
        """What is done before the first messages."""
        for given, wide in zip(self.given, self.folded, strict=True):
            if self.is_alone and wide is not given:
                wide[...] = self.fold.widened(given)

    def _collect(self) -> None:
        for given, row, wide in zip(self.given, self.rows, self.folded, strict=False):  # no rows: alone
            row[self.cut.at] = given
            made = self.fold.partial(row)
            if made.base is not wide.base:  # it is not there already
                wide[...] = made
        if self.cut.many == 1:
            self._finish()

    def _finish(self) -> None:
        fold, here = self.fold, self.cut.here
        for its, came, made in zip(self.cut.owned, self.came, self.made, strict=True):
            wide = self.folded[its.run][its.low : its.high]
            made[...] = fold.rounded(fold.across(wide, came, here) if len(came) else wide)


class _Kept(Executor):
    """A short piece with memory and requests that are used again."""

    def __init__(self, channel: Channel, call: _Given) -> None:
        n = call.x.size // (call.comm.size if call.verb == "reduce_scatter" else 1)
        cut = _Cut(call, (0, n, n), sorts=True)
        self.x, self.out = np.empty_like(call.x), None if call.out is None else np.empty_like(call.out)
        mine = call._replace(x=self.x, out=self.out)
        self.piece = _Piece(cut, mine, lambda many, n, dtype: np.empty((many, n), dtype))
        self.rounds = [([], channel.prepare(go, come), [then]) for come, go, then in self.piece.rounds()]
        self.last, self.order = [], cut.order

    def carry_out(self, fold: Fold, x: NpArray, out: NpArray | None) -> None:
        if self.order is None:
            self.x[...] = x
        else:
            blocks = len(self.order), -1
            x.reshape(blocks).take(self.order, 0, self.x.reshape(blocks), "clip")
        self.piece.fold = fold
        self.piece.begin()
        self.run()
        if out is not None:
            out[...] = self.out


class _Parts:
    """What one rank gives, folds and receives.

    Args:
        room: gives memory of at least so many bytes, the same each time; else each array has its own.
    """

    def __init__(self, call: _Given, room: Callable[[int], NpArray | None] | None = None) -> None:
        self.call, comm, self.verb, _, self.fold, self.x, self.out = call, *call
        self.rank, self.size = comm.rank, comm.size
        self.room, self.used = room, 0

    def stages(self, mpi: MPI.Comm, tag: int, most: Callable[[int], int]) -> Stages:
        blocks = self.size if self.verb == "reduce_scatter" else 1
        n = self.x.size // blocks
        longest, made = (ORDER_PREFIX, self._prefix) if self.verb in PREFIXES else (ORDER_PIECE, self._piece)
        if self.verb == "all_gather":
            longest, made = ORDER_PIECE // self.size, self._gather
        step = max(longest // (self.x.itemsize * blocks), self.size)

        def begun(coming: Messages, going: Messages) -> list[MPI.Request]:
            requests = [mpi.Irecv(data, peer, tag) for peer, data in pieces(coming, most)]
            return requests + [mpi.Isend(data, peer, tag) for peer, data in pieces(going, most)]

        if n <= step:  # one piece
            yield from starmap(begun, made(0, n, n))
            return
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
            yield begun(coming, going)

    def _rows(self, many: int, width: int, dtype: np.dtype[Any]) -> NpArray:
        """Memory for others' contributions."""
        low, nbytes = self.used, many * width * dtype.itemsize
        self.used += -(-nbytes // 64) * 64
        room = None if self.room is None else self.room(self.used)
        if room is None:
            return np.empty((many, width), dtype)
        return room[low : low + nbytes].view(dtype).reshape(many, width)

    def _piece(self, low: int, high: int, n: int) -> Iterator[tuple[Messages, Messages]]:
        """The messages of one piece, step by step: what comes, and what goes."""
        piece = _Piece(_Cut(self.call, (low, high, n)), self.call, self._rows)
        piece.begin()
        for coming, going, then in piece.rounds():
            yield coming, going
            then()

    def _gather(self, low: int, high: int, n: int) -> Iterator[tuple[Messages, Messages]]:
        """Each block to those of its node and, once, to each other node; there to all others."""
        assert self.out is not None
        blocks = self.out.reshape(self.size, n)[:, low:high]
        nodes = self.fold.nodes.groups
        near = next(ranks for ranks in nodes if self.rank in ranks)
        at, mates = near.index(self.rank), [q for q in near if q != self.rank]
        holders = [ranks[at % len(ranks)] for ranks in nodes if ranks is not near]  # of this rank's block
        held = {
            holder: [q for ranks in nodes if ranks is not near for q in ranks[i :: len(near)]]
            for i, holder in enumerate(near)
        }
        going = [(q, blocks[self.rank]) for q in mates + holders]
        yield [(q, blocks[q]) for q in mates + held[self.rank]], going
        going = [(mate, blocks[q]) for q in held[self.rank] for mate in mates]
        yield [(mate, blocks[q]) for mate in mates for q in held[mate]], going

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
            self.out[low:high] = self.fold.rounded(wide)
