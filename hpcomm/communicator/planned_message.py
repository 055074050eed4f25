"""Plans of messages: the array, the rank and the tag of a send or a receive, looked at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import MPI
from ..core.operation import Call
from ..errors import UsageError
from ..transport import guarded_receive, matching
from ..transport.late import buffer, transport

if TYPE_CHECKING:
    from .communicator import Communicator


def planned_message(
    comm: Communicator, verb: str, x: object, out: object, peer: int | None, tag: int | None
) -> Call:
    """The call of a plan of a message, looked at.

    Raises:
        HpcommError: the array, the rank or the tag cannot be used.
    """
    sending = verb == "send"
    target = x if sending else (out if out is not None else x)
    if target is None:
        raise UsageError(
            f"a plan of {verb} needs its array",
            hint="comm.plan('send', x, dest=1), comm.plan('recv', out=y, source=0)",
        )
    look = buffer.as_buffer(target)
    device_calls = comm.devices is not None and comm.devices.takes_message(look)
    if (not device_calls and not look.array.flags.c_contiguous) or (not sending and look.frozen):
        raise UsageError(
            "a plan of send or recv needs a contiguous array that can be written",
            hint="numpy.ascontiguousarray(x)",
        )
    number = matching.tag_number(comm, 0 if tag is None and sending else tag, sending=sending)
    rank = matching.peer_rank(comm, peer, "dest") if sending else matching.source_rank(comm, peer)
    call = Call(comm, verb, peer=rank, tag=number)
    call.look = look
    if device_calls:
        seen = MPI.Status()
        call.finish = lambda _: None if sending else look.give()
        made = comm.devices.send(call, look) if sending else comm.devices.recv(call, look, seen)
        return made  # type: ignore[no-any-return]
    part = transport.spec(look.array, look.array.size, look.dtype)
    if sending:
        call.send = part
    else:
        call.recv = guarded_receive.guarded(part, guarded_receive.most(comm, False))

    def finish(status: MPI.Status | None) -> object:
        if sending:
            return None
        assert status is not None
        if rank != MPI.PROC_NULL:
            if comm.message_kinds is not None:
                comm.message_kinds.sure(look.dtype).match("recv", look, status.source, status.tag)
            transport.check_length(comm, "recv", status, look.nbytes)
        return look.give()

    call.finish = finish
    if comm.message_kinds is not None and sending:
        comm.message_kinds.noted(look.dtype).note("send", look, rank, number)
    return call
