"""Connection of two programs: they agree once what goes where, by which mapping and route."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..communicator.communicator import Communicator
from ..core.dtypes import BY_NAME
from ..errors import ConfigError, HpcommError, did_you_mean
from ..grids.methods import KINDS, misfit
from ..grids.radians import Ends
from ..grids.vectors import in_space, on_sphere
from ..job.spec.calendar import check_months
from .coupled_field import Field, MemberField
from .coupling.coupler import Arrival, Outgoing, Turn, sent_dtype
from .coupling.coupling_channel import Channel, Turns
from .coupling.coupling_clock import NEAR, Clock, Schedule
from .coupling.fixer import Fixer
from .coupling.unit import conversion_of
from .coupling.waveform import kinds_of
from .coupling.wire import FIRST_TAG, Lane, Part, Wire
from .link import Link, Planned
from .record import Recorder
from .route import coupled_route
from .spec.spec_file import FieldSpec, GridSpec, JobSpec, Member

_TOGETHER = (2, 3)  # tags of what exchange() sends in one message: from the first program, from the second


def take_grids(spec: JobSpec, program: str, fields: Mapping[tuple[str, str], Field]) -> None:
    """Give mapped fields the grids that the spec says, or see that they have these.

    Args:
        fields: of program, by ("from" or "to", name).
    """
    for each in spec.fields:
        for side, end, name in (
            ("from", each.source, each.source_grid),
            ("to", each.target, each.target_grid),
        ):
            field = fields.get((side, each.name))
            if end == program and field is not None and each.mapping != "none" and name is not None:
                _take_grid(field, spec.grids[name], f"{spec.path.name} has it {side} grid")


def _take_grid(field: Field, said: GridSpec, where: str) -> None:
    from ..regrid import from_spec
    from ..regrid import open as open_grid

    if field.grid is None:
        if said.file is not None:
            try:
                field.grid = open_grid(said.file, said.entry).cells(field.points)
            except HpcommError as error:
                error.what = f"field {field.name!r} on grid {said.name!r}: {error.what}"
                raise
        elif KINDS[said.kind].is_own:
            return  # only the program knows the coordinates; whoever checks both sides says so
        else:
            field.grid = from_spec(said)
        field.check_grid("connect")
    mine = field.grid
    is_same = (mine.kind, bool(mine.sphere)) == (said.kind, said.sphere)
    if is_same and mine.is_own:
        is_same = field.points.max(initial=-1) < said.size
    elif is_same:
        is_same = mine.is_same(from_spec(said))
    if not is_same:
        shape = " x ".join(map(str, said.shape)) if said.file is None else f"in {said.file.name}"
        other = f"{where} {said.name!r} ({said.kind}, {shape})"
        what = f"field {field.name!r} is declared on another grid: {other}"
        raise _wrong(what, f"grid=me.grid({said.name!r}), or nothing")


def described(
    gives: dict[str, Field], takes: dict[str, tuple[Field, FieldSpec]], start_s: float, clock: Clock
) -> dict[str, object]:
    """What a program tells the others of its fields, of its calendar, and when it starts."""
    return {
        "start": start_s,
        "said": clock.said(start_s),
        "calendar": clock.calendar and str(clock.calendar),
        "gives": {name: _entry(field) for name, field in gives.items()},
        "takes": {name: {**_entry(field), "wish": asdict(wish)} for name, (field, wish) in takes.items()},
    }


def _entry(field: Field) -> dict[str, object]:
    return {
        "dtype": field.dtype.str,
        "kind": field.kind.name,
        "shape": field.shape,
        "grid": None if field.grid is None else field.grid.kind,
        "surface": "" if field.grid is None else field.grid.surface,
        "areas": field.areas is not None,
        "bases": field.bases is not None,
    }


def unlike_first(
    comm: Communicator, fields: Mapping[tuple[str, str], Field], start: str
) -> ConfigError | None:
    """Why what this rank declares is not what the first one does; None: it is. Collective over a program."""
    declared = [str(sorted(name for end, name in fields if end == side)) for side in ("from", "to")] + [start]
    for word in ("areas", "bases"):
        has = (name for (_, name), field in fields.items() if getattr(field, word) is not None)
        declared.append(f", with {word} of {sorted(has)}")
    first = comm.broadcast_object(declared)
    if declared == first:
        return None
    words = "gives {0} and takes {1}, from {2} on"
    words += "".join(f"{{{i}}}" for i in (3, 4) if first[i] != declared[i])
    what = f"this rank {words.format(*declared)}, but rank 0 {words.format(*first)}"
    hint = "the same fields and time on all ranks; without points, values of shape (0, ...)"
    return ConfigError(what, "connect", hint)


class Both(Protocol):
    """Two programs."""

    @property
    def name(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def clock(self) -> Clock: ...


def agreed(
    link: Both, mine: dict[str, Any], theirs: dict[str, Any], listed: tuple[FieldSpec, ...] | None
) -> list[FieldSpec]:
    """The fields between two programs, in the same order on both sides."""
    sides = {link.name: mine, link.peer: theirs}
    if listed is not None:
        found = [each for each in listed if {each.source, each.target} == set(sides)]
    else:
        found = [
            FieldSpec(
                **sides[target]["takes"][name]["wish"] | {"name": name, "source": source, "target": target}
            )
            for source, target in ((link.name, link.peer), (link.peer, link.name))
            for name in sides[target]["takes"]
            if name in sides[source]["gives"]
        ]
    periods = [each.every.seconds for each in found if each.every is not None]
    calendars = [f"{program!r} has {sides[program]['calendar']}" for program in sorted(sides)]
    if mine["calendar"] != theirs["calendar"] and None not in (mine["calendar"], theirs["calendar"]):
        raise _wrong(" and ".join(calendars), "one calendar and one start for both")
    if periods and abs(mine["start"] - theirs["start"]) > NEAR * min(periods):
        starts = [f"{program!r} starts at {sides[program]['said']}" for program in sorted(sides)]
        what = f"{' and '.join(starts)}, and fields with a period go between them"
        raise _wrong(what, "me.connect(time=), the same in both; without it a program starts at 0 s")
    for each in found:
        if each.every is not None and each.every.months:
            check_months(link.clock.calendar, f"every of field {each.name!r}")
        for what, hint in _misfits(each, sides):
            raise _wrong(what, hint)
        if each.target == link.name:  # has it what a conversion or a mapping needs? The giver would wait
            conversion_of(each)
            if each.mapping != "none":
                from ..grids.weights import sparse_matrices

                sparse_matrices()
    return sorted(found, key=lambda each: (each.name, each.source))


def check_takes(
    program: str,
    takes: Iterable[str],
    fields: list[FieldSpec],
    theirs: dict[str, Any],
    listed: Iterable[FieldSpec] | None,
) -> None:
    """That each field that a program takes is given by one other, of which theirs tells."""
    for name in takes:
        coming = [each for each in fields if each.name == name and each.target == program]
        givers = [each.source for each in coming]
        if len(givers) == 1 or (givers and all(each.member for each in coming)):
            continue
        who = " and ".join(map(repr, givers)) or "nobody"
        what = f"{program!r} takes a field {name!r}, which {who} gives"
        hint = f"[[field]] with name = {name!r} and to = {program!r}; or another name here"
        if listed is None:
            hint = "one giver for each field; names must be the same on both sides"
        others = [each for each in listed or () if each.name == name]
        if not givers and others:
            ways = " and ".join(f"{each.source!r} gives it to {each.target!r}" for each in others)
            what += f": in the spec {ways}"
        elif not givers:
            told = [f"{peer!r} gives {sorted(its['gives'])}" for peer, its in theirs.items()]
            what += f": {'; '.join(told)}"
        raise ConfigError(what, "connect", hint)


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(what, "connect", hint)


def _misfits(each: FieldSpec, sides: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What does not fit in what both programs have declared of a field, and what to try."""
    for program, role in ((each.source, "gives"), (each.target, "takes")):
        if each.name not in sides[program][role]:
            known = list(sides[program][role])
            what = f"the spec lets program {program!r} {role.rstrip('s')} a field {each.name!r}"
            hint = did_you_mean(each.name, known, f"me.{role}({each.name!r}, ...) in {program}")
            yield f"{what}, but it declares {', '.join(map(repr, known)) or 'none'}", hint
    given, taken = sides[each.source]["gives"][each.name], sides[each.target]["takes"][each.name]
    shapes, fits = (tuple(given["shape"]), tuple(taken["shape"])), True
    hint = "values of shape (points, ...), the same behind the points on both sides"
    if each.member is not None:
        hint = f"(points, ...) in each member, and (points, {each.member.of}, ...) for all {each.member.of}"
        given, taken, fits = _of_one(each.member, given, taken)
    if given["shape"] != taken["shape"] or not fits:
        what = f"{shapes[0]} per point at {each.source!r} and {shapes[1]} at {each.target!r}"
        yield f"field {each.name!r} has {what}", hint
    if (why := _misfit_of_kinds(each, given, taken)) is not None:
        both = f"{given['kind']} at {each.source!r} and {taken['kind']} at {each.target!r}"
        yield f"field {each.name!r} is {both}: {why[0]}", why[1]
    if each.mapping == "none":
        return
    if None in (given["grid"], taken["grid"]):
        who, verb = (each.source, "gives") if given["grid"] is None else (each.target, "takes")
        what = f"field {each.name!r} is mapped ({each.mapping}), but {who!r} declares no grid with it"
        yield what, f"me.{verb}(name, values, points, grid=hpcomm.regrid.LatLon(...))"
    for method in each.methods:
        wrong = misfit(method, (given["grid"], given["surface"]), (taken["grid"], taken["surface"]))
        if wrong is not None:
            yield f"field {each}: {wrong[1]}", wrong[2]
    yield from _misfits_of_options(each, given, taken)


