"""Small all-reduces of ranks of one node: each lays its elements beside a flag, and folds what all have laid.

    spot of a rank    flag | elements        a cache line or a few, on the board (observe/board.py)

The flag is the signature of the call with a number (flags.py). All ranks fold in the order
of ranks, so all have the same bits. A rank has two spots and uses them in turn: to come to the next but one
call, it has seen everybody's flag of the next, and so nobody reads from this one any more.

That is quicker than MPICH's own; Open MPI's is as quick, so there nobody goes this way. Who waits for
long lets MPI move on meanwhile.
Sums and products of numbers, minima and maxima, and bits of integers. Longer ones: within.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .flags import MARK, RANKS, Flags, functions, is_wanted, numbers
from .observe.board import SPOT
from .signature import signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from .call import Call
    from .communicator import Communicator
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["FIRST", "MOST", "Short"]

FIRST = 1 << 32  # the signature of one element and no operator: none of fewer elements reaches it
MOST = SPOT - 8  # bytes
_KEPT = 256  # kinds of calls


class Short:
    """The short way of one communicator; every call of all_reduce that takes() goes it, on every rank.

    Args:
        spots: of each rank, two of SPOT bytes.

    Attributes:
        number: the next flag's; even ones are on the first of two spots.
    """

    def __init__(self, comm: Communicator, spots: Sequence[memoryview], flags: Flags) -> None:
        self._comm, self._flags = comm, flags
        self._spots = [[spot[:SPOT], spot[SPOT:]] for spot in spots]
        self._lines = [[half.cast("q") for half in halves] for halves in self._spots]
        for rank, lines in enumerate(self._lines):
            for line in lines:
                flags.know(rank, line)
        self.number = numbers()
        self.look = flags.look
        self._known: dict[tuple[int, int], Any] = {}

    @staticmethod
    def pays(size: int) -> bool:
        """Whether so many ranks of one node should go this way."""
        from mpi4py import MPI

        return 1 < size <= RANKS and is_wanted() and MPI.get_vendor()[0] == "MPICH"

    def end(self, code: int) -> int:
        """The signature from which calls of a code are too long for it, or do not go it at all."""
        kind = functions().get(code)
        return 0 if kind is None else (MOST // kind[1].itemsize + 1) << 32

    def takes(self, code: int, count: int) -> bool:
        return FIRST <= (count << 32 | code) < self.end(code)  # signature() drops bits of long ones

    def places(self, code: int, count: int) -> list[tuple[Any, memoryview, list[memoryview], Any]]:
        """For either spot: (own elements, own flag, the others' flags, fold(out)), for count elements."""
        function, dtype = functions()[code]
        rank, found = self._comm.rank, []
        for i in (0, 1):
            parts = [np.frombuffer(pair[i], dtype, count, 8) for pair in self._spots]
            lines = [pair[i] for pair in self._lines]
            others = lines[:rank] + lines[rank + 1 :]
            found.append((parts[rank], lines[rank], others, self._flags.folding(function, parts)))
        return found

    def carry(self, call: Call) -> Callable[[], None]:
        """What carries out a call that was composed, and agreed about, maybe under another code."""
        kind = call.code

        def carry() -> None:
            out = call.recv[0].reshape(-1)
            x = call.send[0].reshape(-1) if type(call.send) is tuple else out
            mine = signature(call.code, call.count)
            known = kind, call.count
            if known not in self._known:
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[known] = self.places(*known)
            number = self.number()
            elements, line, others, fold = self._known[known][number & 1]
            flag = mine | number << MARK
            elements[:] = x
            line[0] = flag
            for other in others:
                if other[0] != flag:
                    self.look(other, flag, mine)
            fold(out)

        return carry
