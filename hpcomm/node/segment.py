"""Node segment: shared memory of one node in which every rank records what it is doing.

Each rank owns one block. Others only read it, except that they may ask for the text:

    block of a rank    8 words: ended, asked, answered, length of the answer, failed, length of the note
                       answer (4096 bytes) | note for the whole node (512 bytes)
                       how often each call log was left (255 words)
                       255 times: call log | element types (128 words)

    call log           128 signatures, a ring; 0: not made yet | number of the call that began the line
                       Of 128 entries 32 are wiped at a time, one line ahead of the calls.

The file behind it is unlinked as soon as all have it open, so nothing is left behind. A living rank holds a
lock on the first byte of its block. The kernel takes it away when the process ends, in whatever manner, and
tells all who have the file: also those in other containers, where process ids differ.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections import deque
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING

from . import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mpi4py import MPI

    from ._native import core

__all__ = [
    "GONE",
    "LAPS",
    "Lookers",
    "NodeSegment",
    "Region",
    "cores",
    "exchanged",
    "last_call",
    "open_segment",
    "post",
    "posted",
    "refusal",
    "refuse",
    "share",
]  # fmt: skip

LAPS = 128  # entries of a call log
_LINE = 32  # of which so many are wiped at a time, one line ahead
RINGS = 255  # communicators of one rank that are watched at a time
_TEXT = 4096
_NOTE = 512  # bytes behind it, for what concerns the whole node
_REFUSAL = 48  # words of a call log: the number of the last call that was refused, and why
_KINDS = 128  # words behind a call log
_RING = LAPS + 1 + _REFUSAL  # signatures, the number of the call that began the line, and that
_RING_WORDS = _RING + _KINDS
_START = 63  # the signature of call 0, which nobody makes
GONE = 1 << 62  # the entries of calls that a rank which has ended does not make: everybody looks twice
_LEFT = 8 + (_TEXT + _NOTE) // 8  # where it is counted how often each call log was left
_HEAD_WORDS = _LEFT + -(-RINGS // 8) * 8
_REGION = -(-(_HEAD_WORDS + RINGS * _RING_WORDS) * 8 // mmap.PAGESIZE) * mmap.PAGESIZE  # bytes of a block
_CORES = 2048  # of a node; where there are more, some count as one
_ENDED, _ASKED, _ANSWERED, _LENGTH, _FAILED, _NOTED = range(6)


def post(ring: memoryview) -> Callable[[], int]:
    """How to write to one's own call log: step() -> where the next call's signature belongs.

    So most calls write one word: no number beside it, since an entry that is not wiped is of the call
    it seems to be, give or take LAPS.
    """
    blank = memoryview(bytes(8 * _LINE)).cast("q")

    def lines() -> Iterator[range]:
        yield range(1, _LINE)  # call 0 stands there already
        for number in count(_LINE, _LINE):
            ahead = (number + _LINE) % LAPS
            ring[ahead : ahead + _LINE] = blank
            ring[LAPS] = number
            yield range(number % LAPS, number % LAPS + _LINE)

    return chain.from_iterable(lines()).__next__


def posted(ring: memoryview, call: int) -> int | None:
    """The signature of a call, or None if its rank has not come to it or is so far on that it is gone.

    The owner goes on writing: what is read before the number counts only if the number allows it.
    """
    if last_call(ring) < call:
        return None
    signature: int = ring[call % LAPS]
    wiped = ring[LAPS] // _LINE - call // _LINE > LAPS // _LINE - 2
    return None if wiped or signature == GONE else signature or None


def last_call(ring: memoryview) -> int:
    """The number of the last call that a rank has come to, also after its end; 0 before the first."""
    number: int = ring[LAPS]
    for call in range(number, number + _LINE):
        if ring[call % LAPS] in (0, GONE):
            return call - 1
    return number + _LINE - 1


def refuse(ring: memoryview, call: int, why: str) -> None:
    """Leave in one's own ring why one refuses a call, before that is posted."""
    ring[LAPS + 1] = call
    ring[LAPS + 2 :] = memoryview(why.encode()[: 8 * _REFUSAL - 8].ljust(8 * _REFUSAL - 8, b"\0")).cast("q")


