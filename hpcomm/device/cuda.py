"""CUDA's driver: no compiler, no toolkit, one way for CuPy and torch.

Both of them work in the primary context of a device, and so does this. A symbol with a suffix (`_v2`) is
the version whose signature stands here; a driver of CUDA 12 or 13 keeps all of these for ever, since
programs of before link to them. NVIDIA's cuda-bindings call these functions where they are installed, else
ctypes does (library.py).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from .._lazy import MPI, np
from ..core.types import AnyArray
from ..errors import ConfigError, LayoutError, TransportError
from .library import Library, bound_cuda, loaded
from .nccl import Nccl


class Handle(ctypes.Structure):
    """CUipcMemHandle, CUipcEventHandle: 64 bytes, handed over by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


_STREAM = _EVENT = _CONTEXT = c_void_p
_ADDRESS, _DEVICE = c_uint64, c_int  # CUdeviceptr, CUdevice
SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(_DEVICE), c_int],
    "cuDeviceGetName": [c_char_p, c_int, _DEVICE],
    "cuDeviceGetUuid_v2": [POINTER(Uuid), _DEVICE],
    "cuDevicePrimaryCtxRetain": [POINTER(_CONTEXT), _DEVICE],
    "cuCtxGetCurrent": [POINTER(_CONTEXT)],
    "cuCtxPushCurrent_v2": [_CONTEXT],
    "cuCtxPopCurrent_v2": [POINTER(_CONTEXT)],
    "cuPointerGetAttribute": [POINTER(c_uint64), c_int, _ADDRESS],  # of what it writes, this is the widest
    "cuMemAlloc_v2": [POINTER(_ADDRESS), c_size_t],
    "cuMemFree_v2": [_ADDRESS],
    "cuMemGetAddressRange_v2": [POINTER(_ADDRESS), POINTER(c_size_t), _ADDRESS],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemcpyAsync": [_ADDRESS, _ADDRESS, c_size_t, _STREAM],
    "cuStreamCreate": [POINTER(_STREAM), c_uint],
    "cuStreamWaitEvent": [_STREAM, _EVENT, c_uint],
    "cuStreamIsCapturing": [_STREAM, POINTER(c_int)],
    "cuEventCreate": [POINTER(_EVENT), c_uint],
    "cuEventDestroy_v2": [_EVENT],
    "cuEventRecord": [_EVENT, _STREAM],
    "cuEventSynchronize": [_EVENT],
    "cuEventQuery": [_EVENT],
    "cuIpcGetMemHandle": [POINTER(Handle), _ADDRESS],
    "cuIpcOpenMemHandle_v2": [POINTER(_ADDRESS), Handle, c_uint],
    "cuIpcCloseMemHandle": [_ADDRESS],
    "cuIpcGetEventHandle": [POINTER(Handle), _EVENT],
    "cuIpcOpenEventHandle": [POINTER(_EVENT), Handle],
}
_INVALID_VALUE, _INVALID_CONTEXT, _NOT_READY = 1, 201, 600  # CUresult
_MEMORY_TYPE, _BUFFER_ID, _DEVICE_ORDINAL, _LEGACY_IPC = 2, 7, 9, 10  # CUpointer_attribute
_MEMORY_HOST = 1
_NON_BLOCKING = 1  # CUstream_flags
_NO_TIMING, _INTERPROCESS = 2, 4  # CUevent_flags
_PORTABLE = 1  # pinned for every context
_LAZY_PEER_ACCESS = 1  # what cuIpcOpenMemHandle asks for
_BLOCK = 2 << 20  # bytes of which CUDA carves small allocations
OLDEST = 12000


