"""sendrecv: a message out and another in at once."""

from __future__ import annotations

from typing import Any

from ..._lazy import MPI, np
from ...agree import message_kinds
from ...core import result_memory
from ...core.buffer import Buffer
from ...core.operation import Call
from ...core.patience import patience
from ...core.present import messaging
from ...core.request import abandon
from ...core.types import AnyArray, AnyStatus, Array
from ...errors import LayoutError, located
from ...node.present import enter, leave
from ...transport import guarded_receive
from ...transport.late import buffer, prepare, transport
from ...transport.matching import Ends, Envelope, fill, is_awaited, peer_rank, tag_number
from ..context import Context
from ..shell import Shell
from . import timeouts
from .known_messages import check_known, known_receive, known_send, remember_receive, remember_send
from .p2p import check_writable, receive_into, send_carefully


class SendRecv(Shell):
    """A message out and another in."""

    def sendrecv(
        self,
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
        comm = self.context
        given: Any = x
        if out is None and type(given) is np.ndarray:
            out = result_memory.empty(given.shape, given.dtype)  # type: ignore[assignment]  # as x is
        if status is None and (part := known_send(comm, x, dest, sendtag)) is not None:
            known = known_receive(comm, out, source, recvtag, True)
            if known is not None and not _may_overlap(part[0], known[0][0]):
                (into, probed, tags), seen = known, MPI.Status()
                peer: Any = MPI.ANY_SOURCE if source is None else source
                number = MPI.ANY_TAG if recvtag is None else recvtag
                try:
                    enter(comm, "sendrecv", out, (peer, dest, sendtag), number)
                    if into[1] < probed:
                        comm.mpi_handle.Sendrecv(part, dest, sendtag, into, peer, number, seen)
                    else:
                        ends = Ends(dest, peer, sendtag, number)
                        transport.swap(comm.mpi_handle, ends, part, into, seen, part[0])
                except MPI.Exception as error:
                    raise transport.failure(error, "sendrecv", comm, seen, out.nbytes) from None  # type: ignore[union-attr]  # known
                finally:
                    leave()
                check_known(comm, "sendrecv", out, peer, seen, tags)
                return out  # type: ignore[return-value]
        with messaging(comm, "sendrecv", x, source, recvtag, dest=dest, sendtag=sendtag or None):
            ends = _ends(comm, dest, source, sendtag, recvtag)
            swapped: Array = _sendrecv_carefully(comm, x, out, ends, status)
        return swapped


def _ends(comm: Context, dest: int, source: int | None, sendtag: int, recvtag: int | None) -> Ends:
    """All four, checked."""
    with located("sendrecv", comm):
        comm.check_open("sendrecv")
        to, by = peer_rank(comm, dest, "dest"), tag_number(comm, sendtag, sending=True)
        return Ends(to, peer_rank(comm, source, "source"), by, tag_number(comm, recvtag))


def _sendrecv_carefully(comm: Context, x: object, out: object, ends: Ends, status: AnyStatus | None) -> Any:
    with located("sendrecv", comm):
        look = buffer.as_buffer(x)
        recv = look
        if out is not x:
            recv = look.make(look.shape) if out is None else prepare.buffer_of(out, "out")
        check_writable(recv)
        if _takes_devices(comm, look, recv):
            return _as_two(comm, _beside(comm, look, recv), out, recv, ends, status)
        buffer.refuse_partial(look, recv)
    packed = np.ascontiguousarray(look.array)
    if buffer.overlap(packed, recv.array):
        packed = packed.copy()
    is_behind = ends.source != MPI.PROC_NULL and is_awaited(comm.mpi_handle, ends.source, ends.recvtag)
    if is_behind or patience(comm, True) is not None:
        going = buffer.Buffer(packed, look.dtype, look.make, look.give)  # which is still of x's dtype
        return _as_two(comm, going, out, recv, ends, status)
    fill(status, _swap(comm, look, packed, recv, ends))
    remember_send(comm, x, look.dtype, ends.dest)
    remember_receive(comm, out, recv.dtype, ends.source)
    return recv.give()


def _takes_devices(comm: Context, look: Buffer, recv: Buffer) -> bool:
    """Whether the messages concern arrays on a device, here or at another rank."""
    calls = comm.devices
    return calls is not None and (calls.takes_message(look, recv) or calls.messages.held)


def _swap(comm: Context, look: Buffer, packed: AnyArray, recv: Buffer, ends: Ends) -> MPI.Status:
    """Send packed, which holds what look does, and receive into recv."""
    received, seen, call = buffer.landing(recv), MPI.Status(), Call(comm, "sendrecv")
    call.look = look
    for observer in comm.observers:
        observer.before(call)
    message_kinds.note(comm, "sendrecv", look, ends.dest, ends.sendtag)
    part = transport.message(packed, look.array.size, look.dtype)
    into = guarded_receive.guarded(
        transport.message(received, recv.array.size, recv.dtype), guarded_receive.most(comm, True)
    )
    try:
        transport.swap(comm.mpi_handle, ends, part, into, seen, packed)
    except MPI.Exception as error:
        raise transport.failure(error, "sendrecv", comm, seen, recv.nbytes) from None
    transport.check_came(comm, "sendrecv", recv, seen)
    if received is not recv.array and ends.source != MPI.PROC_NULL:
        recv.array[...] = received
    for observer in comm.observers:
        observer.after(call)
    return seen


def _may_overlap(x: Any, out: Any) -> bool:
    """Of memory as mpi4py takes it; of two sorts of arrays: as if they did."""
    if type(x) is not type(out):
        return True
    if type(x) is not np.ndarray:
        return bool(x.address < out.address + out.nbytes and out.address < x.address + x.nbytes)
    return x is out or (not (x.flags.owndata and out.flags.owndata) and np.may_share_memory(x, out))


def _beside(comm: Context, look: Buffer, recv: Buffer) -> Buffer:
    """What is sent where arrays may lie on devices: in place it is a copy."""
    if recv is look or (look.place is None and recv.place is None and buffer.overlap(look.array, recv.array)):
        copied: Buffer = comm.devices.copy(look)
        return copied
    if look.place is not None and recv.place is not None:
        low, there = look.place.address, recv.place.address
        if low < there + recv.nbytes and there < low + look.nbytes:
            raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")
    return look


def _as_two(
    comm: Context, sent: Buffer, out: object, recv: Buffer, ends: Ends, status: AnyStatus | None
) -> Any:
    """As two messages: where they go by devices, behind other receives, or within a time."""
    going = send_carefully(comm, sent, ends.dest, ends.sendtag, True)
    envelope = Envelope(ends.source, ends.recvtag, status)
    try:
        result = receive_into(comm, out, recv, envelope, patience(comm) is not None)
        result = timeouts.waited(comm, result)
    except BaseException:
        abandon(going)  # its receiver may still come for it
        raise
    timeouts.waited(comm, going)
    return result
