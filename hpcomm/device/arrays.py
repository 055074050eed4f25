"""Device arrays of any library: address, layout, current stream, and how to make another.

The current stream is asked for anew each time, because it is the one that is current when a call is made,
or waited for, whose work must be in order with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .._lazy import loaded, np
from ..core import dtypes
from ..core.dtypes import Dtype
from ..errors import DtypeError, LayoutError
from .driver import Device, driver
from .libraries import LIBRARIES, library_of, stream_of

Shape = tuple[int, ...]
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


@dataclass
class Place:
    """Where an array lies.

    strides: bytes, None for C order
    stream: () -> the library's current stream on that device
    make: shape -> another array of the library's, or None if it is not known here
    pack: () -> a copy in C order, by a kernel of the library's in its current stream, or None
    """

    array: Any
    address: int
    shape: Shape
    strides: Shape | None
    dtype: Dtype
    device: Device
    stream: Callable[[], int]
    make: Callable[[Shape], Any] | None
    pack: Callable[[], Any] | None
    readonly: bool = False
    begun: int = 0  # the stream that was current when a call began

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def name(self) -> str:
        """`cuda:0`."""
        return f"{driver().name}:{self.device.index}"


def place(x: object) -> Place | None:
    """Where x lies; None if it is on the host.

    Raises:
        LayoutError: on a device, but not to be reached there.
        DtypeError: elements that cannot be sent rightly.
        ConfigError: there is no driver for it.
    """
    torch = loaded("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch(x, torch) if x.is_cuda else None
    if hasattr(x, "__cuda_array_interface__"):
        return _interface(x)
    if hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in _DLPACK_CUDA:
        return _dlpack(x, torch)
    return None


def _torch(x: Any, torch: ModuleType) -> Place:
    if x.layout is not torch.strided or type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise LayoutError(f"x is a {type(x).__name__} of layout {x.layout}", hint="a plain dense tensor")
    known = driver()
    dtype = dtypes.from_torch(x.dtype)
    plain = x.detach()
    lazy = plain.is_conj() or plain.is_neg()
    if lazy:
        plain = plain.resolve_conj().resolve_neg()
    strides = None if plain.is_contiguous() else tuple(n * plain.element_size() for n in plain.stride())
    return Place(
        plain, plain.data_ptr(), tuple(plain.shape), strides, dtype, known.device(x.device.index),
        *LIBRARIES["torch"].way(plain), lazy,
    )  # fmt: skip


def _interface(x: Any) -> Place:
    seen = x.__cuda_array_interface__
    if seen.get("mask") is not None:
        raise LayoutError("x has a mask, which would be lost", hint="x filled with a value")
    dtype = dtypes.from_numpy(np.dtype(seen["typestr"]))
    address, readonly = seen["data"]
    shape = tuple(seen["shape"])
    known = driver()
    strides = _strides(seen.get("strides"), shape, dtype.itemsize)
    name = library_of(x)
    index = x.device.id if name == "cupy" else known.device_of(address) if address else 0
    way = LIBRARIES[name].way(x) if name in LIBRARIES else (stream_of(x), None, None)
    return Place(x, address or 0, shape, strides, dtype, known.device(index), *way, readonly)


def _strides(strides: Any, shape: Shape, itemsize: int) -> Shape | None:
    """None where these strides are those of C order."""
    if strides is None or 0 in shape:
        return None
    step = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step:
            return tuple(strides)
        step *= n
    return None


def _dlpack(x: Any, torch: ModuleType) -> Place:
    """Through a library that reads DLPack capsules and orders its own stream behind the producer's."""
    driver()
    reader = loaded("cupy") or torch
    if reader is None:
        what = f"{type(x).__name__} shows its device memory by DLPack only"
        raise LayoutError(what, hint="import cupy, or torch, first")
    try:
        seen = place(reader.from_dlpack(x))
    except (BufferError, RuntimeError, TypeError) as error:
        raise DtypeError(f"{type(x).__name__} does not hand over its memory: {error}") from None
    assert seen is not None
    namespace: Any = getattr(x, "__array_namespace__", lambda: None)()
    own = seen.make
    if hasattr(namespace, "from_dlpack") and own is not None:
        seen.make = lambda shape: namespace.from_dlpack(own(shape))
    return seen
