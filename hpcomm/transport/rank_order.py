"""Reductions of floats in the order of ranks: the same bits whatever way a call takes.

    (((x0 op x1) op x2) op x3) ...    from the left; halves in float32, rounded once, at the end

That is how the native core reduces. MPI's own order depends on the library, the number of elements and where
an element stands. So beside the core the contributions themselves travel, and are reduced here: whole ones,
where that is little, else a block by each rank (scheduled/ordered_blocks.py). On two ranks MPI's sums have
the same bits. Whole numbers, truth values, and the values of min and max do not depend on an order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.limits import ORDER_GATHERED
from ..node import segment
from ..schedule.exact import UFUNCS

if TYPE_CHECKING:
    from ..core.comm import Comm
    from ..core.dtypes import Dtype
    from ..core.reduction import Reduction
    from ..core.types import NpArray

_OPS = ("SUM", "PROD", "MIN", "MAX")
_MANY = 8  # contributions from which numpy's own loop over short ones is quicker
_SHORT = 64  # elements


def applies(comm: Comm, reduce: Reduction, dtype: Dtype) -> bool:
    """Whether a reduction has to keep the order of ranks itself: the same on all ranks."""
    if dtype.kind not in "hfc" or reduce.mpi_op not in _OPS or comm.size == 1 or comm.is_inter:
        return False
    if reduce.mpi_op in ("MIN", "MAX") and dtype.kind != "h":  # halves travel as such, which is less
        return False
    commutes = comm.size == 2 and dtype.kind != "h" and (dtype.kind != "c" or reduce.mpi_op == "SUM")
    return not commutes and is_one_node(comm)


def is_one_node(comm: Comm) -> bool:
    """Whether all ranks are on this node."""
    if comm.ranks_by_node is None:
        comm.ranks_by_node = len(segment.ranks_here(comm.mpi_handle)) == comm.size
    return bool(comm.ranks_by_node)


def is_short(comm: Comm, verb: str, nbytes: int) -> bool:
    """Whether whole contributions travel, nbytes each."""
    return verb == "reduce_scatter" or nbytes * comm.size <= ORDER_GATHERED


class Fold:
    """How contributions are reduced, on this rank."""

    def __init__(self, comm: Comm, reduce: Reduction, dtype: Dtype) -> None:
        self.reduce, self.ranks = reduce, comm.size
        self._op: Any = UFUNCS[reduce.mpi_op]
        if dtype.kind == "c" and reduce.mpi_op == "PROD":
            self._op = _multiply
        self.is_wide = (
            reduce.op.factor is not None
        )  # contributions are multiplied, and travel as they are then

    def total(self, rows: NpArray) -> NpArray:
        """Rows, which are written to, reduced to one."""
        with np.errstate(all="ignore"):  # MPI does not warn either
            wide = self._widened(rows)
            if len(wide) >= _MANY and wide.shape[1] <= _SHORT and self._op is not _multiply:
                made = self._op.accumulate(wide, axis=0)[-1]
            else:
                made = wide[0]
                for row in wide[1:]:
                    self._op(made, row, out=made)
            return self._rounded(made)

    def prefixes(self, rows: NpArray) -> NpArray:
        """Row i: rows up to i reduced. They are written to."""
        with np.errstate(all="ignore"):
            wide = self._widened(rows)
            for before, row in pairwise(wide):
                self._op(before, row, out=row)
            return self._rounded(wide)

    def _widened(self, rows: NpArray) -> NpArray:
        return rows if self.is_wide or self.reduce.widen is None else self.reduce.widen(rows)

    def _rounded(self, wide: NpArray) -> NpArray:
        made = wide if self.reduce.narrow is None else self.reduce.narrow(wide, self.ranks)
        if self.reduce.finish is not None:
            self.reduce.finish(made, self.ranks)
        return made


def _multiply(a: NpArray, b: NpArray, out: NpArray) -> None:
    """out = a * b of complex numbers; numpy's product has fused multiply-adds on some processors."""
    real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    out.real = real
