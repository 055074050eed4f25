"""Collectives and messages between ranks of one node: hpcomm against raw mpi4py.

    hpcomm run -n 2 python benchmarks/within.py [--save] [--quick]

Every rank brings an array of so many bytes, all blocks together where there are such. Verbs with a root have
each rank as root in turn, so that nobody runs ahead. Messages go there and back between ranks 0 and 1, 2 and
3, and so on; sendrecv goes around the ring of all ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import RESULTS, alternate, library, machine, median, ratio, save, say, size_name
from mpi4py import MPI

import hpcomm

SIZES = [1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20]


def pairs(nbytes: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """(raw, ours) by verb."""
    raw, comm = MPI.COMM_WORLD, hpcomm.world
    p, n = comm.size, nbytes // 4
    x, y, all_of_it = np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros((p, n), np.float32)
    cut, part = np.zeros((p, n // p), np.float32), np.zeros(n // p, np.float32)
    other = cut.copy()

    def each(call: Callable[[int], Any]) -> Callable[[], Any]:
        def turns() -> None:
            for root in range(p):
                call(root)

        return turns

    def turn(
        send: Callable[[Any, int], Any], recv: Callable[[Any, int], Any]
    ) -> tuple[Callable[[], Any], ...]:
        peer = raw.rank ^ 1
        if peer >= p:
            return (lambda: None,)
        there, back = (lambda: send(x, peer)), (lambda: recv(y, peer))
        return (there, back) if raw.rank < peer else (back, there)

    def steps(calls: tuple[Callable[[], Any], ...]) -> Callable[[], Any]:
        def both() -> None:
            for call in calls:
                call()

        return both

    right, left = (raw.rank + 1) % p, (raw.rank - 1) % p
    return {
        "send and recv": (steps(turn(raw.Send, raw.Recv)), steps(turn(comm.send, comm.recv))),
        "sendrecv": (
            lambda: raw.Sendrecv(x, right, 0, y, left),
            lambda: comm.sendrecv(x, right, left, out=y),
        ),
        "all_reduce": (lambda: raw.Allreduce(x, y), lambda: comm.all_reduce(x, out=y)),
        "broadcast": (each(lambda r: raw.Bcast(x, r)), each(lambda r: comm.broadcast(x, r, out=x))),
        "reduce": (
            each(lambda r: raw.Reduce(x, y, root=r)),
            each(lambda r: comm.reduce(x, root=r, out=y)),
        ),
        "reduce_scatter": (
            lambda: raw.Reduce_scatter_block(cut, part),
            lambda: comm.reduce_scatter(cut, out=part),
        ),
        "all_gather": (lambda: raw.Allgather(x, all_of_it), lambda: comm.all_gather(x, out=all_of_it)),
        "gather": (
            each(lambda r: raw.Gather(x, all_of_it, root=r)),
            each(lambda r: comm.gather(x, root=r, out=all_of_it)),
        ),
        "scatter": (
            each(lambda r: raw.Scatter(cut, part, root=r)),
            each(lambda r: comm.scatter(cut, root=r, out=part)),
        ),
        "all_to_all": (lambda: raw.Alltoall(cut, other), lambda: comm.all_to_all(cut, out=other)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep table and picture under benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    arguments = parser.parse_args()
    p, rounds = MPI.COMM_WORLD.size, 5 if arguments.quick else 9
    rows: list[dict[str, Any]] = []
    lines = [
        f"{machine()}, {p} ranks; microseconds a call, medians of {rounds} alternated rounds",
        f"{'':>16} {'':>8} {'raw mpi4py':>12} {'hpcomm':>12} {'raw/hpcomm':>11}",
    ]
    say("\n".join(lines))
    for nbytes in SIZES[::2] if arguments.quick else SIZES:
        for verb, (raw, ours) in pairs(nbytes).items():
            times = alternate({"raw": raw, "hpcomm": ours}, rounds)
            faster = 1 / ratio(times["hpcomm"], times["raw"])
            row = {name: round(median(taken), 2) for name, taken in times.items()}
            rows.append({"verb": verb, "bytes": nbytes, "ranks": p, "faster": round(faster, 2)} | row)
            cells = f"{row['raw']:12.1f} {row['hpcomm']:12.1f} {faster:10.2f}x"
            lines.append(f"{verb:>16} {size_name(nbytes):>8} {cells}")
            say(lines[-1])
    if arguments.save and MPI.COMM_WORLD.rank == 0:
        name = f"within_{library()}_{p}"
        save(name, "\n".join(lines), rows)
        picture(rows, name)


def picture(rows: list[dict[str, Any]], name: str) -> None:
    """Verbs against sizes, coloured by how many times as fast as raw mpi4py."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    verbs, sizes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("verb", "bytes"))
    faster = np.array([row["faster"] for row in rows]).reshape(len(sizes), len(verbs)).T
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    axes.imshow(np.log2(faster), cmap="RdYlGn", vmin=-3, vmax=3, aspect="auto")
    for i, j in np.ndindex(faster.shape):
        axes.text(j, i, f"{faster[i, j]:.1f}", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(sizes)), [size_name(n) for n in sizes])
    axes.set_yticks(range(len(verbs)), verbs)
    axes.set_title(f"times as fast as raw mpi4py\n{machine()}, {MPI.COMM_WORLD.size} ranks", fontsize=9)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


main()
