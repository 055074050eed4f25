"""DistributedDataParallel over MPI on scikit-learn's digits: the weights of one process, on any ranks.

    hpcomm run -n 2 python apps/train/ddp.py [--epochs 10] [--backend mpi]

Every rank takes its part of each batch, so a step is that of the whole batch, whatever the number of ranks.
At the end rank 0 trains alone, compares the weights (tolerance 1e-4), and prints gloo's speed beside.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed: torch finds it

BATCH, RATE, TOLERANCE = 96, 0.2, 1e-4  # 1, 2, 3 and 4 ranks divide a batch


def main() -> int:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--backend", default="mpi")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    ours, speed = train(DistributedDataParallel(model()), x, y, arguments.epochs, show=rank == 0)
    beside = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
    _, other = train(DistributedDataParallel(model(), process_group=beside), x, y, arguments.epochs)
    wrong = 0
    if rank == 0:
        alone, _ = train(model(), x, y, arguments.epochs)
        furthest = max((a - b).abs().max().item() for a, b in zip(ours, alone, strict=True))
        wrong = int(not furthest <= TOLERANCE)
        print(f"{arguments.backend} {speed:,.0f} samples/s, gloo {other:,.0f} samples/s")
        print(f"furthest weight from one process: {furthest:.1e}, {'WRONG' if wrong else 'as it should be'}")
    dist.destroy_process_group()
    return wrong


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(
    net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, show: bool = False
) -> tuple[list[torch.Tensor], float]:
    """Train net; its weights and samples per second of the whole job. Alone, or on this rank's parts."""
    parallel = isinstance(net, DistributedDataParallel)
    rank, size = (dist.get_rank(), dist.get_world_size()) if parallel else (0, 1)
    optimiser = torch.optim.SGD(net.parameters(), RATE)
    begin, seen = time.perf_counter(), 0
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(x) // BATCH * BATCH].split(BATCH):
            part = batch.chunk(size)[rank]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[part]), y[part])
            loss.backward()
            optimiser.step()
            seen += len(batch)
        if show:
            right = (net(x).argmax(1) == y).float().mean()
            print(f"epoch {epoch + 1:3d}/{epochs}  loss {loss.item():.4f}  right {right:6.1%}", flush=True)
    return [p.detach() for p in net.parameters()], seen / (time.perf_counter() - begin)


if __name__ == "__main__":
    sys.exit(main())
