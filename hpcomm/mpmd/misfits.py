"""Misfits of a coupled field: what two programs have declared of it, and does not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.dtypes import BY_NAME
from ..errors import did_you_mean
from ..grids.methods import KINDS, misfit
from .coupling.coupler import sent_dtype
from .spec.spec_file import FieldSpec, Member


def misfits(each: FieldSpec, sides: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What does not fit in what both programs have declared of a field, and what to try."""
    said = []
    for program, role in ((each.source, "gives"), (each.target, "takes")):
        known = sides[program][role]
        names = each.names(known)
        for name in names:
            if name not in known:
                what = f"program {program!r} is to {role.rstrip('s')} {name!r} (field {each})"
                hint = did_you_mean(name, list(known), f"me.{role}({name!r}, ...) in {program}")
                yield f"{what}, but it declares {', '.join(map(repr, known)) or 'none'}", hint
        one, *more = (known[name] for name in names)
        for key in ("kind", "shape", "grid", "areas", "bases") if more else ():
            if one[key] != more[0][key]:
                what = f"{program!r} {role} {' and '.join(map(repr, names))} with different {key}"
                yield f"{what}, and they are the vector {each.name!r}", "both alike"
        of_all = int(each.member is not None and each.member.gathers == (role == "takes"))
        shape = tuple(one["shape"])
        said.append({**one, "shape": (*shape[:of_all], 2, *shape[of_all:])} if more else one)
    given, taken = said
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
    if each.mapping != "none":
        yield from _misfits_of_mapping(each, given, taken)


def _misfits_of_mapping(
    each: FieldSpec, given: dict[str, Any], taken: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """What grids, areas, vectors and fixers lack in what was declared."""
    if None in (given["grid"], taken["grid"]):
        who, verb = (each.source, "gives") if given["grid"] is None else (each.target, "takes")
        what = f"field {each.name!r} is mapped ({each.mapping}), but {who!r} declares no grid with it"
        yield what, f"me.{verb}(name, values, points, grid=hpcomm.regrid.LatLon(...))"
    for method in each.methods:
        wrong = misfit(method, (given["grid"], given["surface"]), (taken["grid"], taken["surface"]))
        if wrong is not None:
            yield f"field {each}: {wrong[1]}", wrong[2]
    if each.uses_areas and given["areas"] != taken["areas"]:
        has, lacks = (each.source, each.target) if given["areas"] else (each.target, each.source)
        what = f"field {each.name!r} is declared with areas= by {has!r}, and without by {lacks!r}"
        yield what, "at both, in one unit: of grids by formula areas=grid.areas(points) * radius**2"
    if each.vector and (given["surface"], tuple(given["shape"])[:1]) != ("sphere", (2,)):
        what = f"field {each.name!r} is a vector, but not of two components per point, on a sphere"
        yield what, "values of shape (points, 2): to the east, to the north; on a plane no vector is needed"
    for program, its in ((each.source, given), (each.target, taken)):
        if its["bases"] and not each.vector:
            what = f"field {each.name!r} is declared with bases= by {program!r}, but is no vector"
            yield what, "vector = true, or no bases="
        if each.conserve != "none" and not its["areas"] and KINDS[its["grid"]].has != "cells":
            what = f"field {each.name!r} is to conserve its integral, but points of {program!r} have no areas"
            yield what, "areas= of me.gives and me.takes"


def _of_one(
    member: Member, given: dict[str, Any], taken: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """What is declared of a field, without an axis of members; and whether it has one where it must."""
    one, every = (given, taken) if member.gathers else (taken, given)
    has_axis = every["shape"] == (member.of, *one["shape"]) and "is_plain" not in every
    every = {**every, "shape": one["shape"]} if has_axis else every
    fits = has_axis or not member.gathers or "is_plain" in every  # which guest.py refuses
    return *((one, every) if member.gathers else (every, one)), fits


def _misfit_of_kinds(each: FieldSpec, given: dict[str, Any], taken: dict[str, Any]) -> tuple[str, str] | None:
    """Why what arrives would not mean what was sent: halves travel as bits, numpy cuts floats to integers."""
    source, target, time = np.dtype(given["dtype"]), np.dtype(taken["dtype"]), each.time
    as_bits = any(kind in BY_NAME and BY_NAME[kind].kind in "hq" for kind in (given["kind"], taken["kind"]))
    ways = (each.mapping, time, each.implicit, each.source_unit, given["kind"])
    changes = ways != ("none", "instant", False, each.target_unit, taken["kind"])
    loses = not np.can_cast(source, target, "same_kind")
    fits = np.can_cast(sent_dtype(source, time), target, "same_kind" if source.kind in "fc" else "safe")
    cuts, is_end, there = _cuts(each), time in ("min", "max"), f"at {each.target!r}"
    floats = "a floating dtype on both sides"
    rules = (
        (as_bits and changes, "such fields can only be moved as they are", "float32 on both sides"),
        (time == "mean" and source.kind in "biu", "a mean of integers would be cut", floats),
        (is_end and source.kind == "c", f"complex numbers have no {time}", "a field for each part"),
        (loses, "values would be lost on the way", "the same dtype on both sides"),
        (time == "sum" and not fits, "a sum may need more bits", f"int64 or float64 {there}"),
        (
            cuts and target.kind in "biu",
            f"what {cuts} makes are no whole numbers",
            f"a floating dtype {there}",
        ),
    )
    return next(((why, hint) for is_so, why, hint in rules if is_so), None)


def _cuts(each: FieldSpec) -> str:
    """What makes fractions of whole numbers on the way of a field; "" if nothing does."""
    mixes = next((method for method in each.methods if method not in ("none", "nearest")), None)
    makers = {
        "weights from a file": each.weights is not None,
        f"mapping {mixes!r}": mixes is not None,
        "time 'linear'": each.time == "linear",
        "an implicit coupling": each.implicit,
        "vectors": each.vector,
        "a global fixer": each.conserve != "none",
        "a conversion of units": each.source_unit != each.target_unit,
    }
    return next((what for what, is_so in makers.items() if is_so), "")
