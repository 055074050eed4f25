"""Arithmetic of fields: + - * / ** with fields in the same partition and with numbers, element by element.

Nothing is sent. The result is a field without a halo; u += v and its kin change u, not its halo.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

from .._lazy import np
from ..errors import UsageError, where
from .numpy_protocol import NumpyLike
from .own_part import A

_PYTHONS: dict[str, Callable[..., Any]] = {  # of numpy's functions
    "absolute": operator.abs, "add": operator.add, "divide": operator.truediv, "multiply": operator.mul,
    "negative": operator.neg, "power": operator.pow, "subtract": operator.sub,
}  # fmt: skip


class Arithmetic(NumpyLike[A]):
    """Python's operators, of a field."""

    def _made(self, name: str, *given: object, out: Self | None = None) -> Self:
        """What numpy's function of that name, or the array's own library, makes of this rank's parts."""
        if type(self.array) is np.ndarray:
            function = getattr(np, name)
            result: Self = function(*given) if out is None else function(*given, out=out)
            return result
        self.check_whole(name)
        parts = [self._part_of(name, each) for each in given]
        made = _PYTHONS[name](*parts)
        kind: Any = type(self)
        target: Any = kind(self.comm, self.partition, like=made, name=self.name) if out is None else out
        target.inner[...] = made
        return target  # type: ignore[no-any-return]  # of this kind

    def _part_of(self, name: str, given: Any) -> object:
        if not isinstance(given, type(self)):
            return self._operand(name, given)
        if type(given.array) is not type(self.array):
            kinds = [type(each.array).__name__ for each in (self, given)]
            what = f"{name} of {self!r} and {given!r}: a {kinds[0]} and a {kinds[1]}"
            raise UsageError(what, where(name, self.comm), "two fields whose arrays are of one library")
        return self._like(name, given).inner

    def __add__(self, other: object) -> Self:
        return self._made("add", self, other)

    def __radd__(self, other: object) -> Self:
        return self._made("add", other, self)

    def __iadd__(self, other: object) -> Self:
        return self._made("add", self, other, out=self)

    def __sub__(self, other: object) -> Self:
        return self._made("subtract", self, other)

    def __rsub__(self, other: object) -> Self:
        return self._made("subtract", other, self)

    def __isub__(self, other: object) -> Self:
        return self._made("subtract", self, other, out=self)

    def __mul__(self, other: object) -> Self:
        return self._made("multiply", self, other)

    def __rmul__(self, other: object) -> Self:
        return self._made("multiply", other, self)

    def __imul__(self, other: object) -> Self:
        return self._made("multiply", self, other, out=self)

    def __truediv__(self, other: object) -> Self:
        return self._made("divide", self, other)

    def __rtruediv__(self, other: object) -> Self:
        return self._made("divide", other, self)

    def __itruediv__(self, other: object) -> Self:
        return self._made("divide", self, other, out=self)

    def __pow__(self, other: object) -> Self:
        return self._made("power", self, other)

    def __rpow__(self, other: object) -> Self:
        return self._made("power", other, self)

    def __ipow__(self, other: object) -> Self:
        return self._made("power", self, other, out=self)

    def __neg__(self) -> Self:
        return self._made("negative", self)

    def __abs__(self) -> Self:
        return self._made("absolute", self)
