"""Redistribution against MPI's Alltoall family by hand: rows to columns of a matrix, 2 ranks or 4.

    hpcomm run -n 2 python benchmarks/redistribute.py [--save] [--quick]

By hand: Alltoallw over subarray datatypes (what mpi4py-fft does), and Alltoall of blocks copied with numpy
before and after. Arrays live on from call to call in all contenders.

Before each call the data that is sent is written anew, as by a program that computes. Unchanged data would
be in the cache of the rank that read it last. The time of writing alone is subtracted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import alternate, beyond, library, machine, median, ratio, save, say, size_name
from mpi4py import MPI

from hpcomm import Partition, Redistribution
from hpcomm import world as comm

CASES: list[tuple[tuple[int, ...], str]] = [
    ((256, 256), "float64"),
    ((1024, 1024), "float64"),
    ((4096, 4096), "float32"),
    ((96, 96, 96), "complex128"),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if comm.size not in (2, 4):
        raise SystemExit("this benchmark is for 2 ranks or 4")
    rounds = 5 if options.quick else 11
    names = ["alltoallw", "pack, alltoall", "hpcomm"]
    head = f"{'rows to columns of':>26} {'bytes a rank':>13}" + "".join(f"{n:>17}" for n in names)
    head += f"{'to alltoallw':>14}{'to the best':>13}"
    text = [f"microseconds (median of {rounds} alternated rounds)", head]
    say("\n".join([machine(), *text]))
    rows = []
    for shape, dtype in CASES:
        times = beyond(alternate(contenders(shape, dtype), rounds, span=0.03), "writing")
        best = min(names[:-1], key=lambda n: median(times[n]))
        row: dict[str, Any] = {"shape": shape, "dtype": dtype}
        row |= {n: round(median(times[n]), 1) for n in names}
        row["to alltoallw"] = round(ratio(times["hpcomm"], times["alltoallw"]), 3)
        row["to the best"] = round(ratio(times["hpcomm"], times[best]), 3)
        rows.append(row)
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize // comm.size
        label = "x".join(map(str, shape)) + f" {dtype}"
        line = f"{label:>26} {size_name(nbytes):>13}" + "".join(f"{row[n]:>17.1f}" for n in names)
        text.append(f"{line}{row['to alltoallw']:>14.2f}{row['to the best']:>13.2f}")
        say(text[-1])
    if options.save and comm.rank == 0:
        save(f"redistribute_{library()}{'' if comm.size == 2 else '_4'}", "\n".join(text), rows)


def contenders(shape: tuple[int, ...], dtype: str) -> dict[str, Callable[[], Any]]:
    rest = (None,) * (len(shape) - 2)
    rows = Partition(shape, {"p": comm.size}, ("p", None, *rest))
    columns = Partition(shape, {"p": comm.size}, (None, "p", *rest))
    move = Redistribution(comm, rows, columns)
    x, out = np.ones(rows.box(comm.rank).shape, dtype), np.empty(columns.box(comm.rank).shape, dtype)
    turns: dict[str, Callable[[], Any]] = {
        "alltoallw": alltoallw(x, out.copy()),
        "pack, alltoall": packed(x, out.copy()),
        "hpcomm": lambda: move(x, out=out),
    }

    def written(turn: Callable[[], Any]) -> Callable[[], None]:
        def act() -> None:
            x.fill(1.0)
            turn()

        return act

    return {"writing": lambda: x.fill(1.0)} | {name: written(turn) for name, turn in turns.items()}


def alltoallw(x: Any, out: Any) -> Callable[[], None]:
    base = MPI.Datatype.fromcode(x.dtype.char)
    p = comm.size
    n, m = x.shape[1] // p, x.shape[0]

    def kinds(whole: Any, axis: int, width: int) -> list[MPI.Datatype]:
        part = [width if a == axis else k for a, k in enumerate(whole.shape)]
        starts = [[i * width if a == axis else 0 for a in range(whole.ndim)] for i in range(p)]
        return [base.Create_subarray(list(whole.shape), part, s).Commit() for s in starts]

    going, coming = kinds(x, 1, n), kinds(out, 0, m)
    ends = [x, ([1] * p, [0] * p), going], [out, ([1] * p, [0] * p), coming]
    return lambda: comm.mpi.Alltoallw(*ends)


def packed(x: Any, out: Any) -> Callable[[], None]:
    p = comm.size
    n, m = x.shape[1] // p, x.shape[0]
    there = np.empty((p, m, n, *x.shape[2:]), x.dtype)
    here = np.empty((p, m, n, *x.shape[2:]), x.dtype)

    def turn() -> None:
        for i in range(p):
            there[i] = x[:, i * n : (i + 1) * n]
        comm.mpi.Alltoall(there, here)
        for i in range(p):
            out[i * m : (i + 1) * m] = here[i]

    return turn


if __name__ == "__main__":
    main()
