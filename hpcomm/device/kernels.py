"""Elementwise kernels on device memory, taken from CuPy or torch.

Memory is named by address, so arrays of any library are worked on. Kernels put work into the stream
of the `on` that surrounds it, and wait for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from ..core import dtypes
from ..core.dtypes import Dtype
from .driver import Device

FUNCTIONS = {
    "SUM": "add", "PROD": "multiply", "MIN": "minimum", "MAX": "maximum", "BAND": "bitwise_and",
    "BOR": "bitwise_or", "BXOR": "bitwise_xor",
}  # fmt: skip  # MPI's word -> that of numpy, CuPy and torch


class Kernels(Protocol):
    """What reductions need of an array library. x, a, b, ... are what view() makes."""

    name: str

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        """Why op (None: conversion) on dtype has no right kernel here, or None."""

    def on(self, stream: int) -> AbstractContextManager[object]: ...
    def view(self, address: int, count: int, dtype: Dtype) -> Any: ...
    def reduce(self, op: str, a: object, b: object, out: object) -> None: ...
    def convert(self, source: object, target: object) -> None: ...
    def truth(self, source: object, target: object) -> None: ...  # 1 where source is not 0, into uint8
    def scale(self, x: object, factor: object) -> None: ...  # factor: of numpy's type for the elements
    def divide(self, x: object, by: int) -> None: ...
    def fill(self, x: object, value: object) -> None: ...


class _Named:
    """What CuPy and torch call alike."""

    name: str
    library: Any

    def reduce(self, op: str, a: object, b: object, out: object) -> None:
        getattr(self.library, FUNCTIONS[op])(a, b, out=out)

    def scale(self, x: object, factor: object) -> None:
        self.library.multiply(x, factor, out=x)

    def divide(self, x: object, by: int) -> None:
        self.library.divide(x, by, out=x)


class CuPy(_Named):
    name = "cupy"

    def __init__(self, device: Device) -> None:
        self.library = sys.modules["cupy"]
        self.device = device

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        return "CuPy has no kernels for bfloat16" if dtype.name == "bfloat16" else None

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Kernels go to the current device of a thread, which streams of CuPy's do not change."""
        cuda = self.library.cuda
        with cuda.Device(self.device.index), self._stream(stream):
            yield

    def _stream(self, stream: int) -> Any:
        """A stream of the driver's as one of CuPy's; ExternalStream is deprecated from CuPy 14 on."""
        cuda = self.library.cuda
        if hasattr(cuda.Stream, "from_external"):
            return cuda.Stream.from_external(_Stream(stream))
        return cuda.ExternalStream(stream, self.device.index)

    def view(self, address: int, count: int, dtype: Dtype) -> Any:
        cupy = self.library
        kind = dtypes.numpy_dtype(dtype)
        memory = cupy.cuda.UnownedMemory(address, count * kind.itemsize, self, self.device.index)
        return cupy.ndarray((count,), kind, cupy.cuda.MemoryPointer(memory, 0))

    def convert(self, source: object, target: object) -> None:
        self.library.copyto(target, source, casting="unsafe")

    def truth(self, source: Any, target: Any) -> None:
        self.library.not_equal(source, 0, out=target.view(self.library.bool_))

    def fill(self, x: Any, value: Any) -> None:
        x.fill(value)


class Bytes:
    """Memory at an address, as an array."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


class _Stream:
    """A stream by the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle  # the protocol's version first


class Torch(_Named):
    name = "torch"

    def __init__(self, device: Device) -> None:
        self.library = sys.modules["torch"]
        self.device = device

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        if op in ("MIN", "MAX") and dtype.name in ("uint16", "uint32", "uint64"):
            return f"torch has no kernel for the {op.lower()} of {dtype}"
        return None

    def on(self, stream: int) -> AbstractContextManager[object]:
        cuda = self.library.cuda
        return cuda.stream(cuda.ExternalStream(stream, device=self.device.index))  # type: ignore[no-any-return]

    def view(self, address: int, count: int, dtype: Dtype) -> Any:
        """Unsigned integers as signed ones, of which torch has all kernels; sums and bits are the same."""
        name = dtype.name[1:] if dtype.name in ("uint16", "uint32", "uint64") else dtype.name
        return self.raw(address, count * dtype.itemsize).view(getattr(self.library, name))

    def raw(self, address: int, nbytes: int) -> Any:
        return self.library.as_tensor(Bytes(address, nbytes), device=f"cuda:{self.device.index}")

    def convert(self, source: Any, target: Any) -> None:
        target.copy_(source)

    def truth(self, source: Any, target: Any) -> None:
        self.library.not_equal(source, 0, out=target.view(self.library.bool))

    def scale(self, x: object, factor: object) -> None:
        self.library.multiply(x, _as_in(x, factor), out=x)

    def fill(self, x: Any, value: Any) -> None:
        x.fill_(_as_in(x, value))


def _as_in(x: Any, value: Any) -> object:
    """A number as x has it: an unsigned one as its signed twin, of the same bits."""
    if x.is_floating_point() or x.is_complex():
        return value.item() if hasattr(value, "item") else value
    bits = 8 * x.element_size()
    low = int(value) & ((1 << bits) - 1)
    return low - (1 << bits) if x.dtype.is_signed and low >> (bits - 1) else low
