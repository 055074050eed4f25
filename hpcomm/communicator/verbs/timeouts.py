"""Timeouts of blocking operations: `comm.timeout = 30`.

The native core ends its waits itself. A blocking call of MPI cannot be called back: so on such a communicator
a blocking verb that goes by MPI is the same call in the background, which is waited for and given up after
that time. Another MPI function runs then, so all ranks set a timeout, or none does. Where this rank handles
signals its messages go the same way (core/patience.py).
"""

from __future__ import annotations

from typing import Any

from ...core.comm import Comm
from ...core.patience import note_interrupted, patience
from ...core.request import Request, abandon, other_message
from ...errors import WaitTimeoutError, where

_HINT = "look for the rank that did not make the matching call; comm.timeout sets the time"


def waited(comm: Comm, request: object) -> Any:
    """The result of a call in the background, or WaitTimeoutError after comm.timeout seconds."""
    if not isinstance(request, Request):
        return request
    try:
        return request.wait(patience(comm))
    except WaitTimeoutError as error:
        hint = other_message(request)
        if not request.cancel():
            if request.done():  # it has come all the same
                return request.wait()
            abandon(request)
        error.where = where(request.call.partition("(")[0], comm)
        error.hint = hint or _HINT
        raise
    except BaseException as raised:  # by a handler of a signal, if it is under way
        if request.is_under_way and not request.cancel():
            note_interrupted(raised, request.call, is_done := request.done())
            if not is_done:
                abandon(request)
        raise
