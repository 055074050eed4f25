"""Latency and bandwidth of device messages between two ranks, path by path, against naive staging.

    hpcomm run -n 2 python benchmarks/gpu.py [--max MiB]

Prints one table; each cell is the median one-way time in us and GB/s, and "!" where data arrived wrong. The
receiving array holds NaN before each check. Both ranks may share a GPU. Never run on a real GPU yet.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcomm

Move = Callable[[Any], None]


def library() -> Any:
    """CuPy, else torch with CUDA."""
    try:
        import cupy

        return cupy
    except ImportError:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("there is neither CuPy nor a torch with CUDA here") from None
        return torch


XP = library()
RANK = MPI.COMM_WORLD.rank


def there(x: Any) -> Any:
    return XP.asarray(x) if XP.__name__ == "cupy" else XP.from_numpy(x).cuda()


def here(x: Any) -> Any:
    return x.get() if XP.__name__ == "cupy" else x.cpu().numpy()


def synchronize() -> None:
    XP.cuda.Stream.null.synchronize() if XP.__name__ == "cupy" else XP.cuda.synchronize()


def naive() -> tuple[Move, Move]:
    """What is done without hpcomm: a pageable copy, MPI, a pageable copy."""
    mpi = MPI.COMM_WORLD

    def recv(x: Any) -> None:
        host = np.empty(x.shape, np.float32)
        mpi.Recv(host, 1 - RANK)
        x[:] = there(host)

    return lambda x: mpi.Send(here(x), 1 - RANK), recv


def path(setting: str) -> tuple[Move, Move]:
    os.environ["HPCOMM_GPU"] = setting
    comm = hpcomm.Communicator(MPI.COMM_WORLD, name=setting)
    return lambda x: comm.send(x, dest=1 - RANK), lambda x: comm.recv(x, source=1 - RANK)


def measure(send: Move, recv: Move, n: int) -> str:
    data = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x = there(data if RANK == 0 else np.full(n, np.nan, np.float32))
    (send if RANK == 0 else recv)(x)
    right = MPI.COMM_WORLD.allreduce(bool((here(x) == data).all()), MPI.LAND)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < 0.5 and len(times) < 1000):
        synchronize()
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        for move in (send, recv) if RANK == 0 else (recv, send):
            move(x)
        synchronize()
        times.append(MPI.COMM_WORLD.bcast((time.perf_counter() - start) / 2))
    median = sorted(times)[len(times) // 2]
    return f"{median * 1e6:10.1f}/{4 * n / median / 1e9:6.1f}{' ' if right else '!'}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max", type=int, default=256, help="MiB of the largest message")
    largest = parser.parse_args().max << 20
    if MPI.COMM_WORLD.size != 2:
        raise SystemExit("two ranks, please: hpcomm run -n 2 python benchmarks/gpu.py")
    sizes = [
        size
        for size in (8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
        if size <= largest
    ]
    rows = {"naive staging": naive(), "pipeline": path("pipeline"), "auto (ipc)": path("auto")}
    if RANK == 0:
        print(f"{'us one way / GB/s':16s}" + "".join(f"{size:>18d}" for size in sizes))
    for name, (send, recv) in rows.items():
        cells = [measure(send, recv, size // 4) for size in sizes]
        if RANK == 0:
            print(f"{name:16s}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
