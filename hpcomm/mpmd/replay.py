"""Replay: a program runs alone against recorded partners; gets read files, puts go nowhere."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..communicator.communicator import Communicator
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_clock import Schedule
from .link import Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .coupled_field import Field
    from .record import Recorder
    from .spec.spec_file import FieldSpec, JobSpec

_LATER = (
    "isend",
    "irecv",
    "isend_object",
    "irecv_object",
    "isend_ragged",
    "irecv_ragged",
)  # return a request, as async_op=True makes all


class Absent(Link):
    """A link to a program that is only recorded."""

    def report(self) -> str:
        """Nothing can be asked of it."""
        return f"{self.peer} is only recorded"


class Played:
    """The verbs of link.comm: each returns what it returned then. Its attributes are a quiet link's."""

    is_inter, is_closed, check = True, False, "off"
    partners = patience_s = timeout = timeout_s = None

    def __init__(self, name: str, local: Communicator, remote_size: int, recorder: Recorder) -> None:
        self.name, self.rank, self.size, self.remote_size = name, local.rank, local.size, remote_size
        self._recorder = recorder

    def __getattr__(self, verb: str) -> Any:
        if not callable(function := getattr(Communicator, verb)):
            raise AttributeError(f"'{self.name}' is replayed, and has no {verb}", name=verb, obj=self)
        return partial(self._play, verb, inspect.signature(function))

    def _play(self, verb: str, signature: inspect.Signature, *args: object, **options: object) -> object:
        given = signature.bind(None, *args, **options).arguments
        result = partial(self._result, verb, given.get("out"))
        return _Later(result) if verb in _LATER or given.get("async_op") else result()

    def _result(self, verb: str, out: Any) -> object:
        result = self._recorder.next_result(verb)
        if out is None or result is None:
            return result
        out[...] = result
        return out


class _Later:
    """What a request of then returned."""

    def __init__(self, result: partial[object]) -> None:
        self._result: partial[Any] | None = result
        self._made: Any = None

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> object:
        if self._result is not None:
            self._made, self._result = self._result(), None
        return self._made


def links(spec: JobSpec, name: str, local: Communicator, recorder: Recorder) -> list[Link]:
    """A link to every other program of the spec."""
    made: list[Link] = []
    for peer, about in spec.programs.items():
        if peer != name and about.joins:
            comm = cast("Communicator", Played(f"{name}<->{peer}", local, about.ranks, recorder))
            made.append(Absent(name, peer, local, comm, is_first=name < peer, plain=True))
    return made


def connect(
    links: Iterable[Link],
    gives: dict[str, Field],
    takes: dict[str, tuple[Field, FieldSpec]],
    spec: JobSpec | None,
    recorder: Recorder,
) -> None:
    """Take every field from its file. Without fields in the spec, from whomever the program names."""
    for link in links:
        listed = {(each.name, each.source, each.target): each for each in (spec.fields if spec else ())}
        for name, field in gives.items():
            each = listed.get((name, link.name, link.peer))
            if each or not listed:
                schedule = Schedule(each.every_s, each.lag_s, each.time) if each else Schedule()
                link.gives[name] = Outgoing(None, field, [], schedule, 0)
        for name, (field, wish) in takes.items():
            if (name, link.peer, link.name) in listed or not listed:
                wish = listed.get((name, link.peer, link.name), wish)
                link.takes[name] = _from_file(field, recorder, wish.uncovered)
        link.one_by_one = (list(link.gives.values()), list(link.takes.values()))


def _from_file(field: Field, recorder: Recorder, uncovered: str | float) -> Incoming:
    kept, weights = recorder.weights_file(field.name), None
    if kept.exists():
        from ..grids import remap

        weights = remap.Weights.load(kept)
    return Incoming(
        None,
        field,
        [(0, slice(0, len(field.points)))],
        Schedule(),
        0,
        dtype=np.dtype(field.dtype),
        weights=weights,
        recorder=recorder,
        uncovered=uncovered,
    )
