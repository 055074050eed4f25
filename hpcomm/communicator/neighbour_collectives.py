"""Neighbour collectives on Cartesian and graph communicators.

A Topology is a Communicator. Results of the neighbour verbs stand in the order of `sources`, what goes
out in that of `destinations`; on a grid that is, axis by axis, the neighbour below and the one above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from ..agree.agreement import refused
from ..core.operation import Call
from ..core.request import Pending, Request, Stages
from ..core.signature import BACKGROUND, head
from ..device.driver import watching
from ..errors import HpcommError, LayoutError, UsageError, where
from ..transport.endpoints import meet, set_zero
from ..transport.exchange_comm import channel
from .communicator import Communicator
from .payload import DevicePayload, Payload

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from ..core import buffer
    from ..core.buffer import Buffer
    from ..core.types import AnyArray, Array, ArrayLike, Later, Now, Scalar
    from ..transport import mpi as transport
    from ..transport import progress
    from ..transport.device import host_copy, staging
    from ..transport.mpi import Spec
    from . import device_payload, ragged
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.core.buffer")
    device_payload = LazyModule("hpcomm.communicator.device_payload")
    host_copy = LazyModule("hpcomm.transport.device.host_copy")
    ragged = LazyModule("hpcomm.communicator.ragged")
    progress = LazyModule("hpcomm.transport.progress")
    staging = LazyModule("hpcomm.transport.device.staging")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["Topology"]


class Topology(Communicator):
    """A communicator whose ranks have neighbours.

    Attributes:
        sources: the ranks that this one hears from in a neighbour verb; hpcomm.PROC_NULL: nobody there.
        destinations: the ranks that it speaks to.
    """

    sources: tuple[int, ...] = ()
    destinations: tuple[int, ...] = ()

    # fmt: off
    @overload
    def neighbour_all_gather(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Now = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def neighbour_all_gather(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Later,
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def neighbour_all_gather(
        self, x: complex, *, out: AnyArray | None = ..., async_op: Now = ...,
    ) -> AnyArray: ...
    @overload
    def neighbour_all_gather(
        self, x: complex, *, out: AnyArray | None = ..., async_op: Later,
    ) -> Request[AnyArray]: ...
    @overload
    def neighbour_all_gather(self, x: Array, *, out: Array | None = ..., async_op: Now = ...) -> Array: ...
    @overload
    def neighbour_all_gather(
        self, x: Array, *, out: Array | None = ..., async_op: Later,
    ) -> Request[Array]: ...
    # fmt: on
    def neighbour_all_gather(
        self, x: ArrayLike, *, out: ArrayLike | None = None, async_op: bool = False
    ) -> object:
        """Collect the x of every source: result[i] is that of sources[i], zero where nobody is.

        Same as MPI_Neighbor_allgather. x has the same shape and dtype on all ranks.

        Args:
            out: array of shape (len(sources), *x.shape).
            async_op: return a Request instead.

        Example (ring of 3 ranks):
            >>> comm.cart((3,), periodic=True).neighbour_all_gather(comm.rank)
            array([2, 1])
        """
        return self._neighbours("neighbour_all_gather", x, out, async_op, "allgather")

    # fmt: off
    @overload
    def neighbour_all_to_all(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Now = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def neighbour_all_to_all(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Later,
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def neighbour_all_to_all(self, x: Array, *, out: Array | None = ..., async_op: Now = ...) -> Array: ...
    @overload
    def neighbour_all_to_all(
        self, x: Array, *, out: Array | None = ..., async_op: Later,
    ) -> Request[Array]: ...
    # fmt: on
    def neighbour_all_to_all(
        self, x: ArrayLike, *, out: ArrayLike | None = None, async_op: bool = False
    ) -> object:
        """Send x[i] to destinations[i]; result[i] came from sources[i], zero where nobody is.

        Same as MPI_Neighbor_alltoall. Blocks have the same shape and dtype on all ranks.

        Args:
            x: array of shape (len(destinations), *block).
            out: array of shape (len(sources), *block).
            async_op: begin, and return a Request to wait for.
        """
        return self._neighbours("neighbour_all_to_all", x, out, async_op, "alltoall")

    def neighbour_all_gather_ragged(self, x: Array) -> list[Array | None]:
        """Collect the array of every source, of any shape and dtype; None where nobody is.

        Same as MPI_Neighbor_allgatherv, without counts.
        """
        return self._neighbours_ragged(
            "neighbour_all_gather_ragged", [x] * len(self.destinations), len(self.destinations)
        )

    def neighbour_all_to_all_ragged(self, xs: Sequence[Array]) -> list[Array | None]:
        """Send array i of the list to destinations[i]; receive one of any shape from every source.

        Same as MPI_Neighbor_alltoallv, without counts. Where a destination is nobody the array goes nowhere.
        """
        return self._neighbours_ragged("neighbour_all_to_all_ragged", xs, len(self.destinations))

    # -- how ------------------------------------------------------------------------------------------
    def _neighbours(
        self, verb: str, x: ArrayLike, out: ArrayLike | None, async_op: bool, moves: str
    ) -> object:
        try:
            self.check_open(verb)
            look = buffer.as_buffer(x)
            block = look.shape
            if moves == "alltoall":
                if not look.shape or look.shape[0] != len(self.destinations):
                    raise LayoutError(
                        f"x has shape {look.shape}; its first axis must be the "
                        f"{len(self.destinations)} destinations",
                        hint="one block for each of comm.destinations",
                    )
                block = look.shape[1:]
            shape = (len(self.sources), *block)
            result = look.make(shape) if out is None else buffer.as_buffer(out)
            if result.shape != shape or result.dtype != look.dtype:
                raise LayoutError(f"out is {result}, what arrives is {look.dtype} {shape}")
            if result.frozen:
                raise LayoutError(f"out {result.frozen}", hint="give an array that can be written")
            if out is not None and meet(look, result):
                raise LayoutError("x and out overlap in memory", hint="an out of its own")
        except HpcommError as error:
            raise refused(self, verb, error) from None
        count, device_calls = math.prod(block), self.devices
        device_side = device_calls is not None and not device_calls.is_one_call(count * look.dtype.itemsize)
        given = look if device_side or look.place is None else _on_host(look)
        stays = device_side if result.place is not None else result.array.flags.c_contiguous
        received = result if stays else buffer.empty(shape, look.dtype)
        up = None if stays or result.place is None else host_copy.Upload(result)
        after = staging.After()  # what a device has still to do then
        for i, source in enumerate(self.sources):
            if source == MPI.PROC_NULL:
                _zero(received, i, after)

        def finish() -> object:
            if up is not None:
                up.fill(received.array, after)
            elif not stays:
                result.array[...] = received.array
            return result.give()

        call = Call(self, verb, code=head(verb, dtype=look.dtype.code))
        call.count, call.look = count, look
        for observer in self.observers:
            observer.before(call)

        def seen() -> object:
            result = finish()
            for observer in self.observers:
                observer.after(call)
            return result

        if async_op:
            leave = self.agreement.late(call.code | BACKGROUND, call.agreed)
            moving = (
                self._crossing(call, given, received, after)
                if device_side
                else self._one(moves, call, given, received)
            )
            stages = self._going(verb, moving, leave, seen)
            self.outstanding.begin(stages)
            plain = result.place is None and not device_side
            request = Request(call, stages) if plain else progress.StreamRequest(call, stages, after)
            request.needs_all(self)
            return request
        with self.call_guard:
            self.agreement.enter(call.code, call.agreed)
            try:
                if device_side:
                    progress.drive(self._crossing(call, given, received, after))
                elif self.size == 1:
                    self._to_itself(call, given, received)
                else:
                    getattr(self.mpi_handle, f"Neighbor_{moves}")(*_ends(call, given, received))
            except MPI.Exception as error:
                raise transport.failure(error, verb, self) from None
            self.agreement.leave()
        arrived = seen()
        after.order()
        return arrived

    def _going(
        self, verb: str, moving: Stages, leave: Callable[[], None], finish: Callable[[], object]
    ) -> Stages:
        mpi_error = MPI.Exception
        try:
            yield from moving
        except mpi_error as error:
            raise transport.failure(error, verb, self) from None
        leave()
        return finish()

    def _one(self, moves: str, call: Call, given: Buffer, received: Buffer) -> Stages:
        """One call of MPI's on arrays in host memory."""
        if self.size == 1:
            self._to_itself(call, given, received)
            yield []
            return
        ends = _ends(call, given, received)  # kept here until they have travelled
        yield self._begun(f"Ineighbor_{moves}", ends)

    def _to_itself(self, call: Call, given: Buffer, received: Buffer) -> None:
        """The copies that are all that is to be done on one rank.

        MPICH 5 sends messages there, which a receive of any tag on this communicator would take.
        """
        each: Any = self._outward() if call.verb == "neighbour_all_to_all" else [...] * len(self.sources)
        for i, (source, place) in enumerate(zip(self.sources, each, strict=True)):
            if source != MPI.PROC_NULL:
                received.array[i] = given.array[place]

    def _crossing(self, call: Call, given: Buffer, received: Buffer, after: staging.After) -> Stages:
        """A message for each neighbour, from where the block lies to where it is to lie."""
        mpi, tag, _ = channel(self)
        apart, messages = watching(mpi), self.devices.messages
        errors: list[HpcommError] = []

        def part(verb: str, look: Buffer, peer: int) -> Stages:
            one = Call(self, verb, peer=peer, tag=tag)
            one.look, one.after = look, after
            event = messages.begin(look, "down" if verb == "send" else "up")
            move = messages.pass_on if verb == "send" else messages.take_in

            def stages() -> Stages:
                try:
                    yield from move(one, look, event, apart)
                except HpcommError as error:  # once all the others are through
                    error.where = where(call.verb, self)
                    errors.append(error)

            return stages()

        comes = _blocks(received, len(self.sources), call.count)
        goes = _blocks(given, given.size // call.count, call.count)
        goes *= len(self.destinations) if call.verb == "neighbour_all_gather" else 1
        parts = [
            part("recv", x, peer)
            for x, peer in zip(comes, self.sources, strict=True)
            if peer != MPI.PROC_NULL
        ]
        order = self._outward()
        parts += [
            part("send", goes[i], self.destinations[i])
            for i in order
            if self.destinations[i] != MPI.PROC_NULL
        ]
        yield [progress.Together(parts)]
        if errors:
            raise errors[0]

    def _outward(self) -> Iterable[int]:
        """The places of destinations in the order in which two ranks that are neighbours twice pair them."""
        return range(len(self.destinations))

    def _begun(self, name: str, ends: tuple[Spec, Spec]) -> list[Pending]:
        return [getattr(self.mpi_handle, name)(*ends)]

    def _neighbours_ragged(self, verb: str, xs: Sequence[Array], n: int) -> list[Array | None]:
        """First everybody says how long its blocks are, then they travel: one message for each pair."""
        try:
            self.check_open(verb)
            if not isinstance(xs, (list, tuple)) or len(xs) != n:
                raise UsageError(
                    f"{verb} wants a list of {n} arrays", hint="one for each of comm.destinations"
                )
            packed_parts = [ragged.encode(x) for x in xs]
        except HpcommError as error:
            raise refused(self, verb, error) from None
        call = Call(self, verb)
        for observer in self.observers:
            observer.before(call)
        self.agreement.enter(head(verb), 0)
        moving: list[progress.Moving] = []  # arrays on devices that go by themselves
        for i, (made, rank) in enumerate(zip(packed_parts, self.destinations, strict=True)):
            if type(made) is DevicePayload:
                packed_parts[i], more = device_payload.load(self, made, [rank])
                moving += more
        pieces = [_eager_message(made) for made in packed_parts]
        try:
            inboxes = self._posted(pieces)
        except MPI.Exception as error:
            raise transport.failure(error, verb, self) from None
        got: list[Any] = [_opened(inbox) if inbox.nbytes else None for inbox in inboxes]
        for i, (made, rank) in enumerate(zip(got, self.sources, strict=True)):
            if made is not None and self.devices is not None and device_payload.has_device_arrays(made):
                got[i] = progress.Moving(device_payload.unload(self, made, rank))
        arrived = [_arrived(made) for made in got]
        for each in moving:
            each.Wait()
        self.agreement.leave()
        for observer in self.observers:
            observer.after(call)
        return arrived

    def _posted(self, pieces: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """What comes from each source, where piece i goes to destination i; empty where nobody is."""
        if self.size == 1:  # as in _to_itself
            pairs = zip(self.sources, self._outward(), strict=True)
            return [pieces[i] if source != MPI.PROC_NULL else np.empty(0, np.uint8) for source, i in pairs]
        lengths = np.array([piece.nbytes for piece in pieces], np.int64).reshape(-1, 1)
        coming = np.zeros((len(self.sources), 1), np.int64)
        mpi: Any = self.mpi_handle
        mpi.Neighbor_alltoall([lengths, 1, MPI.INT64_T], [coming, 1, MPI.INT64_T])
        inboxes = [np.empty(int(length), np.uint8) for length in coming[:, 0]]
        with _Scattered(pieces) as going, _Scattered(inboxes) as received:
            mpi.Neighbor_alltoallw(going.spec, received.spec)
        return inboxes


def _on_host(look: Buffer) -> Buffer:
    assert isinstance(look, buffer.DeviceBuffer)
    made = buffer.empty(look.shape, look.dtype)
    made.array[...] = host_copy.to_host(look)
    return made


def _ends(call: Call, given: Buffer, received: Buffer) -> tuple[Spec, Spec]:
    """What MPI is told of both arrays."""
    count, dtype = call.count, call.look.dtype
    packed = np.ascontiguousarray(given.array)
    return transport.spec(packed, count, dtype), transport.spec(received.array, count, dtype)


def _blocks(look: Buffer, n: int, count: int) -> list[Buffer]:
    """Looks at the n blocks of an array one after the other; count: elements of a block."""
    if isinstance(look, buffer.DeviceBuffer):
        whole, step = look.packed(), count * look.dtype.itemsize
        return [
            buffer.DeviceBuffer(
                whole.array, replace(whole, address=whole.address + i * step, shape=(count,), pack=None)
            )
            for i in range(n)
        ]
    flat = np.ascontiguousarray(look.array).reshape(n, count)
    return [buffer.Buffer(flat[i], look.dtype, look.make, look.give) for i in range(n)]


def _zero(received: Buffer, i: int, after: staging.After) -> None:
    """Fill block i with zeros, on a device in its library's current stream."""
    place = received.place
    if place is None:
        set_zero(received.array[i : i + 1])
    elif place.make is not None:  # a library whose arrays can be indexed
        set_zero(place.array[i : i + 1])
        there = staging.station(place.device)
        after.leave(there, place.stream(), place)
    else:
        block = _blocks(received, received.shape[0], math.prod(received.shape[1:]))[i]
        host_copy.Upload(block).fill(np.zeros(block.shape, block.dtype.storage), after)


def _eager_message(made: Payload) -> NDArray[np.uint8]:
    """A payload as flat bytes: the number of its blocks, their lengths, the blocks."""
    blocks = [np.frombuffer(block, np.uint8) for block in made.blocks]
    lengths = np.array([len(blocks), *(block.nbytes for block in blocks)], np.int64)
    return np.concatenate([lengths.view(np.uint8), *blocks])


def _opened(piece: NDArray[np.uint8]) -> Payload:
    n = int(piece[:8].view(np.int64)[0])
    lengths = piece[8 : 8 + 8 * n].view(np.int64)
    ends = 8 + 8 * n + np.cumsum(lengths)
    # copies: where what they hold lies aligned
    return Payload.of([piece[end - m : end].copy().data for end, m in zip(ends, lengths, strict=True)])


def _arrived(made: Payload | progress.Moving | None) -> Any:
    if made is None or isinstance(made, Payload):
        return made and ragged.decode(made)
    made.Wait()
    return ragged.decode(made.result)


class _Scattered:
    """Blocks anywhere in memory as one argument of Alltoallw; blocks past 2 GiB are single elements."""

    def __init__(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        self._types = [_bytes_type(block.nbytes) for block in blocks]
        addresses = [MPI.Get_address(block) if block.nbytes else 0 for block in blocks]
        self.spec = [MPI.BOTTOM, ([1] * len(blocks), addresses), self._types]

    def __enter__(self) -> _Scattered:
        return self

    def __exit__(self, *error: object) -> None:
        for kind in self._types:
            kind.Free()


def _bytes_type(nbytes: int) -> MPI.Datatype:
    whole, rest = divmod(nbytes, 1 << 30)
    block = MPI.BYTE.Create_contiguous(1 << 30)
    made = MPI.Datatype.Create_struct([whole, rest], [0, whole << 30], [block, MPI.BYTE]).Commit()
    block.Free()
    return made
