"""NCCL's library: torch's, the nvidia-nccl wheel's, or the machine's own; by nccl4py if it is installed.

A Group carries out collectives and messages on device memory, in a stream, for a rank that has a GPU of its
own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from ctypes import POINTER, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from ..core.dtypes import Dtype
from ..errors import TransportError
from .library import bound_nccl, loaded


class UniqueId(ctypes.Structure):
    """ncclUniqueId: handed over by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 128)]


_BUFFER, _COMM, _STREAM = c_uint64, c_void_p, c_void_p
SIGNATURES: dict[str, list[Any]] = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetErrorString": [c_int],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(_COMM), c_int, UniqueId, c_int],
    "ncclCommDestroy": [_COMM],
    "ncclAllReduce": [_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM],
    "ncclReduce": [_BUFFER, _BUFFER, c_size_t, c_int, c_int, c_int, _COMM, _STREAM],
    "ncclBroadcast": [_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM],
    "ncclAllGather": [_BUFFER, _BUFFER, c_size_t, c_int, _COMM, _STREAM],
    "ncclReduceScatter": [_BUFFER, _BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM],
    "ncclSend": [_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM],
    "ncclRecv": [_BUFFER, c_size_t, c_int, c_int, _COMM, _STREAM],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
}
DTYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float32": 7, "float64": 8}
OPS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3}
_PARTS = {"complex64": "float32", "complex128": "float64"}  # sums of complex numbers are sums of their parts
_BYTES = DTYPES["uint8"]


def find() -> str:
    """Where the library is: HPCOMM_NCCL, else the wheel that torch depends on, else the loader's choice."""
    if named := os.environ.get("HPCOMM_NCCL"):
        return named
    try:
        wheel = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        wheel = None
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        if (path := Path(folder) / "lib" / "libnccl.so.2").exists():
            return str(path)
    return "libnccl.so.2"


class Nccl:
    """The library. Each call needs a device's context (cuda.NcclHere)."""

    def __init__(self, path: str | None = None) -> None:
        named = path or os.environ.get("HPCOMM_NCCL")  # nccl4py finds one by itself
        self.library = (None if named else bound_nccl(SIGNATURES)) or loaded(
            path or find(),
            SIGNATURES,
            "NCCL cannot be loaded",
            ("pip install nvidia-nccl-cu12; HPCOMM_NCCL=path", "NCCL 2.7 or later"),
        )
        self.version: int = self.call("ncclGetVersion")  # 22703 for 2.27.3

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function of the library: what it writes, if anything."""
        status, *found = self.library.functions[name](*arguments)
        if status:
            said = self.library.functions["ncclGetErrorString"](status)[1] or b"?"
            what = f"{name} failed: {said if isinstance(said, str) else said.decode()}"
            raise TransportError(what, hint="NCCL_DEBUG=INFO, or HPCOMM_GPU=ipc", error_class=status)
        return found[0] if found else None

    def unique(self) -> bytes:
        """What all ranks of a new group must be given."""
        return bytes(self.call("ncclGetUniqueId"))

    def group(self, unique: bytes, size: int, rank: int) -> Group:
        """Join a group; returns when all ranks have."""
        return Group(self, self.call("ncclCommInitRank", size, unique, rank), size, rank)


class Collective(NamedTuple):
    """elements: of a slot. op: None where nothing is reduced."""

    verb: str
    elements: int
    dtype: Dtype
    op: str | None
    root: int


class Group:
    """A communicator of NCCL's."""

    def __init__(self, library: Nccl, comm: Any, size: int, rank: int) -> None:
        self._call, self._comm, self.size, self.rank = library.call, comm, size, rank
        self.used: set[str] = set()  # verbs

    def carry(self, what: Collective, work: int, stream: int) -> None:
        """Put a collective into stream, in place on slots of a Schedule, from work on."""
        verb, count, dtype, op, root = what
        block, there = count * dtype.itemsize, (self._comm, stream)
        own = work + self.rank * block
        if op is not None:
            name = _PARTS.get(dtype.name, dtype.name)
            n, kind, reduce = count * (1 + (name != dtype.name)), DTYPES[name], OPS[op]
            if verb == "all_reduce":
                self._call("ncclAllReduce", work, work, n, kind, reduce, *there)
            elif verb == "reduce":
                self._call("ncclReduce", work, work, n, kind, reduce, root, *there)
            else:
                self._call("ncclReduceScatter", work, own, n, kind, reduce, *there)
        elif verb == "broadcast":
            self._call("ncclBroadcast", work, work, block, _BYTES, root, *there)
        elif verb == "all_gather":
            self._call("ncclAllGather", own, work, block, _BYTES, *there)
        else:
            self._exchange(verb, work, block, root, stream)

    def _exchange(self, verb: str, work: int, block: int, root: int, stream: int) -> None:
        """Messages, begun together: NCCL has no gather, scatter and all_to_all of its own."""
        ranks, is_root = range(self.size), self.rank == root
        self._call("ncclGroupStart")
        if verb == "all_to_all":
            for peer in ranks:
                self.send(work + peer * block, block, peer, stream)
                self.recv(work + (self.size + peer) * block, block, peer, stream)
        else:  # between root and each other rank one message, of the slot of that rank
            move = self.recv if (verb == "gather") == is_root else self.send
            for slot in ranks if is_root else [self.rank]:
                if slot != root:
                    move(work + slot * block, block, slot if is_root else root, stream)
        self._call("ncclGroupEnd")

    def send(self, address: int, nbytes: int, peer: int, stream: int) -> None:
        """Put a message into stream; the peer puts its recv into one of its own, in the same order."""
        self._call("ncclSend", address, nbytes, _BYTES, peer, self._comm, stream)

    def recv(self, address: int, nbytes: int, peer: int, stream: int) -> None:
        self._call("ncclRecv", address, nbytes, _BYTES, peer, self._comm, stream)

    def close(self) -> None:
        self._call("ncclCommDestroy", self._comm)
