"""ZeRO over MPI: each rank keeps the optimiser's state of its own share of the parameters.

hpcomm run -n 2 python apps/train/zero.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
net = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
optimiser = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-2)
x = torch.randn(256, 32)
y = x.sin().sum(1, keepdim=True)
mine = slice(rank * 256 // size, (rank + 1) * 256 // size)
for step in range(101):
    optimiser.zero_grad()
    loss = nn.functional.mse_loss(net(x[mine]), y[mine])
    loss.backward()
    optimiser.step()
    if step % 25 == 0:
        dist.all_reduce(shown := loss.detach().clone(), dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step:3d}  loss {shown.item():8.4f}", flush=True)
dist.destroy_process_group()
