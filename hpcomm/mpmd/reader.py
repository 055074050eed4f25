"""Reads a job of several programs from a TOML file, and checks it as a whole before anything starts.

docs/mpmd.md shows all keys. Every mistake is a ConfigError that names the line and what to try.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import command, unit
from .spec import FieldSpec, GridSpec, JobSpec, ProgramSpec
from .tables import Tables, at, parse

__all__ = ["MAPPINGS", "TIMES", "divides", "read"]

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


def read(path: Path, *, here: bool = True) -> JobSpec:
    """Read and check the spec at path.

    Args:
        here: whether commands and folders must exist on this machine, and units are looked at: where the job
            is started. Its ranks need not do that again, which takes a third of a second.

    Raises:
        ConfigError: anything wrong; nothing has been started.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", "hpcomm run", "check the path of the spec"
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path.name} is no UTF-8: byte 0x{raw[error.start]:02x}", at(path, line), "save it as UTF-8"
        ) from None
    return _Reader(path, text, here).job(parse(path, text))


class _Reader(Tables):
    """Turns tables into a JobSpec."""

    def __init__(self, path: Path, text: str, here: bool) -> None:
        super().__init__(path, text)
        self.here = here

    def job(self, tables: dict[str, Any]) -> JobSpec:
        self.known(tables, ("job", "program", "grid", "field"), "the spec")
        job = tables.get("job", {})
        self.where = ("job",)
        self.known(job, ("name", "timeout", "until"), "[job]")
        name = self.file_name(job, "name", self.path.stem)
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
        workdir, env = self.folder(table), self.environment(table)
        return ProgramSpec(
            name,
            self.command(table, workdir),
            ranks,
            *self.device(table),
            self.whole(table, "threads", 1),
            env,
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
        try:
            words = command.words_of(table["command"])
            if self.here:
                command.check(words, workdir, table.get("env", {}))
        except ConfigError as error:
            self.fail(error.what, error.hint or "", "command")
        return tuple(words)

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
            if not name or "=" in name or "\0" in name + value:
                self.fail(f"{name!r} is no name of a variable", 'NAME = "value"', "env")
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
        what = f"grid {name!r} of kind {kind}"
        more = ("kind", "sphere", "bounds") if kind == "plane" else ("kind", "sphere")
        self.known(table, (*GRID_KEYS[kind], *more), what)
        for key in GRID_KEYS[kind]:
            self.needed(table, key, what, f"{key} = 64")
        shape = tuple(self.whole(table, key, 1) for key in GRID_KEYS[kind])
        bounds = table.get("bounds", [0.0, 1.0, 0.0, 1.0])
        if (
            not isinstance(bounds, list)
            or len(bounds) != 4
            or not all(isinstance(b, (int, float)) and not isinstance(b, bool) for b in bounds)
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
            self.file_name(table, key, "")
        for key in ("from", "to"):
            self.check_program(table, key, programs)
        if table["from"] == table["to"]:
            self.fail(f"{what} goes from {table['from']!r} to itself", "name two programs", "to")
        implicit = table.get("implicit", False)
        if not isinstance(implicit, bool):
            self.fail(f"implicit must be true or false, not {implicit!r}", "implicit = true", "implicit")
        for key in ("every", "lag", "time") if implicit else ():
            if key in table:
                self.fail(f"{what} is implicit: it goes in every iteration", "take this line out", key)
        if "neighbours" in table and table.get("mapping") != "idw":
            self.fail(f"{what} has neighbours, which only idw uses", 'mapping = "idw"', "neighbours")
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
        if both is not None and {"from_unit", "to_unit"} & table.keys():
            self.fail(
                f"{what} has a unit, and one for a side", "unit for both, or from_unit and to_unit", "unit"
            )
        found = self.text(table, "from_unit", both), self.text(table, "to_unit", both)
        if (found[0] is None) != (found[1] is None):
            key = "from_unit" if found[1] is None else "to_unit"
            self.fail(
                f"{what} has a unit on one side only", "give from_unit and to_unit, or unit for both", key
            )
        if self.here and found[0] is not None and found[1] is not None:
            key = "from_unit" if both is None else "unit"
            try:
                unit.check(found[0])
                key = "to_unit" if both is None else "unit"
                unit.check(found[1])
                _, offset = unit.conversion(found[0], found[1])
            except ConfigError as error:
                self.fail(f"{what}: {error.what}", error.hint or "", key)
            if offset and table.get("time") == "sum":
                why = f"{what} is summed over time, and a sum of {found[0]} does not convert to {found[1]}"
                self.fail(why, 'time = "mean", or one unit for both', "to_unit")
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
        if made.mapping == "idw" and made.neighbours > source.size:
            self.fail(
                f"{made.neighbours} neighbours, but grid {source.name!r} has {source.size} points",
                "neighbours = 4",
                "neighbours",
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
            if step is not None and not divides(step, made.every_s):
                self.fail(
                    f"every = {made.every_s:g} s is no multiple of the step of {name!r}, {step:g} s",
                    f"a multiple of {step:g}",
                    "every",
                )
        if not divides(made.every_s, made.lag_s):
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
            if each.implicit and not any(
                other.implicit and (other.source, other.target) == (each.target, each.source)
                for other in fields
            ):
                self.fail(
                    f"{each} is implicit, but no implicit field comes back",
                    f'implicit = true in a field from = "{each.target}", to = "{each.source}"',
                    "implicit",
                )
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


def divides(step: float, whole: float) -> bool:
    """Whether whole is a multiple of step, but for rounding."""
    return abs(whole / step - round(whole / step)) < 1e-9
