"""Collectives of ranks of one node, of some KiB to one MiB, through memory that they share.

    table of a rank    two places of: flag | second flag | elements        in a file of /dev/shm without a name

A call is one step, or two. A rank lays what others need of its array on its place and raises its flag, the
signature of the call with its number (flags.py); then it waits for the flags of those whose elements it needs,
and takes or folds them from where they lie. So everything is copied once into a cache near the other cores and
read there once, where MPI cuts messages into pieces for its own queues. Long all-reduces take a second step:
each rank folds a block only, and takes the others' from them. Sums have the same bits on all ranks, since
blocks are folded in the order of ranks.

The two places are used in turn. A rank that comes to a call knows of all others that they have come to the
last one: so they are through with the one before, whose place is used again. After a call in which it waited
for all, it need not ask.

Memory is taken when first needed, all ranks together, and again, four times as much, when a call does not fit.
"""

from __future__ import annotations

import os
from itertools import cycle
from typing import TYPE_CHECKING, Any

from .flags import MARK, RANKS, Flags, functions, is_ordered
from .observe.board import LAPS, share
from .signature import ROOT, VERB, VERBS, head, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from .call import Call
    from .communicator import Communicator

    Way = Callable[[Any, Any, int], None]
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["CUTS", "LEAST", "MOST", "Within"]

LEAST = 4 << 10  # bytes that a rank lays; below, MPI is as quick
MOST = 1 << 20  # above, MPI lets one rank read another's memory, and caches hold no more
_FIRST = 64 << 10  # bytes of a place at first
_HEAD = 128  # bytes before the elements: the two flags, a cache line each
_SECOND = 64  # where the second one stands
_FOLD_ALL = 128 << 10  # bytes of all ranks up to which each folds everything
_KEPT = 256  # ways
CUTS = ("scatter", "reduce_scatter", "all_to_all")  # x has a block for each rank
_FOLDS = ("all_reduce", "reduce", "reduce_scatter")
_VERBS = ("broadcast", "gather", "all_gather", "scatter", "all_to_all", *_FOLDS)


