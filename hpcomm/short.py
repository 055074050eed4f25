"""Small all-reduces of ranks of one node: each lays its elements beside a flag, and folds what all have laid.

    spot of a rank    flag | elements        a cache line or a few, on the board (observe/board.py)

The flag is the signature of the call with its place in the ring, so who has seen it knows two things: that
the elements are there, and that the other rank makes the same call. All ranks fold in the order of ranks,
so all have the same bits. A rank has two spots and uses them in turn: to come to the next but one call,
it has seen everybody's flag of the next, and so nobody reads from this one any more.

That is quicker than MPICH's own; Open MPI's is quicker still, so there nobody goes this way. Who waits for
long lets MPI move on meanwhile.
Sums and products of numbers, minima and maxima, and bits of integers.
"""

from __future__ import annotations

import os
import time
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from .errors import MismatchError, where
from .observe.board import LAPS, SPOT, last_call
from .signature import head, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from .call import Call
    from .communicator import Communicator
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["FIRST", "MARK", "MOST", "Short"]

FIRST = 1 << 32  # the signature of one element and no operator: none of fewer elements reaches it
MARK = 50  # bit of a flag from which the place in the ring stands; the elements are fewer than reach it
MOST = SPOT - 8  # bytes
_RANKS = 16  # each reads of all
_ORDERED = ("x86_64", "AMD64")  # stores are seen in order there; nothing in Python could see to it elsewhere
_LOOKS = 300  # before a rank lets others have its core; a few where they are more than cores
_FEW = 10
_MPI_TURNS, _CHECK_TURNS = 16, 512  # of waiting, between two moves of MPI, and two looks for a reason
_YIELDING_S = 1e-3  # of waiting with open eyes; then it sleeps, a little longer each time
_SLEEP_S = 2e-4


@lru_cache(maxsize=1)
def _kinds() -> dict[int, tuple[Any, Any]]:
    """By the code of a call: (numpy's function, dtype), where numpy and MPI fold alike."""
    from . import reduction
    from .dtypes import BY_NAME

    functions = {
        "sum": np.add, "prod": np.multiply,
        "min": lambda a, b, out: np.minimum(a, b, out=out),  # numpy wants the keyword there, which is slower
        "max": lambda a, b, out: np.maximum(a, b, out=out),
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    found = {}
    for dtype in BY_NAME.values():
        names = {"i": list(functions), "u": list(functions), "f": ["sum", "prod", "min", "max"], "c": ["sum"]}
        for name in names.get(dtype.kind, []) if dtype.mpi is not None else []:
            fold = reduction.resolve(name, dtype)
            if fold.up is None and fold.finish is None:
                found[head("all_reduce", fold.code, dtype.code)] = functions[name], np.dtype(dtype.storage)
    return found


class Short:
    """The short way of one communicator; every call of all_reduce that takes() goes it, on every rank.

    Args:
        spots: of each rank, two of SPOT bytes.
        ring: this rank's, on the board; suspect: raises if the other ranks do something else, or have ended.

    Attributes:
        flip: which of the two is next.
    """

    def __init__(
        self,
        comm: Communicator,
        spots: Sequence[memoryview],
        ring: memoryview,
        suspect: Callable[[int], None],
    ) -> None:
        self._comm, self._ring, self._suspect = comm, ring, suspect
        self._spots = [[spot[:SPOT], spot[SPOT:]] for spot in spots]
        self._lines = [[half.cast("q") for half in halves] for halves in self._spots]
        self._other = {id(pair[i]): pair[1 - i] for pair in self._lines for i in (0, 1)}
        self.flip = cycle((0, 1)).__next__
        self._looks = range(_FEW if comm.size > len(os.sched_getaffinity(0)) else _LOOKS)
        self._context: Any = None

    @staticmethod
    def pays(size: int) -> bool:
        """Whether so many ranks of one node should go this way."""
        from mpi4py import MPI

        fits = 1 < size <= _RANKS and os.uname().machine in _ORDERED
        return fits and MPI.get_vendor()[0] == "MPICH"

    def end(self, code: int) -> int:
        """The signature from which calls of a code are too long for it, or do not go it at all."""
        kind = _kinds().get(code)
        return 0 if kind is None else (MOST // kind[1].itemsize + 1) << 32

    def takes(self, code: int, count: int) -> bool:
        return FIRST <= (count << 32 | code) < self.end(code)  # signature() drops bits of long ones

    def places(self, code: int, count: int) -> list[tuple[Any, memoryview, list[memoryview], Any]]:
        """For either spot: (own elements, own flag, the others' flags, fold(out)), for count elements."""
        function, dtype = _kinds()[code]
        rank, found = self._comm.rank, []
        for i in (0, 1):
            parts = [np.frombuffer(pair[i], dtype, count, 8) for pair in self._spots]
            lines = [pair[i] for pair in self._lines]
            others = lines[:rank] + lines[rank + 1 :]
            found.append((parts[rank], lines[rank], others, self._folding(function, parts)))
        return found

    def _folding(self, function: Any, parts: list[Any]) -> Callable[[Any], Any]:
        """What folds parts into out, without numpy's warnings: MPI has none."""

        def fold(out: Any) -> None:
            function(parts[0], parts[1], out)
            for part in parts[2:]:
                function(out, part, out)

        if int(np.__version__.partition(".")[0]) < 2:  # whose settings are the thread's, not the context's
            return np.errstate(all="ignore")(fold)
        if self._context is None:
            self._context = copy_context()
            self._context.run(np.seterr, all="ignore")
        if len(parts) == 2:
            return partial(self._context.run, function, *parts)
        return partial(self._context.run, fold)

    def carry(self, call: Call) -> Callable[[], None]:
        """What carries out a call that was composed, and agreed about, maybe under another code."""
        kind = call.code

        def carry() -> None:
            out = call.recv[0].reshape(-1)
            x = call.send[0].reshape(-1) if type(call.send) is tuple else out
            mine = signature(call.code, call.count)
            elements, line, others, fold = self.places(kind, call.count)[self.flip()]
            flag = mine | last_call(self._ring) % LAPS << MARK
            elements[:] = x
            line[0] = flag
            for other in others:
                if other[0] != flag:
                    self.look(other, flag, mine)
            fold(out)

        return carry

    def look(self, line: memoryview, flag: int, mine: int) -> None:
        """Wait for a flag.

        Raises:
            MismatchError: the rank makes another call. PeerFailedError: it has ended.
        """
        for _ in self._looks:
            if line[0] == flag:
                return
        begin, turns = time.monotonic(), 0
        while line[0] != flag:
            turns += 1
            if not turns % _MPI_TURNS:
                self._comm.mpi.Iprobe()
            if not turns % _CHECK_TURNS:
                self._check(line, flag, mine)
            waited = time.monotonic() - begin
            if waited < _YIELDING_S:
                os.sched_yield()
            else:
                time.sleep(min(waited / 50, _SLEEP_S))

    def _check(self, line: memoryview, flag: int, mine: int) -> None:
        self._suspect(mine)
        if self._other[id(line)][0] == flag:
            raise MismatchError(
                f"the ranks of '{self._comm.name}' are out of step since they disagreed about a call",
                where("all_reduce", self._comm),
                "after a MismatchError close the communicator, and make a new one",
            )
