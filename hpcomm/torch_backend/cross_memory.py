"""Cross-memory attach: memory of other processes of this host, by process_vm_readv(2)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..communicator.communicator import Communicator

__all__ = ["Reach", "reach"]

_SECRET = 16  # bytes


def reach(comm: Communicator) -> Reach | None:
    """The memory of the ranks of comm, if each of them may read all others'. Collective."""
    own = ctypes.create_string_buffer(os.urandom(_SECRET), _SECRET)
    cards = comm.all_gather_object((os.getpid(), ctypes.addressof(own), own.raw))
    found, may = Reach([pid for pid, _, _ in cards]), hasattr(ctypes.CDLL(None), "process_vm_readv")
    here = ctypes.create_string_buffer(_SECRET)
    for rank, (_, there, secret) in enumerate(cards if may else ()):
        may = may and found.reading(rank, ctypes.addressof(here), _SECRET)(there) and here.raw == secret
    return found if all(comm.all_gather_object(may)) else None


class Reach:
    """Copies between this process and those with the given numbers, by their places in the list."""

    def __init__(self, pids: list[int]) -> None:
        libc: Any = ctypes.CDLL(None)
        self._pids = pids
        self._read = getattr(libc, "process_vm_readv", None)
        self._write = getattr(libc, "process_vm_writev", None)
        for call in filter(None, (self._read, self._write)):
            call.restype = ctypes.c_ssize_t
            call.argtypes = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]

    def reading(self, rank: int, here: int, nbytes: int) -> Callable[[int], bool]:
        """What copies nbytes from an address of rank's to here; False if that cannot be reached."""
        return self._copying(self._read, rank, here, nbytes)

    def writing(self, rank: int, here: int, nbytes: int) -> Callable[[int], bool]:
        """What copies nbytes from here to an address of rank's; False if that cannot be reached."""
        return self._copying(self._write, rank, here, nbytes)

    def _copying(self, call: Any, rank: int, here: int, nbytes: int) -> Callable[[int], bool]:
        near, far = (ctypes.c_size_t * 2)(here, nbytes), (ctypes.c_size_t * 2)(0, nbytes)
        ends = self._pids[rank], ctypes.addressof(near), 1, ctypes.addressof(far), 1, 0

        def copy(there: int) -> bool:
            far[0] = there
            done = call(*ends)
            if done == nbytes or done <= 0:
                return bool(done > 0)
            # the system copies 2 GiB at a time
            return self._copying(call, rank, here + done, nbytes - done)(there + done)

        copy.keeps = near  # type: ignore[attr-defined]  # it knows its address only
        return copy
