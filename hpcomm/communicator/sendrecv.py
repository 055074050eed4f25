"""sendrecv: a message out and another in at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import MPI, np
from ..core.operation import Call
from ..errors import HpcommError, LayoutError
from ..transport import guarded_receive
from ..transport.matching import fill, is_awaited, peer_rank, source_rank, tag_number
from .known_messages import known_receive, known_send, remember_receive, remember_send
from .p2p import check_writable, receive_carefully, receive_into, send_carefully

if TYPE_CHECKING:
    from ..core import buffer
    from ..core.buffer import Buffer
    from ..core.types import AnyArray, AnyStatus, Array
    from ..transport import mpi as transport
    from ..transport import prepare
    from .communicator import Communicator
    from .known_messages import Known, Part
else:
    from .._lazy import LazyModule

    buffer = LazyModule("hpcomm.core.buffer")
    prepare = LazyModule("hpcomm.transport.prepare")
    transport = LazyModule("hpcomm.transport.mpi")


def sendrecv(
    comm: Communicator,
    x: Array,
    dest: int,
    source: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = None,
    *,
    out: Array | None = None,
    status: AnyStatus | None = None,
) -> Array:
    """Send x to dest and receive from source at once, without deadlock. Same as MPI_Sendrecv.

    Args:
        out: array that receives; None: one like x is made; out=x is in place.

    Returns:
        out, or the array made.
    """
    if status is None and x is not out and (part := known_send(comm, x, dest, sendtag)) is not None:
        known = known_receive(comm, out, source, recvtag, True)
        if known is not None and not _may_overlap(part[0], known[0][0]):
            _sendrecv_known(comm, part, dest, sendtag, known, source, recvtag, out)
            return out  # type: ignore[return-value]  # it is known, and so an array
    try:
        comm.check_open("sendrecv")
        look = buffer.as_buffer(x)
        recv = look if out is x else _receiving(look, out)
        check_writable(recv)
        if _takes_devices(comm, look, recv):
            arrived: Array = _sendrecv_devices(comm, look, recv, dest, source, sendtag, recvtag, status)
            return arrived
        _check_apart(look, recv)
        ends = Ends(
            peer_rank(comm, dest, "dest"),
            source_rank(comm, source),
            tag_number(comm, sendtag, sending=True),
            tag_number(comm, recvtag),
        )
    except HpcommError as error:
        raise error.located("sendrecv", comm) from None
    packed = np.ascontiguousarray(look.array)
    if buffer.overlap(packed, recv.array):
        packed = packed.copy()
    if ends.source != MPI.PROC_NULL and is_awaited(comm.mpi_handle, ends.source, ends.recvtag):
        going = buffer.Buffer(packed, look.dtype, look.make, look.give)  # which is still of x's dtype
        request = send_carefully(comm, going, ends.dest, ends.sendtag, True)
        result: Array = receive_into(comm, out, recv, ends.source, ends.recvtag, status, False)
        request.wait()
        return result
    fill(status, _swap(comm, look, packed, recv, ends))
    remember_send(comm, x, look.dtype, ends.dest)
    remember_receive(comm, out, recv.dtype, ends.source)
    given: Array = recv.give()
    return given


class Ends(NamedTuple):
    """Where the two messages go and come from, as MPI's numbers."""

    dest: int
    source: int
    sendtag: int
    recvtag: int


def _receiving(look: Buffer, out: object) -> Buffer:
    return look.make(look.shape) if out is None else prepare.buffer_of(out, "out")


def _takes_devices(comm: Communicator, look: Buffer, recv: Buffer) -> bool:
    """Whether the messages concern arrays on a device, here or at another rank."""
    calls = comm.devices
    return calls is not None and (calls.takes_message(look, recv) or calls.messages.held)


def _check_apart(look: Buffer, recv: Buffer) -> None:
    in_place = recv is look or buffer.same_memory(look.array, recv.array)
    if not in_place and buffer.overlap(look.array, recv.array):
        raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")


def _swap(comm: Communicator, look: Buffer, packed: AnyArray, recv: Buffer, ends: Ends) -> MPI.Status:
    """Send packed, which holds what look does, and receive into recv."""
    received = recv.array if recv.array.flags.c_contiguous else np.empty(recv.shape, recv.array.dtype)
    seen, call, kinds = MPI.Status(), Call(comm, "sendrecv"), comm.message_kinds
    call.look = look
    for observer in comm.observers:
        observer.before(call)
    if kinds is not None:
        kinds.noted(look.dtype).note("sendrecv", look, ends.dest, ends.sendtag)
    part = transport.message(packed, look.array.size, look.dtype)
    into = guarded_receive.guarded(
        transport.message(received, recv.array.size, recv.dtype), guarded_receive.most(comm, True)
    )
    dest, source, sendtag, recvtag = ends
    try:
        transport.swap(comm.mpi_handle, part, dest, sendtag, into, source, recvtag, seen, packed)
    except MPI.Exception as error:
        raise transport.failure(error, "sendrecv", comm, seen, recv.nbytes) from None
    if kinds is not None:
        kinds.sure(recv.dtype).match("sendrecv", recv, seen.source, seen.tag)
    transport.check_length(comm, "sendrecv", seen, recv.nbytes)
    if received is not recv.array and source != MPI.PROC_NULL:
        recv.array[...] = received
    for observer in comm.observers:
        observer.after(call)
    return seen


def _sendrecv_known(
    comm: Communicator, part: Part, dest: int, sendtag: int, known: Known, source: Any,
    recvtag: int | None, out: Any,
) -> None:  # fmt: skip
    (into, probed, tags), seen = known, MPI.Status()
    number = MPI.ANY_TAG if recvtag is None else recvtag
    try:
        if into[1] < probed:
            comm.mpi_handle.Sendrecv(part, dest, sendtag, into, source, number, seen)
        else:
            transport.swap(comm.mpi_handle, part, dest, sendtag, into, source, number, seen, part[0])
    except MPI.Exception as error:
        raise transport.failure(error, "sendrecv", comm, seen, out.nbytes) from None
    if seen.Get_count() != out.nbytes or seen.tag not in tags:
        transport.check_arrived(comm, "sendrecv", out, seen, tags)


def _may_overlap(x: Any, out: Any) -> bool:
    """Of memory as mpi4py takes it, of two arrays that are not the same; of two sorts: as if they did."""
    if type(x) is not type(out):
        return True
    if type(x) is not np.ndarray:
        return bool(x.address < out.address + out.nbytes and out.address < x.address + x.nbytes)
    return not (x.flags.owndata and out.flags.owndata) and np.may_share_memory(x, out)


def _sendrecv_devices(
    comm: Communicator, look: Buffer, recv: Buffer, dest: int, source: int | None, sendtag: int,
    recvtag: int | None, status: AnyStatus | None,
) -> Any:  # fmt: skip
    """sendrecv where arrays may lie on devices; in place, what is sent is a copy."""
    sent = look.give()
    if recv is look or (look.place is None and recv.place is None and buffer.overlap(look.array, recv.array)):
        sent = comm.devices.copy(look).give()
    elif look.place is not None and recv.place is not None:
        low, there = look.place.address, recv.place.address
        if low < there + recv.nbytes and there < low + look.nbytes:
            raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")
    going = send_carefully(comm, sent, dest, sendtag, True)
    result = receive_carefully(comm, recv.give(), source, recvtag, None, None, status, False)
    going.wait()
    return result
