"""Watches the loss of every trainer's rank, and stops the job with a failure if it does not fall."""

import argparse
import sys

import numpy as np

import hpcomm

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--batches", type=int, default=40)
options = parser.parse_args()

me = hpcomm.join("monitor")
trainers = me.link("trainer").size
points = np.arange(trainers) if me.comm.rank == 0 else np.arange(0)
loss = me.takes("loss", np.zeros(len(points)), points)
first = last = 0.0
for i in range(options.batches):
    losses = me.get(loss)
    if me.comm.rank == 0:
        last = losses.mean()
        first = first or last
        if i % 10 == 0:
            print(f"batch {i}: loss {last:.4f}")
if me.comm.rank == 0:
    print(f"loss fell from {first:.4f} to {last:.4f}")
    if not last <= 0.01 * first:  # nor if it is nan
        sys.exit("monitor: the loss did not fall")
