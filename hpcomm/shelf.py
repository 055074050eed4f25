"""Shelves: memory of a node through which a rank hands large blocks to another, copied once.

A message of MPI is copied into memory that the receiver has found for it. Here every rank has a shelf of
a few slots in memory that all ranks of its node have mapped: to hand over a block it copies it into a free
slot and names that; the receiver's object lives in the slot. One word for each slot says whether it is
lent: its owner sets the word, the borrower wipes it as soon as nobody looks at the object any more.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any

__all__ = ["LEAST", "Shelves", "slot_bytes"]

SLOTS = 8
LEAST = 32 << 10  # bytes of a block from which it is worth it
_SLOT = range(1 << 20, 8 << 20)  # bytes that a slot may have
_NODE = 2 << 30  # bytes of all shelves of a node, if all are full
_STEP = 1 << 20  # bytes of real memory that a slot grows by


def slot_bytes(ranks: int, free: int) -> int:
    """The size of a slot where so many ranks share so many free bytes, mostly left to MPI; 0: too few."""
    fair = min(free // 4, _NODE) // (ranks * SLOTS) // _STEP * _STEP
    return min(fair, _SLOT.stop) if fair >= _SLOT.start else 0


class Shelves:
    """The shelves of all ranks of a node.

    Args:
        file, start: what lies behind them, open for reading and writing, and where in it; is kept.
        ranks, here: how many ranks there are, and whose shelf is one's own to fill.
        slot: bytes of a slot.
    """

    def __init__(self, file: int, start: int, ranks: int, here: int, slot: int) -> None:
        self.slot = slot
        self._file, self._start, self._here = file, start, here
        self._slots = _words(ranks)  # where they begin: words come first
        self._memory = memoryview(mmap.mmap(file, self.nbytes(ranks, slot), offset=start))
        self._lent = self._memory[: self._slots].cast("q")
        self._real = [0] * SLOTS  # bytes of each own slot that have memory behind them
        self._choosing = threading.Lock()
        self._leases: dict[int, weakref.finalize[Any, Any]] = {}  # of what is borrowed, by its word
        os.register_at_fork(before=self._keep_all)

    @staticmethod
    def nbytes(ranks: int, slot: int) -> int:
        """Bytes of the file that so many shelves take."""
        return _words(ranks) + ranks * SLOTS * slot

    def put(self, block: Any) -> int:
        """Copy a block of bytes into a free slot, which is lent from now on; -1 where none is free."""
        import numpy as np

        number = self._free_slot(block.nbytes)
        if number >= 0:
            at = self._at(self._here, number)
            np.copyto(np.frombuffer(self._memory[at : at + block.nbytes], np.uint8), block)
        return number

    def _free_slot(self, nbytes: int) -> int:
        if nbytes > self.slot:
            return -1
        first = self._here * SLOTS
        with self._choosing:
            for number in range(SLOTS):
                if not self._lent[first + number] and self._has_memory(number, nbytes):
                    self._lent[first + number] = 1
                    return number
        return -1

    def _has_memory(self, number: int, nbytes: int) -> bool:
        """Ask for a slot's memory before writing to it: where there is none left, that would kill us."""
        if self._real[number] < nbytes:
            wanted = min(-(-nbytes // _STEP) * _STEP, self.slot)
            try:
                os.posix_fallocate(self._file, self._start + self._at(self._here, number), wanted)
            except OSError:  # full: MPI carries the block
                return False
            self._real[number] = wanted
        return True

    def take(self, owner: int, number: int, nbytes: int) -> Any:
        """The block in a slot, as bytes; the slot goes back when nobody has the block any more."""
        import numpy as np

        at = self._at(owner, number)
        # An array, because whatever looks at a part of it holds on to it, unlike with a memoryview.
        block = np.frombuffer(self._memory[at : at + nbytes], np.uint8)
        word = owner * SLOTS + number
        lease = self._leases[word] = weakref.finalize(block, self._give_back, word)
        lease.atexit = False
        return block.data

    def _give_back(self, word: int) -> None:
        del self._leases[word]
        self._lent[word] = 0

    def _keep_all(self) -> None:
        """Keep what is borrowed for ever: a child is made, which looks at it too, and nobody will know."""
        for lease in list(self._leases.values()):
            lease.detach()
        self._leases.clear()

    def _at(self, owner: int, number: int) -> int:
        return self._slots + (owner * SLOTS + number) * self.slot


def _words(ranks: int) -> int:
    """Bytes of the words of all slots, whole pages."""
    return -(-ranks * SLOTS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
