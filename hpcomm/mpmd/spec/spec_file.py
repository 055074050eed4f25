"""Contents of a spec: grids and fields, beside its programs; spec_reader.py reads it from a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from ...grids.methods import AMOUNTS, stack
from ...grids.methods import GridSpec as GridSpec
from ...job.spec.calendar import NO_TIME, Duration
from ...job.spec.programs import RunSpec


class Member(NamedTuple):
    """Which of how many members is at one end of a field, and whether the other end takes those of all."""

    number: int
    of: int
    gathers: bool


@dataclass(frozen=True)
class FieldSpec:
    """A field that goes from one program to another. Times of the model; those in seconds end with _s."""

    name: str
    source: str
    target: str
    mapping: str = "none"
    source_grid: str | None = None
    target_grid: str | None = None
    every: Duration | None = None
    lag: Duration = NO_TIME
    time: str = "instant"
    source_unit: str | None = None
    target_unit: str | None = None
    neighbours: int = 4
    implicit: bool = False
    timeout_s: float = 300.0
    weights: Path | None = None  # of the mapping, kept in a file; None: to be computed
    uncovered: str | float = "error"  # or "keep", or a value: of points that a mapping does not reach
    nan: str = "spread"  # or "renormalise": what a nan of the source does to points that take it
    then: tuple[str, ...] = ()  # mappings of points that the first one does not reach
    radius: float = 0.0  # of to_nearest
    normalise: str = "fracarea"  # of conservative mappings, or "destarea"
    vector: bool = False  # values are components to the east and to the north
    conserve: str = "none"  # or "global", "glbpos": the integral is set, by adding or by multiplying
    member: Member | None = None  # None: both ends are members, or none is

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.mapping, *self.then)

    @property
    def uses_areas(self) -> bool:
        """Whether the programs' own areas count, so that both or none must have said them."""
        by_area = self.weights is None and any(each.startswith("cons") for each in self.methods)
        return by_area or self.conserve != "none"

    def __str__(self) -> str:
        return f"{self.name} ({self.source} -> {self.target})"


def stacked(mapping: object, uncovered: str | float, where: str, whose: str) -> dict[str, Any]:
    """What FieldSpec has of a mapping as users write it: "none", a method, or a list."""
    found = (("none",), uncovered) if mapping == "none" else stack(mapping, where, uncovered, f"{whose}: ")
    return {"mapping": found[0][0], "then": found[0][1:], "uncovered": found[1]}


def misfit_of_options(each: FieldSpec) -> tuple[str, str, str] | None:
    """(key, what is wrong, what to do) of an option that the mapping of a field has no use for."""
    if each.conserve != "none" and each.mapping in ("none", *AMOUNTS):
        why = "but no mapping" if each.mapping == "none" else f"but {each.mapping} keeps the sum by itself"
        return "conserve", f"conserve, {why}", "take this line out"
    if each.vector and (each.mapping == "none" or each.conserve != "none"):
        why = "conserve, which is for numbers" if each.conserve != "none" else "no mapping that turns them"
        return "vector", f"vector, but {why}", "take this line out"
    if each.vector and each.time in ("min", "max"):
        return "vector", f"vector, but time = {each.time!r} is for numbers", "take this line out"
    if each.implicit and each.every is not None and (each.time != "linear" or each.lag.seconds):
        why = f"lag = {each.lag.said(False)}" if each.lag.seconds else f"time = {each.time!r}"
        what = f"{why}, but is implicit with a period: a waveform, which is linear within the window"
        return ("lag" if each.lag.seconds else "time"), what, 'time = "linear", and no lag; or no every'
    is_default = not each.radius and each.normalise == "fracarea"
    if each.weights is not None and not is_default:
        key = "radius" if each.radius else "normalise"
        return key, f"{key}, but weights from a file", "take this line out, and make the weights with it"
    if each.normalise != "fracarea" and not {"conservative", "conservative2"} & {*each.methods}:
        return "normalise", "normalise, which only conservative mappings use", 'mapping = "conservative"'
    if each.radius and each.mapping != "to_nearest":
        return "radius", "radius, which only to_nearest uses", 'mapping = "to_nearest"'
    if each.nan != "spread" and each.mapping in AMOUNTS:
        return "nan", f"nan = {each.nan!r}, but {each.mapping} adds amounts up", "take this line out"
    return None


@dataclass(frozen=True)
class JobSpec(RunSpec):
    """All of it."""

    grids: dict[str, GridSpec] = field(default_factory=dict)
    fields: tuple[FieldSpec, ...] = ()
    written: tuple[FieldSpec, ...] = ()  # as the file has them, between ensembles

    def with_members(self) -> Self:
        fields = tuple(one for each in self.fields for one in self._copies(each))
        return replace(super().with_members(), fields=fields, written=self.fields)

    def _copies(self, each: FieldSpec) -> Iterator[FieldSpec]:
        """A field between members of the same number, or between each member and a program that is none."""
        ends = self.programs[each.source], self.programs[each.target]
        source, target = ([program.name for program in end.copies()] for end in ends)
        gathers, scatters = (bool(end.members) for end in ends)
        count = max(len(source), len(target))
        for n in range(count):
            member = Member(n + 1, count, gathers) if gathers != scatters else None
            yield replace(each, source=source[n * gathers], target=target[n * scatters], member=member)
