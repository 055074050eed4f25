"""Numbers of a field: sums, extremes and products over the whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Self

from ..errors import LayoutError, demand, where

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ..communicator.communicator import Communicator
    from ..core import dtypes
    from ..core.buffer import Buffer
    from ..core.partition import Partition, Points
    from ..core.types import AnyArray
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    dtypes = LazyModule("hpcomm.core.dtypes")

__all__ = ["Numbers"]


class Part:
    """What a field has, as its parts in other files see it."""

    array: Any
    comm: Communicator
    look: Buffer
    partition: Partition | Points

    name: str

    if TYPE_CHECKING:

        def __init__(
            self, ranks: Communicator, whole: Partition | Points, *, dtype: object, name: str, unit: str
        ) -> None: ...
        @property
        def dtype(self) -> Any: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def is_first(self) -> bool: ...
        def on_host(self) -> AnyArray: ...
        def is_like(self, other: Any, /) -> bool: ...
        @property
        def inner(self) -> Any: ...
        def check_whole(self, verb: str) -> None: ...


class Numbers(Part):
    """Numbers over the whole."""

    def sum(self) -> Any:
        """The sum over the whole: floats are added in float64. Collective."""
        return self.comm.all_reduce(self._local(lambda a: a.sum(), 0))

    def mean(self) -> Any:
        """The mean over the whole. Collective."""
        return self.sum() / math.prod(self.shape)

    def min(self) -> Any:
        """The least element. Collective."""
        return self._extreme("min")

    def max(self) -> Any:
        """The greatest element. Collective."""
        return self._extreme("max")

    def norm(self) -> float:
        """The square root of the sum of squared magnitudes. Collective."""
        return math.sqrt(self.comm.all_reduce(float(self._local(lambda a: (abs(a) ** 2).sum(), 0))))

    def dot(self, other: Self) -> Any:
        """The sum of conj(self) * other over the whole; both in the same partition. Collective.

        Raises:
            LayoutError: they are not.
        """
        demand(other, type(self), "what dot multiplies by", "dot", "another Field")
        if not self.is_like(other):
            raise LayoutError(
                f"{self!r} and {other!r} are not in the same partition",
                where("dot", self.comm),
                "redistribute one to the other's",
            )
        theirs = other._wide()
        return self.comm.all_reduce(self._local(lambda a: (a.conj() * theirs).sum(), 0))

    def _extreme(self, op: Literal["min", "max"]) -> Any:
        nothing = _bound(self._wide().dtype, high=op == "min")
        return self.comm.all_reduce(self._local(lambda a: getattr(a, op)(), nothing), op)

    def _wide(self) -> AnyArray:
        """inner as numpy array in the widest type of its family."""
        own = self.on_host()
        if self.look.dtype.kind == "h":
            return dtypes.widen(own, self.look.dtype).astype(np.float64)
        wide = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.int64, "u": np.uint64}
        return own.astype(wide.get(own.dtype.kind, own.dtype), copy=False)

    def _local(self, reduce: Callable[[Any], Any], nothing: complex) -> Any:
        self.check_whole("reduction")
        wide = self._wide()
        return reduce(wide) if self.is_first and wide.size else wide.dtype.type(nothing)


def _bound(dtype: np.dtype[np.generic], high: bool) -> float:
    """What min (high) and max leave alone."""
    if dtype.kind == "f":
        return math.inf if high else -math.inf
    info = np.iinfo(dtype.type)  # type: ignore[type-var]
    return info.max if high else info.min
