"""Programs of a spec: its tables [job] and [program.NAME], which say what is to be started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..launcher import host_and_slots, wrong_name
from . import spec_command
from .toml_tables import LONGEST_S, Tables

_MOST_RANKS = 1_000_000
_MOST_THREADS = 65_536
_KEYS = (
    *("command", "ranks", "device", "gpus", "threads", "env", "workdir", "hosts"),
    *("on_failure", "joins", "step"),
)
_SAID_BY = {"OMP_NUM_THREADS": "threads", "CUDA_VISIBLE_DEVICES": "gpus"}  # variable: key


@dataclass(frozen=True)
class ProgramSpec:
    """One program. hosts: (host, ranks there); step_s: its own time step; line: of the file."""

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
    step_s: float | None = None
    line: int = 1


@dataclass(frozen=True)
class RunSpec:
    """What a spec starts. path: the file that it was read from."""

    path: Path
    name: str
    programs: dict[str, ProgramSpec]
    timeout_s: float | None = None
    until_s: float | None = None  # of the model, for progress

    def world_ranks(self) -> dict[str, range]:
        """The ranks of the world that each program gets: one after the other, as the file has them."""
        found, first = {}, 0
        for name, program in self.programs.items():
            found[name] = range(first, first + program.ranks)
            first += program.ranks
        return found


def read_programs(tables: Tables, here: bool) -> RunSpec:
    """What the spec starts.

    Args:
        here: whether commands and folders must exist on this machine: where the job is started.
    """
    tables.known(tables.root, ("job", "program", "grid", "field"), "the spec")
    job = tables.root.get("job", {})
    tables.where = ("job",)
    tables.known(job, ("name", "timeout", "until"), "[job]")
    name = tables.file_name(job, "name", tables.path.stem)
    timeout, until = tables.seconds(job, "timeout", most=LONGEST_S), tables.seconds(job, "until")
    tables.where = ()
    listed = tables.named("program")
    if not listed:
        tables.fail("the spec has no programs", '[program.ocean] command = "python ocean.py", ranks = 1')
    programs = {each: _program(tables, each, table, here) for each, table in listed.items()}
    total = sum(program.ranks for program in programs.values())
    if total > _MOST_RANKS:
        tables.fail(f"the programs have {total:,} ranks in all", f"at most {_MOST_RANKS:,}", "ranks")
    return RunSpec(tables.path, name, programs, timeout, until)


def _program(tables: Tables, name: str, table: Any, here: bool) -> ProgramSpec:
    tables.where = ("program", name)
    what = f"program {name!r}"
    tables.known(table, _KEYS, what)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}", name):
        tables.fail(f"{name!r} is no name for a program", "letters, digits, _ . - only, a letter first")
    tables.needed(table, "command", what, 'command = "python ocean.py"')
    tables.needed(table, "ranks", what, "ranks = 1")
    ranks = tables.whole(table, "ranks", 1, most=_MOST_RANKS)
    workdir = _folder(tables, table, here)
    return ProgramSpec(
        name,
        _command(tables, table, workdir, here),
        ranks,
        *_device(tables, table),
        tables.whole(table, "threads", 1, most=_MOST_THREADS),
        _environment(tables, table),
        workdir,
        _hosts(tables, table, ranks),
        tables.choice(table, "on_failure", ("end", "continue"), "end"),
        tables.yes(table, "joins", True),
        tables.seconds(table, "step"),
        tables.line_of(),
    )


def _folder(tables: Tables, table: dict[str, object], here: bool) -> Path:
    workdir: Path = (tables.path.parent / tables.text(table, "workdir", ".")).resolve()
    if here and not workdir.is_dir():
        tables.fail(f"there is no folder {workdir}", "workdir counts from the folder of the spec", "workdir")
    return workdir


def _command(tables: Tables, table: dict[str, Any], workdir: Path, here: bool) -> tuple[str, ...]:
    try:
        words = spec_command.words_of(table["command"])
        if here:
            spec_command.check(words, workdir, table.get("env", {}))
    except ConfigError as error:
        tables.fail(error.what, error.hint or "", "command")
    return tuple(words)


def _device(tables: Tables, table: dict[str, object]) -> tuple[str, tuple[int, ...]]:
    device = tables.choice(table, "device", ("cpu", "gpu"), "cpu")
    gpus: Any = table.get("gpus", [])
    if not isinstance(gpus, list) or not all(type(each) is int and each >= 0 for each in gpus):
        tables.fail(f"gpus must be a list of numbers from 0, not {gpus!r}", "gpus = [0, 1]", "gpus")
    if gpus and device == "cpu":
        tables.fail("gpus are given, but device is cpu", 'device = "gpu"', "gpus")
    if len(set(gpus)) < len(gpus):
        tables.fail(f"a GPU is named twice: {gpus}", "each GPU once; ranks take them in turn", "gpus")
    return device, tuple(gpus)


def _environment(tables: Tables, table: dict[str, object]) -> dict[str, str]:
    env = table.get("env", {})
    if not isinstance(env, dict):
        tables.fail(f"env must be a table, not {env!r}", 'env = { OMP_NUM_THREADS = "2" }', "env")
    for name, value in env.items():
        if not isinstance(value, str):
            tables.fail(f"the variable {name} must be a text, not {value!r}", f'{name} = "{value}"', "env")
        if wrong := wrong_name(name):
            tables.fail(wrong, 'take it out, or NAME = "value"', "env")
        if "\0" in value:
            tables.fail(f"the variable {name} holds a zero byte", 'NAME = "value"', "env")
        key = _SAID_BY.get(name)
        if key in table:
            tables.fail(f"the variable {name} is what {key} sets", f"one of the two: {key}, or env", "env")
    return dict(env)


def _hosts(tables: Tables, table: dict[str, object], ranks: int) -> tuple[tuple[str, int], ...]:
    given = table.get("hosts", [])
    if not isinstance(given, list) or not all(isinstance(host, str) for host in given):
        tables.fail(
            f"hosts must be a list of texts, not {given!r}", 'hosts = ["node1:2", "node2:2"]', "hosts"
        )
    found = []
    for host in given:
        read = host_and_slots(host)
        if read is None or "[" in host or "," in host:  # Slurm's names of several hosts
            tables.fail(f"{host!r} is no host", '"node1" or "node1:4" (4 ranks there)', "hosts")
        found.append(read)
    room = sum(slots for _, slots in found)
    if found and room != ranks:
        tables.fail(
            f"hosts hold {room} ranks, but the program has {ranks}", '"node1:4" holds 4 ranks', "hosts"
        )
    return tuple(found)
