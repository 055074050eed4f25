"""The law of order of docs/reproducible.md in plain numpy and torch, and the elements that differ from it.

From the left, in the order of ranks, within nodes and then between them; halves in float32, rounded once at
the end; averages divided at the end.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import torch
from arrays import COMPLEX, HALVES


def given(dtype: str, n: int, rank: int) -> Any:
    """Numbers whose sum depends on the order, of many magnitudes."""
    rng = np.random.default_rng([n, rank])
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)
    if dtype in HALVES:
        return torch.from_numpy(x).to(getattr(torch, dtype))
    return (x + 1j * rng.standard_normal(n)).astype(dtype) if dtype in COMPLEX else x.astype(dtype)


def law(op: str, xs: list[Any], nodes: list[list[int]]) -> Any:
    by = torch.add if isinstance(xs[0], torch.Tensor) else np.add
    by = by if op != "prod" else torch.mul if by is torch.add else product
    wide = [x.float() if isinstance(x, torch.Tensor) else x for x in xs]
    with np.errstate(all="ignore"):
        total = reduce(by, [reduce(by, [wide[r] for r in ranks]) for ranks in nodes])
        if isinstance(total, torch.Tensor):
            return (total / len(xs) if op == "avg" else total).to(xs[0].dtype)
        total = total.copy()
        if op == "avg":
            for part in (total.real, total.imag) if total.dtype.kind == "c" else (total,):
                part /= len(xs)
    return total


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of complex numbers part by part: numpy's own fuses multiplications and additions on some processors."""
    if a.dtype.kind != "c":
        return a * b
    made = np.empty_like(a)
    made.real, made.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    return made


def bits(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        x = x.contiguous().view(torch.int16).numpy()
    x = np.ascontiguousarray(x).reshape(-1)
    return x.view(np.uint8).reshape(x.size, -1)


def differing(have: Any, wanted: Any) -> int:
    return int((bits(have) != bits(wanted)).any(axis=1).sum())


def nodes_of(size: int, many: int) -> list[list[int]]:
    """Ranks in turn on so many nodes."""
    return [[*range(node, size, many)] for node in range(min(many, size))]
