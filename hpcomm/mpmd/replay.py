"""Replay: a program runs alone against recorded partners; gets read files, puts go nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import NoReturn, cast

import numpy as np

from ..communicator.communicator import Communicator
from ..errors import UsageError
from .connect import Declared, own, wished
from .coupled_field import Field
from .coupling.components import IncomingVector, Vector, joined
from .coupling.coupler import Incoming, Outgoing, sent_dtype
from .coupling.coupling_clock import Clock, Schedule
from .coupling.waveform import kinds_of
from .coupling.wire import Part
from .link_context import LinkContext
from .record import Recorder
from .spec.spec_file import FieldSpec, JobSpec


class _Silent:
    """What stands for link.comm: the verbs of a recorded program are not recorded, only its fields."""

    def __init__(self, peer: str, remote_size: int) -> None:
        self._peer, self.remote_size = peer, remote_size
        self.context = SimpleNamespace(partners=None, patience_s=None)

    def __getattr__(self, name: str) -> NoReturn:
        what = f"program '{self._peer}' is only recorded, and of link.comm nothing is"
        raise UsageError(what, f"link.comm.{name}", "fields, by put, get and exchange; or run all programs")


def links(spec: JobSpec, name: str, local: Communicator) -> list[LinkContext]:
    """A link to every other program of the spec, which is only recorded."""
    made = []
    for peer, about in spec.programs.items():
        if peer != name and about.joins:
            silent = cast("Communicator", _Silent(peer, about.ranks))
            made.append(LinkContext(name, peer, local, silent, plain=True))
            made[-1].is_recorded = True
    return made


def connect(
    links: Iterable[LinkContext], declared: Declared, listed: Iterable[FieldSpec] | None, start_s: float
) -> None:
    """Take every field from its file. Without fields in the spec, from whomever the program names."""
    named = [*wished({name: asdict(each.wish) for (_, name), each in declared.items() if each.wish})]
    for link in links:
        given = [FieldSpec(name, link.name, link.peer) for role, name in declared if role == "gives"]
        for each in listed or [*given, *(replace(each, source=link.peer) for each in named)]:
            ends = each.source, each.target
            if ends == (link.name, link.peer) and (fields := own(each, "gives", declared)):
                link.gives[each.name] = _to_nobody(joined(each.name, fields), each, start_s, link.clock)
            elif ends == (link.peer, link.name) and (fields := own(each, "takes", declared)):
                link.takes[each.name] = _from_file(fields, each, link.recorder)
        link.one_by_one = (list(link.gives.values()), list(link.takes.values()))


def _to_nobody(field: Field, each: FieldSpec, start_s: float, clock: Clock) -> Outgoing:
    schedule = Schedule(each.every, each.lag, each.time, start_s, clock)
    part = Part(field, [], sent_dtype(field.dtype, each.time))
    return kinds_of(each, field)[0](each, None, part, schedule)


def _from_file(fields: list[Field], each: FieldSpec, recorder: Recorder | None) -> Incoming:
    assert recorder is not None  # of a replay
    field = joined(each.name, fields, each.member.number if each.member and each.member.gathers else None)
    kept, weights = recorder.weights_file(field.name), None
    if kept.exists():
        from ..grids.weights import Weights

        weights = Weights.load(kept)
    part = Part(field, [(0, slice(0, len(field.points)))], np.dtype(field.dtype))
    kind = IncomingVector if isinstance(field, Vector) else Incoming
    each = replace(each, source_unit=None, target_unit=None)  # what is recorded is converted already
    return kind(each, None, part, Schedule(), weights=weights, recorder=recorder)