class CudaDriver:
    """libcuda: the driver that came with the machine's kernel module."""

    name = "cuda"

    def __init__(self, path: str | None = None) -> None:
        self.library: Library = (None if path else bound_cuda(SIGNATURES)) or loaded(
            path or "libcuda.so.1",
            SIGNATURES,
            "CUDA's driver cannot be loaded",
            ("a machine with an NVIDIA driver; nvidia-smi", "a driver of CUDA 12 or later"),
        )
        self.ask = self.library.functions  # (status, what it writes), where more than success is an answer
        self.call("cuInit", 0)
        self.version: int = self.call("cuDriverGetVersion")
        if self.version < OLDEST:
            what = f"the driver speaks CUDA {self.version // 1000}.{self.version % 1000 // 10}"
            raise ConfigError(what, hint="a driver of CUDA 12 or later")
        self._devices: dict[int, CudaDevice] = {}
        self._nccl: Nccl | ConfigError | None = None
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function of the library: what it writes, a tuple if that is several things."""
        found = self.ask[name](*arguments)
        if found[0]:
            raise self.failure(name, found[0])
        return found[1] if len(found) == 2 else found[1:]

    def failure(self, name: str, status: int) -> TransportError:
        asked = (self.ask[name](status) for name in ("cuGetErrorName", "cuGetErrorString"))
        said = [text[0].decode() for unknown, *text in asked if not unknown and text[0]]
        return TransportError(
            f"{name} failed: {': '.join(said) or status}", hint="python -m hpcomm doctor", error_class=status
        )

    def count(self) -> int:
        return int(self.call("cuDeviceGetCount"))

    def device(self, index: int) -> CudaDevice:
        with self._lock:
            if index not in self._devices:
                self._devices[index] = CudaDevice(self, index)
            return self._devices[index]

    def device_of(self, address: int) -> int:
        status, *kind = self.ask["cuPointerGetAttribute"](_MEMORY_TYPE, address)
        if status == _INVALID_CONTEXT:  # a thread that has none yet; any will do
            known = [*self._devices.values()] or [self.device(0)]
            with known[0].here():
                return self.device_of(address)
        if status == _INVALID_VALUE or (status == 0 and kind == [_MEMORY_HOST]):
            raise LayoutError(f"address {address:#x} is no memory of a CUDA device", hint="numpy.asarray(x)")
        if status:
            raise self.failure("cuPointerGetAttribute", status)
        return int(self.call("cuPointerGetAttribute", _DEVICE_ORDINAL, address))

    def watch(self, mpi: object) -> object:
        return mpi

    def nccl(self) -> Nccl:
        with self._lock:
            if self._nccl is None:
                try:
                    self._nccl = Nccl()
                except ConfigError as error:
                    self._nccl = error  # what is missing stays so: nobody looks twice
            if isinstance(self._nccl, ConfigError):
                raise self._nccl
            return self._nccl


class CudaDevice:
    """A device and its primary context, current for the length of each call and no longer."""

    def __init__(self, driver: CudaDriver, index: int) -> None:
        self.index = index
        self.driver = driver
        self._call = driver.call
        self._ordinal: int = driver.call("cuDeviceGet", index)
        self.name: str = driver.call("cuDeviceGetName", 128, self._ordinal).split(b"\0")[0].decode()
        self._context: int = driver.call("cuDevicePrimaryCtxRetain", self._ordinal)

    @contextmanager
    def here(self) -> Iterator[None]:
        if self._call("cuCtxGetCurrent") == self._context:
            yield
            return
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2")

    def identity(self) -> bytes:
        return bytes(self._call("cuDeviceGetUuid_v2", self._ordinal))

    def allocate(self, nbytes: int) -> int:
        """Whole blocks of CUDA's, for what is exported is exported with all else in its blocks."""
        return self._new("cuMemAlloc_v2", -(-max(nbytes, 1) // _BLOCK) * _BLOCK)

    def free(self, address: int) -> None:
        self._do("cuMemFree_v2", address)

    def pinned(self, nbytes: int) -> AnyArray:
        address = self._new("cuMemHostAlloc", max(nbytes, 1), _PORTABLE)
        return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))

    def unpin(self, memory: AnyArray) -> None:
        self._do("cuMemFreeHost", memory.__array_interface__["data"][0])

    def stream(self) -> int:
        return self._new("cuStreamCreate", _NON_BLOCKING)

    def event(self, interprocess: bool = False) -> int:
        return self._new("cuEventCreate", _NO_TIMING | (_INTERPROCESS if interprocess else 0))

    def _do(self, name: str, *arguments: object) -> Any:
        """CudaDriver.call, in this device's context."""
        with self.here():
            return self._call(name, *arguments)

    def _new(self, name: str, *arguments: object) -> int:
        return int(self._do(name, *arguments))

    def destroy_event(self, event: int) -> None:
        self._do("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        self._do("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._do("cuStreamWaitEvent", stream, event, 0)

    def synchronize(self, event: int) -> None:
        self._do("cuEventSynchronize", event)  # other threads run meanwhile

    def query(self, event: int) -> bool:
        with self.here():
            status, *_ = self.driver.ask["cuEventQuery"](event)
        if status not in (0, _NOT_READY):
            raise self.driver.failure("cuEventQuery", status)
        return bool(status == 0)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        if nbytes:
            self._do("cuMemcpyAsync", to, source, nbytes, stream)

    def is_capturing(self, stream: int) -> bool:
        with self.here():
            failed, *status = self.driver.ask["cuStreamIsCapturing"](stream)
        return bool(failed or status[0])  # an error: of the default stream, while another one captures

    def range(self, address: int) -> tuple[int, int]:
        base, nbytes = self._do("cuMemGetAddressRange_v2", address)
        return base, nbytes

    def serial(self, address: int) -> int:
        return self._new("cuPointerGetAttribute", _BUFFER_ID, address)

    def can_export(self, address: int) -> bool:
        """No: stream-ordered pools and expandable segments, which have no handle of this kind."""
        with self.here():
            status, *allowed = self.driver.ask["cuPointerGetAttribute"](_LEGACY_IPC, address)
        return status == 0 and bool(allowed[0])

    def export(self, base: int) -> bytes:
        return bytes(self._do("cuIpcGetMemHandle", base))

    def open(self, handle: bytes) -> int:
        return self._new("cuIpcOpenMemHandle_v2", handle, _LAZY_PEER_ACCESS)

    def close(self, address: int) -> None:
        self._do("cuIpcCloseMemHandle", address)

    def memory(self, address: int, nbytes: int) -> Any:
        return MPI.buffer.fromaddress(address, nbytes)

    def nccl(self) -> NcclHere:
        return NcclHere(self.driver.nccl(), self.here)

    def export_event(self, event: int) -> bytes:
        return bytes(self._do("cuIpcGetEventHandle", event))

    def open_event(self, handle: bytes) -> int:
        return self._new("cuIpcOpenEventHandle", handle)


class NcclHere(Nccl):
    """NCCL on one device, whose context is current in each call."""

    def __init__(self, library: Nccl, here: Callable[[], AbstractContextManager[None]]) -> None:
        self.library, self.version, self._here = library.library, library.version, here

    def call(self, name: str, *arguments: object) -> Any:
        with self._here():
            return super().call(name, *arguments)
