"""A model of the driver, for tests without a GPU: the seam's second implementation.

Streams are queues whose work is done as late as the rules allow. Device memory begins as poison and has
addresses at which the host finds nothing; it lies in a memory file, so that other processes can open it
as CUDA's IPC lets them. Every access and every wait goes to `order`, which tells races.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import LayoutError, TransportError
from .order import Order, site
from .watch import Watched

__all__ = ["DeviceArray", "Model", "ModelDevice", "asarray", "empty", "stream"]

HEAP = 1 << 28  # bytes of device memory a process has; pages that nobody touches cost nothing
POISON = 0xCB
_BASE, _APART = 0x7E00_0000_0000, 1 << 36  # where addresses begin; from one process' to the next one's
_EVENTS, _EVENT = (
    512,
    16384,
)  # events of a process that others may open, at the end of the heap; bytes of each
_STATE = 24  # bytes of an event before the clock it was recorded at
_LATE = 2e-3  # s after which work is done though nobody waits for it here
_HANDLE = struct.Struct("<qqqq")  # process, its memory file, where, how many bytes

Work = Callable[[], None]


class _Heap:
    """The device memory of one process, here or opened from there."""

    def __init__(self, process: int, file: int, base: int) -> None:
        self.process = process
        self.base = base
        self.memory = mmap.mmap(file, HEAP + _EVENTS * _EVENT)
        self.bytes: NDArray[Any] = np.frombuffer(self.memory, np.uint8)


class _Stream:
    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.queue: deque[tuple[float, Any]] = deque()  # since when; work, or what is _Waited for


class _Event:
    """Recorded and reached so many times; in shared memory if other processes may see it.

    Other processes read while this one writes: each number is written by itself, what was recorded last.
    """

    def __init__(self, shared: Any = None) -> None:
        memory = np.zeros(_STATE, np.uint8) if shared is None else shared
        self.numbers = memory[:_STATE].view(np.int64)  # recorded, reached, length of the clock
        self.shared = shared
        self.stream: _Stream | None = None  # where it was recorded here last
        self._reached: set[int] = set()  # which of the times: another stream may come to a later one first
        self._clock: Any = ({}, "never")

    def record(self, stream: _Stream, clock: Any) -> int:
        self.stream = stream
        if self.shared is None:
            self._clock = clock
        else:
            packed = pickle.dumps(clock)
            self.shared[_STATE : _STATE + len(packed)] = np.frombuffer(packed, np.uint8)
            self.numbers[2] = len(packed)
        self.numbers[0] += 1
        return int(self.numbers[0])

    def reach(self, number: int) -> None:
        self._reached.add(number)
        self.numbers[1] = max(number, int(self.numbers[1]))

    @property
    def recorded(self) -> int:
        return int(self.numbers[0])

    def has_reached(self, number: int) -> bool:
        if self.shared is None:
            return number == 0 or number in self._reached
        return number <= int(self.numbers[1])

    def clock(self) -> Any:
        if self.shared is None or not self.recorded:
            return self._clock
        return pickle.loads(self.shared[_STATE : _STATE + int(self.numbers[2])].tobytes())


class _Waited(NamedTuple):
    """An event as it was when a wait for it began: which time of recording, and in which stream."""

    event: _Event
    number: int
    stream: _Stream | None


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
        self.can_open = True  # False: opening fails, as it does between containers
        self._file = os.memfd_create("hpcomm-model")
        os.ftruncate(self._file, HEAP + _EVENTS * _EVENT)
        self.heap = _Heap(os.getpid(), self._file, _BASE)
        self._heaps = {(os.getpid(), self._file): self.heap}
        self._next = 256
        self.allocations: dict[int, tuple[int, bool]] = {}  # where -> bytes, may be exported
        self._pinned: list[NDArray[Any]] = []
        self.streams: dict[int, _Stream] = {}
        self.events: dict[int, _Event] = {}
        self._numbers = iter(range(16, 1 << 40))
        self._shared_events = 0
        self.lock = threading.RLock()
        self._hardware: threading.Thread | None = None
        self._devices = [ModelDevice(self, index) for index in range(devices)]

    def count(self) -> int:
        return len(self._devices)

    def device(self, index: int) -> ModelDevice:
        return self._devices[index]

    def device_of(self, address: int) -> int:
        if not self.heap.base <= address < self.heap.base + HEAP:
            raise LayoutError(f"address {address:#x} is no memory of the model", hint="numpy.asarray(x)")
        return 0

    def watch(self, mpi: Any) -> Any:
        return Watched(mpi, self)

    def number(self) -> int:
        return next(self._numbers)

    def at(self, address: int, nbytes: int) -> tuple[NDArray[Any], str, int]:
        """The bytes behind an address, what they are part of, and where in it they begin."""
        for heap in self._heaps.values():
            if heap.base <= address and address + nbytes <= heap.base + HEAP:
                low = address - heap.base
                return heap.bytes[low : low + nbytes], f"heap {heap.process}", low
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
            clock = self.order.step(found.actor)
            for address, nbytes, writes in touches:
                _, memory, low = self.at(address, nbytes)
                self.order.access(found.actor, clock, memory, low, low + nbytes, writes)
            found.queue.append((time.monotonic(), work))

    def find(self, stream: int) -> _Stream:
        if stream not in self.streams:
            if stream > 2:
                raise TransportError(f"invalid resource handle: there is no stream {stream}")
            self.streams[stream] = _Stream(self.order.actor(f"stream {stream}"))  # a default stream
        return self.streams[stream]

    def record(self, event: int, stream: int) -> None:
        with self.lock:
            found, marked = self.find(stream), self.events[event]
            clock = self.order.step(found.actor)
            number = marked.record(found, (clock, site()))
            found.queue.append((time.monotonic(), lambda: marked.reach(number)))

    def wait(self, stream: int, event: int) -> None:
        with self.lock:
            found, marked = self.find(stream), self.events[event]
            self.order.step(found.actor)
            number = marked.recorded
            if number:
                clock, recorded_at = marked.clock()
                self.order.learn(found.actor, clock, f"{recorded_at} before stream at {site()}")
                found.queue.append((time.monotonic(), _Waited(marked, number, marked.stream)))

    def host_waits(self, event: int, block: bool) -> bool:
        """Let the host wait for event, or only ask."""
        with self.lock:
            marked = self.events[event]
            waited = _Waited(marked, number := marked.recorded, marked.stream)
        pause = 0.0
        while True:
            with self.lock:
                complete = self.complete(waited)
                if complete:
                    clock, recorded_at = marked.clock()
                    if number:
                        self.order.learn(self.order.host, clock, f"{recorded_at} before host")
                    return True
            if not block:
                return False
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)

    def complete(self, waited: _Waited) -> bool:
        """Do what must be done before an event is reached, and no more; whether it was."""
        wanted = [waited]
        while wanted:
            event, number, stream = wanted[-1]
            if event.has_reached(number):
                wanted.pop()
            elif stream is None or not stream.queue:
                return False  # another process' work
            else:
                _, work = stream.queue[0]
                if isinstance(work, _Waited) and not work.event.has_reached(work.number):
                    wanted.append(work)
                else:
                    stream.queue.popleft()
                    if not isinstance(work, _Waited):
                        work()
        return True

    def run_by_itself(self) -> None:
        """Let work be done without anybody waiting here, because other processes wait for it."""
        if self._hardware is None:
            self._hardware = threading.Thread(target=self._run, daemon=True, name="model of a device")
            self._hardware.start()

    def _run(self) -> None:
        while True:
            time.sleep(_LATE / 2)
            with self.lock:
                for stream in list(self.streams.values()):
                    while stream.queue and time.monotonic() - stream.queue[0][0] > _LATE:
                        _, work = stream.queue[0]
                        if isinstance(work, _Waited) and not self.complete(work):
                            break
                        stream.queue.popleft()
                        if not isinstance(work, _Waited):
                            work()

    def shared_event(self) -> tuple[int, _Event]:
        if self._shared_events == _EVENTS:
            raise TransportError("out of memory: the model has no more interprocess events")
        place = HEAP + self._shared_events * _EVENT
        self._shared_events += 1
        return place, _Event(self.heap.bytes[place : place + _EVENT])

    def opened(self, process: int, file: int) -> _Heap:
        """The memory of another process."""
        if not self.can_open:
            raise TransportError("operation not supported: this model does not open other processes' memory")
        key = (process, file)
        if key not in self._heaps:
            there = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
            self._heaps[key] = _Heap(process, there, _BASE + len(self._heaps) * _APART)
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

    def pin(self, nbytes: int) -> NDArray[Any]:
        memory: NDArray[Any] = np.full(max(nbytes, 1), POISON, np.uint8)
        self._pinned.append(memory)
        return memory[:nbytes]


class ModelDevice:
    """A device of the model; see driver.Device for what the methods mean."""

    def __init__(self, model: Model, index: int) -> None:
        self.model = model
        self.index = index
        self.name = "model of a device"

    def identity(self) -> bytes:
        return b"model of device" + bytes([self.index])

    def allocate(self, nbytes: int) -> int:
        return self.model.allocate(nbytes, exportable=True)

    def free(self, address: int) -> None:
        del self.model.allocations[address]  # addresses are not given out again: who uses one is found out

    def pinned(self, nbytes: int) -> NDArray[Any]:
        return self.model.pin(nbytes)

    def stream(self) -> int:
        number = self.model.number()
        self.model.streams[number] = _Stream(self.model.order.actor(f"stream {number}"))
        return number

    def event(self, interprocess: bool = False) -> int:
        number = self.model.number()
        if interprocess:
            place, made = self.model.shared_event()
            self.model.events[number] = made
            self._places = {**getattr(self, "_places", {}), number: place}
        else:
            self.model.events[number] = _Event()
        return number

    def destroy_event(self, event: int) -> None:
        del self.model.events[event]

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

    def export_event(self, event: int) -> bytes:
        self.model.run_by_itself()
        place = self._places[event]
        return _HANDLE.pack(self.model.heap.process, self.model._file, place, _EVENT).ljust(64, b"\0")

    def open_event(self, handle: bytes) -> int:
        process, file, place, nbytes = _HANDLE.unpack_from(handle)
        self.model.run_by_itself()
        heap = self.model.opened(process, file)
        number = self.model.number()
        self.model.events[number] = _Event(heap.bytes[place : place + nbytes])
        return number


# -- arrays, as a library on top of the driver has them ------------------------------------------------

_current: dict[int, int] = {}  # thread -> its current stream


class stream:  # noqa: N801  used as cupy.cuda.stream and torch.cuda.stream are
    """with stream(number): work of arrays goes there."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> int:
        self._before = current_stream()
        _current[threading.get_ident()] = self.number
        return self.number

    def __exit__(self, *error: object) -> None:
        _current[threading.get_ident()] = self._before


