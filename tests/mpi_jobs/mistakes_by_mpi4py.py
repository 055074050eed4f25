"""The calls of mistakes.py by raw mpi4py."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


class Waits:
    """A request."""

    def __init__(self, request: MPI.Request) -> None:
        self._request = request

    def wait(self) -> None:
        self._request.Wait()


class World:
    """What there is of hpcomm's calls."""

    def __init__(self, comm: Any) -> None:
        self.mpi, self.rank, self.size = comm, comm.rank, comm.size

    def barrier(self) -> None:
        self.mpi.Barrier()

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        out, how = np.empty_like(x), {"sum": MPI.SUM, "max": MPI.MAX}[op]
        if async_op:
            return Waits(self.mpi.Iallreduce(x.copy(), out, how))
        self.mpi.Allreduce(x, out, how)
        return out

    def all_gather(self, x: Any, async_op: bool = False) -> Any:
        out = np.empty((self.size, *x.shape), x.dtype)
        if async_op:
            return Waits(self.mpi.Iallgather(x, out))
        self.mpi.Allgather(x, out)
        return out

    def all_gather_object(self, x: Any) -> Any:
        return self.mpi.allgather(x)

    def gather(self, x: Any, root: int = 0) -> None:
        self.mpi.Gather(x, np.empty((self.size, *x.shape), x.dtype) if self.rank == root else None, root)

    def reduce(self, x: Any, root: int = 0) -> None:
        self.mpi.Reduce(x, np.empty_like(x) if self.rank == root else None, MPI.SUM, root)

    def broadcast(self, x: Any, root: int = 0) -> None:
        self.mpi.Bcast(x, root)

    def broadcast_object(self, x: Any, root: int = 0) -> Any:
        return self.mpi.bcast(x, root)

    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        self.mpi.Send(x, dest, tag)

    def isend(self, x: Any, dest: int, tag: int = 0) -> Waits:
        return Waits(self.mpi.Isend(x, dest, tag))

    def recv(self, y: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> None:
        self.mpi.Recv(y, source, tag)

    def irecv(self, y: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Waits:
        return Waits(self.mpi.Irecv(y, source, tag))

    def send_object(self, x: Any, dest: int) -> None:
        self.mpi.send(x, dest)

    def recv_object(self, source: int) -> Any:
        return self.mpi.recv(source=source)

    def sendrecv(self, x: Any, dest: int, source: int) -> None:
        self.mpi.Sendrecv(x, dest, 0, np.empty_like(x), source, 0)

    def probe(self, source: int) -> None:
        self.mpi.Probe(source)

    def iprobe(self, source: int, tag: int) -> bool:
        return bool(self.mpi.Iprobe(source, tag))

    def dup(self, name: str) -> World:
        return World(self.mpi.Dup())

    def split(self, color: int | None, key: int = 0, name: str = "") -> World | None:
        made = self.mpi.Split(MPI.UNDEFINED if color is None else color, key)
        return None if made == MPI.COMM_NULL else World(made)

    def create_intercomm(self, leader: int, peer: World, remote_leader: int, name: str = "") -> World:
        return World(self.mpi.Create_intercomm(leader, peer.mpi, remote_leader))


world = World(MPI.COMM_WORLD)
world.barrier()
print("begun", flush=True)
