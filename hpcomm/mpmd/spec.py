"""A job of several programs, read from a TOML file and checked as a whole before anything starts.

docs/mpmd.md shows all keys. Every mistake is a ConfigError that names the line and what to try.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ConfigError
from ..installation import which
from . import unit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FieldSpec", "GridSpec", "JobSpec", "ProgramSpec", "read"]

MAPPINGS = ("none", "nearest", "bilinear", "idw", "conservative", "conservative2")
TIMES = ("instant", "mean", "sum", "linear")
GRID_KEYS = {  # kind: the keys that it needs
    "latlon": ("nlat", "nlon"),
    "gaussian": ("nlat", "nlon"),
    "plane": ("nx", "ny"),
    "points": ("size",),
    "cells": ("size",),
}
_ON_SPHERE = {"latlon": True, "gaussian": True, "plane": False}
_FITS = {  # mapping: kinds that it can read from and write to
    "nearest": (set(GRID_KEYS), set(GRID_KEYS)),
    "idw": (set(GRID_KEYS), set(GRID_KEYS)),
    "bilinear": ({"latlon", "gaussian", "plane"}, set(GRID_KEYS)),
    "conservative": (set(GRID_KEYS) - {"points"}, set(GRID_KEYS) - {"points"}),
    "conservative2": (set(GRID_KEYS) - {"points"}, set(GRID_KEYS) - {"points"}),
}


@dataclass(frozen=True)
class ProgramSpec:
    """One program. hosts: (host, ranks there); step_s: its own time step."""

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


@dataclass(frozen=True)
class GridSpec:
    """A grid that fields live on. shape: what its kind needs, in the order of GRID_KEYS."""

    name: str
    kind: str
    shape: tuple[int, ...]
    bounds: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0)  # of a plane: x0, x1, y0, y1
    sphere: bool = True

    @property
    def size(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True)
class FieldSpec:
    """A field that goes from one program to another. Times in seconds of the model."""

    name: str
    source: str
    target: str
    mapping: str = "none"
    source_grid: str | None = None
    target_grid: str | None = None
    every_s: float | None = None
    lag_s: float = 0.0
    time: str = "instant"
    source_unit: str | None = None
    target_unit: str | None = None
    neighbours: int = 4
    implicit: bool = False
    timeout_s: float = 300.0
    weights: Path | None = None  # of the mapping, kept in a file; None: to be computed

    def __str__(self) -> str:
        return f"{self.name} ({self.source} -> {self.target})"


@dataclass(frozen=True)
class JobSpec:
    """All of it. path: the file that it was read from."""

    path: Path
    name: str
    programs: dict[str, ProgramSpec]
    grids: dict[str, GridSpec]
    fields: tuple[FieldSpec, ...]
    timeout_s: float | None = None
    until_s: float | None = None  # of the model, for progress

    def world_ranks(self) -> dict[str, range]:
        """The ranks of the world that each program gets: one after the other, as the file has them."""
        found, first = {}, 0
        for name, program in self.programs.items():
            found[name] = range(first, first + program.ranks)
            first += program.ranks
        return found


def read(path: Path, *, here: bool = True) -> JobSpec:
    """Read and check the spec at path.

    Args:
        here: whether commands and folders must exist on this machine, and units are looked at: where the job
            is started. Its ranks need not do that again, which takes a third of a second.

    Raises:
        ConfigError: anything wrong; nothing has been started.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", "hpcomm run", "check the path of the spec"
        ) from None
    tables = _parse(path, text)
    return _Reader(path, text, here).job(tables)


