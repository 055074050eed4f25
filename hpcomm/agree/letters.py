"""Letters: short messages that hpcomm's own threads send each other, on an MPI communicator for these alone.

Nobody waits for one: who looks now and then finds those that have come.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from .._lazy import MPI
from . import survival

FEW = 64  # ranks up to which each tells each


class Letters:
    """Those of one rank.

    Args:
        mpi: whose ranks write to each other; of two groups, to those of the other one.
        tag: of all letters, where others use mpi, too.
    """

    def __init__(self, mpi: MPI.Comm, tag: int | None = None) -> None:
        self._mpi, self._lock = mpi, threading.Lock()
        self._tag = MPI.ANY_TAG if tag is None else tag
        self._going: list[MPI.Request] = []
        self._next: dict[int, MPI.Request] = {}  # by rank: what send_next has sent last
        self._lost: set[int] = set()
        self._is_over = False

    def send(self, ranks: Iterable[int], tag: int, text: bytes) -> None:
        """Send a letter to each of some ranks: so short that MPI needs no receiver for it."""
        with self._lock:
            if not self._is_over:
                self._going = [each for each in self._going if not each.Test()]
                self._going += [self._mpi.Isend([text, MPI.BYTE], rank, tag) for rank in ranks]

    def send_next(self, rank: int, tag: int, text: bytes) -> None:
        """Send a letter unless the last one has not arrived: one more would go to a host that is lost."""
        with self._lock:
            if self._is_over or rank in self._lost:
                return
            try:
                if rank not in self._next or self._next[rank].Test():
                    # Synchronous: it completes only when it has arrived. Others complete at once.
                    self._next[rank] = self._mpi.Issend([text, MPI.BYTE], rank, tag)
            except MPI.Exception:  # the connection is lost
                self._lost.add(rank)

    def come(self) -> list[tuple[int, int, bytes]]:
        """Those that have come: of whom, tag, text. Never blocks."""
        found, mpi, status = [], self._mpi, MPI.Status()
        with self._lock:
            while not self._is_over and (message := survival.looked(mpi, mpi.Improbe, self._tag, status)):
                text = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([text, MPI.BYTE])
                found.append((status.source, status.tag, bytes(text)))
        return found

    def failed(self) -> set[int]:
        """The ranks that MPI knows to have died."""
        with self._lock:
            return set() if self._is_over else survival.failed(self._mpi)

    def stop(self) -> None:
        """Neither send nor hear any more, as MPI is about to be finalized."""
        MPI.Request.Testall(self._going)
        with self._lock:
            self._is_over = True
