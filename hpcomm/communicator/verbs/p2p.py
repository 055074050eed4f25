"""Point-to-point messages of arrays.

A plain message carries elements and nothing else, so sender and receiver must agree about dtype and
number; a message shorter or longer than the receiving array is an error, never a half-filled array.
Where the receiver knows neither, send_ragged and recv_ragged carry both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from ..._lazy import MPI, NDArray, np
from ...agree import message_kinds
from ...core.buffer import Buffer, Shape
from ...core.operation import Call
from ...core.patience import patience
from ...core.present import messaging
from ...core.request import Request, note_message
from ...core.status import Status
from ...core.types import AnyStatus, Array, ArrayLike, Later, Now, NpArray, Scalar
from ...errors import HpcommError, LayoutError, UsageError, located
from ...node.present import enter, leave
from ...transport import guarded_receive
from ...transport.late import buffer, dtypes, prepare, single_request, transport
from ...transport.matching import (
    Envelope,
    fill,
    is_awaited,
    peer_rank,
    source_and_tag,
    tag_number,
)
from ..context import Context
from ..shell import Shell
from . import collectives
from .known_messages import check_known, known_receive, known_send, remember_receive, remember_send
from .timeouts import waited
from .unknown_length import in_order, recv_at_once, recv_behind, recv_unsized

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike

    Number: TypeAlias = int | None  # of a rank, or a tag
    Kind: TypeAlias = type[Scalar] | np.dtype[Scalar]

    class Options(TypedDict, total=False):
        """What any message may be received with."""

        shape: Shape | int | None
        status: AnyStatus | None
        src: Number


# "send" or "recv", or isend or irecv of torch's or of a communicator
BatchVerb: TypeAlias = Literal["send", "recv", "isend", "irecv"] | Callable[..., object]


class P2POp:
    """One message of a batch. verb: "send" or "recv"; x: array to send or to fill; peer: a rank."""

    def __init__(self, verb: BatchVerb, x: ArrayLike, peer: int, tag: int = 0) -> None:
        self.verb = verb
        self.x = x
        self.peer = peer
        self.tag = tag

    def __repr__(self) -> str:
        return f"P2POp({self.verb!r}, {type(self.x).__name__}, {self.peer}, tag={self.tag})"


class Messages(Shell):
    """Messages of arrays between two ranks."""

    # fmt: off
    @overload
    def send(
        self, x: ArrayLike, dest: int | None = ..., tag: int = ..., async_op: Now = ...,
        dst: int | None = ..., sync: bool = ...,
    ) -> None: ...
    @overload
    def send(
        self, x: ArrayLike, dest: int | None = ..., tag: int = ..., *, async_op: Later,
        dst: int | None = ..., sync: bool = ...,
    ) -> Request[None]: ...
    # fmt: on
    def send(
        self,
        x: ArrayLike,
        dest: int | None = None,
        tag: int = 0,
        async_op: bool = False,
        dst: int | None = None,
        sync: bool = False,
    ) -> Request[None] | None:
        """Send x to dest; return when x may be changed again. Same as MPI_Send, torch.distributed.send.

        Args:
            x: array.
            dest: rank, or hpcomm.PROC_NULL for nobody; dst is torch's word for it. To this rank itself the
                elements are copied, so that the call returns.
            tag: number from 0 that recv may ask for.
            async_op: begin, and return a Request to wait for.
            sync: return, or be complete, only when dest has begun to receive it (MPI_Ssend). Then a message
                to this rank itself needs a receive that was begun before.

        Raises:
            RankError: no such rank.

        Example (2 ranks):
            >>> comm.send(np.arange(3), dest=1) if comm.rank == 0 else comm.recv(np.empty(3, int), source=0)
            array([0, 1, 2])
        """
        comm = self.context
        peer: Any = dst if dest is None else dest
        if async_op or sync or (part := known_send(comm, x, peer, tag)) is None:
            with messaging(comm, "send", x, peer, tag, async_op=async_op):
                going: Request[None] | None = send_carefully(comm, x, peer, tag, async_op, sync)
            return going
        try:
            enter(comm, "send", x, peer, tag)
            comm.mpi_handle.Send(part, peer, tag)
        except MPI.Exception as error:
            raise transport.failure(error, "send", comm) from None
        finally:
            leave()
        return None

    def isend(
        self, x: ArrayLike, dest: int | None = None, tag: int = 0, *, dst: int | None = None,
        sync: bool = False,
    ) -> Request[None]:  # fmt: skip
        """Begin to send x to dest; x must not change before the request is complete. Same as MPI_Isend.

        Args:
            sync: the request is complete only when dest has begun to receive it (MPI_Issend).
        """
        comm = self.context
        peer: Any = dst if dest is None else dest
        part = None if sync else known_send(comm, x, peer, tag)
        if part is None:
            request: Request[None] = send_carefully(comm, x, peer, tag, True, sync)
            return request
        try:
            going = comm.mpi_handle.Isend(part, peer, tag)
        except MPI.Exception as error:
            raise transport.failure(error, "send", comm) from None
        return single_request.Message((comm, peer, 0, "send", tag), x, going)

    # fmt: off
    @overload
    def recv(self, out: Array, source: Number = ..., tag: Number = ..., dtype: object = ...,
             shape: Shape | int | None = ..., status: AnyStatus | None = ..., async_op: Now = ...,
             src: Number = ...) -> Array: ...
    @overload
    def recv(self, out: Array, source: Number = ..., tag: Number = ..., dtype: object = ...,
             shape: Shape | int | None = ..., status: AnyStatus | None = ..., *, async_op: Later,
             src: Number = ...) -> Request[Array]: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: Kind[Scalar],
             async_op: Now = ..., **more: Unpack[Options]) -> NDArray[Scalar]: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: Kind[Scalar],
             async_op: Later, **more: Unpack[Options]) -> Request[NDArray[Scalar]]: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: DTypeLike,
             async_op: Now = ..., **more: Unpack[Options]) -> NpArray: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: DTypeLike,
             async_op: Later, **more: Unpack[Options]) -> Request[NpArray]: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: torch.dtype,
             async_op: Now = ..., **more: Unpack[Options]) -> torch.Tensor: ...
    @overload
    def recv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: torch.dtype,
             async_op: Later, **more: Unpack[Options]) -> Request[torch.Tensor]: ...
    # fmt: on
    def recv(
        self,
        out: ArrayLike | None = None,
        source: int | None = None,
        tag: int | None = None,
        dtype: object = None,
        shape: Shape | int | None = None,
        status: AnyStatus | None = None,
        async_op: bool = False,
        src: int | None = None,
    ) -> object:
        """Receive a message. Same as MPI_Recv, torch.distributed.recv.

        Args:
            out: array that receives; None: one is made, of dtype, and of shape or else as long as the
                message.
            source: rank; None or hpcomm.ANY_SOURCE for any; src is torch's word for it.
            tag: None or hpcomm.ANY_TAG for any.
            dtype: of what arrives, where there is no out; a torch dtype makes a tensor.
            status: a Status (or mpi4py's) that is filled.
            async_op: begin, and return a Request to wait for.

        Returns:
            out, or the array made.

        Raises:
            MismatchError: the message does not fill out exactly.
            UsageError: neither out nor dtype.
        """
        comm = self.context
        peer: Any = src if source is None else source
        if out is None and shape is not None and dtype is not None:
            out = _new_array(comm, dtype, shape, async_op)
        if status is not None or async_op or (known := known_receive(comm, out, peer, tag, True)) is None:
            with messaging(comm, "recv", out, peer, tag, async_op=async_op):
                envelope = envelope_of(comm, peer, tag, status, async_op)
                return receive_carefully(comm, out, dtype, envelope, async_op)
        (part, probed, tags), seen = known, MPI.Status()
        number = MPI.ANY_TAG if tag is None else tag
        peer = MPI.ANY_SOURCE if peer is None else peer
        try:
            enter(comm, "recv", out, peer, number)
            if part[1] < probed:
                comm.mpi_handle.Recv(part, peer, number, seen)
            else:
                guarded_receive.receive(comm.mpi_handle, part, peer, number, seen)
        except MPI.Exception as error:
            raise transport.failure(error, "recv", comm, seen, out.nbytes) from None  # type: ignore[union-attr]  # known
        finally:
            leave()
        check_known(comm, "recv", out, peer, seen, tags)
        return out

    # fmt: off
    @overload
    def irecv(self, out: Array, source: Number = ..., tag: Number = ..., *, dtype: object = ...,
              shape: Shape | int | None = ..., src: Number = ...) -> Request[Array]: ...
    @overload
    def irecv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: Kind[Scalar],
              shape: Shape | int | None = ..., src: Number = ...) -> Request[NDArray[Scalar]]: ...
    @overload
    def irecv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: DTypeLike,
              shape: Shape | int | None = ..., src: Number = ...) -> Request[NpArray]: ...
    @overload
    def irecv(self, out: None = ..., source: Number = ..., tag: Number = ..., *, dtype: torch.dtype,
              shape: Shape | int | None = ..., src: Number = ...) -> Request[torch.Tensor]: ...
    # fmt: on
    def irecv(
        self,
        out: ArrayLike | None = None,
        source: int | None = None,
        tag: int | None = None,
        *,
        dtype: object = None,
        shape: Shape | int | None = None,
        src: int | None = None,
    ) -> Request[Any]:
        """Begin to receive a message, as recv; the request's status says from where. Same as MPI_Irecv."""
        comm = self.context
        peer: Any = src if source is None else source
        if out is None and shape is not None and dtype is not None:
            out = _new_array(comm, dtype, shape, True)
        known = known_receive(comm, out, peer, tag, False)
        if known is None:
            envelope = envelope_of(comm, peer, tag, None, True)
            request: Request[Any] = receive_carefully(comm, out, dtype, envelope, True)
            return request
        number = MPI.ANY_TAG if tag is None else tag
        try:
            going = comm.mpi_handle.Irecv(known[0], peer, number)
        except MPI.Exception as error:
            raise transport.failure(error, "recv", comm) from None
        return single_request.Message((comm, peer, 0, "recv", number), out, going, known[2])

    def batch_isend_irecv(self, ops: Iterable[P2POp]) -> list[Request[Any]]:
        """Begin several messages at once. Receives are posted first, so no order of ops can deadlock.

        Same as torch.distributed.batch_isend_irecv.

        Args:
            ops: P2POps, in any iterable.

        Returns:
            A request for each of ops, in their order.
        """
        comm = self.context
        requests: dict[int, Request[Any]] = {}
        ops = list(ops) if isinstance(ops, Iterable) else [ops]
        with located("batch_isend_irecv", comm):
            kinds = [_check_op(comm, op) for op in ops]  # all of them before any is begun
        for wanted, begin in (("recv", self.irecv), ("send", self.isend)):
            for i, op in enumerate(ops):
                if kinds[i] == wanted:
                    requests[i] = begin(op.x, op.peer, op.tag)
        return [requests[i] for i in range(len(ops))]


batch_isend_irecv = Messages.batch_isend_irecv  # as torch.distributed has it


def _check_op(comm: Context, op: P2POp) -> str:
    """ "send" or "recv", if op can be carried out."""
    comm.check_open("batch_isend_irecv")
    if not isinstance(op, P2POp):
        raise UsageError(f"a batch of {op!r}", hint='a list of P2POp("send", x, peer)')
    name = op.verb if isinstance(op.verb, str) else getattr(op.verb, "__name__", "")
    name = name.removeprefix("i")
    if name not in ("send", "recv"):
        raise UsageError(f"a P2POp is a 'send' or a 'recv', not {op.verb!r}", hint='P2POp("send", x, peer)')
    its = comm, op.x, op.peer, op.tag
    if (known_send(*its) if name == "send" else known_receive(*its, False)) is not None:
        return name
    look = buffer.as_buffer(op.x)
    if name == "recv":
        check_writable(look)
        peer_rank(comm, op.peer, "source")
    else:
        peer_rank(comm, op.peer, "peer")
    tag_number(comm, op.tag, sending=name == "send")
    return name


def send_carefully(comm: Context, x: object, dest: int, tag: int, async_op: bool, sync: bool = False) -> Any:
    verb = "isend" if async_op else "send"
    with located(verb, comm):
        comm.check_open("send")
        dest = peer_rank(comm, dest, "dest")
        tag = tag_number(comm, tag, sending=True)
        look = x if isinstance(x, buffer.Buffer) else buffer.as_buffer(x)
    call = Call(comm, "send", peer=dest, tag=tag)
    call.look, call.moves = look, "ssend" if sync else ""
    if dest == comm.rank and not (comm.is_inter or async_op or sync):
        comm.keep_request(collectives.carry_out(_loaded(call, copy=True), True))
        return None
    call = _loaded(call)
    if call.send is not None:
        _note(comm, x, call, verb)
    is_later = async_op or patience(comm, True) is not None
    sent = collectives.carry_out(call, is_later)
    if is_later:
        note_message(sent, comm, "send", dest, tag)
    return sent if async_op else waited(comm, sent)


def _loaded(call: Call, copy: bool = False) -> Call:
    """What sends call.look; copy: which may be changed at once. By MPI it has `send`."""
    look, devices = call.look, call.comm.devices
    if devices is not None and devices.takes_message(look):
        return devices.send(call, look, copy=copy)  # type: ignore[no-any-return]
    packed = look.array.copy() if copy else np.ascontiguousarray(look.array)
    if copy:
        call.look = buffer.Buffer(packed, look.dtype, look.make, look.give)
    call.send = transport.spec(packed, look.array.size, look.dtype)
    return call


def _note(comm: Context, x: object, call: Call, verb: str) -> None:
    """Let the receiver know what comes, and the next call like it be a known one."""
    message_kinds.note(comm, verb, call.look, call.peer, call.tag)
    remember_send(comm, x, call.look.dtype, call.peer)


def envelope_of(
    comm: Context, source: int | None, tag: int | None, status: AnyStatus | None, async_op: bool
) -> Envelope:
    """What a receive asks for; there is a status in any case."""
    source, tag = source_and_tag(comm, "irecv" if async_op else "recv", source, tag)
    return Envelope(source, tag, Status() if status is None else status)


def receive_carefully(comm: Context, out: Any, dtype: Any, envelope: Envelope, async_op: bool) -> Any:
    if not async_op and patience(comm, True) is not None:
        return waited(comm, receive_carefully(comm, out, dtype, envelope, True))
    with located("irecv" if async_op else "recv", comm):
        if out is not None:
            look = _receiver(out)
            return receive_into(comm, out, look, envelope, async_op)
        if dtype is None:
            raise UsageError(
                "recv without out needs to know what arrives",
                hint="recv_object for what send_object sends; of arrays recv(out), recv(dtype='float64'), or "
                "send_ragged and recv_ragged, which carry shape and dtype; "
                "MPI.of(comm).recv of hpcomm.compat is as mpi4py has it",
            )
        if not async_op and comm.devices is None and not is_awaited(comm.mpi_handle):
            return recv_at_once(comm, dtype, envelope)
        if async_op:
            comm.known.receives.clear()  # they ask MPI alone
        return in_order(comm, recv_unsized(comm, dtype, envelope), envelope, async_op)


def _receiver(out: Any) -> Buffer:
    """out as what receives; whoever gave something else in its place meant another argument."""
    meant = "dtype" if isinstance(out, (str, type)) else "source"
    try:
        look = prepare.buffer_of(out, "out")
        check_writable(look)
    except HpcommError as error:
        if meant == "dtype" or isinstance(out, (int, np.integer)):
            error.hint = f"the array that receives comes first; {meant}={out!r} by name, or recv_object"
        raise
    return look


def _new_array(comm: Context, dtype: Any, shape: Shape | int, async_op: bool) -> Any:
    """An array of dtype and shape to receive into."""
    with located("irecv" if async_op else "recv", comm):
        (record, torch), sizes = dtypes.parse(dtype), _shape(shape)
        return (
            buffer.empty(sizes, record, torch).give()
            if torch
            else np.empty(sizes, dtypes.numpy_dtype(record))
        )


def _shape(shape: Shape | int) -> tuple[int, ...]:
    try:
        sizes = tuple(map(index, shape)) if isinstance(shape, (tuple, list)) else (index(shape),)
    except TypeError:
        sizes = (-1,)
    if min(sizes, default=0) < 0:
        raise LayoutError(f"shape {shape!r} is no shape", hint="a number from 0, or a tuple of such")
    return sizes


def receive_into(comm: Context, out: Any, look: Buffer, envelope: Envelope, async_op: bool) -> Any:
    devices, (source, tag, status) = comm.devices, envelope
    if devices is None and source != MPI.PROC_NULL and is_awaited(comm.mpi_handle, source, tag):
        return in_order(comm, recv_behind(comm, look, envelope), envelope, async_op)
    call = Call(comm, "recv", peer=source, tag=tag)
    call.look = look
    if devices is not None and (devices.takes_message(look) or devices.messages.held):
        at_device = MPI.Status()
        call.finish = lambda _: (fill(status, at_device), look.give())[1]
        call = devices.recv(call, look, at_device)
    else:
        _receive_plainly(comm, call, out, status, guarded_receive.most(comm, not async_op))
    result = collectives.carry_out(call, async_op)
    if async_op:
        result.status = status
        note_message(result, comm, "recv", source, tag)
    return result


def _receive_plainly(
    comm: Context, call: Call, out: object, status: AnyStatus | None, guarded_to: int
) -> None:
    """By MPI into call.look; out: what the user gave for it, for the next one like it."""
    look, source = call.look, call.peer
    received = buffer.landing(look)

    def finish(seen: MPI.Status | None) -> Any:
        assert seen is not None
        if source != MPI.PROC_NULL:
            transport.check_came(comm, "recv", look, seen)
            remember_receive(comm, out, look.dtype, source)
            if received is not look.array:
                look.array[...] = received
        fill(status, seen)
        return look.give()

    part = transport.spec(received, look.array.size, look.dtype)
    call.recv, call.finish = guarded_receive.guarded(part, guarded_to), finish


def check_writable(look: Buffer) -> None:
    if look.frozen:
        raise LayoutError(f"out {look.frozen}", hint="give an array that can be written")
