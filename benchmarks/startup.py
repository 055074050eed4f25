"""What starting costs: `import hpcomm`, and 4 ranks under `hpcomm run` that meet at one barrier.

    python benchmarks/startup.py [--save] [--rounds 9]

Whole processes, taken in turns; medians. "bare Python" starts as many interpreters that do nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

RANKS = 4
PROGRAMS = {
    "bare Python": "pass",
    "mpi4py, one barrier": "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()",
    "hpcomm, one barrier": "import hpcomm; hpcomm.world.barrier()",
    "hpcomm, one all_reduce of numpy": "import hpcomm, numpy; hpcomm.world.all_reduce(numpy.ones(1))",
}


def bare() -> float:
    """Seconds until RANKS interpreters that do nothing have ended."""
    start = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(RANKS)]
    for process in running:
        process.wait()
    return time.perf_counter() - start


def job(program: str) -> float:
    """Seconds that `hpcomm run` takes with it."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "hpcomm", "run", "-n", str(RANKS), "python", "-c", program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def imports(module: str) -> float:
    """Seconds that an interpreter takes that imports module and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation is compiled once, not at every start:
    job(PROGRAMS["hpcomm, one all_reduce of numpy"])  # now
    jobs: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    single: dict[str, list[float]] = {name: [] for name in ("sys", "hpcomm", "numpy", "mpi4py.MPI")}
    for _ in range(arguments.rounds):
        for name, program in PROGRAMS.items():
            jobs[name].append(bare() if program == "pass" else job(program))
        for module, times in single.items():
            times.append(imports(module))
    base = jobs["bare Python"]
    lines = [f"{RANKS} ranks, median of {arguments.rounds} rounds, ms{'':20}whole   above bare Python"]
    rows = []
    for name, times in jobs.items():
        above = statistics.median(a - b for a, b in zip(times, base, strict=True))
        lines.append(f"  {name:44}{statistics.median(times) * 1e3:8.0f}{above * 1e3:10.0f}")
        rows.append({"program": name, "ms": statistics.median(times) * 1e3, "above_bare_ms": above * 1e3})
    lines.append("one interpreter, ms")
    for module, times in single.items():
        above = statistics.median(a - b for a, b in zip(times, single["sys"], strict=True))
        lines.append(f"  import {module:37}{statistics.median(times) * 1e3:8.0f}{above * 1e3:10.0f}")
        rows.append({"import": module, "ms": statistics.median(times) * 1e3, "above_bare_ms": above * 1e3})
    print("\n".join(lines))
    if arguments.save:
        from measure import save
        from mpi4py import MPI

        library = "mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"
        save(f"startup_{library}", "\n".join(lines), rows)


if __name__ == "__main__":
    main()
