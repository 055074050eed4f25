"""Timeouts of blocking operations: `comm.timeout = 30`; and the order of reductions: `comm.order = "fast"`.

The native core ends its waits itself. A blocking call of MPI cannot be called back: so on such a communicator
a blocking verb that goes by MPI is the same call in the background, which is waited for and given up after
that time. Another MPI function runs then, so all ranks set a timeout, or none does.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from ..core.request import Request, abandon, other_message
from ..errors import UsageError, WaitTimeoutError, where

if TYPE_CHECKING:
    from .communicator import Communicator

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
        if seconds is not None:
            comm.leave_direct()
            for plan in tuple(comm.outstanding.plans):
                plan.slow_down()
        comm.go_direct()


class Order:
    """In which order floats are reduced where MPI does it: "rank", or "fast".

    "rank" is the order of ranks, within nodes and then between them: the same bits whatever way a call takes.
    "fast" is what the MPI library takes for quickest. Communicators made of this one take it over. Set it on
    all ranks alike: with check="light" or "full" ranks that differ raise MismatchError.
    """

    def __get__(self, comm: Communicator | None, owner: type) -> str | None:
        return None if comm is None else "fast" if comm.is_fast else "rank"

    def __set__(self, comm: Communicator, order: str) -> None:
        comm.check_open("order")
        if order not in ("rank", "fast"):
            raise UsageError(f"there is no order {order!r}", where("order", comm), '"rank" or "fast"')
        comm.is_fast = order == "fast"
        comm.leave_direct()
        comm.go_direct()


def waited(comm: Communicator, request: object) -> Any:
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
