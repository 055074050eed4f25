"""Calendar of a job, by cftime: dates for seconds of the model since its start; durations of ISO 8601.

A month is as long as the calendar has it. All other durations are so many seconds.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...errors import ConfigError
from ..optional_packages import load

_MONTH_S = 30 * 86400.0  # to compare durations with; months of every calendar are about as long
_MOST = 1e12  # steps in a period, which floats can still tell apart
_COMMON = 28  # days that all months have
_DURATION = re.compile(
    r"P(?=.)(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = (7 * 86400, 86400, 3600, 60, 1)  # of the units behind months
_DATE = re.compile(r"(-?\d{4,6})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?Z?", re.ASCII)
_PYTHONS = ("standard", "proleptic_gregorian")  # calendars that have the dates of Python's datetime


def divides(step: float, whole: float) -> bool:
    """Whether whole is a multiple of step, but for rounding; 0 is one of any."""
    n = whole / step
    return whole == 0 or (0.5 < n < _MOST and abs(n - round(n)) < max(1e-9, 1e-15 * n))


def check_months(calendar: Calendar | None, whose: str) -> None:
    """Refuse months where there are no dates, or not all months have the day at which they begin."""
    if calendar is None:
        hint = 'start = "2000-01-01" in [job] of the spec, or me.connect(time=DATE)'
        raise ConfigError(f"{whose} is in months, but the job has no dates", "calendar", hint)
    if (day := calendar.start.day) > _COMMON:
        hint = f"start on day 1 to {_COMMON}, or days in place of months"
        raise ConfigError(
            f"{whose} is in months, but not all have the day {day}, of the start", "calendar", hint
        )


class CFDate(Protocol):
    """A date of cftime."""

    @property
    def calendar(self) -> str: ...


Time: TypeAlias = "float | str | datetime.date | CFDate"


class Duration(NamedTuple):
    """seconds: of months, about so many."""

    seconds: float
    months: int = 0

    @classmethod
    def of(cls, given: float | str) -> Duration:
        """That of a number of seconds, or of a text such as "PT6H" or "P1M"."""
        if not isinstance(given, str):
            return cls(float(given))
        if (found := _DURATION.fullmatch(given)) is None:
            raise ConfigError(f"{given!r} is no duration", hint='"PT6H", "P1D", "P1M"; or seconds')
        years, months, *rest = (float(each or 0) for each in found.groups())
        seconds, months = sum(n * s for n, s in zip(rest, _SECONDS, strict=True)), 12 * years + months
        if seconds and months:
            raise ConfigError(
                f"{given!r} has months and seconds", hint="months alone, or days and hours alone"
            )
        return cls(seconds or months * _MONTH_S, int(months))

    def fits(self, whole: Duration) -> bool:
        """Whether whole is a multiple of it, or nothing; months and seconds are of none of the other."""
        return not whole.seconds or (
            bool(self.months) == bool(whole.months) and divides(self.seconds, whole.seconds)
        )

    def said(self, by_date: bool) -> str:
        """`21600 s`; of months, or if by_date: `PT6H`."""
        if self.months or not by_date:
            return f"P{self.months}M" if self.months else f"{self.seconds:g} s"
        text, left = "P", self.seconds
        for size, unit in ((86400, "D"), (3600, "TH"), (60, "TM"), (1, "TS")):
            n, left = divmod(left, size) if size > 1 else (left, 0.0)
            if n:
                text += f"{'T' * (unit[0] == 'T' and 'T' not in text)}{n:.15g}{unit[-1]}"
        return text if len(text) > 1 else "PT0S"


NO_TIME = Duration(0.0)


class Calendar:
    """One of CF's calendars, and the date at which the job starts: 0 s of the model.

    Args:
        name: "standard", "noleap", "360_day", ...
        start: a date as `seconds` takes it.

    Raises:
        MissingError: there is no cftime.
        ConfigError: start is no date of this calendar.
    """

    def __init__(self, name: str, start: Time) -> None:
        hint = "pip install 'hpcomm[mpmd]'"
        self._cftime = load("cftime", "dates of the model need cftime", "calendar", hint)
        self.name: str = self._cftime.datetime(1, 1, 1, calendar=name).calendar  # 365_day is noleap
        self.start = self._date(start)
        self._starts: dict[tuple[int, int], float] = {}

    def __str__(self) -> str:
        return f"the calendar {self.name} from {self.said(0.0)} on"

    def is_called(self, name: str) -> bool:
        """Whether name is one of this calendar's: 365_day and noleap are one."""
        return bool(self._cftime.datetime(1, 1, 1, calendar=name).calendar == self.name)

    def seconds(self, date: Time) -> float:
        """Of the model, from the start to a date: of cftime or datetime, or a text as ISO 8601 has it.

        Raises:
            ConfigError: it is no date of this calendar, or one of another calendar.
        """
        return float((self._date(date) - self.start).total_seconds())

    def date(self, seconds: float) -> Any:
        """The date of cftime that is so many seconds after the start."""
        return self.start + datetime.timedelta(seconds=float(seconds))

    def said(self, seconds: float) -> str:
        """That date as a text: `2000-01-01`, `2000-01-01T06:00:00`."""
        return str(self.date(seconds).isoformat()).removesuffix("T00:00:00")

    def start_of(self, number: int, months: int) -> float:
        """Seconds at which a period of so many months begins, the number-th from 0; below 0: before it."""
        found = self._starts.get((number, months))
        if found is None:
            year, month = divmod(self.start.month - 1 + months * number, 12)
            there = self.start.replace(year=self.start.year + year, month=month + 1)
            found = self._starts[number, months] = float((there - self.start).total_seconds())
        return found

    def periods(self, seconds: float, months: int) -> float:
        """How many periods of so many months there are from the start on; of the last one, the share."""
        there = self.date(seconds)
        n: int = (12 * (there.year - self.start.year) + there.month - self.start.month) // months
        while self.start_of(n, months) > seconds:
            n -= 1
        while self.start_of(n + 1, months) <= seconds:
            n += 1
        low, high = self.start_of(n, months), self.start_of(n + 1, months)
        return n + (seconds - low) / (high - low)

    def _date(self, given: Time) -> Any:
        """given as a date of this calendar."""
        name, hint = self.name, 'a date of cftime, or a text such as "2000-01-01" or "2000-01-01T06:00:00"'
        if isinstance(given, self._cftime.datetime):
            date, name = given, given.calendar
        elif isinstance(given, datetime.date):
            date, name = given, name if name in _PYTHONS else _PYTHONS[1]
        elif isinstance(given, str) and (found := _DATE.fullmatch(given)):
            *whole, share = found.groups("0")
            date = self._made([*map(int, whole), int(share.ljust(6, "0"))], given)
        else:
            raise ConfigError(f"{given!r:.60} is no date", "calendar", hint)
        if name != self.name:
            what = f"{given} is a date of the calendar {name}, and the job has the calendar {self.name}"
            raise ConfigError(what, "calendar", f"one calendar for all: {hint}")
        if isinstance(date, datetime.date):
            if getattr(date, "tzinfo", None) is not None:
                raise ConfigError(f"{given} has a time zone", "calendar", "models know none: tzinfo=None")
            parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
            date = self._made([getattr(date, each, 0) for each in parts], given)
        return date

    def _made(self, parts: list[int], given: object) -> Any:
        try:
            return self._cftime.datetime(*parts, calendar=self.name)
        except ValueError:
            what = f"there is no {given} in the calendar {self.name}"
            raise ConfigError(what, "calendar", "a date that it has") from None