class Within:
    """The way of one communicator, all ranks of which share memory; calls that takes() go it, on every rank."""

    def __init__(self, comm: Communicator, flags: Flags) -> None:
        self._comm, self._flags = comm, flags
        self._room = 0  # bytes of a place
        self._tables: Sequence[np.ndarray[Any, Any]] = ()
        self._ways: dict[tuple[int, int, Any], Way] = {}

    @staticmethod
    def pays(size: int) -> bool:
        """Whether so many ranks of one node should go this way."""
        return 1 < size <= RANKS and is_ordered()

    def takes(self, code: int, count: int) -> bool:
        """Whether calls of that code and number of elements go this way."""
        least, most = self.limits(code)
        return least <= count < most

    def limits(self, code: int) -> tuple[int, int]:
        """From how many elements a call of that code goes this way, and from how many no more."""
        from .dtypes import BY_NAME

        verb = VERBS[code & VERB]
        dtype = next((each for each in BY_NAME.values() if each.code == code >> 11 & 255), None)
        if verb not in _VERBS or dtype is None or (verb in _FOLDS and _function(code) is None):
            return 0, 0
        nbytes = dtype.itemsize * (self._comm.size if verb in CUTS else 1)
        return -(-LEAST // nbytes), MOST // nbytes + 1

    def way(self, code: int, count: int, dtype: np.dtype[Any]) -> Way | None:
        """way(x, out, signature) for flat arrays that takes() is true of; None: there is no room as yet.

        x: what this rank brings, None: nothing. out: what it gets, None: nothing.
        """
        known = code, count, dtype
        if known not in self._ways:
            if self._room < self._laid(code, count, dtype):
                return None
            if len(self._ways) >= _KEPT:
                self._ways.clear()
            make = getattr(_Ways(self, code, count, dtype), VERBS[code & VERB])
            self._ways[known] = make()
        return self._ways[known]

    def carry(self, call: Call, library: Callable[[Call], None]) -> Callable[[], None]:
        """What carries out a call that was composed, and agreed about, maybe under another code.

        library: carries it out where there is no memory for it.
        """
        code = call.code

        def carry() -> None:
            x, out, dtype = _arrays(call)
            count = call.count * call.look.dtype.itemsize // dtype.itemsize
            way = self.way(code, count, dtype)
            if way is None and self._make_room(self._laid(code, count, dtype)):
                way = self.way(code, count, dtype)
            if way is None:
                library(call)
            else:
                way(x, out, signature(call.code, call.count))

        return carry

    def _laid(self, code: int, count: int, dtype: np.dtype[Any]) -> int:
        """Bytes of a place that a call takes at most."""
        return count * dtype.itemsize * (self._comm.size if VERBS[code & VERB] in CUTS else 1)

    def _make_room(self, nbytes: int) -> bool:
        """Take memory for places of so many bytes, all ranks together; false: there is none, on any rank."""
        room = _FIRST
        while room < nbytes:
            room *= 4
        comm, own = self._comm, 2 * (_HEAD + room)
        self._ways.clear()
        comm._drop_lanes()
        shared = share(comm.mpi, own, reserve=True)
        if shared is None:
            comm._within = None
            return False
        memory, file = shared
        os.close(file)
        whole = np.frombuffer(memory, np.uint8)
        self._tables = [whole[rank * own : (rank + 1) * own] for rank in range(comm.size)]
        self._room = room
        halves = [[memoryview(table[k * (_HEAD + room) :][:_HEAD]) for table in self._tables] for k in (0, 1)]
        self.lines = [[half[:8].cast("q") for half in each] for each in halves]
        self.seconds = [[half[_SECOND : _SECOND + 8].cast("q") for half in each] for each in halves]
        for rank in range(comm.size):
            first, second = self.lines[0][rank], self.lines[1][rank]
            self._flags.know(rank, first, second)
            self._flags.know(rank, second, first)
            for seconds in self.seconds:
                self._flags.know(rank, seconds[rank])
        rank = comm.rank
        self._others = [each[:rank] + each[rank + 1 :] for each in self.lines]
        self._number = cycle(range(LAPS)).__next__
        self._place, self._flag, self._all_came = 0, 0, True
        return True

    # -- what ways are made of ---------------------------------------------------------------------------

    def parts(self, dtype: np.dtype[Any], count: int) -> list[list[np.ndarray[Any, Any]]]:
        """The elements of all ranks, on either place."""
        starts = [k * (_HEAD + self._room) + _HEAD for k in (0, 1)]
        nbytes = count * dtype.itemsize
        return [[table[at : at + nbytes].view(dtype) for table in self._tables] for at in starts]

    def enter(self, mine: int) -> tuple[int, int]:
        """Come to a call; returns which place it has, and its flag."""
        before, self._place = self._place, 1 - self._place
        if not self._all_came:
            for line in self._others[before]:
                if line[0] != self._flag:
                    self._flags.look(line, self._flag, mine)
        self._flag = mine | self._number() << MARK
        self._all_came = False
        return self._place, self._flag

    def meet(self, place: int, flag: int, mine: int) -> None:
        """Raise the flag, and wait for everybody's."""
        self.lines[place][self._comm.rank][0] = flag
        for line in self._others[place]:
            if line[0] != flag:
                self._flags.look(line, flag, mine)
        self._all_came = True


class _Ways:
    """How the verbs go: each makes way(x, out, signature) for arrays of a number and type of elements."""

    def __init__(self, within: Within, code: int, count: int, dtype: np.dtype[Any]) -> None:
        self._within, self._flags = within, within._flags
        self._rank, self._size = within._comm.rank, within._comm.size
        self._root, self._function = (code & ROOT) >> 19, _function(code)
        self._count, self._dtype = count, dtype
        self._is_gather = VERBS[code & VERB] == "gather"
        blocks = self._size if VERBS[code & VERB] in CUTS else 1
        self._parts = within.parts(dtype, count * blocks)
        self._blocks = [slice(rank * count, (rank + 1) * count) for rank in range(self._size)]

    def broadcast(self) -> Way:
        within, parts, rank, root = self._within, self._parts, self._rank, self._root
        lines, look = within.lines, self._flags.look

        def lay(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            parts[place][root][:] = x
            lines[place][root][0] = flag

        def take(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            lines[place][rank][0] = flag
            line = lines[place][root]
            if line[0] != flag:
                look(line, flag, mine)
            out[:] = parts[place][root]

        return lay if rank == root else take

    def scatter(self) -> Way:
        within, parts, rank, root = self._within, self._parts, self._rank, self._root
        lines, look, block = within.lines, self._flags.look, self._blocks[rank]
        lay = self._lay_for_others()

        def cut(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            lay(parts[place][root], x)
            lines[place][root][0] = flag
            if out is not None:
                out[:] = x[block]

        def take(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            lines[place][rank][0] = flag
            line = lines[place][root]
            if line[0] != flag:
                look(line, flag, mine)
            out[:] = parts[place][root][block]

        return cut if rank == root else take

    def gather(self) -> Way:
        return self.all_gather() if self._rank == self._root else self._give()

    def reduce(self) -> Way:
        if self._rank != self._root:
            return self._give()
        within, parts, rank = self._within, self._parts, self._rank
        fold = self._flags.calmly(self._fold)

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            there = [*parts[place]]
            if x is not out:  # else it has to be out of the way before it is written to
                there[rank] = x
            else:
                there[rank][:] = x
            within.meet(place, flag, mine)
            fold(there, out)

        return way

    def _give(self) -> Way:
        """What this rank does where another one is the root."""
        within, parts, rank = self._within, self._parts, self._rank
        lines = within.lines

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            parts[place][rank][:] = x
            lines[place][rank][0] = flag

        return way

    def all_gather(self) -> Way:
        within, parts, rank, blocks = self._within, self._parts, self._rank, self._blocks
        others = [(r, block) for r, block in enumerate(blocks) if r != rank]
        own, is_gather = blocks[rank], self._is_gather

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            there = parts[place]
            if not is_gather:  # where nobody else needs it
                there[rank][:] = x
            within.meet(place, flag, mine)
            out[own] = x
            for r, block in others:
                out[block] = there[r]

        return way

    def all_to_all(self) -> Way:
        within, parts, rank, blocks = self._within, self._parts, self._rank, self._blocks
        others = [(r, block) for r, block in enumerate(blocks) if r != rank]
        own, lay = blocks[rank], self._lay_for_others()

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            there = parts[place]
            lay(there[rank], x)
            within.meet(place, flag, mine)
            out[own] = x[own]
            for r, block in others:
                out[block] = there[r][own]

        return way

    def reduce_scatter(self) -> Way:
        within, parts, rank = self._within, self._parts, self._rank
        own, lay = self._blocks[rank], self._lay_for_others()
        fold = self._flags.calmly(self._fold)

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            there = parts[place]
            lay(there[rank], x)
            within.meet(place, flag, mine)
            fold([(x if r == rank else part)[own] for r, part in enumerate(there)], out)

        return way

    def all_reduce(self) -> Way:
        if self._count * self._dtype.itemsize * self._size > _FOLD_ALL:
            return self._all_reduce_by_blocks()
        within, parts, rank = self._within, self._parts, self._rank
        folds = [self._flags.folding(self._function, each) for each in parts]

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            parts[place][rank][:] = x
            within.meet(place, flag, mine)
            folds[place](out)

        return way

    def _all_reduce_by_blocks(self) -> Way:
        within, parts, rank, size = self._within, self._parts, self._rank, self._size
        bounds = [self._count * r // size for r in range(size + 1)]
        blocks = [slice(*pair) for pair in zip(bounds, bounds[1:], strict=False)]
        own, lay = blocks[rank], self._lay_for_others(blocks)
        others = [(r, block) for r, block in enumerate(blocks) if r != rank]
        fold, look, seconds = self._flags.calmly(self._fold), self._flags.look, within.seconds

        def way(x: Any, out: Any, mine: int) -> None:
            place, flag = within.enter(mine)
            there, lines = parts[place], seconds[place]
            lay(there[rank], x)
            within.meet(place, flag, mine)
            folded = there[rank][own]
            fold([(x if r == rank else part)[own] for r, part in enumerate(there)], folded)
            lines[rank][0] = flag
            out[own] = folded
            for r, block in others:
                if lines[r][0] != flag:
                    look(lines[r], flag, mine)
                out[block] = there[r][block]

        return way

    def _lay_for_others(self, blocks: list[slice] | None = None) -> Callable[[Any, Any], None]:
        """lay(place, x) of all blocks but one's own."""
        own = (blocks or self._blocks)[self._rank]
        end = (blocks or self._blocks)[-1].stop
        pieces = [slice(0, own.start), slice(own.stop, end)]
        pieces = [piece for piece in pieces if piece.stop > piece.start]

        def lay(place: Any, x: Any) -> None:
            for piece in pieces:
                place[piece] = x[piece]

        return lay

    def _fold(self, parts: list[Any], out: Any) -> None:
        function = self._function
        function(parts[0], parts[1], out)
        for part in parts[2:]:
            function(out, part, out)


def _function(code: int) -> Any:
    """What folds two arrays where numpy folds as MPI does; None elsewhere."""
    found = functions().get((code & ~VERB & ~ROOT) | head("all_reduce"))
    return None if found is None else found[0]


def _arrays(call: Call) -> tuple[Any, Any, np.dtype[Any]]:
    """What this rank brings and gets, as way() has it, and the type of elements."""
    x = call.send[0].reshape(-1) if type(call.send) is tuple else None
    out = call.recv[0].reshape(-1) if type(call.recv) is tuple else None
    some = x if x is not None else out
    if call.send is not None and x is None:  # in place
        x = out if call.verb in _FOLDS else out.reshape(call.comm.size, -1)[call.comm.rank]
    if call.verb == "broadcast":
        x = out
    return x, out, some.dtype
