"""Timing side by side: contenders take turns, each round all of them, and medians over the rounds count.

Machines are shared and drift; what one round compares was measured within the same moments, so
ratios and differences are taken round by round before the median.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from mpi4py import MPI

RESULTS = Path(__file__).parent / "results"


def alternate(
    contenders: dict[str, Callable[[], Any]], rounds: int = 15, span: float = 0.01, most: int = 2000
) -> dict[str, list[float]]:
    """Seconds per call of each contender in each round; the slowest rank counts.

    Args:
        span: seconds that one contender's turn should last about.
        most: calls in a turn at most.
    """
    world = MPI.COMM_WORLD
    calls = {}
    for name, call in contenders.items():
        for _ in range(3):
            call()
        n = 3
        while (took := world.bcast(n * _turn(call, n))) < span / 4 and n < most:
            n = min(most, 4 * n)  # a few calls after others are slower than many
        calls[name] = max(1, min(most, int(n * span / took)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for i in range(rounds):
        # In another order each time: what one contender leaves in the caches must not help the same other.
        for name in random.Random(i).sample(names, len(names)):
            mine = _turn(contenders[name], calls[name])
            times[name].append(world.allreduce(mine, MPI.MAX))
    return times


def quietest(
    contenders: dict[str, Callable[[], Any]], seconds: float = 4.0, span: float = 4e-4
) -> dict[str, float]:
    """Seconds per call of each contender in the quietest hundredth of many short turns.

    What else runs on the host slows most turns, by other factors for what waits for memory and what does
    not; the quietest are those of a machine that one has to oneself.
    """
    world = MPI.COMM_WORLD
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    calls = {
        name: max(1, int(span / world.bcast(min(_turn(call, 3), _turn(call, 3)))))
        for name, call in contenders.items()
    }
    begin, order = time.monotonic(), random.Random(0)
    while world.bcast(time.monotonic() - begin < seconds):
        for name in order.sample(names, len(names)):
            times[name].append(world.allreduce(_turn(contenders[name], calls[name]), MPI.MAX))
    return {name: sorted(each)[len(each) // 100] for name, each in times.items()}


def _turn(call: Callable[[], Any], n: int) -> float:
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


def beyond(times: dict[str, list[float]], base: str) -> dict[str, list[float]]:
    """What the others take longer than base, round by round."""
    return {
        name: [x - y for x, y in zip(each, times[base], strict=True)]
        for name, each in times.items()
        if name != base
    }


def median(times: list[float]) -> float:
    """Median in microseconds."""
    return statistics.median(times) * 1e6


def difference(a: list[float], b: list[float]) -> float:
    """Median of a - b, round by round, in microseconds."""
    return statistics.median(x - y for x, y in zip(a, b, strict=True)) * 1e6


def ratio(a: list[float], b: list[float]) -> float:
    """Median of a / b, round by round."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def machine() -> str:
    """One line that says where figures come from."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    library = MPI.Get_library_version().split(",")[0].replace("\t", " ").splitlines()[0].strip("\0 ")
    return f"{model}, {os.cpu_count()} cores, {library}, Python {platform.python_version()}"


def library() -> str:
    """`openmpi` or `mpich`, for names of results."""
    return "mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"


def say(text: str) -> None:
    """Print, on rank 0."""
    if MPI.COMM_WORLD.rank == 0:
        print(text, flush=True)


def need_two_ranks(name: str) -> None:
    """End with a sentence on any other number."""
    if MPI.COMM_WORLD.size != 2:
        raise SystemExit(f"this benchmark compares two ranks: hpcomm run -n 2 python benchmarks/{name}.py")


def save(name: str, text: str, rows: list[dict[str, Any]]) -> None:
    """Keep a table for people and the same figures for programs under results/."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text(f"{date.today()}  {machine()}\n\n{text}\n")
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"machine": machine(), "date": str(date.today()), "rows": rows}, indent=1)
    )


def size_name(nbytes: int) -> str:
    """8 B, 64 KiB, 1 MiB."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"
