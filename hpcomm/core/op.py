"""Op: a reduction operator, as verbs take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Op(NamedTuple):
    """A reduction operator: a name (with a factor for premul_sum), or a function."""

    name: str
    factor: Any = None
    function: Callable[[Any, Any], Any] | None = None
    mpi: Any = None

    def __str__(self) -> str:
        return self.name if self.factor is None else f"{self.name}({self.factor})"

    def __repr__(self) -> str:
        return str(self)
