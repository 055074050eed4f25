"""Programs of a spec: its tables [job] and [program.NAME], which say what is to be started."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from ..launcher import host_and_slots, wrong_name
from . import spec_command
from .calendar import Calendar, Duration, check_months
from .schema import JOB, PROGRAM, PROGRAMS, SPEC, fits
from .toml_tables import Tables

_MOST_RANKS = PROGRAM["properties"]["ranks"]["maximum"]  # of the job, too
_SAID_BY = {"OMP_NUM_THREADS": "threads", "CUDA_VISIBLE_DEVICES": "gpus"}  # variable: key


@dataclass(frozen=True)
class ProgramSpec:
    """One program, or one member of an ensemble of them.

    hosts: (host, ranks there), of all members in the file; step: its own time step; line: of the file.
    """

    name: str
    command: tuple[str, ...]
    ranks: int
    device: str = "cpu"
    gpus: tuple[int, ...] = ()
    threads: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: Path = Path()
    hosts: tuple[tuple[str, int], ...] = ()
    on_failure: str = "end"
    joins: bool = True
    step: Duration | None = None
    first: str = "get"  # or "put": what it does first at a time at which it does both
    line: int = 1
    members: int = 0  # of its ensemble; 0: it is none
    member: int = 0  # which of them this one is, from 1; 0: as the file has it

    @property
    def ensemble(self) -> str:
        """Its name in the file."""
        return self.name[: -len(numbered("", 1))] if self.member else self.name

    def copies(self) -> Iterator[ProgramSpec]:
        """Its members; itself, if it is no ensemble."""
        for n in range(1, self.members + 1):
            first = (n - 1) * self.ranks
            slots = [host for host, count in self.hosts for _ in range(count)][first : first + self.ranks]
            turned = first % len(self.gpus or (0,))
            yield replace(
                self,
                name=numbered(self.name, n),
                member=n,
                command=tuple(_filled(word, n) for word in self.command),
                gpus=self.gpus[turned:] + self.gpus[:turned],
                env={key: _filled(value, n) for key, value in self.env.items()},
                workdir=Path(_filled(str(self.workdir), n)),
                hosts=tuple((host, len([*some])) for host, some in groupby(slots)),
            )
        if not self.members:
            yield self

    def place_of(self, rank: int) -> tuple[int, int]:
        """Which of its hosts a rank is on, and its number among those there."""
        node = 0
        while node < len(self.hosts) - 1 and rank >= self.hosts[node][1]:
            rank, node = rank - self.hosts[node][1], node + 1
        return node, rank


@dataclass(frozen=True)
class RunSpec:
    """What a spec starts. path: the file that it was read from; calendar: None: the model has no dates."""

    path: Path
    name: str
    programs: dict[str, ProgramSpec]
    timeout_s: float | None = None
    until_s: float | None = None  # of the model, where it stops
    calendar: Calendar | None = None

    def with_members(self) -> Self:
        """The same with each member of an ensemble as a program."""
        programs = {each.name: each for program in self.programs.values() for each in program.copies()}
        return replace(self, programs=programs)

    def world_ranks(self) -> dict[str, range]:
        """The ranks of the world that each program gets: one after the other, as the file has them."""
        found, first = {}, 0
        for name, program in self.programs.items():
            found[name] = range(first, first + program.ranks)
            first += program.ranks
        return found

    def ranks_beside(self, name: str, rank: int) -> int | None:
        """How many ranks the spec has on the host of this one, itself included; None: it names no hosts."""
        program = self.programs[name]
        if not program.hosts:
            return None
        host, _ = program.hosts[program.place_of(rank)[0]]
        return sum(n for each in self.programs.values() for at, n in each.hosts if at == host)


def read_programs(tables: Tables, here: bool) -> RunSpec:
    """What the spec starts.

    Args:
        here: whether commands and folders must exist on this machine: where the job is started.

    Returns:
        The programs as the file has them; with_members makes those that are started.
    """
    tables.known(tables.root, SPEC, "the spec")
    tables.where = ("job",)
    job = tables.read(tables.root.get("job", {}), JOB, "[job]")
    calendar, until_s = _times(tables, job)
    tables.where = ()
    listed = tables.named("program")
    if not listed:
        tables.fail("the spec has no programs", '[program.ocean] command = "python ocean.py", ranks = 1')
    programs = {each: _program(tables, each, table, here, calendar) for each, table in listed.items()}
    total = sum(program.ranks * (program.members or 1) for program in programs.values())
    if total > _MOST_RANKS:
        tables.fail(f"the programs have {total:,} ranks in all", f"at most {_MOST_RANKS:,}", "ranks")
    name = job["name"] or tables.path.stem
    return RunSpec(tables.path, name, programs, job["timeout"], until_s, calendar)


def _times(tables: Tables, job: dict[str, Any]) -> tuple[Calendar | None, float | None]:
    """The job's calendar, and the seconds of the model at which it stops."""
    stop = job["stop"]
    if job["start"] is None:
        return None, stop
    with tables.blaming("start"):
        calendar = Calendar(job["calendar"] or "standard", job["start"])
    with tables.blaming("stop"):
        until_s = calendar.seconds(stop) if isinstance(stop, str) else stop
    if until_s is not None and until_s <= 0:
        what = f"the job stops at {stop}, and starts at {job['start']}"
        tables.fail(what, "a date behind the start", "stop")
    return calendar, until_s


