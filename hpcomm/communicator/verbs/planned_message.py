"""Plans of messages: the array, the rank and the tag of a send or a receive, looked at once."""

from __future__ import annotations

from collections.abc import Callable

from ..._lazy import MPI
from ...agree import message_kinds
from ...core.buffer import Buffer
from ...core.operation import Call
from ...errors import UsageError
from ...transport import guarded_receive, matching
from ...transport.late import buffer, transport
from ..context import Context


def planned_send(comm: Context, x: object, dest: int | None, tag: int | None) -> Call:
    """The call of a plan that sends x.

    Raises:
        HpcommError: the array, the rank or the tag cannot be used.
    """
    look = _looked_at(comm, "send", x)
    number = matching.tag_number(comm, 0 if tag is None else tag, sending=True)
    call = Call(comm, "send", peer=matching.peer_rank(comm, dest, "dest"), tag=number)
    call.look = look
    if _takes_devices(comm, look):
        return comm.devices.send(call, look)  # type: ignore[no-any-return]
    call.send = transport.spec(look.array, look.array.size, look.dtype)
    message_kinds.note(comm, "send", look, call.peer, number)
    return call


def planned_receive(comm: Context, out: object, source: int | None, tag: int | None) -> Call:
    """The call of a plan that receives into out; raises as planned_send."""
    look = _looked_at(comm, "recv", out)
    number, rank = matching.tag_number(comm, tag), matching.peer_rank(comm, source, "source")
    call = Call(comm, "recv", peer=rank, tag=number)
    call.look = look
    if _takes_devices(comm, look):
        call.finish = lambda _: look.give()
        return comm.devices.recv(call, look, MPI.Status())  # type: ignore[no-any-return]
    part = transport.spec(look.array, look.array.size, look.dtype)
    call.recv = guarded_receive.guarded(part, guarded_receive.most(comm, False))

    def finish(status: MPI.Status | None) -> object:
        assert status is not None
        if rank != MPI.PROC_NULL:  # from which MPICH's status of a plan does not say that it came
            transport.check_came(comm, "recv", look, status)
        return look.give()

    call.finish, call.give = finish, look.give
    return call


def taking(
    wait: Callable[..., object], finish: Callable[..., object], status: MPI.Status
) -> Callable[[], None]:
    """What waits for a message and looks at it; it does not hold the plan."""

    def take() -> None:
        wait(status)
        finish(status)

    return take


def _takes_devices(comm: Context, look: Buffer) -> bool:
    return comm.devices is not None and comm.devices.takes_message(look)


def _looked_at(comm: Context, verb: str, array: object) -> Buffer:
    if array is None:
        hint = "comm.plan('send', x, dest=1), comm.plan('recv', out=y, source=0)"
        raise UsageError(f"a plan of {verb} needs its array", hint=hint)
    look = buffer.as_buffer(array)
    lies_apart = not (_takes_devices(comm, look) or look.array.flags.c_contiguous)
    if lies_apart or (verb == "recv" and look.frozen):
        what = "a plan of send or recv needs a contiguous array that can be written"
        raise UsageError(what, hint="numpy.ascontiguousarray(x)")
    return look
