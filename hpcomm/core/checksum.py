"""Checksums that are sums: parts of an array, on whichever ranks, add up to that of the whole.

Each unit of at most 4 bytes is multiplied by an odd number drawn from its place, and all products are added
modulo 2**64 (multilinear hashing: Carter & Wegman 1979, Lemire & Kaser 2014). A sum can be made in any order.
The low bits tell least. It guards against accidents, not against forgery.

The number for unit (i, j) is a(i) * b(j), i counting rows of the last axis: two short tables instead of one
as long as the array. Cost: about one multiplication and one addition for each 4 bytes.
"""

from __future__ import annotations

from functools import lru_cache

from .._lazy import NDArray, np
from .types import AnyArray

_BLOCK = 1 << 16  # units that are widened at a time: what fits into the cache
_ROW = 1 << 13  # units of a row, where elements are only counted


def of_rows(own: AnyArray, rows: NDArray[np.uint64], first: int, columns: int) -> int:
    """Of elements of some rows of an array, from a first column on; rows: their numbers in the whole."""
    units, per = _units(own)
    flat = units.reshape(len(rows), columns * per)
    a = _odd(rows, 1)
    b = _odd(np.arange(first * per, (first + columns) * per, dtype=np.uint64), 2)
    total = 0
    step = max(1, _BLOCK // max(1, b.size))
    for i in range(0, len(rows), step):
        inner = flat[i : i + step].astype(np.uint64) @ b
        total += int((inner * a[i : i + step]).sum())
    return total % 2**64


def of_elements(own: AnyArray, first: int = 0) -> int:
    """Of elements one after the other, of which that many come before."""
    units, per = _units(own)
    at, end, total = first * per, first * per + units.size, 0
    while at < end:
        row, column = divmod(at, _ROW)
        some = units[at - end :][: _ROW - column]
        total += int(some.astype(np.uint64) @ _columns()[column : column + some.size]) * _factor(row)
        at += some.size
    return total % 2**64


def _units(own: AnyArray) -> tuple[AnyArray, int]:
    """The memory of an array as unsigned numbers, and how many an element has."""
    unit = own.itemsize if own.itemsize in (1, 2) else 4 if own.itemsize % 4 == 0 else 1
    flat = np.ascontiguousarray(own).reshape(-1).view(f"u{unit}")
    return flat, own.itemsize // unit


@lru_cache(maxsize=1)
def _columns() -> NDArray[np.uint64]:
    return _odd(np.arange(_ROW, dtype=np.uint64), 2)


@lru_cache(maxsize=1 << 12)
def _factor(row: int) -> int:
    return int(_odd(np.array([row], np.uint64), 1)[0])


def _odd(index: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """An odd number for every index, as good as random."""
    return mixed((index + np.uint64(salt << 56)) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64, which mixes the bits of each number well (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
