"""One thread at a time: collective calls of a communicator by two threads of a rank at once are refused.

MPI, flags in shared memory and the call log tell the calls of a communicator apart by their order alone. So
what two threads call at once may meet the wrong call of another rank. A thread is noted while it makes a
call on the general path, or once it waits in shared memory for longer than a moment; who comes to a call of
another thread raises, and so does that one as soon as it can. Small calls that need not wait pass
unnoticed, and cost nothing more. The watchdog ends a job two of whose threads are inside MPI.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from ..core.signature import VERBS
from ..errors import UsageError, is_ours, where
from .call_stack import call_frame, comm_of, describe_call, is_own, names_of

if TYPE_CHECKING:
    from ..core.comm import Comm

_WHY = "may be out of step since two threads of one called at once"
_PATIENT = 4  # looks in a row that find two calls at once


class CallGuard:
    """A context: the calling thread makes a collective call of comm.

    Raises:
        UsageError: another thread is in one, at the beginning; or has come to this one, at the end.
    """

    __slots__ = ("_comm", "_depth", "_met", "_thread", "waiting")

    def __init__(self, comm: Comm) -> None:
        self._comm, self._met = comm, ""  # what a second thread called
        self.waiting = 0  # the thread that waited last in the native core (arrivals.py)
        self._thread = self._depth = 0  # who is in a call, and in how many: an operator may make one

    def __enter__(self) -> None:
        own = threading.get_ident()
        node = self._comm.node
        if self._thread not in (0, own) or (node is not None and node.busy):
            raise self.refusal()
        self._thread = own
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._thread = 0
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise if another thread has come to this call."""
        if self._met:
            other, self._met = self._met, ""
            raise _error(self._comm, describe_call(), other)

    def refusal(self) -> UsageError:
        """The error for the calling thread, which has come to a call of another one; that one hears of it."""
        frame = sys._current_frames().get(self._thread or self.waiting)
        self._met = describe_call()
        self._comm.fall_out(_WHY)
        return _error(self._comm, self._met, describe_call(frame) if frame else "a call that is over by now")


class ConcurrentCalls:
    """Two threads of this rank that are in collective calls of one communicator at each look."""

    def __init__(self) -> None:
        self._times = 0

    def look(self) -> str | None:
        """What is to be said before the job ends; None: all is well so far."""
        found = _two_calls()
        self._times = 0 if found is None else self._times + 1
        if found is None or self._times < _PATIENT:
            return None
        comm, first, second = found
        return str(_error(comm, describe_call(first), describe_call(second)))


def _two_calls() -> tuple[Comm, FrameType, FrameType] | None:
    """A communicator, and the innermost frames of two threads that are in collective calls of it."""
    others = [each for each in threading.enumerate() if not is_own(each)]
    if len(others) > 1:
        frames = sys._current_frames()
        current = {thread.ident: frames.get(thread.ident or 0) for thread in others}
        frames.clear()  # this frame and those of our threads, which look so, too: they would keep each other
        calls: dict[int, FrameType] = {}
        for thread in others:
            inner = current[thread.ident]
            verb = None if inner is None else _collective(inner)
            comm = None if verb is None else comm_of(verb)
            if inner is not None and comm is not None:
                first = calls.setdefault(id(comm), inner)
                if first is not inner:
                    return comm, first, inner
    return None


def _collective(inner: FrameType) -> FrameType | None:
    """The frame of the collective verb in which a thread with this innermost frame is."""
    if not is_ours(inner.f_code):  # it runs, and its stack may be half gone
        return None
    verb, _ = call_frame(inner, is_chosen=lambda frame: comm_of(frame) is not None)
    is_one = verb is not None and verb.f_code.co_name in VERBS and not names_of(verb).get("async_op")
    return verb if is_one else None


def _error(comm: Comm, mine: str, other: str) -> UsageError:
    return UsageError(
        f"two threads make collective calls of '{comm.name}' at once.\n"
        f"  this thread: {mine}\n  another one: {other}",
        where(mine.split("(")[0], comm),
        "give each thread a communicator of its own, made by dup(), or let one call after the other, in the"
        " same order on all ranks; messages may go at any time",
    )
