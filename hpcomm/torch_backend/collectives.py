"""Collectives as torch means them, by MPI, or by the native core of ranks that share memory.

Halves are moved as bits, averages of whole numbers are cut, and large tensors go in pieces.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import torch

from ..agree.deadline import Stay
from ..agree.present_calls import words_now
from ..core import dtypes
from ..core.buffer import Buffer, as_buffer, tensor_memory
from ..core.limits import TORCH_CUT, TORCH_CUT_PIECE
from ..core.op import Op
from ..core.reduction import is_always_exact
from ..core.signature import head
from ..core.types import AnyArray
from ..errors import HpcommError, MismatchError
from ..node import native
from ..node.native import native_core as core
from .calls import WHOLE, nothing
from .entry_barrier import EntryBarrier
from .ranks import Ranks
from .torch_errors import as_torch

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)
_HALF = 2**63
_SUMMED = 2 << 20  # bytes of a tensor that are summed exactly at a time
_LAID = 4224  # bytes, NODE_CELL: a longer block is read where its giver has it
_LARGEST = 2**31 - 1  # a count or displacement in one MPI call


def carrier(comm: Ranks, entry: EntryBarrier) -> NetworkCollectives:
    """What carries out the calls of comm."""
    if is_always_exact():
        return ExactSums(comm, entry) if entry.node is None else ExactOnNode(comm, entry)
    return NetworkCollectives(comm, entry) if entry.node is None else NodeCollectives(comm, entry)


class NetworkCollectives:
    """The verbs, for plain contiguous tensors; blocks of all ranks lie one after the other, as (size, ...).

    A call is made between expect() and done(): the ranks meet in the barrier before they enter MPI, by
    arrive(), which each verb calls.

    Attributes:
        stay: inside MPI, for the call under way.
        refuse: tells the other ranks that this one does not make a call that it was asked for.
        is_exact: sums do not depend on the number of ranks.
    """

    is_exact = False
    comm: Any  # what carries out a call that the core does not: a Communicator, if MPI is there

    def __init__(self, comm: Ranks, entry: EntryBarrier) -> None:
        self.comm, self.entry = comm, entry
        self.rank, self.size = comm.rank, comm.size
        self.stay = Stay(comm.context, entry.where, range(comm.size))
        self.refuse: Callable[[], None] = nothing
        self._due: int | None = None  # signature of the call under way, while the ranks have not met for it

    def expect(self, mine: int, say: Callable[[], str]) -> None:
        """Begin a call. mine: its signature; say: what it is."""
        self.stay.words, self.stay.seconds, self._due = say, self.entry.seconds, mine

    def arrive(self) -> None:
        """Before this rank enters MPI: meet the others, if that has not happened yet."""
        if self._due is not None:
            mine, self._due = self._due, None
            self.entry.come(mine)
        self.stay.since = time.monotonic()

    def done(self, is_made: bool) -> None:
        """After the call, however it ended: meet the others, if that has not happened yet."""
        mine, self._due = self._due, None
        self.stay.since, self.stay.words = None, str  # the call's tensors are not held
        if mine is not None and is_made:
            self.entry.come(mine)
        elif mine is not None:
            self.entry.refuse()

    # -- verbs that reduce ---------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """In place: out is x."""
        if self._makes("all_reduce", x, op, out) is not NotImplemented:
            return
        self.arrive()
        if (summed := self._summed(x, op)) is not None:
            self.all_reduce(summed, "sum", out=summed)
            x.copy_(self._of_sum(summed, op))
        elif x.nbytes > TORCH_CUT:
            for piece in x.view(-1).split(TORCH_CUT_PIECE // x.element_size()):
                self.comm.all_reduce(piece, op, out=piece)
        else:
            self.comm.all_reduce(x, op, out=x)

    def reduce(self, x: Tensor, op: Any, root: int, *, out: Tensor | None = None) -> Tensor | None:
        """out: at the root; None makes one."""
        if out is None and self.rank == root:
            out = torch.empty_like(x)
        if self._makes("reduce", x, op, root, out) is not NotImplemented:
            return out
        self.arrive()
        if (summed := self._summed(x, op)) is None:
            self.comm.reduce(x, op, root, out=out)
        elif (total := self.reduce(summed, "sum", root)) is not None and out is not None:
            out.copy_(self._of_sum(total, op))
        return out

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """Block r of x, reduced, to rank r; out lies elsewhere."""
        if self._makes("reduce_scatter", x, op, out) is not NotImplemented:
            return
        self.arrive()
        if (summed := self._summed(x, op)) is not None:
            total = torch.empty_like(out, dtype=summed.dtype)
            self.reduce_scatter(summed, "sum", out=total)
            out.copy_(self._of_sum(total, op))
        else:
            self.comm.reduce_scatter(apart(x, out, 1), op, out=out)

    def _makes(self, verb: str, *arguments: object) -> object:
        """Have the core make a call; NotImplemented: it does not take it, whatever rank one asks."""
        return NotImplemented

    @staticmethod
    def _summed(x: Tensor, op: Any) -> Tensor | None:
        """What is summed in place of x, for operators that only these groups have; None: it is none."""
        if isinstance(op, Op) and op.factor is not None:
            return (x.float() if x.dtype in HALVES else x) * op.factor
        return x.long() if op == "avg" and x.dtype in WHOLE else None

    def _of_sum(self, total: Tensor, op: Any) -> Tensor:
        return total.div_(self.size, rounding_mode="trunc") if op == "avg" else total

    # -- verbs that only move ------------------------------------------------------------------------------
    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        """In place: out is x."""
        self._move("broadcast", x, root, out)

    def all_gather(self, x: Tensor, *, out: Tensor) -> None:
        self._move("all_gather", apart(x, out, self.rank * x.nbytes), out)

    def gather(self, x: Tensor, root: int, *, out: Tensor | None = None) -> None:
        """out: at the root."""
        self._move("gather", x if out is None else apart(x, out, root * x.nbytes), root, out)

    def scatter(self, x: Tensor | None, root: int, *, out: Tensor) -> None:
        """x: at the root."""
        self._move("scatter", None if x is None else apart(x, out, -root * out.nbytes), root, out)

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        self._move("all_to_all", apart(x, out, 0), out)

    def _move(self, verb: str, *arguments: object) -> None:
        """arguments: as the core takes them, at last what is filled."""
        self.arrive()
        *given, out = map(_as_bits, arguments)
        getattr(self.comm, verb)(*given, out=out)

    # -- of unequal lengths --------------------------------------------------------------------------
    def all_gather_ragged(self, x: Tensor) -> list[Tensor]:
        """What each rank gives, of whatever shape with as many axes."""
        self.arrive()
        return self.comm.all_gather_ragged(x)

    def exchange(self, out: Tensor, there: list[int], x: Tensor, here: list[int]) -> None:
        """Part j of x to rank j, part i of out from rank i; counts in elements, on which each two agree."""
        from mpi4py import MPI

        self.arrive()
        x = apart(x, out, 1)
        if max(out.numel(), x.numel()) > _LARGEST:
            parts = list(x.split(here))
            for part, came in zip(out.split(there), self.comm.all_to_all_ragged(parts), strict=True):
                part.copy_(came)
            return
        record = dtypes.from_torch(x.dtype)
        kind = {1: MPI.UINT8_T, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T}.get(record.itemsize)
        kind = kind or MPI.C_DOUBLE_COMPLEX
        self.comm.context.mpi_handle.Alltoallv(_spec(x, here, kind), _spec(out, there, kind))


class NodeCollectives(NetworkCollectives):
    """Each verb is a call of the core, and so a meeting itself; what that does not take MPI carries out.

    Which of both depends on the signature only. A verb that makes other calls out of one is met for first.
    """

    def _makes(self, verb: str, *arguments: object) -> object:
        self.entry.check()
        due, self._due, self.stay.since = self._due, None, None
        if not native.takes_tensors():
            arguments = _as_arrays(arguments)
        made: object = getattr(self.entry.node, verb)(*arguments)
        if made is NotImplemented:
            self._due = due
        return made

    def _move(self, verb: str, *arguments: object) -> None:
        """Elements of which the core knows nothing go as bytes."""
        if self._makes(verb, *arguments) is not NotImplemented:
            return
        self.arrive()
        as_bytes = [x.view(-1).view(torch.uint8) if isinstance(x, Tensor) else x for x in arguments]
        if self._makes(verb, *as_bytes) is NotImplemented:
            super()._move(verb, *arguments)

    # -- of unequal lengths --------------------------------------------------------------------------------
    def all_gather_ragged(self, x: Tensor) -> list[Tensor]:
        self.arrive()
        shape = struct.Struct(f"{x.dim()}q")
        said = self._node.tell(head("all_gather_ragged"), shape.pack(*x.shape))
        parts = [x.new_empty(shape.unpack(each)) for each in said]
        parts[self.rank].copy_(x)
        for root, part in enumerate(parts):
            self.broadcast(part.view(-1), root, out=part.view(-1))
        return parts

    def exchange(self, out: Tensor, there: list[int], x: Tensor, here: list[int]) -> None:
        self.arrive()
        going, places = apart(x, out, 1).split(here), out.split(there)
        places[self.rank].copy_(going[self.rank])
        if not self._node.direct:
            self._exchange_padded(places, going)
            return
        ours = [bytes_of(part) for part in places]
        long = (part for rank, part in enumerate(ours) if rank != self.rank and len(part) > _LAID)
        parcels = [[bytes_of(part)] for part in going]
        parcels[self.rank] = []
        came = self._node.share(
            head("all_to_all"),
            0,
            head("all_to_all_ragged"),
            parcels,
            lambda nbytes: next(long) if nbytes > _LAID else bytearray(nbytes),
        )
        for part, blocks in zip(ours, came, strict=True):
            if blocks and len(part) <= _LAID:
                part.data[:] = blocks[0]

    def _exchange_padded(self, places: Sequence[Tensor], going: Sequence[Tensor]) -> None:
        """Where ranks cannot read each other's memory: parts as long as the longest one."""
        most = torch.tensor([max(part.numel() for part in going)])
        self.all_reduce(most, "max", out=most)
        if not (n := int(most)):
            return
        sent, came = (going[0].new_empty((self.size, n)) for _ in range(2))
        for row, part in zip(sent, going, strict=True):
            row[: part.numel()] = part
        self.all_to_all(sent, out=came)
        for part, row in zip(places, came, strict=True):
            part.copy_(row[: part.numel()])

    @property
    def _node(self) -> core.Node:
        """Where this rank stands in the core, no longer in MPI."""
        self.entry.check()
        self.stay.since = None
        assert self.entry.node is not None
        return self.entry.node


