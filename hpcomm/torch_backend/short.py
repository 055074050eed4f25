"""The short way of small calls: from addresses that were seen before straight to copies and one fold.

What near.py does takes 10 to 30 us in torch's views, whose length a small call does not justify. A plan holds
these views, of numpy, for the addresses of a call's tensors; programs communicate from the same ones over
and over. The way through the shelves, and so what the other ranks see, is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .far import HALVES

if TYPE_CHECKING:
    from .near import Near

__all__ = ["Way", "find"]

_KEPT = 1000  # plans
_FOLDS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

Tensor = torch.Tensor
Way = Callable[..., bool]
Key = tuple[int, int, int, int]  # addresses and lengths of x and out
Pairs = list[tuple[memoryview, memoryview]]  # where to copy, and what
Plan = tuple[Pairs, Pairs, Callable[[], Any] | None]  # before the ranks meet, and after; then what folds


def find(near: Near, verb: str, op: Any, dtype: torch.dtype, root: int) -> Way:
    """way(x, out, n, *call): carry out the verb on n plain elements of dtype; False if it cannot be here.

    call is what the gate is told.
    """
    plans: dict[Key, list[Plan]] = {}
    meet, following = near.gate.meet, [*range(1, near.places), 0]

    def way(x: Tensor, out: Tensor, n: int, mine: int, seconds: float, words: Any, told: Any) -> bool:
        at = x.data_ptr()
        key = (at, at, n, n) if out is x else (at, out.data_ptr(), n, out.numel())
        plan = plans.get(key)
        if plan is None:
            if len(plans) > _KEPT:
                plans.clear()
            plan = plans[key] = _plan(near, verb, op, dtype, root, key)
        if not plan:
            return False
        lays, takes, fold = plan[near.place]
        for there, here in lays:
            there[:] = here
        meet(mine, seconds, words, told)
        near.place = following[near.place]
        for there, here in takes:
            there[:] = here
        if fold is not None:
            fold()
        return True

    return way


def _plan(near: Near, verb: str, op: Any, dtype: torch.dtype, root: int, key: Key) -> list[Plan]:
    """The plan for each place of the shelves; none where tensors do not fit or overlap."""
    (x_at, out_at, n, m), p, me = key, near.size, near.rank
    cuts = verb in ("reduce_scatter", "all_to_all")
    gives, takes = {"all_gather": (p, 1), "reduce_scatter": (1, p)}.get(verb, (1, 1))
    if n * gives != m * takes or n % (p if cuts else 1):
        return []
    apart = x_at + n * dtype.itemsize <= out_at or out_at + m * dtype.itemsize <= x_at
    same = x_at == (out_at + me * n * dtype.itemsize if verb == "all_gather" else out_at)
    if not apart and (cuts or not same):
        return []
    block = n // p if cuts else n
    x, out = _at(x_at, n, dtype).split(block), _at(out_at, m, dtype).split(block)
    others = [q for q in range(p) if q != me]
    plans: list[Plan] = []
    for shelves in near.shelves(x[0], block):
        mine, first, fold = shelves[me], [shelf[0] for shelf in shelves], None
        if verb == "broadcast":
            lay, take = ([(mine[0], x[0])], []) if me == root else ([], [(out[0], first[root])])
        elif verb == "all_reduce":
            lay, take, fold = [(mine[0], x[0])], [], _folding(near, op, first, out[0])
        elif verb == "all_gather":
            lay, take = [(mine[0], x[0])], [(out[q], first[q]) for q in others]
            take += [] if same else [(out[me], x[0])]
        else:
            lay, take = [(mine[q], x[q]) for q in others], []
            parts = [x[me], *(shelves[q][me] for q in others)]
            if verb == "reduce_scatter":
                fold = _folding(near, op, parts, out[0])
            else:
                take = [(out[q], part) for q, part in zip([me, *others], parts, strict=True)]
        plans.append((_bytes(lay), _bytes(take), fold))
    return plans


def _at(address: int, n: int, dtype: torch.dtype) -> Tensor:
    from mpi4py import MPI  # here: under torchrun it must be told first where it is (pmi.py)

    return torch.frombuffer(MPI.buffer.fromaddress(address, n * dtype.itemsize), dtype=dtype)


def _bytes(pairs: list[tuple[Tensor, Tensor]]) -> Pairs:
    """As views of memory, which begin to copy in a third of numpy's time."""
    return [(_view(there), _view(here)) for there, here in pairs]


def _view(x: Tensor) -> memoryview:
    return x.view(torch.uint8).numpy().data


def _folding(near: Near, op: str, parts: list[Tensor], out: Tensor) -> Callable[[], Any]:
    """What folds parts into out: numpy's functions, which begin three times as fast as torch's."""
    if out.dtype in HALVES:
        return near.folding(op, parts, out)
    into, function = out.numpy(), _FOLDS[op]
    arrays: Any = [part.numpy() for part in parts]
    if len(parts) == 2 and op in ("sum", "prod"):  # no keyword: it costs as much as the sum
        return partial(near.calmly, function, arrays[0], arrays[1], into)

    def fold() -> None:
        function(arrays[0], arrays[1], out=into)
        for array in arrays[2:]:
            function(into, array, out=into)
        if op == "avg":
            np.divide(into, len(arrays), out=into)

    return partial(near.calmly, fold)
