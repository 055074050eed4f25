"""Requests without MPI: stages, results, errors, time, abandonment."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest
from steady import steady_time

import hpcomm
from hpcomm.core import request as module
from hpcomm.core.request import Request


class Status:
    """Stands for MPI.Status."""


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may bring MPI up."""
    monkeypatch.setattr(module, "MPI", type("MPI", (), {"Status": Status}))
    monkeypatch.setattr(module, "_abandoned", [])


class Transfer:
    """Stands for an MPI request: complete after so many looks, or when told; fails if it has an error."""

    def __init__(self, looks: int | None = 0, error: Exception | None = None) -> None:
        self.looks, self.error = looks, error
        self.finished = False

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        assert not self.finished, "a completed transfer is not looked at again"
        assert isinstance(status, Status)
        if self.error is not None:
            raise self.error
        if self.looks is None or self.looks > 0:
            self.looks = None if self.looks is None else self.looks - 1
            return False
        self.finished = True
        return True

    def Wait(self, status: Any = None) -> bool:  # noqa: N802
        while not self.Test(status):
            assert self.looks is not None, "would wait for ever"
        return True


def stages(
    *groups: list[Transfer], result: Any = "result", error: Exception | None = None
) -> Generator[Any, Any, Any]:
    for group in groups:
        statuses = yield list(group)
        assert len(statuses) == len(group)
        assert all(transfer.finished for transfer in group)
    if error is not None:
        raise error
    return result


def request(*groups: list[Transfer], **keywords: Any) -> Request:
    return Request("verb(x)", stages(*groups, **keywords))


@pytest.mark.parametrize("how", ["wait", "poll", "done", "await", "synchronize"])
def test_stages_run_in_order_to_their_result_however_one_waits(how: str) -> None:
    groups = [Transfer(3), Transfer(0)], [Transfer(2)], [], [Transfer(5)]
    r = request(*groups)
    if how == "wait":
        assert r.wait() == "result"
    elif how == "poll":
        assert r.wait(timeout=5) == "result"
    elif how == "done":
        assert sum(1 for _ in iter(r.done, True)) < 50
    elif how == "synchronize":
        r.synchronize()
    else:

        async def main() -> Any:
            return await r

        assert asyncio.run(main()) == "result"
    assert r.done()
    assert r.result == "result"
    assert r.wait() == "result"
    assert all(transfer.finished for group in groups for transfer in group)


def test_a_call_with_nothing_to_wait_for_is_complete_at_once() -> None:
    r = Request("verb(x)", stages())
    assert r.done()
    assert r.wait() == "result"


def test_done_looks_once_and_never_waits() -> None:
    transfer = Transfer(looks=2)
    r = request([transfer])
    assert [r.done(), r.done(), r.done(), r.done()] == [False, False, True, True]


def test_the_result_is_none_before_the_end() -> None:
    r = request([Transfer(None)])
    assert r.result is None
    assert not r.done()
    finish(r)


def finish(r: Request) -> None:
    """End a transfer that would never end, so that nothing is abandoned."""
    for transfer in r._pending:
        transfer.looks = 0  # type: ignore[attr-defined]
    assert r.wait(timeout=1) is not None


def test_a_timeout_tells_the_call_the_time_and_the_line_of_birth() -> None:
    r, born = Request("verb(x)", stages([Transfer(None)])), f"test_request.py:{sys._getframe().f_lineno}"
    started = time.monotonic()
    with pytest.raises(hpcomm.WaitTimeoutError) as caught:
        r.wait(timeout=0.05)
    assert time.monotonic() - started >= 0.05
    what, where, hint = str(caught.value).split("\n")
    assert what == "verb(x) was not complete after 0.05 s"
    assert where == f"  where: started at {born}"
    assert hint.startswith("  try:   wait again")
    finish(r)


def test_wait_all_shares_its_time_and_keeps_the_order() -> None:
    assert hpcomm.wait_all([request([Transfer(3)], result=i) for i in range(4)], timeout=5) == [0, 1, 2, 3]
    late = [request([Transfer(None)]) for _ in range(3)]
    started = steady_time()
    with pytest.raises(hpcomm.WaitTimeoutError):
        hpcomm.wait_all(late, timeout=0.5)
    assert steady_time() - started < 1.4  # and not three times as long
    for r in late:
        finish(r)


