"""Waiting for several requests: for all of them, or for any."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from ..errors import UsageError, WaitTimeoutError
from .patience import Pause
from .present import several
from .request import Polled, Request, deadline

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Given = TypeVar("Given")


class Waitable(Protocol[T_co]):
    """A Request or a Plan."""

    def wait(self, timeout: float | None = None) -> T_co: ...


def wait_all(requests: Iterable[Waitable[T]], timeout: float | None = None) -> list[T]:
    """Wait for all requests and return their results in order.

    Raises:
        WaitTimeoutError: timeout seconds, for all of them together, are over. Those that are complete stay
            so. Without a timeout the shortest comm.timeout of their communicators counts.
        PeerFailedError: a rank that must send an object or ragged array has ended. With a timeout: any rank
            that is needed.
        UsageError: timeout is not a number of seconds, or requests has something else than requests.
    """
    pending = _requests("wait_all", requests)
    timeout = min(_limits(pending), default=None) if timeout is None else timeout
    end = None if timeout is None else deadline(timeout)
    if len(pending) > 1 and any(
        getattr(_call(request), "stages", pending) is not None for request in pending
    ):
        _move_on(pending, end)
    if end is None:
        return [request.wait() for request in pending]
    done: list[T] = []
    try:
        for request in pending:
            done.append(request.wait(max(0.0, end - time.monotonic())))  # noqa: PERF401  it counts them
    except WaitTimeoutError as error:
        late = f"{_call(pending[len(done)])}, of {len(pending)} requests,"
        what = f"{late} was not complete after {float(timeout or 0):g} s"
        raise WaitTimeoutError(what, error.where, error.hint) from None
    return done


def _move_on(pending: Sequence[object], end: float | None) -> None:
    """Ask all requests in turn, until they are complete or it is time: some progress only if asked."""
    polled, pause = Polled([each for each in pending if isinstance(each, Request)]), Pause()  # not plans
    told = several("wait_all", polled, end not in (None, math.inf))
    with told:
        while True:
            left = [request for request in polled.requests if not _has_ended(request)]
            if len(left) < len(polled.requests):
                polled.requests = left
                told.note()
            if not polled.requests or (end is not None and time.monotonic() >= end):
                return
            polled.turn()
            pause.sleep()


def _has_ended(request: Request[object]) -> bool:
    if not request.done():
        return False
    request.wait()  # raises what went wrong
    return True


def wait_any(requests: Sequence[Request[T]], timeout: float | None = None) -> tuple[int, T]:
    """Wait until one of the requests is complete; return its place in requests and its result.

    Raises:
        WaitTimeoutError: none was complete after timeout seconds; without a timeout, after the longest
            comm.timeout, if all their communicators have one.
        PeerFailedError: the ranks that all of them need have ended.
        UsageError: requests is empty or has something else than requests, or timeout is not a number of
            seconds.
    """
    pending = _requests("wait_any", requests)
    if not pending:
        what = "wait_any was given no request"
        raise UsageError(what, "wait_any", "at least one; wait_all takes none, too")
    if timeout is None and len(limits := _limits(pending)) == len(pending):
        timeout = max(limits)
    end = None if timeout is None else deadline(timeout)
    polled, pause = Polled(pending, is_any=True), Pause()
    with several("wait_any", polled, end not in (None, math.inf)):
        while True:
            for i, request in enumerate(pending):
                if request.done():
                    return i, request.wait()
            if timeout is not None and end is not None and time.monotonic() >= end:
                raise WaitTimeoutError(
                    f"none of {len(pending)} requests was complete after {float(timeout):g} s",
                    f"the first, {pending[0].call}, was started at {pending[0].birth}",
                    "wait again, or look for the ranks that did not make the matching calls",
                )
            polled.turn()
            pause.sleep()


def _limits(pending: Iterable[object]) -> list[float]:
    """comm.timeout of the communicators of requests that have one."""
    needs = (getattr(each, "waits_for", None) for each in pending)
    return [each[0].timeout_s for each in needs if each and each[0].timeout_s is not None]


def _requests(name: str, given: Iterable[Given]) -> list[Given]:
    """What was given to wait for, as a list."""
    found = list(given) if isinstance(given, Iterable) else [given]
    needed = ("wait", "done") if name == "wait_any" else ("wait", "_call")  # plans can be waited for
    for each in found:
        if not isinstance(each, Request) and not all(hasattr(each, what) for what in needed):
            what = f"{name} was given {each!r}, which is no request"
            raise UsageError(what, name, "what isend, irecv and calls with async_op=True return, in a list")
    return found


def _call(request: object) -> object:
    return getattr(request, "_call", None)
