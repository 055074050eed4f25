"""NCCL on the model of the driver: it works when it is called, by MPI, on what its stream has done so far."""

from __future__ import annotations

import itertools
import time
from typing import Any

import device_model as model
import numpy as np
from device_model.queues import Waited, complete

from hpcomm.device.kernels import FUNCTIONS
from hpcomm.device.nccl import Collective


class ModelNccl:
    """As device.nccl.Nccl, and as its Group of all ranks, of which there is one at a time."""

    version = 22703

    def __init__(self, mpi: Any, device: model.Model) -> None:
        self.mpi, self.model = mpi, device
        self.calls: list[str] = []
        self.used: set[str] = set()
        self._serial = itertools.count()

    def unique(self) -> bytes:
        return f"{self.mpi.rank} {self.mpi.rank + self.mpi.size * next(self._serial)}".encode().ljust(128)

    def group(self, unique: bytes, size: int, rank: int) -> Any:
        """Meet the others where the one waits who made unique: he is the first rank."""
        first, serial = map(int, unique.split())
        tag = 100 + serial
        if rank == 0:
            came = dict([self.mpi.recv(tag=tag) for _ in range(size - 1)])
            members = [first, *(came[i] for i in range(1, size))]
            for other in members[1:]:
                self.mpi.send(members, other, tag)
        else:
            self.mpi.send((rank, self.mpi.rank), first, tag)
            members = self.mpi.recv(source=first, tag=tag)
        assert members[rank] == self.mpi.rank
        return self if members == list(range(self.mpi.size)) and size > 2 else Pair(self, members, tag)

    def close(self) -> None:
        self.calls.append("close")

    def carry(self, what: Collective, work: int, stream: int) -> None:
        verb, count, dtype, op, root = what
        self.calls.append(verb)
        p, rank, block = self.mpi.size, self.mpi.rank, count * dtype.itemsize
        gives = {"all_gather": (rank, 1), "gather": (rank, 1)}.get(verb, (0, 1))
        gives = (0, p) if verb in ("scatter", "reduce_scatter", "all_to_all") else gives
        gets = {"all_gather": (0, p), "gather": (0, p), "scatter": (rank, 1), "reduce_scatter": (rank, 1)}
        first, slots = (p, p) if verb == "all_to_all" else gets.get(verb, (0, 1))
        given = self._now(work + gives[0] * block, gives[1] * block, stream)
        parts = np.stack([np.frombuffer(each, dtype.storage) for each in self.mpi.allgather(given.tobytes())])
        if verb in ("reduce_scatter", "scatter", "all_to_all"):
            parts = parts.reshape(p, p, count)[:, rank]
        if op is not None:
            parts = getattr(np, FUNCTIONS[op]).reduce(parts, axis=0)
        elif verb in ("broadcast", "scatter"):
            parts = parts[root]
        out = self.model.at(work + first * block, slots * block)[0]
        if verb in ("reduce", "gather") and rank != root:
            self.model.put(stream, lambda: None, [(work + gives[0] * block, gives[1] * block, False)])
            return
        result = np.ascontiguousarray(parts).reshape(-1).view(np.uint8)
        self.model.put(
            stream, lambda: np.copyto(out, result),
            [(work + gives[0] * block, gives[1] * block, False), (work + first * block, slots * block, True)],
        )  # fmt: skip

    def _now(self, address: int, nbytes: int, stream: int) -> Any:
        """What is there once stream has come so far; nobody learns that it has."""
        event = self.model.device(0).event()
        self.model.record(event, stream)
        found = self.model.events[event]
        while True:
            with self.model.lock:
                if complete(Waited(found, found.recorded, found.stream)):
                    break
            time.sleep(1e-4)  # it waits for another process
        self.model.destroy_event(event)
        return self.model.at(address, nbytes)[0]


class Pair:
    """A group of two, whose messages are matched by their order alone."""

    def __init__(self, nccl: ModelNccl, members: list[int], tag: int) -> None:
        self.nccl, self.mpi, self.model = nccl, nccl.mpi, nccl.model
        self.members, self.tag = members, tag
        self.used: set[str] = set()
        self._going: list[Any] = []

    def carry(self, *arguments: Any) -> None:
        self.nccl.carry(*arguments)

    def send(self, address: int, nbytes: int, peer: int, stream: int) -> None:
        data = self.nccl._now(address, nbytes, stream).copy()
        self._going.append((self.mpi.Isend(data, self.members[peer], self.tag), data))
        self.model.put(stream, lambda: None, [(address, nbytes, False)])
        self.nccl.calls.append("send")

    def recv(self, address: int, nbytes: int, peer: int, stream: int) -> None:
        data = np.empty(nbytes, np.uint8)
        coming, out = self.mpi.Irecv(data, self.members[peer], self.tag), self.model.at(address, nbytes)[0]

        def work() -> None:
            coming.Wait()
            np.copyto(out, data)

        self.model.put(stream, work, [(address, nbytes, True)])
        self.nccl.calls.append("recv")

    def close(self) -> None:
        for request, _ in self._going:
            request.Wait()
        self.nccl.close()
