"""CUDA IPC: device memory from process to process on one node, with the host passing words only.

A sender has a slab, exported once, through whose slots any array can go, whatever allocator made it. A large
array whose allocation can be exported is opened itself. Interprocess events order the two devices' streams:
slot i is written after `done` of its last reader, read after `ready` of its writer.

Whether the receiver can open the sender's memory is tried, with a pattern, when they first meet. A rank that
sends to itself has nothing to open, which CUDA would refuse: it copies from one array to the other.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...core.limits import IPC_DIRECT, IPC_SLOT
from ...core.request import Stages
from ...device.arrays import Place
from ...device.driver import Device
from ...errors import TransportError
from ...job.host import host_mark
from .pipeline import Line
from .staging import Station, station

SLOTS = 8
PER_MESSAGE = 2  # slots that a message uses in turn
_HEAD = 256  # bytes before the slots: the pattern
_OPENED = 16  # allocations of other processes that stay open


@lru_cache(maxsize=1)
def node() -> str:
    """The same for processes that may reach each other: the boot of the machine, and the PID namespace."""
    return host_mark("pid")


@dataclass
class Slot:
    """A slot of a slab as its owner has it: where, and its two events with their handles."""

    index: int
    address: int
    ready: int
    done: int
    handles: tuple[bytes, bytes]
    used: bool = False


@dataclass
class Offer:
    """What a sender shows a receiver: enough to open all that it needs."""

    node: str
    slab: bytes
    pattern: bytes
    written: bytes  # handle of the event after which the pattern is there
    slot_bytes: int
    slots: list[tuple[int, bytes, bytes]]  # index, handles of ready and done
    direct: tuple[bytes, int, int] | None  # handle of the array's allocation, its serial, offset


class Lent(NamedTuple):
    """What a sender shows a receiver that is itself: its array, as it is after an event."""

    device: int  # its index
    address: int
    ready: int


class Slab:
    """The memory that a process has exported from a device; Raises TransportError where none can be."""

    def __init__(self, place: Station) -> None:
        self.device = device = place.device
        self.base = device.allocate(_HEAD + SLOTS * IPC_SLOT)
        self.slot_bytes = IPC_SLOT
        self.pattern = os.urandom(16)
        self.handle = device.export(self.base)
        self.free: list[Slot] = []
        for i in range(SLOTS):
            ready, done = device.event(interprocess=True), device.event(interprocess=True)
            handles = device.export_event(ready), device.export_event(done)
            self.free.append(Slot(i, self.base + _HEAD + i * IPC_SLOT, ready, done, handles))
        host, written = device.pinned(16), device.event(interprocess=True)
        host[:] = np.frombuffer(self.pattern, np.uint8)
        device.copy(self.base, int(host.__array_interface__["data"][0]), 16, place.down)
        device.record(written, place.down)
        self.written = device.export_event(written)

    def take(self) -> list[Slot] | None:
        """Slots for a message; None if all are in use."""
        if len(self.free) < PER_MESSAGE:
            return None
        return [self.free.pop() for _ in range(PER_MESSAGE)]

    def offer(self, slots: list[Slot], place: Place, nbytes: int) -> Offer:
        """What the receiver of an array needs to know; the array is as the stream `down` leaves it."""
        device, direct = self.device, None
        if nbytes >= IPC_DIRECT and device.can_export(place.address):
            base, _ = device.range(place.address)
            slot, stream = slots[0], station(device).down
            if slot.used:  # its events are about to stand for the array: what they stood for comes first
                device.wait(stream, slot.done)
                slot.used = False
            device.record(slot.ready, stream)
            direct = device.export(base), device.serial(place.address), place.address - base
        shown = [(slot.index, *slot.handles) for slot in slots]
        return Offer(node(), self.handle, self.pattern, self.written, self.slot_bytes, shown, direct)


_slabs: dict[int, Slab | str] = {}


def slab(device: Device) -> Slab | str:
    """This process' slab on a device, made when first asked for; or why there is none."""
    if id(device) not in _slabs:
        try:
            _slabs[id(device)] = Slab(station(device))
        except TransportError as error:
            _slabs[id(device)] = error.what
    return _slabs[id(device)]


