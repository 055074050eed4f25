"""What it costs that Open MPI cannot write past the end of a receive (hpcomm/transport/guarded_receive.py).

    hpcomm run -n 2 python benchmarks/guard.py [--save]

Messages there and back by raw mpi4py. They are received plainly, with the datatype that guards, and after a
probe for their length. `new`: each is written before it is sent; `same`: it was sent before as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measure import alternate, library, median, need_two_ranks, ratio, save, say, size_name
from mpi4py import MPI

SIZES = (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)


def contenders(n: int, is_new: bool) -> dict[str, Callable[[], None]]:
    """Each sends n float64 there and receives as many back."""
    world, seen, peer = MPI.COMM_WORLD, MPI.Status(), 1 - MPI.COMM_WORLD.rank
    x, y = np.zeros(n), np.zeros(n)
    guard = MPI.DOUBLE.Create_indexed([n, 1], [0, 0]).Commit()

    def looked_at() -> None:
        world.Probe(peer, 0, seen)
        world.Recv((y, n, MPI.DOUBLE), peer)

    def send() -> None:
        if is_new:
            x[:] = y
        world.Send((x, n, MPI.DOUBLE), peer)

    def there_and_back(recv: Callable[[], None]) -> Callable[[], None]:
        steps = (recv, send) if world.rank else (send, recv)

        def call() -> None:
            for step in steps:
                step()

        return call

    ways = {
        "plain": partial(world.Recv, (y, n, MPI.DOUBLE), peer),
        "guarded": partial(world.Recv, (y, 1, guard), peer),
        "looked at": looked_at,
    }
    return {name: there_and_back(recv) for name, recv in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="guarded receives, and messages that are looked at")
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    need_two_ranks("guard")
    rows = []
    lines = [f"{'us there and back':22}{'plain':>9}{'guarded':>18}{'looked at':>18}"]
    for nbytes in SIZES:
        for is_new in (True, False):
            times = alternate(contenders(nbytes // 8, is_new))
            row: dict[str, Any] = {"bytes": nbytes, "new": is_new, "plain": median(times["plain"])}
            title = f"{size_name(nbytes):>9}  {'new' if is_new else 'same'}"
            line = f"{title:22}{row['plain']:>9.2f}"
            for name in ("guarded", "looked at"):
                row[name], row[f"{name}, ratio"] = median(times[name]), ratio(times[name], times["plain"])
                line += f"{row[name]:>10.2f} ({row[f'{name}, ratio']:5.2f})"
            rows.append(row)
            lines.append(line)
    say("\n".join(lines))
    if arguments.save and MPI.COMM_WORLD.rank == 0:
        save(f"guard_{library()}", "\n".join(lines), rows)


main()
