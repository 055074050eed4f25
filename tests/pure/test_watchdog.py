"""What the watchdog reads of a communicator that the main thread closes meanwhile."""

from __future__ import annotations

import weakref
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcomm.agree import blocked as looked
from hpcomm.agree import doing
from hpcomm.communicator.settings import Settings
from hpcomm.core.present import MESSAGE, calling
from hpcomm.watch import report, watchdog


class Closing:
    """Closed at every second look."""

    name, size, rank, settings = "closing", 2, 0, Settings("light", "auto", None)
    partners = patience_s = node = None
    is_inter, remote_size = False, 0

    def __init__(self, first: bool) -> None:
        self._looks = cycle((first, not first))
        self.near, self.regions = self, {}

    @property
    def watched(self) -> Any:
        own, other = (
            SimpleNamespace(last_call=lambda: 1, last=lambda most: [], posted=lambda number, what=w: what)
            for w in (5, 6)
        )
        region = SimpleNamespace(ended=True, ask=lambda: 1, answer_to=lambda question: "barrier()")
        return (own, [(1, region, other)]) if next(self._looks) else None


@pytest.mark.parametrize("first", [True, False])
def test_a_communicator_may_be_closed_between_two_looks_at_it(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "past_call", lambda log, number, size: "barrier()")
    comm: Any = Closing(first)
    for call in (0, 1):
        blocked: Any = SimpleNamespace(comm=comm, source=1, number=call, call=SimpleNamespace(verb="recv"))
        looked.late(blocked)
        watchdog._ended(comm, 1, call)
        watchdog._judge(blocked)
        watchdog._refused(comm, 1, call)
        watchdog._judge(blocked)


def test_a_process_that_was_stopped_has_not_waited_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    call: Any = SimpleNamespace(mark=1)
    monkeypatch.setattr(looked, "blocked_call", lambda: call)
    monkeypatch.setattr(looked, "time", SimpleNamespace(monotonic=lambda: now))
    waiting = looked.Waiting()
    for _ in range(11):
        waiting.look()
        now += 0.2
    assert waiting.waited_s == pytest.approx(2.0)
    now += 3600  # as a batch system does, or a debugger
    waiting.look()
    assert waiting.waited_s <= 3.1


def test_a_look_that_fails_once_is_no_fault_and_one_that_always_fails_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    looks = iter([1, 0, 1, 1, 1, 0, *[1] * 9])

    def look(self: object) -> None:
        fails = next(looks, None)
        if fails is None:
            monkeypatch.setattr(watchdog.sys, "is_finalizing", lambda: True)
        elif fails:
            raise ValueError("this node is closed")

    monkeypatch.setattr(watchdog, "WATCHDOG_TICK_S", 0)
    monkeypatch.setattr(watchdog.runtime, "say", said.append)
    monkeypatch.setattr(watchdog.Watchdog, "_look", look)
    watchdog.Watchdog().run()
    assert len(said) == 1
    assert "ValueError: this node is closed" in said[0]


def test_a_report_that_fails_does_not_keep_a_job_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_TIMEOUT", "5")
    dog, waited_s, said = watchdog.Watchdog(), iter(range(100)), []

    def look() -> None:
        dog._waiting.waited_s = float(next(waited_s))
        raise ValueError("no report")

    def abort(text: str) -> None:
        said.append(text)
        monkeypatch.setattr(watchdog.sys, "is_finalizing", lambda: True)

    monkeypatch.setattr(watchdog, "WATCHDOG_TICK_S", 0)
    monkeypatch.setattr(watchdog.runtime, "say", lambda text: None)
    monkeypatch.setattr(watchdog.runtime, "abort", abort)
    monkeypatch.setattr(dog, "_look", look)
    dog.run()
    assert len(said) == 1
    assert "ValueError: no report" in said[0]
    assert said[0].endswith("it has waited 7 s; --stall 5 (HPCOMM_TIMEOUT) ends the job")


