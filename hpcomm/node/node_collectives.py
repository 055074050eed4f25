"""Collectives between ranks of one node, through shared memory.

    cells of a rank    two small ones: flag | elements              in the node segment (segment.py)
                       two large ones: flag | second flag | elements in a file of /dev/shm without a name

A call is one step, or two. A rank writes what others need of its array into its cell and sets its arrival
flag, the signature of the call with its number (arrival_flags.py). Then it waits for the flags of those whose
elements it needs, and copies or reduces them from where they are. So all is copied once, and read once from
the cache of another core, where MPI cuts messages into pieces for its own queues. Long all-reduces take a
second step: each rank reduces one block only, and takes the other blocks from the others. Sums have the same
bits on all ranks, since they are made in the order of ranks.

The two cells are used in turn. A rank that comes to a call first sees that all others have come to the last
one (deferred acknowledgement): so they are through with the one before, whose cell is used again. After a
call in which it waited for all, it need not look.

Small cells are there from the beginning. Large ones are taken when first needed, all ranks together, and
larger ones when a longer call comes. Calls that are longer still go in pieces, one after the other. Where
there is no memory, MPI carries them, and of long ones those that it carries more quickly (autotune.py).
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..core.limits import (
    NODE_FIRST_CELL,
    NODE_LEAST,
    NODE_LEAST_OF_BLOCKS,
    NODE_MEMORY,
    NODE_MOVED_PIECE,
    NODE_PIECE,
)
from ..core.signature import ROOT, VERB, VERBS, signature
from ..core.verbs import INPUT_BLOCKS, OUTPUT_BLOCKS, PREFIXES, REDUCTIONS, TABLE
from . import autotune
from .arrival_flags import RANKS, is_wanted
from .autotune import Autotuner
from .cells import Tables, large, table_bytes
from .collective_steps import CollectiveSteps, function
from .segment import share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ..core.comm import Comm
    from ..core.dtypes import Dtype
    from ..core.operation import Call
    from .arrival_flags import Suspect
    from .collective_steps import Step

__all__ = ["NodeCollectives"]

# Above, MPI lets ranks read from each other's arrays, which saves a copy that no other rank shares.
_MOST = {"scatter": 2 << 20, "all_to_all": 2 << 20, "all_gather": 8 << 20}
_KEPT = 256  # ways, and limits
_VERBS = tuple(verb for verb in TABLE if verb != "barrier" and verb not in PREFIXES)
_SMALL = ("all_reduce", "broadcast")  # those that go this way from one element on,
_SMALL_BY = {  # or more, where MPI is slower
    "MPICH": ("barrier", *(verb for verb in _VERBS if verb != "reduce_scatter")),
}

_taken = 0  # of NODE_MEMORY


class NodeCollectives:
    """Shared-memory collectives of one communicator. Calls that takes() go this way, on every rank.

    Args:
        suspect: see Tables.
        places: the small ones of each rank; None: there are none.

    Attributes:
        small: tables of the small cells.
    """

    def __init__(
        self, comm: Comm, suspect: Suspect | None, places: Sequence[Sequence[memoryview]] | None
    ) -> None:
        self._comm, self._suspect = comm, suspect
        self.small = Tables(comm, places, suspect) if places else None
        self._large: Tables | None = None
        self._is_small_only = False  # since there was no memory for large ones
        self._ways: dict[tuple[int, int, Any], Step] = {}
        self._limits: dict[int, tuple[int, int]] = {}
        self._contests: dict[tuple[int, int], Autotuner | None] = {}

    @staticmethod
    def pays(size: int) -> bool:
        """Whether so many ranks of one node should go this way."""
        return 1 < size <= RANKS and is_wanted()

    def takes(self, code: int, count: int) -> bool:
        """Whether calls of that code and number of elements go this way."""
        least, end = self.limits(code)
        return least <= count < end

    def limits(self, code: int) -> tuple[int, int]:
        """From how many elements a call of that code goes this way, and from how many no more."""
        if code not in self._limits:
            if len(self._limits) >= _KEPT:
                self._limits.clear()
            self._limits[code] = self._find_limits(code)
        return self._limits[code]

    def _find_limits(self, code: int) -> tuple[int, int]:
        verb, dtype = VERBS[code & VERB], _dtype(code)
        if verb not in _VERBS or dtype is None or (verb in REDUCTIONS and function(code) is None):
            return 0, 0
        nbytes = dtype.itemsize * (self._comm.size if verb in INPUT_BLOCKS else 1)
        least = NODE_LEAST_OF_BLOCKS if verb in INPUT_BLOCKS else NODE_LEAST
        most = _MOST.get(verb, sys.maxsize)
        if self.small is not None and verb in _SMALL_BY.get(vendor(), _SMALL):
            least = 1
        if self._is_small_only:
            assert self.small is not None
            most = self.small.room
        return -(-least // nbytes), most // nbytes + 1

    def small_end(self, code: int) -> int:
        """From how many elements on a fast path leaves a broadcast or all_reduce of that code to way()."""
        least, end = self.limits(code)
        dtype = _dtype(code)
        if self.small is None or dtype is None or least != 1:
            return 0
        return min(end, self.small.room // dtype.itemsize + 1)

    @property
    def has_barrier(self) -> bool:
        """Whether barriers go this way."""
        return self.small is not None and "barrier" in _SMALL_BY.get(vendor(), _SMALL)

    def barrier(self, mine: int) -> None:
        """Wait until all have come. mine: the signature."""
        assert self.small is not None
        place, flag = self.small.enter(mine)
        self.small.meet(place, flag, mine)

    def turns(self, code: int, count: int, dtype: np.dtype[Any], mine: int) -> list[tuple[Any, ...]]:
        """See Steps; for small calls, with this signature."""
        assert self.small is not None
        return CollectiveSteps(self.small, self._comm, code, count, dtype).turns(mine)

    def way(self, code: int, count: int, dtype: np.dtype[Any]) -> Step | None:
        """way(x, out, signature) for flat arrays that takes() is true of; None: there is no room as yet.

        x: what this rank brings, None: nothing. out: what it gets, None: nothing.
        """
        known = code, count, dtype
        if known not in self._ways:
            laid = self._laid(code, count, dtype)
            is_small = self.small is not None and laid <= self.small.room
            tables = self.small if is_small else self._large
            if tables is None or tables.room < laid:
                return None
            if len(self._ways) >= _KEPT:
                self._ways.clear()
            self._ways[known] = self._make(tables, code, count, dtype)
        return self._ways[known]

    def contest(self, code: int, count: int) -> Autotuner | None:
        """That of calls like this one; None: they go this way anyhow."""
        known = code & ~ROOT, count.bit_length()
        if known not in self._contests:
            dtype = _dtype(code)
            blocks = self._comm.size if VERBS[code & VERB] in INPUT_BLOCKS | OUTPUT_BLOCKS else 1
            is_long = dtype is not None and blocks * dtype.itemsize << known[1] > autotune.LEAST
            may_change = is_long and _is_exact(code, self._comm.size)
            self._contests[known] = Autotuner(self._comm.mpi_handle) if may_change else None
        return self._contests[known]

    def carry(self, call: Call, library: Callable[[Call], None]) -> Callable[[], None]:
        """What carries out a call that was composed, and agreed about, maybe under another code.

        library: carries it out where there is no memory for it.
        """
        code, count = call.code, call.count

        def ours() -> None:
            x, out, dtype = _arrays(call)
            way = self.way(code, count, dtype)
            if way is None and self._make_room(self._laid(code, count, dtype)):
                way = self.way(code, count, dtype)
            if way is None:
                library(call)
            else:
                way(x, out, signature(call.code, call.count))

        rival = self.contest(code, count)
        return ours if rival is None else lambda: rival.carry(ours, lambda: library(call))

    def close(self) -> None:
        """Give the memory back, as soon as nobody looks at it any more."""
        global _taken
        if self._large is not None:
            _taken -= table_bytes(self._large.room)
            self._large = None
            self._ways.clear()

    def _make(self, tables: Tables, code: int, count: int, dtype: np.dtype[Any]) -> Step:
        comm, verb = self._comm, VERBS[code & VERB]
        has_rows, gets_rows = verb in INPUT_BLOCKS, verb in OUTPUT_BLOCKS
        bounds = [*range(0, count, _piece(verb, comm.size) // dtype.itemsize), count]
        lengths = {high - low for low, high in pairwise(bounds)}
        steps = {n: getattr(CollectiveSteps(tables, comm, code, n, dtype), verb)() for n in lengths}
        first: Step = steps[bounds[1]]

        def way(x: Any, out: Any, mine: int) -> None:
            is_in_place = x is out
            if has_rows and x is not None:
                x = x.reshape(comm.size, count)
            if gets_rows and out is not None:
                out = out.reshape(comm.size, count)
            if len(bounds) == 2:
                first(x, out, mine)
                return
            for low, high in pairwise(bounds):
                part = None if x is None else x[..., low:high]
                target = part if is_in_place else None if out is None else out[..., low:high]
                steps[high - low](part, target, mine)

        return way if has_rows or gets_rows or len(bounds) > 2 else first

    def _laid(self, code: int, count: int, dtype: np.dtype[Any]) -> int:
        """Bytes of a cell that a call takes at most."""
        verb, size = VERBS[code & VERB], self._comm.size
        return min(count * dtype.itemsize, _piece(verb, size)) * (size if verb in INPUT_BLOCKS else 1)

    def _make_room(self, nbytes: int) -> bool:
        """Take memory for cells of so many bytes, all ranks together; false: there is none, on any rank."""
        global _taken
        comm, room = self._comm, NODE_FIRST_CELL if nbytes <= NODE_FIRST_CELL else NODE_PIECE
        own = table_bytes(room)
        self.close()
        comm.drop_fastpaths()  # which know the old tables
        shared = (
            None if comm.any_rank(_taken + own > NODE_MEMORY) else share(comm.mpi_handle, own, reserve=own)
        )
        if shared is None:
            self._is_small_only = True
            self._limits.clear()
            comm.node_collectives = self if self.small is not None else None
            return False
        memory, file = shared
        os.close(file)
        _taken += own
        self._large = large(comm, memory, room, self._suspect)
        return True


def vendor() -> str:
    """Whose MPI it is."""
    from mpi4py import MPI

    return MPI.get_vendor()[0]


def _dtype(code: int) -> Dtype | None:
    from ..core.dtypes import BY_NAME

    return next((each for each in BY_NAME.values() if each.code == code >> 11 & 255), None)


def _is_exact(code: int, size: int) -> bool:
    """Whether the result is the same to the bit whatever the order in which arrays are reduced."""
    from ..core.reduction import NAMES

    dtype, op = _dtype(code), code >> 6 & 31
    if VERBS[code & VERB] not in REDUCTIONS or (dtype is not None and dtype.kind in "iu"):
        return True
    return size == 2 and op in map(NAMES.index, ("sum", "avg", "prod"))


def _piece(verb: str, size: int) -> int:
    """Bytes of a rank, or of one block, that are written at a time."""
    if verb in INPUT_BLOCKS:
        return NODE_PIECE // size // 64 * 64
    return NODE_PIECE if verb == "all_reduce" else NODE_MOVED_PIECE


def _arrays(call: Call) -> tuple[Any, Any, np.dtype[Any]]:
    """What this rank brings and gets, as way() has it, and the type of elements."""
    x, out = _flat(call.send), _flat(call.recv)
    dtype: np.dtype[Any] = (out if x is None else x).dtype
    if call.verb == "broadcast":
        x = out
    elif call.send is not None and x is None:  # in place
        x = out if call.verb in REDUCTIONS else out.reshape(call.comm.size, -1)[call.comm.rank]
    return x, out, dtype


def _flat(spec: Any) -> Any:
    """The array that MPI would be told of, with one axis; None for MPI.IN_PLACE, or nothing."""
    if type(spec) is not tuple:
        return None
    array = spec[0]
    return array if array.ndim == 1 else array.reshape(-1)
