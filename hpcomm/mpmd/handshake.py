"""Handshake: the programs of a job find each other by name, before anything else is agreed.

    rank 1   ─┐                                       ┌─> rank 1
    ...       ├─ lines ─> rank 0, the first ─ roster ─┤   ...
    rank 255 ─┘                 ^  │                  └─> rank 255
                          lines │  └─ roster ─────────┐
    rank 257 ─┐                 │                     v
    ...       ├─ lines ─> rank 256, a leader <────────┘ ─ roster ─> rank 257 ...
    rank 511 ─┘   (till the deadline)

A line is `first-last/step` (ranks), the program's name, its kind, script and host and the programs that it
cannot do without, with tabs between; ranks that say the same share one. Each block of ranks sends its lines
to its leader, the leaders send theirs to the first rank, and the roster, which is all lines, comes back the
same way. Who is not in it did not come in time. Plain messages on MPI_COMM_WORLD only: a program without
hpcomm, in C for instance, can do the same (docs/mpmd.md).

With n ranks of a program on each host the roster has a line for each program and host, and no rank sends or
receives more than some hundred messages. If a leader does not come, its whole block counts as absent.
"""

from __future__ import annotations

import os
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from .._lazy import MPI
from ..errors import ConfigError, did_you_mean, named

NBYTES = 512  # of a line at most
BLOCK = 256  # ranks that have a leader
TO_FIRST, FROM_FIRST, TO_ALL = 32101, 32102, 32103  # tags
PROGRAMS = "HPCOMM_PROGRAMS"  # "ocean=0-1 atmosphere=2-2": who takes part, with which ranks of the world
_LISTENING_S = 1.0  # for an answer, and then for lines of other ranks that nobody answered either
_LINE = re.compile(r"(\d{1,9})-(\d{1,9})/([1-9]\d{0,8})\t(([^\t]*\t){4}[^\t]*)")
_NAMED = 16  # lines of one message to the user
_BATCH_S = 0.1  # in which a leader gathers what it passes on, as long as its block is not complete
_PAUSE_S = 0.01  # between two looks, at most
_LAST_S = 0.3  # for a message to a rank that did not come: it may never end


class Entry(NamedTuple):
    """What a rank says of itself.

    kind: "hpcomm"; "fields" for a program in C or Fortran that couples; "plain" for one that only speaks MPI.
    """

    name: str
    kind: str
    script: str
    host: str
    wants: str  # names of programs that it cannot do without, separated by commas


def own_entry(name: str, wants: Sequence[str]) -> Entry:
    """This process's description."""
    given = sys.argv[0] if sys.argv else ""
    path = given if given in ("", "-c", "-") else str(Path(given).resolve())
    script = os.fsencode(path)[-160:].decode(errors="replace")
    entry = Entry(name, "hpcomm", script, os.uname().nodename[:64], ",".join(wants))
    entry = entry._replace(script="".join(" " if mark in "\t\n" else mark for mark in script))
    if wants and len("\t".join(entry).encode()) >= NBYTES - len("1000000-1000000/1\t"):
        what = f"the names of {len(wants)} peers are too long for one line"
        raise _error(what, "shorter names, or fewer peers")
    return entry


class Roster:
    """Who has come, as far as a rank knows."""

    def __init__(self) -> None:
        self._ranks: dict[str, list[int]] = {}  # by what they say
        self.count = 0

    def add(self, text: str) -> None:
        """Take lines in."""
        for line in text.splitlines():
            found = _LINE.fullmatch(line)
            if found is None:
                what = f"a rank of the world speaks another handshake: {line[:40]!r}"
                raise _error(what, "one version of hpcomm for all programs; compile with its hpcomm.c")
            first, last, step = map(int, found.groups()[:3])
            ranks = range(first, last + 1, step)
            self._ranks.setdefault(found[4], []).extend(ranks)
            self.count += len(ranks)

    def text(self) -> str:
        """All lines, of ranks in equal steps that say the same one."""
        return "".join(
            f"{run[0]}-{run[-1]}/{run.step}\t{line}\n"
            for line, ranks in self._ranks.items()
            for run in _progressions(sorted({*ranks}))
        )

    def said(self, members: Sequence[int]) -> dict[Entry, list[int]]:
        """Which of members, ascending, say the same, by their first ranks. Who did not come is in none."""
        found = {
            line: [rank for rank, _ in groupby(sorted(ranks)) if _has(members, rank)]
            for line, ranks in self._ranks.items()
        }
        lines = sorted((ranks[0], line) for line, ranks in found.items() if ranks)
        return {Entry(*line.split("\t")): found[line] for _, line in lines}


