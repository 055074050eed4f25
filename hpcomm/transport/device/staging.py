"""Staging: device memory through pinned host memory, a piece at a time, on streams of its own.

A Source brings columns of an array to the host, a Sink takes columns from there, each through two slots in
turn, so that one is copied while MPI works on the other. Of arrays in host memory columns are views.
An array is blocks * count elements; columns low..high-1 are those elements of each block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import buffer
from ...core.buffer import Buffer
from ...core.limits import PINNED_KEPT
from ...core.types import NpArray
from ...device.arrays import Place
from ...device.driver import Device
from ...errors import UsageError

_LEAST = 4096  # bytes of the smallest slot


class Reached:
    """The end of work on a device, waited for by the host as an MPI request is."""

    def __init__(self, device: Device, event: int) -> None:
        self.device, self.event = device, event

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        return self.device.query(self.event)

    def Wait(self, status: object = None) -> bool:  # noqa: N802
        self.device.synchronize(self.event)
        return True


class After:
    """What a call leaves on the device when the host's part is over: work that others may wait for."""

    def __init__(self) -> None:
        self._left: list[tuple[Station, int, Place]] = []

    def leave(self, station: Station, stream: int, place: Place) -> None:
        """What uses the array at place from now on must come after what stream has been given so far."""
        self._left.append((station, station.record_event(stream), place))

    def renew(self) -> None:
        """A new run of the same call: what the last one left is in order with its waits."""
        for station, event, _ in self._left:
            station.return_event(event)
        self._left.clear()

    def order(self) -> None:
        """Let the current streams wait."""
        for station, event, place in self._left:
            now = place.stream()
            station.device.wait(now, event)
            if now != place.begun:
                station.keep_array(now, place.array)

    def done(self) -> bool:
        return all(station.device.query(event) for station, event, _ in self._left)

    def synchronize(self) -> None:
        for station, event, _ in self._left:
            station.device.synchronize(event)

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        return self.done()

    def Wait(self, status: object = None) -> None:  # noqa: N802
        self.synchronize()

    def __del__(self) -> None:
        self.renew()


class _Slot:
    """Pinned memory, and an event for the last work on it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory: NpArray = device.pinned(nbytes)
        self.address = int(self.memory.__array_interface__["data"][0])
        self.event = device.event()
        self.used = False  # whether the event was recorded


class Station:
    """What this process keeps for one device: streams, slots of pinned memory, events.

    Streams: down and up for what goes through pinned memory, side for what stays on devices.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.down, self.up, self.side = device.stream(), device.stream(), device.stream()
        self._free: dict[tuple[str, int], list[_Slot]] = {}  # (direction, bytes) -> slots
        self._kept = 0  # bytes of them
        self._going: list[_Slot] = []  # to be freed once the device is through with them
        self._events: list[int] = []
        self._streams: list[int] = []
        self._held: list[tuple[int, Any]] = []

    def take_stream(self) -> int:
        """A stream that nobody else has, until it is returned."""
        return self._streams.pop() if self._streams else self.device.stream()

    def return_stream(self, stream: int) -> None:
        self._streams.append(stream)

    def take_slot(self, way: str, nbytes: int) -> _Slot:
        """A slot for one direction, of a power of two of bytes. Its last work may not be over: see used."""
        size = max(_LEAST, 1 << (nbytes - 1).bit_length()) if nbytes else _LEAST
        if free := self._free.get((way, size)):
            self._kept -= size
            return free.pop()
        return _Slot(self.device, size)

    def return_slot(self, way: str, slot: _Slot) -> None:
        """Keep a slot for later, or, beyond PINNED_KEPT bytes, free it as soon as the device is through
        with it."""
        nbytes = slot.memory.nbytes
        if self._kept + nbytes <= PINNED_KEPT:
            self._kept += nbytes
            self._free.setdefault((way, nbytes), []).append(slot)
        else:
            self._going.append(slot)
        for each in tuple(self._going):
            if not each.used or self.device.query(each.event):
                self._going.remove(each)
                self.device.destroy_event(each.event)
                self.device.unpin(each.memory)

    def record_event(self, stream: int) -> int:
        """An event of its own for the work put into stream so far; at the end for return_event()."""
        event = self._events.pop() if self._events else self.device.event()
        self.device.record(event, stream)
        return event

    def return_event(self, event: int) -> None:
        self._events.append(event)

    def user_event(self, place: Place) -> int:
        """An event for what the user has put into the current stream of an array so far, as record_event.

        Raises:
            UsageError: that stream is being captured into a graph, which staging cannot be part of.
        """
        user = place.begun = place.stream()
        if self.device.is_capturing(user):
            raise UsageError(
                "the current stream is being captured into a CUDA graph",
                hint="communicate outside the capture",
            )
        self._drop_arrays()
        return self.record_event(user)

    def keep_array(self, stream: int, array: object) -> None:
        """Keep an array until stream has come so far.

        Its library gives memory out again to the stream that it was made on, and does not know of others.
        """
        self._held.append((self.record_event(stream), array))

    def _drop_arrays(self) -> None:
        for each in tuple(self._held):
            if self.device.query(each[0]):
                self._held.remove(each)
                self.return_event(each[0])

    def follow(self, stream: int, place: Place) -> None:
        """Let stream come after it."""
        event = self.user_event(place)
        self.device.wait(stream, event)
        self.return_event(event)


