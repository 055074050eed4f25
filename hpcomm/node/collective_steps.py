"""Steps of shared-memory collectives, operation by operation.

node_collectives.py says what a step is, and which calls go this way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..core.limits import NODE_REDUCE_WHOLE
from ..core.signature import ROOT, VERB, VERBS, head
from ..core.verbs import INPUT_BLOCKS
from .arrival_flags import functions

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ..core.comm import Comm
    from .cells import Tables

    Step = Callable[[Any, Any, int], None]
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["CollectiveSteps", "few", "function"]


class CollectiveSteps:
    """How the verbs go: each makes step(x, out, signature) for pieces of so many elements.

    Where x has a block for each rank, or the result has, it has two axes here, and the first one is the rank.
    """

    def __init__(self, tables: Tables, comm: Comm, code: int, count: int, dtype: np.dtype[Any]) -> None:
        self._tables, self._flags = tables, tables.flags
        self._rank, self._size = comm.rank, comm.size
        self._code, self._root, self._function = code, (code & ROOT) >> 19, function(code)
        self._verb, self._count, self._dtype = VERBS[code & VERB], count, dtype
        self._parts = tables.parts(dtype, (self._size, count) if self._verb in INPUT_BLOCKS else (count,))
        self._others = [rank for rank in range(self._size) if rank != self._rank]

    def broadcast(self) -> Step:
        tables, parts, root = self._tables, self._parts, self._root
        if self._rank != root:
            return self._take([each[root] for each in parts])
        lines = tables.lines

        def lay(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            parts[place][root][...] = x
            lines[place][root][0] = flag

        return lay

    def scatter(self) -> Step:
        tables, parts, root, others = self._tables, self._parts, self._root, self._others
        if self._rank != root:
            return self._take([each[root][self._rank] for each in parts])
        lines = tables.lines

        def cut(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there = parts[place][root]
            for r in others:
                there[r] = x[r]
            lines[place][root][0] = flag
            if out is not None:
                out[...] = x[root]

        return cut

    def _take(self, sources: list[Any]) -> Step:
        """What this rank does where another one writes; sources: what it takes, from either cell."""
        tables, rank, root = self._tables, self._rank, self._root
        lines, look = tables.lines, self._flags.look
        is_all = self._size == 2  # who has seen the root has seen all others

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            lines[place][rank][0] = flag
            line = lines[place][root]
            if line[0] != flag:
                look(line, flag, mine)
            out[...] = sources[place]
            if is_all:
                tables.owed = 0

        return step

    def gather(self) -> Step:
        return self.all_gather() if self._rank == self._root else self._give()

    def reduce(self) -> Step:
        if self._rank != self._root:
            return self._give()
        tables, parts, rank = self._tables, self._parts, self._rank
        fold = self._flags.calmly(self._fold)

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there = [*parts[place]]
            if x is not out:  # else it has to be out of the way before it is written to
                there[rank] = x
            else:
                there[rank][...] = x
            tables.meet(place, flag, mine)
            fold(there, out)

        return step

    def _give(self) -> Step:
        """What this rank does where another one is the root."""
        tables, parts, rank = self._tables, self._parts, self._rank
        lines = tables.lines

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            parts[place][rank][...] = x
            lines[place][rank][0] = flag

        return step

    def all_gather(self) -> Step:
        tables, parts, rank, others = self._tables, self._parts, self._rank, self._others
        is_gather = self._verb == "gather"

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there = parts[place]
            if not is_gather:  # where nobody else needs it
                there[rank][...] = x
            tables.meet(place, flag, mine)
            out[rank] = x
            for r in others:
                out[r] = there[r]

        return step

    def all_to_all(self) -> Step:
        tables, parts, rank, others = self._tables, self._parts, self._rank, self._others

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there = parts[place]
            for r in others:
                there[rank][r] = x[r]
            tables.meet(place, flag, mine)
            out[rank] = x[rank]
            for r in others:
                out[r] = there[r][rank]

        return step

    def reduce_scatter(self) -> Step:
        tables, parts, rank, others = self._tables, self._parts, self._rank, self._others
        fold = self._flags.calmly(self._fold)

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there = parts[place]
            for r in others:
                there[rank][r] = x[r]
            tables.meet(place, flag, mine)
            fold([(x if r == rank else part)[rank] for r, part in enumerate(there)], out)

        return step

    def all_reduce(self) -> Step:
        if self._count * self._dtype.itemsize * self._size > NODE_REDUCE_WHOLE:
            return self._all_reduce_by_blocks()
        tables, parts, rank = self._tables, self._parts, self._rank
        folds = [self._flags.folding(self._function, each) for each in parts]

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            parts[place][rank][...] = x
            tables.meet(place, flag, mine)
            folds[place](out)

        return step

    def _all_reduce_by_blocks(self) -> Step:
        tables, parts, rank, size = self._tables, self._parts, self._rank, self._size
        bounds = [self._count * r // size for r in range(size + 1)]
        blocks = [slice(*pair) for pair in pairwise(bounds)]
        own, others = blocks[rank], [(r, blocks[r]) for r in self._others]
        theirs = [
            each for each in (slice(0, own.start), slice(own.stop, bounds[-1])) if each.start < each.stop
        ]
        fold, look, seconds = self._flags.calmly(self._fold), self._flags.look, tables.seconds

        def step(x: Any, out: Any, mine: int) -> None:
            place, flag = tables.enter(mine)
            there, lines = parts[place], seconds[place]
            for each in theirs:
                there[rank][each] = x[each]
            tables.meet(place, flag, mine)
            folded, target = there[rank][own], out[own]
            if x is out and rank > 1:  # it is reduced after the first two, which must not be there then
                target = folded
            fold([(x if r == rank else part)[own] for r, part in enumerate(there)], target)
            if target is not folded:  # copies take memory from other cores more quickly than reductions do
                folded[...] = target
            lines[rank][0] = step_number = tables.steps
            if target is folded:
                out[own] = folded
            for r, block in others:
                if lines[r][0] != step_number:
                    look(lines[r], step_number, mine)
                out[block] = there[r][block]

        return step

    def turns(self, mine: int) -> list[tuple[Any, ...]]:
        """What a fast path needs for a step of a small broadcast or all_reduce, by its number.

        Both: flag, elements in the own cell or the root's, the same as bytes, own line;
        broadcast: root's line or None, what is owed then; all_reduce: lines of one other and of the rest,
        fold(out). Of few() elements: in place of fold those of the first two ranks as Python reads them, of
        the rest, and fold; of a single one elements, too, as Python reads them.
        """
        tables, parts, rank, root = self._tables, self._parts, self._rank, self._root
        is_fold = self._verb == "all_reduce"
        is_few = self._count <= few(self._verb, self._code, self._dtype)
        folds = [self._flags.folding(self._function, each) for each in parts] if is_fold else []
        found: list[tuple[Any, ...]] = []
        for number, flag in enumerate(tables.raised(mine)):
            place = number & 1
            own, (other, *others) = tables.lines[place][rank], tables.others[place]
            elements = parts[place][rank if is_fold else root]
            is_one = is_few and self._count == 1
            common = flag, elements.data if is_one else elements, elements.view(np.uint8).data, own
            if is_fold and is_few:
                first, second, *rest = [part.data for part in parts[place]]
                found.append((*common, other, others, (first, second, rest, folds[place])))
            elif is_fold:
                found.append((*common, other, others, folds[place]))
            elif rank == root:
                found.append((*common, None, flag))
            else:
                found.append((*common, tables.lines[place][root], flag if others else 0))
        return found

    def _fold(self, parts: list[Any], out: Any) -> None:
        fold = self._function
        fold(parts[0], parts[1], out)
        for part in parts[2:]:
            fold(out, part, out)


def few(verb: str, code: int, dtype: np.dtype[Any]) -> int:
    """How many elements at most Python's own arithmetic serves sooner than numpy's, with the same bits."""
    if verb == "all_reduce":  # a sum of two float32 is rounded once, though first to 53 bits: 53 > 2 * 24 + 1
        return 2 if function(code) is np.add and dtype in (np.float32, np.float64, np.int64) else 0
    # float32 would be widened on the way, and so a NaN that signals changed
    return 1 if dtype.kind in "iu" or dtype == np.float64 else 0


def function(code: int) -> Any:
    """What reduces two arrays, by the code of a call, where numpy reduces as MPI does; None elsewhere."""
    found = functions().get((code & ~VERB & ~ROOT) | head("all_reduce"))
    return None if found is None else found[0]
