"""Layout helpers: tensors as contiguous rows of memory, and reductions of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..core.buffer import tensor_memory
from ..errors import LayoutError
from .calls import WHOLE
from .network_collectives import HALVES

__all__ = [
    "FOLDS",
    "KINDS",
    "Bytes",
    "as_bytes",
    "copying",
    "fit",
    "flat_of",
    "fold",
    "folding",
    "folds",
    "give_back",
    "put",
    "rows_of",
    "target",
]

Tensor = torch.Tensor
Bytes = npt.NDArray[np.uint8]
FOLDS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
KINDS = {
    *HALVES, torch.float32, torch.float64,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


def folds(dtype: torch.dtype, op: Any) -> bool:
    return type(op) is str and op in FOLDS and dtype in KINDS and (op != "avg" or dtype not in WHOLE)


def flat_of(x: Tensor) -> Tensor:
    """x as one row of plain memory, its own if it is; not seen by autograd, nor counted by its versions."""
    x = x.data
    if x.is_neg() or x.is_conj() or not x.is_contiguous():
        x = x.resolve_neg().resolve_conj().contiguous()
    if x.dim() != 1:
        x = x.view(-1)
    return x if x.stride(0) == 1 else x.as_strided(x.shape, (1,))  # one element is contiguous with any stride


def target(x: Tensor) -> Tensor:
    """As flat_of, of a tensor that is to be filled."""
    if any(step == 0 and length > 1 for step, length in zip(x.stride(), x.shape, strict=True)):
        raise LayoutError(
            f"out is broadcast: shape {tuple(x.shape)}, strides {x.stride()}; several elements share memory",
            hint="give a tensor with memory for each element, x.contiguous()",
        )
    return flat_of(x)


def rows_of(x: Tensor) -> Tensor:
    """x, of shape (n, ...), as n rows; its own memory where that is contiguous."""
    return flat_of(x).view(len(x), -1) if x.numel() else x.data.new_empty((len(x), 0))


def give_back(flat: Tensor, x: Tensor) -> None:
    """Fill x from what flat_of(x) gave."""
    if flat.data_ptr() != x.data_ptr():
        x.data.copy_(flat.view(x.dtype).view(x.shape))


def as_bytes(flat: Tensor) -> Bytes:
    return tensor_memory(flat, "u1", (flat.nbytes,))


def fit(view: Tensor, x: Tensor) -> Tensor:
    return view if len(view) == len(x) else view[: len(x)]


def put(view: Tensor, x: Tensor) -> None:
    fit(view, x).copy_(x)


def copying(there: Tensor, here: Tensor) -> Callable[[], None]:
    """What copies here to there, both of plain memory; of numpy, which begins faster than torch."""
    return partial(np.copyto, as_bytes(there), as_bytes(here))


def folding(op: str, parts: list[Tensor], out: Tensor) -> Callable[[], Any]:
    """What carries out fold(op, parts, out)."""
    if len(parts) == 2 and op != "avg":
        return partial(FOLDS[op], *parts, out=out)
    return partial(fold, op, parts, out)


def fold(op: str, parts: list[Tensor], out: Tensor) -> None:
    """Reduce parts, in their order, into out, which may be the first of them; halves are rounded once."""
    function = FOLDS[op]
    if out.dtype in HALVES and op != "min" and op != "max" and (len(parts) > 2 or op == "avg"):
        wide = parts[0].float()
        for part in parts[1:]:
            function(wide, part, out=wide)
        out.copy_(wide.div_(len(parts)) if op == "avg" else wide)
        return
    function(parts[0], parts[1], out=out)
    for part in parts[2:]:
        function(out, part, out=out)
    if op == "avg":
        out.div_(len(parts))