def _parse(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise ConfigError(
                "reading a spec needs tomli on Python 3.10", "hpcomm run", "pip install 'hpcomm[mpmd]'"
            ) from None
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
        what, line = (found[1], int(found[2])) if found else (str(error), text.count("\n") + 1)
        shown = (text.split("\n")[line - 1 : line] or [""])[0].strip()
        raise ConfigError(
            f"{path.name} is no valid TOML: {what}", _at(path, line), f"look at `{shown}`; texts need quotes"
        ) from None
    return tables


def _at(path: Path, line: int) -> str:
    return f"{path.name}, line {line}"


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key: ("program", "ocean", "ranks"), ("field", "0", "name")."""
    found: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        head = re.match(r"\s*\[(\[?)\s*([^\]]+?)\s*\]", line)
        key = re.match(r"\s*([A-Za-z0-9_\-\"'.]+)\s*=", line)
        if head:
            table = tuple(part.strip().strip("\"'") for part in head[2].split("."))
            if head[1]:
                seen[table] = seen.get(table, -1) + 1
                table = (*table, str(seen[table]))
            found.setdefault(table, number)
            found.setdefault(table[:1], number)
        elif key:
            path = tuple(part.strip("\"'") for part in key[1].split("."))
            found.setdefault((*table, *path), number)
    return found


class _Reader:
    """Turns tables into a JobSpec; where: the table being read, for messages."""

    def __init__(self, path: Path, text: str, here: bool) -> None:
        self.path = path
        self.lines = lines_of(text)
        self.here = here
        self.where: tuple[str, ...] = ()

    def fail(self, what: str, hint: str, key: str | None = None) -> NoReturn:
        at = (*self.where, key) if key else self.where
        while at and at not in self.lines:
            at = at[:-1]
        raise ConfigError(what, _at(self.path, self.lines.get(at, 1)), hint)

    # -- one value -----------------------------------------------------------------------------------
    def known(self, table: Any, keys: tuple[str, ...], what: str) -> None:
        if not isinstance(table, dict):
            self.fail(f"{what} must be a table, not {table!r}", f"[{'.'.join(self.where)}]")
        for key in table:
            if key not in keys:
                close = get_close_matches(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(keys)}"
                self.fail(f"{what} has no key {key!r}", hint, key)

    def text(self, table: dict[str, Any], key: str, default: str | None = None) -> Any:
        value = table.get(key, default)
        if value is not None and (not isinstance(value, str) or not value):
            self.fail(f"{key} must be a text, not {value!r}", f'{key} = "..."', key)
        return value

    def whole(self, table: dict[str, Any], key: str, least: int, default: int | None = None) -> Any:
        value = table.get(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            self.fail(
                f"{key} must be a whole number from {least}, not {value!r}", f"{key} = {max(least, 2)}", key
            )
        return value

    def seconds(
        self, table: dict[str, Any], key: str, default: float | None = None, zero: bool = False
    ) -> Any:
        value = table.get(key, default)
        wrong = isinstance(value, bool) or not isinstance(value, (int, float))
        if value is not None and (wrong or not (0 <= value < float("inf")) or (value == 0 and not zero)):
            least = "0 or more" if zero else "above 0"
            self.fail(f"{key} must be a number of seconds, {least}, not {value!r}", f"{key} = 60.0", key)
        return None if value is None else float(value)

    def choice(self, table: dict[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
        value = table.get(key, default)
        if value not in choices:
            close = get_close_matches(str(value), choices, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(choices)}"
            self.fail(f"there is no {key} {value!r}", hint, key)
        return str(value)

    def needed(self, table: dict[str, Any], key: str, what: str, example: str) -> None:
        if key not in table:
            self.fail(f"{what} has no {key}", example)

    # -- tables --------------------------------------------------------------------------------------
    def job(self, tables: dict[str, Any]) -> JobSpec:
        self.known(tables, ("job", "program", "grid", "field"), "the spec")
        job = tables.get("job", {})
        self.where = ("job",)
        self.known(job, ("name", "timeout", "until"), "[job]")
        name = self.text(job, "name", self.path.stem)
        timeout, until = self.seconds(job, "timeout"), self.seconds(job, "until")
        self.where = ()
        programs = tables.get("program", {})
        if not isinstance(programs, dict) or not programs:
            self.fail("the spec has no programs", '[program.ocean] command = "python ocean.py", ranks = 1')
        read = {each: self.program(each, table) for each, table in programs.items()}
        grids = {each: self.grid(each, table) for each, table in tables.get("grid", {}).items()}
        listed = tables.get("field", [])
        if not isinstance(listed, list):
            self.where = ("field",)
            self.fail("fields are a list of tables", "write [[field]] with two brackets")
        fields = [self.field(i, table, read, grids) for i, table in enumerate(listed)]
        self.check_together(fields, read)
        return JobSpec(self.path, name, read, grids, tuple(fields), timeout, until)

    def program(self, name: str, table: Any) -> ProgramSpec:
        self.where = ("program", name)
        what = f"program {name!r}"
        keys = tuple(
            "command ranks device gpus threads env workdir hosts on_failure joins step".split()  # noqa: SIM905
        )
        self.known(table, keys, what)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}", name):
            self.fail(f"{name!r} is no name for a program", "letters, digits, _ . - only, a letter first")
        self.needed(table, "command", what, 'command = "python ocean.py"')
        self.needed(table, "ranks", what, "ranks = 1")
        ranks = self.whole(table, "ranks", 1)
        joins = table.get("joins", True)
        if not isinstance(joins, bool):
            self.fail(f"joins must be true or false, not {joins!r}", "joins = true", "joins")
        workdir = self.folder(table)
        return ProgramSpec(
            name,
            self.command(table, workdir),
            ranks,
            *self.device(table),
            self.whole(table, "threads", 1),
            self.environment(table),
            workdir,
            self.hosts(table, ranks),
            self.choice(table, "on_failure", ("end", "continue"), "end"),
            joins,
            self.seconds(table, "step"),
        )

    def folder(self, table: dict[str, Any]) -> Path:
        workdir: Path = (self.path.parent / self.text(table, "workdir", ".")).resolve()
        if self.here and not workdir.is_dir():
            self.fail(
                f"there is no folder {workdir}", "workdir counts from the folder of the spec", "workdir"
            )
        return workdir

    def command(self, table: dict[str, Any], workdir: Path) -> tuple[str, ...]:
        given = table["command"]
        if isinstance(given, str):
            try:
                words = shlex.split(given)
            except ValueError as error:
                self.fail(f"command {given!r} cannot be read: {error}", "close the quotes", "command")
        elif isinstance(given, list) and all(isinstance(word, str) for word in given):
            words = given
        else:
            self.fail(
                f"command must be a text or a list of texts, not {given!r}",
                'command = "python a.py"',
                "command",
            )
        if not words:
            self.fail("command is empty", 'command = "python ocean.py"', "command")
        if words[0] in ("python", "python3"):
            words = [sys.executable, *words[1:]]
        if self.here:
            self.check_command(words, workdir)
        return tuple(words)

    def check_command(self, words: list[str], workdir: Path) -> None:
        program = str(workdir / words[0]) if "/" in words[0] else words[0]
        if which(program) is None:
            self.fail(
                f"command not found: {words[0]}", "check its spelling, or give its full path", "command"
            )
        script = words[1] if len(words) > 1 and Path(words[0]).name.startswith("python") else ""
        if script.endswith(".py") and not (workdir / script).is_file():
            near = get_close_matches(
                Path(script).name, [path.name for path in (workdir / script).parent.glob("*.py")], 1
            )
            hint = f"did you mean {near[0]!r}?" if near else f"paths count from {workdir}"
            self.fail(f"there is no script {script}", hint, "command")

    def device(self, table: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
        device = self.choice(table, "device", ("cpu", "gpu"), "cpu")
        gpus = table.get("gpus", [])
        if not isinstance(gpus, list) or any(
            isinstance(g, bool) or not isinstance(g, int) or g < 0 for g in gpus
        ):
            self.fail(f"gpus must be a list of numbers from 0, not {gpus!r}", "gpus = [0, 1]", "gpus")
        if gpus and device == "cpu":
            self.fail("gpus are given, but device is cpu", 'device = "gpu"', "gpus")
        if len(set(gpus)) < len(gpus):
            self.fail(f"a GPU is named twice: {gpus}", "each GPU once; ranks take them in turn", "gpus")
        return device, tuple(gpus)

    def environment(self, table: dict[str, Any]) -> dict[str, str]:
        env = table.get("env", {})
        if not isinstance(env, dict):
            self.fail(f"env must be a table, not {env!r}", 'env = { OMP_NUM_THREADS = "2" }', "env")
        for name, value in env.items():
            if not isinstance(value, str):
                self.fail(f"the variable {name} must be a text, not {value!r}", f'{name} = "{value}"', "env")
            if name.startswith("HPCOMM_PROGRAM"):
                self.fail(f"the variable {name} is hpcomm's own", "take it out", "env")
        return dict(env)

    def hosts(self, table: dict[str, Any], ranks: int) -> tuple[tuple[str, int], ...]:
        given = table.get("hosts", [])
        if not isinstance(given, list) or not all(isinstance(host, str) for host in given):
            self.fail(
                f"hosts must be a list of texts, not {given!r}", 'hosts = ["node1:2", "node2:2"]', "hosts"
            )
        found = []
        for host in given:
            read = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9.\-]*)(?::([1-9][0-9]*))?", host)
            if read is None:
                self.fail(f"{host!r} is no host", '"node1" or "node1:4" (4 ranks there)', "hosts")
            found.append((read[1], int(read[2] or 1)))
        room = sum(slots for _, slots in found)
        if found and room != ranks:
            self.fail(
                f"hosts hold {room} ranks, but the program has {ranks}", '"node1:4" holds 4 ranks', "hosts"
            )
        return tuple(found)

    def grid(self, name: str, table: Any) -> GridSpec:
        self.where = ("grid", name)
        keys = ("kind", "nlat", "nlon", "nx", "ny", "size", "bounds", "sphere")
        self.known(table, keys, f"grid {name!r}")
        self.needed(table, "kind", f"grid {name!r}", 'kind = "latlon"')
        kind = self.choice(table, "kind", tuple(GRID_KEYS), "latlon")
        for key in GRID_KEYS[kind]:
            self.needed(table, key, f"grid {name!r} of kind {kind}", f"{key} = 64")
        shape = tuple(self.whole(table, key, 1) for key in GRID_KEYS[kind])
        bounds = table.get("bounds", [0.0, 1.0, 0.0, 1.0])
        if (
            not isinstance(bounds, list)
            or len(bounds) != 4
            or not all(isinstance(b, (int, float)) for b in bounds)
            or not (bounds[0] < bounds[1] and bounds[2] < bounds[3])
        ):
            self.fail(
                f"bounds must be [x0, x1, y0, y1], not {bounds!r}", "bounds = [0.0, 1.0, 0.0, 1.0]", "bounds"
            )
        sphere = table.get("sphere", _ON_SPHERE.get(kind, True))
        if not isinstance(sphere, bool) or sphere != _ON_SPHERE.get(kind, sphere):
            self.fail(f"a {kind} grid has no sphere = {sphere!r}", "take that line out", "sphere")
        return GridSpec(name, kind, shape, tuple(float(b) for b in bounds), sphere)

    def field(
        self, number: int, table: Any, programs: dict[str, ProgramSpec], grids: dict[str, GridSpec]
    ) -> FieldSpec:
        self.where = ("field", str(number))
        keys = (
            "name from to mapping from_grid to_grid every lag time unit from_unit to_unit neighbours"
            " implicit timeout weights"
        )
        self.known(table, tuple(keys.split()), "a field")
        what = f"field {table.get('name', number + 1)!r}"
        for key, example in (("name", '"heat"'), ("from", '"atmosphere"'), ("to", '"ocean"')):
            self.needed(table, key, what, f"{key} = {example}")
            self.text(table, key)
        for key in ("from", "to"):
            self.check_program(table, key, programs)
        if table["from"] == table["to"]:
            self.fail(f"{what} goes from {table['from']!r} to itself", "name two programs", "to")
        implicit = table.get("implicit", False)
        if not isinstance(implicit, bool):
            self.fail(f"implicit must be true or false, not {implicit!r}", "implicit = true", "implicit")
        unit_of = self.units(table, what)
        made = FieldSpec(
            table["name"],
            table["from"],
            table["to"],
            self.choice(table, "mapping", MAPPINGS, "none"),
            self.grid_name(table, "from_grid", grids),
            self.grid_name(table, "to_grid", grids),
            self.seconds(table, "every"),
            self.seconds(table, "lag", 0.0, zero=True),
            self.choice(table, "time", TIMES, "instant"),
            unit_of[0],
            unit_of[1],
            self.whole(table, "neighbours", 1, 4),
            implicit,
            self.seconds(table, "timeout", 300.0),
            (self.path.parent / self.text(table, "weights")).resolve() if "weights" in table else None,
        )
        self.check_mapping(made, grids)
        self.check_weights(made, grids)
        self.check_times(made, programs)
        return made

    def check_program(self, table: dict[str, Any], key: str, programs: dict[str, ProgramSpec]) -> None:
        name = table[key]
        if name not in programs:
            close = get_close_matches(name, programs, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"programs: {', '.join(programs)}"
            self.fail(f"there is no program {name!r}", hint, key)
        if not programs[name].joins:
            self.fail(f"program {name!r} has joins = false, so no field can go {key} it", "joins = true", key)

    def grid_name(self, table: dict[str, Any], key: str, grids: dict[str, GridSpec]) -> str | None:
        name: str | None = self.text(table, key)
        if name is not None and name not in grids:
            close = get_close_matches(name, grids, 1)
            self.fail(
                f"there is no grid {name!r}",
                f"did you mean {close[0]!r}?" if close else f"[grid.{name}]",
                key,
            )
        return name

    def units(self, table: dict[str, Any], what: str) -> tuple[str | None, str | None]:
        both = self.text(table, "unit")
        found = self.text(table, "from_unit", both), self.text(table, "to_unit", both)
        if (found[0] is None) != (found[1] is None):
            key = "from_unit" if found[1] is None else "to_unit"
            self.fail(
                f"{what} has a unit on one side only", "give from_unit and to_unit, or unit for both", key
            )
        if self.here and found[0] is not None and found[1] is not None:
            try:
                unit.conversion(found[0], found[1])
            except ConfigError as error:
                self.fail(f"{what}: {error.what}", error.hint or "", "to_unit" if both is None else "unit")
        return found

    def check_mapping(self, made: FieldSpec, grids: dict[str, GridSpec]) -> None:
        source, target = (grids.get(name or "") for name in (made.source_grid, made.target_grid))
        if made.mapping == "none":
            if source and target and source.size != target.size:
                self.fail(
                    f"{made} has no mapping, but its grids have {source.size} and {target.size} points",
                    'mapping = "nearest", or one grid for both',
                    "name",
                )
            return
        if source is None or target is None:
            self.fail(
                f"mapping {made.mapping!r} needs the grids of both sides",
                "from_grid = NAME, to_grid = NAME, and a [grid.NAME] for each",
                "mapping",
            )
        reads, writes = _FITS[made.mapping]
        for grid, kinds, key in ((source, reads, "from_grid"), (target, writes, "to_grid")):
            if grid.kind not in kinds:
                self.fail(
                    f"mapping {made.mapping!r} does not fit grid {grid.name!r} of kind {grid.kind}",
                    f"kinds that it fits: {', '.join(sorted(kinds))}",
                    key,
                )
        if source.sphere != target.sphere:
            flat = source.name if target.sphere else target.name
            self.fail(
                f"{made} goes between a sphere and a plane ({flat})",
                "grids of one field lie on the same surface",
                "from_grid",
            )

    def check_weights(self, made: FieldSpec, grids: dict[str, GridSpec]) -> None:
        """That the file is there, and is of these grids' sizes."""
        if made.weights is None:
            return
        if made.mapping == "none":
            self.fail(f"{made} has weights, but no mapping", 'mapping = "conservative"', "weights")
        if not self.here:
            return
        from .. import regrid

        try:
            targets, sources = regrid.Weights.sizes(made.weights)
        except ConfigError as error:
            self.fail(f"{made}: {error.what}", error.hint or "", "weights")
        source, target = grids[made.source_grid or ""], grids[made.target_grid or ""]
        if targets != target.size or sources > source.size:
            self.fail(
                f"{made.weights.name} maps {sources} points or more to {targets}, but the grids have"
                f" {source.size} and {target.size}",
                "make the weights again for these grids",
                "weights",
            )

    def check_times(self, made: FieldSpec, programs: dict[str, ProgramSpec]) -> None:
        if made.every_s is None:
            if made.time != "instant" or made.lag_s:
                self.fail(f"time and lag of {made} need every", "every = 3600.0", "name")
            return
        for name in (made.source, made.target):
            step = programs[name].step_s
            if step is not None and not _divides(step, made.every_s):
                self.fail(
                    f"every = {made.every_s:g} s is no multiple of the step of {name!r}, {step:g} s",
                    f"a multiple of {step:g}",
                    "every",
                )
        if not _divides(made.every_s, made.lag_s):
            self.fail(
                f"lag = {made.lag_s:g} s is no multiple of every = {made.every_s:g} s", "lag = every", "lag"
            )

    def check_together(self, fields: list[FieldSpec], programs: dict[str, ProgramSpec]) -> None:
        seen: dict[tuple[str, str], int] = {}
        for number, each in enumerate(fields):
            self.where = ("field", str(number))
            key = (each.name, each.target)
            if key in seen:
                self.fail(
                    f"{each.target!r} receives two fields called {each.name!r}",
                    f"the other one is at line {self.lines.get(('field', str(seen[key])), 0)}; rename one",
                    "name",
                )
            seen[key] = number
        self.check_cycles(fields)

    def check_cycles(self, fields: list[FieldSpec]) -> None:
        """Programs get, compute and put; so fields without lag must not go round in a circle."""
        from graphlib import CycleError, TopologicalSorter

        waits: dict[str, set[str]] = {}
        for each in fields:
            if not each.lag_s and not each.implicit:
                waits.setdefault(each.target, set()).add(each.source)
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            number = next(
                i
                for i, each in enumerate(fields)
                if not each.lag_s and not each.implicit and [each.source, each.target] in _steps(circle)
            )
            self.where = ("field", str(number))
            self.fail(
                f"nobody could begin: {' waits for '.join(circle)}, and no field in this circle has a lag",
                "lag = every for one of them, or implicit = true for all",
                "name",
            )


def _steps(circle: list[str]) -> list[list[str]]:
    both = [list(pair) for pair in pairwise(circle)]
    return both + [pair[::-1] for pair in both]


def _divides(step: float, whole: float) -> bool:
    return abs(whole / step - round(whole / step)) < 1e-9
