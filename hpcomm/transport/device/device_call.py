"""What a rank brings to a collective of which some arrays may lie on devices."""

from __future__ import annotations

import numpy as np

from ...core.buffer import Buffer, DeviceBuffer
from ...core.operation import Call
from ...core.verbs import GATHERING, INPUT_BLOCKS, OUTPUT_BLOCKS
from ...device.arrays import Place
from ...device.libraries import kernels
from ...errors import LayoutError, UsageError
from ..prepare import Arrays
from . import device_columns
from .staging import NoSink, NoSource, Sink, Source, sink_of, source_of, station


class Job:
    """A collective with what this rank brings to it."""

    def __init__(self, call: Call, arrays: Arrays, blocking: bool) -> None:
        self.call, self.blocking = call, blocking
        self.send, self.recv, self.reduce = send, recv, reduce = arrays
        self.is_one = call.verb == "broadcast" and send is not None and send is recv  # array for both
        self.packed = send
        self.blocks_in, self.blocks_out = _blocks(call)
        places = [x.place for x in (send, recv) if x is not None]
        place = next((each for each in places if each is not None), None)
        self.device = None if place is None or None in places else place.device
        found = kernels(place) if place is not None and reduce is not None else None
        self.lacks = device_columns.lacks(reduce, call.look.dtype, found)
        self.kernels = None if isinstance(found, str) else found
        self.events: dict[str, tuple[Place, int]] = {}
        self.algorithm: str | None = None  # that the user names
        self.path = ""  # that the ranks have chosen, if they have
        self.here: Call | None = None  # where all arrays lie in host memory: what it does on them by that

    def begin(self) -> None:
        """Take note of what the current streams hold now, which the call comes after."""
        self.end()
        self.packed = self.send
        if isinstance(self.send, DeviceBuffer) and self.send.place.strides is not None:
            self.packed = DeviceBuffer(self.send.give(), self.send.packed())
        for name, x in (("send", self.packed), ("recv", self.recv)):
            if x is not None and x.place is not None:
                self.events[name] = x.place, station(x.place.device).user_event(x.place)

    def source(self, piece: int) -> Source:
        if self.packed is None:
            return NoSource()
        return source_of(self.packed, self.blocks_in, self.call.count, piece, self.recv)

    def sink(self, piece: int) -> Sink:
        if self.recv is None or self.is_one:
            return NoSink()
        return sink_of(self.recv, self.blocks_out, self.call.count, piece)

    def places(self) -> tuple[Place | None, Place | None]:
        send, recv = self.packed, self.recv
        return None if send is None else send.place, None if recv is None else recv.place

    def event(self, name: str) -> int | None:
        return self.events[name][1] if name in self.events else None

    def end(self) -> None:
        """All that had to come after the events has been told so."""
        for place, event in self.events.values():
            station(place.device).return_event(event)
        self.events.clear()


def _blocks(call: Call) -> tuple[int, int]:
    """How many blocks x and out have."""
    comm, verb = call.comm, call.verb
    p = comm.remote_size if comm.is_inter else comm.size
    given = comm.size if verb == "reduce_scatter" else p
    return given if verb in INPUT_BLOCKS else 1, p if verb in OUTPUT_BLOCKS else 1


def piece_of(end: Source | Sink, low: int, high: int, call: Call, stacked: bool) -> Buffer | None:
    """A piece of columns as an array of a call of its own."""
    if isinstance(end, (NoSource, NoSink)):
        return None
    array = end.columns(low, high)
    made = Buffer(array if stacked else array[0], call.look.dtype, _no_more, lambda: made)
    return made


def copy_of(look: Buffer) -> Buffer:
    """The array itself if it lies in host memory, else memory there for a copy."""
    if look.place is None:
        return look
    made = Buffer(np.empty(look.shape, look.dtype.storage), look.dtype, _no_more, lambda: made)
    return made


def _no_more(shape: object) -> Buffer:
    raise AssertionError("a piece makes no arrays")


def on_device(*looks: Buffer | None) -> bool:
    return any(look is not None and look.place is not None for look in looks)


def refuse(call: Call, arrays: Arrays) -> None:
    """Refuse arrays on devices that no path may take."""
    send, recv, reduce = arrays
    if reduce is not None and reduce.function is not None and on_device(send, recv):
        raise UsageError(
            "a function as op reduces arrays of the host", hint="op by name, such as 'sum'; or x.cpu()"
        )
    if send is not None and recv is not None:
        _refuse_overlap(call, send, recv)
    if recv is not None and recv.place is not None and recv.frozen:
        raise LayoutError(f"out {recv.frozen}", hint="give a contiguous array that can be written")


def _refuse_overlap(call: Call, send: Buffer, recv: Buffer) -> None:
    if send.place is None or recv.place is None:
        return
    a, b = send.place.address, recv.place.address
    is_apart = max(a, b) >= min(a + send.nbytes, b + recv.nbytes)
    if is_apart or (a == b and send.nbytes == recv.nbytes):
        return
    mine = call.comm.rank * call.count * call.look.dtype.itemsize
    if (call.verb in GATHERING and a == b + mine) or (call.verb == "scatter" and b == a + mine):
        return
    raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")
