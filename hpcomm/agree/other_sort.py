"""A receive that waits for an array while its source has sent an object, or the reverse.

Objects and ragged arrays travel on a communicator of their own, apart from plain arrays. Messages of one
source and tag are to be received in the order in which they were sent, of whatever sort they are, as with
mpi4py. So where a message of the other sort is there, and none of the sort that is waited for has ever been
sent, the receive waits in vain.
"""

from __future__ import annotations

from .._lazy import MPI
from ..core.comm import Comm
from ..core.present import calling, has_other_threads
from ..core.request import rounds_under_way
from ..core.untaken import untaken
from ..core.verbs import receives
from ..errors import MismatchError, where
from . import runtime
from .present_calls import describe_call

_SORTS = "an array", "an object or a ragged array"


def crossed(comm: Comm, call: calling) -> str | None:
    """What is to be said of a receive in which the main thread waits; None: all is well so far.

    Only the main thread of a program without others is judged: those might take the message.
    """
    source, of_objects = call.peer, receives(call.verb)
    tag = -1 if call.tag is None else call.tag
    if of_objects is None or source is None or source < 0 or comm.message_kinds is None or rounds_under_way:
        return None
    if not runtime.has_threads() or has_other_threads():
        return None
    first = comm.message_kinds.instead(source, tag, of_objects)
    mpi = comm.mpi_handle if of_objects else comm.object_comm
    if first is None or not mpi.Iprobe(source, MPI.ANY_TAG if tag < 0 else tag):
        return None
    wanted, sent = _SORTS[of_objects], _SORTS[not of_objects]
    what = "a probe" if "probe" in call.verb else "a receive"
    error = MismatchError(
        f"{what} waits for {wanted}, and {sent} is there.\n"
        f"  rank {comm.rank}: {describe_call()}\n  rank {source}: {first or 'sent it'}",
        where(call.verb, comm),
        "recv for what send sends, recv_object for send_object, recv_ragged for send_ragged, probe or"
        " probe_object before it; those of one"
        " source and tag in the order in which they were sent",
    )
    return f"{type(error).__name__}: {error}"


def passed_over(comm: Comm, call: calling) -> str:
    """A message that is there, and that the receive in which the main thread waits does not take."""
    of_objects = receives(call.verb)
    if of_objects is None or rounds_under_way or not (call.looks or runtime.has_threads()):
        return ""
    return untaken(comm, of_objects, call.peer)
