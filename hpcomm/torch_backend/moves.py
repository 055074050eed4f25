"""torch's calls in the words of a Communicator: each function looks at tensors and returns what is to run.

Lists of tensors become one stacked array and back, without a copy where they already lie so. Tensors of
other devices travel by way of host memory (see devices).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from .. import dtypes, reduction
from ..errors import DtypeError, LayoutError
from .devices import staged

if TYPE_CHECKING:
    from ..communicator import Communicator
    from ..request import Request

__all__ = [
    "LARGE",
    "all_gather",
    "all_gather_into",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_uneven",
    "apart",
    "broadcast",
    "fold",
    "fold_blocks",
    "gather",
    "gather_blocks",
    "message",
    "premul_sum",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_into",
    "scatter",
    "spread",
    "swap_blocks",
]

Run = Callable[[], None]
Tensor = torch.Tensor
_TOGETHER = 64 * 1024  # bytes up to which tensors of a list are copied into one


def premul_sum(given: Any) -> reduction.Op:
    """torch's PREMUL_SUM, whose factor only its pickled state tells."""
    state = given.__getstate__()
    factor = state[1]
    return reduction.premul_sum(factor.item() if isinstance(factor, Tensor) else factor)


@staged("x")
def all_reduce(comm: Communicator, x: Tensor, op: Any) -> Run:
    if x.is_sparse:
        return _all_reduce_sparse(comm, x, op)

    return lambda: fold(comm, x, op)


