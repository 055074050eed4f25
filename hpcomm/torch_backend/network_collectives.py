"""Collectives by MPI as torch means them: halves moved as bits, averages of whole numbers, large tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from ..agree.deadline import Stay
from ..agree.present_calls import words_now
from ..core import dtypes
from ..core.limits import TORCH_CUT, TORCH_CUT_PIECE
from ..core.op import Op
from ..errors import MismatchError
from .calls import WHOLE, nothing
from .entry_barrier import EntryBarrier
from .ranks import Ranks
from .torch_errors import as_torch

Tensor = torch.Tensor
HALVES = (torch.float16, torch.bfloat16)
_HALF = 2**63
_LARGEST = 2**31 - 1  # a count or displacement in one MPI call


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

    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """In place: out is x."""
        self.arrive()
        if (summed := self._summed(x, op)) is not None:
            self.all_reduce(summed, "sum", out=summed)
            x.copy_(self._of_sum(summed, op))
        elif x.nbytes > TORCH_CUT:
            for piece in x.view(-1).split(TORCH_CUT_PIECE // x.element_size()):
                self.comm.all_reduce(piece, op, out=piece)
        else:
            self.comm.all_reduce(x, op, out=x)

    @staticmethod
    def _summed(x: Tensor, op: Any) -> Tensor | None:
        """What is summed in place of x, for operators that only these groups have; None: it is none."""
        if isinstance(op, Op) and op.factor is not None:
            return (x.float() if x.dtype in HALVES else x) * op.factor
        return x.long() if op == "avg" and x.dtype in WHOLE else None

    def _of_sum(self, total: Tensor, op: Any) -> Tensor:
        return total.div_(self.size, rounding_mode="trunc") if op == "avg" else total

    def reduce(self, x: Tensor, op: Any, root: int, *, out: Tensor | None = None) -> Tensor | None:
        """out: where there is a result; None makes one."""
        self.arrive()
        if (summed := self._summed(x, op)) is None:
            found: Tensor | None = self.comm.reduce(x, op, root, out=out)
            return found
        total = self.reduce(summed, "sum", root)
        if total is None:
            return None
        total = self._of_sum(total, op).to(x.dtype)
        return total if out is None else out.copy_(total)

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        """Block r of x, reduced, to rank r; out lies elsewhere."""
        self.arrive()
        if (summed := self._summed(x, op)) is not None:
            total = torch.empty_like(out, dtype=summed.dtype)
            self.reduce_scatter(summed, "sum", out=total)
            out.copy_(self._of_sum(total, op))
        else:
            self.comm.reduce_scatter(apart(x, out, 1), op, out=out)

    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        """In place: out is x."""
        self.arrive()
        x = as_bits(x)
        self.comm.broadcast(x, root, out=x)

    def all_gather(self, x: Tensor, *, out: Tensor) -> None:
        self.arrive()
        x = apart(x, out, self.rank * x.nbytes)
        self.comm.all_gather(as_bits(x), out=as_bits(out))

    def gather(self, x: Tensor, root: int, *, out: Tensor | None = None) -> None:
        """out: at the root."""
        self.arrive()
        x = x if out is None else apart(x, out, root * x.nbytes)
        self.comm.gather(x, root, out=out)

    def scatter(self, x: Tensor | None, root: int, *, out: Tensor) -> None:
        """x: at the root."""
        self.arrive()
        x = None if x is None else apart(x, out, -root * out.nbytes)
        self.comm.scatter(x, root, out=out)

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        self.arrive()
        x = apart(x, out, 0)
        self.comm.all_to_all(as_bits(x), out=as_bits(out))

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


def as_bits(x: Tensor) -> Tensor:
    """Halves as integers, which MPI has a type for; what is only moved is not looked at."""
    return x.view(torch.int16) if x.dtype in HALVES else x


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
