"""What MPI says of itself: asked from inside a rank, in a process that the doctor can afford to lose."""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any

from .launch import core_names

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ANSWER", "probe"]

ANSWER = "hpcomm-probe "  # begins the line that holds the answer
_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")


def probe() -> None:
    """Bring MPI up, look around together with all ranks, and print it as a line of JSON on rank 0."""
    from mpi4py import MPI

    from .transport.direct import loaded_library, says

    world = MPI.COMM_WORLD
    secret = ctypes.create_string_buffer(os.urandom(16), 16)
    mine = {
        "host": MPI.Get_processor_name(),
        "cores": sorted(core_names()),
        "pid": os.getpid(),
        "address": ctypes.addressof(secret),
        "secret": secret.raw.hex(),
    }
    everyone = world.allgather(mine)
    others = [
        other for other in everyone if other["host"] == mine["host"] and other is not everyone[world.rank]
    ]
    readable = world.allgather(_reads(others[0]) if others else None)  # also keeps secret alive until read
    if world.rank == 0:
        vendor, version = MPI.get_vendor()
        about = {
            "vendor": vendor,
            "version": ".".join(map(str, version)),
            "standard": ".".join(map(str, MPI.Get_version())),
            "library": loaded_library(),
            "threads": _THREAD_LEVELS[MPI.Query_thread()],
            "size": world.size,
            "reads_memory_of_peers": None if set(readable) == {None} else False not in readable,
            "reads_cuda_memory": says(vendor, MPI.Get_library_version()),
            "ranks": [{"host": each["host"], "cores": each["cores"]} for each in everyone],
        }
        print(ANSWER + json.dumps(about), flush=True)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _reads(peer: Mapping[str, Any]) -> bool | None:
    """Whether we may read a peer's memory (cross-memory attach); None: this system has no such call."""
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if read is None:
        return None
    here = ctypes.create_string_buffer(16)
    local = _Iovec(ctypes.addressof(here), 16)
    remote = _Iovec(peer["address"], 16)
    count = read(peer["pid"], ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    return bool(count == 16 and here.raw.hex() == peer["secret"])
