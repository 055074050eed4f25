"""Whether a call in the background hides behind a computation: all_reduce beside a product of matrices.

    hpcomm run -n 2 -x OPENBLAS_NUM_THREADS=1 python benchmarks/background.py [--save [SUFFIX]] [--quick]

The product takes about as long as the blocking call. `after` is the blocking call and then the product;
`beside` begins the call, computes, and waits; `raw` does this with mpi4py's Iallreduce.
"""

from __future__ import annotations

import argparse

import numpy as np
from measure import alternate, library, machine, median, ratio, save, say, size_name
from mpi4py import MPI

from hpcomm import world

SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--save", nargs="?", const="", metavar="SUFFIX", help="keep it under benchmarks/results"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments = parser.parse_args()
    lines = [f"{world.size} ranks: microseconds, and ratios to `after`"]
    lines.append(f"{'':>8} {'call':>10} {'product':>10} {'after':>10} {'beside':>17} {'raw':>17}")
    say(f"{machine()}\n{lines[0]}\n{lines[1]}")
    rows = []
    a = np.ones((200, 200))
    product = median(alternate({"product": lambda a=a: np.matmul(a, a)}, 5)["product"])
    for nbytes in SIZES[:: 2 if arguments.quick else 1]:
        x = np.ones(nbytes // 8)
        out = np.empty_like(x)
        once = median(alternate({"call": lambda x=x, out=out: world.all_reduce(x, out=out)}, 5)["call"])
        a = np.ones((max(2, round(200 * (once / product) ** (1 / 3))),) * 2)
        b = np.empty_like(a)

        def after(x=x, out=out, a=a, b=b) -> None:  # type: ignore[no-untyped-def]
            world.all_reduce(x, out=out)
            np.matmul(a, a, out=b)

        def beside(x=x, out=out, a=a, b=b) -> None:  # type: ignore[no-untyped-def]
            going = world.all_reduce(x, out=out, async_op=True)
            np.matmul(a, a, out=b)
            going.wait()

        def raw(x=x, out=out, a=a, b=b) -> None:  # type: ignore[no-untyped-def]
            going = MPI.COMM_WORLD.Iallreduce(x, out)
            np.matmul(a, a, out=b)
            going.Wait()

        contenders = {
            "call": lambda x=x, out=out: world.all_reduce(x, out=out),
            "product": lambda a=a, b=b: np.matmul(a, a, out=b),
            "after": after,
            "beside": beside,
            "raw": raw,
        }
        times = alternate(contenders, 7 if arguments.quick else 21)
        row = {"bytes": nbytes} | {name: median(taken) for name, taken in times.items()}
        cells = f"{size_name(nbytes):>8} " + " ".join(
            f"{row[name]:10.1f}" for name in ("call", "product", "after")
        )
        for name in ("beside", "raw"):
            row[f"{name}_ratio"] = ratio(times[name], times["after"])
            cells += f" {row[name]:10.1f} {row[f'{name}_ratio']:6.2f}"
        say(cells)
        lines.append(cells)
        rows.append(row)
    if arguments.save is not None and world.rank == 0:
        save(f"background_{library()}_{world.size}{arguments.save}", "\n".join(lines), rows)


if __name__ == "__main__":
    main()
