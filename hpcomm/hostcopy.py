"""Arrays from a device to the host and back, in pieces of pinned memory, in order on the current stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .transport.staging import After, DeviceSink, DeviceSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .buffer import Buffer, DeviceBuffer

__all__ = ["Landing", "from_host", "to_host"]

PIECE = 4 << 20  # bytes of pinned memory that a piece takes


def to_host(look: DeviceBuffer) -> NDArray[Any]:
    """A copy of an array on a device, in the dtype that its elements are stored in."""
    copy = np.empty(look.shape, look.dtype.storage)
    flat = copy.reshape(-1)
    piece, pieces = _pieces(look)
    source = DeviceSource(look.packed(), 1, look.size, piece)
    source.begin()
    coming = next(pieces, None)
    if coming is not None:
        source.bring(*coming)
    while coming is not None:
        for each in source.landed():
            each.Wait()
        (low, high), coming = coming, next(pieces, None)
        part = source.columns(low, high)[0]
        if coming is not None:
            source.bring(*coming)  # on its way while the host copies
        flat[low:high] = part
    source.end()
    return copy


class Landing:
    """The way up to an array in one piece on a device; what the current stream holds now goes before."""

    def __init__(self, look: Buffer) -> None:
        assert look.place is not None
        self._look = look
        piece, self._pieces = _pieces(look)
        self._sink = DeviceSink(look.place, 1, look.size, piece)
        self._sink.begin()

    def fill(self, data: NDArray[Any], after: After) -> None:
        """Fill the array with what to_host would give; after: for streams that are to see it."""
        flat = np.ascontiguousarray(data, self._look.dtype.storage).reshape(-1)
        for low, high in self._pieces:
            for each in self._sink.free():
                each.Wait()
            self._sink.columns(low, high)[0] = flat[low:high]
            self._sink.deliver(low, high)
        self._sink.end(after)


def from_host(data: NDArray[Any], look: Buffer) -> None:
    """Fill an array on a device with what to_host would give; strided ones by a kernel of their library."""
    place = look.place
    assert place is not None
    if place.strides is None:
        after = After()
        Landing(look).fill(data, after)
        after.order()
    else:
        packed = look.make(look.shape)
        from_host(data, packed)
        place.array[...] = packed.give()


def _pieces(look: Buffer) -> tuple[int, Iterator[tuple[int, int]]]:
    """Elements of a piece, and where the pieces begin and end."""
    piece = max(1, min(look.size, PIECE // look.dtype.itemsize))
    return piece, ((low, min(low + piece, look.size)) for low in range(0, look.size, piece))
