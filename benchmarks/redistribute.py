"""Redistribution against MPI's Alltoall family by hand: rows to columns of a matrix, 2 ranks.

    hpcomm run -n 2 python benchmarks/redistribute.py [--save] [--quick]

By hand: Alltoallw over subarray datatypes (what mpi4py-fft does), and Alltoall of blocks copied with numpy
before and after. Arrays live on from call to call in all contenders.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import alternate, library, machine, median, need_two_ranks, ratio, save, say, size_name
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
    need_two_ranks("redistribute")
    rounds = 5 if options.quick else 11
    names = ["alltoallw", "pack, alltoall", "hpcomm"]
    head = f"{'rows to columns of':>26} {'bytes a rank':>13}" + "".join(f"{n:>17}" for n in names)
    head += f"{'to alltoallw':>14}{'to the best':>13}"
    text = [f"microseconds (median of {rounds} alternated rounds)", head]
    say("\n".join([machine(), *text]))
    rows = []
    for shape, dtype in CASES:
        times = alternate(contenders(shape, dtype), rounds, span=0.03)
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
        save(f"redistribute_{library()}", "\n".join(text), rows)


def contenders(shape: tuple[int, ...], dtype: str) -> dict[str, Callable[[], Any]]:
    rest = (None,) * (len(shape) - 2)
    rows = Partition(shape, {"p": 2}, ("p", None, *rest))
    columns = Partition(shape, {"p": 2}, (None, "p", *rest))
    move = Redistribution(comm, rows, columns)
    x, out = np.ones(rows.box(comm.rank).shape, dtype), np.empty(columns.box(comm.rank).shape, dtype)
    return {
        "alltoallw": alltoallw(x, out.copy()),
        "pack, alltoall": packed(x, out.copy()),
        "hpcomm": lambda: move(x, out=out),
    }


def alltoallw(x: Any, out: Any) -> Callable[[], None]:
    base = MPI.Datatype.fromcode(x.dtype.char)
    n, m = x.shape[1] // 2, x.shape[0]

    def kinds(whole: Any, axis: int, width: int) -> list[MPI.Datatype]:
        part = [width if a == axis else k for a, k in enumerate(whole.shape)]
        starts = [[i * width if a == axis else 0 for a in range(whole.ndim)] for i in (0, 1)]
        return [base.Create_subarray(list(whole.shape), part, s).Commit() for s in starts]

    going, coming = kinds(x, 1, n), kinds(out, 0, m)
    ends = [x, ([1, 1], [0, 0]), going], [out, ([1, 1], [0, 0]), coming]
    return lambda: comm.mpi.Alltoallw(*ends)


def packed(x: Any, out: Any) -> Callable[[], None]:
    n, m = x.shape[1] // 2, x.shape[0]
    there = np.empty((2, m, n, *x.shape[2:]), x.dtype)
    here = np.empty((2, m, n, *x.shape[2:]), x.dtype)

    def turn() -> None:
        for i in (0, 1):
            there[i] = x[:, i * n : (i + 1) * n]
        comm.mpi.Alltoall(there, here)
        for i in (0, 1):
            out[i * m : (i + 1) * m] = here[i]

    return turn


if __name__ == "__main__":
    main()
