"""Makes batches of noisy points, as fast as the trainer takes them.

hpcomm run mpmd_configs/pipeline.toml
"""

import argparse

import numpy as np

import hpcomm

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--batches", type=int, default=40)
parser.add_argument("--size", type=int, default=256, help="rows of a batch, over all ranks")
options = parser.parse_args()

me = hpcomm.join("producer")
rng = np.random.default_rng(me.comm.rank)
rows = np.array_split(np.arange(options.size), me.comm.size)[me.comm.rank]
batch = me.gives("batch", np.zeros((len(rows), 3), np.float32), rows)
truth = np.array([2.0, -1.0], np.float32)
for _ in range(options.batches):
    x = rng.standard_normal((len(rows), 2)).astype(np.float32)
    y = x @ truth + 0.5 + 0.01 * rng.standard_normal(len(rows)).astype(np.float32)
    batch.values = np.column_stack([x, y])
    me.put(batch)  # returns when the batch before has been taken
