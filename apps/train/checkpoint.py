"""A distributed checkpoint over MPI: saved by all ranks, loaded by one rank fewer.

hpcomm run -n 2 python apps/train/checkpoint.py
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
place = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(place)

whole = torch.arange(24.0).reshape(12, 2)
state = {"weights": distribute_tensor(whole, dist.init_device_mesh("cpu", (size,)), [Shard(0)])}
checkpoint.save(state, checkpoint_id=place[0])

few = list(range(max(size - 1, 1)))
group = dist.new_group(few)
if rank in few:
    mesh = DeviceMesh.from_group(group, "cpu")
    state = {"weights": distribute_tensor(torch.zeros(12, 2), mesh, [Shard(0)])}
    checkpoint.load(state, checkpoint_id=place[0], process_group=group)
    same = state["weights"].full_tensor().equal(whole)
    if rank == 0:
        print(f"saved by {size} ranks, loaded by {len(few)}: {'the same' if same else 'WRONG'}")
dist.barrier()
dist.destroy_process_group()
