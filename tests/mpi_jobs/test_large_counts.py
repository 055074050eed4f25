"""Counts and bytes past 2**31: broadcast, all_reduce, messages, an object; two ranks, a few GiB each.

One job for all, because touching that much memory for the first time takes longer than moving it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NEEDED_GIB = 14
JOB = """
import json
import numpy as np
import hpcomm

comm = hpcomm.world
n = 2**31 + 5
PLACES = [0, 1, 2**31 - 2, 2**31 - 1, 2**31, n - 1]  # around the seam of a cut, and the ends
x = np.zeros(n, np.int8)
seen = {}

def mark(values):
    x[PLACES] = values

def look(array, what):
    seen[what] = [array[PLACES].tolist(), int(np.count_nonzero(array))]

mark(range(1, 7) if comm.rank == 1 else [0] * 6)
assert comm.broadcast(x, root=1, out=x) is x
look(x, "a broadcast")

mark([comm.rank + 1] * 6)
assert comm.all_reduce(x, out=x) is x
look(x, "an all_reduce")

mark(range(1, 7) if comm.rank == 0 else [0] * 6)
x = comm.sendrecv(x, (comm.rank + 1) % 2, out=x)
if comm.rank == 1:
    look(x, "a sendrecv")
    comm.send(x, 0)
    comm.send(x, 0)
    comm.send_object({"x": x, "name": "large"}, 0)
    comm.send_object(seen, 0)
else:
    status = hpcomm.Status()
    assert comm.recv(x, 1, status=status) is x
    seen["the status"] = status.nbytes - n
    look(x, "a message")
    x = comm.recv(dtype=np.int8, source=1)
    look(x, "a message of unknown length")
    del x
    got = comm.recv_object(1)
    look(got["x"], "an object")
    seen["its name"] = got["name"]
    print(json.dumps(comm.recv_object(1) | seen))
"""
EXPECTED = {
    "a broadcast": [[1, 2, 3, 4, 5, 6], 6],
    "an all_reduce": [[3] * 6, 6],
    "a sendrecv": [[1, 2, 3, 4, 5, 6], 6],
    "the status": 0,
    "a message": [[1, 2, 3, 4, 5, 6], 6],
    "a message of unknown length": [[1, 2, 3, 4, 5, 6], 6],
    "an object": [[1, 2, 3, 4, 5, 6], 6],
    "its name": "large",
}


def free_gib() -> float:
    """Memory that can be had without swapping, by the kernel's own account."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    raise AssertionError("no MemAvailable in /proc/meminfo")


@pytest.mark.large
def test_past_two_to_the_31_elements_nothing_is_lost(job: Any) -> None:
    if free_gib() < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of free memory, {free_gib():.1f} are there")
    assert json.loads(job(2, JOB, timeout=100).stdout) == EXPECTED
