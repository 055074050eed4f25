"""Tensor parallelism over MPI: one layer's columns and the next one's rows are spread over the ranks.

hpcomm run -n 2 python apps/train/tensor_parallel.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

torch.set_num_threads(1)
dist.init_process_group("mpi")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 48 * dist.get_world_size()), nn.ReLU(), nn.Linear(48 * mesh.size(), 1))
parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
x = torch.randn(256, 32)  # every rank has the whole batch, and a part of the network
y = x.sin().sum(1, keepdim=True)

optimiser = torch.optim.Adam(net.parameters(), 1e-2, foreach=False)
for step in range(101):
    optimiser.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    optimiser.step()
    if step % 25 == 0 and dist.get_rank() == 0:
        here = net[0].weight.to_local().shape[0]
        print(
            f"step {step:3d}  loss {loss.item():8.4f}  {here} of {net[0].weight.shape[0]} columns here",
            flush=True,
        )
dist.destroy_process_group()
