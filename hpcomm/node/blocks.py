"""Shared block pool: a rank hands large blocks to another rank of its node with one copy.

MPI copies a message into memory that the receiver has found for it. Here every rank has a part of memory that
all ranks of its node have mapped. To hand over a block it copies the block into a free slot of its part and
names the slot; the receiver's object lives in the slot.

    part of a rank     a page: one word per slot | slot 0 | ... | slot 7

    word of a slot     FREE ── owner leases it ──> LENT ── owner has copied ──> FULL
                        ^                            └── owner was stopped ──> SPOILT
                        └───────── receiver: nobody looks at the object any more ┘

So the owner may name a slot first and fill it then: while it copies, the receiver is busy with the message.

A position is a slot and how far from its beginning a block stands. Where the receiver's core is near, a block
is aligned to cache lines as in its own memory; where it is far, 16 bytes beside that. Of two ways in which a
processor copies, one is up to 1.6 times as quick for near cores, the other up to 1.4 times for far ones
(Zen 4, benchmarks/alignment.py). How quick the last copy was tells where the receiver is.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.limits import (
    BLOCK_CHECK_S,
    BLOCK_COPY,
    BLOCK_LOOKS,
    BLOCK_MEMORY,
    BLOCK_SLEEP_S,
    BLOCK_YIELDING_S,
)
from ..errors import PeerFailedError

if TYPE_CHECKING:
    import numpy as np
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["BlockPool", "landing_bytes", "shelf_bytes", "slot_bytes"]

SLOTS = 8
_LINE, _MOVED = 64, 16  # bytes: of a cache line, and of the steps by which a block is moved in its slot,
_SPARE = mmap.PAGESIZE  # which has so many more for this
_TELLS = 256 << 10  # bytes of a block whose copy tells how near its receiver is,
_NEAR = 9.0  # bytes a nanosecond, above which it is near
_SLOT = range(1 << 20, 8 << 20)  # bytes that a slot may have
_STEP = 1 << 20  # bytes of real memory that a slot grows by
_LANDING = 2 << 20  # bytes of a receive buffer at most; longer messages MPI copies once only, and as quickly
_FREE, _LENT, _FULL, _SPOILT = range(4)  # what the word of a slot says
_ORDERED = ("x86_64", "AMD64")  # stores are seen in order there: who sees that a slot is full sees the block


def slot_bytes(ranks: int, free: int) -> int:
    """The size of a slot where so many ranks share so many free bytes, mostly left to MPI; 0: too few."""
    fair = min(free // 4, BLOCK_MEMORY) // (ranks * SLOTS) // _STEP * _STEP
    return min(fair, _SLOT.stop) if fair >= _SLOT.start else 0


def shelf_bytes(slot: int) -> int:
    """Bytes of a rank's part with slots of so many bytes: a page of words first, a receive buffer last."""
    return mmap.PAGESIZE + SLOTS * (slot + _SPARE) + landing_bytes(slot)


def landing_bytes(slot: int) -> int:
    """Bytes of the receive buffer behind the slots, into which others write what its owner waits for; see
    node_messages.py."""
    return min(slot, _LANDING)


