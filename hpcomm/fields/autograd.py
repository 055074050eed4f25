"""Communication that torch.autograd sees through: gradients travel the way back.

What is differentiated is the sum of all ranks' losses, each rank calling backward() on its own. Then the
way back of a copy is a sum, that of a sum a copy:

    forward          backward                 forward          backward
    all_reduce       all_reduce (sum)         send             recv of the gradient
    all_gather       reduce_scatter (sum)     recv             send of the gradient
    reduce_scatter   all_gather               update_halo      halos added to their owners
    all_to_all       all_to_all               redistribute     redistribution from target to source
    broadcast        reduce to root

Backward passes communicate, so every rank that took part in the forward must come to the backward too,
and several of them in the same order on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ..agree import runtime
from ..communicator.communicator import Communicator
from ..errors import DtypeError, LayoutError, UsageError, demand, where
from ..transport.endpoints import set_zero
from .exchange import Exchange
from .halo import Halo, reverse
from .own_part import OwnPart, faces
from .redistribution import Redistribution

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from .field import Field


def all_reduce(comm: Communicator, x: Tensor, op: Literal["sum", "avg"] = "sum") -> Tensor:
    """comm.all_reduce(x, op) for op "sum" or "avg"."""
    _over(comm, "all_reduce")
    if op not in ("sum", "avg"):
        raise UsageError(
            f"all_reduce with {op!r} has no gradient here", where("all_reduce", comm), "'sum' or 'avg'"
        )
    return _through(comm, x, lambda t: comm.all_reduce(t, op), lambda g: comm.all_reduce(g, op))


def all_gather(comm: Communicator, x: Tensor) -> Tensor:
    """comm.all_gather(x): shape (p, *x.shape)."""
    _over(comm, "all_gather")
    return _through(comm, x, comm.all_gather, comm.reduce_scatter)


def reduce_scatter(comm: Communicator, x: Tensor) -> Tensor:
    """comm.reduce_scatter(x), where x has shape (p, *block): block r of the sum, on rank r."""
    _over(comm, "reduce_scatter")
    return _through(comm, x, comm.reduce_scatter, comm.all_gather)


def all_to_all(comm: Communicator, x: Tensor) -> Tensor:
    """comm.all_to_all(x), where x has shape (p, *block)."""
    _over(comm, "all_to_all")
    return _through(comm, x, comm.all_to_all, comm.all_to_all)


def broadcast(comm: Communicator, x: Tensor, root: int = 0) -> Tensor:
    """comm.broadcast(x, root). On other ranks x gives shape and dtype only, and its gradient is zero."""

    _over(comm, "broadcast")

    def back(g: Tensor) -> Tensor:
        summed = comm.reduce(g, "sum", root)
        return _torch().zeros_like(g) if summed is None else summed

    return _through(comm, x, lambda t: comm.broadcast(t, root), back)


def send(comm: Communicator, x: Tensor, dest: int, tag: int = 0) -> Tensor:
    """Send x. Returns a zero that must be added to this rank's loss, so that backward reaches this call."""

    _over(comm, "send")

    def forward(t: Tensor) -> Tensor:
        comm.send(t, dest, tag)
        return t.new_zeros(())

    def back(g: Tensor) -> Tensor:
        return comm.recv(_torch().empty_like(shape), dest, tag)

    shape = _tensor(comm, x).detach().contiguous()
    return _through(comm, x, forward, back)


def recv(comm: Communicator, like: Tensor, source: int, tag: int = 0) -> Tensor:
    """Receive a tensor of the shape and dtype of `like`. Its gradient is sent back to source."""

    _over(comm, "recv")

    def forward(t: Tensor) -> Tensor:
        return comm.recv(_torch().empty_like(t), source, tag)

    def back(g: Tensor) -> Tensor:
        comm.send(g, source, tag)
        return _torch().zeros_like(g)

    template = _tensor(comm, like).detach().clone().requires_grad_()  # so that autograd keeps this node
    return _through(comm, template, forward, back)


def update_halo(field: Field, x: Tensor) -> Tensor:
    """x, of field.array's shape, with its halo filled as by field.update_halo(). field is not changed."""
    demand(field, OwnPart, "what has the halo", "update_halo", "update_halo(field, x)")
    comm = field.comm
    _tensor(comm, x)
    if tuple(x.shape) != tuple(field.array.shape) or x.dtype != field.dtype:
        raise LayoutError(
            f"x is {x.dtype} {tuple(x.shape)}, the field's array {field.dtype} {tuple(field.array.shape)}",
            where("update_halo", comm),
        )

    def forward(t: Tensor) -> Tensor:
        made = t.clone(memory_format=_torch().contiguous_format)
        _once(Halo(_like(field, made)))
        return made

    def back(g: Tensor) -> Tensor:
        """A halo element is a copy: its gradient goes to the owner, and x's own halo was overwritten."""
        made = g.clone(memory_format=_torch().contiguous_format)
        shadow = _like(field, made)
        _once(reverse(shadow))
        for _, place in faces(shadow).receives:
            set_zero(place)
        return made

    return _through(comm, x, forward, back)


