"""Link to a program without Python, in C or Fortran, whose side is fortran/hpcomm.c: this one plans for both.

Rank r there says its points and coordinates to rank r % n here, which plays it where both programs plan
(virtual_ranks.py), and gets back what it is to send or to receive, and weights. The first program in Python,
by its name, also plans fields between two that are without.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple, cast

from .._lazy import MPI, np
from ..agree import runtime
from ..communicator.communicator import Communicator
from ..core.types import AnyArray, Ints
from ..errors import ConfigError, HpcommError, PeerFailedError, WaitTimeoutError
from ..grids.grid import Grid
from ..regrid import Cells, LatLon, PointCloud
from .connect import agreed, take_grids
from .coupled_field import Field, indices, length
from .coupling.coupler import sent_dtype
from .coupling.coupling_clock import Schedule
from .coupling.unit import conversion_of as conversion
from .coupling.wire import FIRST_TAG, Wire
from .link_context import LinkContext, Plan, Planned
from .spec.spec_file import FieldSpec, GridSpec, JobSpec
from .verdict import Refusal
from .virtual_ranks import VirtualRank, VirtualRanks

_VERSION = "2"  # of what both sides say to each other
_TOLD, _NUMBERS, _COORDINATES, _PLANS, _ROWS, _WEIGHTS = range(32300, 32306)  # tags
_KINDS = ("", "points", "cells", "latlon")  # of grids, by hpcomm.h's numbers; "": numbers alone
_KEPT = ("version", "count", "first", "last", "waiting")  # numbers of a field's state, as they are told
_PAUSE_S = 1e-3


class _Row(NamedTuple):
    """What the program says of a field: its kind of number, and its grid."""

    role: str
    name: str
    kind: int
    width: int
    grid: int
    form: str
    shape: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape of a point's values."""
        return (self.width,) if self.width > 1 else ()


class Told(NamedTuple):
    """What a program says of a save or a restore.

    at: the time, in seconds; nan: that of the others. said: for people. versions: what was put last.
    """

    verb: str
    at: float
    said: str
    path: str
    versions: Mapping[str, int]


class State(NamedTuple):
    """That of a field at one side, on this rank: numbers, and arrays of a row for each point."""

    name: str
    points: Ints
    numbers: Mapping[str, int]
    arrays: Mapping[str, AnyArray]


class _Side(NamedTuple):
    """A program of two: its ranks, and the fields of those that this process plays, by rank."""

    name: str
    size: int
    fields: Mapping[int, Mapping[tuple[str, str], Field]]


class Stage(NamedTuple):
    """What a rank plans on, as coupling.wire.Wire has it."""

    mpi: MPI.Intracomm
    shift: int

    def device_side(self, _: object) -> frozenset[int]:
        return frozenset()


