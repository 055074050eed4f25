"""A stand-in for CuPy on the stand-in for libcuda (../libcuda.c): what tests/gpu and benchmarks/gpu.py need.

Its work is done at once, by numpy, on the bytes that the stand-in keeps behind the addresses of its devices.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from hpcomm.device.driver import driver

float32, bool_ = np.float32, np.bool_
_library = ctypes.CDLL("libcuda.so.1")
_library.fake_cuda_bytes.restype = ctypes.c_void_p
_library.fake_cuda_bytes.argtypes = [ctypes.c_uint64, ctypes.c_size_t]


class _Memory:
    """An allocation that is freed with its last array."""

    def __init__(self, nbytes: int) -> None:
        self.device = driver().device(0)
        self.ptr = self.device.allocate(max(nbytes, 1))

    def __del__(self) -> None:
        self.device.free(self.ptr)


class ndarray:  # noqa: N801  CuPy's name
    def __init__(self, shape: Any, dtype: Any = np.float64, memptr: Any = None, strides: Any = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.data = memptr or MemoryPointer(_Memory(self.nbytes), 0)
        self.strides = strides
        self.device = SimpleNamespace(id=0)
        reach = self.nbytes
        if strides is not None and self.nbytes:
            reach = sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True)) + self.dtype.itemsize
        at = _library.fake_cuda_bytes(self.data.ptr, reach)
        raw = (ctypes.c_ubyte * reach).from_address(at) if reach else bytearray()
        self.host = np.ndarray(self.shape, self.dtype, raw, 0, strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False),
                "strides": self.strides, "stream": 1, "version": 3}  # fmt: skip

    def get(self) -> Any:
        return self.host.copy()

    def copy(self, order: str = "C") -> ndarray:
        return asarray(np.ascontiguousarray(self.host))

    def fill(self, value: Any) -> None:
        self.host.fill(value)

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self.shape, dtype, self.data)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = getattr(value, "host", value)

    def __getitem__(self, key: Any) -> ndarray:
        part = self.host[key]
        low = part.__array_interface__["data"][0] - self.host.__array_interface__["data"][0]
        strides = None if part.flags.c_contiguous else part.strides
        return ndarray(part.shape, part.dtype, MemoryPointer(self.data.mem, self.data.offset + low), strides)

    def __iadd__(self, other: Any) -> ndarray:
        self.host += getattr(other, "host", other)
        return self

    def __imul__(self, other: Any) -> ndarray:
        self.host *= getattr(other, "host", other)
        return self


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.offset, self.ptr = mem, offset, mem.ptr + offset


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.owner = ptr, owner


class _Context:
    null: Any

    def __init__(self, *arguments: Any, non_blocking: bool = False) -> None:
        self.ptr = arguments[0] if arguments else 0

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *error: object) -> None: ...

    def synchronize(self) -> None: ...

    def use(self) -> None: ...


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    made = ndarray(shape, dtype)
    made.host.reshape(-1).view(np.uint8)[:] = 0xCB
    return made


def ones(shape: Any, dtype: Any = np.float64) -> ndarray:
    return asarray(np.ones(shape, dtype))


def empty_like(x: ndarray) -> ndarray:
    return empty(x.shape, x.dtype)


def matmul(a: ndarray, b: ndarray, out: ndarray) -> ndarray:
    np.matmul(a.host, b.host, out=out.host)
    return out


def asarray(x: Any) -> ndarray:
    if isinstance(x, ndarray):
        return x
    made = ndarray(np.shape(x), np.asarray(x).dtype)
    made.host[...] = x
    return made


def copyto(target: ndarray, source: ndarray, casting: str = "same_kind") -> None:
    np.copyto(target.host, source.host, casting=casting)


def _elementwise(name: str) -> Any:
    function = getattr(np, name)

    def call(a: ndarray, b: Any, out: ndarray) -> ndarray:
        function(a.host, getattr(b, "host", b), out=out.host)
        return out

    return call


add, multiply, minimum, maximum = (_elementwise(name) for name in ("add", "multiply", "minimum", "maximum"))
bitwise_and, bitwise_or, bitwise_xor = (_elementwise(f"bitwise_{name}") for name in ("and", "or", "xor"))
divide, not_equal = _elementwise("divide"), _elementwise("not_equal")
_Context.null = _Context()


def _event() -> Any:
    return SimpleNamespace(record=lambda: None, done=True)


cuda = SimpleNamespace(
    get_current_stream=_Context, Event=_event, Stream=_Context, ExternalStream=_Context, Device=_Context,
    MemoryPointer=MemoryPointer, UnownedMemory=UnownedMemory, is_available=lambda: True,
    runtime=SimpleNamespace(getDeviceCount=lambda: 0, CUDARuntimeError=RuntimeError),  # zarr's plugin asks
)  # fmt: skip
