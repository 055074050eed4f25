"""Timeouts of blocking operations: `comm.timeout = 30`.

The native core ends its waits itself. A blocking call of MPI cannot be called back: so on such a communicator
a blocking verb that goes by MPI is the same call in the background, which is waited for and given up after
that time. Another MPI function runs then, so all ranks set a timeout, or none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

from ..core.request import Pause, Request, abandon, other_message
from ..core.verbs import RAGGED
from ..errors import UsageError, WaitTimeoutError, where

if TYPE_CHECKING:
    from ..core.status import Status
    from . import collectives, reductions
    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    collectives = LazyModule("hpcomm.communicator.collectives")
    reductions = LazyModule("hpcomm.communicator.reductions")

_HINT = "look for the rank that did not make the matching call; comm.timeout sets the time"


class Timeout:
    """Seconds that a blocking verb, or a wait without a timeout of its own, may take; None: for ever.

    Then it raises WaitTimeoutError. A receive is taken back; what else was begun stays under way, so other
    ranks may still come to it. Within a node that holds for one collective: the next one that is given up
    before they came is withdrawn, and they get PeerFailedError there. Communicators made of this one take
    it over. Set it on all ranks alike: with check="light" or "full" ranks that differ raise MismatchError.
    """

    def __get__(self, comm: Communicator | None, owner: type) -> float | None:
        return None if comm is None else comm.timeout_s

    def __set__(self, comm: Communicator, seconds: float | None) -> None:
        comm.check_open("timeout")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, Real) or seconds <= 0
        ):
            raise UsageError(
                f"timeout must be a number of seconds above 0, not {seconds!r}",
                where("timeout", comm),
                "None: for ever",
            )
        comm.timeout_s = seconds
        if comm.node is not None:
            comm.node.timeout = seconds or 0
        made = vars(comm)
        if seconds is None:
            for name in (*_verbs(type(comm)), *_BY_HAND):
                made.pop(name, None)
            comm.go_direct()
            return
        comm.leave_direct()
        comm.go_direct()
        for plan in tuple(comm.outstanding.plans):
            plan.slow_down()
        for name, (function, at) in _verbs(type(comm)).items():
            made[name] = partial(_call, comm, function, at)
        for name, begin in _BY_HAND.items():
            made[name] = partial(begin, comm)


def _verbs(kind: type) -> dict[str, tuple[Callable[..., object], int]]:
    """The verbs that go in the background, too, and where among their arguments that is said; -1: by name.

    Not those that see to it themselves: the collectives (collectives.careful, payload_agreement.collective)
    and sendrecv, of two messages.
    """
    found = {}
    by_themselves = collectives.__name__, reductions.__name__
    for name in dir(kind):
        function: Any = getattr(kind, name, None)  # None: a name that only says what to use instead of it
        code = getattr(function, "__code__", None)
        if code is None or name.startswith("_") or function.__module__ in by_themselves:
            continue
        if name.removesuffix("_object").removesuffix("_ragged") in RAGGED:
            continue
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if "async_op" in names:
            at = names.index("async_op")
            found[name] = function, at - 1 if at < code.co_argcount else -1
    return found


def _call(comm: Communicator, function: Callable[..., Any], at: int, *given: Any, **named: Any) -> Any:
    """The verb that function is: in the background, and waited for."""
    is_positional = 0 <= at < len(given)
    if given[at] if is_positional else named.get("async_op"):
        return function(comm, *given, **named)
    name = function.__name__
    if (
        name.startswith("send")
        and not named.get("sync")
        and comm.rank in (*given[1:2], named.get("dest"), named.get("dst"))
    ):
        return function(comm, *given, **named)  # to itself: it does not wait
    if is_positional:
        given = (*given[:at], True, *given[at + 1 :])
    else:
        named["async_op"] = True
    return waited(comm, function(comm, *given, **named))


def waited(comm: Communicator, request: object) -> object:
    """The result of a call in the background, or WaitTimeoutError after comm.timeout seconds."""
    if not isinstance(request, Request):
        return request
    try:
        return request.wait(comm.timeout_s)
    except WaitTimeoutError as error:
        hint = other_message(request)
        if not request.cancel():
            if request.done():  # it has come all the same
                return request.wait()
            abandon(request)
        error.where = where(request.call.partition("(")[0], comm)
        error.hint = hint or _HINT
        raise


def _probe(
    comm: Communicator, source: int | None = None, tag: int | None = None, *, verb: str = "probe"
) -> Status:
    begin, pause, look = time.monotonic(), Pause(), getattr(comm, f"i{verb}")
    while (seen := look(source, tag)) is None:
        if time.monotonic() - begin >= (comm.timeout_s or 0):
            raise WaitTimeoutError(
                f"no message came in {comm.timeout_s:g} s",
                where(verb, comm),
                "look for the rank that did not send; comm.timeout sets the time",
            )
        pause.sleep()
    found: Status = seen
    return found


_BY_HAND: dict[str, Callable[..., object]] = {
    "probe": _probe,
    "probe_object": partial(_probe, verb="probe_object"),
}
