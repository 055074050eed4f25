"""Dates of the model: seconds of a calendar, durations, months as coupling periods; against cftime itself."""

import datetime
import sys
from itertools import pairwise

import pytest

from hpcomm.errors import ConfigError, MissingError, UsageError
from hpcomm.job.spec import schema
from hpcomm.job.spec.calendar import Calendar, Duration, check_months
from hpcomm.mpmd.coupling.coupling_clock import Clock, Schedule

cftime = pytest.importorskip("cftime")
CALENDARS = schema.JOB["properties"]["calendar"]["enum"]
DAY = 86400.0


@pytest.mark.parametrize("name", CALENDARS)
def test_a_date_is_so_many_seconds_and_a_month_as_long_as_its_calendar_has_it(name):
    calendar = Calendar(name, "1999-11-01T06:00:00")
    monthly = Schedule(Duration.of("P1M"), Duration.of("P2M"), "mean", clock=Clock(calendar))
    for n in range(-30, 40):
        year, month = divmod(10 + n, 12)
        there = cftime.datetime(1999 + year, month + 1, 1, 6, calendar=name)
        t = cftime.date2num(there, "seconds since 1999-11-01 06:00:00", name)
        assert (calendar.seconds(there), calendar.seconds(there.isoformat())) == (t, t)
        assert calendar.date(t) == there
        assert calendar.said(t) == f"{there.year}-{there.month:02}-01T06:00:00"
        assert (monthly.is_due(t), monthly.is_due(t + DAY), monthly.time_of(n)) == (n, None, t)
        assert [monthly.wanted(t + 27 * DAY * k)[0] for k in (0, 1)] == [n - 2] * 2
        assert monthly.position(t - 3600.0) == pytest.approx(
            n - 3600.0 / (t - monthly.time_of(n - 1)), abs=1e-9
        )
    year = monthly.time_of(14) - monthly.time_of(2)  # of 2000
    other = {"noleap": 365, "365_day": 365, "360_day": 360}
    assert year == DAY * other.get(name, 366)
    assert calendar.is_called({"365_day": "noleap", "gregorian": "standard"}.get(name, name))


def test_shares_of_a_month_and_steps_of_a_year_are_those_of_the_calendar():
    clock = Clock(Calendar("noleap", "2000-01-01"))
    linear = Schedule(Duration.of("P1M"), time="linear", start_s=31 * DAY, clock=clock)
    assert linear.wanted(31 * DAY + 7 * DAY) == (1, 0.25)
    assert linear.wanted(-DAY)[0] == -1
    assert linear.first() == 1
    months = [*Schedule(Duration.of("P1M"), clock=clock).steps(365 * DAY)]
    assert [then.day for _, then in months] == [1] * 12
    assert [(then - now).days for now, then in months] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    assert all(a[1] == b[0] for a, b in pairwise(months))
    days = [*Schedule(Duration(DAY), start_s=58 * DAY, clock=clock).steps(60 * DAY)]
    assert [str(now) for now, _ in days] == ["2000-02-28 00:00:00", "2000-03-01 00:00:00"]
    with pytest.raises(UsageError, match="begins at 2000-01-01T12:00:00, within a step of P1D"):
        [*Schedule(Duration(DAY), start_s=DAY / 2, clock=clock).steps(DAY)]


@pytest.mark.parametrize(
    ("text", "duration", "said"),
    [
        ("PT6H", (21600.0, 0), "PT6H"),
        ("P1DT1.5S", (86401.5, 0), "P1DT1.5S"),
        ("P2W", (14 * DAY, 0), "P14D"),
        ("PT90M", (5400.0, 0), "PT1H30M"),
        ("P1M", (30 * DAY, 1), "P1M"),
        ("P1Y6M", (540 * DAY, 18), "P18M"),
        (3600, (3600.0, 0), "PT1H"),
    ],
)
def test_durations_are_those_of_iso_8601(text, duration, said):
    assert Duration.of(text) == duration
    assert Duration.of(text).said(by_date=True) == said
    assert Duration.of(said) == duration


@pytest.mark.parametrize("text", ["P", "PT", "6H", "P6H", "P1H", "PT1D", "P-1D", "p1d", "P1MT6H", "P1.5M"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match=r"is no duration|has months and seconds"):
        Duration.of(text)


def test_a_call_takes_dates_of_the_jobs_calendar_and_seconds():
    clock = Clock(Calendar("standard", "2000-02-28"))
    same = [2 * DAY, "2000-03-01", "2000-03-01T00:00:00Z", datetime.date(2000, 3, 1)]
    same += [datetime.datetime(2000, 3, 1), cftime.DatetimeGregorian(2000, 3, 1)]
    assert [clock.seconds(each, "put") for each in same] == [2 * DAY] * len(same)
    assert clock.seconds(None, "put") is None
    assert clock.said(1.5) == "2000-02-28T00:00:01.500000"


@pytest.mark.parametrize(
    ("calendar", "time", "words"),
    [
        ("noleap", "2000-02-29", "there is no 2000-02-29 in the calendar noleap"),
        ("standard", "1582-10-10", "there is no 1582-10-10 in the calendar standard"),
        ("noleap", "29 February", "'29 February' is no date"),
        (
            "noleap",
            cftime.Datetime360Day(2000, 2, 30),
            "2000-02-30 00:00:00 is a date of the calendar 360_day, and the job has the calendar noleap",
        ),
        (
            "360_day",
            datetime.date(2000, 2, 1),
            "of the calendar proleptic_gregorian, and the job has the calendar",
        ),
        ("standard", datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), "has a time zone"),
        ("noleap", float("nan"), "nan is no time of the model"),
        (None, "2000-01-01", "'2000-01-01' is no time of the model"),
    ],
)
def test_a_time_that_is_none_of_the_jobs_is_refused(calendar, time, words):
    with pytest.raises((ConfigError, UsageError), match=words) as told:
        Clock(calendar and Calendar(calendar, "2000-01-01")).seconds(time, "put")
    assert "put" in str(told.value.where)


def test_a_date_gives_a_job_without_a_spec_its_calendar_and_months_need_one():
    clock = Clock()
    with pytest.raises(ConfigError, match="every is in months, but the job has no dates"):
        check_months(clock.calendar, "every")
    assert clock.begin(cftime.DatetimeNoLeap(2000, 1, 31)) == 0.0
    assert clock.calendar.name == "noleap"
    with pytest.raises(ConfigError, match="every is in months, but not all have the day 31, of the start"):
        check_months(clock.calendar, "every")


def test_without_cftime_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cftime", None)
    with pytest.raises(MissingError, match="dates of the model need cftime") as told:
        Calendar("noleap", "2000-01-01")
    assert "pip install 'hpcomm[mpmd]'" in str(told.value)
