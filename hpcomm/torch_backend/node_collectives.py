"""Collectives of ranks that share memory, by the native core, which takes tensors as they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import torch

from ..core.buffer import Buffer, as_buffer, tensor_memory
from ..core.reduction import is_always_exact
from ..core.signature import head
from ..core.types import AnyArray
from ..errors import HpcommError
from ..node import native
from ..node.native import native_core as core
from .entry_barrier import EntryBarrier
from .network_collectives import NetworkCollectives, apart
from .ranks import Ranks

Tensor = torch.Tensor
_LAID = 4224  # bytes, NODE_CELL: a longer block is read where its giver has it


def carrier(comm: Ranks, entry: EntryBarrier) -> NetworkCollectives:
    """What carries out the calls of comm."""
    if is_always_exact():
        from .exact_sums import ExactOnNode, ExactSums

        return ExactSums(comm, entry) if entry.node is None else ExactOnNode(comm, entry)
    return NetworkCollectives(comm, entry) if entry.node is None else NodeCollectives(comm, entry)


class NodeCollectives(NetworkCollectives):
    """Each verb is a call of the core, and so a meeting itself; what that does not take MPI carries out.

    Which of both depends on the signature only. A verb that makes other calls out of one is met for first.
    """

    def _makes(self, verb: str, *arguments: object) -> object:
        """Have the core make a call; NotImplemented: it does not take it, whatever rank one asks."""
        self.entry.check()
        due, self._due, self.stay.since = self._due, None, None
        if not native.takes_tensors():
            arguments = _as_arrays(arguments)
        made: object = getattr(self.entry.node, verb)(*arguments)
        if made is NotImplemented:
            self._due = due
        return made

    def _moves(self, verb: str, *arguments: object) -> bool:
        """The same, of a verb that only moves; elements of which the core knows nothing go as bytes."""
        if self._makes(verb, *arguments) is not NotImplemented:
            return True
        self.arrive()
        as_bytes = [x.view(-1).view(torch.uint8) if isinstance(x, Tensor) else x for x in arguments]
        return self._makes(verb, *as_bytes) is not NotImplemented

    # -- verbs that reduce ---------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: str, *, out: Tensor) -> None:
        if self._makes("all_reduce", x, op, out) is NotImplemented:
            super().all_reduce(x, op, out=out)

    def reduce(self, x: Tensor, op: str, root: int, *, out: Tensor | None = None) -> Tensor | None:
        if out is None and self.rank == root:
            out = torch.empty_like(x)
        taken = self._makes("reduce", x, op, root, out) is not NotImplemented
        return out if taken else super().reduce(x, op, root, out=out)

    def reduce_scatter(self, x: Tensor, op: str, *, out: Tensor) -> None:
        if self._makes("reduce_scatter", x, op, out) is NotImplemented:
            super().reduce_scatter(x, op, out=out)

    # -- verbs that only move ------------------------------------------------------------------------------
    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        if not self._moves("broadcast", x, root, x):
            super().broadcast(x, root, out=out)

    def all_gather(self, x: Tensor, *, out: Tensor) -> None:
        if not self._moves("all_gather", apart(x, out, self.rank * x.nbytes), out):
            super().all_gather(x, out=out)

    def gather(self, x: Tensor, root: int, *, out: Tensor | None = None) -> None:
        x = x if out is None else apart(x, out, root * x.nbytes)
        if not self._moves("gather", x, root, out):
            super().gather(x, root, out=out)

    def scatter(self, x: Tensor | None, root: int, *, out: Tensor) -> None:
        x = None if x is None else apart(x, out, -root * out.nbytes)
        if not self._moves("scatter", x, root, out):
            super().scatter(x, root, out=out)

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        if not self._moves("all_to_all", apart(x, out, 0), out):
            super().all_to_all(x, out=out)

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