_stations: dict[int, Station] = {}  # by the device object


def station(device: Device) -> Station:
    if id(device) not in _stations:
        _stations[id(device)] = Station(device)
    return _stations[id(device)]


class Source:
    """Columns of an array in host memory: views of them, or of a copy of it where it is strided."""

    def __init__(self, look: Buffer, blocks: int, apart: Buffer | None) -> None:
        array = np.ascontiguousarray(look.array)
        if apart is not None and apart is not look and buffer.overlap(array, apart.array):
            array = array.copy()
        self._array = array.reshape(blocks, -1)

    def begin(self, event: int | None = None) -> None:
        """Take note of what the array holds now, or held at an event (Station.user_event)."""

    def bring(self, low: int, high: int) -> None:
        """Begin to bring columns; those of two calls are kept."""

    def landed(self) -> list[Reached]:
        """What the host has to wait for before it reads the columns of the oldest bring."""
        return []

    def columns(self, low: int, high: int) -> NpArray:
        return self._array[:, low:high]

    def end(self) -> None:
        """Return what is needed no longer."""


class Sink:
    """Columns of an array in host memory, to be filled."""

    def __init__(self, look: Buffer, blocks: int) -> None:
        self._look = look
        self._whole = buffer.landing(look)
        self._array = self._whole.reshape(blocks, -1)

    def begin(self, event: int | None = None) -> None:
        """Take note of who uses the array now, or did at an event."""

    def free(self) -> list[Reached]:
        """What the host has to wait for before it writes the next columns."""
        return []

    def columns(self, low: int, high: int) -> NpArray:
        return self._array[:, low:high]

    def deliver(self, low: int, high: int) -> None:
        """Put the columns where they belong."""

    def end(self, after: After) -> None:
        if self._whole is not self._look.array:
            self._look.array[...] = self._whole


class NoSource(Source):
    """That of a rank that gives no array."""

    def __init__(self) -> None:
        pass


class NoSink(Sink):
    """That of a rank that gets none."""

    def __init__(self) -> None:
        pass

    def end(self, after: After) -> None:
        pass


