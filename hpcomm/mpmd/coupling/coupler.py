"""Both ends of a coupled field, in model time: Giving and Taking."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..._lazy import NDArray
from ...core.types import AnyArray
from ...errors import ConfigError, UsageError, warn
from ..coupled_field import Field, Load, check_values, chooses, copied, host, scatter
from ..record import Recorder
from ..route.coupled_route import Selection
from ..spec.spec_file import FieldSpec
from .coupling_channel import Channel, Turns, goes_aboard
from .coupling_clock import NONE, Schedule
from .device_operations import DeviceOperations, Mapped, Picked
from .fixer import Fixer
from .unit import conversion_of
from .wire import Lane, Part

Turn: TypeAlias = Callable[[AnyArray], AnyArray]
State: TypeAlias = tuple[dict[str, int], dict[str, AnyArray]]


class _Side:
    """One field at one side of a link.

    lane: None if nobody is there. fixer: of the integral. turn: of vectors, into space or back.

    Attributes:
        version: that was put, or taken, last.
    """

    verb = ""

    def __init__(
        self, each: FieldSpec, lane: Lane | None, part: Part, schedule: Schedule,
        fixer: Fixer | None = None, turn: Turn | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(part.field, Field)
        self.field, self.part, self.schedule = part.field, part, schedule
        self.mapping, self.timeout_s = ", ".join(each.methods), each.timeout_s
        self.fixer, self.turn = fixer, turn
        self._timed = schedule.every is not None
        self.version = NONE if self._timed else -1  # else they are counted from 0 on
        self._stamps = schedule.clock if self._timed else None
        self._seen: Any = None  # values that have been checked

    def _look(self) -> None:
        """Check values that the program has set anew."""
        if self.field.values is not self._seen:
            check_values(self.field, self.field.values)
            self._seen = self.field.values

    def _parts(self, load: Field | Load) -> list[Part]:
        """What a message holds: the field as it travels, and what its fixer sends."""
        return [self.part._replace(field=load), *([] if self.fixer is None else [self.fixer.part])]

    def _set_version(self, version: int) -> None:
        if version != NONE:
            self.version = version

    def _stays(self, lane: Lane | None) -> bool:
        """Whether what is done with the field is done on its device: where large shares come, or go, there.

        Of small ones the host is quicker, and whole numbers and half types travel as bits of other ones.
        """
        if lane is None or lane.wire.carrier is None or not chooses(self.field.values):
            return False
        if not {self.part.dtype.str[1:], self.field.dtype.str[1:]} <= {"f4", "f8"}:
            return False
        return any(goes_aboard(lane.wire, self.part, rank, rows) for rank, rows in self.part.rows)

    def check(self, t: float | None) -> None:
        """Refuse a call without the time that it needs."""
        if self._timed and t is None:
            what = f"{self.verb} of {self.field.name!r} needs the time, because the spec gives it a period"
            raise UsageError(what, self.verb, f"link.{self.verb}(field, time)")


class Outgoing(_Side):
    """One field on its way out.

    ahead: how many puts may be under way before the next one waits for the first of them.
    """

    verb = "put"

    def __init__(
        self, each: FieldSpec, lane: Lane | None, part: Part, schedule: Schedule,
        fixer: Fixer | None = None, turn: Turn | None = None, ahead: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(each, lane, part, schedule, fixer, turn)
        field = self.field
        self._sent = Load(field.name, field.values)
        self._turns: Turns | None = None
        if lane is not None:
            parts, copied = self._parts(self._sent), lane._replace(direct=False)
            self._turns = Turns(lambda: Channel(copied, parts, sends=True, stamps=self._stamps), ahead)
        adds = schedule.time in ("mean", "sum") and self.turn is None and self._stays(lane)
        self._there = DeviceOperations(field.values) if adds else None
        self._join = {"min": np.minimum, "max": np.maximum}.get(schedule.time, np.add)
        self._joined: Any = None
        self._count = 0

    @property
    def last(self) -> Any:
        """What was sent last: of a mean, the mean."""
        return self._sent.values

    def put(self, t: float | None) -> bool:
        """Add the field's values as those of time t; whether they, or what they completed, were sent."""
        self._look()
        if not self._timed:
            self._send(self.field.values)
            self.version += 1
            return True
        self.check(t)
        assert t is not None  # by check
        version, said = self.schedule.is_due(t), self.schedule.clock.said
        if self.version == NONE and version is None:
            what = f"the first put of {self.field.name!r} is at {said(t)}, which is no coupling time"
            every = self.schedule.clock.lasts(self.schedule.period)
            hint = f"put the first values at the start: a multiple of {every}"
            raise UsageError(what, "put", hint)
        with self._there or nullcontext():
            values = self._with_now() if self.schedule.joins else self.field.values
            if version is None:
                return False
            if version <= self.version:
                what = f"{self.field.name!r} is put at {said(t)} a second time, or backwards"
                raise UsageError(what, "put", "times run forwards")
            if self.schedule.time == "mean":
                values = values / self._count
            if self._there is not None:
                self._there.drop(self._joined)
            self._joined, self._count, self.version = None, 0, version
            self._send(values, (float(version), t))
        return True

    def state(self) -> State:
        """What a restart needs: numbers, and arrays of a row for each point."""
        arrays = {} if self._joined is None else {"joined": host(self._joined)}
        return {"version": self.version, "count": self._count}, arrays

    def resume(self, numbers: dict[str, int], arrays: dict[str, AnyArray]) -> None:
        """Go on from such a state."""
        self._set_version(numbers["version"])
        self._count = numbers["count"]
        self._joined = _as(arrays["joined"], self.part.dtype) if "joined" in arrays else None

    def settle(self) -> None:
        """At the end of this program: wait until what was put has been taken, or its takers have ended."""
        if self._turns is not None:
            self._turns.settle()

    def _with_now(self) -> Any:
        """What was put since the last coupling time, joined: sums where they lie, all else on the host."""
        values, there = self.field.values, self._there
        if there is not None and there.holds(values) and not isinstance(self._joined, np.ndarray):
            mine: Any = there.cast(there.ways.plain(values), self.part.dtype)
            if self._joined is not None:
                self._joined += mine
            else:
                self._joined = copied(mine)
        else:
            mine, past = host(values), self._joined
            self._joined = mine.astype(self.part.dtype) if past is None else self._join(host(past), mine)
        self._count += 1
        return self._joined

    def _send(self, values: object, stamp: tuple[float, float] = (-1.0, -1.0)) -> None:
        if self.turn is not None:
            values = self.turn(host(values)).astype(self.part.dtype, copy=False)
        self._sent.values = values
        if self.fixer is not None:
            self.fixer.give(values)
        if self._turns is not None:
            self._turns.start(stamp)


