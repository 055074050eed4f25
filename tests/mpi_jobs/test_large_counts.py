"""Counts and bytes past 2**31: broadcast, all_reduce, send, an object; two ranks, a few GiB each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NEEDED_GIB = 14


def free_gib() -> float:
    """Memory that can be had without swapping, by the kernel's own account."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    raise AssertionError("no MemAvailable in /proc/meminfo")


PROLOGUE = """
import numpy as np
import hpcomm

comm = hpcomm.world
n = 2**31 + 5
PLACES = [0, 1, 2**31 - 2, 2**31 - 1, 2**31, n - 1]  # around the seam of a cut, and the ends

def marked(values):
    x = np.zeros(n, np.int8)
    x[PLACES] = values
    return x
"""
JOBS = {
    "a broadcast": """
x = marked(range(1, 7)) if comm.rank == 1 else np.zeros(n, np.int8)
assert comm.broadcast(x, root=1, out=x) is x
assert x[PLACES].tolist() == [1, 2, 3, 4, 5, 6]
assert np.count_nonzero(x) == 6
""",
    "an all_reduce": """
x = marked([comm.rank + 1] * 6)
assert comm.all_reduce(x, out=x) is x
assert x[PLACES].tolist() == [3] * 6
assert np.count_nonzero(x) == 6
""",
    "a message": """
if comm.rank == 0:
    comm.send(marked(range(1, 7)), 1)
else:
    x = np.zeros(n, np.int8)
    status = hpcomm.Status()
    assert comm.recv(x, 0, status=status) is x
    assert status.nbytes == n
    assert x[PLACES].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.count_nonzero(x) == 6
""",
    "an object": """
if comm.rank == 0:
    comm.send_object({"x": marked(range(1, 7)), "name": "large"}, 1)
else:
    got = comm.recv_object(0)
    assert got["name"] == "large"
    assert got["x"][PLACES].tolist() == [1, 2, 3, 4, 5, 6]
    assert np.count_nonzero(got["x"]) == 6
""",
}


@pytest.mark.parametrize("what", JOBS)
def test_past_two_to_the_31_elements_nothing_is_lost_in(job: Any, what: str) -> None:
    if free_gib() < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of free memory, {free_gib():.1f} are there")
    done = job(2, PROLOGUE + JOBS[what] + "print('whole')\n", timeout=90)
    assert done.stdout == "whole\nwhole\n"