def _has(ranks: Sequence[int], rank: int) -> bool:
    """Whether one is among ranks, ascending; a set of many would take much memory."""
    at = bisect_left(ranks, rank)
    return at < len(ranks) and ranks[at] == rank


def _progressions(ranks: list[int]) -> Iterator[range]:
    """Ascending ranks, cut where the step changes."""
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        yield range(ranks[at], ranks[end - 1] + 1, step)
        at = end


def expected(environ: Mapping[str, str], size: int) -> dict[str, range]:
    """The programs that the launcher announced, with their ranks of the world; {} if it did not."""
    found = {}
    for word in environ.get(PROGRAMS, "").split():
        name, _, ranks = word.partition("=")
        first, _, last = ranks.partition("-")
        found[name] = range(int(first), int(last) + 1)
    if found and max(ranks.stop for ranks in found.values()) > size:
        told = ", ".join(f"{name}: {named(ranks)}" for name, ranks in found.items())
        what = f"{PROGRAMS} announces {told}, but this job has {size} rank{'s' * (size > 1)}."
        raise _error(what, "start the job as `hpcomm run --dry-run` shows, or unset that variable")
    return found


def gather_roster(
    world: MPI.Intracomm, members: Sequence[int], entry: Entry, timeout_s: float
) -> tuple[Sequence[int], dict[Entry, list[int]]]:
    """Ranks of the world, and which of them say what; those who did not come say nothing.

    These are all members (ascending), and every rank gets the same answer, at the latest some seconds after
    timeout_s; or, if the first or the leader did not answer, those of this block only.
    """
    rank, first = world.rank, members[0]
    at = bisect_left(members, rank)
    block, captains = members[at - at % BLOCK :][:BLOCK], members[::BLOCK]
    is_captain = rank == block[0]
    below = [*(block[1:] if is_captain else ()), *(captains[1:] if rank == first else ())]
    above = None if rank == first else first if is_captain else block[0]
    whole = len(members) if above is None else len(block) if is_captain else 1
    node = _Node(world, entry, above, below, whole)
    answer = node.collect(time.monotonic() + timeout_s)
    if answer is not None:
        return members, answer.said(members)
    asked = sorted({*block, *(captains if is_captain else ())})
    return asked, node.ask_around(asked).said(asked)


class _Node:
    """This rank among those that tell each other. above: whom it tells; below: whom it answers."""

    def __init__(
        self, world: MPI.Intracomm, entry: Entry, above: int | None, below: Sequence[int], whole: int
    ) -> None:
        self._world, self._above, self._below, self._whole = world, above, below, whole
        self._roster, self._fresh = Roster(), Roster()  # what is known, and what of it is still to be told
        self._hear("\t".join([f"{world.rank}-{world.rank}/1", *entry]))
        self._going: list[MPI.Request] = []

    def collect(self, deadline: float) -> Roster | None:
        """Tell and hear until all is known; None: no answer has come."""
        due = pause = 0.0
        while True:
            came = self._next(MPI.ANY_SOURCE, TO_FIRST)
            if came:
                self._hear(came)
                pause = 0.0
                continue
            now = time.monotonic()
            is_whole = self._roster.count >= self._whole
            if self._above is None:
                if is_whole or now > deadline + 3 * _BATCH_S:
                    return self._answer(self._roster)
            else:
                if self._fresh.count and (is_whole or now >= due):
                    self._send(self._fresh.text().encode(), self._above, TO_FIRST)
                    self._fresh, due = Roster(), now + _BATCH_S
                if answer := self._next(self._above, FROM_FIRST):
                    found = Roster()
                    found.add(answer)
                    return self._answer(found)
                if now > deadline + _LISTENING_S:
                    return None
            time.sleep(pause)
            pause = min(2 * pause + 1e-5, _PAUSE_S)

    def _hear(self, text: str) -> None:
        self._roster.add(text)
        self._fresh.add(text)

    def _answer(self, roster: Roster) -> Roster:
        text = roster.text().encode() if self._below else b""
        for rank in self._below:
            self._send(text, rank, FROM_FIRST)
        self._finish()
        return roster

    def ask_around(self, ranks: Sequence[int]) -> Roster:
        """Nobody answered: those of ranks who came tell one another."""
        text = self._roster.text().encode()
        for rank in ranks:
            if rank != self._world.rank:
                self._send(text, rank, TO_ALL)
        deadline = time.monotonic() + _LISTENING_S
        while time.monotonic() < deadline:
            if came := self._next(MPI.ANY_SOURCE, TO_ALL):
                self._roster.add(came)
            else:
                time.sleep(0.002)
        return self._roster

    def _next(self, source: int, tag: int) -> str:
        """What a message says; "": there is none."""
        status = MPI.Status()
        message = self._world.Improbe(source, tag, status)
        if message is None:
            return ""
        text = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([text, MPI.BYTE])
        return text.decode(errors="replace")

    def _send(self, text: bytes, rank: int, tag: int) -> None:
        self._going.append(self._world.Isend([text, MPI.BYTE], rank, tag))

    def _finish(self) -> None:
        """Wait for what was sent. What is never received is MPI's, and stays."""
        deadline, pause = time.monotonic() + _LAST_S, 1e-5
        while not MPI.Request.Testall(self._going):
            if time.monotonic() > deadline:
                _left.extend(self._going)
                return
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S)


