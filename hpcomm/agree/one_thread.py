"""One thread at a time: collective calls of a communicator by two threads of a rank at once are refused.

MPI, flags in shared memory and the call log tell the calls of a communicator apart by their order alone. So
what two threads call at once may meet the wrong call of another rank. A thread is noted while it makes a
call on the general path, or once it waits in shared memory for longer than a moment; who comes to a call of
another thread raises, and so does that one as soon as it can. Small calls that need not wait pass
unnoticed, and cost nothing more. The watchdog ends a job two of whose threads are inside MPI.
"""

from __future__ import annotations

import threading

from ..core.comm import Comm
from ..core.present import is_own
from ..core.signature import VERBS
from ..errors import UsageError, where
from .present_calls import call_of, describe_call, verb_now

_WHY = "may be out of step since two threads of one called at once"


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
        if kind is None and self._met:
            self.check()

    def check(self) -> None:
        """Raise if another thread has come to this call."""
        if self._met:
            other, self._met = self._met, ""
            raise _error(self._comm, describe_call(), other)

    def refusal(self) -> UsageError:
        """The error for the calling thread, which has come to a call of another one; that one hears of it."""
        other = self._thread or self.waiting
        self._met = describe_call()
        self._comm.fall_out(_WHY)
        is_there = other and call_of(other) is not None
        return _error(
            self._comm, self._met, describe_call(other) if is_there else "a call that is over by now"
        )


def concurrent_calls() -> str | None:
    """What is to be said if two threads stay in collective calls of one communicator, as they are now."""
    if threading.active_count() < 3:  # this one, and another one
        return None
    first: dict[int, int] = {}
    for thread in (each.ident for each in threading.enumerate() if each.ident and not is_own(each)):
        call = call_of(thread, of_comm=True)
        if call is not None and call.comm is not None and call.verb in VERBS and call.waits:
            before = first.setdefault(id(call.comm), thread)
            if before != thread:
                return str(_error(call.comm, describe_call(before), describe_call(thread)))
    return None


def _error(comm: Comm, mine: str, other: str) -> UsageError:
    return UsageError(
        f"two threads make collective calls of '{comm.name}' at once.\n"
        f"  this thread: {mine}\n  another one: {other}",
        where(verb_now(), comm),
        "give each thread a communicator of its own, made by dup(), or let one call after the other, in the"
        " same order on all ranks; messages may go at any time",
    )
