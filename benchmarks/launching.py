"""What `hpcomm run` sets, and what it is worth: python benchmarks/launching.py

Runs the same jobs, in turn, by the plain launcher and by `hpcomm run`. One job starts 4 ranks, which end.
The other one makes 8-byte all-reduces by plain mpi4py, on twice as many ranks as there are cores. Takes a
minute.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from hpcomm.job.installation import VENDORS, find_mpi
from hpcomm.job.launch import usable_cores

ROUNDS = 7
LIMIT_S = 20
START = "from mpi4py import MPI"
MEASURE = """
from mpi4py import MPI
from time import perf_counter
world, x, calls, blocks = MPI.COMM_WORLD, bytearray(8), 20, []
for _ in range(9):
    world.Barrier()
    start = perf_counter()
    for _ in range(calls):
        world.Allreduce(MPI.IN_PLACE, [x, MPI.INT64_T])
    blocks.append((perf_counter() - start) / calls)
if world.rank == 0:
    print(sorted(blocks)[len(blocks) // 2] * 1e6)
"""


def launchers(ranks):
    """(name, command) of both ways; to the bare launcher only what it cannot start without here."""
    mpi = find_mpi()
    needed = []
    if mpi.vendor == "openmpi":
        needed += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        needed += ["--oversubscribe"] if ranks > usable_cores() else []
    yield os.path.basename(mpi.launcher), [mpi.launcher, *needed, "-n", str(ranks)]  # noqa: PTH119
    yield "hpcomm run", [sys.executable, "-m", "hpcomm", "run", "-n", str(ranks)]


def run(command, environ):
    """(seconds, what it printed); no words if it took longer than LIMIT_S."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return LIMIT_S, ""
    return time.perf_counter() - start, done.stdout


def compare(title, ranks, code, rounds, read, environ=None):
    """Print the median of both ways, run in turn."""
    found = {}
    for _ in range(rounds):
        for name, command in launchers(ranks):
            found.setdefault(name, []).append(
                read(*run([*command, sys.executable, "-c", code], environ or {}))
            )
    for name, values in found.items():
        print(f"{title:44s}{name:12s}{statistics.median(values):10.0f}   {min(values):.0f}-{max(values):.0f}")


def microseconds(seconds, text):
    return float(text) if text else float("inf")


def main():
    crowd = 2 * usable_cores()
    vendor = find_mpi().vendor
    print(f"{VENDORS.get(vendor, 'an unknown MPI')}, {usable_cores()} cores")
    print(f"{'':44s}{'started by':12s}{'median':>10s}   range")
    compare("4 ranks import mpi4py and end, ms", 4, START, ROUNDS, lambda seconds, _: seconds * 1e3)
    watching = {"UCX_MEM_EVENTS": "y"}
    compare("the same, UCX watching memory, ms", 4, START, ROUNDS, lambda seconds, _: seconds * 1e3, watching)
    compare(f"8-byte all-reduce, {crowd} ranks, us", crowd, MEASURE, ROUNDS, microseconds)
    alone = {"MPI4PY_RC_THREADS": "0"}
    compare("the same with MPI for one thread, us", crowd, MEASURE, 3, microseconds, alone)
    if vendor == "mpich":
        yielding = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        compare("the same with ENABLE_HEAVY_YIELD, us", crowd, MEASURE, 3, microseconds, yielding)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes no other words than --help
    main()
