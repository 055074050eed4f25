"""Zero-copy collectives of long tensors: ranks of one node read each other's memory.

Where the system lets a process read another one's memory, a long tensor crosses in one copy, without staging:
each rank publishes the address of its tensor, all meet, each copies what it needs from there, and all meet
again before anybody returns, because until then its tensor is read. A rank that gives up says so before it
returns, and a rank that has read from it since does not use that; see shared_collectives.py.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..core.limits import READ_LEAST, READ_LEAST_ALL_REDUCE, READ_PIECE, READ_SCRATCH
from ..errors import TransportError
from .calls import in_turn
from .cross_memory import reach
from .network_collectives import NetworkCollectives
from .shared_collectives import MOST, RANK_BYTES, SharedCollectives, shared_memory_of
from .tensor_memory import copying, flat_of, folding, folds, give_back, rows_of, target
from .torch_errors import as_torch

if TYPE_CHECKING:
    import mmap

    from ..communicator.communicator import Communicator
    from .cross_memory import Reach
    from .monitored_gate import MonitoredGate

__all__ = ["ZeroCopy", "carrier"]

Tensor = torch.Tensor
Run = Callable[[], Any]
_MOST = 2**31 - 1  # elements; more cannot be told from less by the signature of a call
_ADDRESS = 8  # which word of a rank's head says where its tensor lies
_GOING_S = 1.0  # for a rank that cannot be reached to be seen to have ended
_ORDERED = ("x86_64", "AMD64")  # stores are seen in order there; nothing in Python could see to it elsewhere


def carrier(comm: Communicator, gate: MonitoredGate) -> NetworkCollectives:
    """What carries out the calls of comm: the quickest that all its ranks can use. Collective."""
    if comm.size == 1 or not gate.on_node or comm.size > MOST or platform.machine() not in _ORDERED:
        return NetworkCollectives(comm, gate)
    memory = shared_memory_of(comm)
    if memory is None:
        return NetworkCollectives(comm, gate)
    others = reach(comm)
    return SharedCollectives(comm, gate, memory) if others is None else ZeroCopy(comm, gate, memory, others)


class ZeroCopy(SharedCollectives):
    """Shared-memory collectives, with long calls by zero-copy."""

    def __init__(self, comm: Communicator, gate: MonitoredGate, memory: mmap.mmap, reach: Reach) -> None:
        super().__init__(comm, gate, memory)
        self._reach = reach
        self._peers = [q for q in range(comm.size) if q != comm.rank]
        self._lent = [q * RANK_BYTES // 8 + _ADDRESS for q in range(comm.size)]

    def most(self, verb: str, op: Any, dtype: torch.dtype) -> int:
        return super().most(verb, op, dtype) and _MOST

    def is_long(self, verb: str, nbytes: int) -> bool:
        if verb == "all_gather":
            nbytes *= self.size
        return nbytes >= (READ_LEAST_ALL_REDUCE if verb == "all_reduce" or self.gate.crowded else READ_LEAST)

    # -- memory --------------------------------------------------------------------------------------------
    def lending(self, flat: Tensor) -> tuple[memoryview, memoryview]:
        """Where to write what, before the meeting; others may read flat until the next one."""
        word = self._words[self._lent[self.rank] :][:1]
        return word, memoryview(flat.data_ptr().to_bytes(8, "little")).cast("q")

    def _lend(self, flat: Tensor) -> None:
        there, here = self.lending(flat)
        there[:] = here
        self.together()

    def is_reachable(self, flat: Tensor) -> bool:
        """Not so is what a device's driver has mapped."""
        first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes - 1
        into = self.scratch(torch.uint8).data_ptr()
        return all(self._reach.reading(self.rank, into, 1)(at) for at in (first, last))

    def _reachable(self, flat: Tensor) -> Tensor:
        return flat if self.is_reachable(flat) else flat.clone()

    def _fetching(self, rank: int, at: int, into: Tensor) -> Run:
        """What fills into from bytes at of the tensor whose address rank has published."""
        return self._copying(rank, at, self._reach.reading(rank, into.data_ptr(), into.nbytes))

    def _handing(self, rank: int, at: int, x: Tensor) -> Run:
        """What copies x to where _fetching would take it from."""
        return self._copying(rank, at, self._reach.writing(rank, x.data_ptr(), x.nbytes))

    def _copying(self, rank: int, at: int, copy: Callable[[int], bool]) -> Run:
        words, lent = self._words, self._lent[rank]

        def run() -> None:
            if not copy(words[lent] + at):
                self._miss(rank)

        return run

    def _miss(self, rank: int) -> None:
        """Raise: rank cannot be reached, most likely because it ends just now."""
        begin = time.monotonic()
        while (waited := time.monotonic() - begin) < _GOING_S:
            self._check([rank], waited)
            time.sleep(1e-3)
        what = f"the memory of rank {rank} cannot be read any more"
        error = TransportError(what, self.gate.where, "look at what that rank printed")
        self.gate.failed = as_torch(error)
        self._give_up()
        raise self.gate.failed

    # -- what is to be done once all have met, for flat tensors ------------------------------------------
    def all_reducing(self, x: Tensor, op: str) -> Run:
        """Each rank reduces a block of x, in place, and takes the others'."""
        blocks, me = x.split(-(-len(x) // self.size)), self.rank
        step = blocks[0].nbytes
        folds = self._folding(op, blocks[me], me * step, blocks[me]) if me < len(blocks) else []
        fetches = [self._fetching(q, q * step, block) for q, block in enumerate(blocks) if q != me]
        return in_turn([*folds, self.together, *fetches, self.together])

    def reduce_scattering(self, x: Tensor, op: str, into: Tensor) -> Run:
        own = x.view(self.size, -1)[self.rank]
        return in_turn([*self._folding(op, own, self.rank * own.nbytes, into), self.together])

    def _folding(self, op: str, own: Tensor, begin: int, into: Tensor) -> list[Run]:
        """Steps that fold a block, at that byte of what all have lent, into a tensor, own or another one."""
        chunk = min(READ_PIECE, READ_SCRATCH // len(self._peers)) // own.itemsize
        aside = self.scratch(own.dtype)[: chunk * len(self._peers)].split(chunk)
        steps: list[Run] = []
        for low in range(0, len(own), chunk):
            part = own[low : low + chunk]
            others = [each[: len(part)] for each in aside]
            at = begin + low * own.itemsize
            steps += [self._fetching(q, at, other) for q, other in zip(self._peers, others, strict=True)]
            steps.append(folding(op, [part, *others], into[low : low + chunk]))
        return steps

    def broadcasting(self, x: Tensor, root: int) -> Run:
        """The root hands the last part to all, who fetch the rest meanwhile."""
        x = x.view(torch.uint8)
        fetched = len(x) - len(x) // self.size
        if self.rank == root:
            steps = [self._handing(q, fetched, x[fetched:]) for q in self._peers]
        else:
            steps = [self._fetching(root, 0, x[:fetched])]
        return in_turn([*steps, self.together])

    def all_gathering(self, x: Tensor, rows: Tensor) -> Run:
        steps = [self._fetching(q, 0, rows[q]) for q in self._peers]
        own = rows[self.rank]
        steps += [copying(own, x)] if own.data_ptr() != x.data_ptr() else []
        return in_turn([*steps, self.together])

    def all_to_alling(self, rows: Tensor, into: Tensor) -> Run:
        at = self.rank * rows[0].nbytes
        steps = [self._fetching(q, at, into[q]) for q in self._peers]
        return in_turn([*steps, copying(into[self.rank], rows[self.rank]), self.together])

    def going(self, verb: str, op: str | None, root: int, x: Tensor, out: Tensor) -> Run | None:
        """What is to be done of a long call on flat tensors; None: x must be copied first."""
        if not self.is_reachable(x):
            return None
        if verb == "broadcast":
            return self.broadcasting(x, root)
        if verb == "all_gather":
            return self.all_gathering(x, out.view(self.size, -1))
        if verb == "all_to_all":
            return self.all_to_alling(x.view(self.size, -1), out.view(self.size, -1))
        assert op is not None
        return self.all_reducing(x, op) if verb == "all_reduce" else self.reduce_scattering(x, op, out)

    # -- verbs ---------------------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: Any, *, out: Tensor) -> None:
        if not (self.is_long("all_reduce", x.nbytes) and folds(x.dtype, op)):
            return super().all_reduce(x, op, out=out)
        flat = self._reachable(target(x))
        self._lend(flat)
        self.all_reducing(flat, op)()
        return give_back(flat, x)

    def reduce_scatter(self, x: Tensor, op: Any, *, out: Tensor | None = None) -> Tensor:
        if not (self.is_long("reduce_scatter", x.nbytes) and folds(x.dtype, op)):
            return super().reduce_scatter(x, op, out=out)
        out = torch.empty_like(x[0]) if out is None else out
        flat, into = self._reachable(flat_of(x)), target(out)
        self._lend(flat)
        self.reduce_scattering(flat, op, into)()
        give_back(into, out)
        return out

    def broadcast(self, x: Tensor, root: int, *, out: Tensor) -> None:
        if not self.is_long("broadcast", x.nbytes):
            return super().broadcast(x, root, out=out)
        flat = self._reachable(target(x))
        self._lend(flat)
        self.broadcasting(flat, root)()
        return give_back(flat, x)

    def all_gather(self, x: Tensor, *, out: Tensor) -> None:
        if not self.is_long("all_gather", x.nbytes):
            return super().all_gather(x, out=out)
        rows = rows_of(out)
        flat = self._reachable(self._apart(flat_of(x), rows[self.rank]))
        self._lend(flat)
        return self.all_gathering(flat, rows)()

    def all_to_all(self, x: Tensor, *, out: Tensor) -> None:
        if not self.is_long("all_to_all", x.nbytes):
            return super().all_to_all(x, out=out)
        flat = self._reachable(flat_of(x))
        self._lend(flat)
        return self.all_to_alling(flat.view(self.size, -1), rows_of(out))()
