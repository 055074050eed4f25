"""Connection of two programs: they agree once what goes where, by which mapping and route."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np

from ..communicator.communicator import Communicator
from ..errors import ConfigError, HpcommError
from ..grids.methods import KINDS
from ..grids.radians import Ends
from ..grids.vectors import in_space, on_sphere
from ..job.spec.calendar import check_months
from .coupled_field import Field, check_grid, check_values
from .coupling.components import Vector, joined
from .coupling.coupler import Turn, sent_dtype
from .coupling.coupling_channel import Channel, Turns
from .coupling.coupling_clock import NEAR, Clock, Schedule
from .coupling.fixer import Fixer
from .coupling.unit import conversion_of
from .coupling.waveform import OutgoingWaveform, kinds_of
from .coupling.wire import FIRST_TAG, Lane, Part, Wire
from .link_context import LinkContext, Planned
from .misfits import misfits
from .route import coupled_route
from .spec.spec_file import FieldSpec, GridSpec, JobSpec

Declared: TypeAlias = Mapping[tuple[str, str], Field]  # of a program, by ("gives" or "takes", name)
_TOGETHER = (2, 3)  # tags of what exchange() sends in one message: from the first program, from the second


def check_fields(spec: JobSpec | None, program: str, fields: Declared) -> None:
    """What a rank can see alone of its fields."""
    for field in fields.values():
        check_values(field, field.values)
    if spec is not None:
        take_grids(spec, program, fields)


def take_grids(spec: JobSpec, program: str, fields: Declared) -> None:
    """Give mapped fields of program the grids that the spec says, or see that they have these."""
    for each in spec.fields:
        for role, end, name in each.ends:
            if end == program and each.mapping != "none" and name is not None:
                for field in own(each, role, fields):
                    way = "from" if role == "gives" else "to"
                    _take_grid(field, spec.grids[name], f"{spec.path.name} has it {way} grid")


def own(each: FieldSpec, role: str, fields: Declared) -> list[Field]:
    """What a program with these fields declares of one in that role."""
    names = each.names({name for at, name in fields if at == role})
    return [fields[role, name] for name in names if (role, name) in fields]


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
        check_grid(field, "connect")
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


def described(fields: Declared, start_s: float, clock: Clock) -> dict[str, Any]:
    """What a program tells the others of its fields, of its calendar, and when it starts."""
    calendar = clock.calendar and str(clock.calendar)
    said: dict[str, Any] = {"start": start_s, "said": clock.said(start_s), "calendar": calendar}
    said |= {"gives": {}, "takes": {}}
    for (role, name), field in fields.items():
        said[role][name] = _entry(field)
    return said


def _entry(field: Field) -> dict[str, object]:
    return {
        "dtype": field.dtype.str,
        "kind": field.kind.name,
        "shape": field.shape,
        "grid": None if field.grid is None else field.grid.kind,
        "surface": "" if field.grid is None else field.grid.surface,
        "areas": field.areas is not None,
        "bases": field.bases is not None,
        "wish": field.wish and asdict(field.wish),
    }


def unlike_first(comm: Communicator, fields: Declared, start: str) -> ConfigError | None:
    """Why what this rank declares is not what the first one does; None: it is. Collective over a program."""
    declared = [str(sorted(name for end, name in fields if end == role)) for role in ("gives", "takes")]
    declared.append(start)
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


def agreed(
    name: str, sides: dict[str, dict[str, Any]], clock: Clock, listed: tuple[FieldSpec, ...] | None
) -> list[FieldSpec]:
    """The fields between two programs, of which name is one, in the same order on both sides."""
    found = _between(sides, listed)
    _check_times(sides, [each.every.seconds for each in found if each.every is not None])
    for each in found:
        if each.every is not None and each.every.months:
            check_months(clock.calendar, f"every of field {each.name!r}")
        for what, hint in misfits(each, sides):
            raise _wrong(what, hint)
        if each.target == name:  # has it what a conversion or a mapping needs? The giver would wait
            conversion_of(each)
            if each.mapping != "none":
                from ..grids.weights import sparse_matrices

                sparse_matrices()
    return sorted(found, key=lambda each: (each.name, each.source))


def _between(sides: dict[str, dict[str, Any]], listed: tuple[FieldSpec, ...] | None) -> list[FieldSpec]:
    if listed is not None:
        return [each for each in listed if {each.source, each.target} == set(sides)]
    return [
        replace(each, source=source, target=target)
        for source, target in permutations(sides)
        for each in wished({name: its["wish"] for name, its in sides[target]["takes"].items()})
        if not sides[source]["gives"].keys().isdisjoint(each.names(sides[source]["gives"]))
    ]


def wished(wishes: Mapping[str, dict[str, Any]]) -> Iterator[FieldSpec]:
    """The fields that a program takes, where no spec lists them: of two components their vector."""
    for name, wish in wishes.items():
        pair = wish["vector"]
        if not isinstance(pair, tuple) or name not in pair:
            yield FieldSpec(**wish)
            continue
        for other in set(pair) & wishes.keys():
            if apart := [key for key in wish if key != "name" and wish[key] != wishes[other][key]]:
                what = f"{pair[0]!r} and {pair[1]!r} are one vector, but are taken with different {apart[0]}"
                raise _wrong(what, f"vector={[*pair]} and the same mapping, times and units for both")
        if name == pair[0] or pair[0] not in wishes:
            yield FieldSpec(**{**wish, "name": ",".join(pair)})


def _check_times(sides: dict[str, dict[str, Any]], periods: Iterable[float]) -> None:
    """That two programs have one calendar, and, where there are periods, one start."""
    (a, mine), (b, theirs) = sorted(sides.items())
    if mine["calendar"] != theirs["calendar"] and None not in (mine["calendar"], theirs["calendar"]):
        what = f"{a!r} has {mine['calendar']} and {b!r} has {theirs['calendar']}"
        raise _wrong(what, "one calendar and one start for both")
    if any(abs(mine["start"] - theirs["start"]) > NEAR * period for period in periods):
        starts = f"{a!r} starts at {mine['said']} and {b!r} starts at {theirs['said']}"
        what = f"{starts}, and fields with a period go between them"
        raise _wrong(what, "me.connect(time=), the same in both; without it a program starts at 0 s")


def check_vectors(program: str, declared: Declared, fields: Iterable[FieldSpec]) -> None:
    """That both components of each vector are alike."""
    for each in fields:
        for role, end, _ in each.ends:
            if end == program and len(both := own(each, role, declared)) > 1:
                Vector(each.name, *both)


def check_givers(
    program: str,
    takes: Collection[str],
    fields: list[FieldSpec],
    theirs: dict[str, Any],
    listed: Iterable[FieldSpec] | None,
) -> None:
    """That each field that a program takes has one giver. theirs: what the others say."""
    for name in takes:
        givers = [each for each in fields if each.target == program and name in each.names(takes)]
        if len(givers) == 1 or (givers and all(each.member for each in givers)):
            continue
        who = " and ".join(repr(each.source) for each in givers) or "nobody"
        what = f"{program!r} takes a field {name!r}, which {who} gives"
        hint = f"[[field]] with name = {name!r} and to = {program!r}; or another name here"
        if listed is None:
            hint = "one giver for each field; names must be the same on both sides"
        if not givers:
            elsewhere = [each for each in listed or () if each.name == name]
            ways = [f"{each.source!r} gives it to {each.target!r}" for each in elsewhere]
            given = "; ".join(f"{peer!r} gives {sorted(its['gives'])}" for peer, its in theirs.items())
            what += f": in the spec {' and '.join(ways)}" if ways else f": {given}"
        raise _wrong(what, hint)


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(what, "connect", hint)


def _end(
    each: FieldSpec, program: str, mine: Declared, theirs: dict[str, Any]
) -> tuple[FieldSpec, Field, bool, np.dtype[Any]]:
    """(each, program's field, of one for all members the part of one; whether it gives; what travels)"""
    is_giver = each.source == program
    role, its_role = ("gives", "takes") if is_giver else ("takes", "gives")
    fields, known = own(each, role, mine), theirs[its_role]
    its = [known[name] for name in each.names(known)]
    of_all = len(fields) + len(fields[0].shape) > len(its) + len(its[0]["shape"])
    field = joined(each.name, fields, each.member.number if each.member is not None and of_all else None)
    dtype = field.dtype if is_giver else np.dtype(its[0]["dtype"])
    sent = np.result_type(dtype, np.float64) if each.vector else sent_dtype(dtype, each.time)
    return each, field, is_giver, sent


def connect(
    link: LinkContext,
    fields: list[FieldSpec],
    declared: tuple[Declared, dict[str, Any]],
    start_s: float,
    steps: Mapping[str, float | None],
) -> None:
    """Plan all fields of a link. Collective over both programs.

    declared: what this program gives and takes, and what the other one says. steps: those that are known.
    """
    wire = link.wire = Wire(link.comm, link.peer, is_first=link.is_first, plain=link.is_plain)
    ends = [_end(each, link.name, *declared) for each in fields]
    planned = link.planned(wire, [end[:3] for end in ends], _plan, steps)
    for number, ((each, field, is_giver, sent), plan) in enumerate(zip(ends, planned, strict=True)):
        # Nothing here needs other ranks, so one that fails keeps nobody.
        schedule = Schedule(each.every, each.lag, each.time, start_s, link.clock)
        lane = Lane(wire, FIRST_TAG + number, each.timeout_s)
        outgoing, incoming = kinds_of(each, field)
        is_wave, (_, weights, rows, device_side) = issubclass(outgoing, OutgoingWaveform), plan
        part = Part(field, rows, sent, frozenset() if is_wave else device_side)
        way = (
            each,
            lane,
            part,
            schedule,
            _fixer(link, each, field, sent, weights),
            _turn(each, field, is_giver),
        )
        if is_giver:
            link.gives[each.name] = outgoing(*way, schedule.ahead(steps.get(each.target)))
        else:
            link.takes[each.name] = incoming(*way, weights, link.recorder)
            if link.recorder is not None:
                link.recorder.keep_weights(field.name, weights)
    _bundle(link, wire, fields, link.recorder is not None or link.is_plain)


def _plan(wire: Wire, each: FieldSpec, field: Field, is_giver: bool) -> Planned:
    """A plan of a field. Collective over both programs; errors are on every rank."""
    weights = None if each.mapping == "none" else _weights(wire, each, field, is_giver)
    wanted = field.points if weights is None else weights.sources
    made = coupled_route.plan(wire.mpi, *((field.points, None) if is_giver else (None, wanted)))
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


def _fixer(
    link: LinkContext, each: FieldSpec, field: Field, sent: np.dtype[Any], weights: Any
) -> Fixer | None:
    """What sets the integral, where a field wants that. weights: None at the giver."""
    if each.conserve == "none" or field.grid is None:
        return None
    area = field.grid.areas(field.points) if field.areas is None else field.areas
    ranks = [0]
    if weights is None:  # the first rank sends the sum to all
        ranks = [*range(link.comm.remote_size)] if link.local.rank == 0 else []
    else:  # what only a further mapping reaches counts whole
        reached = np.diff(weights.matrix.indptr) > 0
        area = area * np.where(weights.fraction > 0, weights.valid, reached)
    return Fixer(each.conserve, link.local, Part(field, [], sent), area, ranks)


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
        ends = wire.mpi, field.grid, field.points, is_giver
        how: dict[str, Any] = {"radius": each.radius, "normalise": each.normalise}
        how["areas"] = field.areas if each.uses_areas else None
        try:
            found = weights_between(*ends, each.methods, each.neighbours, **how)
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
    wire.mpi.Allgather(np.array([len(lost) if wrong is None else -1, next(iter(lost), -1)]), told)
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


def in_radians(comm: Communicator, fields: Declared, listed: Iterable[FieldSpec]) -> list[str]:
    """What there is to say of grids whose coordinates look like radians. Collective over a program."""
    names = {(role, end, each.name): grid for each in listed for role, end, grid in each.ends}
    mine = {key: Ends.of(field.grid) for key, field in fields.items()}
    both = comm.all_reduce_object(mine, lambda a, b: {key: a[key].joined(b[key]) for key in a if key in b})
    told = []
    for (role, field), ends in both.items():
        grid = names.get((role, comm.name, field))
        if doubt := ends.doubt():
            told.append(f"{f'grid {grid!r}' if grid else 'the grid'} of field {field!r} has {doubt}")
    return told


def _bundle(link: LinkContext, wire: Wire, fields: list[FieldSpec], apart: bool) -> None:
    """One channel each way for everything that exchange() can send as it is; the rest goes one by one."""
    bundled = {
        (each.source, each.name): each.timeout_s
        for each in (() if apart else fields)
        if (each.mapping, each.every, each.source_unit) == ("none", None, each.target_unit)
    }
    gives = [side for name, side in link.gives.items() if (link.name, name) not in bundled]
    takes = [side for name, side in link.takes.items() if (link.peer, name) not in bundled]
    link.one_by_one = gives, takes
    go = [side.part for side in link.gives.values() if side not in gives]
    come = [side.part for side in link.takes.values() if side not in takes]
    timeout_s = max(bundled.values(), default=0.0)
    mine, its = _TOGETHER if link.is_first else _TOGETHER[::-1]
    link.together = (
        Channel(Lane(wire, its, timeout_s), come, sends=False) if come else None,
        Turns(lambda: Channel(Lane(wire, mine, timeout_s), go, sends=True), 2) if go else None,
    )
