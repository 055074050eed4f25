"""Checksum of a field that does not depend on the partition.

Each element is multiplied by an odd number drawn from its global index, and all products are added
modulo 2**64 (multilinear hashing: Carter & Wegman 1979, Lemire & Kaser 2014). A sum can be made in any
order, so every rank adds up its own and one all_reduce gives the checksum of the whole, whatever the
partition; a checkpoint of p ranks is verified on q. It guards against accidents, not against forgery.

The number for element (i, j) is a(i) * b(j), i counting rows of the last axis: two short tables instead
of one as long as the array. Cost: about one multiplication and one addition for each 4 bytes.
"""

from __future__ import annotations

import math

from ..._lazy import NDArray, np
from ...core.partition import Points
from ...core.types import AnyArray
from ..field import Field

_BLOCK = 1 << 16  # units that are widened at a time: what fits into the cache


def checksum(field: Field, owned: AnyArray | None = None) -> int:
    """The checksum of the whole, a number below 2**64, the same on every rank. Collective.

    Args:
        owned: what this rank owns, if not yet in the field.
    """
    own = field.on_host() if owned is None else owned
    mine = _sum(field, own) if field.is_first and own.size else 0
    return int(field.comm.all_reduce(np.array([mine], np.uint64))[0])


def _sum(field: Field, own: AnyArray) -> int:
    rows, first, columns = _rows(field)
    unit = own.itemsize if own.itemsize in (1, 2) else 4 if own.itemsize % 4 == 0 else 1
    per = own.itemsize // unit  # units of an element
    flat = np.ascontiguousarray(own).reshape(len(rows), -1).view(f"u{unit}")
    a = _odd(rows, 1)
    b = _odd(np.arange(first * per, (first + columns) * per, dtype=np.uint64), 2)
    total = 0
    step = max(1, _BLOCK // b.size)
    for i in range(0, len(rows), step):
        inner = flat[i : i + step].astype(np.uint64) @ b
        total += int((inner * a[i : i + step]).sum())
    return total % 2**64


def _rows(field: Field) -> tuple[NDArray[np.uint64], int, int]:
    """Numbers of this rank's rows in the whole, the first column, and how many columns."""
    if isinstance(field.partition, Points):
        return field.partition.owned[field.comm.rank].astype(np.uint64), 0, math.prod(field.shape[1:])
    assert field.box is not None
    start, stop, shape = field.box.start, field.box.stop, field.shape
    if len(shape) < 2:  # one long row would make a table as long as the array; many short ones do not
        n = stop[0] - start[0] if shape else 1
        return np.arange(start[0] if shape else 0, (start[0] if shape else 0) + n, dtype=np.uint64), 0, 1
    rows = np.zeros((1,) * (len(shape) - 1), np.uint64)
    for axis in range(len(shape) - 1):
        along = [1] * (len(shape) - 1)
        along[axis] = -1
        index = np.arange(start[axis], stop[axis], dtype=np.uint64).reshape(along)
        rows = rows * np.uint64(shape[axis]) + index
    return rows.reshape(-1), start[-1], stop[-1] - start[-1]


def _odd(index: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """An odd number for every index, as good as random (splitmix64: Steele, Lea & Flood 2014)."""
    z = (index + np.uint64(salt << 56)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: NDArray[np.uint64] = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return odd
