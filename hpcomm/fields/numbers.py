"""Numbers of a field: sums, extremes and products over the whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

from .._lazy import np
from ..core.op import Op
from ..core.types import AnyArray
from ..errors import DtypeError, LayoutError, UsageError, demand, where
from ..transport.late import dtypes, reduction
from .own_part import A, OwnPart

_LOW, _EXPONENTS, _LIMBS = -1073, 2098, 3  # of float64, as frexp gives them; a mantissa in limbs of 18 bits
_PIECE = 1 << 20  # elements that are added at once: bincount adds in float64, exactly up to 2**53


class Numbers(OwnPart[A]):
    """Numbers over the whole."""

    def sum(self, *, deterministic: bool = False) -> Any:
        """The sum over the whole: floats are added in float64. Collective.

        Args:
            deterministic: floats are added exactly, and rounded once: the same to the last bit for any number
                of ranks and any partition. Takes ten times as long for the elements, and a message of 50 kB.
        """
        return self._total(lambda a: a, deterministic)

    def mean(self, *, deterministic: bool = False) -> Any:
        """The mean over the whole. Collective. deterministic: as of sum."""
        return self.sum(deterministic=deterministic) / math.prod(self.shape)

    def var(self, *, ddof: float = 0, deterministic: bool = False) -> Any:
        """The variance over the whole, in two passes. Collective.

        Args:
            ddof: the sum of squares is divided by the number of elements less this, as numpy's.
            deterministic: as of sum.
        """
        mean = self.mean(deterministic=deterministic)
        squares = self._total(lambda a: abs(a - mean) ** 2, deterministic)
        return np.float64(squares) / max(math.prod(self.shape) - ddof, 0)

    def std(self, *, ddof: float = 0, deterministic: bool = False) -> Any:
        """The square root of the variance. Collective."""
        return np.sqrt(self.var(ddof=ddof, deterministic=deterministic))

    def min(self) -> Any:
        """The least element. Collective. As numpy, it refuses a field without elements."""
        return self._extreme("min")

    def max(self) -> Any:
        """The greatest element, as min. Collective."""
        return self._extreme("max")

    def argmin(self) -> int:
        """Where the least element is: its index in the flattened whole, the first if there are several, as
        numpy.argmin. Collective.
        """
        return self._where("min")

    def argmax(self) -> int:
        """Where the greatest element is, as argmin. Collective.

        Example:
            >>> numpy.unravel_index(field.argmax(), field.shape)
        """
        return self._where("max")

    def norm(self, *, deterministic: bool = False) -> float:
        """The square root of the sum of squared magnitudes. Collective. deterministic: as of sum."""
        return math.sqrt(self._total(lambda a: abs(a).astype(np.float64) ** 2, deterministic))

    def dot(self, other: Self, *, deterministic: bool = False) -> Any:
        """The sum of conj(self) * other over the whole; both in the same partition. Collective.

        Args:
            deterministic: as of sum.

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
        return self._total(lambda a: a.conj() * theirs, deterministic)

    def _total(self, made: Callable[[Any], Any], deterministic: bool) -> Any:
        """The sum over the whole of what is made of this rank's elements."""
        self.check_whole("reduction")
        mine: Any = np.asarray(made(self._wide()))
        mine = mine if self.is_first else mine.reshape(-1)[:0]
        if not deterministic or mine.dtype.kind in "biu":  # whole numbers are exact, or wrap alike
            return self.comm.all_reduce(mine.sum())
        if mine.dtype.kind == "c":
            return np.complex128(complex(self._exact(mine.real), self._exact(mine.imag)))
        return np.float64(self._exact(mine))

    def _exact(self, x: AnyArray) -> float:
        """The sum of float64 over all ranks: mantissas are added as whole numbers, for each exponent."""
        x = np.ravel(x)
        sums = np.zeros((_LIMBS, _EXPONENTS), np.int64)
        odd = x[~np.isfinite(x)]
        for k in range(0, len(x), _PIECE):
            mantissa, exponent = np.frexp(np.nan_to_num(x[k : k + _PIECE], nan=0.0, posinf=0.0, neginf=0.0))
            bits = (mantissa * 2.0**54).astype(np.int64)
            for i, part in enumerate((bits & 0x3FFFF, bits >> 18 & 0x3FFFF, bits >> 36)):
                sums[i] += np.bincount(exponent - _LOW, part, _EXPONENTS).astype(np.int64)
        with np.errstate(invalid="ignore"):
            total, special = self.comm.all_reduce(sums), self.comm.all_reduce(float(odd.sum()))
        if special or special != special:
            return special
        whole = sum(
            int(total[i, at]) << (18 * i + int(at)) for i in range(_LIMBS) for at in np.flatnonzero(total[i])
        )
        try:
            return whole / (1 << (54 - _LOW))
        except OverflowError:
            return math.inf if whole > 0 else -math.inf

    def _where(self, op: Literal["min", "max"]) -> int:
        self._ordered(f"arg{op}")
        self.check_whole(f"arg{op}")
        mine, wide = None, np.atleast_1d(self._wide())
        if self.is_first and wide.size:
            best = getattr(wide, op)()  # a NaN, if there is one
            at = np.nonzero((wide == best) | ((best != best) & (wide != wide)))
            here = [each.reshape(-1)[k] for each, k in zip(self.indices, at, strict=False)]  # points have one
            index = np.ravel_multi_index((*here, *at[len(here) :]), self.shape or (1,)).min()
            is_nan = bool(best != best)  # then it is the least and the greatest
            mine = not is_nan, 0 if is_nan else best.item() * (-1 if op == "max" else 1), int(index)
        return min(each for each in self.comm.all_gather_object(mine) if each is not None)[2]

    def _ordered(self, verb: str) -> None:
        """Refuse a field of which no element is the least."""
        if not math.prod(self.shape):
            raise UsageError(
                f"{self!r} has no elements", where(verb, self.comm), "a look at field.size before"
            )
        if self.look.dtype.kind == "c":
            hint = "of abs(field.inner), or of its real part"
            raise DtypeError(f"complex numbers have no {verb[-3:]}", where(verb, self.comm), hint)

    def _extreme(self, op: Literal["min", "max"]) -> Any:
        self._ordered(op)
        self.check_whole("reduction")
        wide = self._wide()
        if self.is_first and wide.size:
            mine = getattr(wide, op)()
        else:
            mine = reduction.identity(Op(op), dtypes.from_numpy(wide.dtype))
        return self.comm.all_reduce(mine, op)

    def _wide(self) -> AnyArray:
        """inner as numpy array in the widest type of its family."""
        own = self.on_host()
        if self.look.dtype.kind == "h":
            return dtypes.widen(own, self.look.dtype).astype(np.float64)
        wide = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.int64, "u": np.uint64}
        return own.astype(wide.get(own.dtype.kind, own.dtype), copy=False)
