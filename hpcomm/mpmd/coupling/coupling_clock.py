"""Coupling times: when what is put becomes what is got; lag, means and their like, interpolation. Pure.

    time of the model   0      every    2·every   3·every
    giver's version     0        1         2         3        a put at n·every is version n
    taker at time t     takes version (t - lag) / every: the last one not after t - lag; "linear" lies
                        between that one and the next

A put at time t says what holds at t; of "mean", "sum", "min" and "max" what was put since the last coupling
time, the coupling time itself included. Taken before there is a version: what was there first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

from ...errors import ConfigError, UsageError
from ...job.spec.calendar import NO_TIME, Calendar, Duration, Time

_AHEAD = 64  # versions that are kept for a taker at most
NEAR = 1e-6  # of a period: times are floats
NONE = -(1 << 62)  # in place of a version, of which there is none yet; hpcomm_plan.h has it, too


def is_number(x: Any, *, above: float = -math.inf, most: float = math.inf) -> TypeGuard[float]:
    """Whether x is finite, greater than above, and at most most."""
    try:
        return math.isfinite(x) and bool(above < x <= most)
    except (TypeError, OverflowError):
        return False


class Clock:
    """Times of the model as programs say them: seconds, or dates of the calendar that the job has."""

    def __init__(self, calendar: Calendar | None = None) -> None:
        self.calendar = self._given = calendar

    def seconds(self, time: Time | None, verb: str) -> float | None:
        """Of a time that a call names; None: it names none."""
        if time is None or is_number(time):
            return time
        hint = "a finite number of seconds"
        if isinstance(time, (int, float)) or self.calendar is None:
            hint += '; for dates, start = "2000-01-01" in [job] of the spec' * (self.calendar is None)
            raise UsageError(f"{time!r} is no time of the model", verb, hint)
        try:
            return self.calendar.seconds(time)
        except ConfigError as error:
            error.where = verb
            raise

    def time(self, seconds: float) -> Any:
        """As programs say it: a date, if there is a calendar."""
        return seconds if self.calendar is None else self.calendar.date(seconds)

    def begin(self, time: Time) -> float:
        """The seconds at which a run begins. A date gives a job without a calendar its own."""
        if self._given is None:
            self.calendar = Calendar(time.calendar, time) if hasattr(time, "calendar") else None
        seconds = self.seconds(time, "connect")
        assert seconds is not None  # of a time
        return seconds

    def lasts(self, duration: Duration) -> str:
        """`21600 s`, or `PT6H` where there are dates."""
        return duration.said(self.calendar is not None)

    @property
    def dates(self) -> list[str] | None:
        """The calendar and the date of 0 s."""
        return None if self.calendar is None else [self.calendar.name, self.calendar.said(0.0)]

    def resume(self, dates: list[str] | None, path: object) -> None:
        """Go on with what has been saved at path: without a spec, with its dates."""
        if self._given is None and dates is not None:
            self.calendar = Calendar(*dates)
        if self.dates != dates:
            saved, here = (
                f"{each[0]} from {each[1]} on" if each else "no dates" for each in (dates, self.dates)
            )
            hint = "start and calendar of the run that saved it"
            raise ConfigError(f"{path} has {saved}, and the job {here}", "restore", hint)

    def said(self, seconds: float) -> str:
        """`3600 s`, or the date."""
        return f"{seconds:.15g} s" if self.calendar is None else self.calendar.said(seconds)


class Schedule(NamedTuple):
    """every None: each put is taken by one get, and times mean nothing. start_s: when the run begins."""

    every: Duration | None = None
    lag: Duration = NO_TIME
    time: str = "instant"
    start_s: float = 0.0
    clock: Clock = Clock()

    @property
    def joins(self) -> bool:
        """Whether a version is made of all puts of a period."""
        return self.time in ("mean", "sum", "min", "max")

    @property
    def period(self) -> Duration:
        """That there is one, callers know."""
        assert self.every is not None
        return self.every

    def position(self, t: float) -> float:
        """Periods between 0 s and time t."""
        seconds, months = self.period
        return self.clock.calendar.periods(t, months) if months and self.clock.calendar else t / seconds

    def time_of(self, n: int) -> float:
        """The end of n periods, in seconds."""
        seconds, months = self.period
        return self.clock.calendar.start_of(n, months) if months and self.clock.calendar else n * seconds

    def window(self, n: int) -> tuple[float, float]:
        """Begin and end of the period that begins at version n, in seconds."""
        return self.time_of(n), self.time_of(n + 1)

    def steps(self, until_s: float) -> Iterator[tuple[Any, Any]]:
        """Begin and end of each period of the run, as programs say them."""
        n = round(self.position(self.start_s))
        if abs(n - self.position(self.start_s)) > NEAR:
            begin, step = self.clock.said(self.start_s), self.clock.lasts(self.period)
            hint = "me.connect(time=) at the end of a step"
            raise UsageError(f"the run begins at {begin}, within a step of {step}", "steps", hint)
        while (then := self.time_of(n + 1)) < until_s + NEAR * self.period.seconds:
            yield self.clock.time(self.time_of(n)), self.clock.time(then)
            n += 1

    def is_due(self, t: float) -> int | None:
        """The version that a put at time t completes; None if it only adds to one."""
        n = self.position(t)
        return round(n) if abs(n - round(n)) < NEAR else None

    def wanted(self, t: float) -> tuple[int, float]:
        """(version, share of the next one) that a get at time t takes; it may be before the first."""
        late = self.lag.seconds / self.period.seconds  # months of both are equally long
        n = self.position(t) - late if self.lag.months else self.position(t - self.lag.seconds)
        whole = round(n) if abs(n - round(n)) < NEAR else int(n // 1)
        return whole, (n - whole if self.time == "linear" and abs(n - whole) >= NEAR else 0.0)

    def ahead(self, step_s: float | None) -> int:
        """How many versions may be put before the first of them is taken, by a taker of this step.

        One more than need be: so neither program waits for the other's turn on a core.
        """
        if self.every is None:
            return 2
        step_s = max(self.every.seconds, step_s or 0.0)
        return min(_AHEAD, 1 + math.ceil((self.lag.seconds + step_s) / self.every.seconds - NEAR))

    def first(self) -> int:
        """The first version of the run."""
        return math.ceil(self.position(self.start_s) - NEAR)
