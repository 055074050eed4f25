"""Requests: handles of operations under way.

A Request owns the arrays of its call until the call is complete, and gives at the end exactly what
the blocking form would have returned. Calls of several stages (sizes first, then data) are generators
that yield the MPI requests of one stage at a time; the Request drives them.

    started ──> stage 1 under way ──> stage 2 under way ... ──> complete ──> result given
                    │ each wait(), done() or `move_rounds` tests the stage's MPI requests,
                    └ and when all are over resumes the generator, which yields the next stage
"""

from __future__ import annotations

import math
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from numbers import Real
from types import CodeType, FrameType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .._lazy import MPI
from ..errors import (
    HpcommError,
    PeerFailedError,
    UsageError,
    calling_frame,
    incomplete,
    line_number,
    source_line,
)
from .comm import Comm
from .limits import REQUEST_PAUSE_S, WATCHDOG_TICK_S
from .patience import Pause, is_interrupt, patience, until
from .present import MESSAGE, NONE, waiting
from .status import Status
from .turn import Turn
from .types import AnyStatus
from .untaken import untaken
from .verbs import receives

T_co = TypeVar("T_co", covariant=True)
# What is waited for, as core/present.py has it: communicator, peer, number, verb, tag.
Needs: TypeAlias = "tuple[Comm, int | None, int, str, int | None]"


class Pending(Protocol):
    """A request of MPI, or what waits like one."""

    def Test(self, status: MPI.Status | None = None, /) -> bool: ...  # noqa: N802
    def Wait(self, status: MPI.Status | None = None, /) -> object: ...  # noqa: N802


StagesOf: TypeAlias = Generator["list[Any]", "list[MPI.Status]", T_co]  # of what is Pending
Stages: TypeAlias = StagesOf[Any]

_abandoned: list[object] = []  # requests dropped unfinished: MPI still writes into their memory
# Requests that are progressed by whoever waits for any request, and in other blocking calls by a thread.
rounds_under_way: dict[int, weakref.ref[Request[object]]] = {}
on_rounds: list[Callable[[], None]] = []  # to call when there are some: see transport.progress
BRIEF_S = 1.0  # in which a thread that only asks has asked
_next_sweep = 0.0  # s, by time.monotonic(): not before that they are asked again


