"""Driver interface: what hpcomm needs of a device's driver, and which driver this process has.

Addresses, streams and events are numbers, as the driver gives them; any two addresses may be copied
between, for they are of one address space. Copies and waits are put into streams and return at once.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Protocol

from ..core.types import AnyArray
from ..errors import ConfigError

DEFAULT_STREAM = 1  # CUDA's legacy default stream, as __cuda_array_interface__ spells it
_SIGNS = ("/dev/nvidiactl", "/dev/dxg")  # a kernel driver; the second: Windows' subsystem for Linux

_installed: list[Driver] = []


class Device(Protocol):
    """One device, its context and what lives there."""

    index: int
    name: str

    def identity(self) -> bytes: ...  # 16 bytes that no other device has
    def allocate(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def pinned(self, nbytes: int) -> AnyArray: ...  # uint8, page-locked
    def unpin(self, memory: AnyArray) -> None: ...  # give it back: nobody uses it any more
    def stream(self) -> int: ...  # one that does not wait for the default stream
    def event(self, interprocess: bool = False) -> int: ...
    def destroy_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, stream: int, event: int) -> None: ...  # what is put into stream later waits for event
    def synchronize(self, event: int) -> None: ...  # the host waits
    def query(self, event: int) -> bool: ...
    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def is_capturing(self, stream: int) -> bool: ...
    def range(self, address: int) -> tuple[int, int]: ...  # of the allocation: where it begins, its bytes
    def serial(self, address: int) -> int: ...  # of the allocation: no other one ever has the same
    def can_export(self, address: int) -> bool: ...
    def export(self, base: int) -> bytes: ...  # of an allocation, by where it begins; 64 bytes
    def open(self, handle: bytes) -> int: ...
    def close(self, address: int) -> None: ...
    def memory(self, address: int, nbytes: int) -> Any: ...  # as an MPI that reads device memory takes it
    def nccl(self) -> Any: ...  # as device.nccl.Nccl, here; ConfigError says why there is none
    def export_event(self, event: int) -> bytes: ...  # 64 bytes
    def open_event(self, handle: bytes) -> int: ...


class Driver(Protocol):
    """What all devices of a kind share."""

    name: str

    def count(self) -> int: ...
    def device(self, index: int) -> Device: ...
    def device_of(self, address: int) -> int: ...  # the index of the device that address lies on
    def watch(self, mpi: object) -> object: ...  # mpi, seen by whoever checks order


def possible() -> bool:
    """Whether this process may meet device arrays; costs microseconds and brings nothing up.

    HPCOMM_GPU=off says no, a path there yes. All else is left to driver(), which is asked when such an array
    comes.
    """
    if said := os.environ.get("HPCOMM_GPU"):
        return said != "off"
    return bool(_installed) or _is_signed()


@cache
def _is_signed() -> bool:
    """Whether the system has a driver of a device; asked once, since each look takes 10 us."""
    return any(map(os.path.exists, _SIGNS))  # pathlib costs 5 ms at every start


def driver() -> Driver:
    """The driver of this process: one that was installed, or CUDA's, brought up at the first call."""
    if os.environ.get("HPCOMM_GPU") == "off":
        raise ConfigError("HPCOMM_GPU=off keeps hpcomm away from devices", hint="unset HPCOMM_GPU")
    if not _installed:
        from .cuda import CudaDriver

        _installed.append(CudaDriver())
    return _installed[0]


def install(other: Driver | None) -> None:
    """Take another driver from now on, for tests; None: CUDA's again. Before communicators are made."""
    _installed[:] = [] if other is None else [other]


def watching(mpi: object) -> Any:
    """mpi as an installed driver wants it seen; brings nothing up."""
    return _installed[0].watch(mpi) if _installed else mpi
