"""Collectives on Python objects: hpcomm's, in which arrays travel from and into their own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from mpi4py import MPI

from .surface import Surface

_Op = MPI.Op | Callable[[Any, Any], Any]


class Objects(Surface):
    """Collectives on objects. Operators are called as Python functions, in the order of ranks."""

    def barrier(self) -> None:
        self.communicator.barrier()

    def bcast(self, obj: object, root: int = 0) -> Any:
        return self.communicator.broadcast_object(obj, root)

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        return self.communicator.gather_object(sendobj, root)

    def scatter(self, sendobj: Sequence[object] | None, root: int = 0) -> Any:
        return self.communicator.scatter_object(sendobj, root)

    def allgather(self, sendobj: object) -> list[Any]:
        return self.communicator.all_gather_object(sendobj)

    def alltoall(self, sendobj: Sequence[object]) -> list[Any]:
        return self.communicator.all_to_all_object(sendobj)

    def reduce(self, sendobj: object, op: _Op = MPI.SUM, root: int = 0) -> Any | None:
        return self.communicator.reduce_object(sendobj, op, root)

    def allreduce(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        return self.communicator.all_reduce_object(sendobj, op)

    def scan(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        return reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        """None on rank 0."""
        before = self.allgather(sendobj)[: self.rank]
        return reduce(op, before) if before else None
