"""Reference results: what a reduction is, computed in one process by plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import premul_sum
from ..core.types import AnyArray
from ._arrays import family, wide

# name: (what all_reduce is given, the result from the inputs of all ranks stacked along axis 0)
OPS: dict[str, tuple[Any, Callable[[NDArray[Any]], Any]]] = {
    "sum": ("sum", lambda xs: xs.any(0) if xs.dtype == bool else xs.sum(0)),
    "prod": ("prod", lambda xs: xs.all(0) if xs.dtype == bool else xs.prod(0)),
    "last": (lambda a, b: b, lambda xs: xs[-1]),  # any function of two arrays will do; it need not commute
    "avg": ("avg", lambda xs: xs.mean(0)),
    "premul_sum": (premul_sum(0.5), lambda xs: (0.5 * xs).sum(0)),
    "min": ("min", lambda xs: xs.min(0)),
    "max": ("max", lambda xs: xs.max(0)),
    "land": ("land", lambda xs: xs.all(0)),
    "lor": ("lor", lambda xs: xs.any(0)),
    "band": ("band", np.bitwise_and.reduce),
    "bor": ("bor", np.bitwise_or.reduce),
    "bxor": ("bxor", np.bitwise_xor.reduce),
}
_WHOLE = "sum prod last min max land lor band bor bxor"
_APPLIES = {
    "b": _WHOLE,
    "i": _WHOLE,
    "u": _WHOLE,
    "f": "sum prod last avg premul_sum min max land lor",
    "c": "sum prod last avg premul_sum",
}


def operators(dtype: str) -> list[str]:
    """The names in OPS that have a meaning for dtype: no average of integers, no order of complex numbers."""
    return _APPLIES[family(dtype)].split()


def definition(op: str, inputs: AnyArray, dtype: str) -> AnyArray:
    """The reduction of inputs (p, ...) over axis 0, in the widest type of dtype's family."""
    result = np.asarray(OPS[op][1](inputs)).astype(inputs.dtype)
    if family(dtype) in "iu":
        result = result.astype(dtype)  # wraps around as the dtype does
    return wide(result)


def fault(got: AnyArray, expected: AnyArray, dtype: str, size: int) -> str:
    """What is wrong with got, in words; "" if nothing.

    bool and integers must agree to the bit, the others to one rounding for each of size ranks.
    """
    if got.size != expected.size:
        return f"{got.size} elements instead of {expected.size}"
    eps = 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps) if family(dtype) in "fc" else 0.0
    slack = size * eps
    got, expected = got.ravel(), expected.ravel()
    wrong = np.flatnonzero(~np.isclose(got, expected, rtol=slack, atol=slack))
    if not wrong.size:
        return ""
    first = wrong[0]
    return f"{wrong.size} of {got.size} elements wrong, the first {got[first]} instead of {expected[first]}"
