"""Numbers of a field: sums, extremes and products over the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from .._lazy import np
from ..core.op import Op
from ..core.types import AnyArray
from ..errors import DtypeError, LayoutError, UsageError, demand, where
from ..transport.late import dtypes, reduction
from .own_part import A, OwnPart, check_whole, on_host

if TYPE_CHECKING:
    Element = TypeVar("Element", bound=np.generic, covariant=True)

    class Of(Protocol[Element]):
        """A field of numpy arrays of these elements; what those of a tensor are, no type says."""

        @property
        def inner(self) -> np.ndarray[Any, np.dtype[Element]]: ...


_LOW, _EXPONENTS, _LIMBS = -1073, 2098, 3  # of float64, as frexp gives them; a mantissa in limbs of 18 bits
_OF = {  # what is defined for which elements: kinds of numpy's
    "argmax": "biufmM", "argmin": "biufmM", "max": "biufmM", "min": "biufmM",
    "mean": "biufcm", "sum": "biufcm",
}  # fmt: skip
PIECE = 1 << 17  # elements that are added at once: bincount adds in float64, exactly up to 2**53


class Numbers(OwnPart[A]):
    """Numbers over the whole."""

    @overload
    def sum(self: Of[np.floating], *, deterministic: bool = ...) -> np.float64: ...
    @overload
    def sum(self: Of[np.complexfloating], *, deterministic: bool = ...) -> np.complex128: ...
    @overload
    def sum(self, *, deterministic: bool = ...) -> Any: ...
    def sum(self, *, deterministic: bool = False) -> object:
        """The sum over the whole: floats are added in float64. Collective.

        Args:
            deterministic: floats are added exactly, and rounded once: the same to the last bit for any number
                of ranks and any partition. Takes ten times as long for the elements, and a message of 50 kB.
                HPCOMM_DETERMINISTIC=1 does so everywhere.
        """
        return self._total("sum", lambda a: a, deterministic)

    @overload
    def mean(self: Of[np.floating | np.integer | np.bool_], *, deterministic: bool = ...) -> np.float64: ...
    @overload
    def mean(self: Of[np.complexfloating], *, deterministic: bool = ...) -> np.complex128: ...
    @overload
    def mean(self, *, deterministic: bool = ...) -> Any: ...
    def mean(self, *, deterministic: bool = False) -> object:
        """The mean over the whole: whole numbers are added in float64. Collective.

        deterministic: as of sum.
        """
        total = self._total("mean", lambda a: a + 0.0 if a.dtype.kind in "iu" else a, deterministic)
        return total / math.prod(self.shape)

    def var(self, *, ddof: float = 0, deterministic: bool = False) -> np.float64:
        """The variance over the whole, in two passes. Collective.

        Args:
            ddof: the sum of squares is divided by the number of elements less this, as numpy's.
            deterministic: as of sum.
        """
        self._check("var")
        mean = self.mean(deterministic=deterministic)
        squares = self._total("var", lambda a: abs(a - mean) ** 2, deterministic)
        return np.float64(squares) / max(math.prod(self.shape) - ddof, 0)

    def std(self, *, ddof: float = 0, deterministic: bool = False) -> np.float64:
        """The square root of the variance. Collective."""
        self._check("std")
        return np.float64(np.sqrt(self.var(ddof=ddof, deterministic=deterministic)))

    @overload
    def min(self: Of[np.floating]) -> np.float64: ...
    @overload
    def min(self) -> Any: ...
    def min(self) -> object:
        """The least element. Collective. As numpy, it refuses a field without elements."""
        return self._extreme("min")

    @overload
    def max(self: Of[np.floating]) -> np.float64: ...
    @overload
    def max(self) -> Any: ...
    def max(self) -> object:
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
        return math.sqrt(self._total("norm", lambda a: abs(a).astype(np.float64) ** 2, deterministic))

    @overload
    def dot(self: Of[np.floating], other: Numbers[Any], *, deterministic: bool = ...) -> np.float64: ...
    @overload
    def dot(
        self: Of[np.complexfloating], other: Numbers[Any], *, deterministic: bool = ...
    ) -> np.complex128: ...
    @overload
    def dot(self, other: Numbers[Any], *, deterministic: bool = ...) -> Any: ...
    def dot(self, other: Numbers[Any], *, deterministic: bool = False) -> object:
        """The sum of conj(self) * other over the whole; both in the same partition. Collective.

        Args:
            deterministic: as of sum.

        Raises:
            LayoutError: they are not.
        """
        demand(other, type(self), "what dot multiplies by", "dot", "another Field")
        if not self.is_like(other):
            what = f"{self!r} and {other!r} are not in the same partition"
            raise LayoutError(what, where("dot", self.comm), "redistribute one to the other's")
        return self._total("dot", lambda a, theirs: a.conj() * theirs, deterministic, other)

    def all(self) -> bool:
        """Whether no element of the whole is zero, or False. Collective."""
        return not self._total("all", lambda a: a == 0)

    def any(self) -> bool:
        """Whether an element of the whole is not zero, or True. Collective."""
        return bool(self._total("any", lambda a: a != 0))

    def _total(
        self, verb: str, made: Callable[..., Any], deterministic: bool = False, *others: Numbers[Any]
    ) -> Any:
        """The sum over the whole of what is made of the elements of this field, and of others."""
        for each in (self, *others):
            each._check(verb)
        check_whole(self, "reduction")
        fields = [(each, on_host(each)) for each in (self, *others)]

        def piece(low: int, high: int) -> AnyArray:
            return np.asarray(made(*(each._wide(own.flat[low:high]) for each, own in fields)))

        nothing, n = piece(0, 0).sum(), fields[0][1].size if self.is_first else 0
        kind = nothing.dtype.kind
        # Whole numbers are exact, or wrap alike:
        if kind in "ium" or not (deterministic or reduction.is_always_exact()):
            mine = np.asarray(made(*(each._wide(own) for each, own in fields))).sum() if n else nothing
            if kind == "m":
                return sum(self.comm.all_gather_object(mine), nothing)
            return self.comm.all_reduce(mine)
        pieces, parts = (piece(low, low + PIECE) for low in range(0, n, PIECE)), 1 + (kind == "c")
        total = exact_sums(self.comm, ((each.real, each.imag)[:parts] for each in pieces), parts)
        return np.complex128(complex(*total)) if kind == "c" else np.float64(total[0])

    def _where(self, op: Literal["min", "max"]) -> int:
        self._ordered(f"arg{op}")
        check_whole(self, f"arg{op}")
        mine, wide = None, np.atleast_1d(self._wide(on_host(self)))
        if self.is_first and wide.size:
            best = getattr(wide, op)()  # a NaN, if there is one
            at = np.nonzero((wide == best) | ((best != best) & (wide != wide)))
            here = [each.reshape(-1)[k] for each, k in zip(self.indices, at, strict=False)]  # points have one
            index = np.ravel_multi_index((*here, *at[len(here) :]), self.shape or (1,)).min()
            is_nan = bool(best != best)  # then it is the least and the greatest
            value = (best.view(np.int64) if best.dtype.kind in "mM" else best).item()
            mine = not is_nan, 0 if is_nan else value * (-1 if op == "max" else 1), int(index)
        return min(each for each in self.comm.all_gather_object(mine) if each is not None)[2]

    def _check(self, verb: str) -> None:
        """Refuse a field of whose elements there is no such number."""
        dtype = self.look.dtype
        kind = {"h": "f"}.get(dtype.kind, dtype.kind if dtype.given is None else dtype.given.kind)
        if kind in _OF.get(verb, "biufc"):
            return
        what, hint = (
            f"there is no {verb} of {dtype}",
            "numpy on field.all_gather(), or a field of one component",
        )
        if kind == "c":
            what, hint = f"complex numbers have no {verb[-3:]}", "of abs(field.inner), or of its real part"
        elif kind == "q":
            hint = "of a field of field.inner.float()"
        raise DtypeError(what, where(verb, self.comm), hint)

    def _ordered(self, verb: str) -> None:
        """Refuse a field of which no element is the least."""
        if not math.prod(self.shape):
            hint = "a look at field.size before"
            raise UsageError(f"{self!r} has no elements", where(verb, self.comm), hint)
        self._check(verb)

    def _extreme(self, op: Literal["min", "max"]) -> Any:
        self._ordered(op)
        check_whole(self, "reduction")
        wide = self._wide(on_host(self))
        counts = self.is_first and wide.size > 0
        if wide.dtype.kind in "mM":
            parts = self.comm.all_gather_object(getattr(wide, op)() if counts else None)
            return getattr(np.array([each for each in parts if each is not None]), op)()
        mine = getattr(wide, op)() if counts else reduction.identity(Op(op), dtypes.from_numpy(wide.dtype))
        return self.comm.all_reduce(mine, op)

    def _wide(self, own: AnyArray) -> AnyArray:
        """Elements of inner in the widest type of their family."""
        if self.look.dtype.kind == "h":
            return dtypes.widen(own, self.look.dtype).astype(np.float64)
        wide = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.int64, "u": np.uint64}
        return own.astype(wide.get(own.dtype.kind, own.dtype), copy=False)


def exact_sums(comm: Any, pieces: Iterable[Sequence[AnyArray]], count: int) -> list[float]:
    """The sums of count arrays over all ranks: added exactly, and rounded once. Collective.

    Mantissas are added as whole numbers, for each exponent.

    Args:
        pieces: at most PIECE elements of each array, in turn.
    """
    sums, odd = np.zeros((count, _LIMBS, _EXPONENTS), np.int64), np.zeros(count)
    with np.errstate(invalid="ignore"):
        for piece in pieces:
            for k, x in enumerate(piece):
                finite = np.isfinite(x)
                odd[k] += x[~finite].sum()
                mantissa, exponent = np.frexp(np.where(finite, x, 0.0))
                bits = (mantissa * 2.0**54).astype(np.int64)
                for i, limb in enumerate((bits & 0x3FFFF, bits >> 18 & 0x3FFFF, bits >> 36)):
                    sums[k, i] += np.bincount(exponent - _LOW, limb, _EXPONENTS).astype(np.int64)
        special = comm.all_reduce(odd).tolist()
    return [value or _rounded(total) for value, total in zip(special, comm.all_reduce(sums), strict=True)]


def _rounded(limbs: Any) -> float:
    """The number whose mantissas, by limb and exponent, are these."""
    whole = sum(
        int(row[at]) << (18 * i + int(at)) for i, row in enumerate(limbs) for at in np.flatnonzero(row)
    )
    try:
        return whole / (1 << (54 - _LOW))
    except OverflowError:
        return math.inf if whole > 0 else -math.inf
