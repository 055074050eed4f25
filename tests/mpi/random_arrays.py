"""Which arrays a random program brings to its calls."""

from __future__ import annotations

import random
from typing import Any

from arrays import INPUT_ONLY, UNUSUAL, exists
from random_model import FUNCTIONS, OPS, sort_of

LENGTHS = (1, 2, 3, 5, 7, 100, 129, 776, 1000, 1024, 4097, 8192, 16_385)
LONG = (65_536, 70_001, 131_072, 300_000)
LAYOUTS = (
    "contiguous",
    "contiguous",
    "sliced",
    "transposed",
    "fortran",
    "negative",
    "read_only",
    "repeated",
    *UNUSUAL,
)


class Arrays:
    """The part of a Writer that chooses arrays."""

    rng: random.Random

    def shape(self, stacked: bool) -> tuple[int, ...]:
        choice = self.rng.random()
        if choice < 0.07:
            return ()
        if choice < 0.14:
            return self.rng.choice([(0,), (2, 0, 3), (0, 4)])
        if choice < 0.45:
            return tuple(self.rng.randint(1, 5) for _ in range(self.rng.randint(1, 3)))
        if choice > 0.95:
            return (self.rng.choice(LONG),)
        n = self.rng.choice(LENGTHS)
        return (n,) if stacked or self.rng.random() < 0.7 else (n, self.rng.randint(1, 3))

    def laid(
        self, dtype: str, shape: tuple[int, ...], kinds: tuple[str, ...], writable: bool = False
    ) -> dict[str, str]:
        """Kind and layout of an array that can be."""
        while True:
            kind = self.rng.choice(kinds)
            usual = ("zero_d",) if shape == () else ("empty",) if 0 in shape else LAYOUTS
            layout = self.rng.choice((*usual, *UNUSUAL) if len(usual) == 1 else usual)
            if layout == "transposed" and len(shape) < 2:
                continue
            if writable and layout in INPUT_ONLY:
                continue
            if kind == "numpy" or exists(kind, dtype, layout):
                return {"kind": kind, "layout": layout}

    def kinds(self, dtype: str, function: str | None = None) -> tuple[str, ...]:
        if sort_of(dtype) == "moved" or (
            function == "twice_plus" and dtype in ("uint16", "uint32", "uint64")
        ):
            return ("numpy",)
        rare = ("memoryview", "dlpack") if function is None and self.rng.random() < 0.1 else ()
        rare = tuple(kind for kind in rare if exists(kind, dtype, "contiguous"))
        rare += ("number",) * exists("number", dtype, "zero_d")
        return ("numpy", "numpy", "torch", "torch", *rare)

    def operator(self, verb: str, dtype: str) -> dict[str, Any]:
        op = self.rng.choice([op for op in OPS[sort_of(dtype)] if op != "avg" or "scan" not in verb])
        if self.rng.random() < 0.15:
            op = self.rng.choice(list(FUNCTIONS))
        return (
            {"op": op, "factor": self.rng.choice((2, 3, -1 if dtype[0] != "u" else 1))}
            if op == "premul_sum"
            else {"op": op}
        )

    @staticmethod
    def result_shape(verb: str, shape: tuple[int, ...], p: int, joined: bool) -> tuple[int, ...]:
        """Of a result, where x is of that shape, or its blocks where x is stacked."""
        if joined:
            return (p * shape[0], *shape[1:]) if verb in ("gather", "all_gather", "all_to_all") else shape
        return (p, *shape) if verb in ("gather", "all_gather", "all_to_all") else shape
