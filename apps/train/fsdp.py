"""FSDP2 over MPI: parameters, gradients and optimiser states are spread; a layer is gathered while it works.

hpcomm run -n 2 python apps/train/fsdp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = dist.init_device_mesh("cpu", (size,))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
whole = sum(p.numel() for p in net.parameters())
for layer in net:
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
here = sum(p.to_local().numel() for p in net.parameters())

x = torch.randn(256, 32)
y = x.sin().sum(1, keepdim=True)
mine = slice(rank * 256 // size, (rank + 1) * 256 // size)
optimiser = torch.optim.Adam(net.parameters(), 1e-2, foreach=False)
for step in range(101):
    optimiser.zero_grad()
    loss = nn.functional.mse_loss(net(x[mine]), y[mine])
    loss.backward()
    optimiser.step()
    if step % 25 == 0:
        dist.all_reduce(shown := loss.detach().clone(), dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step:3d}  loss {shown.item():8.4f}  {here} of {whole} parameters here", flush=True)
dist.destroy_process_group()
