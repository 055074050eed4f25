"""The board: shared memory of one node on which every rank posts what it is doing.

Each rank owns one region: whether it has ended, a text it was asked for, and for each of its
communicators a ring of the signatures of its last calls. Others only read, except that they may ask
for the text. The file behind it is unlinked as soon as all have it open, so nothing is left behind.
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["LAPS", "Board", "Region", "last_call", "open_board", "posted"]

LAPS = 64  # calls that a ring remembers
RINGS = 127  # communicators of one rank that are watched at a time
_TEXT = 4096
_RING_WORDS = LAPS + 8  # signatures, number of the last call, number of the very last; a cache line apart
_GONE = (
    1 << 62
)  # number of the last call of a rank that makes no more: past every call, so everybody looks twice
_HEAD_WORDS = 8 + _TEXT // 8
_REGION = (_HEAD_WORDS + RINGS * _RING_WORDS) * 8
_ENDED, _ASKED, _ANSWERED, _LENGTH = range(4)


def posted(ring: memoryview, call: int) -> int | None:
    """The signature of a call, or None if its rank has not come to it or is so far on that it is gone.

    The number of the last call is read before and after, because its owner goes on writing: first the
    entry, then the number.
    """
    first = ring[LAPS]
    signature: int = ring[call % LAPS]
    return signature if first >= call and ring[LAPS] < call + LAPS - 1 else None


def last_call(ring: memoryview) -> int:
    """The number of the last call that a rank has come to, also after its end."""
    number: int = ring[LAPS]
    return number if number < _GONE else int(ring[LAPS + 1])


class Region:
    """One rank's part of the board, as 64-bit words."""

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self._words = memory.cast("q")

    def ring(self, slot: int) -> memoryview:
        """LAPS signatures and, behind them, the number of the last call; see posted() and last_call()."""
        start = _HEAD_WORDS + slot * _RING_WORDS
        return self._words[start : start + LAPS + 2]

    @property
    def ended(self) -> bool:
        return bool(self._words[_ENDED])

    def end(self) -> None:
        """Say that this rank will make no more calls."""
        for slot in range(RINGS):
            ring = self.ring(slot)
            if ring[LAPS] < _GONE:
                ring[LAPS + 1] = ring[LAPS]
                ring[LAPS] = _GONE
        self._words[_ENDED] = 1

    def ask(self) -> int:
        """Ask the owner to post what it is doing; returns the number of the question."""
        self._words[_ASKED] += 1
        return self._words[_ASKED]

    @property
    def question(self) -> int | None:
        """The number of a question not yet answered."""
        asked = self._words[_ASKED]
        return asked if asked != self._words[_ANSWERED] else None

    def answer(self, question: int, text: str) -> None:
        data = text.encode()[:_TEXT]
        self._bytes[64 : 64 + len(data)] = data
        self._words[_LENGTH] = len(data)
        self._words[_ANSWERED] = question

    def answer_to(self, question: int) -> str | None:
        """The text, once the owner has answered this question or a later one."""
        if self._words[_ANSWERED] < question:
            return None
        return bytes(self._bytes[64 : 64 + self._words[_LENGTH]]).decode(errors="replace")


@dataclass
class Board:
    """All regions of this node; regions[here] is this rank's own; node: a number common to the node."""

    regions: list[Region]
    here: int
    node: int
    world_ranks: list[int]

    def __post_init__(self) -> None:
        self._free = list(range(RINGS - 1, -1, -1))

    @property
    def mine(self) -> Region:
        return self.regions[self.here]

    def take_ring(self) -> int:
        """A ring for a new communicator, wiped; -1 when all are in use."""
        if not self._free:
            return -1
        slot = self._free.pop()
        ring = self.mine.ring(slot)
        for i in range(len(ring)):
            ring[i] = 0
        return slot

    def give_back(self, slot: int) -> None:
        self._free.append(slot)


def open_board(world: MPI.Intracomm) -> Board | None:
    """Set up the board of this node (collective over world); None where ranks share no memory."""
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        name = bytearray(64)
        if node.rank == 0:
            path = Path("/dev/shm") / f"hpcomm-{os.getpid()}-{uuid.uuid4().hex[:12]}"
            name = bytearray(str(path).encode().ljust(64))
        node.Bcast([name, MPI.BYTE], 0)
        path = Path(name.decode().strip())
        memory = _create(path, node.size * _REGION) if node.rank == 0 else None
        node.Barrier()
        if node.rank != 0:
            memory = _open(path, node.size * _REGION)
        worst = bytearray(struct.pack("q", memory is not None))
        node.Allreduce(MPI.IN_PLACE, [worst, MPI.INT64_T], MPI.MIN)
        if node.rank == 0:
            path.unlink(missing_ok=True)
        ids = bytearray(8 * node.size)
        node.Allgather([struct.pack("q", world.rank), MPI.INT64_T], [ids, MPI.INT64_T])
        if memory is None or not struct.unpack("q", worst)[0]:
            return None
        view = memoryview(memory)
        regions = [Region(view[i * _REGION : (i + 1) * _REGION]) for i in range(node.size)]
        world_ranks = list(struct.unpack(f"{node.size}q", ids))
        return Board(regions, node.rank, world_ranks[0], world_ranks)
    finally:
        node.Free()


def _create(path: Path, size: int) -> mmap.mmap | None:
    try:
        with path.open("x+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError:  # no /dev/shm here, or full: the board is a comfort, its absence is shown by doctor
        return None


def _open(path: Path, size: int) -> mmap.mmap | None:
    try:
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), size)
    except OSError:
        return None
