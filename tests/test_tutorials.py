"""Pages that the reader follows at a terminal: their files are written, their commands run, in order.

A block whose first line is `# NAME` is a file. A block without a language is a command if it begins with
one of COMMANDS. A text block right after it is what the command prints: each of its lines must come, in any
order, since ranks and programs print at the same time. Of a page with torch, which starts slowly, all
programs run in one job, one after the other.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import finish
from test_readme import FENCE, ROOT, is_failure

PAGES = [
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs").glob("from_*.md")),
]
COMMANDS = {"hpcomm": [sys.executable, "-m", "hpcomm"], "python": [sys.executable]}
LIMIT_S = 60.0
NEEDED = ("scipy", "torch")

_FILE = re.compile(r"# (\w+\.\w+)\n")


class Command(NamedTuple):
    """A command line of a page, and what it prints there."""

    words: list[str]
    shown: list[str]


def steps(page: Path) -> list[tuple[str, str] | Command]:
    """The files (name, text) and commands of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    found: list[tuple[str, str] | Command] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if name := _FILE.match(block[2]):
            found.append((name[1], block[2]))
        elif not block[1] and block[2].split(maxsplit=1)[0] in COMMANDS:
            follows = after is not None and after[1] == "text" and after.start() == block.end()
            shown = after[2].splitlines() if after is not None and follows else []
            found.append(Command(shlex.split(block[2]), shown))
    return found


@pytest.mark.timeout(300)  # some ten jobs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_who_follows_the_page_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    for library in NEEDED:
        if not importlib.util.find_spec(library):
            pytest.skip(f"{library} is not installed")
    if "import torch\n" in page.read_text(encoding="utf-8"):
        follow_at_once(page, tmp_path)
        return
    commands = 0
    for step in steps(page):
        if isinstance(step, Command):
            follow(step, tmp_path)
            commands += 1
        else:
            (tmp_path / step[0]).write_text(step[1], encoding="utf-8")
    assert commands


def follow_at_once(page: Path, folder: Path) -> None:
    """The programs of a page in one job: those with its launcher, then on each rank those without."""
    programs: dict[tuple[str, ...], list[str]] = {}  # by the words that start them
    shown = []
    for step in steps(page):
        if isinstance(step, Command):
            programs.setdefault(tuple(step.words[:-1]), []).append(step.words[-1])
            shown += step.shown
        else:
            (folder / step[0]).write_text(step[1], encoding="utf-8")
    [alone, launcher] = sorted(programs, key=len)
    assert alone == ("python",)
    code = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"
    follow(Command([*launcher, "-c", code, *programs[launcher], *programs[alone]], shown), folder)


def follow(command: Command, folder: Path) -> None:
    """Run a command of a page and compare."""
    words = [*COMMANDS[command.words[0]], *command.words[1:]]
    done = finish(words, LIMIT_S, folder, {"OMP_NUM_THREADS": "1"})
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == is_failure("\n".join(command.shown)), output
    lost = Counter(command.shown) - Counter(line.rstrip() for line in output.splitlines())
    assert not lost, f"{shlex.join(command.words)} does not print {list(lost)}:\n{output}"
