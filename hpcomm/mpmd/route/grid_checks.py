"""Consistency checks of a spec: its fields against its grids, its programs' steps, and one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ...errors import ConfigError
from ...grids.methods import misfit
from ...job.spec.programs import ProgramSpec
from ...job.spec.toml_tables import Tables
from ..coupling.coupling_clock import divides
from ..spec.spec_file import FieldSpec, GridSpec, JobSpec


def check_mapping(tables: Tables, made: FieldSpec, grids: dict[str, GridSpec]) -> None:
    if made.source_grid is None or made.target_grid is None:
        return
    source, target = grids[made.source_grid], grids[made.target_grid]
    if made.mapping == "none":
        _check_unmapped(tables, made, source, target)
        return
    if made.mapping == "idw" and made.neighbours > source.size:
        tables.fail(
            f"{made.neighbours} neighbours, but grid {source.name!r} has {source.size} points",
            "neighbours = 4",
            "neighbours",
        )
    wrong = misfit(made.mapping, (source.kind, source.sphere), (target.kind, target.sphere))
    if wrong is not None:
        side, what, hint = wrong
        tables.fail(f"{made}: {what} ({source.name!r} to {target.name!r})", hint, f"{side}_grid")
    if made.mapping not in ("nearest", "idw") and not _meet(source, target):
        tables.fail(
            f"{made} goes between planes that do not meet: {list(source.bounds)} and {list(target.bounds)}",
            'mapping = "nearest", or bounds = [x0, x1, y0, y1] that do',
            "mapping",
        )


def _meet(a: GridSpec, b: GridSpec) -> bool:
    """Whether two grids have some part of their surface in common, as far as the spec tells."""
    (w0, w1, s0, s1), (x0, x1, y0, y1) = a.bounds, b.bounds
    return not a.kind == b.kind == "plane" or (w0 < x1 and x0 < w1 and s0 < y1 and y0 < s1)


def _check_unmapped(tables: Tables, made: FieldSpec, source: GridSpec, target: GridSpec) -> None:
    """Without a mapping an index means the same point on both sides."""
    is_alike = replace(source, name=target.name) == target and source.kind not in ("points", "cells")
    if source != target and not is_alike:
        tables.fail(
            f"{made} has no mapping, but its grids differ: {_told(source)} and {_told(target)}",
            'mapping = "nearest", or one grid for both',
            "name",
        )


def _told(grid: GridSpec) -> str:
    return f"{grid.name!r} ({grid.kind}, {grid.size:,} points)"


def check_weights(tables: Tables, made: FieldSpec, grids: dict[str, GridSpec], here: bool) -> None:
    """That the file is there, and is of these grids' sizes."""
    if made.weights is None or not here:
        return
    from ...grids.weights import Weights

    try:
        targets, sources = Weights.sizes(made.weights)
    except ConfigError as error:
        tables.fail(f"{made}: {error.what}", error.hint or "", "weights")
    source, target = grids[made.source_grid or ""], grids[made.target_grid or ""]
    if targets != target.size or sources > source.size:
        tables.fail(
            f"{made.weights.name} maps {sources} points or more to {targets}, but the grids have"
            f" {source.size} and {target.size}",
            "make the weights again for these grids",
            "weights",
        )


def check_times(tables: Tables, made: FieldSpec, programs: dict[str, ProgramSpec]) -> None:
    if made.every_s is None:
        return
    for name in (made.source, made.target):
        step = programs[name].step_s
        if step is not None and not divides(step, made.every_s):
            tables.fail(
                f"every = {made.every_s:g} s is no multiple of the step of {name!r}, {step:g} s",
                f"a multiple of {step:g}",
                "every",
            )
    if not divides(made.every_s, made.lag_s):
        tables.fail(
            f"lag = {made.lag_s:g} s is no multiple of every = {made.every_s:g} s", "lag = every", "lag"
        )


def check_job(tables: Tables, job: JobSpec) -> None:
    """That the fields go together, and the time that the job is for with its programs' steps."""
    _check_until(tables, job)
    _check_together(tables, job.fields)
    _check_cycles(tables, job.fields)


def _check_until(tables: Tables, job: JobSpec) -> None:
    tables.where = ("job",)
    for program in job.programs.values():
        step = program.step_s
        if job.until_s is not None and step is not None and not divides(step, job.until_s):
            tables.fail(
                f"until = {job.until_s:g} s is no multiple of the step of {program.name!r}, {step:g} s",
                f"a multiple of {step:g}",
                "until",
            )


def _check_together(tables: Tables, fields: Sequence[FieldSpec]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for number, each in enumerate(fields):
        tables.where = ("field", str(number))
        key = (each.name, each.target)
        if key in seen:
            tables.fail(
                f"{each.target!r} receives two fields called {each.name!r}",
                f"the other one is at line {tables.lines.get(('field', str(seen[key])), 0)}; rename one",
                "name",
            )
        seen[key] = number
        _check_one_grid(tables, each, fields[:number])
        if each.implicit and not any(
            other.implicit and (other.source, other.target) == (each.target, each.source) for other in fields
        ):
            tables.fail(
                f"{each} is implicit, but no implicit field comes back",
                f'implicit = true in a field from = "{each.target}", to = "{each.source}"',
                "implicit",
            )


def _check_cycles(tables: Tables, fields: Sequence[FieldSpec]) -> None:
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
        tables.where = ("field", str(number))
        tables.fail(
            f"nobody could begin: {' waits for '.join(circle)}, and no field in this circle has a lag",
            "lag = every for one of them, or implicit = true for all",
            "name",
        )


def _check_one_grid(tables: Tables, each: FieldSpec, earlier: Sequence[FieldSpec]) -> None:
    """A program gives a field once, whoever takes it: so it is on one grid."""
    for number, other in enumerate(earlier):
        same = (other.name, other.source) == (each.name, each.source)
        if (
            same
            and None not in (other.source_grid, each.source_grid)
            and other.source_grid != each.source_grid
        ):
            tables.fail(
                f"{each.source!r} gives {each.name!r} on grid {each.source_grid!r}, and on"
                f" {other.source_grid!r} (line {tables.lines.get(('field', str(number)), 0)})",
                "one from_grid for both, or fields of two names",
                "from_grid",
            )


def _steps(circle: list[str]) -> list[list[str]]:
    both = [list(pair) for pair in pairwise(circle)]
    return both + [pair[::-1] for pair in both]