class Opened:
    """What this process has opened of others' device memory."""

    def __init__(self) -> None:
        self._slabs: dict[tuple[int, bytes], int | str] = {}
        self._events: dict[bytes, int] = {}
        self._direct: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # handle -> serial, where

    def slab(self, device: Device, offer: Offer) -> int | str:
        """Where the slab of an offer is here, after a trial; or why it cannot be reached. Kept."""
        key = device.index, offer.slab
        if key not in self._slabs:
            self._slabs[key] = self._try(device, offer)
        return self._slabs[key]

    def _try(self, device: Device, offer: Offer) -> int | str:
        if offer.node != node():
            return "the sender is on another node, or in another PID namespace"
        try:
            base = device.open(offer.slab)
            seen, event = device.pinned(16), device.event()
            stream = station(device).up
            device.wait(stream, self.event(device, offer.written))
            device.copy(int(seen.__array_interface__["data"][0]), base, 16, stream)
            device.record(event, stream)
            device.synchronize(event)
        except TransportError as error:
            return error.what
        return base if seen.tobytes() == offer.pattern else "what was opened is not what the sender wrote"

    def event(self, device: Device, handle: bytes) -> int:
        if handle not in self._events:
            self._events[handle] = device.open_event(handle)
        return self._events[handle]

    def direct(self, device: Device, offer: Offer) -> int | None:
        """Where the array of an offer is here; None if it cannot be opened.

        Allocations stay open, for opening takes longer than copying; a serial tells a new one at the same
        address from the old one, which is closed then.
        """
        if offer.direct is None:
            return None
        handle, serial, offset = offer.direct
        known = self._direct.pop(handle, None)
        try:
            if known is not None and known[0] != serial:
                device.close(known[1])
                known = None
            if known is None:
                known = serial, device.open(handle)
            self._direct[handle] = known
            if len(self._direct) > _OPENED:
                device.close(self._direct.popitem(last=False)[1][1])
        except TransportError:
            return None
        return known[1] + offset


def sends(line: Line, place: Place, kept: Slab, slots: list[Slot], direct: bool) -> Stages:
    """The sender's stages, behind what its stream `down` has waited for; yields what to wait for."""
    device, stream, nbytes = kept.device, station(place.device).down, place.nbytes
    word, answers = bytearray(1), [bytearray(1), bytearray(1)]
    if direct:
        yield [line.take_answer(answers[0])]
        device.wait(stream, slots[0].done)
        return
    starts = range(0, nbytes, kept.slot_bytes)
    for i, low in enumerate(starts):
        slot = slots[i % len(slots)]
        if i >= len(slots):
            yield [line.take_answer(answers[0])]
        if slot.used:
            device.wait(stream, slot.done)
        device.copy(slot.address, place.address + low, min(kept.slot_bytes, nbytes - low), stream)
        device.record(slot.ready, stream)
        slot.used = True
        yield [line.give(word)]
    for i in range(min(len(starts), len(slots))):  # one is given back once its reader has recorded done
        yield [line.take_answer(answers[i])]


def receives(line: Line, place: Place, opened: Opened, offer: Offer, base: int, direct: int | None) -> Stages:
    """The receiver's stages, into its stream `up`."""
    device, stream, nbytes = place.device, station(place.device).up, place.nbytes
    word, said = bytearray(1), bytearray(1)
    slots = [
        (base + _HEAD + index * offer.slot_bytes, opened.event(device, ready), opened.event(device, done))
        for index, ready, done in offer.slots
    ]
    if direct is not None:
        _, ready, done = slots[0]
        device.wait(stream, ready)
        device.copy(place.address, direct, nbytes, stream)
        device.record(done, stream)
        yield [line.give_answer(said)]
        return
    for i, low in enumerate(range(0, nbytes, offer.slot_bytes)):
        address, ready, done = slots[i % len(slots)]
        yield [line.take(word)]
        device.wait(stream, ready)
        device.copy(place.address + low, address, min(offer.slot_bytes, nbytes - low), stream)
        device.record(done, stream)
        yield [line.give_answer(said)]


def lends(line: Line, place: Place) -> Stages:
    """The stages of a sender that is the receiver, too, behind what its stream `down` has waited for."""
    there, done = station(place.device), np.zeros(1, np.int64)
    yield [line.take_answer(done)]
    place.device.wait(there.down, int(done[0]))
    there.return_event(int(done[0]))


def copies(line: Line, place: Place, lent: Lent) -> Stages:
    """Those of the receiver, into its stream `up`."""
    there = station(place.device)
    place.device.wait(there.up, lent.ready)
    place.device.copy(place.address, lent.address, place.nbytes, there.up)
    yield [line.give_answer(np.array([there.record_event(there.up)], np.int64))]
