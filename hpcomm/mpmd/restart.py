"""Restart of the coupler's own state: what was put and is not taken yet, means under way, values of fields.

Each program writes a checkpoint of its own; for one without Python, the first one in Python does (guest.py).
Its arrays are the rows of all ranks, one rank behind the other, beside the points of these rows. So any
number of ranks reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose, isnan, nan
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from .._lazy import MPI, NDArray
from ..communicator.communicator import Communicator
from ..core.partition import Partition
from ..core.types import AnyArray
from ..errors import ConfigError, HpcommError, UsageError
from ..fields.field import Field
from ..fields.files import checkpoints, file_folder
from ..job.spec.calendar import Time
from .coupled_field import indices, length
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_clock import NONE, Clock, is_number
from .guest import GuestContext, State, Told
from .link_context import LinkContext
from .route import scattered_points
from .verdict import first_refusal, judge

_FORM = 3  # of a checkpoint: from 2 on, fields are numbered by their names
_NONE_OF_2 = -1  # which stood for NONE in form 2, and no time could have that version
_SHOWN = 8  # times in a message
_MICROSECOND = 1e-6  # to which dates are rounded


class Stamp(NamedTuple):
    """A checkpoint, as it says of itself.

    Attributes:
        seconds: of the model. dates: its calendar and the date of 0 s. fields: sizes, numbers, arrays.
    """

    path: Path
    form: int
    seconds: float
    dates: list[str] | None
    fields: dict[str, Any]


class Restart:
    """State of all fields of a connected program. Public methods are collective over all programs."""

    def __init__(self, comm: Communicator, links: Mapping[str, LinkContext], clock: Clock) -> None:
        self._comm, self._clock, self._links = comm, clock, dict(sorted(links.items()))
        ours = self._links.values()
        # Programs without Python, whose state this one keeps; and all with which it agrees.
        self._guests = [link for link in ours if isinstance(link, GuestContext) and link.keeps]
        self._coupled = [
            link for link in ours if link.couples and (link.gives or link.takes or link in self._guests)
        ]

    def _sides(self) -> Iterator[tuple[str, Outgoing | Incoming]]:
        """What this program gives and takes, in the same order on all ranks, with names for people."""
        for peer, link in self._links.items():
            for name, giving in sorted(link.gives.items()):
                yield f"{name} to {peer}", giving
            for name, taking in sorted(link.takes.items()):
                yield f"{name} from {peer}", taking

    def _hear(self, mine: Told) -> dict[str, Told]:
        """What each program says; one at another time is refused. Collective over all programs."""
        told: dict[str, Told] = {}
        for link in self._coupled:
            versions = {name: giving.version for name, giving in link.gives.items()}
            told[link.peer] = link.swapped(mine._replace(versions=versions), mine.verb)
        here = {self._comm.name: mine} if told and not isnan(mine.at) else {}
        (name, first), *others = [*here.items(), *told.items()] or [("", mine)]
        for peer, its in others:
            if its.at != first.at:
                times = sorted([(name, first.said), (peer, its.said)])
                both = " and ".join(f"{each!r} {first.verb}s at {said}" for each, said in times)
                raise ConfigError(both, mine.verb, "one time for all programs")
        return told

    def _agree(self, verb: str, links: Sequence[LinkContext], wrong: Exception | None) -> None:
        """Go on if no rank of this program and those of links refuses; else raise on all."""
        mine = first_refusal(self._comm, wrong)
        judge(verb, self._comm, wrong, [mine, *(link.swapped(mine, verb) for link in links)])

    def save(self, path: Path, at: float) -> None:
        """Write it, at a time of the model."""
        told, wrong = {}, None
        try:
            told = self._hear(Told("save", at, self._clock.said(at), str(path), {}))
            for peer, its in told.items():
                for name, taking in sorted(self._links[peer].takes.items()):
                    taking.drain(its.versions[name])
            for link in self._coupled:
                for giving in link.gives.values():
                    giving.settle()
        except HpcommError as error:  # the others wait to hear of it
            wrong = error
        self._agree("save", self._coupled, wrong)
        own = [State(name, side.field.points, *side.state()) for name, side in self._sides()]
        self._write(told, {path: own}, at)

    def _write(self, told: Mapping[str, Told], states: dict[Path, list[State]], at: float) -> None:
        """Write these states, by their folders, and those of programs without Python."""
        wrong = None
        states |= {_folder(told, link): link.states() for link in self._guests}
        for folder, each in states.items():
            try:
                _save(folder, self._comm, each, at, self._clock)
            except HpcommError as error:  # those programs wait to hear of it
                wrong = wrong or error
        self._agree("save", self._guests, wrong)

    def restore(self, path: Path, stamp: Stamp) -> None:
        """Set it to what was saved.

        Raises:
            ConfigError: the time, the fields or their grids are not those that were saved.
        """
        at, told, wrong = stamp.seconds, {}, None
        try:
            told = self._hear(Told("restore", at, self._clock.said(at), str(path), {}))
            sides = dict(self._sides())
            found = _restore(self._comm, {name: side.field.points for name, side in sides.items()}, stamp)
            for state in found:
                sides[state.name].resume(dict(state.numbers), dict(state.arrays))
        except HpcommError as error:  # the others wait to hear of it
            wrong = error
        self._restore_guests(told, wrong)

    def _restore_guests(self, told: Mapping[str, Told], wrong: HpcommError | None) -> None:
        """Set the state of programs without Python, unless something is wrong; the end of restore."""
        for link in self._guests:
            states: list[State] = []
            try:
                if wrong is None:
                    stamp = stamp_of(_folder(told, link), self._comm, self._clock, told[link.peer].at)
                    states = _restore(self._comm, link.points(stamp.fields), stamp)
            except HpcommError as error:
                wrong = error
            link.resume(states)
        self._agree("restore", self._coupled, wrong)

    def serve(self) -> None:
        """Save or restore, as programs without Python say, for one without fields."""
        told = self._hear(Told("save or restore", nan, "", "", {}))
        first = next(iter(told.values()))
        if first.verb == "save":
            self._agree("save", self._coupled, None)
            self._write(told, {}, first.at)
        else:
            self._restore_guests(told, None)


def _folder(told: Mapping[str, Told], link: LinkContext) -> Path:
    return Path(told[link.peer].path) / link.peer


def _save(path: Path, comm: Communicator, states: Iterable[State], at: float, clock: Clock) -> None:
    fields: list[Field] = []
    entries: dict[str, Any] = {}
    for i, (name, points, own, arrays) in enumerate(sorted(states, key=lambda state: state.name)):
        numbers = comm.all_reduce_object(own, lambda a, b: {key: max(a[key], b[key]) for key in a})
        entries[name] = {"size": _size(comm, points), "numbers": numbers, "arrays": {}}
        bounds = (0, *np.cumsum(comm.all_gather(np.array(len(points)))).tolist())
        for key, array in {"points": points, **arrays}.items() if bounds[-1] else ():
            whole = Partition((bounds[-1], *array.shape[1:]), {"rank": comm.size}, bounds={0: bounds})
            fields.append(Field(comm, whole, array=np.ascontiguousarray(array), name=f"f{i}.{key}"))
            entries[name]["arrays"][key] = [array.dtype.str, list(array.shape[1:]), bounds[-1]]
    stamp = {"form": _FORM, "seconds": at, "dates": clock.dates, "fields": entries}
    checkpoints.save(path, fields, max(0, round(at)), stamp)  # several times may have one step


def stamp_of(path: Path, comm: Communicator, clock: Clock, time: Time | None) -> Stamp:
    """What was saved for the last time, or for this one; without a spec, clock gets its dates.

    Collective over comm. Raises:
        UsageError: nothing was saved for that time.
    """
    at = clock.seconds(time, "restore")
    near_s = 0.0 if is_number(time) else _MICROSECOND
    found: Stamp | list[float] = file_folder.from_root(comm, "load", path, lambda: _found(path, at, near_s))
    if isinstance(found, list):
        which = "" if at is None else f" for {clock.said(at)}"
        shown = sorted(sorted(found, key=lambda each: abs(each - (at or 0.0)))[:_SHOWN])
        hint = f"a time that it has: {', '.join(map(clock.said, shown))}" + ", ..." * (len(found) > _SHOWN)
        what = f"nothing was saved{which} in {path}"
        raise UsageError(what, "restore", hint if found else "the folder that save was given")
    clock.resume(found.dates, path)
    return found


def _found(path: Path, at: float | None, near_s: float) -> Stamp | list[float]:
    """Of the checkpoints in path that of this time, or of the last one; else the times that there are."""
    steps = checkpoints.steps(path)
    if at is None:
        stamps, damaged = _stamps(path, steps[-1:])
        if damaged:
            raise damaged[0]
        return max(stamps, key=lambda each: each.seconds) if stamps else []
    stamps, damaged = _stamps(path, [step for step in steps if abs(step - max(0, round(at))) <= 1])
    fitting = [each for each in stamps if isclose(each.seconds, at, rel_tol=1e-12, abs_tol=near_s)]
    if fitting:  # of equal ones, the first is the newest
        return min(fitting, key=lambda each: abs(each.seconds - at))
    if damaged:  # it may have been the one
        raise damaged[0]
    return sorted({each.seconds for each in _stamps(path, steps)[0]})


def _stamps(path: Path, steps: Iterable[int]) -> tuple[list[Stamp], list[Exception]]:
    """Those of these steps, the newest of each first; and what is wrong with those that cannot be read."""
    stamps: list[Stamp] = []
    damaged: list[Exception] = []
    for each in (each for step in steps for each in checkpoints.paths(path, step)):
        try:
            said: dict[str, Any] = checkpoints.said(each).metadata
            if not {"seconds", "dates", "fields"} <= said.keys():
                raise ValueError(f"{each} has no state of a coupling")
            stamps.append(Stamp(each, said.get("form", 1), said["seconds"], said["dates"], said["fields"]))
        except (OSError, ValueError) as error:
            damaged.append(error)
    return stamps, damaged


def _restore(comm: Communicator, wanted: Mapping[str, NDArray[np.int64]], stamp: Stamp) -> list[State]:
    """The state of the fields with these points here."""
    entries, path = stamp.fields, stamp.path.parent
    if stamp.form not in (2, _FORM):
        what = f"{path} was saved by another version of hpcomm, which numbered the fields otherwise"
        raise ConfigError(what, "restore", "start anew, from what the models have kept")
    if sorted(entries) != sorted(wanted):
        what = f"{path} has the fields {sorted(entries)}, and this run {sorted(wanted)}"
        raise ConfigError(what, "restore", "the programs and fields that saved it")
    states = []
    for i, (name, points) in enumerate(sorted(wanted.items())):
        entry, size = entries[name], _size(comm, points)
        if entry["size"] != size:
            what = f"field {name} has {entry['size']} points in {path}, and {size} here"
            raise ConfigError(what, "restore", "the grids of the run that saved it")
        blocks = {
            key: Field(comm, Partition((n, *shape), {"rank": comm.size}), dtype=kind, name=f"f{i}.{key}")
            for key, (kind, shape, n) in entry["arrays"].items()
        }
        arrays = {}
        if blocks:  # else nobody has a point
            checkpoints.load_from(stamp.path, [*blocks.values()])
            arrays = {key: np.asarray(each.inner) for key, each in blocks.items()}
            arrays = _moved(comm, arrays.pop("points"), points, arrays, name)
        numbers = entry["numbers"]
        if stamp.form == 2:
            numbers |= {key: NONE for key in ("version", "last") if numbers.get(key) == _NONE_OF_2}
        states.append(State(name, points, numbers, arrays))
    return states


def _size(comm: Communicator, points: NDArray[np.int64]) -> int:
    """How many points the grid has, as far as the field shows."""
    return 1 + int(comm.all_reduce(np.array(points.max(initial=-1)), "max"))


def _moved(
    comm: Communicator,
    points: NDArray[np.int64],
    wanted: NDArray[np.int64],
    arrays: dict[str, AnyArray],
    name: str,
) -> dict[str, AnyArray]:
    """The rows of arrays for the points that are wanted here, from whichever rank has them."""
    chunk = -(-max(_size(comm, points), _size(comm, wanted), 1) // comm.size)
    mpi = cast("MPI.Intracomm", comm.context.mpi_handle)
    route = scattered_points.plan(mpi, points, wanted, chunk)  # of points that were taken twice, one is sent
    sent, at = (np.concatenate([np.arange(0), *(indices(its) for _, its in way)]) for way in route[:2])
    counts, arriving = np.zeros((2, comm.size), np.int64)
    for row, way in ((counts, route.gives), (arriving, route.takes)):
        row[[rank for rank, _ in way]] = [length(its) for _, its in way]
    if comm.all_reduce(len(wanted) - len(at)):
        what = f"points of field {name} were not saved"
        raise ConfigError(what, "restore", "the grids of the run that saved it")
    made = {}
    for key, array in arrays.items():
        made[key] = np.empty((len(wanted), *array.shape[1:]), array.dtype)
        made[key][at] = scattered_points.exchange(mpi, array[sent], counts, arriving)
    return made