class Request(Generic[T_co]):
    """A call in the background. Keep it, and wait for it. A request that is dropped too early warns.

    Several threads and tasks may wait for one request; each gets its result.

    Attributes:
        result: what wait() returned; None before that.
        status: of a receive: a Status, filled when the message has arrived.
        waits_for: what hpcomm's own layers know of it; not for programs.
    """

    __slots__ = (
        "__weakref__",
        "_born",
        "_call",
        "_error",
        "_has_failed",
        "_pending",
        "_stages",
        "_statuses",
        "_turn",
        "result",
        "status",
        "waits_for",
    )

    _has_failed: bool
    _memory: object = None  # what MPI reads or writes, if stages do not keep it

    def __init__(self, call: object, stages: StagesOf[T_co], status: AnyStatus | None = None) -> None:
        self._call = call
        self.result: T_co | None = None
        self.status: Status | None = status  # type: ignore[assignment]  # or mpi4py's, where it was given
        self._error: BaseException | None = None
        self.waits_for: Needs | None = None
        self._stages: StagesOf[T_co] | None = None  # until the first stage has begun there is nothing to own
        self._statuses: list[MPI.Status] = []
        self._born = birth(sys._getframe(1))
        self._pending: list[Any] = []
        self._turn = Turn()  # MPI does not let two threads wait for one of its requests
        try:
            self._pending = next(stages)
            self._stages = stages
        except StopIteration as end:  # nothing to wait for
            self.result = end.value

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait for the end, and return what the blocking call would have returned. May be called again.

        Args:
            timeout: seconds; None: comm.timeout of its communicator, or no limit.

        Raises:
            WaitTimeoutError: the time is over. The request is still under way: wait again, or end the job.
            PeerFailedError: the rank that it needs has ended. Without a timeout the job ends instead.
            UsageError: timeout is not a number of seconds.
        """
        if timeout is None:
            timeout = patience(self.waits_for and self.waits_for[0])
        end = None if timeout is None else deadline(timeout)
        if self._stages is None:
            return self._outcome()
        with waiting(self, ends=end not in (None, math.inf)):
            if timeout is None or end is None:
                if rounds_under_way:
                    self._wait_beside_others()
                while self._stages is not None and not self._turn.take(self._wait_for_ever):
                    time.sleep(REQUEST_PAUSE_S)
            elif not self._poll(end):
                late = incomplete(self.call, timeout, f"started at {self.birth}")
                late.hint = other_message(self) or late.hint
                raise late
        return self._outcome()

    def done(self) -> bool:
        """Whether the call is complete. Never blocks. The call makes progress in it."""
        if self._stages is None:
            return True
        if rounds_under_way:
            move_rounds(self)
        return self._ask()

    def _ask(self) -> bool:
        """done(), without looking at other requests."""
        return bool(self._turn.take(self._move_on))

    def _move_on(self) -> bool:
        while self._stages is not None:
            for i in range(len(self._pending) - 1, -1, -1):
                status = self._status_of(i)
                try:
                    if not self._pending[i].Test(status):
                        return False
                    self._pending.pop()
                except BaseException as error:
                    self._throw(i, error)
                    return True
            self._next_stage()
        return True

    def cancel(self) -> bool:
        """Take back a receive whose message has not begun to come. Same as MPI_Cancel of a receive.

        No message is lost: one that comes later is for other receives, one that is here stays for wait().
        Arrays on a device, receives that another thread waits for, and all that is no receive go on.

        Returns:
            Whether it was taken back. Then it is complete, and wait() returns None.
        """
        end = time.monotonic() + BRIEF_S
        while (is_back := self._turn.take(self._take_back)) is None and time.monotonic() < end:
            time.sleep(REQUEST_PAUSE_S)
        return bool(is_back)

    def _take_back(self) -> bool:
        if self._stages is None or len(self._pending) != 1:
            return False
        each = self._pending[0]
        if hasattr(each, "withdraw"):  # an Arrival
            is_back = each.withdraw()
        elif getattr(self._call, "verb", "") == "recv" and hasattr(each, "Cancel"):
            seen = self._status_of(0)
            each.Cancel()
            each.Wait(seen)
            is_back = seen.Is_cancelled()
            if not is_back:
                self._pending.clear()
                self._next_stage()
        else:
            return False
        if is_back:
            self._stages.close()
            self._stages, self._pending = None, []
        return bool(is_back)

    def synchronize(self) -> None:
        """Block the host until the call is complete. On host memory this is wait()."""
        self.wait()

    @property
    def is_under_way(self) -> bool:
        """Whether nobody has seen its end yet; asks nobody."""
        return self._stages is not None

    @property
    def call(self) -> str:
        """What was called, for messages."""
        return str(self._call)

    @property
    def birth(self) -> str:
        """The line that started the call: file and number."""
        return "?" if self._born is None else source_line(self._born[0], line_number(*self._born))

    def __await__(self) -> Generator[object, None, T_co]:
        import asyncio

        polled, delay = Polled([self]), 0.0
        while not self.done():
            polled.turn()
            yield from asyncio.sleep(delay).__await__()
            delay = min(delay + 2e-5, 1e-3)  # short messages are there at once, long ones need no haste
        return self._outcome()

    def __repr__(self) -> str:
        state = "complete" if self._stages is None else "under way"
        return f"<Request {self.call}, {state}, started at {self.birth}>"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_stages", None) is None or is_finalizing():  # an argument: globals may have gone
            return
        for each in self._pending:
            if hasattr(each, "withdraw"):  # an Arrival, which would take a message for nobody
                each.withdraw()
        abandon(self._pending, self._stages, self._memory)
        if getattr(self, "_has_failed", False):  # somebody has been told that it cannot complete
            return
        whose = ""
        if self.waits_for is not None:
            comm = self.waits_for[0]
            whose = f" on '{comm.name}' (rank {comm.rank} of {comm.size})"
        warnings.warn_explicit(  # a ResourceWarning would not be shown
            f"{self.call}{whose}, started at {self.birth}, was dropped before it was complete; "
            "keep the request and wait()",
            RuntimeWarning,
            "?" if self._born is None else self._born[0].co_filename,
            0 if self._born is None else line_number(*self._born) or 0,
        )

    def _outcome(self) -> T_co:
        if self._error is not None:
            raise self._error
        return self.result  # type: ignore[return-value]  # it is complete

    def _wait_beside_others(self) -> None:
        """Wait while there are others to be progressed: their ranks may be what this one waits for."""
        until(lambda: self._stages is None or not move_rounds(self) or self._ask())

    def _wait_for_ever(self) -> bool:
        while self._stages is not None:
            try:
                for i in range(len(self._pending) - 1, -1, -1):
                    self._pending[i].Wait(self._status_of(i))
                    self._pending.pop()
            except BaseException as error:
                self._throw(i, error)
                return True
            self._next_stage()
        return True

    def _poll(self, end: float) -> bool:
        polled, pause = Polled([self]), Pause()
        while not self.done():
            if time.monotonic() >= end:
                return False
            polled.turn()
            pause.sleep()
        return True

    def _status_of(self, i: int) -> MPI.Status:
        while len(self._statuses) <= i:
            self._statuses.append(MPI.Status())
        return self._statuses[i]

    def _next_stage(self) -> None:
        assert self._stages is not None
        statuses, self._statuses = self._statuses, []
        try:
            self._pending = self._stages.send(statuses)
        except StopIteration as end:
            self.result, self._stages = end.value, None
        except BaseException as error:  # ours, one of the user's own operator, or Ctrl-C in it
            self._error, self._stages = self._located(error), None
            if not isinstance(error, Exception):
                raise

    def _throw(self, i: int, error: BaseException) -> None:
        """Hand a failure of MPI to the generator, which knows how to say it.

        An error of a signal's handler, such as Ctrl-C, goes to the program. It came before MPI's call for a
        message, or after it: whoever waits again gets the message.
        """
        assert self._stages is not None
        if is_interrupt(error):
            if len(self._pending) > i and not self._pending[i]:  # MPI's null: complete, its status is known
                self._pending.pop()
            raise error
        try:
            self._stages.throw(error)
        except BaseException as said:
            self._error, self._stages, self._pending = self._located(said), None, []
            if not isinstance(said, Exception):
                raise

    def _located(self, error: BaseException) -> BaseException:
        """An error with the line that began the call, if no line of the program is waiting for it."""
        if isinstance(error, HpcommError) and error.where and calling_frame() is None:
            error.where += f", started at {self.birth}"
        return error


def birth(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The user's code that is running, and at which of its bytes: to ask for the line takes longer."""
    user = calling_frame(frame)
    return (user.f_code, user.f_lasti) if user else None


