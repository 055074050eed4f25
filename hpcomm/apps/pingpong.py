"""How fast are two ranks? A message there and back, and both ways at once.

    python -m hpcomm run -n 2 python -m hpcomm.apps.pingpong --plot pingpong.png

Ping-pong: rank 0 sends, the peer answers; half of the round trip is the one-way latency. Exchange: both
ranks send at the same time by sendrecv, which cannot deadlock. If both called send and then recv, they
would deadlock as soon as a message is too large for MPI's buffers.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Communicator
from ..core.types import AnyArray, ArrayLike
from ._picture import draw_pingpong, require_picture
from ._report import Parser, Progress, Report, sleep_until_all

SIZES = [8 << (3 * i) for i in range(8)]  # 8 B to 16 MiB
BUDGET = 64 << 20  # bytes sent for each size, at most


def repeats(nbytes: int) -> int:
    return max(5, min(500, BUDGET // nbytes // 2))


def ping_pong(comm: Communicator, peer: int, x: AnyArray, out: AnyArray) -> float:
    """One-way latency in seconds: the median over the round trips, halved."""
    times = []
    for _ in range(repeats(x.nbytes)):
        start = time.perf_counter()
        if comm.rank < peer:
            comm.send(x, dest=peer)
            comm.recv(out, source=peer)
        else:
            comm.recv(out, source=peer)
            comm.send(x, dest=peer)
        times.append((time.perf_counter() - start) / 2)
    return float(np.median(times))


def exchange(comm: Communicator, peer: int, x: AnyArray, out: ArrayLike) -> float:
    """Time in seconds of an exchange, in which x.nbytes travel each way; the median."""
    times = []
    for _ in range(repeats(x.nbytes)):
        start = time.perf_counter()
        comm.sendrecv(x, dest=peer, source=peer, out=out)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def message(rank: int, nbytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(rank).integers(0, 256, nbytes, np.uint8)


def measure(comm: Communicator, peer: int) -> tuple[list[list[float]], list[str]]:
    """Rows of (bytes, one-way seconds, exchange seconds), and what arrived wrongly."""
    rows, wrong = [], []
    progress = Progress(comm, "sizes measured", len(SIZES))
    for nbytes in SIZES:
        x, expected = message(comm.rank, nbytes), message(peer, nbytes)
        arrays = [np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)]
        both = exchange(comm, peer, x, arrays[0])
        one_way = both if peer == comm.rank else ping_pong(comm, peer, x, arrays[1])
        rows.append([nbytes, one_way, both])
        if not all(np.array_equal(array, expected) for array in arrays[: 1 + (peer != comm.rank)]):
            wrong.append(f"{nbytes} bytes from rank {peer} arrived changed")
        progress.step()
    return rows, wrong


def main(argv: list[str] | None = None) -> int:
    parser = Parser("pingpong", "latency and bandwidth between two ranks")
    parser.add_argument("--peer", type=int, help="the rank that rank 0 talks to (default: 1)")
    parser.add_picture("--plot", "draw both curves")
    options = parser.parse_args(argv)
    require_picture(parser, options.picture)

    world = hpcomm.world
    report = Report(world, options.json)
    peer = min(1, world.size - 1) if options.peer is None else options.peer  # alone: rank 0 with itself
    if not 0 <= peer < world.size:
        parser.error(f"--peer {peer} is no rank: there are {world.size}")
    rows: list[list[float]] = []
    wrong: list[str] = []
    if world.rank in (0, peer):
        rows, wrong = measure(world, peer if world.rank == 0 else 0)
    sleep_until_all(world)
    if world.rank == 0:
        report.say(f"ranks 0 and {peer} of {world.size}\n", peer=peer)
        columns = {"bytes": "", "one way us": ".2f", "GB/s": ".3f"}
        columns |= {"exchange us": ".2f", "GB/s both ways": ".3f"}
        cells = [[int(n), t * 1e6, n / t / 1e9, b * 1e6, 2 * n / b / 1e9] for n, t, b in rows]
        report.table("sizes", columns, cells)
        if options.picture:
            draw_pingpong(rows, options.picture)
            report.say(f"\ndrawn: {options.picture}", picture=options.picture)
    return report.verdict(wrong, "\nEvery message arrived as it was sent.")


if __name__ == "__main__":
    sys.exit(main())
