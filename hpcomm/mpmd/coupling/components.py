"""Vectors of two fields, as most models have them: each is put and got by its own name, both travel as one.

What travels has the shape (points, 2, ...), and memory of its own. It leaves when both have been put for one
time, and comes when the first of both is got.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...core.types import AnyArray
from ...errors import ConfigError, UsageError
from ..coupled_field import Field, MemberField, check_values, host, scatter
from .coupler import Incoming, Outgoing, State

S = TypeVar("S", Outgoing, Incoming)


class Vector(Field):
    """Two fields as one.

    Raises:
        ConfigError: they have other points, grids, areas or bases.
    """

    def __init__(self, name: str, u: Field, v: Field) -> None:
        centres = [each.grid and each.grid.centres(each.points) for each in (u, v)]
        both = {word: (getattr(u, word), getattr(v, word)) for word in ("points", "areas", "bases")}
        for word, (mine, its) in {**both, "grid": centres}.items():
            if not np.array_equal(mine, its):
                what = f"{u.name!r} and {v.name!r} are the vector {name!r}, but differ in their {word}"
                raise ConfigError(what, "connect", f"the same {word}= for both")
        values = np.empty((2, len(u.points), *u.shape), u.dtype).swapaxes(0, 1)
        own = {"name": name, "values": values, "shape": (2, *u.shape), "_plain_dtype": values.dtype}
        vars(self).update(vars(u) | own)
        self.components = u, v

    def load(self, *which: int) -> None:
        """Take the values of these components."""
        for n in which:
            each = self.components[n]
            check_values(each, each.values)
            self.values[:, n] = host(each.values)

    def store(self, n: int) -> Any:
        """Fill a component; its values."""
        each = self.components[n]
        scatter(each.values, slice(0, len(self.points)), self.values[:, n])
        return each.values


def joined(name: str, fields: list[Field], member: int | None = None) -> Field:
    """A field or two components as one field; of those for all members, the part of one."""
    if member is not None:
        fields = [MemberField(each, member) for each in fields]
        name = f"{name}_{member:04}"
    return fields[0] if len(fields) == 1 else Vector(name, *fields)


class Half:
    """One component of a vector at a side, put or got by itself."""

    def __init__(self, side: Any, n: int) -> None:
        self.field: Field = side.field.components[n]
        self.put = self.get = partial(side.move, n)


class OutgoingVector(Outgoing):
    """The giver's side."""

    field: Vector
    _alone: tuple[int, float | None] | None = None  # what has been put without the other one, and for when

    def put(self, t: float | None) -> bool:
        """Put both."""
        self._check_pair()
        self.field.load(0, 1)
        return super().put(t)

    def move(self, n: int, t: float | None) -> bool:
        """Put one; whether that was the second of both, and they were sent."""
        self.check(t)
        if self._alone != (1 - n, t):
            self._check_pair()
        self.field.load(n)
        self._alone = (n, t) if self._alone is None else None
        return self._alone is None and super().put(t)

    def settle(self) -> None:
        self._check_pair()
        super().settle()

    def _check_pair(self) -> None:
        if self._alone is not None:
            n, t = self._alone
            name, other = (self.field.components[i].name for i in (n, 1 - n))
            at = "" if t is None else f" at {self.schedule.clock.said(t)}"
            what = f"{name!r} is put{at}, and {other!r} is not: both are the vector {self.field.name!r}"
            raise UsageError(what, "put", f"put {other!r}{at}, too, before anything of another time")


class IncomingVector(Incoming):
    """The taker's side."""

    field: Vector
    _left: tuple[float | None, frozenset[int]] = (None, frozenset())  # of the last get, not asked for yet

    def get(self, t: float | None) -> Any:
        """Get both."""
        self._left = t, frozenset()
        for n in (0, 1):
            self.move(n, t)
        return self.field.values

    def move(self, n: int, t: float | None) -> Any:
        """Fill one; returns its values."""
        when, left = self._left
        if n not in left or when != t:
            self.field.load(0, 1)
            super().get(t)
            left = frozenset((0, 1))
        self._left = t, left - {n}
        return self.field.store(n)

    def state(self) -> State:
        self.field.load(*{0, 1} - self._left[1])
        return super().state()

    def resume(self, numbers: dict[str, int], arrays: dict[str, AnyArray]) -> None:
        super().resume(numbers, arrays)
        for n in (0, 1):
            self.field.store(n)


class Sides(dict[str, S]):
    """The sides of a link by names of fields. A component of a vector is found by its own, but not listed."""

    def __init__(self) -> None:
        self._halves: dict[str, Half] = {}

    def __setitem__(self, name: str, side: Any) -> None:
        super().__setitem__(name, side)
        for n, each in enumerate(getattr(side.field, "components", ())):
            self._halves[getattr(each, "whole", each).name] = Half(side, n)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._halves

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name) or self._halves.get(name, default)
