"""How long the simulator takes, and how much memory: every algorithm on every machine that comes along.

    python benchmarks/simulate.py    # 24,576 and 100,000 ranks, rings of more; 8 bytes and 16 MiB

Each prediction runs in a process of its own, so that its memory can be told: the peak of that process, Python
and numpy included. Writes benchmarks/results/simulate.{json,txt}.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path
from typing import Any

from hpcomm.machine import machine, machines
from hpcomm.schedule.registry import algorithms, verbs
from hpcomm.simulate import predict

RESULTS = Path(__file__).parent / "results"
RANKS, SIZES = (24_576, 100_000), (8, 16 << 20)
MANY = (1_000_003,)  # for a ring: a number that fills no node
ASKED = {24_576: (1.0, 300), 100_000: (3.0, 300)}  # seconds, MB
RING = (2.0, 400)  # of any size


def one(case: tuple[str, str, str, int, int]) -> dict[str, Any]:
    verb, name, where, ranks, nbytes = case
    on, begin = machine(where), time.process_time()  # whatever else runs
    found = predict(verb, name, ranks, nbytes, on)
    took = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    row = {"verb": verb, "algorithm": name, "machine": where, "ranks": ranks, "bytes": nbytes}
    return row | {"took_s": took, "peak_mb": peak, "stepped": found.stepped, "predicted_s": found.seconds}


def report(rows: list[dict[str, Any]]) -> str:
    """Per number of ranks and machine the slowest and the largest, and rings apart."""
    lines = [
        f"{len(rows)} predictions: all algorithms of every collective, {SIZES[0]} B and {SIZES[1] >> 20} MiB",
        "",
    ]
    lines.append(
        f"{'ranks':>7s}  {'machine':10s}{'slowest':36s}{'s':>6s}  {'largest':36s}{'MB':>5s}{'ring s':>8s}"
    )
    for ranks in RANKS:
        for where in machines():
            some = [r for r in rows if (r["ranks"], r["machine"]) == (ranks, where)]
            slow, large = (max(some, key=lambda r: r[key]) for key in ("took_s", "peak_mb"))
            names = [f"{r['verb']} {r['algorithm']} {r['bytes']} B" for r in (slow, large)]
            ring = max(r["took_s"] for r in some if r["algorithm"] == "ring")
            lines.append(
                f"{ranks:7d}  {where:10s}{names[0]:36s}{slow['took_s']:6.2f}  {names[1]:36s}"
                f"{large['peak_mb']:5.0f}{ring:8.2f}"
            )
    for many in MANY:
        lines += ["", f"rings of {many:,} ranks, from the fastest to the slowest machine and size:"]
        for verb in verbs():
            if rings := [r for r in rows if (r["ranks"], r["verb"]) == (many, verb)]:
                times, peak = [r["took_s"] for r in rings], max(r["peak_mb"] for r in rings)
                lines.append(f"  {verb:16s}{min(times):6.3f} to {max(times):.3f} s, {peak:.0f} MB")
    limits = [ASKED.get(r["ranks"], RING) if r["algorithm"] != "ring" else RING for r in rows]
    over = [r for r, (s, mb) in zip(rows, limits, strict=True) if r["took_s"] > s or r["peak_mb"] > mb]
    asked = ", ".join(f"{s:g} s and {mb} MB at {p}" for p, (s, mb) in ASKED.items())
    lines += ["", f"beyond {asked}, a ring {RING[0]:g} s: {len(over) or 'none'}"]
    return "\n".join(lines + [f"  {r}" for r in over])


def main() -> int:
    cases = [
        (verb, name, where, ranks, nbytes)
        for ranks in RANKS for where in machines() for nbytes in SIZES
        for verb in verbs() for name in algorithms(verb)
    ]  # fmt: skip
    cases += [
        (verb, "ring", where, many, nbytes)
        for many in MANY for verb in verbs() for where in machines() for nbytes in SIZES
        if "ring" in algorithms(verb)
    ]  # fmt: skip
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=1) as pool:
        rows = pool.map(one, cases, chunksize=1)
    text = report(rows)
    print(text)
    (RESULTS / "simulate.txt").write_text(text + "\n")
    (RESULTS / "simulate.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes no other words than --help
    sys.exit(main())
