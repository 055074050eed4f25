"""Reductions of floats in the order of ranks: the same bits whatever way a call takes.

    within a node    ((x0 op x1) op x2) ...              from the left, halves in float32
    between nodes    ((node0 op node1) op node2) ...     by their first ranks; halves rounded once, at the end
    of two groups    as within a node                    what the other group gives, whichever nodes it is on

That is how the native core reduces. MPI's own order depends on the library, the number of elements and where
an element stands. So beside the core the contributions themselves travel, and are reduced here: whole ones,
where that is little, else a part by each rank (scheduled/ordered_blocks.py). On two ranks MPI's sums have the
same bits. Of 0.0 and -0.0, min and max take that of the later rank; by MPICH each rank may get another one.
Whole numbers and truth values do not depend on an order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import MPI, LazyModule
from ..agree import runtime
from ..core.limits import (
    GATHERED_FAR,
    GATHERED_RANKS,
    ORDER_ALONE_FAR,
    ORDER_BACKGROUND,
    ORDER_GATHERED,
    ORDER_GATHERED_FAR,
)
from ..core.ufuncs import UFUNCS
from ..node import segment

if TYPE_CHECKING:
    from ..core.comm import Comm
    from ..core.dtypes import Dtype
    from ..core.reduction import Reduction
    from ..core.types import NpArray
    from ..schedule import exact
else:
    exact = LazyModule("hpcomm.schedule.exact")

_OPS = ("SUM", "PROD", "MIN", "MAX")
MOVES = {  # what brings the contributions together
    "reduce": "gather",
    "all_reduce": "all_gather",
    "scan": "all_gather",
    "exscan": "all_gather",
    "reduce_scatter": "all_to_all",
}
_RINGS = {"MPICH"}  # whose all_gather crosses more often between nodes than it must
_SHORT = 32  # elements, up to which numpy's own loop over contributions is quicker


def applies(comm: Comm, reduce: Reduction, dtype: Dtype) -> bool:
    """Whether a reduction has to keep the order of ranks itself: the same on all ranks."""
    if comm.is_fast or dtype.kind not in "hfc" or reduce.mpi_op not in _OPS:
        return False
    if comm.is_inter:
        return max(comm.size, comm.remote_size) > 1
    is_alike = reduce.mpi_op == "SUM" or (reduce.mpi_op == "PROD" and dtype.kind == "f")
    return comm.size > (2 if is_alike and dtype.kind != "h" else 1)


class Nodes:
    """Which ranks share a node; waited for as an MPI request is.

    A rank knows those of its own. The others are asked for once, at the first call, which waits for nobody.

    Attributes:
        is_one: there is one.
        groups: the ranks of each node, by their first ones; empty until it is known.
        has_said: that some calls do not keep the order.
    """

    has_said = False

    def __init__(self, comm: Comm, near: list[int]) -> None:
        self.is_one = len(near) == comm.size
        self.groups = [near] if self.is_one else []
        self._first, self._firsts = np.array(near[:1], np.int32), np.empty(comm.size, np.int32)
        self._asked: MPI.Request | None = None
        self._asking = Lock()  # one thread at a time

    def meet(self, mpi: MPI.Comm) -> None:
        """Ask, if nobody has; once all ranks are known to make the same call."""
        if not self.groups and self._asked is None:
            self._asked = mpi.Iallgather(self._first, self._firsts)

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        with self._asking:
            if not self.groups and self._asked is not None and self._asked.Test():
                firsts = self._firsts.tolist()
                self.groups = [[r for r, its in enumerate(firsts) if its == i] for i in sorted({*firsts})]
        return bool(self.groups)

    def Wait(self, status: object = None) -> None:  # noqa: N802
        while not self.Test():
            pass


def nodes_of(comm: Comm) -> Nodes:
    if comm.ranks_by_node is None:
        comm.ranks_by_node = Nodes(comm, segment.ranks_here(comm.mpi_handle))
    return comm.ranks_by_node  # type: ignore[no-any-return]


def is_gathered_by_nodes(comm: Comm, nbytes: int) -> bool:
    """Whether an all_gather of blocks of nbytes crosses to each node once, and is not left to MPI.

    MPICH's own goes around a ring of ranks, or doubles what each has: of 2 nodes of 2 ranks that is 1.5
    or 2 times as much.
    """
    if comm.is_inter or not 2 < comm.size <= GATHERED_RANKS or nbytes * comm.size < GATHERED_FAR:
        return False
    return MPI.get_vendor()[0] in _RINGS and not nodes_of(comm).is_one


def is_too_long(comm: Comm, nbytes: int, waits: bool) -> bool:
    """Whether contributions of nbytes cannot travel whole where nothing else can keep the order.

    Then MPI's own order is taken, and the first rank says so, once.
    """
    if nbytes * max(comm.size, comm.remote_size) <= ORDER_BACKGROUND:
        return False
    if not comm.is_inter and (waits or not _has_no_rounds() or nodes_of(comm).is_one):
        return False
    if comm.rank == 0 and not nodes_of(comm).has_said:
        nodes_of(comm).has_said = True
        how = "" if comm.is_inter else " in the background"
        what = f"reductions of {nbytes} bytes on '{comm.name}'{how} are in {MPI.get_vendor()[0]}'s order"
        better = "parts of the array" if comm.is_inter else "a blocking call"
        hint = f'{better}, in the order of ranks; comm.order = "fast" takes this one for all'
        runtime.say(f"{what}\n  try: {hint}")
    return True


def _has_no_rounds() -> bool:
    """Over TCP Open MPI 5.0 may make no progress for ever where one thread of a process waits in it while
    another one moves the rounds of parts on."""
    return MPI.get_vendor()[0] == "Open MPI"


def is_whole(comm: Comm, verb: str, nbytes: int, waits: bool = True) -> bool:
    """Whether whole contributions travel, nbytes each; in the background that is one request of MPI's.

    Args:
        waits: the caller waits for it, and needs no thread.
    """
    if comm.is_inter:
        return True  # there are no messages between the ranks of a group
    is_one = nodes_of(comm).is_one
    if not (waits or is_one) and _has_no_rounds() and nbytes * comm.size <= ORDER_BACKGROUND:
        return True
    if verb == "reduce_scatter" and is_one:
        return True  # what travels is what MPI would move
    if is_one:
        return nbytes * comm.size <= ORDER_GATHERED
    return nbytes < ORDER_ALONE_FAR and nbytes * comm.size <= ORDER_GATHERED_FAR


class Fold:
    """How contributions are reduced, on this rank.

    is_flat: as if all ranks were on one node. code: of their elements.
    """

    def __init__(self, comm: Comm, reduce: Reduction, dtype: Dtype, is_flat: bool = False) -> None:
        self.reduce, self.ranks = reduce, comm.remote_size if comm.is_inter else comm.size
        self.code, is_flat = dtype.code, is_flat or comm.is_inter
        self.nodes = Nodes(comm, [*range(comm.size)]) if is_flat else nodes_of(comm)
        self.mpi = comm.mpi_handle
        self._op: Any = UFUNCS[reduce.mpi_op]
        if dtype.kind == "c" and reduce.mpi_op == "PROD":
            self._op = _multiply
        self.is_wide = (
            reduce.op.factor is not None
        )  # contributions are multiplied, and travel as they are then

    def meet(self, mpi: MPI.Comm) -> None:
        """To be called once the ranks have agreed about the call, before anything travels."""
        self.nodes.meet(mpi)

    def then(self, function: Callable[[], Any]) -> Any:
        """Meet, and call a function of the communicator's MPI."""
        self.meet(self.mpi)
        return function()

    def total(self, rows: NpArray) -> NpArray:
        """What all ranks have brought, a row each, reduced. The rows are written to."""
        groups = self.nodes.groups
        if not groups:
            self.nodes.Wait()
            groups = self.nodes.groups
        if len(groups) == 1:
            return self.rounded(self.partial(rows))
        with np.errstate(all="ignore"):  # MPI does not warn either
            wide = self.widened(rows)
            if len(groups) == len(wide):
                return self.rounded(self.in_turn(wide))
            return self.rounded(self.in_turn([self.in_turn([wide[r] for r in ranks]) for ranks in groups]))

    def partial(self, rows: NpArray) -> NpArray:
        """Rows of one node reduced, and not yet rounded."""
        with np.errstate(all="ignore"):
            wide = self.widened(rows)
            return exact.reduce_ranks(wide, self.reduce.mpi_op) if self.reduce.exact else self.in_turn(wide)

    def in_turn(self, wide: NpArray | list[NpArray], into: NpArray | None = None) -> NpArray:
        """Rows reduced from the left, into the first one, or another of the first two."""
        first = wide[0]
        into = first if into is None else into
        if first.size <= _SHORT and type(wide) is np.ndarray and self._op is not _multiply:
            return np.asarray(self._op.accumulate(wide, axis=0)[-1])
        for row in wide[1:]:
            self._op(first, row, out=into)
            first = into
        return first

    def across(self, wide: NpArray, others: NpArray, here: int) -> NpArray:
        """What this node has, which is only read, and the others, reduced into the first of these."""
        with np.errstate(all="ignore"):
            return self.in_turn([*others[:here], wide, *others[here:]], others[0])

    def prefixes(self, rows: NpArray) -> NpArray:
        """Row i: rows up to i reduced. They are written to."""
        with np.errstate(all="ignore"):
            wide = self.widened(rows)
            for before, row in pairwise(wide):
                self._op(before, row, out=row)
            return self.rounded(wide)

    def wide(self, row: NpArray) -> np.dtype[Any]:
        """The type in which a row is reduced."""
        return self.widened(row[:1]).dtype

    def room_for(self, row: NpArray) -> NpArray:
        """Memory for what others have reduced of this row, and not yet rounded."""
        return np.empty(row.shape, self.wide(row))

    def onto(self, before: NpArray | None, row: NpArray) -> NpArray:
        """What is there before, if anything, and a row that is only read, reduced; not yet rounded."""
        wide = self.widened(row)
        made = row.copy() if wide is row else wide
        if before is not None:
            with np.errstate(all="ignore"):
                self._op(before, made, out=made)
        return made

    def widened(self, rows: NpArray) -> NpArray:
        return rows if self.is_wide or self.reduce.widen is None else self.reduce.widen(rows)

    def rounded(self, wide: NpArray) -> NpArray:
        """As elements of the array."""
        if self.reduce.narrow is None and self.reduce.finish is None:
            return wide
        with np.errstate(all="ignore"):
            made = wide if self.reduce.narrow is None else self.reduce.narrow(wide, self.ranks)
            if self.reduce.finish is not None:
                self.reduce.finish(made, self.ranks)
            return made


class Unchanged(Fold):
    """In place of a Fold, where what moves from node to node stays as it is."""

    def __init__(self, comm: Comm) -> None:
        self.nodes = nodes_of(comm)


def _multiply(a: NpArray, b: NpArray, out: NpArray) -> None:
    """out = a * b of complex numbers; numpy's product has fused multiply-adds on some processors."""
    real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    out.real = real
