"""Elementwise work on device memory, by the kernels of CuPy, of torch or of the model.

Memory is named by address, so arrays of any library are worked on. Kernels(place) puts work into the stream
of the `on` that surrounds it, and waits for nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from .. import dtypes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..dtypes import Dtype
    from .arrays import Place
    from .driver import Device

__all__ = ["FOLDS", "Kernels", "kernels"]

FOLDS = {
    "SUM": "add", "PROD": "multiply", "MIN": "minimum", "MAX": "maximum", "BAND": "bitwise_and",
    "BOR": "bitwise_or", "BXOR": "bitwise_xor",
}  # fmt: skip  # MPI's word -> that of numpy, CuPy and torch


class Kernels(Protocol):
    """What reductions need of an array library. x, a, b, ... are what view() makes."""

    name: str

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        """Why op (None: conversion) on dtype has no right kernel here, or None."""

    def on(self, stream: int) -> AbstractContextManager[Any]: ...
    def view(self, address: int, count: int, dtype: Dtype) -> Any: ...
    def fold(self, op: str, a: Any, b: Any, out: Any) -> None: ...
    def convert(self, source: Any, target: Any) -> None: ...
    def truth(self, source: Any, target: Any) -> None: ...  # 1 where source is not 0, into uint8
    def scale(self, x: Any, factor: Any) -> None: ...
    def divide(self, x: Any, by: int) -> None: ...
    def fill(self, x: Any, value: Any) -> None: ...


class _Named:
    """What CuPy and torch call alike."""

    name: str
    library: Any

    def fold(self, op: str, a: Any, b: Any, out: Any) -> None:
        getattr(self.library, FOLDS[op])(a, b, out=out)

    def scale(self, x: Any, factor: Any) -> None:
        self.library.multiply(x, factor, out=x)

    def divide(self, x: Any, by: int) -> None:
        self.library.divide(x, by, out=x)


class _CuPy(_Named):
    name = "cupy"

    def __init__(self, device: Device) -> None:
        self.library = sys.modules["cupy"]
        self.device = device

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        return "CuPy has no kernels for bfloat16" if dtype.name == "bfloat16" else None

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return self.library.cuda.ExternalStream(stream, self.device.index)  # type: ignore[no-any-return]

    def view(self, address: int, count: int, dtype: Dtype) -> Any:
        cupy = self.library
        kind = dtypes.numpy_dtype(dtype)
        memory = cupy.cuda.UnownedMemory(address, count * kind.itemsize, self, self.device.index)
        return cupy.ndarray((count,), kind, cupy.cuda.MemoryPointer(memory, 0))

    def convert(self, source: Any, target: Any) -> None:
        self.library.copyto(target, source, casting="unsafe")

    def truth(self, source: Any, target: Any) -> None:
        self.library.not_equal(source, 0, out=target.view(self.library.bool_))

    def fill(self, x: Any, value: Any) -> None:
        x.fill(value)


class _Bytes:
    """Memory at an address, as torch takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


class _Torch(_Named):
    name = "torch"

    def __init__(self, device: Device) -> None:
        self.library = sys.modules["torch"]
        self.device = device

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        if op in ("MIN", "MAX") and dtype.name in ("uint16", "uint32", "uint64"):
            return f"torch has no kernel for the {op.lower()} of {dtype}"
        return None

    def on(self, stream: int) -> AbstractContextManager[Any]:
        cuda = self.library.cuda
        return cuda.stream(cuda.ExternalStream(stream, device=self.device.index))  # type: ignore[no-any-return]

    def view(self, address: int, count: int, dtype: Dtype) -> Any:
        """Unsigned integers as signed ones, of which torch has all kernels; sums and bits are the same."""
        name = dtype.name[1:] if dtype.name in ("uint16", "uint32", "uint64") else dtype.name
        raw = self.library.as_tensor(
            _Bytes(address, count * dtype.itemsize), device=f"cuda:{self.device.index}"
        )
        return raw.view(getattr(self.library, name))

    def convert(self, source: Any, target: Any) -> None:
        target.copy_(source)

    def truth(self, source: Any, target: Any) -> None:
        self.library.not_equal(source, 0, out=target.view(self.library.bool))

    def fill(self, x: Any, value: Any) -> None:
        if not (x.is_floating_point() or x.is_complex()):  # all bits of an unsigned number are -1 of its twin
            bits = 8 * x.element_size()
            value = int(value) - (1 << bits) if int(value) >> (bits - 1) and x.dtype.is_signed else int(value)
        x.fill_(value)


def kernels(place: Place) -> Kernels | str:
    """The kernels for an array: of its own library, else of one that is loaded; or why there are none."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if type(place.array).__module__ == "hpcomm.device.model":
        made: Kernels = sys.modules["hpcomm.device.model"].ModelKernels()
        return made
    if torch is not None and isinstance(place.array, torch.Tensor):
        return _Torch(place.device)
    if cupy is not None:
        return _CuPy(place.device)
    if torch is not None and torch.cuda.is_available():
        return _Torch(place.device)
    return f"neither CuPy nor torch is loaded, whose kernels could work on a {type(place.array).__name__}"
