"""Elementwise extremes and the ranks that have them (MPI's MAXLOC and MINLOC).

Two reductions, of the values and of the ranks that have them, so that memory does not grow with the number
of ranks, and tensors and arrays on devices go their usual ways.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from ..._lazy import loaded, np
from ...agree.agreement import refusing
from ...errors import UsageError
from ...transport.late import buffer
from .reductions import Reductions

Array = TypeVar("Array")


class Extremes(Reductions):
    """Extremes, and where they are."""

    def all_reduce_loc(self, x: Array, op: Literal["max", "min"] = "max") -> tuple[Array, Any]:
        """The greatest or least values of the ranks, element by element, and which ranks have them.

        Of equal values the lowest rank counts. If any rank has a NaN, the result is NaN, for "max" and "min"
        alike, with the lowest rank that has one.

        Args:
            x: array of the same shape and dtype on every rank, or a number.
            op: "max" or "min".

        Returns:
            Values and ranks: arrays of x's shape, on x's device; the ranks are int64.

        Raises:
            UsageError: op is neither "max" nor "min".
            DtypeError: values of x have no order.

        Cost: two all_reduce.

        Example (2 ranks):
            >>> comm.all_reduce_loc(np.array([[1.0, 5.0], [3.0, 5.0]][comm.rank]))
            (array([3., 5.]), array([1, 0]))
        """
        comm = self.context
        comm.check_one_group("all_reduce_loc")
        with refusing("all_reduce", comm):
            given = _elementwise(x, op)
        values = self.all_reduce(given, op)
        is_here = (given == values) | ((given != given) & (values != values))  # NaN differs from itself
        return values, self.all_reduce(is_here * (comm.rank - comm.size) + comm.size, "min")


def _elementwise(x: object, op: object) -> Any:
    """x as something that is compared element by element."""
    if op not in ("max", "min"):
        raise UsageError(f"all_reduce_loc has no operator {op!r}", hint='"max" or "min"')
    torch = loaded("torch")
    if isinstance(x, (bool, int, float)) or (torch is not None and isinstance(x, torch.Tensor)):
        return x
    return x if isinstance(buffer.as_buffer(x), buffer.DeviceBuffer) else np.asarray(x)
