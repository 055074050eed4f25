"""Copies between device and host through pinned memory, in order on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...core import buffer
from ...core.buffer import Buffer, DeviceBuffer, Shape
from ...core.limits import HOST_COPY_PIECE
from ...core.operation import Call
from ...core.request import Stages
from ...core.types import AnyArray
from .staging import After, DeviceSink, DeviceSource, pieces


def to_host(look: DeviceBuffer) -> AnyArray:
    """A copy of an array on a device, in the dtype that its elements are stored in."""
    copy = np.empty(look.shape, look.dtype.storage)
    _carry_out(down(look, copy))
    return copy


def down(look: DeviceBuffer, copy: AnyArray, event: int | None = None) -> Stages:
    """The stages of to_host, into copy; event: what the array holds then (Station.user_event), not now."""
    flat = copy.reshape(-1)
    piece = _piece(look)
    source, parts = DeviceSource(look.packed(), 1, look.size, piece), pieces(look.size, piece)
    source.begin(event)
    source.bring(*parts[0])
    for i, (low, high) in enumerate(parts):
        yield source.landed()
        part = source.columns(low, high)[0]
        if i + 1 < len(parts):
            source.bring(*parts[i + 1])  # on its way while the host copies
        flat[low:high] = part
    source.end()


def _carry_out(stages: Stages) -> None:
    for waits in stages:
        for each in waits:
            each.Wait()


def beside(look: Buffer, filled: bool) -> Buffer:
    """Memory of the host in place of an array on a device; give() fills the array from it.

    filled: with what the array holds now. A function as operator is given arrays of numpy.
    """
    if not isinstance(look, buffer.DeviceBuffer):
        return look
    made = _Beside(look)
    if filled:
        made.renew()
    return made


class _Beside(buffer.Buffer):
    """Memory of the host in place of an array on a device."""

    def __init__(self, look: DeviceBuffer) -> None:
        def make(shape: Shape) -> Buffer:
            return beside(look.make(shape), False)

        def give() -> object:
            from_host(array, look)
            return look.give()

        self._there, array = look, np.empty(look.shape, look.dtype.storage)
        super().__init__(array, look.dtype, make, give, look.frozen)

    def renew(self) -> None:
        """Fill it with what the array on the device holds now."""
        _carry_out(down(self._there, self.array))

    def wrap(self, array: AnyArray) -> object:
        return buffer.empty(self.shape, self.dtype).wrap(array)


def renewed(call: Call, send: Buffer | None, recv: Buffer | None) -> Call:
    """call, made of what beside() gave: each fill begins on the device, and each end goes up to it."""
    if isinstance(send, _Beside):
        call.fill = partial(_fill, send, call.fill)
    if isinstance(recv, _Beside):
        call.give = None
    return call


def _fill(copy: _Beside, further: Callable[[], None] | None) -> None:
    copy.renew()
    if further is not None:
        further()


class Upload:
    """The way up to an array in one piece on a device; what the current stream holds now goes before."""

    def __init__(self, look: Buffer, event: int | None = None) -> None:
        assert look.place is not None
        self._look = look
        self._sink = DeviceSink(look.place, 1, look.size, _piece(look))
        self._sink.begin(event)

    def fill(self, data: AnyArray, after: After) -> None:
        """Fill the array with what to_host would give; after: for streams that are to see it."""
        _carry_out(self.up(data, after))

    def up(self, data: AnyArray, after: After) -> Stages:
        """The stages of fill()."""
        flat = np.ascontiguousarray(data, self._look.dtype.storage).reshape(-1)
        for low, high in pieces(self._look.size, _piece(self._look)):
            yield self._sink.free()
            self._sink.columns(low, high)[0] = flat[low:high]
            self._sink.deliver(low, high)
        self._sink.end(after)


def from_host(data: AnyArray, look: Buffer) -> None:
    """Fill an array on a device with what to_host would give; strided ones by a kernel of their library."""
    place = look.place
    assert place is not None
    if place.strides is None:
        after = After()
        Upload(look).fill(data, after)
        after.order()
    else:
        packed = look.make(look.shape)
        from_host(data, packed)
        place.array[...] = packed.give()


def _piece(look: Buffer) -> int:
    """Elements of a piece."""
    return max(1, min(look.size, HOST_COPY_PIECE // look.dtype.itemsize))