def waiting_for_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """This rank and another one; the call of this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "passed_over", lambda comm, call: "")
    own = doing.own_number()
    waits = {
        here: doing.Doing(
            f"rank {here - own}", 1, f"recv(source={there - own})", 5.0, (there,), comm="world",
            messages=(doing.Message(1, False, False, there, 0),), number=here,
        )
        for here, there in ((own, own + 1), (own + 1, own))
    }  # fmt: skip
    monkeypatch.setattr(report, "_all", lambda: waits)
    return SimpleNamespace(comm=None, call=None, number=MESSAGE)


def test_a_circle_is_told_by_the_last_report_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a busy machine the time that the user has set may be over before two looks have found it."""
    call = waiting_for_each_other(monkeypatch, tmp_path)
    told = report.Reporter(pytest.fail, 30.0).report(call, 12.0)
    assert told.startswith("these calls can never end, since each waits for the next one:\n  rank 0: recv(")


def test_a_circle_that_is_found_when_a_report_is_due_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call, said = waiting_for_each_other(monkeypatch, tmp_path), list[str]()
    reporter = report.Reporter(said.append, 3.0)
    for waited_s in (3.2, 3.8, 5.5, 40.0):
        reporter.look(call, waited_s)
    assert len(said) == 1
    assert said[0].startswith("these calls can never end")


def test_a_wait_that_another_rank_has_reported_is_not_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the last of those that waited for one: who spoke has gone on, and left the word to it."""
    waited_s, said = 0.0, []
    answers = lambda: {0: doing.Doing("rank 0", 1, "barrier()", quiet_s=waited_s - 29)}  # noqa: E731
    monkeypatch.setattr(report, "_all", answers)
    monkeypatch.setattr(report, "_report", lambda call, waited_s, *given: f"{waited_s:.0f} s")
    monkeypatch.setattr(report, "keep", lambda told, doings: told)
    reporter, call = report.Reporter(said.append, 30.0), SimpleNamespace(mark=1)
    monkeypatch.setattr(report.blocked, "blocked_call", lambda: call)
    for waited_s in (33.0, 50.0, 80.0):
        reporter.look(call, waited_s)
    reporter.look(SimpleNamespace(mark=0), waited_s := 90.0)  # which has ended while others were asked
    assert said == []
    for waited_s in (110.0, 120.0):
        reporter.look(call, waited_s)
    assert said == ["110 s"]  # twice HPCOMM_STALL after what was said


def test_no_call_is_kept_between_two_looks() -> None:
    """Nor what it holds, such as arrays, and messages that were begun before."""
    comm: Any = SimpleNamespace(
        near=SimpleNamespace(watched=None), node=None, partners=None, patience_s=None, name="comm"
    )
    x, waiting = np.ones(3), looked.Waiting()
    kept = weakref.ref(x)
    with calling(comm, "barrier", x):
        assert waiting.look() is None  # it may come and go
        found = waiting.look()
        assert found is not None
        assert found.comm is comm
    del x, found
    assert kept() is None
    assert waiting.look() is None


def test_an_error_says_why_a_rank_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doing, "_AT_A_FAILURE_S", 0.0)
    silent = {"ask": lambda: 1, "answer_to": lambda question: None, "ended": False}
    stopped, ended = (SimpleNamespace(**silent, gone=gone, stopped=not gone) for gone in (False, True))
    near = SimpleNamespace(regions={1: stopped, 2: ended, 3: ended}, watched=None)
    comm: Any = SimpleNamespace(near=near, rank=0, is_inter=False)
    assert doing.doings(comm, [1, 2]) == ["  rank 1: no answer: stopped", "  rank 2: it has ended"]


def test_an_idle_event_loop_says_what_it_may_await(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SimpleNamespace(call="recv(x, source=1)", birth="a.py:5")
    monkeypatch.setattr(doing, "under_way", lambda *kinds: iter([request]))
    monkeypatch.setattr(doing, "program_stack", lambda most: ("main at a.py:9", "select at selectors.py:468"))
    assert doing.own().stack[2:] == ("awaits recv(x, source=1), started at a.py:5",)
    monkeypatch.setattr(doing, "program_stack", lambda most: ("main at a.py:9",))
    assert doing.own().stack == ("main at a.py:9",)  # it computes: nothing is looked for
