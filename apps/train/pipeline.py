"""A pipeline over MPI: each rank owns one stage, microbatches travel by send and recv.

hpcomm run -n 2 python apps/train/pipeline.py
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
stages = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(size - 1)] + [nn.Linear(32, 1)]
part = stages[rank]
stage = PipelineStage(part, rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
x = torch.randn(256, 32)
y = x.sin().sum(1, keepdim=True)

optimiser = torch.optim.Adam(part.parameters(), 1e-2)
for step in range(101):
    optimiser.zero_grad()
    losses: list[torch.Tensor] = []
    inputs = (x,) if rank == 0 else ()
    schedule.step(*inputs, **({"target": y, "losses": losses} if rank == size - 1 else {}))
    optimiser.step()
    if step % 25 == 0 and rank == size - 1:
        print(f"step {step:3d}  loss {torch.stack(losses).mean().item():8.4f}", flush=True)
dist.destroy_process_group()
