"""Arrays on the modelled driver, as a library on top of CUDA has them."""

from __future__ import annotations

import threading
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcomm.core import dtypes
from hpcomm.core.dtypes import Dtype
from hpcomm.device import driver
from hpcomm.device.kernels import FUNCTIONS
from hpcomm.device.libraries import stream_of

from .driver import Model
from .queues import Work

if TYPE_CHECKING:
    from hpcomm.core.types import AnyArray

Key: TypeAlias = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

__all__ = ["DeviceArray", "Library", "asarray", "current_stream", "empty", "stream"]

_current: dict[int, int] = {}  # thread -> its current stream


class stream:  # noqa: N801  used as cupy.cuda.stream and torch.cuda.stream are
    """with stream(number): work of arrays goes there."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> int:
        self._before = current_stream()
        _current[threading.get_ident()] = self.number
        return self.number

    def __exit__(self, *error: object) -> None:
        _current[threading.get_ident()] = self._before


def current_stream() -> int:
    return _current.get(threading.get_ident(), 1)


def _model() -> Model:
    found = driver.driver()
    assert isinstance(found, Model)
    return found


class DeviceArray:
    """An array on the model: made by empty and asarray, worked on in the current stream, read by get()."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        strides: tuple[int, ...] | None = None,
        owner: DeviceArray | None = None,
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.strides = strides
        self.owner = owner

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False),
                "strides": self.strides, "stream": current_stream(), "version": 3}  # fmt: skip

    def _on_host(self) -> tuple[NDArray[Any], int]:
        """The array as the device sees it, and how many bytes it reaches over."""
        size = int(np.prod(self.shape, dtype=int))
        reach = size * self.dtype.itemsize
        if self.strides is not None and size:
            last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
            reach = last + self.dtype.itemsize
        raw = _model().at(self.address, reach)[0]
        seen: NDArray[Any] = np.ndarray(self.shape, self.dtype, raw, 0, self.strides)
        return seen, reach

    def _work(self, work: Work, reads: tuple[DeviceArray, ...] = (), writes: bool = True) -> None:
        touches = [(x.address, x._on_host()[1], False) for x in reads]
        if writes:
            touches.append((self.address, self._on_host()[1], True))
        _model().put(current_stream(), work, touches)

    def fill(self, value: object) -> None:
        mine = self._on_host()[0]
        self._work(lambda: mine.fill(value))

    def __setitem__(self, key: Key, other: DeviceArray) -> None:
        if isinstance(key, np.ndarray):  # of indices
            mine, theirs = self._on_host()[0], other._on_host()[0]
            if mine.dtype != theirs.dtype:  # as torch, which does not convert here
                raise TypeError(f"rows of {mine.dtype} cannot be set to {theirs.dtype}")
            self._work(lambda: mine.__setitem__(key, theirs), (other,))
            return
        part = self[key]
        mine, theirs = part._on_host()[0], other._on_host()[0]
        part._work(lambda: np.copyto(mine, theirs), (other,))

    def __iadd__(self, other: DeviceArray | complex) -> DeviceArray:
        mine = self._on_host()[0]
        if isinstance(other, DeviceArray):
            theirs = other._on_host()[0]
            self._work(lambda: np.add(mine, theirs, out=mine), (self, other))
        else:
            self._work(lambda: np.add(mine, other, out=mine), (self,))
        return self

    def __add__(self, other: DeviceArray | complex) -> DeviceArray:
        return self._made(np.add, other)

    def __mul__(self, other: DeviceArray | complex) -> DeviceArray:
        return self._made(np.multiply, other)

    def __truediv__(self, other: DeviceArray | complex) -> DeviceArray:
        return self._made(np.divide, other)

    __radd__, __rmul__ = __add__, __mul__

    def _made(self, function: np.ufunc, other: DeviceArray | complex) -> DeviceArray:
        """function(self, other) in a new array; other: an array, or a Python number, which widens nothing."""
        mine = self._on_host()[0]
        given = (self, other) if isinstance(other, DeviceArray) else (self,)
        theirs = other._on_host()[0] if isinstance(other, DeviceArray) else self.dtype.type(other)  # type: ignore[call-overload]
        shape = np.broadcast_shapes(*(x.shape for x in given))
        made = empty(shape, np.result_type(*(x.dtype for x in given)))
        target = made._on_host()[0]
        made._work(lambda: function(mine, theirs, out=target), given)
        return made

    def __len__(self) -> int:
        return int(self.shape[0])

    def astype(self, dtype: DTypeLike) -> DeviceArray:
        made, mine = empty(self.shape, dtype), self._on_host()[0]
        target = made._on_host()[0]
        made._work(lambda: np.copyto(target, mine, casting="unsafe"), (self,))
        return made

    def __getitem__(self, key: Key) -> DeviceArray:
        """A view; of indices a copy."""
        mine = self._on_host()[0]
        if isinstance(key, np.ndarray):
            made = empty((len(key), *self.shape[1:]), self.dtype)
            chosen = made._on_host()[0]
            made._work(lambda: np.copyto(chosen, mine[key]), (self,))
            return made
        part = mine[key] if key is Ellipsis else mine[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        low = part.__array_interface__["data"][0] - mine.__array_interface__["data"][0]
        strides = None if part.flags.c_contiguous else part.strides
        return DeviceArray(self.address + low, part.shape, self.dtype, strides, self)

    def copy(self) -> DeviceArray:
        made = empty(self.shape, self.dtype)
        made[...] = self
        return made

    def get(self) -> AnyArray:
        """The elements, once the current stream has come so far."""
        device, mine = _model().device(0), self._on_host()[0]
        host: NDArray[Any] = np.empty(self.shape, self.dtype)
        self._work(lambda: np.copyto(host, mine), (self,), writes=False)
        event = device.event()
        device.record(event, current_stream())
        device.synchronize(event)
        device.destroy_event(event)
        return host

    def __reduce__(self) -> tuple[object, ...]:
        return asarray, (self.get(),)


def empty(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> DeviceArray:
    """A new array of poison."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=int)) * kind.itemsize
    model = _model()
    return DeviceArray(model.allocate(nbytes, model.user_memory_can_be_exported), shape, kind)


def asarray(array: object) -> DeviceArray:
    """A copy of a host array on the device, made in the current stream."""
    given = np.array(array, order="C")
    made = empty(given.shape, given.dtype)
    mine = made._on_host()[0]
    made._work(lambda: np.copyto(mine, given))
    return made


class ModelKernels:
    """The model's own kernels; see kernels.Kernels. They compute as numpy does."""

    name = "model"

    def refuses(self, op: str | None, dtype: Dtype) -> str | None:
        return None

    def on(self, number: int) -> stream:
        return stream(number)

    def view(self, address: int, count: int, dtype: Dtype) -> _View:
        return _View(address, (count,), dtype)

    def reduce(self, op: str, a: _View, b: _View, out: _View) -> None:
        function = getattr(np, FUNCTIONS[op])
        x, y, z = (each._on_host()[0] for each in (a, b, out))
        out._work(lambda: function(x, y, out=z), (a, b))

    def convert(self, source: _View, target: _View) -> None:
        x, y = source._on_host()[0], target._on_host()[0]
        if (half := target.kind).kind == "h":
            target._work(lambda: np.copyto(y, dtypes.narrow(x.astype(np.float32), half)), (source,))
        elif (half := source.kind).kind == "h":
            target._work(lambda: np.copyto(y, dtypes.widen(x, half)), (source,))
        else:
            target._work(lambda: np.copyto(y, x, casting="unsafe"), (source,))

    def truth(self, source: _View, target: _View) -> None:
        x, y = source._on_host()[0], target._on_host()[0]
        bits = 0x7FFF if source.kind.kind == "h" else None  # -0.0 is false too
        target._work(lambda: np.copyto(y, (x if bits is None else x & np.uint16(bits)) != 0), (source,))

    def scale(self, x: _View, factor: np.generic) -> None:
        mine = x._on_host()[0]
        x._work(lambda: np.multiply(mine, mine.dtype.type(factor), out=mine), (x,))

    def divide(self, x: _View, by: int) -> None:
        mine = x._on_host()[0]
        x._work(lambda: np.divide(mine, by, out=mine), (x,))

    def fill(self, x: _View, value: object) -> None:
        half = x.kind.kind == "h"
        DeviceArray.fill(x, dtypes.narrow(np.full(1, value, np.float32), x.kind)[0] if half else value)


class _View(DeviceArray):
    """Memory at an address as elements of a dtype, in the type that these are stored in."""

    def __init__(self, address: int, shape: Any, kind: Dtype) -> None:
        super().__init__(address, shape, kind.storage)
        self.kind = kind


class Library:
    """What hpcomm asks of the library of these arrays; see hpcomm.device.libraries.Library."""

    array = "DeviceArray"

    def way(self, x: DeviceArray) -> Any:
        return stream_of(x), lambda shape: empty(shape, x.dtype), x.copy

    def kernels(self, device: object) -> ModelKernels:
        return ModelKernels()

    def room(self, shape: tuple[int, ...], dtype: Dtype) -> DeviceArray:
        return empty(shape, dtypes.numpy_dtype(dtype))

    def index(self, like: object, rows: NDArray[np.int64]) -> Any:
        return rows

    def empty(self, like: object, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        return empty(shape, dtype)

    def up(self, like: object, array: object) -> DeviceArray:
        return asarray(array)

    def cast(self, values: DeviceArray, dtype: DTypeLike) -> DeviceArray:
        return values.astype(dtype)

    def plain(self, values: DeviceArray) -> DeviceArray:
        return values