def _of_one(
    member: Member, given: dict[str, Any], taken: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """What is declared of a field, without an axis of members; and whether it has one where it must."""
    one, every = (given, taken) if member.gathers else (taken, given)
    has_axis = every["shape"] == (member.of, *one["shape"]) and "is_plain" not in every
    every = {**every, "shape": one["shape"]} if has_axis else every
    fits = has_axis or not member.gathers or "is_plain" in every  # which guest.py refuses
    return *((one, every) if member.gathers else (every, one)), fits


def _misfits_of_options(
    each: FieldSpec, given: dict[str, Any], taken: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """What areas, vectors and fixers lack in what was declared."""
    if each.uses_areas and given["areas"] != taken["areas"]:
        has, lacks = (each.source, each.target) if given["areas"] else (each.target, each.source)
        what = f"field {each.name!r} is declared with areas= by {has!r}, and without by {lacks!r}"
        yield what, "at both, in one unit: of grids by formula areas=grid.areas(points) * radius**2"
    if each.vector and not (given["surface"] == "sphere" and tuple(given["shape"])[:1] == (2,)):
        what = f"field {each.name!r} is a vector, but not of two components per point, on a sphere"
        yield what, "values of shape (points, 2): to the east, to the north; on a plane no vector is needed"
    for program, its in ((each.source, given), (each.target, taken)):
        if its["bases"] and not each.vector:
            what = f"field {each.name!r} is declared with bases= by {program!r}, but is no vector"
            yield what, "vector = true, or no bases="
        if each.conserve != "none" and not its["areas"] and KINDS[its["grid"]].has != "cells":
            what = f"field {each.name!r} is to conserve its integral, but points of {program!r} have no areas"
            yield what, "areas= of me.gives and me.takes"


def _misfit_of_kinds(each: FieldSpec, given: dict[str, Any], taken: dict[str, Any]) -> tuple[str, str] | None:
    """Why what arrives would not mean what was sent: halves travel as bits, numpy cuts floats to integers."""
    kinds = {given["kind"], taken["kind"]}
    source, target = np.dtype(given["dtype"]), np.dtype(taken["dtype"])
    as_bits = any(kind in BY_NAME and BY_NAME[kind].kind in "hq" for kind in kinds)
    as_it_is = (each.mapping, each.time, each.source_unit) == ("none", "instant", each.target_unit)
    computes = each.implicit or not as_it_is
    if as_bits and (computes or len(kinds) > 1):
        return "such fields can only be moved as they are", "float32 on both sides"
    if each.time == "mean" and source.kind in "biu":
        return "a mean of integers would be cut", "a floating dtype on both sides"
    if each.time in ("min", "max") and source.kind == "c":
        return f"complex numbers have no {each.time}", "a field for each part"
    if not np.can_cast(source, target, "same_kind"):
        return "values would be lost on the way", "the same dtype on both sides"
    summed = sent_dtype(source, each.time)
    if each.time == "sum" and not np.can_cast(summed, target, "same_kind" if source.kind in "fc" else "safe"):
        return "a sum may need more bits", f"int64 or float64 at {each.target!r}"
    if target.kind in "biu" and (cuts := _cuts(each)):
        return f"what {cuts} makes are no whole numbers", f"a floating dtype at {each.target!r}"
    return None


def _cuts(each: FieldSpec) -> str:
    """What makes fractions of whole numbers on the way of a field; "" if nothing does."""
    mixes = [method for method in each.methods if method not in ("none", "nearest")]
    if each.weights is not None or mixes:
        return "weights from a file" if each.weights is not None else f"mapping {mixes[0]!r}"
    if each.time == "linear":
        return "time 'linear'"
    if each.implicit:
        return "an implicit coupling"
    if each.vector or each.conserve != "none":
        return "vectors" if each.vector else "a global fixer"
    return "a conversion of units" if each.source_unit != each.target_unit else ""


class Declared(NamedTuple):
    """Fields that this program gives and takes, and what the other one says of its own."""

    gives: dict[str, Field]
    takes: dict[str, tuple[Field, FieldSpec]]
    theirs: dict[str, Any]


def connect(
    link: Link,
    fields: list[FieldSpec],
    declared: Declared,
    recorder: Recorder | None,
    start_s: float,
    steps: Mapping[str, float | None],
) -> None:
    """Plan all fields of a link. Collective over both programs.

    Args:
        steps: of the programs, as far as they are known.
    """
    given, taken, theirs = declared
    wire = link.wire = Wire(link.comm, link.peer, is_first=link.is_first, plain=link.is_plain)
    todo = []
    for each in fields:
        is_giver = each.source == link.name
        field = given[each.name] if is_giver else taken[each.name][0]
        its = theirs["takes" if is_giver else "gives"][each.name]
        if each.member is not None and len(field.shape) > len(its["shape"]):
            field = MemberField(field, each.member.number)
        todo.append((each, field, is_giver))
    planned = link.planned(wire, todo, _plan, start_s, steps)
    for number, (each, (field, weights, rows, device_side)) in enumerate(zip(fields, planned, strict=True)):
        # Nothing here needs other ranks, so one that fails keeps nobody.
        is_giver = each.source == link.name
        schedule = Schedule(each.every, each.lag, each.time, start_s, link.clock)
        lane = Lane(wire, FIRST_TAG + number, each.timeout_s)
        dtype = field.dtype if is_giver else np.dtype(theirs["gives"][each.name]["dtype"])
        sent = np.result_type(dtype, np.float64) if each.vector else sent_dtype(dtype, each.time)
        gives, takes = kinds_of(each)
        part = Part(field, rows, sent, device_side if gives is Outgoing else frozenset())
        turn = _turn(each, field, is_giver)
        if is_giver:
            ahead = schedule.ahead(steps.get(each.target))
            link.gives[each.name] = gives(lane, part, schedule, ahead, _fixer(link, each, part, None), turn)
        else:
            fixer = _fixer(link, each, part, weights)
            arrival = Arrival(weights, conversion_of(each), each.uncovered, each.nan, fixer, turn)
            link.takes[each.name] = takes(lane, part, schedule, arrival, recorder)
            if recorder is not None:
                recorder.keep_weights(field.name, weights)
        side = link.gives[each.name] if is_giver else link.takes[each.name]
        side.mapping = ", ".join(each.methods)
    link.timeout_s = max((each.timeout_s for each in fields), default=link.timeout_s)
    _bundle(link, wire, fields, recorder is not None or link.is_plain)


def _plan(wire: Wire, each: FieldSpec, field: Field, is_giver: bool) -> Planned:
    """A plan of a field. Collective over both programs; errors are on every rank."""
    weights = None if each.mapping == "none" else _weights(wire, each, field, is_giver)
    wanted = field.points if weights is None else weights.sources
    made = coupled_route.plan(wire.mpi, field.points if is_giver else None, None if is_giver else wanted)
    lack = made.lack
    if lack.doubled:
        what = f"{lack.doubled} points of field {each} are given twice, the first is {lack.first_doubled}"
        raise _wrong(what, "each point has one owner: points=... without the halo")
    if lack.missing:
        what = f"{lack.missing} points of field {each} are taken and given by nobody, the first is"
        hint = "give these points too, take fewer, or name a mapping between two grids"
        raise _wrong(f"{what} {lack.first_missing}", hint)
    if each.conserve != "none":
        doubled = coupled_route.plan(wire.mpi, None if is_giver else field.points, None).lack
        if doubled.doubled:
            what = f"field {each} is to conserve its integral, but {doubled.doubled} points are taken twice"
            hint = "points=... without the halo, which the program updates itself"
            raise _wrong(f"{what}, the first is {doubled.first_doubled}", hint)
    rows = [(rank - wire.shift, where) for rank, where in (made.gives if is_giver else made.takes)]
    return field, weights, rows, wire.device_side(field.values)


def _fixer(link: Link, each: FieldSpec, part: Part, weights: Any) -> Fixer | None:
    """What sets the integral, where a field wants that. weights: None at the giver."""
    field = part.field
    if each.conserve == "none" or field.grid is None:
        return None
    area = field.grid.areas(field.points) if field.areas is None else field.areas
    ranks = [0]
    if weights is None:  # the first rank sends the sum to all
        ranks = [*range(link.size)] if link.local.rank == 0 else []
    else:  # what only a further mapping reaches counts whole
        reached = np.diff(weights.matrix.indptr) > 0
        area = area * np.where(weights.fraction > 0, weights.valid, reached)
    return Fixer(each.conserve, link.local, field, part.dtype, area, ranks)


def _turn(each: FieldSpec, field: Field, is_giver: bool) -> Turn | None:
    """What turns vectors into space, or back."""
    if not each.vector or field.grid is None:
        return None
    function = in_space if is_giver else on_sphere
    return partial(function, x=field.grid.centres(field.points), bases=field.bases)


def _weights(wire: Wire, each: FieldSpec, field: Field, is_giver: bool) -> Any:
    """Of a mapping; None at the giver. Collective over both programs."""
    from ..grids.remap import weights_between
    from ..grids.weights import Weights

    found, wrong = None, None
    if each.weights is None:
        try:
            found = weights_between(
                wire.mpi,
                field.grid,
                field.points,
                is_giver,
                each.methods,
                each.neighbours,
                radius=each.radius,
                normalise=each.normalise,
                areas=field.areas if each.uses_areas else None,
            )
        except HpcommError as error:
            error.what = f"field {each}: {error.what}"
            raise
    elif not is_giver:
        try:
            found = Weights.load(each.weights).part(field.points)
        except HpcommError as error:  # the others wait to hear of it
            wrong = error
    lost = field.points[:0] if found is None else field.points[found.uncovered]
    told = np.empty((wire.mpi.size, 2), np.int64)  # how many points each rank has lost, and the first
    wire.mpi.Allgather(np.array([len(lost) if wrong is None else -1, lost[0] if len(lost) else -1]), told)
    if (told[:, 0] < 0).any():
        said = wire.mpi.bcast(wrong and (wrong.what, wrong.hint), int(np.argmax(told[:, 0] < 0)))
        raise _wrong(f"field {each}: {said[0]}", said[1])
    count = told[:, 0].sum()
    if count and each.uncovered == "error":
        first = told[told[:, 0] > 0][0, 1]
        what = f"{count} points of field {each} are reached by nothing that is given, the first is {first}"
        hint = f'mapping = ["{each.mapping}", "nearest"], or "keep" or a value in place of "nearest"'
        raise _wrong(what, hint)
    return found


def in_radians(
    comm: Communicator, fields: Mapping[tuple[str, str], Field], listed: Iterable[FieldSpec]
) -> list[str]:
    """What there is to say of grids whose coordinates look like radians. Collective over a program.

    Args:
        fields: of the program, by ("from" or "to", name).
    """
    names = {("from", each.source, each.name): each.source_grid for each in listed}
    names |= {("to", each.target, each.name): each.target_grid for each in listed}
    mine = {key: Ends.of(field.grid) for key, field in fields.items()}
    both = comm.all_reduce_object(mine, lambda a, b: {key: a[key].joined(b[key]) for key in a if key in b})
    told = []
    for (side, field), ends in both.items():
        grid = names.get((side, comm.name, field))
        if doubt := ends.doubt():
            told.append(f"{f'grid {grid!r}' if grid else 'the grid'} of field {field!r} has {doubt}")
    return told


def _bundle(link: Link, wire: Wire, fields: list[FieldSpec], apart: bool) -> None:
    """One channel each way for everything that exchange() can send as it is; the rest goes one by one."""
    bundled = [
        each
        for each in fields
        if (each.mapping, each.every, each.source_unit) == ("none", None, each.target_unit)
        if not apart
    ]
    in_ = [each.name for each in bundled if each.target == link.name]
    out = [each.name for each in bundled if each.source == link.name]
    link.one_by_one = (
        [giving for name, giving in link.gives.items() if name not in out],
        [taking for name, taking in link.takes.items() if name not in in_],
    )
    timeout_s = max((each.timeout_s for each in bundled), default=0.0)
    mine, its = _TOGETHER if link.is_first else _TOGETHER[::-1]
    come, go = [link.takes[name].part for name in in_], [link.gives[name].part for name in out]
    link.together = (
        Channel(Lane(wire, its, timeout_s), come, sends=False) if come else None,
        Turns(lambda: Channel(Lane(wire, mine, timeout_s), go, sends=True), 2) if go else None,
    )
