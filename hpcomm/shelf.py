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

__all__ = ["LEAST", "Shelves", "shelf_bytes", "slot_bytes"]

SLOTS = 8
LEAST = 32 << 10  # bytes of a block from which it is worth it
_SLOT = range(1 << 20, 8 << 20)  # bytes that a slot may have
_NODE = 2 << 30  # bytes of all shelves of a node, if all are full
_STEP = 1 << 20  # bytes of real memory that a slot grows by


def slot_bytes(ranks: int, free: int) -> int:
    """The size of a slot where so many ranks share so many free bytes, mostly left to MPI; 0: too few."""
    fair = min(free // 4, _NODE) // (ranks * SLOTS) // _STEP * _STEP
    return min(fair, _SLOT.stop) if fair >= _SLOT.start else 0


def shelf_bytes(slot: int) -> int:
    """Bytes of a shelf with slots of so many bytes: a page for its words first."""
    return mmap.PAGESIZE + SLOTS * slot


class Shelves:
    """The shelves of all ranks of a node.

    Args:
        memory, file: what all of them have mapped, shelf_bytes(slot) of each; both are kept.
        ranks, here: how many ranks there are, and whose shelf is one's own to fill.
        slot: bytes of a slot.
    """

    def __init__(self, memory: mmap.mmap, file: int, ranks: int, here: int, slot: int) -> None:
        self.slot = slot
        self._file, self._here = file, here
        self._memory = memoryview(memory)
        starts = range(0, ranks * shelf_bytes(slot), shelf_bytes(slot))
        self._lent = [self._memory[at : at + 8 * SLOTS].cast("q") for at in starts]  # whether, by slot
        self._real = [0] * SLOTS  # bytes of each own slot that have memory behind them
        self._choosing = threading.Lock()
        self._leases: dict[tuple[int, int], weakref.finalize[Any, Any]] = {}  # of what is borrowed
        os.register_at_fork(before=self._keep_all)

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
        lent = self._lent[self._here]
        with self._choosing:
            for number in range(SLOTS):
                if not lent[number] and self._has_memory(number, nbytes):
                    lent[number] = 1
                    return number
        return -1

    def _has_memory(self, number: int, nbytes: int) -> bool:
        """Ask for a slot's memory before writing to it: where there is none left, that would kill us."""
        if self._real[number] < nbytes:
            wanted = min(-(-nbytes // _STEP) * _STEP, self.slot)
            try:
                os.posix_fallocate(self._file, self._at(self._here, number), wanted)
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
        lease = self._leases[owner, number] = weakref.finalize(block, self._give_back, owner, number)
        lease.atexit = False
        return block.data

    def _give_back(self, owner: int, number: int) -> None:
        del self._leases[owner, number]
        self._lent[owner][number] = 0

    def _keep_all(self) -> None:
        """Keep what is borrowed for ever: a child is made, which looks at it too, and nobody will know."""
        for lease in list(self._leases.values()):
            lease.detach()
        self._leases.clear()

    def _at(self, owner: int, number: int) -> int:
        return owner * shelf_bytes(self.slot) + mmap.PAGESIZE + number * self.slot
