"""Receives of unknown length: they look at a message before they take it.

MPI matches what it was asked to receive in the order in which it was asked. Of receives that know no length
it knows nothing, so these wait as Arrivals (matching.py), and so does every receive begun after one that
could take the same message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._lazy import MPI, np
from ...agree import message_kinds
from ...core.operation import Call
from ...core.request import Request, Stages
from ...errors import MismatchError, where
from ...transport.late import buffer, dtypes, transport
from ...transport.matching import Arrival, Envelope, fill

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...core.buffer import Buffer
    from ..context import Context


def in_order(comm: Context, stages: Stages, envelope: Envelope, async_op: bool) -> Any:
    """Receive by an Arrival."""
    stages = transport.in_our_words(comm, "recv", stages)
    source, tag, status = envelope
    request = Request(f"recv(source={source}, tag={tag})", comm.outstanding.begin(stages), status)
    request.needs(comm, "recv", source, tag)
    request.in_rounds()
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
    nbytes = arrival.status.Get_elements(MPI.BYTE)
    if comm.devices is not None:  # it may be a header, which announces a large message
        if raw is None:
            raw = bytearray(nbytes)
            arrival.message.Recv([raw, MPI.BYTE])
            arrival.message = None
        announced = comm.devices.length(raw)
        nbytes = nbytes if announced is None else announced
    if nbytes % record.itemsize:
        if arrival.message is not None:
            arrival.message.Recv(bytearray(nbytes))
        raise MismatchError(
            f"a message of {nbytes} bytes holds no whole number of {record}",
            where("recv", comm),
            "give the dtype that was sent",
        )
    look = buffer.empty((nbytes // record.itemsize,), record, torch)
    if comm.devices is None:
        arrival.message.Recv(transport.message(look.array, look.array.size, record))
        message_kinds.match(comm, "recv", look, arrival.status.source, arrival.status.tag)
    elif announced is None:
        assert raw is not None
        look.array[...] = np.frombuffer(raw, look.array.dtype)
    else:
        call = Call(comm, "recv", peer=source, tag=tag)
        call.look = look
        yield from comm.devices.announced(call, look, raw, arrival.status)
        nbytes = announced
        arrival.status.Set_elements(MPI.BYTE, nbytes)
    fill(status, arrival.status)
    return look.give()
