"""Element types: one record for each, whatever array library spells it.

A Dtype says how elements lie in memory (`storage`, always a numpy dtype that numpy itself has),
what MPI calls them, and which reductions make sense. bfloat16 and the 8-bit floats are stored as
unsigned integers here, because numpy has no such types of its own.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from .._lazy import NDArray, np
from ..errors import DtypeError
from .types import AnyArray


class Dtype(NamedTuple):
    """name: the field's usual one; code: the same small number on every rank; kind: see below;
    storage: numpy dtype string of the bytes; mpi: name of the MPI datatype (None: goes as bytes).
    Of opaque ones there are more than codes: checksum tells them apart, and given is what numpy has."""

    name: str
    code: int
    kind: str  # b bool, i int, u unsigned, f float, h half, c complex, q of 8 bits or fewer, o opaque bytes
    storage: str
    mpi: str | None
    checksum: int = 0
    given: np.dtype[Any] | None = None

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.storage).itemsize)

    def __str__(self) -> str:
        return self.name


# A row's position is its code, which all ranks know alike. So new ones come last. The first 16 are the native
# core's (node/_native/node.h). There may be 61: they are bits of a word (agree/message_kinds.py).
_SHELLS = ("int4", "int2", "uint4", "uint2")  # torch has these names, and no elements of them
_ROWS = [
    ("bool", "b", "?", "C_BOOL"),
    ("int8", "i", "i1", "INT8_T"),
    ("int16", "i", "i2", "INT16_T"),
    ("int32", "i", "i4", "INT32_T"),
    ("int64", "i", "i8", "INT64_T"),
    ("uint8", "u", "u1", "UINT8_T"),
    ("uint16", "u", "u2", "UINT16_T"),
    ("uint32", "u", "u4", "UINT32_T"),
    ("uint64", "u", "u8", "UINT64_T"),
    ("float16", "h", "u2", None),
    ("bfloat16", "h", "u2", None),
    ("float32", "f", "f4", "FLOAT"),
    ("float64", "f", "f8", "DOUBLE"),
    ("longdouble", "f", "g", "LONG_DOUBLE"),
    ("complex64", "c", "c8", "C_FLOAT_COMPLEX"),
    ("complex128", "c", "c16", "C_DOUBLE_COMPLEX"),
    ("clongdouble", "c", "G", "C_LONG_DOUBLE_COMPLEX"),
    *((f"float8_{form}", "q", "u1", None) for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")),
    *((f"float8_{form}", "q", "u1", None) for form in ("e3m4", "e4m3", "e4m3b11fnuz")),
    *((f"float{form}", "q", "u1", None) for form in ("6_e2m3fn", "6_e3m2fn", "4_e2m1fn")),
    *((name, "q", "u1", None) for name in _SHELLS),
]
BY_NAME = {name: Dtype(name, i + 1, kind, storage, mpi) for i, (name, kind, storage, mpi) in enumerate(_ROWS)}
_OPAQUE_CODE = 128  # of all opaque types


@lru_cache(maxsize=256)
def from_numpy(dtype: np.dtype[np.generic]) -> Dtype:
    """The record for a numpy dtype.

    Raises:
        DtypeError: the byte order is not this machine's, or the elements are Python objects.
    """
    if not dtype.isnative:
        what = f"the byte order of dtype {dtype.str!r} is not this machine's"
        raise DtypeError(what, hint="x.astype(x.dtype.newbyteorder('='))")
    if dtype.hasobject:
        what = f"dtype {dtype} holds Python objects, whose addresses mean nothing on another rank"
        raise DtypeError(what, hint="the call's _object form, which pickles")
    if dtype.kind in "biufc" or dtype.name in BY_NAME:
        name = {"fg": "longdouble", "cG": "clongdouble"}.get(dtype.kind + dtype.char, dtype.name)
        if name in BY_NAME:
            return BY_NAME[name]
    storage = dtype.str if dtype.kind in "SUmM" else f"V{dtype.itemsize}"
    return Dtype(str(dtype), _OPAQUE_CODE, "o", storage, None, crc32(str(dtype).encode()), dtype)


def from_torch(dtype: object) -> Dtype:
    """The record for a torch.dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in BY_NAME or name in _SHELLS:
        other = "complex64" if name.startswith("complex") else "float32"
        raise DtypeError(f"torch dtype {name} cannot be sent", hint=f"x.to(torch.{other})")
    return BY_NAME[name]


def torch_dtype(dtype: Dtype) -> Any:
    """torch's spelling of dtype, for a tensor that is to be made."""
    found = getattr(sys.modules["torch"], dtype.name, None)
    if found is None or dtype.name in _SHELLS:
        raise DtypeError(f"torch has no dtype {dtype.name}", hint="receive into a numpy array")
    return found


def parse(dtype: Any) -> tuple[Dtype, bool]:
    """A dtype as a user gives it (string, numpy dtype or type, torch.dtype) and whether it was torch's."""
    if type(dtype).__module__ == "torch":
        return from_torch(dtype), True
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype], False
    try:
        meant = np.dtype(dtype)
    except TypeError:
        raise DtypeError(f"{dtype!r} is no dtype", hint="such as 'float32'") from None
    if not meant.itemsize:
        raise DtypeError(f"{dtype!r} does not say how long an element is", hint="such as 'S8'")
    return from_numpy(meant), False


def numpy_dtype(dtype: Dtype) -> np.dtype[np.generic]:
    """The numpy dtype that a user wants to see: bfloat16 needs ml_dtypes, float16 is numpy's own."""
    if dtype.kind in "hq" and dtype.name != "float16":
        try:
            import ml_dtypes  # noqa: F401
        except ImportError:
            what = f"numpy has no {dtype.name} of its own"
            raise DtypeError(what, hint="pip install ml_dtypes, or use torch") from None
        return np.dtype(str(dtype.name))  # ml_dtypes has registered it
    return np.dtype(dtype.name) if dtype.given is None else dtype.given


def widen(halves: AnyArray, dtype: Dtype) -> NDArray[np.float32]:
    """float32 copies of half values given as their uint16 bits (any shape, contiguous result)."""
    shape = halves.shape
    halves = (
        np.ascontiguousarray(halves).reshape(-1).reshape(shape)
    )  # with strides of its own, also where n = 1
    torch = sys.modules.get("torch")
    if torch is not None:  # its conversion is vectorised for both half types, numpy's is not
        if not halves.flags.writeable:
            halves = halves.copy()
        wide: Any = torch.from_numpy(halves).view(getattr(torch, dtype.name)).float().numpy()
    elif dtype.name == "float16":
        with np.errstate(all="ignore"):  # a signalling NaN
            wide = halves.view(np.float16).astype(np.float32)
    else:
        wide = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(wide)


def narrow(singles: NDArray[np.float32], dtype: Dtype) -> NDArray[np.uint16]:
    """uint16 bits of float32 values rounded to nearest even, as the hardware does; NaN stays NaN."""
    singles = np.asarray(singles)  # arithmetic on 0-d arrays makes numbers of them
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = torch.from_numpy(singles).to(getattr(torch, dtype.name))
        return np.asarray(tensor.view(torch.uint16).numpy())
    if dtype.name == "float16":
        with np.errstate(all="ignore"):  # past 65504 is infinity, as float16 has it
            return np.asarray(singles.astype(np.float16).view(np.uint16))
    bits = singles.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(singles), np.uint32(0x7FC0), rounded).astype(np.uint16))