def refusal(ring: memoryview, call: int) -> str:
    """Why its rank refused a call; empty if it has refused another one since."""
    if ring[LAPS + 1] != call:
        return ""
    return bytes(ring[LAPS + 2 :]).rstrip(b"\0").decode(errors="replace")


class Region:
    """One rank's part of the node segment, as 64-bit words. file, at: where it lies."""

    def __init__(self, memory: memoryview, file: int = -1, at: int = 0) -> None:
        self._bytes = memory
        self._words = memory.cast("q")
        self._file, self._at = file, at
        self._process = False  # whether we have seen that its owner holds the lock

    def hold(self) -> None:
        """Take the lock of one's own block, for life."""
        with suppress(OSError):  # no locks here: then only ends that are said are seen
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._at)

    def look(self) -> None:
        """See whether the owner holds its lock: then its end can be seen. Not for one's own block."""
        self._process = self._is_held()

    def _is_held(self) -> bool:
        """Whether a process has the lock; who looks takes it for a moment, beside others who look."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, self._at)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._at)
        return False

    def ring(self, slot: int) -> memoryview:
        """LAPS signatures, the call that began the line, a refusal; see posted(), last_call(), refusal()."""
        start = _HEAD_WORDS + slot * _RING_WORDS
        return self._words[start : start + _RING]

    def kinds(self, slot: int) -> memoryview:
        """The words behind a call log: see message_kinds.py."""
        end = _HEAD_WORDS + (slot + 1) * _RING_WORDS
        return self._words[end - _KINDS : end]

    def left(self, slot: int) -> int:
        """How many communicators the owner has left whose calls it posted in this call log."""
        return self._words[_LEFT + slot]

    def leave(self, slot: int) -> None:
        self._words[_LEFT + slot] += 1

    @property
    def ended(self) -> bool:
        return bool(self._words[_ENDED])

    @property
    def failed(self) -> bool:
        """Whether this rank is about to end by failure; the others may still say so before the job ends."""
        return bool(self._words[_FAILED])

    def fail(self) -> None:
        self._words[_FAILED] = 1

    @property
    def gone(self) -> bool:
        """Whether the owner has ended in whatever manner, also without saying so."""
        return self.ended or (self._process and not self._is_held())

    def end(self, slots: Iterable[int]) -> None:
        """Say that this rank will make no more calls. slots: of the call logs that it ever had."""
        for slot in slots:
            ring = self.ring(slot)
            last = last_call(ring)
            for call in range(last + 1, last + 1 + LAPS // 2):
                ring[call % LAPS] = GONE
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

    @property
    def note(self) -> str:
        """What the owner has to say to all ranks of the node."""
        at = 64 + _TEXT
        return bytes(self._bytes[at : at + self._words[_NOTED]]).decode(errors="replace")

    @note.setter
    def note(self, text: str) -> None:
        data = text.encode()[:_NOTE]
        self._bytes[64 + _TEXT : 64 + _TEXT + len(data)] = data
        self._words[_NOTED] = len(data)

    def answer_to(self, question: int) -> str | None:
        """The text, once the owner has answered this question or a later one."""
        if self._words[_ANSWERED] < question:
            return None
        return bytes(self._bytes[64 : 64 + self._words[_LENGTH]]).decode(errors="replace")


Lookers = list[tuple[Region, int, int]]  # of others: their call log, how often it was left before


class NodeSegment:
    """All rank blocks of this node; regions[here] is this rank's own; node: a number common to the node.

    group: whose blocks they are, in their order.
    shared: memory of the native core for the same ranks; None: there is none, or no core.
    cores: how many cores these ranks may use, all together; file: what the blocks lie in, kept open.
    """

    def __init__(
        self,
        regions: list[Region],
        here: int,
        node: int,
        cores: int = 1,
        file: int = -1,
        group: MPI.Group | None = None,
        shared: core.Segment | None = None,
    ) -> None:
        self._group = group
        self.shared = shared
        self._file = file
        self.regions = regions
        self.here = here
        self.node = node
        self.is_crowded = len(regions) > cores
        # What is free, and who may still look at it: ranks in their last call of an earlier communicator.
        self._free: deque[tuple[int, Lookers]] = deque((slot, []) for slot in range(RINGS))
        self._had: set[int] = set()  # call logs; the others have no memory yet

    @property
    def mine(self) -> Region:
        return self.regions[self.here]

    def near(self, mpi: MPI.Comm) -> list[tuple[int, int]]:
        """Those of mpi's ranks that are on this node: (rank, whose block), by rank. Asks nobody."""
        from mpi4py import MPI

        if self._group is None:
            return []
        group = mpi.Get_group()
        ranks = self._group.Translate_ranks(None, group)
        group.Free()
        return sorted((rank, i) for i, rank in enumerate(ranks) if rank != MPI.UNDEFINED)

    def take_ring(self) -> int:
        """A call log for a new communicator, wiped; -1: none is left, or no memory."""
        slot = _first_left(self._free)
        if slot < 0:
            return -1
        if not self._has(8 * (_HEAD_WORDS + slot * _RING_WORDS), 8 * _RING_WORDS):
            self._free.appendleft((slot, []))
            return -1
        self._had.add(slot)
        ring = self.mine.ring(slot)
        for words in (ring, self.mine.kinds(slot)):
            words[:] = memoryview(bytes(words.nbytes)).cast("q")
        ring[0] = _START
        return slot

    def give_back(self, slot: int, lookers: Lookers) -> None:
        """Leave a communicator: its call log may serve another one when the others have left it, too.

        lookers: its other ranks on this node.
        """
        self.mine.leave(slot)
        self._free.append((slot, lookers))

    def end(self) -> None:
        """Say that this rank will make no more calls."""
        self.mine.end(self._had)

    def _has(self, start: int, nbytes: int) -> bool:
        """Whether there is memory for a part of one's own region: else to touch it were a bus error."""
        try:
            os.posix_fallocate(self._file, self.here * _REGION + start, nbytes)
        except OSError:
            return False
        return True