class BlockPool:
    """The block pool of all ranks of a node.

    Args:
        memory, file: what all of them have mapped, shelf_bytes(slot) of each; both are kept.
        ranks, here: how many ranks there are, and which part is one's own to fill.
        slot: bytes of a slot.
        gone: whether a rank has ended.

    Attributes:
        fills_late: whether a slot may be named to its receiver before it is filled.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        file: int,
        ranks: int,
        here: int,
        slot: int,
        gone: Callable[[int], bool] = lambda owner: False,
    ) -> None:
        self.slot = slot
        self._file, self._here, self._gone = file, here, gone
        self._memory = memoryview(memory)
        starts = range(0, ranks * shelf_bytes(slot), shelf_bytes(slot))
        self._words = [self._memory[at : at + 8 * SLOTS].cast("q") for at in starts]  # of all slots
        self._real = [0] * (SLOTS + 1)  # bytes with memory behind them: own slots, receive buffer
        self._is_near = True  # whoever got the last block that tells
        self._choosing = threading.Lock()
        self._rooms: dict[tuple[int, int], tuple[Any, Callable[[Any], None]]] = {}  # see _room()
        self._leases: dict[tuple[int, int], weakref.ref[Any]] = {}  # of what is leased
        self.fills_late = os.uname().machine in _ORDERED
        os.register_at_fork(before=self._keep_all)

    def lend(self, block: Any) -> int:
        """A position for a block of bytes in a free slot, leased from now on; -1 where there is none."""
        nbytes = block.nbytes
        if nbytes > self.slot:
            return -1
        address: int = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
        shift = (address if self._is_near else address + _MOVED) % _LINE // _MOVED
        words = self._words[self._here]
        with self._choosing:
            for number in range(SLOTS):
                if not words[number] and (self._real[number] >= nbytes or self._grow(number, nbytes)):
                    words[number] = _LENT
                    return number + shift * SLOTS
        return -1

    def _grow(self, number: int, nbytes: int) -> bool:
        """Ask for a slot's memory before writing to it: where there is none left, that would kill us."""
        is_slot = number < SLOTS
        wanted = min(-(-nbytes // _STEP) * _STEP, self.slot if is_slot else landing_bytes(self.slot))
        try:
            os.posix_fallocate(self._file, self._at(self._here, number), wanted + is_slot * _SPARE)
        except OSError:  # full: MPI carries the block
            return False
        self._real[number] = wanted
        return True

    def landing(self, owner: int) -> memoryview:
        """The receive buffer of a rank, of which memory is behind what prepare() was asked for."""
        at = self._at(owner, SLOTS)
        return self._memory[at : at + landing_bytes(self.slot)]

    def prepare(self, nbytes: int) -> bool:
        """See that there is memory behind so many bytes of the own receive buffer; false: there is none."""
        with self._choosing:
            return self._real[SLOTS] >= nbytes or self._grow(SLOTS, nbytes)

    def fill(self, place: int, block: Any) -> None:
        """Copy a block of bytes to the position that was leased for it."""
        words, number = self._words[self._here], place % SLOTS
        try:
            there, here = self._room(self._here, place)[0], np.frombuffer(block, np.uint8)
            begin = time.perf_counter_ns()
            for at in range(0, here.nbytes, BLOCK_COPY):
                part = here[at : at + BLOCK_COPY]
                np.copyto(there[at : at + part.nbytes], part)  # other threads run meanwhile
        except BaseException:  # Ctrl-C: the receiver must not wait for ever, nor take it for full
            words[number] = _SPOILT
            raise
        words[number] = _FULL
        if here.nbytes >= _TELLS:
            self._is_near = here.nbytes > _NEAR * (time.perf_counter_ns() - begin)

    def take(self, owner: int, place: int, nbytes: int) -> Any:
        """The block at a position, as bytes; the slot goes back when nobody has the block any more.

        It may still be on its way there: see wait().
        """
        room, give_back = self._room(owner, place)
        # An array, because whatever looks at a part of it holds on to it, unlike with a memoryview.
        block = room[:nbytes]
        self._leases[owner, place % SLOTS] = weakref.ref(block, give_back)
        return block.data

    def wait(self, owner: int, place: int) -> None:
        """Wait until the slot of a position that was taken is filled.

        Raises:
            PeerFailedError: its owner was stopped, or ended, while filling it.
        """
        words, number = self._words[owner], place % SLOTS
        if words[number] == _FULL:
            return
        for _ in range(BLOCK_LOOKS):
            if words[number] != _LENT:
                break
        begin = asked = time.monotonic()
        while words[number] == _LENT:
            now = time.monotonic()
            if now - begin < BLOCK_YIELDING_S:
                os.sched_yield()
                continue
            time.sleep(BLOCK_SLEEP_S)
            if now - asked > BLOCK_CHECK_S:
                asked = now
                if self._gone(owner) and words[number] == _LENT:
                    break
        if words[number] != _FULL:
            raise PeerFailedError(
                "the sender was stopped while it copied its array", hint="look at what that rank printed"
            )

    def _room(self, owner: int, place: int) -> tuple[Any, Callable[[Any], None]]:
        """A slot's memory from a position on, as an array, and what gives the slot back."""
        found = self._rooms.get((owner, place))
        if found is None:
            shift, number = divmod(place, SLOTS)
            at = self._at(owner, number)
            memory = np.frombuffer(self._memory[at + shift * _MOVED : at + self.slot + _SPARE], np.uint8)
            found = self._rooms[owner, place] = memory, partial(self._give_back, owner, number)
        return found

    def _give_back(self, owner: int, number: int, gone: Any) -> None:
        del self._leases[owner, number]
        if self._words[owner][number] != _LENT:  # else its owner writes there still: it is lost
            self._words[owner][number] = _FREE

    def _keep_all(self) -> None:
        """Keep what is leased for ever: a child is made, which looks at it too, and nobody will know."""
        self._leases.clear()  # a reference that is gone itself calls nobody

    def _at(self, owner: int, number: int) -> int:
        return owner * shelf_bytes(self.slot) + mmap.PAGESIZE + number * (self.slot + _SPARE)
