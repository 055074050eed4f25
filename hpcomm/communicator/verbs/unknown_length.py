"""Receives of unknown length: they look at a message before they take it.

MPI matches what it was asked to receive in the order in which it was asked. Of receives that know no length
it knows nothing, so these wait as Arrivals (matching.py), and so does every receive begun after one that
could take the same message.
"""

from __future__ import annotations

from typing import Any

from ..._lazy import MPI, DTypeLike, np
from ...agree import message_kinds
from ...core.buffer import Buffer
from ...core.dtypes import Dtype
from ...core.operation import Call
from ...core.request import Request, Stages, note_message, note_rounds
from ...errors import MismatchError, where
from ...transport.late import buffer, dtypes, transport
from ...transport.matching import Arrival, Envelope, fill
from ..context import Context


def in_order(comm: Context, stages: Stages, envelope: Envelope, async_op: bool) -> Any:
    """Receive by an Arrival."""
    stages = transport.in_our_words(comm, "recv", stages)
    source, tag, status = envelope
    request = Request(f"recv(source={source}, tag={tag})", comm.outstanding.begin(stages), status)
    note_message(request, comm, "recv", source, tag)
    note_rounds(request)
    return request if async_op else request.wait()


def recv_behind(comm: Context, look: Buffer, envelope: Envelope) -> Stages:
    """Receive into an array, when receives that were begun before have theirs."""
    arrival = Arrival(comm.mpi_handle, envelope.source, envelope.tag)
    yield [arrival]
    nbytes = arrival.status.Get_elements(MPI.BYTE)
    if nbytes != look.nbytes:
        arrival.message.Recv(bytearray(nbytes))
        transport.check_length(comm, "recv", arrival.status, look.nbytes)
    received = buffer.landing(look)
    arrival.message.Recv(transport.message(received, look.array.size, look.dtype))
    message_kinds.match(comm, "recv", look, arrival.status.source, arrival.status.tag)
    if received is not look.array:
        look.array[...] = received
    fill(envelope.status, arrival.status)
    return look.give()


def recv_at_once(comm: Context, dtype: DTypeLike, envelope: Envelope) -> Any:
    """Wait for the message, make an array of its length, take it; where no other receive waits so."""
    source, tag, status = envelope
    (record, torch), seen = dtypes.parse(dtype), MPI.Status()
    try:
        message = comm.mpi_handle.Mprobe(source, tag, seen)
        look = _taken(comm, record, torch, message, seen)
    except MPI.Exception as error:
        raise transport.failure(error, "recv", comm) from None
    fill(status, seen)
    return look.give()


def _taken(comm: Context, record: Dtype, torch: bool, message: MPI.Message, seen: MPI.Status) -> Buffer:
    """A new array, filled by a message."""
    nbytes = seen.Get_elements(MPI.BYTE)
    if nbytes % record.itemsize:
        message.Recv(bytearray(nbytes))
        raise _no_whole_number(comm, nbytes, record)
    look = buffer.empty((nbytes // record.itemsize,), record, torch)
    message.Recv(transport.message(look.array, look.array.size, record))
    message_kinds.match(comm, "recv", look, seen.source, seen.tag)
    return look


def _no_whole_number(comm: Context, nbytes: int, record: Dtype) -> MismatchError:
    what, hint = (
        f"a message of {nbytes} bytes holds no whole number of {record}",
        "give the dtype that was sent",
    )
    return MismatchError(what, where("recv", comm), hint)


def recv_unsized(comm: Context, dtype: DTypeLike, envelope: Envelope) -> Stages:
    """Wait for the message, make an array of its length, take it."""
    source, tag, status = envelope
    record, torch = dtypes.parse(dtype)
    arrival = Arrival(comm.mpi_handle, source, tag)
    raw = None if comm.devices is None else comm.devices.messages.take(source, tag, arrival.status)
    if raw is None:
        yield [arrival]
    else:
        arrival.withdraw()
    if comm.devices is None:
        look = _taken(comm, record, torch, arrival.message, arrival.status)
        fill(status, arrival.status)
        return look.give()
    if raw is None:  # it may be a header, which announces a large message
        raw = bytearray(arrival.status.Get_elements(MPI.BYTE))
        arrival.message.Recv([raw, MPI.BYTE])
    announced = comm.devices.length(raw)
    nbytes = len(raw) if announced is None else announced
    if nbytes % record.itemsize:
        raise _no_whole_number(comm, nbytes, record)
    look = buffer.empty((nbytes // record.itemsize,), record, torch)
    if announced is None:
        look.array[...] = np.frombuffer(raw, look.array.dtype)
    else:
        call = Call(comm, "recv", peer=source, tag=tag)
        call.look = look
        yield from comm.devices.announced(call, look, raw, arrival.status)
        arrival.status.Set_elements(MPI.BYTE, nbytes)
    fill(status, arrival.status)
    return look.give()