def note_message(request: Request[Any], comm: Comm, verb: str, peer: int | None, tag: int | None) -> None:
    """Note that it is a message from or to peer, for the watchdog (watch/watchdog.py)."""
    request.waits_for = (comm, peer, MESSAGE, verb, tag)


def note_collective(request: Request[Any], comm: Comm, verb: str) -> None:
    """Note that all ranks of comm must make this call of verb, its last one so far."""
    number = NONE if comm.near.watched is None else comm.last_call()
    request.waits_for = (comm, None, number, verb, None)


def note_comparison(request: Request[Any], leave: Any) -> None:
    """Let it wait first for the comparison with another group, if leave is one (agree/agreement.py)."""
    if hasattr(leave, "keeps"):

        def add() -> bool:
            if request._stages is not None:
                leave.keeps = [request._call, request._stages, *request._pending]
                request._pending.append(leave)
            return True

        until(lambda: request._turn.take(add))


def note_rounds(request: Request[Any]) -> None:
    """Note that it progresses only while it is asked: who waits for another request must ask it, too."""
    if request._stages is not None:
        key, forget = id(request), rounds_under_way.pop
        rounds_under_way[key] = weakref.ref(request, lambda _: forget(key, None))
        for begin in on_rounds:
            begin()


def abandon(*memory: object) -> None:
    """Keep for ever what MPI may still write into, though nobody else looks at it any more."""
    _abandoned.append(memory)


