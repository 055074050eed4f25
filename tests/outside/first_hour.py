"""A new user's first hour, by the clock: README's installation, programs of the tutorials, and a mistake.

    python tests/outside/first_hour.py [--python env/bin/python] [--torch REQUIREMENT] [--only WORD]

It runs what the pages print, in the order of a reader, in a new clone and a new environment. A table has of
each command the seconds, by the clock and of processors, and how much it says. Then comes what the mistake
says. With --python that environment is taken, and nothing is installed. The exit status is 1 where something
else comes than the page shows.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from test_readme import FENCE, is_failure  # noqa: E402
from test_tutorials import Command, steps  # noqa: E402

TUTORIALS = [
    ("own program", "first_program", "python rod.py"),
    ("4 ranks", "first_program", "hpcomm run -n 4 python rod_field.py"),
    ("torch", "training", "hpcomm run -n 2 python ddp.py"),
    ("two programs", "two_programs", "hpcomm run job.toml"),
    ("mistake", "first_program", "hpcomm run -n 2 python mistake.py"),
]


def installation(torch: str) -> Iterator[tuple[str, str]]:
    """What for, and the command: those of README, and torch."""
    yield "clone", f"git clone -q {ROOT} ."
    readme = (ROOT / "README.md").read_text()
    [block] = (block[2] for block in FENCE.finditer(readme) if "pip install" in block[2])
    for line, what in zip(block.splitlines(), ("environment", "install", "demo"), strict=True):
        yield what, re.sub(r" +# .*", "", line)
    yield "install torch", f"pip install {torch}"


def shown(page: str, command: str, folder: Path) -> list[str]:
    """What a tutorial shows of its command, whose files are in folder then, as a reader has them by now."""
    for step in steps(ROOT / f"docs/tutorials/{page}.md"):
        if not isinstance(step, Command):
            (folder / step[0]).write_text(step[1])
        elif " ".join(step.words) == command:
            return step.shown
    sys.exit(f"docs/tutorials/{page}.md has no {command}")


def path(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """What for, the command, and the lines that are to come."""
    for what, command in installation(asked.torch) if asked.python is None else ():
        yield what, command, []
    for what, page, command in TUTORIALS:
        if asked.only in what:
            yield what, command, shown(page, command, folder)


def walk(asked: argparse.Namespace, folder: Path) -> bool:
    """Run all and print the table; whether all came as shown."""
    scripts = folder / "env/bin" if asked.python is None else asked.python.absolute().parent
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    right, said = True, ""
    print("| step | command | s | of processors | lines | bytes |\n|---|---|---|---|---|---|")
    for what, command, lines in path(asked, folder):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        out, nothing = subprocess.PIPE, subprocess.DEVNULL
        words = ["bash", "-c", command]
        done = subprocess.run(
            words, cwd=folder, env=env, stdin=nothing, stdout=out, stderr=subprocess.STDOUT, text=True
        )
        took_s, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = done.stdout
        size = f"{len(said.splitlines())} | {len(said.encode())}"
        print(f"| {what} | `{command}` | {took_s:.1f} | {busy_s:.1f} | {size} |", flush=True)
        lost = {*lines} - {line.rstrip() for line in said.splitlines()}
        if lost or (done.returncode != 0) != is_failure("\n".join(lines)):
            right = False
            print(f"status {done.returncode}, without {lost}:\n{said}", file=sys.stderr)
    print(f"\nThe last one says:\n\n{said}", end="")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description="A new user's first hour, by the clock.")
    parser.add_argument("--python", type=Path, help="that of an environment with hpcomm[mpmd] and torch")
    parser.add_argument("--torch", default="torch", help="what pip installs, such as torch==2.13.0")
    parser.add_argument("--only", default="", help="those programs whose step has this word")
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        sys.exit(not walk(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()
