"""A table of what is said of each kind of mistake, and of programs that are right. Run by hand:

    python tests/mpi_jobs/kinds.py                      all, at light and full, under the MPI of this Python
    python tests/mpi_jobs/kinds.py --level light cycle  kinds with this word
    python tests/mpi_jobs/kinds.py --right              programs that are right
    python tests/mpi_jobs/kinds.py --module mpi4py      the same mistakes by raw mpi4py; gloo: by torch

A kind is named if its ranks, calls, communicators and lines are said, each by what mistakes.py asks.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import mistakes
import right_programs
from mistakes import Mistake

STALL_S = 8.0  # HPCOMM_STALL here
LIMIT_S = 25.0  # until a kind counts as not named
RIGHT_S = 7.0  # for which programs that are right wait
HANG_S = 10.0  # after which a program of another package hangs
START_S = 60.0  # for that package to be loaded
OTHERS = {"mpi4py": "mistakes_by_mpi4py", "gloo": "mistakes_by_gloo"}


class Found(NamedTuple):
    """seconds: until all was said; None: never. lacks: what was not. status: None: it hung."""

    seconds: float | None
    lacks: list[str]
    status: int | None
    said: str


def wanted(kind: Mistake) -> list[str]:
    """Patterns of what has to be said."""
    source = program(kind)
    lines = [(i, line) for i, line in enumerate(source.splitlines(), 1) if line.endswith("# <")]
    found = [rf'program\.py(:|", line ){i}\b' for i, _ in lines]
    found += [rf"\bi?{verb}\b" for _, line in lines for verb in re.findall(r"\w\.i?(\w+)\(", line)[-1:]
              if verb not in ("sleep", "append", "ones")]  # fmt: skip
    found += [rf"\brank(s [-\d, and]*\b| ){rank}\b|\b{rank}\]" for rank in kind.ranks]
    return [*dict.fromkeys([*found, *kind.words])]


def program(kind: Mistake, module: str = "hpcomm") -> str:
    """Its text."""
    return mistakes.PROLOGUE.format(module=OTHERS.get(module, module)) + kind.source


def run(
    source: str, ranks: int, env: dict[str, str], until: list[str], limit_s: float, launcher: str = ""
) -> Found:
    """Run it until all that is wanted was said, it has ended, or the time is up."""
    with tempfile.TemporaryDirectory() as folder:
        file, said = Path(folder) / "program.py", Path(folder) / "said"
        file.write_text(source)
        command = [
            sys.executable,
            "-m",
            "hpcomm",
            "run",
            "-n",
            str(ranks),
            "--timeout",
            "120",
            "python",
            file,
        ]
        if launcher:
            command = [launcher, "-n", str(ranks), sys.executable, file]
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        began = time.monotonic()
        with said.open("w") as out:
            job = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=folder,
                env={**os.environ, "PYTHONPATH": path, **env},
            )  # fmt: skip
        seconds = None
        try:
            while True:
                ended = job.poll() is not None
                text = said.read_text(errors="replace")
                lacks = [each for each in until if not re.search(each, text)]
                if launcher and "begun" not in text and time.monotonic() - began < START_S:
                    limit_s = time.monotonic() - began + HANG_S
                if until and not lacks:
                    seconds = time.monotonic() - began
                if ended or seconds is not None or time.monotonic() - began > limit_s:
                    return Found(seconds, lacks, job.returncode, text)
                time.sleep(0.1)
        finally:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def look_at_mistakes(words: list[str], levels: list[str], show: bool) -> None:
    """A row for each kind: after how many seconds it is named at these levels, or what was not said."""
    counts = dict.fromkeys(levels, 0)
    for name, kind in mistakes.MISTAKES.items():
        if words and not any(word in name for word in words):
            continue
        cells = []
        for level in levels:
            if _order(kind.level) > _order(level) and not words:
                cells.append(f"({kind.level})")
                continue
            env = {"HPCOMM_CHECK": level, "HPCOMM_STALL": str(STALL_S)}
            found = run(program(kind), kind.how_many, env, wanted(kind), LIMIT_S)
            counts[level] += found.seconds is not None
            cells.append(f"{found.seconds:.1f} s" if found.seconds is not None else f"no {found.lacks}")
            if show or found.seconds is None:
                print(f"--- {name}, {level}: {found.status}\n{found.said}", file=sys.stderr, flush=True)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("named:", ", ".join(f"{level} {count}" for level, count in counts.items()))


def _order(level: str) -> int:
    return ("off", "light", "full", "strict").index(level)


def look_at_right(words: list[str], levels: list[str], show: bool) -> None:
    """A row for each program: whether it was left alone, and how many statements there were."""
    for name, (ranks, source) in right_programs.RIGHT.items():
        if words and not any(word in name for word in words):
            continue
        cells = []
        for level in levels:
            env = {"HPCOMM_CHECK": level, "HPCOMM_STALL": str(RIGHT_S / 2), "W": str(RIGHT_S)}
            text = right_programs.PROLOGUE + source + right_programs.EPILOGUE
            found = run(text, ranks, env, [], 100)
            statements = len(re.findall("has waited|can never end", found.said))
            is_well = found.status == 0 and found.said.count("RIGHT") == ranks and statements < 2
            is_well = is_well and "never" not in found.said
            cells.append(f"{'well' if is_well else 'NOT WELL'}, {statements} said")
            if show or not is_well:
                print(f"--- {name}, {level}: {found.status}\n{found.said}", file=sys.stderr, flush=True)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def look_at_others(words: list[str], module: str, show: bool) -> None:
    """A row for each kind: how it ends by another package: an error, a hang, or nothing at all."""
    for name, kind in mistakes.MISTAKES.items():
        if words and not any(word in name for word in words):
            continue
        env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        launcher = str(Path(sys.executable).parent / "mpiexec")
        found = run(program(kind, module), kind.how_many, env, [], HANG_S, launcher)
        if "object has no attribute" in found.said:
            cell = "-"  # it has no such call
        elif found.status is None:
            cell = "hangs"
        else:
            lacks = [each for each in wanted(kind) if not re.search(each, found.said)]
            named = "named" if not lacks else "an error"
            cell = "silent" if found.status == 0 else named
        if show:
            print(f"--- {name}: {found.status}\n{found.said}", file=sys.stderr, flush=True)
        print(f"| {name} | {cell} |", flush=True)


def main() -> None:
    """Print the table that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("words", nargs="*", help="kinds that have one of these in their names")
    parser.add_argument("--level", action="append", choices=["off", "light", "full", "strict"])
    parser.add_argument("--right", action="store_true", help="programs that are right")
    parser.add_argument("--module", default="hpcomm", choices=["hpcomm", *OTHERS])
    parser.add_argument("--show", action="store_true", help="what was said")
    options = parser.parse_args()
    levels = options.level or ["light", "full"]
    if options.module != "hpcomm":
        look_at_others(options.words, options.module, options.show)
    elif options.right:
        look_at_right(options.words, levels, options.show)
    else:
        look_at_mistakes(options.words, levels, options.show)


if __name__ == "__main__":
    main()