def has_rounds() -> bool:
    """Whether any requests that go in rounds are not complete."""
    return bool(_in_rounds())


def _in_rounds() -> list[Request[object]]:
    """The requests that go in rounds and are not complete; forgets the others."""
    found = []
    for key, reference in list(rounds_under_way.items()):
        request = reference()
        if request is None or request._stages is None:
            rounds_under_way.pop(key, None)
        else:
            found.append(request)
    return found


def move_rounds(but: Request[object] | None = None) -> bool:
    """Ask all requests that go in rounds, but for one; whether there are any.

    It takes half of the time at most: who asks each of many requests in turn comes by once for each.
    """
    global _next_sweep
    begin = time.monotonic()
    if begin < _next_sweep:
        return True
    others = [request for request in _in_rounds() if request is not but]
    for request in others:
        request._ask()
    end = time.monotonic()
    _next_sweep = end + (end - begin)
    return bool(others)


class Again:
    """In place of a persistent request of MPI: the same call in the background, begun anew at each start."""

    def __init__(self, name: str, begin: Callable[[], Request[Any]]) -> None:
        self.name, self._begin = name, begin
        self._request: Request[Any] | None = None

    def Start(self) -> None:  # noqa: N802  as MPI.Prequest has it
        self._request = self._begin()

    def Test(self, status: object = None) -> bool:  # noqa: N802
        return self._request is None or self._request.done()

    def Wait(self, status: object = None) -> None:  # noqa: N802
        if self._request is not None:
            self._request.wait()

    def Free(self) -> None:  # noqa: N802
        self._request = None


class Polled:
    """Requests that somebody asks again and again. is_any: whether it is enough if one can complete."""

    __slots__ = ("_looks", "_next", "_turns", "is_any", "requests")

    def __init__(self, requests: Sequence[Request[object]], is_any: bool = False) -> None:
        self.requests, self.is_any = requests, is_any
        self._turns = self._looks = 0  # how many looks in a row have found it in vain
        self._next = 0.0

    def turn(self) -> None:
        """Note that all have been asked and are not complete.

        Raises:
            PeerFailedError: they cannot be any more.
        """
        self._turns += 1
        if self._turns < _MANY or self._turns % _ASKED or judge is None:
            return
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + WATCHDOG_TICK_S
        found = [judge(request) for request in self.requests]
        is_lost = (all if self.is_any else any)(found)
        self._looks = self._looks + 1 if is_lost else 0
        if self._looks > _PATIENT:
            for request in self.requests:
                request._has_failed = True
            raise next(filter(None, found))


_MANY = 50  # turns after which it is no short wait
_ASKED = 10  # turns between two looks at least: MPI progresses only while it is asked
_PATIENT = 4  # looks that do not count yet: what is needed may still be on its way
# Why a request cannot complete, or None: see watch/watchdog.py
judge: Callable[[Request[Any]], PeerFailedError | None] | None = None


def deadline(timeout: float) -> float:
    """When timeout seconds from now are over, by time.monotonic()."""
    if isinstance(timeout, Real) and timeout >= 0:
        return time.monotonic() + float(timeout)
    raise UsageError(f"timeout={timeout!r} is no number of seconds", hint="leave it away to wait for ever")


def other_message(request: Request[Any]) -> str:
    """What to try where another message has come than the one that a request waits for; "": none has."""
    if request.waits_for is None:
        return ""
    comm, source, number, verb, _ = request.waits_for
    if number != MESSAGE or (of_objects := receives(verb)) is None:
        return ""
    there = untaken(comm, of_objects, source)
    return there and f"{there}: the same tag and rank on both sides, tag=None for any; or wait again"
