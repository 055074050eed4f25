"""Neighbour collectives on Cartesian and graph communicators.

A Topology is a Communicator. Results of the neighbour verbs stand in the order of `sources`, what goes
out in that of `destinations`; on a grid that is, axis by axis, the neighbour below and the one above.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, overload

from ..._lazy import MPI, NDArray, np
from ...agree.agreement import refusing
from ...core.buffer import Buffer
from ...core.operation import Call, Carrier
from ...core.present import calling
from ...core.request import Again, Request, Stages
from ...core.signature import head
from ...core.types import AnyArray, Array, ArrayLike, Later, Now, Scalar, Spec
from ...device.driver import watching
from ...errors import HpcommError, LayoutError, where
from ...transport import progress
from ...transport.endpoints import set_zero, share_memory
from ...transport.late import buffer, host_copy, prepare, staging, transport
from ..making.groups import channel
from ..mpi4py_names import also
from .collectives import carried_in_time
from .neighbour_ragged import RaggedNeighbours


class NeighbourCollectives(RaggedNeighbours):
    """The verbs of a Topology."""

    @overload
    def neighbour_all_gather(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Now = ...
    ) -> NDArray[Scalar]: ...
    @overload
    def neighbour_all_gather(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Later
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def neighbour_all_gather(
        self, x: complex, *, out: AnyArray | None = ..., async_op: Now = ...
    ) -> AnyArray: ...
    @overload
    def neighbour_all_gather(
        self, x: complex, *, out: AnyArray | None = ..., async_op: Later
    ) -> Request[AnyArray]: ...
    @overload
    def neighbour_all_gather(self, x: Array, *, out: Array | None = ..., async_op: Now = ...) -> Array: ...
    @overload
    def neighbour_all_gather(
        self, x: Array, *, out: Array | None = ..., async_op: Later
    ) -> Request[Array]: ...
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

    @overload
    def neighbour_all_to_all(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Now = ...
    ) -> NDArray[Scalar]: ...
    @overload
    def neighbour_all_to_all(
        self, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ..., async_op: Later
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def neighbour_all_to_all(self, x: Array, *, out: Array | None = ..., async_op: Now = ...) -> Array: ...
    @overload
    def neighbour_all_to_all(
        self, x: Array, *, out: Array | None = ..., async_op: Later
    ) -> Request[Array]: ...
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

    neighbor_all_gather = also(neighbour_all_gather)  # as MPI spells it
    neighbor_all_to_all = also(neighbour_all_to_all)

    # -- how ------------------------------------------------------------------------------------------
    def _neighbours(
        self, verb: str, x: ArrayLike, out: ArrayLike | None, async_op: bool, moves: str
    ) -> object:
        with calling(self.context, verb, x, async_op=async_op):
            return carried_in_time(self.context, self._call(verb, x, out, moves), async_op)

    def _call(self, verb: str, x: ArrayLike, out: ArrayLike | None, moves: str) -> Call:
        call, result = self._checked(verb, x, out)
        comm, look, count, shape = self.context, call.look, call.count, result.shape
        device_side = comm.devices is not None and not comm.devices.is_one_call(count * look.dtype.itemsize)
        given = look if device_side or look.place is None else _on_host(look)
        stays = device_side if result.place is not None else result.array.flags.c_contiguous
        received = result if stays else buffer.empty(shape, look.dtype)
        up = None if stays or result.place is None else host_copy.Upload(result)
        after = staging.After()  # what a device has still to do then
        for i, source in enumerate(self.sources):
            if source == MPI.PROC_NULL:
                _zero(received, i, after)

        def deliver() -> None:
            if up is not None:
                up.fill(received.array, after)
            elif not stays:
                result.array[...] = received.array

        def carry() -> None:
            if device_side:
                progress.drive(self._crossing(call, given, received, after))
            elif comm.size == 1:
                self._to_itself(call, given, received)
            else:
                getattr(comm.mpi_handle, f"Neighbor_{moves}")(*_ends(call, given, received))
            deliver()
            after.order()

        def stages() -> Stages:
            moving = self._crossing if device_side else partial(self._one, moves)
            yield from transport.in_our_words(comm, verb, moving(call, given, received, after))
            deliver()
            return call.finish(None)

        call.carrier, call.finish = Carrier(carry, stages), lambda _: result.give()
        call.after = after if device_side or result.place is not None else None
        return call

    def _checked(self, verb: str, x: ArrayLike, out: ArrayLike | None) -> tuple[Call, Buffer]:
        """The call in words, and a look at what receives; wrong arrays are refused."""
        with refusing(verb, self.context):
            self.context.check_open(verb)
            look = buffer.as_buffer(x)
            block = look.shape
            if verb == "neighbour_all_to_all":
                if not look.shape or look.shape[0] != len(self.destinations):
                    raise LayoutError(
                        f"x has shape {look.shape}; its first axis must be the "
                        f"{len(self.destinations)} destinations",
                        hint="one block for each of comm.destinations",
                    )
                block = look.shape[1:]
            shape = (len(self.sources), *block)
            result = look.make(shape) if out is None else prepare.buffer_of(out, "out")
            if result.shape != shape or result.dtype != look.dtype:
                raise LayoutError(f"out is {result}, what arrives is {look.dtype} {shape}")
            if result.frozen:
                raise LayoutError(f"out {result.frozen}", hint="give an array that can be written")
            if out is not None and share_memory(look, result):
                raise LayoutError("x and out overlap in memory", hint="an out of its own")
        call = Call(self.context, verb, code=head(verb, dtype=look.dtype.code))
        call.count, call.look = math.prod(block), look
        return call, result

    def _one(self, moves: str, call: Call, given: Buffer, received: Buffer, after: staging.After) -> Stages:
        """One call of MPI's on arrays in host memory."""
        if self.context.size == 1:
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
        mpi, tag, _ = channel(self.context)
        apart, messages = watching(mpi), self.context.devices.messages
        errors: list[HpcommError] = []

        def part(verb: str, look: Buffer, peer: int) -> Stages:
            one = Call(self.context, verb, peer=peer, tag=tag)
            one.look, one.after = look, after
            event = messages.begin(look, "down" if verb == "send" else "up")
            move = messages.pass_on if verb == "send" else messages.take_in

            def stages() -> Stages:
                try:
                    yield from move(one, look, event, apart)
                except HpcommError as error:  # once all the others are through
                    error.where = where(call.verb, self.context)
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

    # -- plans ----------------------------------------------------------------------------------------
    def _planned(self, verb: str, x: ArrayLike, out: ArrayLike | None) -> Call:
        """A Call for a plan of a neighbour verb, which begins it anew each time."""
        call, result = self._checked(verb, x, out)
        begin = getattr(self, verb)
        if out is None and hasattr(given := result.give(), "__dlpack__"):  # not a number
            out = given
        call.carrier = Carrier(
            prepare=lambda: Again("the operation in the background", lambda: begin(x, out=out, async_op=True))
        )
        call.finish = lambda _: result.give() if out is None else out
        return call


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
