"""Every algorithm of every verb: is it right, how long does it take, and what did the model say?

    python -m hpcomm run -n 4 python -m hpcomm.apps.algorithms_demo --bytes 64k

Each is proved before its first call and compared with what numpy makes of everybody's x. The model is
LogGP (hpcomm/simulate.py), calibrated by a ping-pong between ranks 0 and 1 just before; other ranks that
share the cores slow the calls down, and so the predictions are too low where ranks outnumber cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from hpcomm import Communicator
from hpcomm.apps._report import Progress, table, verdict
from hpcomm.schedule.prove import prove
from hpcomm.schedule.registry import algorithms, build, verbs
from hpcomm.sim import numbers
from hpcomm.simulate import Machine, machine, predict

REPEATS = 15
STACKED = ("scatter", "reduce_scatter", "all_to_all")  # x is one block per rank


def given(verb: str, rank: int, p: int, count: int) -> NDArray[np.int64]:
    shape = (p, count) if verb in STACKED else (count,)
    return np.random.default_rng(rank).integers(-99, 99, shape)


def expected(verb: str, rank: int, p: int, count: int) -> Any:
    """What numpy makes of everybody's x; None where this rank receives nothing."""
    if verb == "barrier" or (verb in ("reduce", "gather") and rank != 0):
        return None
    xs = np.stack([given(verb, r, p, count) for r in range(p)])
    if verb in ("all_gather", "gather"):
        return xs
    if verb in ("broadcast", "scatter"):
        return xs[0] if verb == "broadcast" else xs[0, rank]
    if verb == "all_to_all":
        return xs[:, rank]
    if verb == "reduce_scatter":
        return xs[:, rank].sum(0)
    if verb in ("scan", "exscan"):
        return xs[: rank + (verb == "scan")].sum(0)
    return xs.sum(0)


def median(comm: Communicator, call: Callable[[], Any]) -> float:
    """Seconds of one call, the slowest rank's; the median."""
    times = []
    for _ in range(REPEATS):
        comm.mpi.Barrier()
        start = time.perf_counter()
        call()
        times.append(max(comm.mpi.allgather(time.perf_counter() - start)))
    return float(np.median(times))


def calibrated(comm: Communicator) -> Machine:
    """A machine with this one's time to start a message, per byte, and per call."""
    half = []
    for nbytes in (8, 1 << 20):
        x, out = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

        def there_and_back(x: Any = x, out: Any = out) -> None:
            if comm.rank == 0:
                comm.mpi.Send(x, 1)
                comm.mpi.Recv(out, 1)
            elif comm.rank == 1:
                comm.mpi.Recv(out, 0)
                comm.mpi.Send(x, 0)

        half.append(median(comm, there_and_back) / 2 if comm.size > 1 else 1e-6)
    per_byte = max((half[1] - half[0]) / (1 << 20), 1e-13)
    one = np.zeros(1)
    call = median(comm, lambda: comm.all_reduce(one, algorithm="recursive_doubling"))
    a = np.ones(1 << 17)
    fold = median(comm, lambda: np.add(a, a, out=a)) / a.nbytes
    rounds = (comm.size - 1).bit_length()
    plain = replace(machine("cluster"), node=1, pod=0, nodewise=(), nic_per_byte=0.0, uplink_per_byte=0.0)
    return replace(
        plain, overhead=half[0] / 4, latency=(half[0] / 2,) * 3, per_byte=(per_byte,) * 3, fold_per_byte=fold,
        base=max(0.0, call - rounds * half[0]),
    )  # fmt: skip


def try_all(comm: Communicator, nbytes: int, on: Machine) -> tuple[list[list[object]], list[str]]:
    """Rows of the table, and what was wrong."""
    count, p, rank = max(1, nbytes // 8), comm.size, comm.rank
    pairs = [(verb, name) for verb in verbs() for name in algorithms(verb)]
    rows: list[list[object]] = []
    wrong = []
    progress = Progress(comm, "algorithms tried", len(pairs))
    for verb, name in pairs:
        x = given(verb, rank, p, count)
        function = getattr(comm, verb)
        arguments = () if verb == "barrier" else (x,)

        def call(function: Any = function, arguments: Any = arguments, name: str = name) -> Any:
            return function(*arguments, algorithm=name)

        want, found = expected(verb, rank, p, count), call()
        if want is not None and not np.array_equal(found, want):
            wrong.append(f"{verb} by {name} is not what numpy finds")
        seconds = median(comm, call)
        size = (
            8 if verb == "barrier" else count * 8 * (p if verb in (*STACKED, "all_gather", "gather") else 1)
        )
        proof, model = prove(build(verb, name, p)), predict(verb, name, p, size, on).seconds
        rows.append([verb, name, proof.rounds, f"{seconds * 1e6:.1f}", f"{model * 1e6:.1f}"])
        progress.step()
    return rows, wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="algorithms_demo", description="all algorithms, checked and timed")
    parser.add_argument("--bytes", default="64k", help="of x, or of one block of it")
    options = parser.parse_args(argv)
    world = hpcomm.world
    (nbytes,) = numbers(options.bytes)
    rows, wrong = try_all(world, nbytes, calibrated(world))
    if world.rank == 0:
        print(f"{nbytes} bytes on {world.size} ranks\n")
        print(table(["verb", "algorithm", "rounds", "measured us", "predicted us"], rows))
    return verdict(world, wrong, "\nEvery algorithm found what numpy finds.")


if __name__ == "__main__":
    sys.exit(main())