class GuestContext(LinkContext):
    """That of a link to such a program. Fields go over it, and MPI's own calls."""

    _rows: Sequence[_Row] = ()
    _version = ""

    def __init__(self, name: str, peer: str, local: Communicator, comm: Communicator, *, plain: bool) -> None:
        super().__init__(name, peer, local, comm, plain=plain)
        self.couples = True
        self._given: dict[str, str] = {}  # kinds of what is given here
        self._said: dict[str, Any] = {}  # what it gives and takes
        self._fields: dict[int, dict[tuple[str, str], Field]] = {}  # by rank there
        self._between: dict[str, list[FieldSpec]] = {}  # with others such, planned here, by their names
        self._lines, self._plans = "", [list[Planned]() for _ in self._played]
        if comm.context.partners is not None:
            runtime.farewells.append(comm.context.partners.say_farewell)

    @property
    def _played(self) -> range:
        """The ranks there that this one plans for."""
        return range(self.local.rank, self.comm.remote_size, self.local.size)

    def declare(self, mine: dict[str, Any], wrong: Refusal | None, spec: JobSpec | None) -> tuple[Any, None]:
        self._given = {name: its["kind"] for name, its in mine["gives"].items()}
        words = f"'{self.name}' gives {sorted(mine['gives'])} and takes {sorted(mine['takes'])}"
        text = self.swapped(words if wrong is None else wrong, "connect") or ""
        (self._version, start), *rows = (line.split("\t") for line in text.splitlines())
        self._rows = [
            _Row(role, name, int(kind), int(width), int(grid), _KINDS[int(form)], (int(nlat), int(nlon)))
            for role, name, kind, width, grid, form, nlat, nlon in rows
        ]
        begin = {"start": float(start), "said": f"{float(start):g} s", "calendar": None}
        said: dict[str, Any] = {**begin, "gives": {}, "takes": {}}
        for row in self._rows:
            wish = {"wish": asdict(FieldSpec(row.name, "", self.peer))} if row.role == "takes" else {}
            said[row.role][row.name] = self._entry(row, spec) | wish
        self._said = said
        return said, None

    def _entry(self, row: _Row, spec: JobSpec | None) -> dict[str, Any]:
        form, surface = row.form, "sphere" if row.form else ""
        for said in [] if spec is None else self._grids(row, spec):
            if not form or (form == "latlon" and row.shape == said.shape):
                form, surface = said.kind, said.surface
        dtype = np.dtype(f"f{row.kind}")
        return {
            "dtype": dtype.str,
            "kind": dtype.name,
            "shape": row.numbers,
            "grid": form or None,
            "surface": surface,
            "areas": False,
            "bases": False,
            "is_plain": True,
        }

    def _grids(self, row: _Row, spec: JobSpec) -> Iterator[GridSpec]:
        """Those of the spec for a field of it."""
        side = "source" if row.role == "gives" else "target"
        for each in spec.fields:
            grid = getattr(each, f"{side}_grid")
            if (each.name, getattr(each, side)) == (row.name, self.peer) and grid is not None:
                yield spec.grids[grid]

    def _check(self, each: FieldSpec) -> None:
        """Refuse what the program cannot do of a field."""
        kind = self._given.get(each.name, "float64") if each.source == self.name else "float64"
        member = each.member
        lacks = {
            "a vector": each.vector,
            "an implicit coupling": each.implicit,
            "one of all members": member is not None and member.gathers and each.target != self.name,
            "one with a period of months": each.every is not None and each.every.months > 0,
            f"one with conserve = {each.conserve!r}": each.conserve != "none",
            f"one with nan = {each.nan!r}": each.nan != "spread",
            f"one of {kind}": kind not in ("float32", "float64"),
        }
        for what, is_so in lacks.items():
            if is_so:
                what = f"field {each} is {what}, but '{self.peer}' is a program without Python"
                raise ConfigError(what, "connect", "docs/fortran.md says what such programs can do")

    @property
    def _others(self) -> list[GuestContext]:
        """Other such programs, whose fields with this one are planned here: by the first one in Python."""
        links = self.links.values() if self.keeps else ()
        return [link for link in links if isinstance(link, GuestContext) and link.peer != self.peer]

    @property
    def keeps(self) -> bool:
        """Whether this is the first program in Python, by its name, which does for it what one must do."""
        return all(link.is_plain or self.name < link.peer for link in self.links.values())

    def hear_points(self, fields: Sequence[FieldSpec], spec: JobSpec | None) -> None:
        """Make fields of what the ranks say that this one plays."""
        listed = (spec.fields or None) if spec is not None else None
        self._between = {}
        for other in self._others:
            both = {self.peer: self._said, other.peer: other._said}
            self._between[other.peer] = agreed(self.peer, both, self.clock, listed)
        for each in (*fields, *chain.from_iterable(self._between.values())):
            self._check(each)
        if self._version != _VERSION:
            what = f"program '{self.peer}' was built with hpcomm.c {self._version}, and this is {_VERSION}"
            raise ConfigError(what, "connect", "build it anew: hpcomm fortran --path")
        for rank in self._played:
            numbers, lonlat = (
                self._message(rank, tag, "connect").view(kind)
                for tag, kind in ((_NUMBERS, np.int64), (_COORDINATES, np.float64))
            )
            self._fields[rank] = self._made(rank, numbers, lonlat, spec)
            if spec is not None:
                take_grids(spec, self.peer, self._fields[rank])

    def _made(
        self, rank: int, numbers: AnyArray, lonlat: AnyArray, spec: JobSpec | None
    ) -> dict[tuple[str, str], Field]:
        parts: list[tuple[AnyArray, AnyArray]] = []  # points and coordinates of each grid
        while len(numbers):
            (count, corners), numbers = numbers[:2].tolist(), numbers[2:]
            parts.append((numbers[:count], lonlat[: 2 * count * corners].reshape(count, corners, 2)))
            numbers, lonlat = numbers[count:], lonlat[2 * count * corners :]
        made = {}
        for row in self._rows:
            points, x = parts[row.grid]
            grid: Grid | None = None
            if row.form in ("points", "cells"):
                grid = PointCloud(x[:, 0]) if row.form == "points" else Cells(x)
            elif row.form and self._entry(row, spec)["grid"] == "latlon":
                grid = LatLon(*row.shape)
            values = np.empty((len(points), *row.numbers), f"f{row.kind}")
            try:
                made[row.role, row.name] = Field(row.name, values, points, grid, row.role)
            except HpcommError as error:
                error.what = f"rank {rank} of program '{self.peer}': {error.what}"
                raise
        return made

    def planned(
        self,
        wire: Wire,
        todo: Sequence[tuple[FieldSpec, Field, bool]],
        plan: Plan,
        steps: Mapping[str, float | None],
    ) -> list[Planned]:
        ends = {("gives" if is_giver else "takes", each.name): field for each, field, is_giver in todo}
        here, planned = _Side(self.name, self.local.size, {self.local.rank: ends}), []
        try:
            for number, (each, field, is_giver) in enumerate(todo):
                done = self._play(plan, each, here, self._end)
                planned.append(done[self.name, self.local.rank])
                self._keep(number, each, done, field.dtype if is_giver else self._dtype(each), steps)
            for other in self._others:
                for number, each in enumerate(self._between[other.peer] if other.peer > self.peer else ()):
                    done = self._play(plan, each, self._end, other._end)
                    source = self if each.source == self.peer else other
                    for side in (self, other):
                        side._keep(number, each, done, source._dtype(each), steps)
        except HpcommError:  # what that is, is told afterwards
            self._lines, self._plans = "", [[] for _ in self._played]
            raise
        finally:
            for rank, plans in zip(self._played, self._plans, strict=True):
                self._send_plans(rank, self._lines, plans)
        return planned

    @property
    def _end(self) -> _Side:
        return _Side(self.peer, self.comm.remote_size, self._fields)

    def _play(self, plan: Plan, each: FieldSpec, *both: _Side) -> dict[tuple[str, int], Planned]:
        """Plans of a field, by program and rank, of this process. Collective over this program."""
        first, second = sorted(both)  # as their ranks are on the communicator of both
        begins = {first.name: 0, second.name: first.size}
        acts = {}
        for side, other in ((first, second), (second, first)):
            role = "gives" if each.source == side.name else "takes"
            for rank, fields in side.fields.items():
                acts[begins[side.name] + rank] = side.name, rank, begins[other.name], fields[role, each.name]

        def act(player: VirtualRank) -> Planned:
            program, _, shift, field = acts[player.rank]
            return plan(Stage(cast("MPI.Intracomm", player), shift), each, field, each.source == program)

        players = [rank % self.local.size for side in (first, second) for rank in range(side.size)]
        mpi = cast("MPI.Intracomm", self.local.context.mpi_handle)
        done = VirtualRanks(mpi, players).play(dict.fromkeys(acts, act))
        return {acts[rank][:2]: planned for rank, planned in done.items()}

    def _dtype(self, each: FieldSpec) -> np.dtype[Any]:
        """Of what the program gives."""
        made: np.dtype[Any] = np.dtype(self._said["gives"][each.name]["dtype"])
        return made

    def _keep(
        self,
        number: int,
        each: FieldSpec,
        done: Mapping[tuple[str, int], Planned],
        given: np.dtype[Any],
        steps: Mapping[str, float | None],
    ) -> None:
        """Keep plans of a field, the number-th of both programs, and what the program has to know of it."""
        start_s: float = self._said["start"]
        role, other = ("gives", each.target) if each.source == self.peer else ("takes", each.source)
        sent = sent_dtype(given, each.time)
        schedule = Schedule(each.every, each.lag, each.time, start_s, self.clock)
        factor, offset = conversion(each)
        period = -1.0 if each.every is None else each.every.seconds
        words = [other, role, each.name, FIRST_TAG + number, period, each.lag.seconds, each.time]
        words += [schedule.ahead(steps.get(each.target)), each.timeout_s, sent.itemsize, factor, offset]
        fill = "keep" if isinstance(each.uncovered, str) else float(each.uncovered)
        self._lines += "\t".join(map(str, [*words, fill, start_s])) + "\n"
        for rank, plans in zip(self._played, self._plans, strict=True):
            plans.append(done[self.peer, rank])

    def _send_plans(self, rank: int, lines: str, plans: Sequence[Planned]) -> None:
        numbers: list[Any] = [np.empty(0, np.int64)]
        values: list[Any] = [np.empty(0)]
        for _, weights, rows, _ in plans:
            numbers.append([len(rows)])
            for partner, where in rows:
                numbers += [[partner, length(where)], indices(where)]
            if weights is None:
                numbers.append([-1])
            else:
                numbers += [[weights.columns], weights.matrix.indptr, weights.matrix.indices]
                values.append(weights.matrix.data)
        rows_, weights_ = np.concatenate(numbers).astype(np.int64), np.concatenate(values).astype(float)
        for tag, sent in ((_PLANS, lines.encode()), (_ROWS, rows_), (_WEIGHTS, weights_)):
            self._inter.Send([sent, MPI.BYTE], rank, tag)

    def states(self) -> list[State]:
        """The state of each of its fields, on the ranks that this one plays. Collective over this program."""
        lines = [self._message(rank, _PLANS, "save").tobytes().decode() for rank in self._played]
        rows = [self._message(rank, _WEIGHTS, "save").view(np.float64) for rank in self._played]
        first: str = self.local.broadcast_object(lines[0] if self.local.rank == 0 else "")
        made = []
        for line in first.splitlines():
            role, name, other, *said = line.split("\t")
            version, joined, begin, last, waits = map(int, said)
            keys, numbers = ["joined"] * (joined > 0), {"version": version, "count": joined}
            if role == "takes":
                keys = ["older"] * (joined > 1) + ["newer"] * (joined > 0)
                keys += [f"next{i}" for i in range(waits)]
                numbers = {"version": version, "first": begin, "last": last, "waiting": waits}
            fields, shape = self._sides(role, name)
            arrays = {}
            for key in keys:
                parts = [np.empty((0, *shape))]
                for i, field in enumerate(fields):
                    mine, rows[i] = np.split(rows[i], [len(field.points) * int(np.prod(shape))])
                    parts.append(mine.reshape(-1, *shape))
                arrays[key] = np.concatenate(parts)
            state = f"{name} to {other}" if role == "gives" else f"{name} from {other}"
            made.append(State(state, _points(fields), numbers, arrays))
        return made

    def points(self, states: Iterable[str]) -> dict[str, Ints]:
        """Those of the fields that are meant, on the ranks that this one plays."""
        return {name: _points(self._sides(*_words(name)[:2])[0]) for name in states}

    def resume(self, states: Iterable[State]) -> None:
        """Tell its ranks the state with which they go on."""
        lines, rows = "", [[np.empty(0)] for _ in self._played]
        for state in states:
            role, name, other = _words(state.name)
            arrays = [state.arrays[key] for key in ("joined", "older", "newer") if key in state.arrays]
            numbers = {"first": 0, "last": -1, "waiting": 0, "count": len(arrays)} | dict(state.numbers)
            words = [role, name, other, *map(numbers.__getitem__, _KEPT)]
            lines += "\t".join(map(str, words)) + "\n"
            arrays += [state.arrays[f"next{i}"] for i in range(numbers["waiting"])]
            ends = np.cumsum([0, *(len(field.points) for field in self._sides(role, name)[0])])
            for array in arrays:
                for i, mine in enumerate(rows):
                    mine.append(array[ends[i] : ends[i + 1]].astype(np.float64).ravel())
        for rank, mine in zip(self._played, rows, strict=True):
            for tag, sent in ((_PLANS, lines.encode()), (_WEIGHTS, np.concatenate(mine))):
                self._inter.Send([sent, MPI.BYTE], rank, tag)

    def _sides(self, role: str, name: str) -> tuple[list[Field], tuple[int, ...]]:
        """A field on the ranks that this one plays, and the shape of a point's values."""
        row = next((row for row in self._rows if (row.role, row.name) == (role, name)), None)
        if row is None:
            what = f"program '{self.peer}' has saved a field {name!r}, and {role} none of that name now"
            raise ConfigError(what, "restore", "the programs and fields that saved it")
        fields = [self._fields[rank][role, name] for rank in self._played]
        return fields, row.numbers

    def is_asking(self) -> bool:
        """Whether its first rank has something to say. On the first rank here."""
        return bool(self._inter.Iprobe(0, _TOLD))

    @property
    def _inter(self) -> Any:
        """For words and plans: no verb of objects uses it."""
        return self.comm.context.object_comm

    def _swapped(self, mine: Any, verb: str) -> Any:
        """What the first rank there says, for what this one does: text, or a refusal. None: nothing."""
        text = mine or ""
        if isinstance(mine, Told):
            text = f"{mine.verb}\t{float(mine.at)!r}\t{mine.path}\n"
            text += "".join(f"{name}\t{version}\n" for name, version in mine.versions.items())
        elif isinstance(mine, Refusal):
            text = f"rank {mine.rank} of program '{mine.program}' refused its part of {verb}: {mine.what}"
            text += f"\n  try:   there: {mine.hint}" * bool(mine.hint)
        going = self._inter.Isend([text.encode(), MPI.BYTE], 0, _TOLD)
        said = self._message(0, _TOLD, verb).tobytes().decode(errors="replace")
        going.Wait()
        if isinstance(mine, Told):
            (word, at, path), *rows = (line.split("\t") for line in said.splitlines())
            versions = {name: int(version) for name, version in rows}
            return Told(word, float(at), self.clock.said(float(at)), path, versions)
        return said or None

    def _message(self, source: int, tag: int, verb: str) -> AnyArray:
        """The next one from a rank there, as bytes."""
        status, partners = MPI.Status(), self.comm.context.partners
        deadline = time.monotonic() + self.timeout_s
        while (message := self._inter.Improbe(source, tag, status)) is None:
            if partners is not None and source in partners.lost():
                what = f"{verb} needs rank {source} of program '{self.peer}', which has ended"
                raise PeerFailedError(what, verb, f"look at what '{self.peer}' printed", [source])
            if time.monotonic() > deadline:
                what = f"{verb} waited {self.timeout_s:.0f} s for program '{self.peer}'"
                raise WaitTimeoutError(what, verb, f"hpcomm_{verb} in '{self.peer}', too")
            time.sleep(_PAUSE_S)
        got = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        message.Recv([got, MPI.BYTE])
        return got


def _words(state: str) -> tuple[str, str, str]:
    """(role, field, other program)"""
    field, way, other = state.rsplit(" ", 2)
    return "gives" if way == "to" else "takes", field, other


def _points(fields: Sequence[Field]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *(field.points for field in fields)])
