"""Arithmetic of fields: + - * / ** with fields in the same partition and with numbers, element by element.

Nothing is sent. The result is a field without a halo; u += v and its kin change u, not its halo.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self, TypeVar

from .._lazy import np
from ..errors import UsageError, where
from .numpy_protocol import NumpyLike
from .own_part import A

S = TypeVar("S", bound="Arithmetic[Any]")

_PYTHONS: dict[str, Callable[..., Any]] = {  # of numpy's functions
    "absolute": operator.abs, "add": operator.add, "divide": operator.truediv, "multiply": operator.mul,
    "negative": operator.neg, "power": operator.pow, "subtract": operator.sub,
}  # fmt: skip


def _forward(name: str) -> Callable[[S, object], S]:
    return lambda self, other: self._made(name, self, other)


def _backward(name: str) -> Callable[[S, object], S]:
    return lambda self, other: self._made(name, other, self)


def _in_place(name: str) -> Callable[[S, object], S]:
    return lambda self, other: self._made(name, self, other, out=self)


def _of_one(name: str) -> Callable[[S], S]:
    return lambda self: self._made(name, self)


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

    __add__, __radd__, __iadd__ = _forward("add"), _backward("add"), _in_place("add")
    __sub__, __rsub__, __isub__ = _forward("subtract"), _backward("subtract"), _in_place("subtract")
    __mul__, __rmul__, __imul__ = _forward("multiply"), _backward("multiply"), _in_place("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _forward("divide"), _backward("divide"), _in_place("divide")
    __pow__, __rpow__, __ipow__ = _forward("power"), _backward("power"), _in_place("power")
    __neg__, __abs__ = _of_one("negative"), _of_one("absolute")
