"""A receive that waits for an array while its source has sent an object, or the reverse.

Objects and ragged arrays travel on a communicator of their own, apart from plain arrays. Messages of one
source and tag are to be received in the order in which they were sent, of whatever sort they are, as with
mpi4py. So where a message of the other sort is there, and none of the sort that is waited for has ever been
sent, the receive waits in vain.
"""

from __future__ import annotations

import re
import threading
from types import FrameType
from typing import TYPE_CHECKING

from ..core.request import rounds_under_way, untaken
from ..errors import MismatchError, where
from . import runtime
from .call_stack import describe_call, is_own, names_of, owner

if TYPE_CHECKING:
    from ..core.comm import Comm

_RECEIVE = re.compile(r"(i?(send)?recv|probe)(?P<sort>_object|_ragged)?$")


def crossed(comm: Comm, source: int | None, frame: FrameType) -> str | None:
    """What is to be said of a receive from source in which the main thread waits; None: all is well so far.

    Only the main thread of a program without others is judged: those might take the message.
    """
    from mpi4py import MPI

    found = _awaited(frame)
    if found is None or source is None or source < 0 or comm.message_kinds is None or rounds_under_way:
        return None
    if not runtime.has_threads() or sum(not is_own(each) for each in threading.enumerate()) > 1:
        return None
    is_payload, tag = found
    first = comm.message_kinds.instead(source, tag, is_payload)
    mpi = comm.mpi_handle if is_payload else comm.object_comm
    if first is None or not mpi.Iprobe(source, MPI.ANY_TAG if tag < 0 else tag):
        return None
    mine = describe_call()
    wanted, sent = (
        ("an object or a ragged array", "an array")
        if is_payload
        else ("an array", "an object or a ragged array")
    )
    error = MismatchError(
        f"{'a probe' if mine.startswith('probe') else 'a receive'} waits for {wanted}, and {sent} is there.\n"
        f"  rank {comm.rank}: {mine}\n  rank {source}: {first or 'sent it'}",
        where(mine.split("(")[0], comm),
        "recv for what send sends, recv_object for send_object, recv_ragged for send_ragged, probe or"
        " probe_object before it; those of one"
        " source and tag in the order in which they were sent",
    )
    return f"{type(error).__name__}: {error}"


def passed_over(comm: Comm, source: int | None, frame: FrameType) -> str:
    """A message that is there, and that the receive in which the main thread waits does not take."""
    found = _awaited(frame)
    if found is None or rounds_under_way or not runtime.has_threads():
        return ""
    return untaken(comm, found[0], source)


def _awaited(frame: FrameType) -> tuple[bool, int] | None:
    """Whether a verb, or the wait for it, receives objects or ragged arrays, and its tag, below 0 for any."""
    names, request = names_of(frame), owner(frame)
    if getattr(request, "waits_for", None) is not None:
        name, _, said = str(getattr(request, "call", "") or request._call).partition("(")  # of a plan
        number = re.search(r"tag=(\d+)\)$", said)
        tag = int(number[1]) if number else -1
    else:
        name, number = frame.f_code.co_name, names.get("recvtag", names.get("tag"))
        tag = -1 if number is None else int(number)
    receives = _RECEIVE.match(name)
    return None if receives is None else (receives["sort"] is not None, tag)
