"""What the first calls of a program cost: `hpcomm.world`, the first call of each kind, more communicators.

    python benchmarks/first_calls.py [--save] [--rounds 7] [--no-torch]

Jobs of 2 fresh processes, mpi4py's and hpcomm's in turn; medians over the jobs, of the slower rank. numpy,
mpi4py and torch are imported before. Calls come in the order of the table, so a later row does not pay
again for what an earlier one has loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

RANKS = 2
AGAIN = 20  # times that a communicator is made and closed; the median counts


def calls_of_raw(x: Any, long: Any, tensor: Any) -> dict[str, Callable[[], Any]]:
    """What mpi4py does for each row."""
    from mpi4py import MPI

    world, out = MPI.COMM_WORLD, x.copy()

    def message() -> None:
        if world.rank == 0:
            world.Send(x, 1)
        else:
            world.Recv(out, 0)

    def tensors() -> None:
        world.Allreduce(tensor.numpy(), out)

    return {
        "world": lambda: world.Dup(),
        "all_reduce, 8 B of numpy": lambda: world.Allreduce(x, out),
        "all_reduce, 8 B of torch": tensors,
        "all_reduce, 1 MiB of numpy": lambda: world.Allreduce(long, long.copy()),
        "send and recv, 8 B": message,
        "broadcast_object": lambda: world.bcast({"a": 1}),
        "dup and close": lambda: world.Dup().Free(),
        "split and close": lambda: world.Split(0).Free(),
    }


def calls_of_hpcomm(x: Any, long: Any, tensor: Any) -> dict[str, Callable[[], Any]]:
    """What hpcomm does for each row."""
    import hpcomm

    world = hpcomm.world

    def message() -> None:
        if world.rank == 0:
            world.send(x, 1)
        else:
            world.recv(x, 0)

    return {
        "world": lambda: world.rank,
        "all_reduce, 8 B of numpy": lambda: world.all_reduce(x),
        "all_reduce, 8 B of torch": lambda: world.all_reduce(tensor),
        "all_reduce, 1 MiB of numpy": lambda: world.all_reduce(long),
        "send and recv, 8 B": message,
        "broadcast_object": lambda: world.broadcast_object({"a": 1}),
        "dup and close": lambda: world.dup().close(),
        "split and close": lambda: world.split(0).close(),
    }


def rank(kind: str, has_torch: bool) -> None:
    """Time the rows in this process, and let rank 0 print them: seconds by name."""
    import numpy as np
    from mpi4py import MPI

    tensor = None
    if has_torch:
        import torch

        tensor = torch.ones(1, dtype=torch.float64)
    make = calls_of_raw if kind == "raw" else calls_of_hpcomm
    calls = make(np.ones(1), np.ones(1 << 17), tensor)
    took = {}
    for name, call in calls.items():
        if tensor is None and "torch" in name:
            continue
        took[name] = statistics.median(_timed(call) for _ in range(AGAIN if "close" in name else 1))
    slowest = MPI.COMM_WORLD.gather(took)
    if slowest is not None:
        print(json.dumps({name: max(each[name] for each in slowest) for name in took}))


def _timed(call: Callable[[], Any]) -> float:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def job(kind: str, has_torch: bool) -> dict[str, float]:
    """What a job of fresh processes says."""
    command = [sys.executable, "-m", "hpcomm", "run", "-n", str(RANKS), "python", __file__, "--kind", kind]
    said = subprocess.run(
        command + ["--no-torch"] * (not has_torch), check=True, stdout=subprocess.PIPE, text=True
    )
    took: dict[str, float] = json.loads(said.stdout)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-torch", action="store_true", help="without the row that needs torch")
    parser.add_argument("--kind", choices=("raw", "hpcomm"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        rank(arguments.kind, not arguments.no_torch)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation is compiled once, not at every start:
    job("hpcomm", not arguments.no_torch)  # now
    rounds: dict[str, list[dict[str, float]]] = {"raw": [], "hpcomm": []}
    for _ in range(arguments.rounds):
        for kind, each in rounds.items():
            each.append(job(kind, not arguments.no_torch))
    lines = [f"{RANKS} ranks, median of {arguments.rounds} jobs, ms{'':12}mpi4py    hpcomm     above"]
    rows = []
    for name in rounds["raw"][0]:
        raw, ours = (statistics.median(took[name] for took in each) * 1e3 for each in rounds.values())
        lines.append(f"  {name:36}{raw:10.3f}{ours:10.3f}{ours - raw:10.3f}")
        rows.append({"call": name, "mpi4py_ms": raw, "hpcomm_ms": ours})
    print("\n".join(lines))
    if arguments.save:
        from measure import library, save

        save(f"first_calls_{library()}", "\n".join(lines), rows)


if __name__ == "__main__":
    main()
