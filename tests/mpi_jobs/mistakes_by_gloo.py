"""The calls of mistakes.py by torch.distributed with gloo, and its TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

_names = os.environ
rank = int(_names.get("OMPI_COMM_WORLD_RANK") or _names["PMI_RANK"])
size = int(_names.get("OMPI_COMM_WORLD_SIZE") or _names["PMI_SIZE"])


class World:
    """What there is of hpcomm's calls."""

    def __init__(self, group: Any = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def barrier(self) -> None:
        dist.barrier(self.group)

    def all_reduce(self, x: Any, op: str = "sum", async_op: bool = False) -> Any:
        how = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op]
        return dist.all_reduce(torch.as_tensor(x).clone(), how, self.group, async_op)

    def all_gather(self, x: Any, async_op: bool = False) -> Any:
        x = torch.as_tensor(x)
        return dist.all_gather([torch.empty_like(x) for _ in range(self.size)], x, self.group, async_op)

    def all_gather_object(self, x: Any) -> None:
        dist.all_gather_object([None] * self.size, x, self.group)

    def gather(self, x: Any, root: int = 0) -> None:
        x = torch.as_tensor(x)
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == root else None
        dist.gather(x, parts, root, self.group)

    def reduce(self, x: Any, root: int = 0) -> None:
        dist.reduce(torch.as_tensor(x), root, group=self.group)

    def broadcast(self, x: Any, root: int = 0) -> None:
        dist.broadcast(torch.as_tensor(x), root, self.group)

    def broadcast_object(self, x: Any, root: int = 0) -> None:
        dist.broadcast_object_list([x], root, self.group)

    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        dist.send(torch.as_tensor(x), dest, self.group, tag)

    def isend(self, x: Any, dest: int, tag: int = 0) -> Any:
        return dist.isend(torch.as_tensor(x), dest, self.group, tag)

    def recv(self, y: Any, source: int | None = None, tag: int = 0) -> None:
        dist.recv(torch.as_tensor(y), source, self.group, tag)

    def irecv(self, y: Any, source: int | None = None, tag: int = 0) -> Any:
        return dist.irecv(torch.as_tensor(y), source, self.group, tag)

    def send_object(self, x: Any, dest: int) -> None:
        dist.send_object_list([x], dest, self.group)

    def recv_object(self, source: int) -> Any:
        found = [None]
        dist.recv_object_list(found, source, self.group)
        return found[0]

    def dup(self, name: str) -> World:
        return World(dist.new_group())

    def split(self, color: int | None, key: int = 0, name: str = "") -> World | None:
        colors: list[Any] = [None] * self.size
        dist.all_gather_object(colors, color, self.group)
        made = {each: [i for i, its in enumerate(colors) if its == each] for each in colors}
        groups = {each: dist.new_group(ranks) for each, ranks in made.items() if each is not None}
        return None if color is None else World(groups[color])


port = 20000 + os.getppid() % 20000
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
world = World()
world.barrier()
print("begun", flush=True)