_left: list[MPI.Request] = []


# -- what the descriptions say ------------------------------------------------------------------------------


def check(
    members: Iterable[int], said: Mapping[Entry, list[int]], announced: Mapping[str, range], timeout_s: float
) -> dict[str, list[int]]:
    """Programs and their ranks of the world, from descriptions that fit together.

    Raises:
        ConfigError: somebody did not come, two programs share a name, a name is not announced, or a
            program that another one cannot do without is not there. The same on every rank.
    """
    came = partial(listed, said)
    here = sorted(chain.from_iterable(said.values()))
    if absent := [rank for rank in members if not _has(here, rank)]:
        names = [name for name, ranks in announced.items() if set(ranks) & set(absent)]
        who = f"program {' and '.join(map(repr, names))} ({named(absent)})" if names else named(absent)
        raise _error(
            f"{who} of the world did not join within {timeout_s:g} s.\n{came()}",
            "let every program of the job call hpcomm.join; say joins = false in the spec for one that"
            " does not, join(timeout=) for one that comes late",
        )
    programs: dict[str, list[int]] = {}
    first: dict[str, Entry] = {}
    for entry, ranks in said.items():
        other = first.setdefault(entry.name, entry)
        if not _is_same_script(entry, other):
            what = f"two programs are called {entry.name!r}: {other.script} and {entry.script}.\n{came()}"
            raise _error(what, "give each program a name of its own: hpcomm.join(NAME)")
        programs.setdefault(entry.name, []).extend(ranks)
    for name, ranks in programs.items():
        ranks.sort()
        if announced and list(announced.get(name, ())) != ranks:
            there = [other for other, theirs in announced.items() if set(theirs) & set(ranks)]
            what = f"{named(ranks)} of the world joined as {name!r}, but the spec says {' and '.join(there)}"
            hint = f"hpcomm.join() takes the name from the spec; or write hpcomm.join({there[0]!r})"
            raise _error(f"{what} there.\n{came()}", hint)
    for entry in said:
        for wanted in entry.wants.split(",") if entry.wants else ():
            if wanted not in programs:
                raise missing(wanted, entry.name, programs, came())
    return programs


def _is_same_script(a: Entry, b: Entry) -> bool:
    """Another host may keep it in another folder."""
    if a.host == b.host:
        return a.script == b.script
    return Path(a.script).name == Path(b.script).name


def missing(wanted: str, by: str, programs: Mapping[str, Sequence[int]], came: str) -> ConfigError:
    """The error for a program that is not in the job."""
    others = [name for name in programs if name != by]
    hint = did_you_mean(wanted, others, f"start {wanted!r} in the same job: mpirun a : b")
    return _error(f"{by!r} asks for a program {wanted!r}, which is not in this job.\n{came}", hint)


def listed(said: Mapping[Entry, list[int]]) -> str:
    """`  who came: ocean, ranks 0-1 (ocean.py on node1); ...`, a line for each program and host."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for entry, ranks in said.items():
        groups.setdefault((entry.name, entry.script, entry.host), []).extend(ranks)
    rows = [f"{name!r} {named(ranks)} ({script} on {host})" for (name, script, host), ranks in groups.items()]
    if len(rows) > _NAMED:
        rows[_NAMED:] = [f"and {len(rows) - _NAMED} more"]
    return "\n".join(f"  {'came: ' if i == 0 else '      '} {row}" for i, row in enumerate(rows))


def _error(what: str, hint: str) -> ConfigError:
    return ConfigError(what, "join", hint)