def fold(comm: Communicator, x: Tensor, op: Any) -> None:
    """all_reduce in place."""
    dtype = x.dtype
    if (dtype is _F16 or dtype is _BF16) and op in _FOLDS:
        _fold_halves(comm, x, op)
    elif op == "avg" and dtype in _FLOATS:
        fold(comm, x, "sum")
        x.detach().div_(comm.size)
    elif x.nbytes > LARGE and x.is_contiguous() and not x.is_conj() and not x.is_neg():
        for piece in x.detach().view(-1).split(_PIECE // x.element_size()):
            comm.all_reduce(piece, op, out=piece)
    else:
        comm.all_reduce(x, op, out=x)


LARGE = 8 * 1024 * 1024  # bytes past which MPI would touch a fresh temporary of that size on every call,
_PIECE = 4 * 1024 * 1024  # which costs more than cutting
_HALVES = _F16, _BF16 = torch.float16, torch.bfloat16
_FLOATS = (torch.float32, torch.float64)
_FOLDS: dict[str, Callable[[Tensor], Tensor]] = {  # of what all ranks gave, stacked, in float32
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.sum(0) / len(parts),
    "prod": lambda parts: parts.prod(0),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
}
_BY_BLOCKS = 16 * 1024  # bytes from which halves travel as halves
_BY_GATHER = 512 * 1024  # bytes up to which two ranks send each other all, as much in one step as in two
_IN_CACHE = 64 * 1024  # elements that are widened at a time
_PASSAGE = 2 * 1024 * 1024  # bytes that go through the blocks' algorithms at a time, and stay in cache
_ADDS = {torch.float32, torch.float64, torch.int32, torch.int64, *_HALVES}  # what torch adds in one pass


def _fold_halves(comm: Communicator, x: Tensor, op: str) -> None:
    """Halves are folded in float32 and rounded once; large ones travel as halves, a block per rank.

    Two ranks: all-gather, n sent. More: reduce-scatter by all-to-all, then all-gather (Thakur, Rabenseifner
    and Gropp 2005), 2 n (p-1)/p sent.
    """
    x = x.detach()
    p = comm.size
    if x.nbytes < _BY_BLOCKS or p == 1:
        wide = x.float()
        comm.all_reduce(wide, "sum" if op == "avg" else op, out=wide)
        x.copy_(wide.div_(p) if op == "avg" else wide)
        return
    flat = x.contiguous().view(-1)
    if p == 2 and x.nbytes < _BY_GATHER:
        both = flat.new_empty((2, flat.numel()))
        comm.all_gather(_as_bits(flat), out=_as_bits(both))
        x.copy_(_folded(both, op).view(x.shape))
        return
    step = _PASSAGE // x.element_size()
    parts = flat.new_empty(p * -(-min(step, flat.numel()) // p))
    for piece in flat.split(step):
        n = piece.numel()
        counts = [n // p + (r < n % p) for r in range(p)]
        mine = counts[comm.rank]
        here = parts[: p * mine]
        _exchange(comm, here, [mine] * p, piece, counts)
        _collect(comm, piece, counts, _folded(here.view(p, mine), op))
    if flat.data_ptr() != x.data_ptr():
        x.copy_(flat.view(x.shape))


def _folded(parts: Tensor, op: str) -> Tensor:
    """The halves of all ranks, of shape (p, n), folded in float32, piece by piece, to stay in cache."""
    if len(parts) == 2 and op == "sum":  # torch adds halves in float32 and rounds once
        return parts[0] + parts[1]
    out = torch.empty_like(parts[0])
    for into, piece in zip(out.split(_IN_CACHE), parts.split(_IN_CACHE, 1), strict=True):
        into.copy_(_FOLDS[op](piece.float()))
    return out


def _all_reduce_sparse(comm: Communicator, x: Tensor, op: Any) -> Run:
    """The sum of sparse tensors: each rank's entries go round, and equal places add up."""
    if op not in ("sum", "avg"):
        raise DtypeError(f"{op} of sparse tensors has no meaning", hint="op=ReduceOp.SUM, or x.to_dense()")

    def run() -> None:
        own = x.coalesce()
        places = comm.all_gather_ragged(own.indices())
        values = comm.all_gather_ragged(own.values())
        total = torch.sparse_coo_tensor(
            torch.cat(places, 1), torch.cat(values), x.shape, check_invariants=True
        ).coalesce()
        x.copy_(total / comm.size if op == "avg" else total)

    return run


@staged("tensors")
def all_reduce_coalesced(comm: Communicator, tensors: list[Tensor], op: Any) -> Run:
    """Small tensors travel as one."""
    if len(tensors) == 1 or sum(x.nbytes for x in tensors) > _TOGETHER or len({x.dtype for x in tensors}) > 1:
        runs = [all_reduce(comm, x, op) for x in tensors]

        def each() -> None:
            for run in runs:
                run()

        return each

    def run() -> None:
        whole = torch.cat([x.reshape(-1) for x in tensors])
        fold(comm, whole, op)
        for x, part in zip(tensors, whole.split([x.numel() for x in tensors]), strict=True):
            x.copy_(part.view(x.shape))

    return run


@staged("x")
def broadcast(comm: Communicator, x: Tensor, root: int) -> Run:
    return lambda: spread(comm, x, root)


def spread(comm: Communicator, x: Tensor, root: int) -> None:
    """broadcast in place."""
    x = _as_bits(x)
    comm.broadcast(x, root, out=x)


def _as_bits(x: Tensor) -> Tensor:
    """Halves as integers, which MPI has a type for; what is only moved is not looked at."""
    return x.view(torch.int16) if x.dtype in _HALVES and x.is_contiguous() else x


@staged("x")
def reduce(comm: Communicator, x: Tensor, op: Any, root: int) -> Run:
    def run() -> None:
        comm.reduce(x, op, root, out=x if comm.rank == root else None)

    return run


def _stacked(tensors: list[Tensor]) -> Tensor | None:
    """The memory of equal tensors that lie one after the other, as one of shape (n, *shape)."""
    first, n = tensors[0], len(tensors)
    if not all(x.shape == first.shape and x.is_contiguous() for x in tensors) or first.is_sparse:
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


def _unstack(stack: Tensor, tensors: list[Tensor]) -> None:
    for x, part in zip(tensors, stack, strict=True):
        x.copy_(part)


@staged("outputs")
def all_gather(comm: Communicator, outputs: list[Tensor], x: Tensor) -> tuple[Run, int]:
    """What is to run, and the number of elements to be compared: 0 where ranks bring different shapes."""
    if any(out.shape != outputs[0].shape for out in outputs):
        return _all_gather_uneven(comm, outputs, x), 0
    _check_same("all_gather", outputs[0], x)
    there = _stacked(outputs)

    def run() -> None:
        stack = there if there is not None else x.new_empty((comm.size, *x.shape))
        comm.all_gather(x.view(outputs[0].shape) if x.is_contiguous() else x, out=stack)
        if there is None:
            _unstack(stack, outputs)

    return run, x.numel()


def _all_gather_uneven(comm: Communicator, outputs: list[Tensor], x: Tensor) -> Run:
    _check_same("all_gather", outputs[comm.rank], x)

    def run() -> None:
        for out, part in zip(outputs, comm.all_gather_ragged(x.detach()), strict=True):
            if part.numel() != out.numel():
                raise LayoutError(
                    f"a tensor of shape {tuple(part.shape)} came for a place of shape {tuple(out.shape)}",
                    "all_gather",
                    "give every rank the shapes that the others send",
                )
            out.copy_(part.view(out.shape))

    return run


def _check_same(verb: str, out: Tensor, x: Tensor) -> None:
    if out.numel() != x.numel() or out.dtype != x.dtype:
        raise LayoutError(
            f"this rank gives {tuple(x.shape)} {x.dtype}, its place has {tuple(out.shape)} {out.dtype}",
            verb,
            "the same shape and dtype",
        )


@staged("output")
def all_gather_into(comm: Communicator, output: Tensor, x: Tensor) -> Run:
    if output.numel() != x.numel() * comm.size:
        raise ValueError(
            f"output tensor size must be equal to world_size times input tensor size: {output.numel()} "
            f"elements for {comm.size} x {x.numel()}"
        )

    def run() -> None:
        if x.is_contiguous() and x.numel():
            comm.all_gather(_as_bits(x), out=_as_bits(output).view(comm.size, *x.shape))
        else:
            comm.all_gather(x.detach().reshape(-1), out=_rows(output, comm.size))

    return _unpacking(run, output)


def _rows(x: Tensor, n: int) -> Tensor:
    """x as n rows: its own memory; see _unpacking where that is not possible."""
    return x.detach().view(n, -1) if x.numel() else x.detach().new_empty((n, 0))


def _unpacking(run: Run, output: Tensor) -> Run:
    if not output.is_contiguous():
        raise LayoutError(
            f"the output tensor must be contiguous: shape {tuple(output.shape)}, strides {output.stride()}",
            hint="torch.empty_like(output, memory_format=torch.contiguous_format)",
        )
    return run


def apart(output: Tensor, x: Tensor, gives: int, takes: int) -> bool:
    """Whether x and output are plain memory of one dtype that nothing shares, for the shortest way.

    Args:
        gives, takes: what the numbers of their elements are multiplied by to be equal.
    """
    if not (output.is_cpu and x.is_cpu and x.dtype is output.dtype) or x.layout is not torch.strided:
        return False
    if output.layout is not torch.strided or not x.is_contiguous() or not output.is_contiguous():
        return False
    if output.numel() * takes != x.numel() * gives or x.is_neg() or x.is_conj():
        return False
    begin, end = x.data_ptr(), output.data_ptr()
    return x.numel() > 0 and (begin + x.nbytes <= end or end + output.nbytes <= begin)


def gather_blocks(comm: Communicator, output: Tensor, x: Tensor) -> None:
    """all_gather between tensors that are apart()."""
    x = _as_bits(x)
    comm.all_gather(x, out=_as_bits(output).view(comm.size, *x.shape))


def swap_blocks(comm: Communicator, output: Tensor, x: Tensor) -> None:
    """all_to_all between tensors that are apart()."""
    comm.all_to_all(_as_bits(x).view(comm.size, -1), out=_as_bits(output).view(comm.size, -1))


@staged("outputs")
def gather(comm: Communicator, outputs: list[Tensor] | None, x: Tensor, root: int) -> Run:
    there = _stacked(outputs) if outputs else None

    def run() -> None:
        stack = comm.gather(x.detach(), root, out=there)
        if outputs is not None and there is None:
            _unstack(stack, outputs)

    return run


@staged("output")
def scatter(comm: Communicator, output: Tensor, inputs: list[Tensor] | None, root: int) -> Run:
    stack = None
    if inputs is not None:
        stack = _stacked(inputs)
        stack = torch.stack([x.detach() for x in inputs]) if stack is None else stack

    def run() -> None:
        comm.scatter(stack, root, out=output)

    return run


@staged("output")
def reduce_scatter(comm: Communicator, output: Tensor, inputs: list[Tensor], op: Any) -> Run:
    if any(x.shape != inputs[0].shape for x in inputs):
        return _reduce_scatter_uneven(comm, output, inputs, op)

    def run() -> None:
        stack = _stacked(inputs)
        stack = torch.stack([x.detach() for x in inputs]) if stack is None else stack
        received = comm.reduce_scatter(stack, op)
        output.copy_(received.view(output.shape))

    return run


def _reduce_scatter_uneven(comm: Communicator, output: Tensor, inputs: list[Tensor], op: Any) -> Run:
    def run() -> None:
        for root, x in enumerate(inputs):
            received = comm.reduce(x.detach(), op, root)
            if comm.rank == root:
                output.copy_(received.view(output.shape))

    return run


@staged("output")
def reduce_scatter_into(comm: Communicator, output: Tensor, x: Tensor, op: Any) -> Run:
    if x.numel() != output.numel() * comm.size:
        raise ValueError(
            f"input tensor must be the same size as output size times world size: {x.numel()} elements for "
            f"{comm.size} x {output.numel()}"
        )

    def run() -> None:
        if apart(output, x, 1, comm.size):
            fold_blocks(comm, output, x, op)
            return
        rows = _rows(x.contiguous(), comm.size)
        if x.dtype in _HALVES and op in _FOLDS and x.numel():
            parts = torch.empty_like(rows)
            comm.all_to_all(rows.view(torch.int16), out=parts.view(torch.int16))
            output.copy_(_folded(parts, op).view(output.shape))
        elif op == "avg" and x.dtype in _FLOATS:
            output.copy_(comm.reduce_scatter(rows, "sum").view(output.shape)).div_(comm.size)
        elif x.untyped_storage().data_ptr() == output.untyped_storage().data_ptr():  # FSDP folds in place
            output.copy_(comm.reduce_scatter(rows, op).view(output.shape))
        else:
            comm.reduce_scatter(rows, op, out=output.detach().view(-1))

    return _unpacking(run, output)


def fold_blocks(comm: Communicator, output: Tensor, x: Tensor, op: Any) -> None:
    """reduce_scatter between tensors that are apart()."""
    x, output, p = x.detach().view(comm.size, -1), output.detach().view(-1), comm.size
    halves = x.dtype in _HALVES
    adds = op == "sum" and x.dtype in _ADDS and x.nbytes >= _PASSAGE // 2  # below, the library's is faster
    if p > 1 and op in _FOLDS and (halves or adds):
        _fold_blocks_here(comm, output, x, op)
    elif op == "avg" and x.dtype in _FLOATS:
        comm.reduce_scatter(x, "sum", out=output)
        output.div_(p)
    else:
        comm.reduce_scatter(x, op, out=output)


def _fold_blocks_here(comm: Communicator, output: Tensor, x: Tensor, op: str) -> None:
    """reduce_scatter by all-to-all and torch's own arithmetic: n (p-1)/p sent; MPI folds slower."""
    p, n = x.shape
    whole, step = x.view(-1), max(_PASSAGE // x.element_size() // p, 1)
    parts = x.new_empty(p * min(step, n))
    for begin in range(0, n, step):
        m = min(step, n - begin)
        here, into = parts[: p * m], output.narrow(0, begin, m)
        _exchange(comm, here, [m] * p, whole, [m] * p, [r * n + begin for r in range(p)])
        rows = here.view(p, m)
        if op != "sum" or (p > 2 and x.dtype in _HALVES):
            into.copy_(_folded(rows, op))
            continue
        torch.add(rows[0], rows[1], out=into)
        for row in rows[2:]:
            into.add_(row)


@staged("output")
def all_to_all_single(comm: Communicator, output: Tensor, x: Tensor) -> Run:
    if x.numel() != output.numel() or (x.dim() and x.shape[0] % comm.size):
        raise ValueError(
            f"Tensor's dim 0 does not divide equally across group size: {tuple(x.shape)} to "
            f"{tuple(output.shape)} over {comm.size} ranks"
        )

    def run() -> None:
        comm.all_to_all(_as_bits(_rows(x.contiguous(), comm.size)), out=_as_bits(_rows(output, comm.size)))

    return _unpacking(run, output)


@staged("output")
def all_to_all_uneven(
    comm: Communicator, output: Tensor, x: Tensor, output_sizes: list[int], input_sizes: list[int]
) -> Run:
    def cut(whole: Tensor, sizes: list[int]) -> list[int]:
        rows = whole.shape[0] if whole.dim() else 1
        sizes = list(sizes) or [rows // comm.size] * comm.size
        if len(sizes) != comm.size or sum(sizes) != rows:
            raise ValueError(f"Split sizes doesn't match total dim 0 size: {sizes} of {rows}")
        width = whole.numel() // rows if rows else 0
        return [n * width for n in sizes]

    there, here = cut(output, output_sizes), cut(x, input_sizes)

    def run() -> None:
        _exchange(comm, output.detach().view(-1), there, x.detach().contiguous().view(-1), here)

    return _unpacking(run, output)


@staged("outputs")
def all_to_all(comm: Communicator, outputs: list[Tensor], inputs: list[Tensor]) -> Run:
    def run() -> None:
        there = [out.numel() for out in outputs]
        landing = outputs[0].new_empty(sum(there))
        whole = torch.cat([x.detach().reshape(-1) for x in inputs])
        _exchange(comm, landing, there, whole, [x.numel() for x in inputs])
        for out, part in zip(outputs, landing.split(there), strict=True):
            out.copy_(part.view(out.shape))

    return run


_LARGEST = 2**31 - 1  # a count or displacement in one MPI call


def _exchange(
    comm: Communicator,
    out: Tensor,
    there: list[int],
    x: Tensor,
    here: list[int],
    begins: list[int] | None = None,
) -> None:
    """Part j of x to rank j, part i of out from rank i; counts in elements, both in one piece.

    Args:
        begins: where in x the parts begin; default: one after the other.
    """
    from mpi4py import MPI

    if max(out.numel(), x.numel()) > _LARGEST:
        if begins is None:
            begins = [0, *accumulate(here[:-1])]
        parts = [x.narrow(0, begin, n) for begin, n in zip(begins, here, strict=True)]
        for part, came in zip(out.split(there), comm.all_to_all_ragged(parts), strict=True):
            part.copy_(came)
        return
    record = dtypes.from_torch(x.dtype)
    kind = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T}.get(record.itemsize)
    kind = kind or MPI.C_DOUBLE_COMPLEX
    comm.mpi.Alltoallv(_spec(x, here, kind, begins), _spec(out, there, kind))


def _collect(comm: Communicator, whole: Tensor, counts: list[int], mine: Tensor) -> None:
    """Blocks of halves from all ranks into whole."""
    from mpi4py import MPI

    comm.mpi.Allgatherv(
        [MPI.buffer.fromaddress(mine.data_ptr(), mine.nbytes), MPI.UINT16_T],
        _spec(whole, counts, MPI.UINT16_T),
    )


def _spec(x: Tensor, counts: list[int], kind: Any, begins: list[int] | None = None) -> Any:
    from mpi4py import MPI

    displacements = [0, *accumulate(counts[:-1])] if begins is None else begins
    return MPI.buffer.fromaddress(x.data_ptr(), x.nbytes), counts, displacements, kind


def message(
    comm: Communicator, verb: str, x: Tensor, peer: int | None, tag: int
) -> tuple[Request, Callable[[], Any] | None]:
    """A message begun, and what is left to do once it is complete."""
    host = x if x.is_cpu else x.detach().cpu()
    give = None if host is x or verb == "send" else lambda: x.copy_(host)
    if verb == "send":
        return comm.isend(host.detach(), peer, tag), give
    return comm.irecv(host.detach(), peer, tag), give
