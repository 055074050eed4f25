"""Heartbeat between the nodes of a job, so that a host which does not answer can be named.

The first rank of each node tells those of the two nodes beside it, in a ring, that it lives, and which hosts
do not answer as far as it has heard: so the others hear of it, too. Nothing is concluded from silence, since
a cable may be mended. Needs an MPI that lets several threads call it; on one node there is none of this.
"""

from __future__ import annotations

import os
import time

from .._lazy import MPI
from ..core.limits import HEARTBEAT_S
from ..node import segment
from . import runtime
from .letters import Letters

_LATE_S = 3 * HEARTBEAT_S  # of silence, until a host is one that does not answer
_NBYTES = 512  # of a message: a line for each host that does not answer
_BEAT, _BYE = 1, 2  # tags
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
        self._letters, self._next = Letters(firsts), 0.0
        here, size = firsts.rank, firsts.size
        names: list[str] = firsts.allgather(os.uname().nodename if runtime.has_threads() else "")
        beside = {(here + 1) % size, (here - 1) % size} - {here}
        self._names = {rank: names[rank] for rank in beside if names[rank]}
        self._heard = dict.fromkeys(self._names, time.monotonic())
        self._told: dict[int, list[str]] = {rank: [] for rank in self._names}
        self.is_heard = bool(names[here] and self._names)

    def beat(self) -> None:
        """Say and hear what is due; let this node know which hosts do not answer. Never blocks."""
        self._hear()
        if segment.current is not None:
            segment.current.mine.note = "\n".join(self._silent())
        if (now := time.monotonic()) >= self._next:
            self._next = now + HEARTBEAT_S
            for rank in [*self._names]:
                text = "\n".join(self._silent(but=rank)).encode()[:_NBYTES]
                self._letters.send_next(rank, _BEAT, text)

    def stop(self) -> None:
        """Let the others know that nothing more comes."""
        self._hear()
        heard = [rank for rank in self._names if time.monotonic() - self._heard[rank] <= _LATE_S]
        self._letters.send(heard, _BYE, b"")
        end = time.monotonic() + _LAST_WORDS_S
        while self._names and time.monotonic() < end and not self._silent():
            self._hear()
            time.sleep(1e-3)
        self._letters.stop()

    def _silent(self, but: int = -1) -> list[str]:
        """A line for each host that does not answer: its name and for how long."""
        now = time.monotonic()
        own = [
            f"host {name} has not answered for {now - self._heard[rank]:.0f} s"
            for rank, name in [*self._names.items()]
            if now - self._heard[rank] > _LATE_S
        ]
        told = [line for rank, lines in [*self._told.items()] if rank != but for line in lines]
        return own + [line for line in told if line.partition(" has ")[0] not in "\n".join(own)]

    def _hear(self) -> None:
        for rank in self._letters.failed():
            self._forget(rank)
        for rank, tag, text in self._letters.come():
            if tag == _BYE:
                self._forget(rank)
            elif rank in self._names:
                self._heard[rank] = time.monotonic()
                self._told[rank] = text.decode(errors="replace").splitlines()

    def _forget(self, rank: int) -> None:
        """Nothing more comes of it."""
        self._names.pop(rank, None)
        self._told.pop(rank, None)
