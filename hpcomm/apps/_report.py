"""Output of the apps: text or one JSON record, progress of what lasts longer, and the verdict at the end."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from .. import Communicator
from ..job import command_line

_PATIENCE_S = 2.0  # between two lines of progress, and before the first


class Parser(command_line.Parser):
    """An app's options: --json, and a picture that needs no name."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description)
        self.add_argument("--json", action="store_true", help="one record, for programs, instead of text")

    def add_picture(self, option: str, what: str) -> None:
        """Add an option whose value is options.picture: a file, or None."""
        name = f"{self.prog}.png"
        more = f"{what}, in {name} if no file is named (needs matplotlib)"
        self.add_argument(option, dest="picture", metavar="FILE.png", nargs="?", const=name, help=more)


class Report:
    """What rank 0 prints: text as it comes, or with --json all of it as one record at the end."""

    def __init__(self, comm: Communicator, as_json: bool) -> None:
        self._comm, self._as_json = comm, as_json
        self._record: dict[str, object] = {"ranks": comm.size}

    def say(self, text: str, **facts: object) -> None:
        """Print text; instead of it the record holds the facts."""
        self._record |= facts
        if self._comm.rank == 0 and not self._as_json:
            print(text, flush=True)

    def table(self, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows below the names of columns, whose values say how a number is formatted.

        Args:
            name: of the list of rows in the record.
        """
        kept = [list(row) for row in rows]
        cells = [[_cell(each, how) for each, how in zip(row, columns.values(), strict=True)] for row in kept]
        records = [dict(zip(columns, map(_plain, row), strict=True)) for row in kept]
        self.say(command_line.table([*columns], cells), **{name: records})

    def verdict(self, wrong: Sequence[str], right: str) -> int:
        """Print what went wrong on any rank, or `right`; return the exit status, the same on every rank.

        The ranks compare notes through raw mpi4py, so that a fault of hpcomm's cannot hide itself.
        """
        everyone = self._comm.mpi.allgather(list(wrong))
        for rank, lines in enumerate(everyone):
            for line in [*lines[:5], *([f"and {len(lines) - 5} more"] if len(lines) > 5 else [])]:
                self.say(f"WRONG on rank {rank}: {line}")
        self.say("" if any(everyone) else right, wrong={str(r): w for r, w in enumerate(everyone) if w})
        if self._comm.rank == 0 and self._as_json:
            print(json.dumps(self._record, indent=1), flush=True)
        return int(any(everyone))


class Progress:
    """Says on rank 0's stderr how far a loop of `total` steps has come; silent while it is quick."""

    def __init__(self, comm: Communicator, what: str, total: int) -> None:
        self._speaks = comm.rank == 0
        self._what = what
        self._total = total
        self._done = 0
        self._began = self._spoke = time.monotonic()

    def step(self) -> None:
        """Count one step; say so when the last word is two seconds old, and at the end if any was said."""
        self._done += 1
        is_last = self._done == self._total and self._spoke > self._began
        if self._speaks and (is_last or time.monotonic() - self._spoke > _PATIENCE_S):
            print(f"  {self._what}: {self._done} of {self._total}", file=sys.stderr, flush=True)
            self._spoke = time.monotonic()


def sleep_until_all(comm: Communicator) -> None:
    """Wait until all ranks have come here; a blocking barrier would keep the cores of who is early busy."""
    here = comm.barrier(async_op=True)
    while not here.done():
        time.sleep(0.005)
    here.wait()


def _cell(value: object, how: str) -> str:
    """As a reader takes it: None is a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, str) else format(value, how)


def _plain(value: object) -> object:
    """As JSON takes it, which has neither numpy's numbers nor NaN."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