def test_wait_any_takes_the_first_that_is_complete() -> None:
    never, soon = request([Transfer(None)]), request([Transfer(20)], result="soon")
    assert hpcomm.wait_any([never, soon], timeout=5) == (1, "soon")
    with pytest.raises(hpcomm.WaitTimeoutError, match="none of 1 requests"):
        hpcomm.wait_any([never], timeout=0.05)
    finish(never)
    with pytest.raises(hpcomm.UsageError, match="at least one"):
        hpcomm.wait_any([])


@pytest.mark.parametrize("timeout", ["3", -1, float("nan"), [1]])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    r = request([Transfer(1)])
    for wait in (r.wait, lambda t: hpcomm.wait_all([r], t), lambda t: hpcomm.wait_any([r], t)):
        with pytest.raises(hpcomm.UsageError, match="is no number of seconds"):
            wait(timeout)
    r.wait()


def test_what_is_no_request_is_refused() -> None:
    r = request([Transfer(1)])
    for wait in (hpcomm.wait_all, hpcomm.wait_any):
        with pytest.raises(hpcomm.UsageError, match=f"{wait.__name__} was given 7, which is no request"):
            wait([r, 7])  # type: ignore[list-item]
    r.wait()


ERRORS = [hpcomm.MismatchError("no fit"), ZeroDivisionError("the user's own operator")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["wait", "poll", "done"])
def test_an_error_at_the_end_is_raised_at_every_wait(error: Exception, how: str) -> None:
    r = request([Transfer(1)], error=error)
    if how == "done":
        deadline = steady_time() + 5
        while not r.done():
            assert steady_time() < deadline
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            r.wait(timeout=5 if how == "poll" else None)
    assert r.done()
    assert r.result is None


class LibraryError(Exception):
    """Stands for MPI.Exception."""


def mapping(transfer: Transfer) -> Generator[Any, Any, Any]:
    """As the transport does: the library's error in our words."""
    try:
        yield [transfer]
    except LibraryError:
        raise hpcomm.TransportError("MPI failed") from None


@pytest.mark.parametrize("how", ["wait", "poll", "done"])
def test_an_error_of_the_library_is_said_in_the_words_of_its_stage(how: str) -> None:
    r = Request("verb(x)", mapping(Transfer(error=LibraryError())))
    if how == "done":
        assert r.done()
    for _ in range(2):
        with pytest.raises(hpcomm.TransportError, match="MPI failed"):
            r.wait(timeout=5 if how == "poll" else None)


def test_an_error_before_the_first_stage_is_raised_at_once_and_leaves_no_request(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with pytest.raises(hpcomm.UsageError, match="no pickle"):
        request(error=hpcomm.UsageError("no pickle"))
    gc.collect()
    assert [w.message for w in recwarn.list] == []
    assert module._abandoned == []


def test_an_await_passes_an_error_on() -> None:
    async def main() -> None:
        await request([Transfer(2)], error=hpcomm.MismatchError("no fit"))

    with pytest.raises(hpcomm.MismatchError, match="no fit"):
        asyncio.run(main())


def test_an_await_leaves_the_loop_to_others() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        for _ in range(20):
            ticks += 1
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(tick(), request([Transfer(50)]))

    asyncio.run(main())
    assert ticks == 20


def test_a_request_dropped_unfinished_warns_with_its_line_and_keeps_its_memory() -> None:
    memory = bytearray(3)

    def receiving(memory: bytearray) -> Generator[Any, Any, Any]:
        yield [Transfer(None)]
        return memory

    r, born = Request("recv(x)", receiving(memory)), f"test_request.py:{sys._getframe().f_lineno}"
    with pytest.warns(RuntimeWarning, match=re.escape(f"recv(x), started at {born}, was dropped")):
        del r
    alive = [generator.gi_frame.f_locals for _, generator, _ in module._abandoned]
    assert [names["memory"] is memory for names in alive] == [True]


def test_a_request_dropped_complete_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    request([Transfer(1)]).wait()
    r = request([Transfer(0)])
    assert r.done()
    del r
    gc.collect()
    assert [w.message for w in recwarn.list] == []


def test_a_request_shows_its_call_its_state_and_its_line() -> None:
    r, born = Request("verb(x)", stages([Transfer(1)])), f"test_request.py:{sys._getframe().f_lineno}"
    assert repr(r) == f"<Request verb(x), under way, started at {born}>"
    r.wait()
    assert repr(r) == f"<Request verb(x), complete, started at {born}>"
    assert r.call == "verb(x)"
    assert r.birth == born
