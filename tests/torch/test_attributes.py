"""No call changes its tensors in any attribute but their elements, nor holds them once it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from arrays import attributes, settled

from hpcomm.torch_backend.calls import SAYS_LATER

pytestmark = pytest.mark.once

Tensor = torch.Tensor


def batch(x: Tensor, y: Tensor, n: int) -> None:
    right, left = (dist.get_rank() + 1) % n, (dist.get_rank() - 1) % n
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()


def in_turn(x: Tensor, y: Tensor, n: int) -> None:
    if dist.get_rank() == 0 and n > 1:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(y, 0)


def in_background(x: Tensor, y: Tensor, n: int) -> None:
    for work in (dist.all_reduce(y, async_op=True), dist.broadcast(y, 0, async_op=True)):
        assert work is not None
        work.wait()
        assert work.get_future().done()


def coalesced(x: Tensor, y: Tensor, n: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager():
        dist.all_reduce(y)


# x is read, y is filled, both of n rows
CALLS: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "all_reduce": lambda x, y, n: dist.all_reduce(y),
    "average": lambda x, y, n: dist.all_reduce(y, dist.ReduceOp.AVG),
    "product": lambda x, y, n: dist.all_reduce(y, dist.ReduceOp.PRODUCT),
    "broadcast": lambda x, y, n: dist.broadcast(y, 0),
    "reduce": lambda x, y, n: dist.reduce(y, 0),
    "gather": lambda x, y, n: dist.gather(x[0], [*y] if dist.get_rank() == 0 else None),
    "all_gather": lambda x, y, n: dist.all_gather([*y], x[0]),
    "scatter": lambda x, y, n: dist.scatter(y[0], [*x] if dist.get_rank() == 0 else None),
    "reduce_scatter": lambda x, y, n: dist.reduce_scatter(y[0], [*x]),
    "all_to_all": lambda x, y, n: dist.all_to_all([*y], [*x]),
    "uneven": lambda x, y, n: dist.all_to_all_single(y, x, [1] * n, [1] * n) if y.is_contiguous() else None,
    "single": lambda x, y, n: dist.all_to_all_single(y, x) if y.is_contiguous() else None,
    "rows": lambda x, y, n: dist.all_gather_into_tensor(y, x[0]) if y.is_contiguous() else None,
    "blocks": lambda x, y, n: dist.reduce_scatter_tensor(y[0], x) if y[0].is_contiguous() else None,
    "messages": batch,
    "send and recv": in_turn,
    "in the background": in_background,
    "coalesced": coalesced,
    "objects": lambda x, y, n: dist.all_gather_object([None] * n, {"x": x.detach()}),
}
KINDS: dict[str, Callable[[int], Tensor]] = {
    "plain": lambda n: torch.ones(n, 3),
    "half": lambda n: torch.ones(n, 3, dtype=torch.bfloat16),
    "long": lambda n: torch.ones(n, 300_000),
    "leaf": lambda n: torch.ones(n, 3, requires_grad=True),
    "strided": lambda n: torch.ones(n, 6)[:, ::2],
    "transposed": lambda n: torch.ones(3, n).t(),
    "negative": lambda n: torch.ones(n, 3, dtype=torch.complex64).conj().imag,
}


def seen(x: Tensor) -> dict[str, Any]:
    """Its attributes. With torch 2.6 the last calls keep their tensors: C++ may ask for them at any time."""
    return {name: its for name, its in attributes(x).items() if SAYS_LATER or name != "references"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_changes_its_tensors_but_in_their_elements(kind: str, size: int) -> None:
    wrong = []
    for name, call in CALLS.items():
        x, y = KINDS[kind](size), KINDS[kind](size).detach()
        before = seen(x), seen(y)
        call(x, y, size)
        found = settled(before[0], lambda: seen(x)) + settled(before[1], lambda: seen(y))  # noqa: B023
        wrong += [f"{name}: {line}" for line in found]
    assert wrong == []
