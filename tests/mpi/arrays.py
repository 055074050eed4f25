"""Every array that hpcomm takes: kinds x dtypes x layouts, made from plain numpy values.

The *plain* values are what a test computes with: bool, int64, uint64, float64 or complex128, so that
what is expected never comes out of hpcomm. `make` turns plain values into the array under test and
`plain_of` reads any array back.

    kind      numpy torch array bytearray memoryview dlpack, and number in random programs
    layout    contiguous sliced transposed fortran negative zero_d empty read_only repeated
"""

from __future__ import annotations

import array as stdlib_array
import gc
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import array_api_strict
import ml_dtypes
import numpy as np
import torch
from steady import steady_time

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)

KINDS = ("numpy", "torch", "array", "bytearray", "memoryview", "dlpack")
LAYOUTS = (
    "contiguous",
    "sliced",
    "transposed",
    "fortran",
    "negative",
    "zero_d",
    "empty",
    "read_only",
    "repeated",
)
UNUSUAL = (
    "unaligned",
    "subclass",
)  # layouts, too, of random programs: at an odd address, of a class of its own
ONE_AXIS = ("array", "bytearray")  # kinds without a shape of their own
INPUT_ONLY = ("read_only", "repeated")

_TYPECODES = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}
_DTYPES_OF = {
    "numpy": DTYPES,
    "torch": DTYPES,
    "array": tuple(_TYPECODES),
    "bytearray": ("uint8",),
    "memoryview": tuple(name for name in DTYPES if name != "bfloat16"),
    "dlpack": tuple(name for name in DTYPES if name not in HALVES),
    "number": ("float64", "complex128"),  # whole ones are refused where a sum might not fit
}
_LAYOUTS_OF = {
    "numpy": (*LAYOUTS, *UNUSUAL),
    "torch": (*[name for name in LAYOUTS if name not in ("negative", "read_only")], "unaligned"),
    "array": ("contiguous", "empty"),
    "bytearray": ("contiguous", "empty"),
    "memoryview": ("contiguous", "sliced", "negative", "fortran", "zero_d", "empty", "read_only"),
    "dlpack": ("contiguous", "sliced", "transposed", "zero_d", "empty"),
    "number": ("zero_d",),
}


class Own(np.ndarray):
    """An array of a class of its own, whose results are plain ones."""


def exists(kind: str, dtype: str, layout: str) -> bool:
    """Whether there is such an array at all."""
    crashes = kind == "torch" and layout == "unaligned" and dtype in COMPLEX  # torch itself, in any operation
    return dtype in _DTYPES_OF[kind] and layout in _LAYOUTS_OF[kind] and not crashes


def shape_of(kind: str, layout: str) -> tuple[int, ...]:
    """A shape that shows the layout: three unequal axes where the kind has axes."""
    if layout == "zero_d":
        return ()
    if kind in ONE_AXIS:
        return (0,) if layout == "empty" else (6,)
    return (2, 0, 3) if layout == "empty" else (2, 3, 4)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)


def plain_dtype(dtype: str) -> np.dtype[Any]:
    """The type in which a test computes with dtype."""
    if dtype == "bool":
        return np.dtype(bool)
    if dtype in INTEGERS:
        return np.dtype("uint64" if dtype.startswith("u") else "int64")
    return np.dtype("complex128" if dtype in COMPLEX else "float64")


def plain_values(dtype: str, shape: tuple[int, ...], seed: int, layout: str = "contiguous") -> np.ndarray:
    """Small whole values, so that sums and products of four are exact in every dtype."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        values = rng.integers(0, 2, shape).astype(bool)
    elif dtype.startswith("uint"):
        values = rng.integers(0, 4, shape).astype(np.uint64)
    elif dtype in COMPLEX:
        values = rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)
    else:
        values = rng.integers(-3, 4, shape).astype(plain_dtype(dtype))
    if layout == "repeated" and values.size:
        values = np.broadcast_to(values[..., :1], shape).copy()
    return np.asarray(values)


def make(kind: str, dtype: str, layout: str, plain: np.ndarray) -> Any:
    """An array of kind and dtype with the values of plain, lying in memory as layout says."""
    laid = _lay_out(np.asarray(plain).astype(numpy_dtype(dtype)), layout)
    if kind == "numpy":
        return laid
    if kind == "number":
        return laid.item()
    if kind == "torch":
        return _torch(laid, dtype) if layout != "unaligned" else _unaligned(laid, dtype)
    if kind == "memoryview":
        return memoryview(laid)
    if kind == "dlpack":
        return _array_api(laid, layout)
    if kind == "array":
        return stdlib_array.array(_TYPECODES[dtype], laid.tobytes())
    assert kind == "bytearray", kind
    return bytearray(laid.tobytes())


def plain_of(x: Any) -> np.ndarray:
    """The values of any array, number or list of numbers that came back, in plain types."""
    if isinstance(x, torch.Tensor):
        return _plain(_numpy_of_torch(x))
    if isinstance(x, (bytes, bytearray)):
        return _plain(np.frombuffer(bytes(x), np.uint8))
    if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        return _plain(np.array(np.from_dlpack(x)))
    return _plain(np.array(x))


def dtype_of(x: Any) -> str:
    """The name of x's dtype, spelt the same for every kind."""
    if isinstance(x, torch.Tensor):
        return str(x.dtype).removeprefix("torch.")
    if isinstance(x, (bytes, bytearray)):
        return "uint8"
    if isinstance(x, stdlib_array.array):
        return {code: name for name, code in _TYPECODES.items()}[x.typecode]
    if isinstance(x, memoryview | int | float | complex):
        return np.asarray(x).dtype.name
    return str(x.dtype).removeprefix("array_api_strict.")