class ExactSums(NetworkCollectives):
    """Sums that do not depend on the number of ranks (HPCOMM_DETERMINISTIC=1).

    Of a piece each rank gets a block of all ranks', adds it exactly and rounds once.
    """

    is_exact = True

    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        if not _is_sum(x, op):
            super().all_reduce(x, op, out=out)
            return
        self.arrive()
        for piece in x.view(-1).split(_SUMMED // x.element_size()):
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
        each, rows = max(_SUMMED // (x.element_size() * self.size), 1), x.view(self.size, -1)
        for block, columns in zip(out.view(-1).split(each), rows.split(each, 1), strict=True):
            block.copy_(self._total(columns.contiguous(), op))

    def _total(self, blocks: Tensor, op: str) -> Tensor:
        """Of block r of all ranks, on rank r."""
        from ..schedule import exact

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


def bytes_of(x: Tensor) -> AnyArray:
    """The memory of a plain tensor."""
    return tensor_memory(x, "|u1", (x.nbytes,))


def _as_arrays(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Arguments with numpy's arrays in the memory of tensors, and the code of their elements."""
    with suppress(HpcommError):  # of elements that numpy has not: those go as bytes
        looks = [as_buffer(x) if isinstance(x, Tensor) else x for x in arguments]
        codes = [x.dtype.code for x in looks if isinstance(x, Buffer)]
        return *(x.array if isinstance(x, Buffer) else x for x in looks), codes[0]
    return arguments


def _as_bits(x: object) -> object:
    """Halves as integers, which MPI has a type for; what is only moved is not looked at."""
    return x.view(torch.int16) if isinstance(x, Tensor) and x.dtype in HALVES else x


def apart(x: Tensor, out: Tensor, at: int) -> Tensor:
    """x, or a copy of it where it lies in the memory of out, and not at that byte of it."""
    first, there = x.data_ptr(), out.data_ptr()
    overlaps = first < there + out.nbytes and there < first + x.nbytes
    return x.clone() if overlaps and first != there + at else x


def compare_parts(comm: NetworkCollectives, there: list[int], here: list[int]) -> None:
    """See that each rank expects of each other one what that sends to it, in elements. Collective.

    Each pair of ranks has a number. What is sent counts so many times, what is expected as often against it:
    the sum over all ranks is 0 where all agree. Who differs is asked only where it is not.

    Args:
        there, here: what this rank expects of each rank, and what it sends to each.

    Raises:
        MismatchError: on all ranks, with the ranks and lengths that differ.
    """
    me = comm.rank
    mine = sum(n * hash((me, r)) for r, n in enumerate(here))
    mine -= sum(n * hash((r, me)) for r, n in enumerate(there))
    balance = torch.tensor([(mine + _HALF) % (2 * _HALF) - _HALF])
    comm.arrive()
    comm.all_reduce(balance, "sum", out=balance)
    if not balance.item():
        return
    said = torch.empty((comm.size, 2, comm.size), dtype=torch.int64)
    comm.all_gather(torch.tensor([there, here]), out=said)
    (expected, sent), ranks = said.transpose(0, 1).tolist(), range(comm.size)
    rows = [
        f"\n  rank {q}: expects {expected[q][r]} elements of rank {r}, which sends {sent[r][q]}"
        for q in ranks
        for r in ranks
        if expected[q][r] != sent[r][q]
    ]
    what = f"ranks disagree about {words_now()} on '{comm.entry.comm.name}'.{''.join(rows)}"
    hint = "what a rank expects of another one has to be as long as what that sends to it"
    raise as_torch(MismatchError(what, comm.entry.where, hint))


def _spec(x: Tensor, counts: list[int], kind: object) -> Sequence[object]:
    from mpi4py import MPI

    return MPI.buffer.fromaddress(x.data_ptr(), x.nbytes), counts, [0, *accumulate(counts[:-1])], kind
