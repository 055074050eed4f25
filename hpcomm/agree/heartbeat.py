"""Heartbeat between the nodes of a job, so that a host which does not answer can be named.

The first rank of each node tells those of the two nodes beside it, in a ring, that it lives, and which hosts
do not answer as far as it has heard: so the others hear of it, too. Nothing is concluded from silence, since
a cable may be mended. Needs an MPI that lets several threads call it; on one node there is none of this.
"""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import Any

from .._lazy import MPI
from ..core.limits import HEARTBEAT_S
from . import runtime, survival

_LATE_S = 3 * HEARTBEAT_S  # of silence, until a host is one that does not answer
_NBYTES = 512  # of a message: a line for each host that does not answer
_BEAT, _BYE = 1, 2  # tags
_LOST = SimpleNamespace(Test=lambda: False)  # in place of a request that never completes
_LAST_WORDS_S = 0.2  # for what is said at the same moment, which nobody else would receive


def pulse(everybody: MPI.Intracomm, is_first: bool) -> Heartbeat | None:
    """The heartbeat of this rank; None if it has none. Collective. is_first: of its node."""
    firsts = everybody.Split(0 if is_first else MPI.UNDEFINED, everybody.rank)
    if firsts == MPI.COMM_NULL:
        return None
    made = Heartbeat(firsts)  # type: ignore[arg-type]
    return made if made.is_heard else None


class Heartbeat:
    """What one rank says and hears; firsts: the first ranks of all nodes."""

    def __init__(self, firsts: MPI.Intracomm) -> None:
        self._mpi, size, here = firsts, firsts.size, firsts.rank
        self._lock = threading.Lock()
        self._next, self._is_over = 0.0, False
        self._going: dict[int, Any] = {}  # requests
        mine = os.uname().nodename.encode()[:64] if runtime.has_threads() else b""
        self._names: dict[int, str] = {}
        for dest, source in (((here + 1) % size, (here - 1) % size), ((here - 1) % size, (here + 1) % size)):
            name = bytearray(64)
            firsts.Sendrecv([mine.ljust(64), MPI.BYTE], dest, _BEAT, [name, MPI.BYTE], source, _BEAT)
            if source != here and name.strip():
                self._names[source] = name.decode().strip()
        self._heard = dict.fromkeys(self._names, time.monotonic())
        self._told: dict[int, list[str]] = {rank: [] for rank in self._names}
        self.is_heard = bool(mine and self._names)

    def beat(self) -> None:
        """Say and hear what is due. Never blocks."""
        with self._lock:
            if self._is_over:
                return
            self._hear()
            if (now := time.monotonic()) >= self._next:
                self._next = now + HEARTBEAT_S
                for rank in self._names:
                    self._say(rank)

    def silent(self) -> str:
        """A line for each host that does not answer: its name and for how long."""
        return "\n".join(self._silent())

    def stop(self) -> None:
        """Let the others know that nothing more comes."""
        with self._lock:
            self._is_over = True
            self._hear()
            heard = [rank for rank in self._names if time.monotonic() - self._heard[rank] <= _LATE_S]
            going = [self._mpi.Isend([b"", MPI.BYTE], rank, _BYE) for rank in heard]
            end = time.monotonic() + _LAST_WORDS_S
            while self._names and time.monotonic() < end and not self._silent():
                self._hear()
                time.sleep(1e-3)
            MPI.Request.Testall(going)

    def _silent(self, but: int = -1) -> list[str]:
        now = time.monotonic()
        own = [
            f"host {name} has not answered for {now - self._heard[rank]:.0f} s"
            for rank, name in self._names.items()
            if now - self._heard[rank] > _LATE_S
        ]
        told = [line for rank, lines in self._told.items() if rank != but for line in lines]
        return own + [line for line in told if line.partition(" has ")[0] not in "\n".join(own)]

    def _say(self, rank: int) -> None:
        if not self._takes(rank):
            return
        text = "\n".join(self._silent(but=rank)).encode()[:_NBYTES]
        # Synchronous: it completes only when it has arrived. Others complete at once, so that one more
        # would go to a host that is lost.
        self._going[rank] = self._mpi.Issend([text.ljust(_NBYTES), MPI.BYTE], rank, _BEAT)

    def _takes(self, rank: int) -> bool:
        """Whether the last message to it has arrived."""
        try:
            return rank not in self._going or self._going[rank].Test()
        except MPI.Exception:  # the connection is lost
            self._going[rank] = _LOST
            return False

    def _hear(self) -> None:
        status = MPI.Status()
        for rank in survival.failed(self._mpi):
            self._forget(rank)
        while survival.is_there(self._mpi, status):
            rank, tag = status.source, status.tag
            text = bytearray(_NBYTES)
            self._mpi.Recv([text, MPI.BYTE], rank, tag)
            if tag == _BYE:
                self._forget(rank)
            elif rank in self._names:
                self._heard[rank] = time.monotonic()
                self._told[rank] = text.decode(errors="replace").split("\n") if text.strip() else []
                self._told[rank] = [line.strip() for line in self._told[rank]]

    def _forget(self, rank: int) -> None:
        """Nothing more comes of it."""
        self._names.pop(rank, None)
        self._told.pop(rank, None)