def current_stream() -> int:
    return _current.get(threading.get_ident(), 1)


def _model() -> Model:
    from .driver import driver

    found = driver()
    assert isinstance(found, Model)
    return found


class DeviceArray:
    """An array on the model: made by empty and asarray, worked on in the current stream, read by get()."""

    def __init__(self, address: int, shape: Any, dtype: Any, strides: Any = None, owner: Any = None) -> None:
        self.address = address
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.strides = strides
        self.owner = owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False),
                "strides": self.strides, "stream": current_stream(), "version": 3}  # fmt: skip

    def _on_host(self) -> tuple[NDArray[Any], int]:
        """The array as the device sees it, and how many bytes it reaches over."""
        size = int(np.prod(self.shape, dtype=int))
        reach = size * self.dtype.itemsize
        if self.strides is not None and size:
            last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
            reach = last + self.dtype.itemsize
        raw = _model().at(self.address, reach)[0]
        seen: NDArray[Any] = np.ndarray(self.shape, self.dtype, raw, 0, self.strides)
        return seen, reach

    def _work(self, work: Work, reads: tuple[DeviceArray, ...] = (), writes: bool = True) -> None:
        touches = [(x.address, x._on_host()[1], False) for x in reads]
        if writes:
            touches.append((self.address, self._on_host()[1], True))
        _model().put(current_stream(), work, touches)

    def fill(self, value: Any) -> None:
        mine = self._on_host()[0]
        self._work(lambda: mine.fill(value))

    def __setitem__(self, key: Any, other: DeviceArray) -> None:
        part = self[key]
        mine, theirs = part._on_host()[0], other._on_host()[0]
        part._work(lambda: np.copyto(mine, theirs), (other,))

    def __iadd__(self, other: Any) -> DeviceArray:
        mine = self._on_host()[0]
        if isinstance(other, DeviceArray):
            theirs = other._on_host()[0]
            self._work(lambda: np.add(mine, theirs, out=mine), (self, other))
        else:
            self._work(lambda: np.add(mine, other, out=mine), (self,))
        return self

    def __getitem__(self, key: Any) -> DeviceArray:
        mine = self._on_host()[0]
        part = mine[key] if key is Ellipsis else mine[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        low = part.__array_interface__["data"][0] - mine.__array_interface__["data"][0]
        strides = None if part.flags.c_contiguous else part.strides
        return DeviceArray(self.address + low, part.shape, self.dtype, strides, self)

    def copy(self) -> DeviceArray:
        made = empty(self.shape, self.dtype)
        made[...] = self
        return made

    def get(self) -> NDArray[Any]:
        """The elements, once the current stream has come so far."""
        device, mine = _model().device(0), self._on_host()[0]
        host: NDArray[Any] = np.empty(self.shape, self.dtype)
        self._work(lambda: np.copyto(host, mine), (self,), writes=False)
        event = device.event()
        device.record(event, current_stream())
        device.synchronize(event)
        device.destroy_event(event)
        return host

    def __reduce__(self) -> Any:
        return asarray, (self.get(),)


def empty(shape: Any, dtype: Any = np.float64) -> DeviceArray:
    """A new array of poison."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=int)) * kind.itemsize
    model = _model()
    return DeviceArray(model.allocate(nbytes, model.user_memory_can_be_exported), shape, kind)


def asarray(array: Any) -> DeviceArray:
    """A copy of a host array on the device, made in the current stream."""
    given = np.array(array, order="C")
    made = empty(given.shape, given.dtype)
    mine = made._on_host()[0]
    made._work(lambda: np.copyto(mine, given))
    return made
