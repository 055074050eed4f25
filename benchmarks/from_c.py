"""Eight-byte collectives: hpcomm from Python beside the same MPI library called from C and from mpi4py.

    python benchmarks/from_c.py [-n 2] [--rounds 5]

Compiles from_c.c with the library's mpicc, and runs it and Python in turn, each in a job of its own. us a
call: the median of the jobs, each of which takes the median of its rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

VERBS = ("all_reduce", "broadcast", "barrier")
ROUNDS, CALLS = 21, 20000


def job(ranks: int, *command: str) -> str:
    run = [sys.executable, "-m", "hpcomm", "run", "-n", str(ranks), *command]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def median_of(call: Callable[[], object]) -> float:
    import hpcomm

    for _ in range(CALLS // 4):
        call()
    took = []
    for _ in range(ROUNDS):
        hpcomm.world.barrier()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        took.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(took)


def here() -> None:
    """As a rank: hpcomm's times in one line, then mpi4py's."""
    import numpy as np

    import hpcomm

    comm, raw, x, y = hpcomm.world, hpcomm.world.mpi, np.ones(1), np.empty(1)
    ours = [lambda: comm.all_reduce(x, out=y), lambda: comm.broadcast(x, out=x), comm.barrier]
    theirs = [lambda: raw.Allreduce(x, y), lambda: raw.Bcast(x), raw.Barrier]
    for calls in (ours, theirs):
        times = [f"{median_of(call):.4f}" for call in calls]
        if comm.rank == 0:
            print(*times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=2, help="ranks (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kind (%(default)s)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        here()
        return
    compiler = shutil.which("mpicc", path=str(Path(sys.executable).parent)) or shutil.which("mpicc")
    if compiler is None:
        sys.exit("no mpicc beside this Python, nor in PATH")
    found: dict[str, list[list[float]]] = {"hpcomm": [], "mpi4py": [], "C": []}
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/from_c"
        subprocess.run([compiler, "-O2", str(Path(__file__).with_suffix(".c")), "-o", program], check=True)
        for _ in range(given.rounds):
            ours, theirs = job(given.n, sys.executable, __file__, "--here").splitlines()
            for name, line in (("hpcomm", ours), ("mpi4py", theirs), ("C", job(given.n, program))):
                found[name].append([float(word) for word in line.split()])
    print(f"{given.n} ranks, 8 bytes; us a call (ratio to C)")
    for i, verb in enumerate(VERBS):
        times = {name: statistics.median(run[i] for run in runs) for name, runs in found.items()}
        print(f"{verb:12}", "  ".join(f"{name} {t:.2f} ({t / times['C']:.2f})" for name, t in times.items()))


if __name__ == "__main__":
    main()
