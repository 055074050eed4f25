"""How blocks should stand in the shared block pool: aligned as in their own memory, or not (node/blocks.py).

    hpcomm run -n 2 python benchmarks/alignment.py [--save near]

An object of 1 MiB, there and back; its array begins so many bytes after the beginning of a page. "in step":
its place in shared memory begins as many bytes after the beginning of a cache line. "beside": 16 bytes more.
"hpcomm": one or the other, as it finds fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import alternate, median, need_two_ranks, save, say
from mpi4py import MPI

import hpcomm
from hpcomm.node import blocks

NBYTES, PAGE = 1 << 20, 4096
OFFSETS = (0, 16, 32, 48, 64)
WAYS = {"in step": 0.0, "beside": float("inf"), "hpcomm": blocks._NEAR}


def array_at(offset: int) -> Any:
    """An array of ones that begins so many bytes after the beginning of a page."""
    memory = np.empty(NBYTES + 2 * PAGE, np.uint8)
    first = -memory.ctypes.data % PAGE + offset
    made = memory[first : first + NBYTES].view(np.float64)
    made[:] = 1
    return made


def swing(array: Any, near: float, kept: dict[str, Any]) -> Callable[[], None]:
    """There and back, where cores count as near from so many bytes a nanosecond on."""
    comm, obj = hpcomm.world, {"step": 1, "data": array}
    other = 1 - comm.rank

    def call() -> None:
        blocks._NEAR = near
        if comm.rank == 0:
            comm.send_object(obj, other)
            kept["last"] = comm.recv_object(other)
        else:
            kept["last"] = comm.recv_object(other)
            comm.send_object(kept["last"], other)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", metavar="WHERE", help="keep the table under benchmarks/results: near, say")
    parser.add_argument("--rounds", type=int, default=41)
    arguments = parser.parse_args()
    need_two_ranks("alignment")
    kept: dict[str, Any] = {}
    lines = [f"objects of 1 MiB, there and back: microseconds, medians of {arguments.rounds} rounds"]
    lines += [f"{'array at':>10}" + "".join(f"{name:>10}" for name in WAYS)]
    rows = []
    for offset in OFFSETS:
        array = array_at(offset)
        times = alternate({name: swing(array, near, kept) for name, near in WAYS.items()}, arguments.rounds)
        row = {name: median(taken) for name, taken in times.items()}
        lines.append(f"{offset:10}" + "".join(f"{taken:10.1f}" for taken in row.values()))
        rows.append({"offset": offset} | row)
    say("\n".join(lines))
    if arguments.save is not None and MPI.COMM_WORLD.rank == 0:
        save(f"alignment_{arguments.save}", "\n".join(lines), rows)


main()
