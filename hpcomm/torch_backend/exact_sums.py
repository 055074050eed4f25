"""Sums that do not depend on the number of ranks (HPCOMM_DETERMINISTIC=1): each rank adds a block exactly."""

from __future__ import annotations

from typing import Any

import torch

from ..schedule import exact
from .network_collectives import HALVES, NetworkCollectives
from .node_collectives import NodeCollectives

Tensor = torch.Tensor
_PIECE = 2 << 20  # bytes of a tensor that are summed at a time


class ExactSums(NetworkCollectives):
    """Of a piece each rank gets a block of all ranks', adds it exactly and rounds once."""

    is_exact = True

    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        if not _is_sum(x, op):
            super().all_reduce(x, op, out=out)
            return
        self.arrive()
        for piece in x.view(-1).split(_PIECE // x.element_size()):
            n = piece.numel()
            blocks = x.new_zeros((self.size, -(-n // self.size)))
            blocks.view(-1)[:n] = piece
            self.all_gather(self._total(blocks, op), out=blocks)
            piece.copy_(blocks.view(-1)[:n])

    def reduce(self, x: Tensor, op: Any, root: int, *, out: Tensor | None = None) -> Tensor | None:
        if not _is_sum(x, op):
            return super().reduce(x, op, root, out=out)
        total = x.clone()
        self.all_reduce(total, op, out=total)
        if self.rank != root:
            return None
        return total if out is None else out.copy_(total)

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        if not _is_sum(x, op):
            super().reduce_scatter(x, op, out=out)
            return
        self.arrive()
        each, rows = max(_PIECE // (x.element_size() * self.size), 1), x.view(self.size, -1)
        for block, columns in zip(out.view(-1).split(each), rows.split(each, 1), strict=True):
            block.copy_(self._total(columns.contiguous(), op))

    def _total(self, blocks: Tensor, op: str) -> Tensor:
        """Of block r of all ranks, on rank r."""
        parts = torch.empty_like(blocks)
        self.all_to_all(blocks, out=parts)
        wide = parts.float() if parts.dtype in HALVES else parts
        total = torch.from_numpy(exact.reduce_ranks(wide.numpy(), "SUM"))
        return (total.div_(self.size) if op == "avg" else total).to(parts.dtype)


class ExactOnNode(ExactSums, NodeCollectives):
    """The same, where the core moves the blocks."""


def _is_sum(x: Tensor, op: Any) -> bool:
    """Whether it is a sum of floats; others do not depend on an order, or are made of such a sum."""
    return op in ("sum", "avg") and (x.is_floating_point() or x.is_complex()) and x.numel() > 0
