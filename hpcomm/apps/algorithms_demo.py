"""Every algorithm of every verb: is it right, how long does it take, and what did the model say?

    python -m hpcomm run -n 4 python -m hpcomm.apps.algorithms_demo --bytes 64k

Each is proved before its first call and compared with what numpy makes of everybody's x. The model is
LogGP (hpcomm/simulate.py), calibrated just before by three calls on all ranks, which so share cores and
memory as in the calls that it predicts. What it leaves out is printed below the table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm
from hpcomm.core.verbs import INPUT_BLOCKS

from .. import Communicator
from ..job.command_line import Parser
from ..schedule.cost.machine_model import Machine, machine
from ..schedule.cost.simulator import predict
from ..schedule.prove import prove
from ..schedule.registry import algorithms, build, verbs
from ._arguments import nbytes, require_memory
from ._report import Progress, table, verdict

WARMING, REPEATS = 5, 25
LEAST = 1 << 16  # bytes whose time stands out from the noise
LEFT_OUT = """\
Predicted: rounds, bytes and reductions by LogGP, fitted to two broadcasts and one all_gather just before,
and the copies of x and of the result. Left out: packing, the shorter way of all_reduce through Python, more
pieces for large x, and that ranks which wait may leave their core to others."""


def given(verb: str, rank: int, p: int, count: int) -> NDArray[np.int64]:
    shape = (p, count) if verb in INPUT_BLOCKS else (count,)
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


def median(comm: Communicator, call: Callable[[], object]) -> float:
    """Seconds of one call, the slowest rank's; the median, after some that are not counted."""
    times = []
    for _ in range(WARMING):
        call()
    for _ in range(REPEATS):
        comm.mpi.Barrier()
        start = time.perf_counter()
        call()
        times.append(max(comm.mpi.allgather(time.perf_counter() - start)))
    return float(np.median(times))


def calibrated(comm: Communicator, nbytes: int) -> tuple[Machine, float]:
    """This machine, found while all ranks are at work; and the seconds to copy a byte within a rank.

    Three calls tell its times apart: a broadcast of p numbers has ceil(log2 p) rounds by tree, p-1 more by
    scatter_ring; an all_gather of large x by ring moves them p-1 times, and copies them to the messages and
    back.
    """
    p, others = comm.size, max(1, comm.size - 1)
    few, room, many = np.zeros(p), np.zeros(p), np.ones(max(LEAST, nbytes) // 8)
    rooms = np.zeros((p, many.size))
    copy = median(comm, lambda: np.copyto(rooms, many)) / rooms.nbytes
    reduce = median(comm, lambda: np.add(many, rooms[0], out=many)) / many.nbytes
    short = median(comm, lambda: comm.broadcast(few, out=room, algorithm="tree"))
    longer = median(comm, lambda: comm.broadcast(few, out=room, algorithm="scatter_ring"))
    large = median(comm, lambda: comm.all_gather(many, out=rooms, algorithm="ring"))
    hop = max((longer - short) / others, 1e-8)
    base = max(0.0, short - (p - 1).bit_length() * hop)
    moved = large - base - others * hop - copy * (many.nbytes + rooms.nbytes)
    per_byte = max(moved / others / many.nbytes, 1e-13)
    plain = replace(machine("cluster"), node=1, pod=0, nodewise=(), nic_per_byte=0.0, uplink_per_byte=0.0)
    return replace(
        plain, overhead=hop / 4, latency=(hop / 2,) * 3, per_byte=(per_byte,) * 3, reduce_per_byte=reduce,
        base=base,
    ), copy  # fmt: skip


def try_all(
    comm: Communicator, nbytes: int, on: Machine, copy: float
) -> tuple[list[list[object]], list[str]]:
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
        want, found = expected(verb, rank, p, count), function(*arguments, algorithm=name)
        out = {} if found is None else {"out": found}

        def call(
            function: Callable[..., object] = function,
            arguments: tuple[object, ...] = arguments,
            name: str = name,
            out: dict[str, object] = out,
        ) -> object:
            return function(*arguments, algorithm=name, **out)

        if want is not None and not np.array_equal(found, want):
            wrong.append(f"{verb} by {name} is not what numpy finds")
        seconds = median(comm, call)
        size = 1 if verb == "barrier" else count * 8
        copies = copy * (0 if verb == "barrier" else x.nbytes + (0 if found is None else found.nbytes))
        proof, model = prove(build(verb, name, p)), predict(verb, name, p, size, on).seconds + copies
        rows.append([verb, name, proof.rounds, f"{seconds * 1e6:.1f}", f"{model * 1e6:.1f}"])
        progress.step()
    return rows, wrong


def main(argv: list[str] | None = None) -> int:
    parser = Parser("algorithms_demo", "all algorithms, checked and timed")
    parser.add_argument("--bytes", type=nbytes, default="64k", help="of x, or of one block of it")
    options = parser.parse_args(argv)
    world = hpcomm.world
    require_memory(parser, world, "--bytes", (world.size + 2) * world.size * options.bytes)
    rows, wrong = try_all(world, options.bytes, *calibrated(world, options.bytes))
    if world.rank == 0:
        print(f"{options.bytes} bytes on {world.size} ranks\n")
        print(table(["verb", "algorithm", "rounds", "measured us", "predicted us"], rows))
        off = sorted(abs(float(str(row[4])) / float(str(row[3])) - 1) for row in rows)
        print(f"\n{LEFT_OUT}\nmedian error of the predictions: {off[len(off) // 2]:.0%}")
    return verdict(world, wrong, "\nEvery algorithm found what numpy finds.")


if __name__ == "__main__":
    sys.exit(main())
