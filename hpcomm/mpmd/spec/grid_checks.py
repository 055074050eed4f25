"""Consistency checks of a spec: its fields against its grids, its programs' steps, and one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ...grids.methods import AMOUNTS, KINDS, misfit
from ...job.spec.calendar import Duration, divides
from ...job.spec.programs import RunSpec
from ...job.spec.toml_tables import Tables
from ..coupling.coupling_clock import Clock, Schedule
from .spec_file import FieldSpec, GridSpec, JobSpec


def check_mapping(tables: Tables, made: FieldSpec, grids: dict[str, GridSpec]) -> None:
    if made.source_grid is None or made.target_grid is None:
        return
    source, target = grids[made.source_grid], grids[made.target_grid]
    if made.mapping == "none":
        _check_unmapped(tables, made, source, target)
        return
    if "idw" in made.methods and made.neighbours > source.size:
        what = f"{made.neighbours} neighbours, but grid {source.name!r} has {source.size} points"
        tables.fail(what, "neighbours = 4", "neighbours")
    for each in made.methods:
        wrong = misfit(each, (source.kind, source.surface), (target.kind, target.surface))
        if wrong is not None:
            side, what, hint = wrong
            tables.fail(f"{made}: {what} ({source.name!r} to {target.name!r})", hint, f"{side}_grid")
    if {"nearest", "idw", *AMOUNTS}.isdisjoint(made.methods) and source.kind == target.kind == "plane":
        (w0, w1, s0, s1), (x0, x1, y0, y1) = a, b = source.more["bounds"], target.more["bounds"]
        if not (w0 < x1 and x0 < w1 and s0 < y1 and y0 < s1):
            what = f"{made} goes between planes that do not meet: {a} and {b}"
            tables.fail(what, 'mapping = "nearest", or bounds = [x0, x1, y0, y1] that do', "mapping")


def _check_unmapped(tables: Tables, made: FieldSpec, source: GridSpec, target: GridSpec) -> None:
    """Without a mapping an index means the same point on both sides."""
    is_alike = replace(source, name=target.name) == target and not KINDS[source.kind].is_own
    if source != target and not is_alike:
        both = " and ".join(f"{grid.name!r} ({grid.kind}, {grid.size:,} points)" for grid in (source, target))
        what = f"{made} has no mapping, but its grids differ: {both}"
        tables.fail(what, 'mapping = "nearest", or one grid for both', "name")


def check_weights(tables: Tables, made: FieldSpec, grids: dict[str, GridSpec], here: bool) -> None:
    """That the file is there, and is of these grids' sizes."""
    if made.weights is None or not here:
        return
    from ...grids.weights import Weights

    with tables.blaming("weights", f"{made}: "):
        targets, sources = Weights.sizes(made.weights)
    source, target = grids[made.source_grid or ""], grids[made.target_grid or ""]
    if targets != target.size or sources > source.size:
        what = f"{made.weights.name} maps {sources} points or more to {targets}, but the grids have"
        hint = "make the weights again for these grids"
        tables.fail(f"{what} {source.size} and {target.size}", hint, "weights")


def check_times(tables: Tables, made: FieldSpec, run: RunSpec) -> None:
    if made.every is None:
        return
    for name in (made.source, made.target):
        _check_step(tables, run, name, "every", made.every)
    if not made.every.fits(made.lag):
        lag, every = map(Clock(run.calendar).lasts, (made.lag, made.every))
        tables.fail(f"lag = {lag} is no multiple of every = {every}", "lag = every", "lag")


def _check_step(tables: Tables, run: RunSpec, program: str, key: str, whole: Duration) -> None:
    """That this is a multiple of a program's step; of months, that all of four years are."""
    if (step := run.programs[program].step) is None:
        return
    clock = Clock(run.calendar)
    steps, wholes = Schedule(step, clock=clock), Schedule(whole, clock=clock)
    if not all(divides(1.0, steps.position(wholes.time_of(n))) for n in range(1, 49 if whole.months else 2)):
        what = f"{key} = {clock.lasts(whole)} is no multiple of the step of {program!r}, {clock.lasts(step)}"
        tables.fail(what, f"a multiple of {clock.lasts(step)}", key)


def check_job(tables: Tables, job: JobSpec) -> None:
    """That the fields go together, and the time that the job is for with its programs' steps."""
    tables.where = ("job",)
    for name in () if job.until_s is None else job.programs:
        _check_step(tables, job, name, "stop", Duration(job.until_s or 0.0))
    _check_together(tables, job.fields)
    _check_cycles(tables, job)


def _check_together(tables: Tables, fields: Sequence[FieldSpec]) -> None:
    taken: dict[tuple[str, str], int] = {}  # a program takes a field of a name once, and gives it on one grid
    given: dict[tuple[str, str], int] = {}
    implicit = {(each.source, each.target) for each in fields if each.implicit}
    for number, each in enumerate(fields):
        tables.where = ("field", str(number))
        for name in {each.name, *each.names(())}:
            other = taken.setdefault((name, each.target), number)
            if other != number:
                what = f"{each.target!r} receives two fields called {name!r}"
                tables.fail(what, f"the other one is at line {_line(tables, other)}; rename one", "name")
            if each.source_grid is not None:
                other = given.setdefault((name, each.source), number)
                if (grid := fields[other].source_grid) != each.source_grid:
                    what = f"{each.source!r} gives {name!r} on grid {each.source_grid!r}, and on {grid!r}"
                    hint = "one from_grid for both, or fields of two names"
                    tables.fail(f"{what} (line {_line(tables, other)})", hint, "from_grid")
        if each.implicit and (each.target, each.source) not in implicit:
            hint = f'implicit = true in a field from = "{each.target}", to = "{each.source}"'
            tables.fail(f"{each} is implicit, but no implicit field comes back", hint, "implicit")


def _line(tables: Tables, number: int) -> int:
    return tables.lines.get(("field", str(number)), 0)


def _check_cycles(tables: Tables, job: JobSpec) -> None:
    """Programs get, compute and put; so fields without lag must not go round in a circle of such programs."""
    from graphlib import CycleError, TopologicalSorter

    getters = {each.name for each in job.programs.values() if each.first == "get"}
    prompt = {
        i: each
        for i, each in enumerate(job.fields)
        if each.target in getters and not each.lag.seconds and not each.implicit
    }
    waits: dict[str, set[str]] = {}
    for each in prompt.values():
        waits.setdefault(each.target, set()).add(each.source)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        steps = [{*pair} for pair in pairwise(circle)]
        number = next(i for i, each in prompt.items() if {each.source, each.target} in steps)
        tables.where = ("field", str(number))
        what = f"nobody could begin: {' waits for '.join(circle)}, and no field in this circle has a lag"
        hint = "lag = every for one of them, or implicit = true for all; if a program puts before it gets: "
        tables.fail(what, f'{hint}first = "put" in [program.{circle[0]}]', "name")