def read_duration(
    tables: Tables, said: dict[str, Any], key: str, calendar: Calendar | None
) -> Duration | None:
    """What a key says; None: nothing."""
    with tables.blaming(key):
        found = None if said[key] is None else Duration.of(said[key])
        if found and found.months:
            check_months(calendar, key)
    return found


def _program(tables: Tables, name: str, given: Any, here: bool, calendar: Calendar | None) -> ProgramSpec:
    tables.where = ("program", name)
    if not fits(name, PROGRAMS["propertyNames"]):
        tables.fail(f"{name!r} is no name for a program", "letters, digits, _ . - only, a letter first")
    said = tables.read(given, PROGRAM, f"program {name!r}")
    members = said["members"] or 0
    _check_members(tables, name, members)
    _check_calendar(tables, name, said["calendar"], calendar)
    with tables.blaming("command"):
        command = spec_command.words_of(given["command"])
    made = ProgramSpec(
        name,
        tuple(command),
        said["ranks"],
        said["device"],
        tuple(said["gpus"] or ()),
        said["threads"],
        _environment(tables, given),
        (tables.path.parent / said["workdir"]).resolve(),
        _hosts(tables, said),
        said["on_failure"],
        said["joins"],
        read_duration(tables, said, "step", calendar),
        said["first"],
        tables.line_of(),
        members,
    )
    for each in {(each.command, each.workdir): each for each in made.copies() if here}.values():
        _check_here(tables, each)
    return made


def _check_members(tables: Tables, name: str, members: int) -> None:
    """That they can be called so."""
    names = [numbered(name, n) for n in range(1, members + 1)]
    if names and (not fits(names[0], PROGRAMS["propertyNames"]) or tables.named("program").keys() & {*names}):
        what = f"members of {name!r} cannot be called {names[0]} to {names[-1]}"
        tables.fail(what, "a shorter name, that of no other program", "members")


def _check_calendar(tables: Tables, name: str, own: str | None, calendar: Calendar | None) -> None:
    """That a program's own calendar is the job's."""
    if own is not None and (calendar is None or not calendar.is_called(own)):
        has = "has no start" if calendar is None else f"has the calendar {calendar.name}"
        what = f"program {name!r} has the calendar {own}, and the job {has}"
        tables.fail(what, "one calendar for all programs, and start, in [job]", "calendar")


def numbered(name: str, n: int) -> str:
    """The name of a member, as CESM calls its instances: any number of them sorts as text."""
    return f"{name}_{n:04}"


def called(name: str, known: Container[str], n: int) -> str:
    """The name of the member of this number, if name is that of its ensemble; else name."""
    return own if (own := numbered(name, n)) in known else name


def _filled(text: str, n: int) -> str:
    """A text of the spec for one member: with its number for {member}, or {member:04}."""
    return re.sub(r"\{member(?::(0?\d))?\}", lambda found: format(n, found[1] or ""), text)


def _check_here(tables: Tables, program: ProgramSpec) -> None:
    """That what it needs is on this machine."""
    if not os.path.isdir(program.workdir):  # noqa: PTH112 - Path's raises for a long name
        hint = "workdir counts from the folder of the spec"
        tables.fail(f"there is no folder {program.workdir}", hint, "workdir")
    try:
        with tables.blaming("command"):
            spec_command.check([*program.command], program.workdir, program.env)
    except OSError as error:  # as of a long name
        tables.fail(f"{error.filename}: {error.strerror}", "check its spelling", "command")


def _environment(tables: Tables, given: dict[str, Any]) -> dict[str, str]:
    env: dict[str, str] = given.get("env", {})
    for name, value in env.items():
        if wrong := wrong_name(name):
            tables.fail(wrong, 'take it out, or NAME = "value"', "env")
        if "\0" in value:
            tables.fail(f"the variable {name} holds a zero byte", 'NAME = "value"', "env")
        said = _SAID_BY.get(name)
        if said in given:
            tables.fail(f"the variable {name} is what {said} sets", f"one of the two: {said}, or env", "env")
    return dict(env)


def _hosts(tables: Tables, said: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    found = tuple(filter(None, map(host_and_slots, said["hosts"] or ())))
    room, ranks = sum(slots for _, slots in found), said["ranks"] * (said["members"] or 1)
    if found and room != ranks:
        what = f"hosts hold {room} ranks, but the program has {ranks}"
        what += " in all its members" * bool(said["members"])
        tables.fail(what, '"node1:4" holds 4 ranks', "hosts")
    return found
