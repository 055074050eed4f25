"""Reader of a job of several programs from a TOML file, checked as a whole before anything starts.

docs/mpmd.md shows all keys. Every mistake is a ConfigError that names the line and what to try.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...errors import ConfigError, HpcommError, did_you_mean
from ...grids.methods import KINDS
from ...job.spec.programs import RunSpec, read_duration, read_programs
from ...job.spec.schema import FIELD, GRID
from ...job.spec.spec_command import is_python
from ...job.spec.toml_tables import Tables
from ..coupling import unit
from . import grid_checks
from .spec_file import FieldSpec, GridSpec, JobSpec, misfit_of_options, stacked

_KEYS = (
    "name", "from", "to", "mapping", "from_grid", "to_grid", "every", "lag", "time", "from_unit", "to_unit",
    "neighbours", "implicit", "timeout", "weights", "uncovered", "nan", "then", "radius", "normalise",
    "vector", "conserve",
)  # fmt: skip  # in the order of what FieldSpec has
_MOST_POINTS: int = GRID["properties"]["size"]["maximum"]


def read(path: Path, *, here: bool = True, command: str = "hpcomm run") -> JobSpec:
    """Read and check the spec at path.

    Args:
        here: whether commands and folders must exist on this machine, and units are looked at: where the job
            is started. Its ranks need not do that again, which takes a third of a second.
        command: which asks, for messages.
    """
    tables = Tables(path, command)
    listed = tables.named("grid")
    run = read_programs(tables, here)
    grids = {each: _read_grid(tables, each, table, here) for each, table in listed.items()}
    fields = tables.root.get("field", [])
    if not isinstance(fields, list):
        tables.where = ("field",)
        tables.fail("fields are a list of tables", "write [[field]] with two brackets")
    found = [_read_field(tables, i, table, run, grids, here) for i, table in enumerate(fields)]
    made = JobSpec(**vars(run), grids=grids, fields=tuple(found))
    grid_checks.check_job(tables, made)
    if here and found:
        _check_planner(tables, run)
    return made.with_members()


def started_from() -> JobSpec | None:
    """The spec that this job was started from, for a rank of it."""
    path = os.environ.get("HPCOMM_SPEC")
    return read(Path(path), here=False) if path else None


def _check_planner(tables: Tables, run: RunSpec) -> None:
    """That not all programs are compiled: one in Python plans the fields."""
    from ...job.run_spec import linked_vendor

    joining = [program for program in run.programs.values() if program.joins]
    if all(not is_python(program.command) and linked_vendor(program) for program in joining):
        tables.where = ("program", joining[0].name)
        what = "no program of this job is in Python, so nothing plans its fields"
        tables.fail(what, '[program.planner] command = "python -m hpcomm.mpmd.planner", ranks = 1')


def _read_grid(tables: Tables, name: str, table: Any, here: bool) -> GridSpec:
    """The grid that table describes. here: whether to look at its file; ranks do so where fields need it."""
    tables.where = ("grid", name)
    said = tables.read(table, GRID, f"grid {name!r}")
    if said["file"] is not None:
        path, entry = (tables.path.parent / said["file"]).resolve(), said["name"]
        size = _size_in_file(tables, path, entry, here)
        return GridSpec(name, "cells", (size,), file=path, entry=entry)
    kind, bounds, rows, half = KINDS[said["kind"]], said["bounds"], said["rows"], said["N"]
    if bounds[0] >= bounds[1] or bounds[2] >= bounds[3]:
        tables.fail(f"bounds must be [x0, x1, y0, y1], not {bounds}", "x0 < x1 and y0 < y1", "bounds")
    if rows and (len(rows) not in (half, 2 * half) if half else len(rows) % 2):
        hint = "columns of all 2 N rows, from the north; or of the first N, and N = so many"
        tables.fail(f"rows has {len(rows)} numbers", hint, "rows")
    sphere = said["sphere"] if kind.sphere is None else kind.sphere
    more = {key: said[key] for key in kind.more}
    made = GridSpec(name, said["kind"], tuple(map(said.__getitem__, kind.keys)), sphere, more)
    if made.size > _MOST_POINTS:
        what = f"grid {name!r} has {made.size:,} points"
        tables.fail(what, f"at most {_MOST_POINTS:,}", kind.keys[0])
    return made


def _size_in_file(tables: Tables, path: Path, name: str | None, here: bool) -> int:
    """How many cells a grid in a file has, or may have."""
    if not here:
        return _MOST_POINTS
    from ...grids.files import open_grid

    try:
        return open_grid(path, name).size
    except HpcommError as error:
        key = "name" if name is not None and type(error) is ConfigError else "file"
        tables.fail(f"grid {tables.where[1]!r}: {error.what}", error.hint or "", key)


def _read_field(
    tables: Tables, number: int, table: Any, run: RunSpec, grids: dict[str, GridSpec], here: bool
) -> FieldSpec:
    """The field that table describes, the number-th of the spec; here: as of read."""
    tables.where = ("field", str(number))
    what = f"field {table.get('name', number + 1) if isinstance(table, dict) else number + 1!r}"
    said = tables.read(table, FIELD, what)
    _check_ends(tables, said, what, run, grids)
    with tables.blaming("mapping"):
        said |= stacked(said, "", what)
    units = ("unit", "unit") if said["unit"] else ("from_unit", "to_unit")
    said |= {key: said[key] or said["unit"] for key in ("from_unit", "to_unit")}
    said |= {key: read_duration(tables, said, key, run.calendar) for key in ("every", "lag")}
    if isinstance(said["vector"], tuple) and said["name"] in said["vector"]:
        tables.fail(f"{what} has the name of a component of the vector", 'name = "wind"', "vector")
    said["weights"] = (tables.path.parent / said["weights"]).resolve() if said["weights"] else None
    made = FieldSpec(*map(said.__getitem__, _KEYS))
    if here:
        _check_units(tables, made, units)
    if wrong := misfit_of_options(made):
        tables.fail(f"{what} has {wrong[1]}", wrong[2], wrong[0])
    grid_checks.check_mapping(tables, made, grids)
    grid_checks.check_weights(tables, made, grids, here)
    grid_checks.check_times(tables, made, run)
    return made


def _check_ends(
    tables: Tables, said: dict[str, Any], what: str, run: RunSpec, grids: dict[str, GridSpec]
) -> None:
    for key in ("from", "to"):
        name = said[key]
        if name not in run.programs:
            hint = did_you_mean(name, run.programs, f"programs: {', '.join(run.programs)}")
            tables.fail(f"there is no program {name!r}", hint, key)
        if not run.programs[name].joins:
            why = f"program {name!r} has joins = false, so no field can go {key} it"
            tables.fail(why, "joins = true", key)
    if said["from"] == said["to"]:
        tables.fail(f"{what} goes from {said['from']!r} to itself", "name two programs", "to")
    _check_members(tables, said, what, run)
    for key in ("from_grid", "to_grid"):
        if (name := said[key]) is not None and name not in grids:
            tables.fail(f"there is no grid {name!r}", did_you_mean(name, grids, f"[grid.{name}]"), key)


def _check_members(tables: Tables, said: dict[str, Any], what: str, run: RunSpec) -> None:
    source, target = (run.programs[said[key]].members for key in ("from", "to"))
    if source and target and source != target:
        both = f"{said['from']!r} has {source} and {said['to']!r} has {target}"
        tables.fail(f"{what} goes member by member, but {both}", "as many members of both", "to")
    if bool(source) != bool(target) and said["implicit"]:
        hint = "both with members, each of which then iterates with its partner"
        tables.fail(f"{what} is implicit, between an ensemble and one program", hint, "implicit")


def _check_units(tables: Tables, made: FieldSpec, keys: tuple[str, str]) -> None:
    """That both are known and convert, if there are two. keys: where the spec says them."""
    source, target, whose = made.source_unit, made.target_unit, f"field {made.name!r}: "
    if not (source and target):
        return
    with tables.blaming(keys[0], whose):
        unit.check(source)
    with tables.blaming(keys[1], whose):
        _, offset = unit.conversion(source, target)
    if offset and made.time == "sum":
        why = f"is summed over time, and a sum of {source} does not convert to {target}"
        tables.fail(f"field {made.name!r} {why}", 'time = "mean", or one unit for both', "to_unit")
