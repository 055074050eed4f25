"""Contents of a spec: grids and fields, beside its programs; and fields that programs declare without one.

spec_reader.py reads a spec from a file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..._lazy import np
from ...errors import ConfigError
from ...grids.methods import AMOUNTS, stack
from ...grids.methods import GridSpec as GridSpec
from ...job.spec.calendar import NO_TIME, Duration
from ...job.spec.programs import RunSpec
from ...job.spec.schema import FIELD, misfit


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
    vector: bool | tuple[str, str] = False  # values are components, or of two fields of these names, one each
    conserve: str = "none"  # or "global", "glbpos": the integral is set, by adding or by multiplying
    member: Member | None = None  # None: both ends are members, or none is

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.mapping, *self.then)

    @property
    def ends(self) -> tuple[tuple[str, str, str | None], ...]:
        """What both programs do with it: ("gives" or "takes", program, grid of the spec)."""
        return ("gives", self.source, self.source_grid), ("takes", self.target, self.target_grid)

    def names(self, declared: Container[str]) -> tuple[str, ...]:
        """What it is called at a program that declares these: of a vector, both components may be there."""
        return self.vector if isinstance(self.vector, tuple) and self.name not in declared else (self.name,)

    @property
    def uses_areas(self) -> bool:
        """Whether the programs' own areas count, so that both or none must have said them."""
        by_area = self.weights is None and any(each.startswith("cons") for each in self.methods)
        return by_area or self.conserve != "none"

    def __str__(self) -> str:
        return f"{self.name} ({self.source} -> {self.target})"


def stacked(said: Mapping[str, Any], where: str, whose: str) -> dict[str, Any]:
    """What FieldSpec has of a mapping as users write it: "none", a method, or a list; and of a vector."""
    mapping, end, pair = (said[key] for key in ("mapping", "uncovered", "vector"))
    methods, end = (("none",), end) if mapping == "none" else stack(mapping, where, end, f"{whose}: ")
    pair = tuple(pair) if isinstance(pair, list) else pair
    return {"mapping": methods[0], "then": methods[1:], "uncovered": end, "vector": pair}


def misfit_of_options(each: FieldSpec) -> tuple[str, str, str] | None:
    """(key, what is wrong, what to do) of an option that the mapping of a field has no use for."""
    conserves, normalises, vector = each.conserve != "none", each.normalise != "fracarea", each.vector
    is_file, unmapped, method = each.weights is not None, each.mapping == "none", each.mapping
    amounts, extreme = method in AMOUNTS, each.time in ("min", "max")
    is_wave = each.implicit and each.every is not None
    wave = "but is implicit with a period: a waveform, which is linear within the window"
    no_area = {"conservative", "conservative2"}.isdisjoint(each.methods)
    out, linear = "take this line out", 'time = "linear", and no lag; or no every'
    anew, only = f"{out}, and make the weights with it", ", which only"
    one = "vector = true, and one field of shape (points, 2)"
    area, near = 'mapping = "conservative"', 'mapping = "to_nearest"'
    rules = (  # whether an option is set, what does not go with it, its key, words behind that, what to do
        (conserves, unmapped, "conserve", ", but no mapping", out),
        (conserves, amounts, "conserve", f", but {method} keeps the sum by itself", out),
        (vector, conserves, "vector", ", but conserve, which is for numbers", out),
        (vector, unmapped, "vector", ", but no mapping that turns them", out),
        (vector, extreme, "vector", f", but time = {each.time!r} is for numbers", out),
        (isinstance(vector, tuple), each.implicit, "vector", " of two fields, but is implicit", one),
        (each.lag.seconds, is_wave, "lag", f" = {each.lag.said(False)}, {wave}", linear),
        (each.time != "linear", is_wave, "time", f" = {each.time!r}, {wave}", linear),
        (each.radius, is_file, "radius", ", but weights from a file", anew),
        (normalises, is_file, "normalise", ", but weights from a file", anew),
        (normalises, no_area, "normalise", f"{only} conservative mappings use", area),
        (each.radius, method != "to_nearest", "radius", f"{only} to_nearest uses", near),
        (each.nan != "spread", amounts, "nan", f" = {each.nan!r}, but {method} adds amounts up", out),
    )
    wrong = ((key, key + words, hint) for is_set, bars, key, words, hint in rules if is_set and bars)
    return next(wrong, None)


def wished(name: str, program: str, options: Mapping[str, Any]) -> FieldSpec:
    """The field that program takes, checked as one of a spec is; options: by the keys of a spec.

    Raises:
        ConfigError: one of them is not valid.
    """
    whose = f"field {name!r}"
    found = {key: each.item() if isinstance(each, np.generic) else each for key, each in options.items()}
    found |= stacked(found, "takes", whose)
    for key, value in found.items():
        skipped = key in ("mapping", "then") or (key, value) == ("every", None)
        if not skipped and (wrong := misfit(key, value, FIELD["properties"][key])):
            raise ConfigError(f"{whose}: {wrong[0]}", "takes", wrong[1])
    every, lag = found["every"], found["lag"]
    try:
        found |= {"every": None if every is None else Duration.of(every), "lag": Duration.of(lag)}
    except ConfigError as error:
        raise ConfigError(f"{whose}: {error.what}", "takes", error.hint) from None
    made = FieldSpec(name, "", program, timeout_s=found.pop("timeout"), **found)
    if misuse := misfit_of_options(made):
        raise ConfigError(f"{whose} has {misuse[1]}", "takes", misuse[2])
    if made.every is None and (made.lag.seconds or made.time != "instant"):
        raise ConfigError(f"{whose}: time and lag need every", "takes", "every=3600.0")
    if made.every is not None and not made.every.fits(made.lag):
        what = f"{whose}: lag = {made.lag.said(False)} is no multiple of every = {made.every.said(False)}"
        raise ConfigError(what, "takes", "lag=every")
    return made


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
