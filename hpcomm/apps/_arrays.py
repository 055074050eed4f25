"""Test arrays: every kind that this Python has, dtypes, layouts, values; and what a reduction of them is.

A Kind makes an array of given values and reads one back as plain numpy, without hpcomm.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import premul_sum
from ..core.types import AnyArray

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS, "complex64", "complex128"]

# name: (shape of the memory, the view of it that is handed over). Views are (4, 6), () or (0, 6).
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "contiguous": ((4, 6), lambda memory: memory),
    "strided": ((4, 12), lambda memory: memory[:, ::2]),
    "transposed": ((6, 4), lambda memory: memory.T),
    "negative stride": ((4, 6), lambda memory: memory[:, ::-1]),
    "0-d": ((), lambda memory: memory),
    "empty": ((0, 6), lambda memory: memory),
}


@dataclass(frozen=True)
class Kind:
    """One kind of array: what it can hold, how it can lie, how to make and how to read it."""

    name: str
    dtypes: dict[str, Any]  # hpcomm's name of the dtype -> the library's own
    layouts: tuple[str, ...]
    make: Callable[[Any, str, NDArray[Any]], Any]  # (own dtype, layout, values) -> array
    read: Callable[[Any], NDArray[Any]]  # array -> bool, int64, uint64, float64 or complex128


def family(dtype: str) -> str:
    """b, i, u, f or c, as numpy calls the kinds of its dtypes."""
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


def values(rank: int, dtype: str, layout: str) -> AnyArray:
    """Rank's input, without hpcomm: small numbers that every dtype of the family holds exactly."""
    memory, view = LAYOUTS[layout]
    letter = family(dtype)
    low = 0 if letter in ("b", "u") else -2
    whole = np.random.default_rng(rank).integers(low, 4, view(np.empty(memory)).shape)
    if letter == "b":
        return np.asarray(whole % 2 == 1)
    if letter == "c":
        return np.asarray(whole / 4 + 0.5j)
    return np.asarray(whole / 4 if letter == "f" else whole)


def wide(values: AnyArray) -> AnyArray:
    """The values in the widest type of their family, in which the definition is computed."""
    if values.dtype.kind in "biu":
        return values if values.dtype.kind == "b" else values.astype(values.dtype.kind + "8")
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def kinds_at_hand(with_torch: bool = True) -> list[Kind]:
    """numpy and Python's own buffers always; torch and bfloat16 where they are installed."""
    found = [_numpy(), _array_array(), _bytearray()]
    if with_torch and find_spec("torch"):
        found.insert(1, _torch())
    return found


def _numpy() -> Kind:
    dtypes: dict[str, Any] = {name: np.dtype(name) for name in DTYPES if name != "bfloat16"}
    if find_spec("ml_dtypes"):
        import ml_dtypes

        dtypes["bfloat16"] = np.dtype(ml_dtypes.bfloat16)

    def make(dtype: DTypeLike, layout: str, values: AnyArray) -> AnyArray:
        shape, view = LAYOUTS[layout]
        x: NDArray[Any] = view(np.empty(shape, dtype))
        x[...] = values.astype(dtype)
        return x

    return Kind("numpy", dtypes, tuple(LAYOUTS), make, wide)


def _torch() -> Kind:
    import torch

    dtypes = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
    layouts = tuple(name for name in LAYOUTS if name != "negative stride")  # torch has none

    def make(dtype: torch.dtype, layout: str, values: AnyArray) -> torch.Tensor:
        shape, view = LAYOUTS[layout]
        x: torch.Tensor = view(torch.empty(shape, dtype=dtype))
        x.copy_(torch.from_numpy(np.asarray(values)))
        return x

    def read(x: torch.Tensor) -> AnyArray:
        if x.is_floating_point():
            x = x.to(torch.float64)  # numpy has no bfloat16
        return wide(x.numpy())

    return Kind("torch", dtypes, layouts, make, read)


def _array_array() -> Kind:
    codes = {np.dtype(code).name: code for code in "bBhHiIqQfd"}

    def make(code: str, layout: str, values: AnyArray) -> array.array[Any]:
        return array.array(code, values.astype(code).ravel().tolist())

    return Kind("array.array", codes, ("contiguous", "empty"), make, lambda x: wide(np.array(x)))


def _bytearray() -> Kind:
    def make(dtype: None, layout: str, values: AnyArray) -> bytearray:
        return bytearray(values.astype(np.uint8).tobytes())

    def read(x: bytearray) -> AnyArray:
        return wide(np.frombuffer(x, np.uint8))

    return Kind("bytearray", {"uint8": None}, ("contiguous", "empty"), make, read)


# -- what a reduction is, computed in one process by plain numpy -----------------------------------------
# operator: (what all_reduce is given, the result from the inputs of all ranks stacked along axis 0)
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
