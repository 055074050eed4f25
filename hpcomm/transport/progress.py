"""Progress: requests that need the host again and again, and a thread that serves them.

An MPI library progresses its own messages inside any of its calls. A call of several steps is progressed by
whoever waits for any such request, and by a thread that sleeps when there is none. Steps on a device, and
rounds of schedules, it progresses all the time. Those of objects and ragged arrays it progresses only while a
thread of the program is in any call of hpcomm, such as a blocking one of another verb; not between two lines
of the program, where nobody expects an object to be unpickled.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from .._lazy import MPI
from ..agree import runtime
from ..core.limits import PROGRESS_LOOK_S
from ..core.patience import Pause
from ..core.present import waiting
from ..core.request import (
    Request,
    Stages,
    StagesOf,
    T_co,
    deadline,
    has_rounds,
    move_rounds,
    on_rounds,
)
from ..errors import WaitTimeoutError, incomplete, is_ours


class After(Protocol):
    """What a call leaves on a device (device/staging.py)."""

    def done(self) -> bool: ...
    def order(self) -> None: ...
    def synchronize(self) -> None: ...


_lock = threading.RLock()
_under_way: list[StreamRequest[Any] | Moving] = []
_work = threading.Event()
_thread: list[threading.Thread] = []
_starting = threading.RLock()  # of the thread; not _lock, which it may hold for long
_others: list[tuple[Collection[object], Callable[[], None]]] = []  # what goes in rounds, how to move it on


class StreamRequest(Request[T_co]):
    """A call whose arrays lie on a device.

    wait() returns when the current stream is in order behind the call: what is put into it from now on sees
    the result, and may overwrite x. synchronize() waits until the result is there; done() asks whether it is.
    """

    __slots__ = ("_after",)

    def __init__(self, call: object, stages: StagesOf[T_co], after: After) -> None:
        self._after = after
        with _lock:
            super().__init__(call, stages)
            if self._stages is not None:
                _under_way.append(self)
                wake()

    def wait(self, timeout: float | None = None) -> T_co:
        end = None if timeout is None else deadline(timeout)
        with waiting(self, ends=end is not None):
            self._poll_until(end, timeout)
        result = self._outcome()
        self._after.order()
        return result

    def _poll_until(self, end: float | None, timeout: float | None) -> None:
        pause = Pause()
        while self._stages is not None:
            advance()
            move_rounds()
            if self._stages is not None:
                if end is not None and time.monotonic() >= end:
                    raise incomplete(self.call, timeout or 0.0, f"started at {self.birth}")
                pause.sleep()

    def done(self) -> bool:
        advance()
        return self._stages is None and (self._error is not None or self._after.done())

    def synchronize(self) -> None:
        self.wait()
        self._after.synchronize()

    def step(self) -> bool:
        """Move on without waiting; whether the host's part is over."""
        return self._ask()


class Until:
    """Something that comes true by itself, waited for as an MPI request is."""

    def __init__(self, test: Callable[[], bool]) -> None:
        self._test = test

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        return self._test()


class _Branch:
    """Stages that are moved on by whoever asks.

    Attributes:
        result: what they returned.
    """

    def __init__(self, stages: Stages) -> None:
        self.result: Any = None
        self._stages: Stages | None = self._noted(stages)
        self._pending: list[Any] = list(next(self._stages, ()))

    def _noted(self, stages: Stages) -> Stages:
        self.result = yield from stages

    def step(self) -> bool:
        """Move on without waiting; whether it is over."""
        try:
            while self._stages is not None:
                while self._pending:
                    if not self._pending[-1].Test():
                        return False
                    self._pending.pop()
                self._pending = list(next(self._stages))
        except StopIteration:
            self._stages = None
        return True


class Together:
    """Several stages of one call, carried on side by side; waited for as an MPI request is."""

    def __init__(self, branches: Iterable[Stages]) -> None:
        self._under_way = [*map(_Branch, branches)]

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        self._under_way = [branch for branch in self._under_way if not branch.step()]
        return not self._under_way


