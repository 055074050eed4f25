"""torch's collective calls as Communicator calls: each looks at tensors and returns what is to run.

A NetworkCollectives carries the verbs out, or a class on it, on plain contiguous memory: rows of elements,
one for each rank. Lists of tensors become such rows and back, without a copy where they are so already.
cuda_streams.py sees to tensors that lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..communicator.communicator import Communicator
from ..core.limits import TORCH_LIST_COPIED
from ..core.op import Op
from ..core.types import Operator
from ..errors import ConfigError, DtypeError, LayoutError, RankError, UsageError
from ..job import process_role
from ..node import native
from ..node.native import native_core as core
from .calls import Run, array, in_turn, is_even, is_misfit, nothing, unfit
from .collectives import NetworkCollectives, bytes_of, compare_parts
from .cuda_streams import check_layout, is_onboard, staged

Tensor = torch.Tensor


def _all_reduce(comm: NetworkCollectives, x: Tensor, op: Operator) -> Run:
    if x.is_sparse:
        return _all_reduce_sparse(comm, x, op)
    _check_filled(x)
    return _filled(x, lambda flat: comm.all_reduce(flat, op, out=flat))


def _filled(x: Tensor, fill: Callable[[Tensor], object]) -> Run:
    """Have x filled as one row of plain memory."""

    def run() -> None:
        flat = flat_of(x)
        fill(flat)
        give_back(flat, x)

    return run


all_reduce = staged("x", takes_devices=True, takes_sparse=True)(_all_reduce)


def _all_reduce_sparse(comm: NetworkCollectives, x: Tensor, op: Operator) -> Run:
    """The sum of sparse tensors: that of dense ones of the places that any rank has, in the same order."""
    if op not in ("sum", "avg"):
        raise DtypeError(f"{op} of sparse tensors has no meaning", hint="op=ReduceOp.SUM, or x.to_dense()")

    def run() -> None:
        own = x.detach().coalesce()
        places, values = comm.all_gather_ragged(own.indices()), own.values()
        zeros = values.new_zeros((sum(each.shape[1] for each in places), *values.shape[1:]))
        mine = torch.sparse_coo_tensor(
            torch.cat([*places, own.indices()], 1), torch.cat([zeros, values]), x.shape, check_invariants=True
        ).coalesce()
        total = flat_of(mine.values())
        comm.all_reduce(total, op, out=total)
        give_back(total, mine.values())
        x.copy_(mine)

    return run


@staged("tensors", takes_devices=True)
def all_reduce_coalesced(comm: NetworkCollectives, tensors: list[Tensor], op: Op) -> Run:
    """Small tensors travel as one."""
    _check_filled(*tensors)
    if (
        len(tensors) == 1
        or sum(x.nbytes for x in tensors) > TORCH_LIST_COPIED
        or len({x.dtype for x in tensors}) > 1
    ):
        return in_turn(comm, [_all_reduce(comm, x, op) for x in tensors])

    def run() -> None:
        getattr(comm, "arrive", nothing)()  # lengths are compared
        whole = torch.cat([flat_of(x) for x in tensors])
        comm.all_reduce(whole, op, out=whole)
        _deal(tensors, whole.split([x.numel() for x in tensors]))

    return run


@staged("x", takes_devices=True)
def broadcast(comm: NetworkCollectives, x: Tensor, root: int) -> Run:
    _check_filled(x)
    return _filled(x, lambda flat: comm.broadcast(flat, root, out=flat))


@staged("x", takes_devices=True)
def reduce(comm: NetworkCollectives, x: Tensor, op: Operator, root: int) -> Run:
    if comm.rank == root:
        _check_filled(x)

    def run() -> None:
        flat = flat_of(x)
        comm.reduce(flat, op, root, out=flat if comm.rank == root else None)
        if comm.rank == root:
            give_back(flat, x)

    return run


def _stacked(tensors: list[Tensor]) -> Tensor | None:
    """The memory of equal tensors that lie one after the other, as one of shape (n, *shape)."""
    first, n = tensors[0], len(tensors)
    if first.is_sparse or not all(x.shape == first.shape and _is_plain(x) for x in tensors):
        return None
    step, begin = first.nbytes, first.data_ptr()
    same = all(
        x.data_ptr() == begin + i * step
        and x.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for i, x in enumerate(tensors)
    )
    if not same or not step:
        return None
    return first.detach().as_strided((n, *first.shape), (first.numel(), *first.stride()))


def _stack(tensors: list[Tensor]) -> Tensor:
    """Tensors of one length as one, a copy only where they do not lie so."""
    there = _stacked(tensors)
    return torch.stack([flat_of(x) for x in tensors]) if there is None else there


def _filling_list(fill: Callable[[Tensor], object], outputs: list[Tensor]) -> Run:
    """Fill tensors of one length as the rows of one, a copy only where they do not lie so."""
    there = _stacked(outputs)

    def run() -> None:
        stack = outputs[0].new_empty((len(outputs), outputs[0].numel())) if there is None else there
        fill(_rows(stack, len(outputs)))
        if there is None:
            _deal(outputs, stack)

    return run


def _deal(outputs: list[Tensor], parts: Iterable[Tensor]) -> None:
    for out, part in zip(outputs, parts, strict=True):
        out.data.copy_(part.view(out.shape))


@staged("outputs", takes_devices=True)
def all_gather(comm: NetworkCollectives, outputs: list[Tensor], x: Tensor) -> Run:
    _check_length("tensor_list", outputs, comm)
    _check_filled(*outputs)
    _of_one_dtype(x, *outputs)
    if is_misfit(x, outputs, comm.rank):
        raise unfit(x, outputs)
    if not is_even(outputs):
        return lambda: _deal(outputs, comm.all_gather_ragged(x.detach()))
    return _filling_list(lambda rows: comm.all_gather(flat_of(x), out=rows), outputs)


def _check_length(name: str, tensors: list[Tensor], comm: NetworkCollectives) -> None:
    if len(tensors) != comm.size:
        raise LayoutError(
            f"{name} holds {len(tensors)} tensors, the group has {comm.size} ranks",
            hint="one tensor for each rank of the group",
        )


def _of_one_dtype(x: Tensor, *others: Tensor) -> None:
    odd = next((each for each in others if each.dtype != x.dtype), None)
    if odd is not None:
        raise DtypeError(f"output and input differ: {array(x)}, {array(odd)}", hint="tensors of one dtype")


@staged("output", takes_devices=True)
def all_gather_into(comm: NetworkCollectives, output: Tensor, x: Tensor) -> Run:
    _of_one_dtype(output, x)
    if output.numel() != x.numel() * comm.size:
        raise ValueError(
            f"output tensor size must be equal to world_size times input tensor size: {output.numel()} "
            f"elements for {comm.size} x {x.numel()}"
        )

    return _filling(lambda rows: comm.all_gather(flat_of(x), out=rows), output, comm.size)


def _rows(x: Tensor, n: int) -> Tensor:
    """x as n rows, its own memory if that is plain and contiguous."""
    return flat_of(x).view(n, -1) if x.numel() else x.detach().new_empty((n, 0))


def _filling(fill: Callable[[Tensor], object], output: Tensor, n: int) -> Run:
    """Fill output as n rows of plain memory."""
    if not output.is_contiguous():
        raise LayoutError(
            f"the output tensor must be contiguous: shape {tuple(output.shape)}, strides {output.stride()}",
            hint="torch.empty_like(output, memory_format=torch.contiguous_format)",
        )

    def run() -> None:
        rows = _rows(output, n)
        fill(rows)
        give_back(rows, output)

    return run


@staged("outputs", takes_devices=True)
def gather(comm: NetworkCollectives, outputs: list[Tensor], x: Tensor, root: int) -> Run:
    if comm.rank != root:
        return lambda: comm.gather(flat_of(x), root)
    _check_length("gather_list", outputs, comm)
    _check_filled(*outputs)
    _of_one_dtype(x, *outputs)
    return _filling_list(lambda rows: comm.gather(flat_of(x), root, out=rows), outputs)


@staged("output", takes_devices=True)
def scatter(comm: NetworkCollectives, output: Tensor, inputs: list[Tensor], root: int) -> Run:
    if comm.rank == root:
        _check_length("scatter_list", inputs, comm)
    _check_filled(output)
    _of_one_dtype(output, *inputs)
    stack = _stack(inputs) if inputs else None
    return _filled(
        output,
        lambda flat: comm.scatter(None if stack is None else _rows(stack, comm.size), root, out=flat),
    )


@staged("output", takes_devices=True)
def reduce_scatter(comm: NetworkCollectives, output: Tensor, inputs: list[Tensor], op: Operator) -> Run:
    _check_length("input_list", inputs, comm)
    _check_filled(output)
    _of_one_dtype(output, *inputs)
    if not is_even(inputs):
        return _reduce_scatter_uneven(comm, output, inputs, op)
    return lambda: _reduce_rows(comm, output, _stack(inputs), op)


def _reduce_rows(comm: NetworkCollectives, output: Tensor, x: Tensor, op: Operator | None) -> None:
    """Row r of x, of shape (size, ...), reduced, into output of rank r."""
    is_apart = x.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()  # FSDP reduces in place
    into = flat_of(output) if is_apart else output.detach().new_empty(output.numel())
    comm.reduce_scatter(_rows(x, comm.size), op, out=into)
    give_back(into, output)


def _reduce_scatter_uneven(
    comm: NetworkCollectives, output: Tensor, inputs: list[Tensor], op: Operator | None
) -> Run:
    def run() -> None:
        for root, x in enumerate(inputs):
            received = comm.reduce(flat_of(x), op, root)
            if received is not None:
                output.data.copy_(received.view(output.shape))

    return run


@staged("output", takes_devices=True)
def reduce_scatter_into(comm: NetworkCollectives, output: Tensor, x: Tensor, op: Operator) -> Run:
    _of_one_dtype(output, x)
    if x.numel() != output.numel() * comm.size:
        raise ValueError(
            f"input tensor must be the same size as output size times world size: {x.numel()} elements for "
            f"{comm.size} x {output.numel()}"
        )

    return _filling(lambda rows: _reduce_rows(comm, rows, x, op), output, 1)


@staged("output", takes_devices=True)
def all_to_all_single(comm: NetworkCollectives, output: Tensor, x: Tensor) -> Run:
    _of_one_dtype(output, x)
    if x.numel() != output.numel() or (x.dim() and x.shape[0] % comm.size):
        raise ValueError(
            f"Tensor's dim 0 does not divide equally across group size: {tuple(x.shape)} to "
            f"{tuple(output.shape)} over {comm.size} ranks"
        )

    return _filling(lambda rows: comm.all_to_all(_rows(x, comm.size), out=rows), output, comm.size)


@staged("output")
def all_to_all_uneven(
    comm: NetworkCollectives, output: Tensor, x: Tensor, output_sizes: list[int], input_sizes: list[int]
) -> tuple[Run, list[int]]:
    """What is to run, and how many elements go to each rank."""

    def cut(whole: Tensor, sizes: list[int]) -> list[int]:
        rows = whole.shape[0] if whole.dim() else 1
        sizes = list(sizes) or [rows // comm.size] * comm.size
        if len(sizes) != comm.size or sum(sizes) != rows:
            raise ValueError(f"Split sizes doesn't match total dim 0 size: {sizes} of {rows}")
        width = whole.numel() // rows if rows else 0
        return [n * width for n in sizes]

    _of_one_dtype(output, x)
    there, here = cut(output, output_sizes), cut(x, input_sizes)

    def fill(rows: Tensor) -> None:
        compare_parts(comm, there, here)
        comm.exchange(rows.view(-1), there, flat_of(x), here)

    return _filling(fill, output, 1), here


@staged("outputs")
def all_to_all(comm: NetworkCollectives, outputs: list[Tensor], inputs: list[Tensor]) -> Run:
    _check_length("output_tensor_list", outputs, comm)
    _check_length("input_tensor_list", inputs, comm)
    _check_filled(*outputs)
    _of_one_dtype(*outputs, *inputs)

    def run() -> None:
        there, here = [out.numel() for out in outputs], [x.numel() for x in inputs]
        compare_parts(comm, there, here)
        received = outputs[0].new_empty(sum(there))
        whole = torch.cat([flat_of(x) for x in inputs])
        comm.exchange(received, there, whole, here)
        _deal(outputs, received.split(there))

    return run


def message(
    by: Any, verb: str, x: Tensor, peer: int | None, tag: int
) -> tuple[Any, Callable[[], None] | None]:
    """A message begun, None where it is complete, and what is left to do once it is complete.

    by: what carries it: a Communicator, or a core.Node where its ranks are all on one node.
    """
    check_layout(x)
    if isinstance(by, Communicator):
        begin: Callable[..., Any] = by.isend if verb == "send" else by.irecv
        if is_onboard(x):
            return begin(x.detach(), peer, tag), None
    else:
        request = _by_node(by, verb, x, peer, tag, x)
        if request is not NotImplemented:
            return request, None

        def begin(flat: Tensor, peer: int | None, tag: int) -> Any:  # elements of any type
            return _by_node(by, verb, bytes_of(flat_of(flat)), peer, tag, x)

    if verb == "send":
        return begin(x.detach().cpu().resolve_conj().resolve_neg(), peer, tag), None
    flat = flat_of(x if x.is_cpu else x.detach().cpu())  # what is not filled stays as it is
    apart = flat.data_ptr() != x.data_ptr()
    return begin(flat, peer, tag), (lambda: give_back(flat, x)) if apart else None


def _by_node(node: core.Node, verb: str, x: Any, peer: int | None, tag: int, shown: Tensor) -> Any:
    """A message of the native core begun. shown: the tensor that x is made of."""
    try:
        return getattr(node, f"i{verb}")(x, peer, tag, shown)
    except OSError as error:  # at the first message from this rank to that one
        why = native.NO_ROOM
        raise ConfigError(
            f"the first message to rank {peer} needs memory: {why.why}", hint=why.hint
        ) from error
    except ValueError as error:
        process_role.check_process(f"i{verb}")
        if peer is None or 0 <= peer < node.size:
            raise UsageError("the process group has been destroyed", hint="init_process_group()") from error
        raise RankError(f"rank {peer} is not one of {node.size}", hint=f"0 to {node.size - 1}") from None


def flat_of(x: Tensor) -> Tensor:
    """x as one row of plain memory, its own if it is; not seen by autograd, nor counted by its versions."""
    x = x.data if type(x) is torch.Tensor else x.data.as_subclass(torch.Tensor)
    if not _is_plain(x):
        x = x.clone(memory_format=torch.contiguous_format)
    if x.dim() != 1:
        x = x.view(-1)
    return x if x.stride(0) == 1 else x.as_strided(x.shape, (1,))  # one element is contiguous with any stride


def _check_filled(*tensors: Tensor) -> None:
    for x in tensors:
        if any(step == 0 and length > 1 for step, length in zip(x.stride(), x.shape, strict=True)):
            raise LayoutError(
                f"a tensor to be filled is expanded: shape {tuple(x.shape)}, strides {x.stride()}; several "
                "elements share memory",
                hint="give one with memory for each element, tensor.contiguous()",
            )


def give_back(flat: Tensor, x: Tensor) -> None:
    """Fill x from what flat_of(x) gave."""
    if flat.data_ptr() != x.data_ptr():
        x.data.copy_(flat.view(x.dtype).view(x.shape))


def _is_plain(x: Tensor) -> bool:
    """Whether all ranks' ways take x as it lies: in order, what it says, and where its elements may begin."""
    return x.is_contiguous() and not x.is_neg() and not x.is_conj() and not x.data_ptr() % min(8, x.itemsize)
