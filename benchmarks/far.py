"""Long collectives between cores that are near each other, and that are far apart.

    hpcomm run -n 2 python benchmarks/far.py [--seconds 120] [--save]

A virtual machine's cores may be moved about while programs run, from one die or socket to another. So beside
each sample stands what 8 bytes took there and back by raw mpi4py at that moment: those of the quickest third
are called near, those of the slowest third far. Where cores stay where they are, choose them by `taskset`.

Broadcasts are from either root in turn.

`always`: hpcomm as it would be if it never left long calls between far cores to MPI.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from measure import library, need_two_ranks, save, say, size_name
from mpi4py import MPI

import hpcomm
from hpcomm.node import autotune

SPAN_S = 0.005  # of a contender's turn
NAMES = ("raw", "hpcomm", "always")


def cases() -> Iterator[tuple[str, int, tuple[Callable[[], Any], ...]]]:
    """What is called, bytes, and a call of each contender."""
    raw, chooses = MPI.COMM_WORLD, hpcomm.world
    always = chooses.dup()

    def both(call: Callable[[int], Any]) -> Callable[[], Any]:
        return lambda: (call(0), call(1))

    for nbytes in (1 << 20, 4 << 20, 16 << 20):
        z = np.zeros(nbytes // 8)
        yield "broadcast", nbytes, (
            both(lambda root, z=z: raw.Bcast(z, root)),
            both(lambda root, z=z: chooses.broadcast(z, root, out=z)),
            both(lambda root, z=z: always.broadcast(z, root, out=z)),
        )  # fmt: skip
        yield "all_reduce", nbytes, (
            lambda z=z: raw.Allreduce(MPI.IN_PLACE, z),
            lambda z=z: chooses.all_reduce(z, out=z),
            lambda z=z: always.all_reduce(z, out=z),
        )  # fmt: skip


def turn(call: Callable[[], Any], n: int) -> float:
    """Microseconds a call."""
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - begin) / n * 1e6


def latency() -> float:
    world, x = MPI.COMM_WORLD, np.zeros(1)

    def call() -> None:
        if world.rank:
            world.Recv(x, 0)
            world.Send(x, 0)
        else:
            world.Send(x, 1)
            world.Recv(x, 1)

    return turn(call, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description="near cores, and far ones")
    parser.add_argument("--seconds", type=float, default=120.0, help="for all samples")
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    need_two_ranks("far")
    least = autotune.LEAST
    world, samples, made = MPI.COMM_WORLD, {}, list(cases())
    for verb, nbytes, calls in made:
        for name, call in zip(NAMES, calls, strict=True):
            autotune.LEAST = 1 << 62 if name == "always" else least  # looked at in the first call of a kind
            call()
        samples[verb, nbytes] = []
    end = time.monotonic() + arguments.seconds
    while world.bcast(time.monotonic() < end):
        for verb, nbytes, calls in made:
            row = [latency()]
            n = max(4, int(SPAN_S * 3e9 / nbytes))
            row += [turn(call, n) for call in calls]
            row.append(latency())
            samples[verb, nbytes].append(row)
    table(samples, arguments.save)


def table(samples: dict[tuple[str, int], list[list[float]]], keep: bool) -> None:
    """Medians of the near samples and of the far ones, on rank 0."""
    lines = ["microseconds (times as long as raw); 8 B: there and back, by raw mpi4py, at that moment", ""]
    lines += [f"{'':20}{'':>9}{'':>6}{'8 B':>7}{'raw':>11}{'hpcomm':>18}{'always':>18}"]
    rows = []
    for (verb, nbytes), each in samples.items():
        measured = np.array(each)
        moment = measured[:, [0, -1]].max(axis=1)
        for where, which in (
            ("near", moment <= np.quantile(moment, 1 / 3)),
            ("far", measured[:, [0, -1]].min(axis=1) >= np.quantile(moment, 2 / 3)),
        ):
            if not which.any():
                continue
            word, raw, ours, always = np.median(measured[which, :4], axis=0)
            cells = "".join(f"{value:>10.1f} ({value / raw:5.2f})" for value in (ours, always))
            lines.append(f"{verb:20}{size_name(nbytes):>9}{where:>6}{word:7.2f}{raw:11.1f}{cells}")
            rows.append(
                {"verb": verb, "bytes": nbytes, "where": where, "8 B": word, "raw": raw, "hpcomm": ours,
                 "always": always, "samples": int(which.sum())}
            )  # fmt: skip
    say("\n".join(lines))
    if keep and MPI.COMM_WORLD.rank == 0:
        save(f"far_{library()}", "\n".join(lines), rows)


main()
