"""Any object and any array, for random mixtures: the same on all ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

DTYPES = ("float64", "int32", "uint8", "complex128", "float16", "bool", "int64")


def thing(rng: random.Random, depth: int = 0) -> Any:
    """Any object, with arrays in it or without."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, 3.5, -(1 << 70), "", "text" * rng.randrange(500)])
    if kind == 1:
        return bytes(rng.randrange(256) for _ in range(rng.choice([0, 1, 30])))
    if kind in (2, 3):
        return array(rng)
    if kind == 4:
        return bytearray(rng.choice([5, 5000, 200_000]))
    if kind == 5:
        return rng.randrange(1000)
    if kind == 6:
        return [thing(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{i}": thing(rng, depth + 1) for i in range(rng.randrange(4))}


def array(rng: random.Random) -> Any:
    """An array of any shape: long, short, empty, strided, of Fortran's order."""
    dtype = np.dtype(rng.choice(DTYPES))
    shape = rng.choice([(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (5, 2, 2), (3000,), (70_000,), (300_001,)])
    step = rng.choice([1, 1, 2]) if shape and shape[0] < 5000 else 1
    whole = (shape[0] * step, *shape[1:]) if shape else ()
    x = (np.arange(int(np.prod(whole)), dtype="int64").reshape(whole) * 7 + rng.randrange(90)) % 97
    x = x.astype(dtype)[::step] if shape else np.array(rng.randrange(90)).astype(dtype)
    return x.T if rng.randrange(4) == 0 else x


def same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        is_alike = isinstance(a, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        return is_alike and np.array_equal(a, b)
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in b)
    if isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def short(x: Any) -> str:
    return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else repr(x)[:80]
