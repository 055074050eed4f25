"""Counts and bytes past 2**31: broadcast, all_reduce, messages, an object; on two ranks.

Touching that much memory for the first time takes far longer than moving it. So of these arrays only the
ends and the seam at 2**31 have memory of their own. The zeros between are one piece of it, over and over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ZEROS = """
import ctypes, json, mmap, os
import numpy as np

n, piece = 2**31 + 5, 2**24
PLACES = [0, 1, 2**31 - 2, 2**31 - 1, 2**31, n - 1]  # around the seam of a cut, and the ends
seen = {}

def zeros():
    map_at, address = ctypes.CDLL(None).mmap, ctypes.c_void_p
    map_at.restype, map_at.argtypes = address, [address, ctypes.c_size_t] + [ctypes.c_long] * 4
    start = map_at(None, 2**31 + piece, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    file = os.memfd_create("zeros")
    os.ftruncate(file, 4 * piece)
    own = {0: 1, 2**31 - piece: 2, 2**31: 3}
    for at in range(0, n, piece):
        place = start + at, piece, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10  # MAP_FIXED
        assert map_at(*place, file, own.get(at, 0) * piece) == start + at
    return np.frombuffer((ctypes.c_int8 * n).from_address(start), np.int8)
"""

JOB = (
    ZEROS
    + """
import hpcomm

comm = hpcomm.world
x, y, empty = zeros(), zeros(), np.empty
np.empty = lambda shape, *kind: zeros() if shape in (n, (n,)) else empty(shape, *kind)  # what is received

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
x = comm.sendrecv(x, (comm.rank + 1) % 2, out=y)
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
)
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

TORCH_JOB = (
    ZEROS
    + """
import torch
import torch.distributed as dist
import hpcomm.torch_backend

dist.init_process_group("mpi")
rank, x = dist.get_rank(), torch.from_numpy(zeros())

def mark(values):
    x[PLACES] = torch.tensor(values, dtype=torch.int8)

def look(what):
    seen[what] = [x[PLACES].tolist(), int(np.count_nonzero(x.numpy()))]

mark([*range(1, 7)] if rank == 1 else [0] * 6)
dist.broadcast(x, 1)
look("a broadcast")
mark([rank + 1] * 6)
dist.all_reduce(x)
look("an all_reduce")
mark([*range(1, 7)] if rank == 1 else [0] * 6)
dist.send(x, 0) if rank == 1 else dist.recv(x, 1)
look("a message")
if rank == 0:
    print(json.dumps(seen))
dist.destroy_process_group()
"""
)
OF_TORCH = ("a broadcast", "an all_reduce", "a message")


def free_gib() -> float:
    """Memory that can be had without swapping, by the kernel's own account."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    raise AssertionError("no MemAvailable in /proc/meminfo")


def result(job: Any, code: str, needed_gib: int) -> Any:
    """What rank 0 of a job of two ranks has seen."""
    if free_gib() < needed_gib:
        pytest.skip(f"needs {needed_gib} GiB of free memory, {free_gib():.1f} are there")
    return json.loads(job(2, code, timeout=100).stdout)


@pytest.mark.large
def test_past_two_to_the_31_elements_nothing_is_lost(job: Any) -> None:
    assert result(job, JOB, 4) == EXPECTED


@pytest.mark.large
@pytest.mark.once
def test_past_two_to_the_31_elements_torch_loses_nothing(job: Any) -> None:
    assert result(job, TORCH_JOB, 2) == {what: EXPECTED[what] for what in OF_TORCH}