def kind_of(x: Any) -> str:
    """Which of KINDS x is."""
    if isinstance(x, torch.Tensor):
        return "torch"
    if isinstance(x, stdlib_array.array):
        return "array"
    if isinstance(x, (np.ndarray, bytearray, memoryview)):
        return {"ndarray": "numpy", "Own": "numpy"}.get(type(x).__name__, type(x).__name__)
    if isinstance(x, int | float | complex):
        return "number"
    return "dlpack" if hasattr(x, "__array_namespace__") else type(x).__name__


def bits(x: Any) -> bytes:
    """Every byte of x in C order: what 'x is unchanged' means, NaN and signs of zero included."""
    if isinstance(x, torch.Tensor):
        return bytes(_numpy_of_torch(x).tobytes())
    if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        return bytes(np.array(np.from_dlpack(x)).tobytes())
    return bytes(np.array(x).tobytes())


def attributes(x: Any) -> dict[str, Any]:
    """What can be asked of x but its elements, also who holds it, and whether its memory can be resized."""
    found: dict[str, Any] = {"references": sys.getrefcount(x) if x is not None else 0}
    for name in _attributes_of(type(x)):
        with suppress(RuntimeError):  # inference tensors have no version
            found[name] = str(getattr(x, name))
    if isinstance(x, np.ndarray):
        found |= {"address": x.__array_interface__["data"], "base": id(x.base)}
    elif isinstance(x, torch.Tensor):
        found |= {name: getattr(x, name)() for name in ("is_conj", "is_inference", "is_neg", "is_shared")}
        if x.layout is torch.strided:
            storage = x.untyped_storage()
            found["storage"] = storage.data_ptr(), storage.nbytes(), storage.resizable()
            found["steps"] = x.storage_offset(), x.stride()
    elif isinstance(x, (bytearray, stdlib_array.array)):
        with suppress(BufferError):  # somebody looks into it
            x.append(0)
            found["grows"] = x.pop() == 0
    return found


@lru_cache(maxsize=32)
def _attributes_of(kind: type) -> tuple[str, ...]:
    """The names of what instances have: neither methods nor what is made of their elements."""
    made_anew = {
        "T", "mT", "H", "mH", "real", "imag", "data", "flat", "ctypes", "base", "_base", "obj", "_cdata",
        "_array", "volatile",
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [name for name in dir(kind) if not name.startswith("__") and name not in made_anew]
        return tuple(name for name in names if not callable(getattr(kind, name)))


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What two looks at attributes tell apart."""
    return [
        f"{name}: {before.get(name)} became {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def settled(before: dict[str, Any], look: Callable[[], dict[str, Any]]) -> list[str]:
    """What a look at attributes tells apart from one before.

    Threads that watch what this rank waits in hold its last call, and so its arrays, for a moment; where they
    look at each other while they do so, until Python collects garbage.
    """
    end = steady_time() + 5.0
    while (found := changed(before, look())) and steady_time() < end:
        time.sleep(1e-3)
    if found:
        gc.collect()
    return found and changed(before, look())


def _lay_out(values: np.ndarray, layout: str) -> np.ndarray:
    if layout == "sliced":
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if (
        layout == "transposed"
    ):  # the first axis runs fastest but the others keep their order: neither C nor Fortran
        return np.moveaxis(np.moveaxis(values, 0, -1).copy(), -1, 0)
    if layout == "fortran":
        return np.array(values, order="F")
    if layout == "negative":
        reverse = (slice(None, None, -1),) * values.ndim
        return values[reverse].copy()[reverse]
    if layout == "repeated":
        return np.broadcast_to(values[..., :1].copy(), values.shape)
    if layout == "unaligned":
        odd = np.ndarray(values.shape, values.dtype, bytearray(values.nbytes + 17), 1)
        odd[...] = values
        return odd
    if layout == "subclass":
        return values.copy().view(Own)
    laid = values.copy()
    laid.flags.writeable = layout != "read_only"
    return laid


def _torch(laid: np.ndarray, dtype: str) -> torch.Tensor:
    if not laid.flags.writeable:  # a stride of 0 comes back through expand, which torch does itself
        return _torch(laid[..., :1].copy(), dtype).expand(laid.shape)
    laid = laid.view(np.int16) if dtype in HALVES else laid
    strides = [step // laid.itemsize for step in laid.strides]
    own = torch.empty_strided(
        laid.shape, strides, dtype=torch.from_numpy(laid).dtype
    )  # in memory of torch's own
    return own.copy_(torch.from_numpy(laid)).view(getattr(torch, dtype))


def _unaligned(laid: np.ndarray, dtype: str) -> torch.Tensor:
    memory, count = bytearray(laid.nbytes + 17), max(laid.size, 1)
    odd = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count, offset=1)
    return odd[: laid.size].view(laid.shape).copy_(_torch(laid.copy(), dtype))


def _numpy_of_torch(x: torch.Tensor) -> np.ndarray:
    x = x.detach().clone(memory_format=torch.contiguous_format)  # numpy() leaves a mark on the storage
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()


def _array_api(laid: np.ndarray, layout: str) -> Any:
    if layout == "sliced":
        return array_api_strict.asarray(laid.base)[..., ::2]
    if layout == "transposed":
        return array_api_strict.moveaxis(array_api_strict.asarray(laid.base), -1, 0)
    return array_api_strict.asarray(laid)


def _plain(values: np.ndarray) -> np.ndarray:
    name = values.dtype.name
    if name == "bool":
        return values
    if values.dtype.kind in "iu":
        return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
