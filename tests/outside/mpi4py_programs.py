"""Run programs with mpi4py, and by `hpcomm run --check`; compare what they print.

    .venv-mpich/bin/python tests/outside/mpi4py_programs.py --ranks 3 03-scatter-gather 09-task-pull.py lb.py

A program passes if both end alike and print the same lines, in whatever order. With --loose lines that name
who did what are not compared: which worker takes which task is left to chance.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

_NOISE = re.compile(r"prterun|^-+$|^\s*(File|Process name)|Exit code|[Ww]orker \d|\d+\.\d+ ?(s|sec|ms)")


def run(program: Path, ranks: int, limit_s: float, *options: str) -> tuple[int, list[str]]:
    """Status, and the lines of output in order of their letters."""
    command = [sys.executable, "-m", "hpcomm", "run", "-n", str(ranks), "--timeout", f"{limit_s:g}", *options]
    done = subprocess.run(
        [*command, "python", str(program)],
        cwd=program.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        input=b"100\n0\n",  # what some ask for: how many intervals, and no more of them
        timeout=2 * limit_s,
        check=False,
    )
    return done.returncode, sorted(done.stdout.decode(errors="replace").splitlines())


def main() -> int:
    """0 if all programs pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", type=Path, nargs="+")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each run")
    parser.add_argument("--loose", action="store_true", help="leave out lines that differ from run to run")
    given = parser.parse_args()
    lost = 0
    for program in given.programs:
        ways: list[list[str]] = [[], ["--check"]]
        raw, own = (run(program.resolve(), given.ranks, given.limit, *way) for way in ways)
        if given.loose:
            raw, own = (
                (status, [line for line in lines if not _NOISE.search(line)]) for status, lines in (raw, own)
            )
        lost += raw != own
        print(
            f"{program.name}: {'same' if raw == own else 'DIFFERS'}, status {raw[0]}, {len(raw[1])} lines",
            flush=True,
        )
        if raw != own:
            print(f"  status {own[0]}", *sorted({*raw[1]} ^ {*own[1]})[:20], sep="\n  ")
    return lost


if __name__ == "__main__":
    sys.exit(main())