current: NodeSegment | None = None  # of this node, once MPI is up; None where ranks share no memory


def open_segment(world: MPI.Intracomm) -> NodeSegment | None:
    """Set up the node segment of this node (collective over world); None where ranks share no memory."""
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        number = bytearray(7)  # of the node; ranks of another job may come to compare theirs (mpmd/jobs.py)
        if node.rank == 0:
            number[:] = os.urandom(7)
        node.Bcast([number, MPI.BYTE], 0)
        own = _REGION
        shared = share(node, own, reserve=8 * _HEAD_WORDS)
        if shared is None:
            if world.rank == 0 and node.size > 1 and native.core() is not None:
                native.warn(native.NO_ROOM)
            return None
        memory, file = shared
        view = memoryview(memory)
        regions = [Region(view[i * own : (i + 1) * own], file, i * own) for i in range(node.size)]
        regions[node.rank].hold()
        node.Barrier()
        for i in range(1, node.size):
            regions[(node.rank + i) % node.size].look()
        its_number = int.from_bytes(number, "little")
        native_segment, lack = _native_segment(node)
        if lack is not None and world.rank == 0 and node.size > 1:
            native.warn(lack)
        return NodeSegment(
            regions, node.rank, its_number, _cores(node), file, node.Get_group(), native_segment
        )
    finally:
        node.Free()


_NATIVE = 1 << 30  # bytes of address space; memory is taken as communicators need it
_NAME = 80  # bytes of a file's name


def _native_segment(node: MPI.Comm) -> tuple[core.Segment | None, native.Lack | None]:
    """The memory of the native core, the same for all ranks of node; None on all where one cannot have it.

    And what is missing, unless somebody wants to do without.
    """
    from mpi4py import MPI

    core, made, name = native.core(), None, bytearray(_NAME)
    if core is not None and node.rank == 0:
        with suppress(OSError):  # no /dev/shm, or it is full: doctor shows it
            made = core.Segment(_NATIVE)
            name[: len(made.name)] = made.name.encode()
    node.Bcast([name, MPI.BYTE], 0)
    if core is not None and node.rank and name[0]:
        with suppress(OSError):
            made = core.Segment(_NATIVE, name.rstrip(b"\0").decode())
    lack = native.missing() or native.NO_ROOM
    worst = bytearray(struct.pack("q", 2 if made is not None else lack is not native.OFF))
    node.Allreduce(MPI.IN_PLACE, [worst, MPI.INT64_T], MPI.MIN)
    if made is not None and node.rank == 0:
        made.unlink()
    state = struct.unpack("q", worst)[0]  # of all: 2: they have it, 0: somebody does not want it
    if state == 2:
        return made, None
    return None, None if state == 0 else native.ELSEWHERE if made is not None else lack


