"""Fits a line to the producer's batches with torch, data-parallel; tells the monitor the loss."""

import argparse

import torch

import hpcomm

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--batches", type=int, default=40)
parser.add_argument("--size", type=int, default=256)
options = parser.parse_args()

me = hpcomm.join("trainer")
comm = me.comm
torch.set_num_threads(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = torch.nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
count = options.size // comm.size
rows = torch.arange(comm.rank * count, (comm.rank + 1) * count).numpy()
batch = me.takes("batch", torch.zeros(count, 3, device=device), rows)
loss_now = me.gives("loss", torch.zeros(1, dtype=torch.float64), [comm.rank])
for _ in range(options.batches):
    data = me.get(batch)
    loss = ((model(data[:, :2])[:, 0] - data[:, 2]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        gradient = parameter.grad.cpu()
        parameter.grad.copy_(comm.all_reduce(gradient, "avg"))
    optimizer.step()
    loss_now.values[0] = loss.item()
    me.put(loss_now)
if comm.rank == 0:
    print("weights", *(f"{w:.2f}" for w in model.weight[0].tolist()), f"bias {model.bias.item():.2f}")