def redistribute(move: Redistribution, x: Tensor) -> Tensor:
    """move(x), for ranks that are in both source and target. Gradients of copies are added up.

    The source partition must not have copies or partial sums, since it is not defined which copy counts.
    """
    demand(move, Redistribution, "what moves", "redistribute", "redistribute(Redistribution(...), x)")
    comm = move.comm
    if move.source_shape is None or move.target_shape is None:
        raise LayoutError(
            "this rank is not in both partitions", where("redistribute", comm), "partitions over all ranks"
        )
    source: Any = move.source
    if getattr(source, "replicated", ()) and source.size > len({*map(source.cell, range(source.size))}):
        raise LayoutError("the source holds copies", where("redistribute", comm), "a source without copies")
    back = move.reversed()
    return _through(comm, x, move, back)


def gradcheck(
    comm: Communicator, f: Callable[[Tensor], Tensor], x: Tensor, eps: float = 1e-6, tolerance: float = 1e-6
) -> bool:
    """Compare the gradients of the sum of all ranks' f(x) with finite differences. Collective.

    f communicates, and every rank has its own x (float64). One element at a time is changed by eps, while
    all ranks evaluate f.

    Returns:
        True, as torch.autograd.gradcheck.

    Raises:
        AssertionError: gradients differ. Every rank raises, and names the element that differs most.
    """
    torch = _torch()
    demand(f, Callable, "what is differentiated", "gradcheck", "a function of a tensor")  # type: ignore[arg-type]
    _tensor(comm, x)
    if x.dtype != torch.float64:
        raise DtypeError(
            f"x is {x.dtype}", where("gradcheck", comm), "float64, or differences drown in rounding"
        )
    weights: Any = None

    def loss(t: Tensor) -> Tensor:
        nonlocal weights
        y = f(t)
        if weights is None:  # any linear form will do; a plain sum would hide mixed-up elements
            weights = torch.cos(torch.arange(1, y.numel() + 1, dtype=x.dtype) * (1.7 + comm.rank)).reshape(
                y.shape
            )
        return (y * weights).sum()

    moving = x.detach().clone().requires_grad_()
    loss(moving).backward()
    got = moving.grad
    worst = (0.0, "")
    sizes = comm.all_gather_object(x.numel())
    for rank, size in enumerate(sizes):
        for i in range(size):
            ends = []
            for step in (eps, -eps):
                moved = x.detach().clone()
                if rank == comm.rank:
                    moved.view(-1)[i] += step
                with torch.no_grad():
                    ends.append(comm.all_reduce(float(loss(moved))))
            expected = (ends[0] - ends[1]) / (2 * eps)
            if rank == comm.rank:
                found = 0.0 if got is None else float(got.view(-1)[i])
                gap = abs(found - expected)
                gap = math.inf if math.isnan(gap) else gap
                worst = max(
                    worst, (gap, f"element {i} of rank {rank}: {found:g}, differences say {expected:g}")
                )
    gap, text = max(comm.all_gather_object(worst))
    if gap > tolerance:
        raise AssertionError(f"the gradient of {text}")
    return True


# -- how ----------------------------------------------------------------------------------------------------
def _torch() -> ModuleType:
    import torch

    return torch


def _through(
    comm: Communicator, x: Tensor, forward: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Tensor:
    """forward(x), whose gradient is back(gradient of the result)."""
    return _node().apply(_tensor(comm, x), forward, back)


def _over(comm: Communicator, verb: str) -> None:
    demand(comm, Communicator, "what it goes over", verb, f"{verb}(comm, x)")


def _tensor(comm: Communicator, x: Tensor) -> Tensor:
    """x, if it is a tensor."""
    if not isinstance(x, _torch().Tensor):
        raise UsageError(
            f"x is a {type(x).__name__}, not a tensor", where("differentiable", comm), "torch.from_numpy(x)"
        )
    return x


@cache
def _node() -> Any:
    """The one autograd function, made when torch is there."""
    torch = _torch()

    class _Node(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, forward: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
        ) -> Tensor:
            ctx.back = back
            return forward(x.detach())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
            if not runtime.may_call_mpi():
                runtime.need_threads("backward() outside the main thread, where torch runs a device's,")
            with torch.no_grad():
                return ctx.back(g.detach().contiguous()), None, None

    return _Node


def _once(exchange: Exchange) -> None:
    exchange()
    exchange.close()


def _like(field: Field, array: Tensor) -> Field[Tensor]:
    """A field over array, laid out as field is."""
    return type(field)(
        field.comm,
        field.partition,
        halo=field.halo,
        periodic=field.periodic,
        corners=field.corners,
        array=array,
    )
