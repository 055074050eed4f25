"""Halo slots: messages of a planned exchange between ranks of a node, through shared memory.

The sender copies its views straight to where the receiver reads: two copies, where MPI makes three or drives
an engine for datatypes. A message has two slots, used in turn:

    slot    word (64 bytes) | data          word: EMPTY ── sender has copied ──> FULL ── receiver has
                                                    ^                                    copied out ─┐
                                                    └────────────────────────────────────────────────┘

So a rank may be one exchange ahead of its peer, as with MPI, and no further. MPI copies what lies in one
piece at both ends only once, which is quicker from about 1 MiB on.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ..core.limits import SLOT_LOOKS, SLOT_LOOKS_CROWDED, SLOT_SLEEP_S, SLOT_YIELDING_S
from ..errors import PeerFailedError, where
from . import segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..core.comm import Comm
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["CARD", "Box", "Outbox", "awaiting", "has_memory", "inbox"]

CARD = struct.Struct("=64sqq")  # where a message is laid: file, offset of its first place, bytes of it
_LINE = 64  # bytes of a cache line: the word stands on one of its own
_ORDERED = ("x86_64", "AMD64")  # stores are seen in order there; nothing in Python could see to it elsewhere
_MPI_TURNS, _PEER_TURNS = 16, 512  # of waiting, between two moves of MPI, and two looks after the peer


class Box(NamedTuple):
    """One of the two slots of a message. word[0]: whether it is full."""

    word: memoryview
    data: NDArray[np.uint8]


@cache
def has_memory() -> bool:
    """Whether this rank can share memory with others at all."""
    return segment.current is not None and os.uname().machine in _ORDERED


class Outbox:
    """Memory of one rank for messages of so many bytes to each of some ranks: sizes.

    Raises:
        OSError: there is not so much.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._name = f"/dev/shm/hpcomm-{os.getpid()}-{os.urandom(6).hex()}"
        self.sizes = dict(sizes)
        self._at, end = {}, 0
        for peer, nbytes in sizes.items():
            self._at[peer] = end
            end += 2 * _room(nbytes)
        file = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, end)  # where there is none left, writing to it would kill us
            self._memory = mmap.mmap(file, end)
        except OSError:
            self.hide()
            raise
        finally:
            os.close(file)

    def card(self, peer: int) -> bytes:
        """What the peer needs to know, for inbox()."""
        return CARD.pack(self._name.encode(), self._at[peer], self.sizes[peer])

    def boxes(self, peer: int) -> tuple[Box, Box]:
        return _boxes(self._memory, self._at[peer], self.sizes[peer])

    def hide(self) -> None:
        """Take the name away: all have the file open who ever will."""
        with suppress(FileNotFoundError):
            os.unlink(self._name)  # noqa: PTH108


def inbox(card: bytes | bytearray) -> tuple[Box, Box] | None:
    """Where a message will lie; None if it cannot be seen from here, as from another container."""
    name, at, nbytes = CARD.unpack(card)
    try:
        file = os.open(name.rstrip(b"\0").decode(), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _boxes(mmap.mmap(file, os.fstat(file).st_size), at, nbytes)
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)


def _room(nbytes: int) -> int:
    return _LINE + -(-nbytes // _LINE) * _LINE


def _boxes(memory: mmap.mmap, at: int, nbytes: int) -> tuple[Box, Box]:
    whole = memoryview(memory)
    starts = at, at + _room(nbytes)
    made = [
        Box(whole[i : i + 8].cast("q"), np.frombuffer(whole, np.uint8, nbytes, i + _LINE)) for i in starts
    ]
    return made[0], made[1]


def awaiting(box: Box, full: bool, comm: Comm, peer: int, verb: str) -> Callable[[], None]:
    """What waits until a slot is full, or empty, each time it is called.

    It raises:
        PeerFailedError: the peer has ended, so that this will not happen.
    """
    word, crowded = (
        box.word,
        segment.current is not None and len(segment.current.regions) > (os.cpu_count() or 1),
    )
    looks = range(SLOT_LOOKS_CROWDED if crowded else SLOT_LOOKS)
    region = comm.node_regions[peer]

    def wait() -> None:
        if word[0] == full:
            return
        for _ in looks:
            if word[0] == full:
                return
        begin, turns = time.monotonic(), 0
        while word[0] != full:
            turns += 1
            if not turns % _MPI_TURNS:
                comm.move_on()  # others may wait for what MPI has to do here
            if not turns % _PEER_TURNS and region.gone and word[0] != full:
                raise PeerFailedError(
                    f"the {verb} needs rank {peer}, which has ended",
                    where(verb, comm),
                    "look at what that rank printed; every rank must make as many exchanges",
                    [peer],
                )
            waited = time.monotonic() - begin
            if waited < SLOT_YIELDING_S:
                os.sched_yield()
            else:
                time.sleep(min(waited / 50, SLOT_SLEEP_S))

    return wait
