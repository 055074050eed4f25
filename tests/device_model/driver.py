"""Modelled driver, for tests without a GPU: the second implementation of the driver interface.

Streams are queues whose work is done as late as the rules allow. Device memory begins as poison and has
addresses at which the host finds nothing; it lies in a memory file, so that other processes can open it
as CUDA's IPC lets them. Every access and every wait goes to `order`, which tells races.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcomm.errors import ConfigError, LayoutError, TransportError

from .order import Noted, Order, site
from .queues import EVENT, EVENTS, HEAP, Event, Heap, Stream, Waited, Work, catch_up, complete
from .watch import Watched

if TYPE_CHECKING:
    from hpcomm.core.types import AnyArray

__all__ = ["Model", "ModelDevice"]

POISON = 0xCB
_BASE, _APART = 0x7E00_0000_0000, 1 << 36  # where addresses begin; from one process' to the next one's
_LATE = 2e-3  # s after which work is done though nobody waits for it here
_HANDLE = struct.Struct("<qqqq")  # process, its memory file, where, how many bytes


class Model:
    """The driver of a process. Install it before communicators are made: hpcomm.device.driver.install.

    Args:
        devices: how many there are; all share the process' memory.
        can_export: whether memory that users allocate may be opened by other processes.
    """

    name = "model"

    def __init__(self, devices: int = 1, can_export: bool = True) -> None:
        self.order = Order(os.getpid())
        self.user_memory_can_be_exported = can_export
        self.nccl: Any = None  # a stand-in of the test's; see device.nccl.Nccl
        self.number_of_gpu = 0  # ranks of the same number share a device
        self.can_open = True  # False: opening fails, as it does between containers
        self._file = os.memfd_create("hpcomm-model")
        os.ftruncate(self._file, HEAP + EVENTS * EVENT)
        self.heap = Heap(os.getpid(), self._file, _BASE)
        self._start = int(self.heap.bytes.__array_interface__["data"][0])
        self._heaps = {(os.getpid(), self._file): self.heap}
        self._next = 256
        self.allocations: dict[int, tuple[int, bool]] = {}  # where -> bytes, may be exported
        self._pinned: list[NDArray[Any]] = []
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self._numbers = iter(range(16, 1 << 40))
        self._event_places = [HEAP + i * EVENT for i in reversed(range(EVENTS))]
        self.lock = threading.RLock()
        self._hardware: threading.Thread | None = None
        self._queued = threading.Event()  # may be set though all is done
        self._devices = [ModelDevice(self, index) for index in range(devices)]

    def count(self) -> int:
        return len(self._devices)

    def device(self, index: int) -> ModelDevice:
        return self._devices[index]

    def device_of(self, address: int) -> int:
        if not self.heap.base <= address < self.heap.base + HEAP:
            raise LayoutError(f"address {address:#x} is no memory of the model", hint="numpy.asarray(x)")
        return 0

    def watch(self, mpi: object) -> object:
        return Watched(mpi, self.order, self.lock, self.at)

    def noted(self) -> Noted:
        """What was noted so far. A thread that progresses messages may note more while others are read."""
        with self.lock:
            return Noted(*map(list, self.order.noted))  # type: ignore[arg-type]

    def number(self) -> int:
        return next(self._numbers)

    def at(self, address: int, nbytes: int) -> tuple[AnyArray, str, int]:
        """The bytes behind an address, what they are part of, and where in it they begin."""
        for heap in self._heaps.values():
            if heap.base <= address and address + nbytes <= heap.base + HEAP:
                low = address - heap.base
                return heap.bytes[low : low + nbytes], f"heap {heap.process}", low
        if self._start <= address < self._start + HEAP:  # as memory() shows it to MPI
            low = address - self._start
            return self.heap.bytes[low : low + nbytes], f"heap {self.heap.process}", low
        for pinned in self._pinned:
            start = pinned.__array_interface__["data"][0]
            if start <= address and address + nbytes <= start + pinned.nbytes:
                low = address - start
                return pinned[low : low + nbytes], f"pinned {self.order.process} {start:#x}", low
        raise TransportError(f"invalid argument: {address:#x} is neither device memory nor pinned")

    def put(self, stream: int, work: Work, touches: list[tuple[int, int, bool]]) -> None:
        """Put work into stream; touches: (address, bytes, whether it writes)."""
        with self.lock:
            found = self.find(stream)
            moment = self.order.step(found.actor)
            for address, nbytes, writes in touches:
                _, memory, low = self.at(address, nbytes)
                self.order.access(moment, memory, low, low + nbytes, writes)
            self._queue(found, work)

    def _queue(self, stream: Stream, work: Work | Waited) -> None:
        stream.queue.append((time.monotonic(), work))
        self._queued.set()

    def find(self, stream: int) -> Stream:
        if stream not in self.streams:
            if stream > 2:
                raise TransportError(f"invalid resource handle: there is no stream {stream}")
            self.streams[stream] = Stream(self.order.actor(f"stream {stream}"))  # a default stream
        return self.streams[stream]

    def record(self, event: int, stream: int) -> None:
        with self.lock:
            found, marked = self.find(stream), self.events[event]
            number = marked.record(found, (self.order.step(found.actor), site()))
            self._queue(found, lambda: marked.reach(number))

    def wait(self, stream: int, event: int) -> None:
        with self.lock:
            found, marked = self.find(stream), self.events[event]
            self.order.step(found.actor)
            number = marked.recorded
            if number:
                moment, recorded_at = marked.mark()
                self.order.learn(found.actor, moment, f"{recorded_at} before stream at {site()}")
                self._queue(found, Waited(marked, number, marked.stream))

    def host_waits(self, event: int, block: bool) -> bool:
        """Let the host wait for event, or only ask."""
        with self.lock:
            marked = self.events[event]
            waited = Waited(marked, number := marked.recorded, marked.stream)
        pause = 0.0
        while True:
            with self.lock:
                if complete(waited):
                    if number:
                        moment, recorded_at = marked.mark()
                        self.order.learn(self.order.host, moment, f"{recorded_at} before host")
                    return True
            if not block:
                return False
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)

    def run_by_itself(self) -> None:
        """Let work be done without anybody waiting here, because other processes wait for it."""
        if self._hardware is None:
            self._hardware = threading.Thread(target=self._run, daemon=True, name="model of a device")
            self._hardware.start()

    def _run(self) -> None:
        while self._queued.wait():
            time.sleep(_LATE / 2)
            with self.lock:
                for stream in list(self.streams.values()):
                    catch_up(stream, time.monotonic() - _LATE)
                if not any(stream.queue for stream in self.streams.values()):
                    self._queued.clear()

    def shared_event(self) -> Event:
        if not self._event_places:
            raise TransportError("out of memory: the model has no more interprocess events")
        place = self._event_places.pop()
        memory = self.heap.bytes[place : place + EVENT]
        memory[:] = 0
        made = Event(memory)
        made.place = place
        return made

    def destroy_event(self, event: int) -> None:
        gone = self.events.pop(event)
        if gone.place:
            self._event_places.append(gone.place)

    def opened(self, process: int, file: int) -> Heap:
        """The memory of another process."""
        if not self.can_open:
            raise TransportError("operation not supported: this model does not open other processes' memory")
        key = (process, file)
        if key not in self._heaps:
            there = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
            self._heaps[key] = Heap(process, there, _BASE + len(self._heaps) * _APART)
            os.close(there)
        return self._heaps[key]

    def allocate(self, nbytes: int, exportable: bool) -> int:
        with self.lock:
            base, size = self._next, -(-max(nbytes, 1) // 256) * 256
            if base + size > HEAP:
                raise TransportError("out of memory: the model's heap is full")
            self._next = base + size
            self.allocations[self.heap.base + base] = (nbytes, exportable)
            self.heap.bytes[base : base + size] = POISON
            return self.heap.base + base

    def pin(self, nbytes: int) -> AnyArray:
        memory: NDArray[Any] = np.full(max(nbytes, 1), POISON, np.uint8)
        self._pinned.append(memory)
        return memory[:nbytes]

    def unpin(self, memory: AnyArray) -> None:
        start = memory.__array_interface__["data"][0]
        self._pinned = [each for each in self._pinned if each.__array_interface__["data"][0] != start]


class ModelDevice:
    """A device of the model; see driver.Device for what the methods mean."""

    def __init__(self, model: Model, index: int) -> None:
        self.model = model
        self.index = index
        self.name = "model of a device"

    def identity(self) -> bytes:
        return b"model of device" + bytes([self.model.number_of_gpu])

    def allocate(self, nbytes: int) -> int:
        return self.model.allocate(nbytes, exportable=True)

    def free(self, address: int) -> None:
        del self.model.allocations[address]  # addresses are not given out again: who uses one is found out

    def pinned(self, nbytes: int) -> AnyArray:
        return self.model.pin(nbytes)

    def unpin(self, memory: AnyArray) -> None:
        self.model.unpin(memory)

    def stream(self) -> int:
        number = self.model.number()
        self.model.streams[number] = Stream(self.model.order.actor(f"stream {number}"))
        return number

    def event(self, interprocess: bool = False) -> int:
        number = self.model.number()
        self.model.events[number] = self.model.shared_event() if interprocess else Event()
        return number

    def destroy_event(self, event: int) -> None:
        self.model.destroy_event(event)

    def record(self, event: int, stream: int) -> None:
        self.model.record(event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.model.wait(stream, event)

    def synchronize(self, event: int) -> None:
        self.model.host_waits(event, block=True)

    def query(self, event: int) -> bool:
        return self.model.host_waits(event, block=False)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        target, given = self.model.at(to, nbytes)[0], self.model.at(source, nbytes)[0]

        def work() -> None:
            target[:] = given

        self.model.put(stream, work, [(source, nbytes, False), (to, nbytes, True)])

    def is_capturing(self, stream: int) -> bool:
        return stream in getattr(self.model, "capturing", ())

    def range(self, address: int) -> tuple[int, int]:
        for base, (nbytes, _) in self.model.allocations.items():
            if base <= address < base + max(nbytes, 1):
                return base, nbytes
        raise TransportError(f"invalid value: {address:#x} is in no allocation")

    def serial(self, address: int) -> int:
        return self.range(address)[0]  # addresses are not given out again

    def can_export(self, address: int) -> bool:
        return self.model.allocations[self.range(address)[0]][1]

    def export(self, base: int) -> bytes:
        self.model.run_by_itself()
        nbytes = self.model.allocations[base][0]
        heap = self.model.heap
        return _HANDLE.pack(heap.process, self.model._file, base - heap.base, nbytes).ljust(64, b"\0")

    def open(self, handle: bytes) -> int:
        process, file, low, _ = _HANDLE.unpack_from(handle)
        if process == os.getpid():
            raise TransportError("invalid context: a process cannot open its own memory")
        self.model.run_by_itself()
        return self.model.opened(process, file).base + int(low)

    def close(self, address: int) -> None:
        self.model.at(address, 0)

    def memory(self, address: int, nbytes: int) -> AnyArray:
        return self.model.at(address, nbytes)[0]

    def nccl(self) -> Any:
        if self.model.nccl is None:
            raise ConfigError("the model has no NCCL")
        return self.model.nccl

    def export_event(self, event: int) -> bytes:
        self.model.run_by_itself()
        place = self.model.events[event].place
        return _HANDLE.pack(self.model.heap.process, self.model._file, place, EVENT).ljust(64, b"\0")

    def open_event(self, handle: bytes) -> int:
        process, file, place, nbytes = _HANDLE.unpack_from(handle)
        self.model.run_by_itself()
        heap = self.model.opened(process, file)
        number = self.model.number()
        self.model.events[number] = Event(heap.bytes[place : place + nbytes])
        return number