class Moving(_Branch):
    """Stages that begin at once and that the thread progresses, too; waited for as an MPI request is."""

    def __init__(self, stages: Stages) -> None:
        self._error: Exception | None = None
        with _lock:
            super().__init__(stages)
            _under_way.append(self)
            wake()

    def step(self) -> bool:
        try:
            return super().step()
        except Exception as error:
            self._error, self._stages = error, None
        return True

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        with _lock:
            is_over = self.step()
        if self._error is not None:
            raise self._error
        return is_over

    def Wait(self, status: object = None) -> None:  # noqa: N802
        pause = Pause()
        while not self.Test():
            advance()
            pause.sleep()


class Thread:
    """Work that blocks, in a thread; waited for as an MPI request is, for limit_s seconds at most."""

    def __init__(self, work: Callable[[], object], limit_s: float | None = None) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self._limit_s, self._end = limit_s, None if limit_s is None else time.monotonic() + limit_s

        def run() -> None:
            try:
                self.result = work()
            except Exception as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True, name="hpcomm waits")
        self._thread.start()

    @property
    def why(self) -> str:
        """What went wrong, or ""."""
        return "" if self.error is None else f"{getattr(self.error, 'what', self.error)}"

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        if self._thread.is_alive() and self._end is not None and time.monotonic() > self._end:
            self.error = WaitTimeoutError(f"it took longer than {self._limit_s:g} s")
            return True
        return not self._thread.is_alive()


def in_thread(work: Callable[[], object]) -> Stages:
    """The stages of work that blocks."""
    thread = Thread(work)
    yield [thread]
    if thread.error is not None:
        raise thread.error
    return thread.result


def advance() -> None:
    """Move all requests of this process on, without waiting."""
    with _lock:
        for each in tuple(_under_way):
            if each in _under_way and each.step():  # one step may lead into another advance
                _under_way.remove(each)


def drive(stages: Stages) -> Any:
    """Carry out all stages now, moving other requests on meanwhile; return what they return."""
    iterator: Any = iter(stages)
    said: list[MPI.Status] | None = None
    while True:
        try:
            waits = iterator.send(said)
        except StopIteration as end:
            return end.value
        said = [MPI.Status() for _ in waits]
        for each, status in zip(waits, said, strict=True):
            pause = Pause()
            while not each.Test(status):
                advance()
                pause.sleep()


def beside(under_way: Collection[object], move: Callable[[], None]) -> None:
    """Have move() called while under_way is not empty; who adds to it calls wake()."""
    _others.append((under_way, move))


def wake() -> None:
    """Let the thread work, if MPI lets several threads call it."""
    if not _thread and runtime.has_threads():
        with _starting:
            if not _thread:
                _thread.append(threading.Thread(target=_run, daemon=True, name="hpcomm progress"))
                _thread[0].start()
    _work.set()


def stop() -> None:
    """Let the thread call MPI no more."""
    has_lock = _lock.acquire(timeout=1.0)
    _is_over.set()
    if has_lock:
        _lock.release()


on_rounds.append(wake)
_is_over = threading.Event()


def _run() -> None:
    pause = Pause()
    while True:
        if not _is_any():
            _work.clear()
            if not _is_any():
                _work.wait()
            pause = Pause()
        time.sleep(5e-5)  # who waits itself is quicker, and should be
        # A device's steps always; those of objects and host arrays only while a call of ours runs.
        with _lock:
            if _is_over.is_set() or MPI.Is_finalized():
                return
            advance()
            waits = _move_others()
        if waits or _under_way:
            pause.sleep()
        else:
            time.sleep(PROGRESS_LOOK_S)
            pause = Pause()


def _move_others() -> bool:
    """Move on schedules, and what may only move while somebody waits; whether anything moves."""
    waits = has_rounds() and _is_waited()
    if waits:
        move_rounds()
    moved = [move for each, move in _others if each]
    for move in moved:
        move()
    return waits or bool(moved)


def _is_any() -> bool:
    return bool(_under_way) or has_rounds() or any(each for each, _ in _others)


def _is_waited() -> bool:
    """Whether a thread of the program is inside a call of hpcomm, and not in code of the user's own there."""
    own = {each.ident for each in threading.enumerate() if each.name.startswith("hpcomm")}
    return any(is_ours(frame.f_code) for ident, frame in sys._current_frames().items() if ident not in own)
