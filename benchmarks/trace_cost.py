"""What a trace costs: microseconds of an 8-byte all_reduce of one rank, without one and with one.

python benchmarks/trace_cost.py
"""

from __future__ import annotations

import tempfile
from timeit import repeat

import numpy as np

import hpcomm

TIMES = 5000


def microseconds() -> float:
    x, comm = np.ones(1), hpcomm.self_
    return min(repeat(lambda: comm.all_reduce(x, out=x), number=TIMES, repeat=20)) / TIMES * 1e6


if __name__ == "__main__":
    before = microseconds()
    with tempfile.TemporaryDirectory() as folder, hpcomm.trace(folder):
        traced = microseconds()
    print(f"without a trace {before:.2f} us, with one {traced:.2f} us, after it {microseconds():.2f} us")