class _DeviceEnd:
    """Two slots of pinned memory beside an array on a device."""

    way: str

    def __init__(self, place: Place, blocks: int, count: int, piece: int, stream: int | None = None) -> None:
        self._place, self._blocks, self._count = place, blocks, count
        self._itemsize = place.dtype.itemsize
        self._kind = np.dtype(place.dtype.storage)
        self._station = station(place.device)
        self._stream = stream or (self._station.down if self.way == "down" else self._station.up)
        nbytes = blocks * piece * self._itemsize
        self._slots = [self._station.take_slot(self.way, nbytes) for _ in range(2 if piece < count else 1)]
        self._turn = 0

    def begin(self, event: int | None = None) -> None:
        if event is None:
            self._station.follow(self._stream, self._place)
        else:
            self._station.device.wait(self._stream, event)

    def _slot(self) -> _Slot:
        return self._slots[self._turn % len(self._slots)]

    def columns(self, low: int, high: int, slot: _Slot | None = None) -> NpArray:
        n = self._blocks * (high - low)
        found = (slot or self._slot()).memory[: n * self._itemsize].view(self._kind)
        return found.reshape(self._blocks, high - low)

    def _rows(self, low: int, high: int, slot: _Slot) -> list[tuple[int, int, int]]:
        """(address on the device, address in the slot, bytes) of each block."""
        row = (high - low) * self._itemsize
        base, step = self._place.address + low * self._itemsize, self._count * self._itemsize
        return [(base + b * step, slot.address + b * row, row) for b in range(self._blocks)]

    def return_slots(self) -> None:
        for slot in self._slots:
            self._station.return_slot(self.way, slot)


class DeviceSource(_DeviceEnd, Source):
    way = "down"

    def __init__(self, place: Place, blocks: int, count: int, piece: int, stream: int | None = None) -> None:
        super().__init__(place, blocks, count, piece, stream)
        self._brought = 0

    def bring(self, low: int, high: int) -> None:
        slot = self._slots[self._brought % len(self._slots)]
        self._brought += 1
        device = self._station.device
        for there, here, nbytes in self._rows(low, high, slot):
            device.copy(here, there, nbytes, self._stream)
        device.record(slot.event, self._stream)

    def landed(self) -> list[Reached]:
        return [Reached(self._station.device, self._slot().event)]

    def columns(self, low: int, high: int, slot: _Slot | None = None) -> NpArray:
        found = super().columns(low, high)
        self._turn += 1
        return found

    def end(self) -> None:
        self.return_slots()


class DeviceSink(_DeviceEnd, Sink):
    way = "up"

    def __init__(self, place: Place, blocks: int, count: int, piece: int, stream: int | None = None) -> None:
        super().__init__(place, blocks, count, piece, stream)
        self._asked = 0

    def free(self) -> list[Reached]:
        slot = self._slots[self._asked % len(self._slots)]
        return [Reached(self._station.device, slot.event)] if slot.used else []

    def columns(self, low: int, high: int, slot: _Slot | None = None) -> NpArray:
        slot = self._slots[self._asked % len(self._slots)]
        self._asked += 1
        return super().columns(low, high, slot)

    def deliver(self, low: int, high: int) -> None:
        slot, device = self._slot(), self._station.device
        self._turn += 1
        for there, here, nbytes in self._rows(low, high, slot):
            device.copy(there, here, nbytes, self._stream)
        device.record(slot.event, self._stream)
        slot.used = True

    def end(self, after: After) -> None:
        after.leave(self._station, self._stream, self._place)
        self.return_slots()


def pieces(count: int, piece: int) -> list[tuple[int, int]]:
    """Where pieces of columns begin and end; one is empty if there are none."""
    return [(low, min(low + piece, count)) for low in range(0, count, max(piece, 1))] or [(0, 0)]


def source_of(look: Buffer, blocks: int, count: int, piece: int, apart: Buffer | None = None) -> Source:
    """The Source of an array wherever it lies; apart: where the result goes, which may be the same memory."""
    if isinstance(look, buffer.DeviceBuffer):
        return DeviceSource(look.packed(), blocks, count, piece)
    return Source(look, blocks, apart)


def sink_of(look: Buffer, blocks: int, count: int, piece: int) -> Sink:
    return Sink(look, blocks) if look.place is None else DeviceSink(look.place, blocks, count, piece)