def exchanged(mpi: MPI.Comm, ranks: Sequence[int], card: bytes) -> dict[int, bytes]:
    """The records of some ranks of mpi, who all call: this rank's own first, then those that come behind it.

    Cost: log2 of their number messages (Bruck), whatever the number of ranks of mpi.
    """
    from mpi4py import MPI

    nbytes, n, here = len(card), len(ranks), ranks.index(mpi.Get_rank())
    cards = memoryview(bytearray(nbytes * n))
    cards[:nbytes] = card
    have = 1
    while have < n:
        some = min(have, n - have)
        going, coming = cards[: some * nbytes], cards[have * nbytes : (have + some) * nbytes]
        dest, source = ranks[here - have], ranks[(here + have) % n]
        mpi.Sendrecv([going, MPI.BYTE], dest, 0, [coming, MPI.BYTE], source, 0)
        have += some
    order = [*ranks[here:], *ranks[:here]]
    return {rank: bytes(cards[i * nbytes : (i + 1) * nbytes]) for i, rank in enumerate(order)}


def _first_left(free: deque[tuple[int, Lookers]]) -> int:
    """Take the first that nobody looks at any more; -1: there is none."""
    for _ in range(len(free)):
        slot, lookers = free.popleft()
        if all(region.left(ring) != before or region.gone for region, ring, before in lookers):
            return slot
        free.append((slot, lookers))
    return -1


def _cores(node: MPI.Comm) -> int:
    """How many cores the ranks of node may use: each alone may be bound to one."""
    from mpi4py import MPI

    mine = cores()
    node.Allreduce(MPI.IN_PLACE, [mine, MPI.BYTE], MPI.BOR)
    return int.from_bytes(mine, "little").bit_count()


def cores() -> bytearray:
    """A bit for each core that this process may use."""
    mine = bytearray(_CORES // 8)
    for core in os.sched_getaffinity(0):
        mine[core // 8 % len(mine)] |= 1 << core % 8
    return mine


def share(node: MPI.Comm, own: int, reserve: int = 0) -> tuple[mmap.mmap, int] | None:
    """Memory that the ranks of node share, own bytes of each, in the order of their ranks; collective.

    Args:
        reserve: make sure now that there is memory for so many of them, the first; for the others it is taken
            as they are touched.

    Returns:
        The memory and the open file behind it, whose name is gone; None on all ranks where one of them
        cannot map it.
    """
    from mpi4py import MPI

    path = bytearray(64)
    if node.rank == 0:
        path[:] = f"/dev/shm/hpcomm-{os.getpid()}-{os.urandom(6).hex()}".encode().ljust(64)
    node.Bcast([path, MPI.BYTE], 0)
    name = path.decode().strip()
    size = node.size * own
    kept = range(node.rank * own, node.rank * own + reserve)
    shared = _open(name, size, os.O_CREAT | os.O_EXCL, kept) if node.rank == 0 else None
    node.Barrier()
    if node.rank != 0:
        shared = _open(name, size, 0, kept)
    worst = bytearray(struct.pack("q", shared is not None))
    node.Allreduce(MPI.IN_PLACE, [worst, MPI.INT64_T], MPI.MIN)
    if node.rank == 0:
        with suppress(OSError):  # never made, or where nothing can be
            os.unlink(name)  # noqa: PTH108  pathlib costs 5 ms at every start
    if shared is not None and not struct.unpack("q", worst)[0]:
        os.close(shared[1])
        return None
    return shared


def _make_room(file: int, size: int) -> None:
    """Let the file be so long, if there is that much: to touch memory that cannot be had is a bus error."""
    there = os.fstatvfs(file)
    if there.f_blocks and there.f_bavail * there.f_frsize < size:  # no blocks: a tmpfs without a limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file, size)


def _open(name: str, size: int, flags: int, kept: range) -> tuple[mmap.mmap, int] | None:
    """Map the file; None where that is not possible: it is optional, and doctor shows its absence."""
    file = -1
    try:
        file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
        if flags:
            _make_room(file, size)
        if kept:
            os.posix_fallocate(file, kept.start, len(kept))
        return mmap.mmap(file, size), file
    except (OSError, ValueError):  # ValueError: rank 0 found no room, and left the file empty
        if file >= 0:
            os.close(file)
        return None
