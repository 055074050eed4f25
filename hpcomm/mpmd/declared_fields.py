"""Reader of the tables [grid.NAME] and [[field]] of a spec."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, did_you_mean
from ..grids.methods import GRID_KEYS
from ..job.spec.programs import ProgramSpec
from ..job.spec.toml_tables import LONGEST_S, Tables
from .coupling import unit
from .route import grid_checks
from .spec.spec_file import MAPPINGS, TIMES, FieldSpec, GridSpec, is_uncovered

_ON_SPHERE = {"latlon": True, "gaussian": True, "plane": False}
_MOST_POINTS = 1 << 40  # of a grid
_MOST_LATITUDES = 10_000  # of a Gaussian grid, which come from a matrix of so many rows
_FAR = 1e15  # farther than any plane goes
_KEYS = (
    *("name", "from", "to", "mapping", "from_grid", "to_grid", "every", "lag", "time", "unit", "from_unit"),
    *("to_unit", "neighbours", "implicit", "timeout", "weights", "uncovered"),
)


def read_grid(tables: Tables, name: str, table: Any) -> GridSpec:
    """The grid that table describes."""
    tables.where = ("grid", name)
    tables.known(table, ("kind", "nlat", "nlon", "nx", "ny", "size", "bounds", "sphere"), f"grid {name!r}")
    tables.needed(table, "kind", f"grid {name!r}", 'kind = "latlon"')
    kind = tables.choice(table, "kind", tuple(GRID_KEYS), "latlon")
    what = f"grid {name!r} of kind {kind}"
    more = ("kind", "sphere", "bounds") if kind == "plane" else ("kind", "sphere")
    tables.known(table, (*GRID_KEYS[kind], *more), what)
    for key in GRID_KEYS[kind]:
        tables.needed(table, key, what, f"{key} = 64")
    shape = tuple(tables.whole(table, key, 1, most=_MOST_POINTS) for key in GRID_KEYS[kind])
    if kind == "gaussian":
        tables.whole(table, "nlat", 1, most=_MOST_LATITUDES)
    bounds = table.get("bounds", [0.0, 1.0, 0.0, 1.0])
    if not _are_bounds(bounds):
        tables.fail(
            f"bounds must be [x0, x1, y0, y1], not {bounds!r}", "bounds = [0.0, 1.0, 0.0, 1.0]", "bounds"
        )
    sphere = table.get("sphere", _ON_SPHERE.get(kind, True))
    if not isinstance(sphere, bool) or sphere != _ON_SPHERE.get(kind, sphere):
        tables.fail(f"a {kind} grid has no sphere = {sphere!r}", "take that line out", "sphere")
    made = GridSpec(name, kind, shape, tuple(float(b) for b in bounds), sphere)
    if made.size > _MOST_POINTS:
        tables.fail(f"{what} has {made.size:,} points", f"at most {_MOST_POINTS:,}", GRID_KEYS[kind][0])
    return made


def _are_bounds(given: object) -> bool:
    return (
        isinstance(given, list)
        and len(given) == 4
        and all(isinstance(b, (int, float)) and not isinstance(b, bool) and abs(b) <= _FAR for b in given)
        and given[0] < given[1]
        and given[2] < given[3]
    )


def read_field(
    tables: Tables,
    number: int,
    table: Any,
    programs: dict[str, ProgramSpec],
    grids: dict[str, GridSpec],
    here: bool,
) -> FieldSpec:
    """The field that table describes, the number-th of the spec.

    Args:
        here: whether units and files of weights are looked at.
    """
    tables.where = ("field", str(number))
    tables.known(table, _KEYS, "a field")
    what = f"field {table.get('name', number + 1)!r}"
    for key, example in (("name", '"heat"'), ("from", '"atmosphere"'), ("to", '"ocean"')):
        tables.needed(table, key, what, f"{key} = {example}")
        tables.file_name(table, key, "")
    for key in ("from", "to"):
        _check_program(tables, table, key, programs)
    if table["from"] == table["to"]:
        tables.fail(f"{what} goes from {table['from']!r} to itself", "name two programs", "to")
    implicit = tables.yes(table, "implicit", False)
    for key in ("every", "lag", "time") if implicit else ():
        if key in table:
            tables.fail(f"{what} is implicit: it goes in every iteration", "take this line out", key)
    if "neighbours" in table and table.get("mapping") != "idw":
        tables.fail(f"{what} has neighbours, which only idw uses", 'mapping = "idw"', "neighbours")
    uncovered = _uncovered(tables, table, what)
    unit_of = _units(tables, table, what, here)
    made = FieldSpec(
        table["name"],
        table["from"],
        table["to"],
        tables.choice(table, "mapping", MAPPINGS, "none"),
        _grid_name(tables, table, "from_grid", grids),
        _grid_name(tables, table, "to_grid", grids),
        tables.seconds(table, "every"),
        tables.seconds(table, "lag", 0.0, zero=True),
        tables.choice(table, "time", TIMES, "instant"),
        unit_of[0],
        unit_of[1],
        tables.whole(table, "neighbours", 1, 4),
        implicit,
        tables.seconds(table, "timeout", 300.0, most=LONGEST_S),
        (tables.path.parent / tables.text(table, "weights")).resolve() if "weights" in table else None,
        uncovered,
    )
    grid_checks.check_mapping(tables, made, grids)
    grid_checks.check_weights(tables, made, grids, here)
    grid_checks.check_times(tables, made, programs)
    return made


def _uncovered(tables: Tables, table: dict[str, Any], what: str) -> str | float:
    """What a field says of points that its mapping does not reach."""
    uncovered: str | float = table.get("uncovered", "error")
    if not is_uncovered(uncovered):
        told = f'uncovered must be "error", "keep" or a value, not {uncovered!r}'
        tables.fail(told, 'uncovered = "keep"', "uncovered")
    if "uncovered" in table and table.get("mapping", "none") == "none":
        tables.fail(f"{what} has uncovered, but no mapping", "take this line out", "uncovered")
    return uncovered


def _check_program(tables: Tables, table: dict[str, Any], key: str, programs: dict[str, ProgramSpec]) -> None:
    name = table[key]
    if name not in programs:
        hint = did_you_mean(name, programs, f"programs: {', '.join(programs)}")
        tables.fail(f"there is no program {name!r}", hint, key)
    if not programs[name].joins:
        tables.fail(f"program {name!r} has joins = false, so no field can go {key} it", "joins = true", key)


def _grid_name(tables: Tables, table: dict[str, object], key: str, grids: dict[str, GridSpec]) -> str | None:
    name: str | None = tables.text(table, key)
    if name is not None and name not in grids:
        tables.fail(f"there is no grid {name!r}", did_you_mean(name, grids, f"[grid.{name}]"), key)
    return name


def _units(tables: Tables, table: dict[str, object], what: str, here: bool) -> tuple[str | None, str | None]:
    both = tables.text(table, "unit")
    if both is not None and {"from_unit", "to_unit"} & table.keys():
        tables.fail(
            f"{what} has a unit, and one for a side", "unit for both, or from_unit and to_unit", "unit"
        )
    found = tables.text(table, "from_unit", both), tables.text(table, "to_unit", both)
    if (found[0] is None) != (found[1] is None):
        key = "from_unit" if found[1] is None else "to_unit"
        tables.fail(
            f"{what} has a unit on one side only", "give from_unit and to_unit, or unit for both", key
        )
    if here and found[0] is not None and found[1] is not None:
        key = "from_unit" if both is None else "unit"
        try:
            unit.check(found[0])
            key = "to_unit" if both is None else "unit"
            unit.check(found[1])
            _, offset = unit.conversion(found[0], found[1])
        except ConfigError as error:
            tables.fail(f"{what}: {error.what}", error.hint or "", key)
        if offset and table.get("time") == "sum":
            why = f"{what} is summed over time, and a sum of {found[0]} does not convert to {found[1]}"
            tables.fail(why, 'time = "mean", or one unit for both', "to_unit")
    return found