class Incoming(_Side):
    """One field on its way in.

    weights: from what comes to the field's points; None: as it is. recorder: its file, if it has one.
    """

    verb = "get"

    def __init__(
        self, each: FieldSpec, lane: Lane | None, part: Part, schedule: Schedule,
        fixer: Fixer | None = None, turn: Turn | None = None,
        weights: Any = None, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        super().__init__(each, lane, part, schedule, fixer, turn)
        self.weights, self.conversion = weights, conversion_of(each)
        self.uncovered, self.nan = each.uncovered, each.nan
        self.nan_points = 0  # as many of the weights made nan, last
        self._has_told = self.nan != "spread"
        self._filling: AnyArray | None = None
        if self.weights is not None:
            self._filling = _filling(self.field, self.weights.uncovered, self.uncovered)
        self._recorder = recorder
        # Values that are right as they come go straight to their places; others to an inbox first.
        self._as_it_comes = self.weights is None and self.conversion == (1.0, 0.0) and not self._timed
        self._there: DeviceOperations | None = None
        self._inbox = self.field if self._as_it_comes else self._made_inbox(lane)
        if lane is not None:
            self._channel = Channel(lane, self._parts(self._inbox), sends=False, stamps=self._stamps)
        self._first = schedule.first() if self._timed else 0
        self._older: Any = None
        self._newer: Any = None
        self._waiting: list[tuple[int, Any]] = []  # versions that came before they were asked for

    def _made_inbox(self, lane: Lane | None) -> Load:
        """Where values come to that are to be mapped or converted: on their device, if that can do it."""
        field, weights, dtype = self.field, self.weights, self.part.dtype
        rows = slice(0, len(field.points if weights is None else weights.sources))
        shape = rows.stop, *(field.shape if self.turn is None else (3, *field.shape[1:]))
        is_plain = self.nan == "spread" and self.fixer is None and self.turn is None
        suits = weights is None or (is_plain and Mapped.suits(weights))
        if suits and self._stays(lane):
            self._there = there = DeviceOperations(field.values)
            self._came = Picked(there, rows) if weights is None else Mapped(there, weights, len(shape))
            return Load(field.name, there.ways.empty(there.like, shape, dtype))
        return Load(field.name, np.zeros(shape, dtype))

    def get(self, t: float | None) -> Any:
        """Fill the field with what holds at time t; returns its values."""
        self._look()
        if self._recorder is not None and self._recorder.replays:
            self._set(self._recorder.next(self.field))
            return self.field.values
        with self._there or nullcontext():
            if not self._timed:
                got = self._receive()
                if not self._as_it_comes:
                    self._set(self._mapped(got))
                self.version += 1
            else:
                self.check(t)
                assert t is not None  # by check
                self._at(t)
        if self._recorder is not None:
            self._recorder.keep(self.field.name, host(self.field.values))
        self._tell_of_nan()
        return self.field.values

    def _at(self, t: float) -> None:
        version, share = self.schedule.wanted(t)
        if version < self._first:
            return  # nothing was put so early: the values stay what they were
        while self.version < version + (share > 0):
            next_, got = self._waiting.pop(0) if self._waiting else self._next(self.version)
            if self._there is not None:
                self._there.drop(self._older)
            self._older, self._newer, self.version = self._newer, got, next_
        if self._newer is None or self.version - (share > 0) > version:
            raise UsageError(
                f"{self.field.name!r} is taken for {self.schedule.clock.said(t)}, which is over: version"
                f" {version}, and here is {self.version}",
                "get",
                "times run forwards; a giver begins at the same time as its takers",
            )
        older = self._older if self._older is not None else self._newer
        self._set(self._newer if not share else (1.0 - share) * older + share * self._newer)

    def _next(self, version: int) -> tuple[int, Any]:
        """The version that comes behind this one."""
        got = self._mapped(self._receive())
        # Who gets no points hears of no version either, and must not wait for one.
        return round(self._channel.stamp[0]) if self.part.rows else max(version + 1, self._first), got

    def drain(self, version: int) -> None:
        """Receive all up to the version that was put last; gets take from that first."""
        if not self._timed and version != self.version:
            what = f"{self.field.name!r} was put {version + 1} times, and taken {self.version + 1} times"
            raise ConfigError(what, "save", "take it before; or every, for a field with a period")
        with self._there or nullcontext():
            last = self._waiting[-1][0] if self._waiting else self.version
            while last < version:
                self._waiting.append(self._next(last))
                last = self._waiting[-1][0]

    def state(self) -> State:
        """What a restart needs: numbers, and arrays of a row for each point; behind drain."""
        kept = {"older": self._older, "newer": self._newer}
        kept |= {f"next{n}": got for n, (_, got) in enumerate(self._waiting)}
        arrays = {"values": host(self.field.values)}
        for key, got in kept.items():
            if got is not None:
                arrays[key] = host(got)
                if self._there is not None:  # rows that something reaches
                    arrays[key] = np.zeros((len(self.field.points), *self.field.shape), arrays[key].dtype)
                    arrays[key][self._came.rows] = host(got)
        last = self._waiting[-1][0] if self._waiting else self.version
        numbers = {"version": self.version, "first": self._first, "last": last, "waiting": len(self._waiting)}
        return numbers, arrays

    def resume(self, numbers: dict[str, int], arrays: dict[str, AnyArray]) -> None:
        """Go on from such a state."""
        if "values" in arrays:  # a program without Python keeps them itself
            scatter(self.field.values, slice(0, len(self.field.points)), arrays.pop("values"))
        if self._there is not None:
            with self._there:
                up = partial(self._there.ways.up, self._there.like)
                arrays = {key: up(np.ascontiguousarray(got[self._came.rows])) for key, got in arrays.items()}
        self._set_version(numbers["version"])
        self._first = numbers["first"]
        self._older, self._newer = arrays.get("older"), arrays.get("newer")
        n, last = numbers["waiting"], numbers["last"]
        self._waiting = [(last + 1 - n + i, arrays[f"next{i}"]) for i in range(n)]

    def _receive(self) -> Any:
        self._channel.start()
        self._channel.finish()
        return self._inbox.values

    def _mapped(self, got: Any) -> Any:
        """What came, as it goes into the field: on a device the rows that something reaches."""
        if self._there is not None:
            made = self._came.apply(got)
        else:
            made = got.copy() if self.weights is None else self._weighted(got)
        factor, offset = self.conversion
        if self.schedule.time == "linear" or (factor, offset) != (1.0, 0.0):  # rounded once, by _set
            wide = _wide(self.part.dtype)
            made = _as(made, wide) if self._there is None else self._there.cast(made, wide)
        return made if (factor, offset) == (1.0, 0.0) else made * factor + offset

    def _weighted(self, got: AnyArray) -> AnyArray:
        made: AnyArray = self.weights.apply(got, self.nan)
        if self.fixer is not None:
            made = self.fixer.fix(made)
        if self.turn is not None:
            made = self.turn(made)
        if made.dtype.kind in "fc":
            self.nan_points = _nan_rows(made)
        return made

    def _tell_of_nan(self) -> None:
        """Warn the first time: when all is done, since a warning may be an error."""
        if self.nan_points and not self._has_told:
            self._has_told = True
            came = f"{_nan_rows(host(self._inbox.values))} of {self.weights.columns} points that came"
            here = f"{self.nan_points} of {len(self.field.points)} here"
            hint = "nan='renormalise' leaves them out of the weights"
            warn(f"field {self.field.name!r}: {came} are nan, and so are {here}; {hint}")

    def _set(self, values: Any) -> None:
        if self._filling is not None:
            scatter(self.field.values, self.weights.uncovered, self._filling)
        if self._there is not None and self._there.holds(values):
            self._came.fill(self.field.values, values)
        elif self.weights is not None:
            rows: Selection = self.weights.rows
            scatter(self.field.values, rows, _as(values[rows], self.field.dtype))
        else:
            scatter(self.field.values, slice(0, len(values)), _as(values, self.field.dtype))


def sent_dtype(dtype: np.dtype[np.generic], time: str) -> np.dtype[np.generic]:
    """What travels of a field: of sums more bits than their summands have, rounded where they are taken."""
    if time == "sum" and dtype.kind in "biu":
        return dtype if dtype == np.uint64 else np.dtype(np.int64)
    return _wide(dtype) if time in ("mean", "sum") else dtype


def _wide(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """In which it is computed."""
    return np.result_type(dtype, np.float64)


def _nan_rows(x: AnyArray) -> int:
    """How many rows have a nan."""
    return int(np.isnan(x).any(axis=tuple(range(1, x.ndim))).sum())


def _filling(field: Field, rows: NDArray[np.int64], uncovered: str | float) -> AnyArray | None:
    """What goes to points that nothing reaches; None: nothing does."""
    if isinstance(uncovered, str) or not len(rows):
        return None
    made, fits = None, np.can_cast(np.min_scalar_type(uncovered), field.dtype, "same_kind")
    with suppress(OverflowError):
        made = np.full((len(rows), *field.shape), uncovered, field.dtype) if fits else None
    if made is None:
        what = f"field {field.name!r} of {field.dtype} cannot hold {uncovered!r} where nothing reaches it"
        raise ConfigError(what, "connect", '"keep" at the end of the mapping, or a value of its kind')
    return made


def _as(values: AnyArray, dtype: np.dtype[np.generic]) -> AnyArray:
    return values.astype(dtype, copy=False)
