"""Rendezvous messages between ranks of one node, copied through shared memory.

    receive descriptor    POST | SERIAL | TAG | CLAIM | HERE     per communicator, in the node segment
    receive buffer        bytes                                  one per rank, behind its blocks (blocks.py)

A rank that waits for a message in a blocking recv posts a receive descriptor. A sender whose message fits
claims it, copies the elements to the receiver's buffer in pieces, and counts them in HERE; the receiver
copies them on while they come. So they are copied twice, in caches, without MPI's request, answer and queues.
Between cores far apart, on other dies or sockets, that may take several times as long as MPI's one copy: a
sender times its copies, and leaves most messages to MPI where copying is slow. Nobody must go this way: a
message whose receiver does not wait for it goes by MPI, and a receiver looks for it there too. So probe,
wildcards and receives in the background find what they always do.

Messages between two ranks must not overtake each other. Both count those between them, also those by MPI. A
post says how many the receiver has had, and a sender claims it only if it has sent just as many. So nothing
is under way, and while a receive in the background is pending, a rank posts nothing. Whoever looks at
`comm.mpi` could send and receive unseen: all that its rank sends and receives goes by MPI from then on.

A receiver that need not wait any more, or has waited for long, withdraws its post. Both then write one word
and look at the other's, with a fence between, so at least one sees the other (Dekker's algorithm):

    receiver    POST := 0      fence   look at CLAIM     claimed: wait for the data, or for "spoilt"
    sender      CLAIM := n     fence   look at POST      gone: back out, CLAIM := -n          (n: SERIAL)
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import count, pairwise, repeat
from typing import TYPE_CHECKING, Any

from ..core.limits import (
    RENDEZVOUS_AGAIN,
    RENDEZVOUS_CHECK_S,
    RENDEZVOUS_LOOKS,
    RENDEZVOUS_LOOKS_CROWDED,
    RENDEZVOUS_PATIENCE_S,
    RENDEZVOUS_SENDER_LOOKS,
    RENDEZVOUS_SLEEP_S,
    RENDEZVOUS_TRIES,
)
from ..core.request import abandon
from ..errors import PeerFailedError, where
from ..node.blocks import landing_bytes
from .guarded_receive import receive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from mpi4py import MPI

    from ..core.comm import Comm
    from ..node.blocks import BlockPool
    from ..node.segment import NodeSegment
    from . import mpi as transport

    Parts = list[tuple[int, int, np.ndarray[Any, Any]]]
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["NodeMessages"]

_PIECE = range(32 << 10, 128 << 10)  # bytes of a quarter; a core's cache holds them beside their source
_POST, _SERIAL, _TAG, _CLAIM, _HERE = range(5)
# A post: how many messages the receiver has had, from whom it wants one, and its bytes.
_COUNT, _SOURCE, _POSTED = 44, 24, 1 << 23  # bits from which, and one that no other word has
_COUNTS, _RANKS = (1 << 18) - 1, 1 << 20
_DONE, _SPOILT = 8, 255  # bits of HERE for the number of pieces that have come, and what stands there instead
# From so many bytes a copy tells how near the receiver's core is. Far from it, on a virtual Zen 4 whose two
# cores were moved about, MPI took 0.2 to 0.4 of the time for an array that was sent again as it was, and 1.0
# to 1.2 of it for one just written; near it 0.6 to 1.8 and 1.0 to 1.7 (benchmarks/far.py, Open MPI).
_TELLS = 16 << 10
_NEAR = 4.0  # bytes a nanosecond, at least, where copying twice is worth it: between those two, there
_SLOW = 8  # copies in a row below that, until such messages are left to MPI,
_SELDOM = 127  # but for one of so many and one; each that is slow, too, doubles these,
_RARELY = 1023  # up to so many and one
_KEPT = 256  # lengths of messages
_FAR = 1 << 62  # below 0 whatever is added: messages of a rank of another node


class _Near(dict[int, Any]):
    """What there is of each rank of the node; of all others the same, without an entry for each."""

    def __init__(self, near: Mapping[int, Any], other: Any) -> None:
        super().__init__(near)
        self._other = other

    def __missing__(self, rank: int) -> Any:
        return self._other


class NodeMessages:
    """How one communicator hands messages over to ranks of this node, and is handed them.

    Args:
        notes: receive descriptors of the other ranks of the node.

    Attributes:
        most: bytes of the longest message.
        number: number[dest]() for every message to dest, also by MPI, in their order: which one it is.
        received: from each rank, how many messages of these have come.
        pending: receives that may take one in the background.
    """

    def __init__(
        self, comm: Comm, node_segment: NodeSegment, pool: BlockPool, notes: dict[int, memoryview]
    ) -> None:
        own = node_segment.mine.notes(comm.call_log)
        self._comm, self._shelves = comm, pool
        self._own, self._here = own, comm.rank << _SOURCE | _POSTED
        self._shelf_of = {**comm.block_homes, comm.rank: node_segment.here}
        self._nobody = memoryview(bytes(8 * len(own))).cast("q")
        self._notes = _Near(notes, self._nobody)
        far: Callable[[], int] = repeat(-1).__next__
        self.number = _Near({rank: count().__next__ for rank in notes}, far)
        self.received = _Near(dict.fromkeys(notes, 0), -_FAR)
        self.pending = 0
        self.most = landing_bytes(pool.slot)
        self._serial = 0
        self._trust = _Near(dict.fromkeys(notes, RENDEZVOUS_TRIES), 0)  # as a receiver,
        self._hope = _Near(self._trust, 0)  # and as a sender
        self._slow = _Near(dict.fromkeys(notes, 0), 0)  # how many of the last to each were copied slowly,
        self._seldom = _Near({}, _SELDOM)  # and of how many one is tried, where many were
        self._parts: dict[tuple[int, int, Any], Parts] = {}
        self._fence = threading.Lock()
        self._is_crowded = node_segment.is_crowded
        self._looks = range(RENDEZVOUS_LOOKS_CROWDED if node_segment.is_crowded else RENDEZVOUS_LOOKS)
        self._waits = range(RENDEZVOUS_LOOKS_CROWDED if node_segment.is_crowded else RENDEZVOUS_SENDER_LOOKS)
        self._any_tag = MPI.ANY_TAG

    @classmethod
    def of(cls, comm: Comm, node_segment: NodeSegment, notes: dict[int, memoryview]) -> NodeMessages | None:
        """That of a communicator; None where its ranks have no memory for it, or shall not use it."""
        if node_segment.pool is None or comm.size > _RANKS or os.environ.get("HPCOMM_NODE") == "off":
            return None
        return cls(comm, node_segment, node_segment.pool, notes)

    def give(self, dest: int, tag: int, flat: Any, nbytes: int, number: int) -> bool:
        """Hand over message `number` to dest, if it waits for it; false: it is left to MPI.

        Args:
            flat: its elements, of at most self.most bytes.
        """
        tells = nbytes >= _TELLS
        if tells and self._slow[dest] >= _SLOW and number & self._seldom[dest]:
            return False
        words = self._notes[dest]
        post = (number & _COUNTS) << _COUNT | self._here | nbytes
        if words[_POST] != post:
            if not self._hope[dest] and number & RENDEZVOUS_AGAIN:
                return False
            for _ in self._waits:
                if words[_POST] == post:
                    break
            else:
                self._hope[dest] = max(self._hope[dest] - 1, 0)
                return False
        serial = words[_SERIAL]  # before the tag, which was written before it
        wanted = words[_TAG]
        if wanted != tag and wanted != self._any_tag:
            return False
        here = serial << _DONE
        try:
            words[_CLAIM] = serial
            with self._fence:  # to take a lock and give it back is a full fence, also in CPython
                pass
            if words[_POST] != post or words[_SERIAL] != serial:
                words[_CLAIM] = -serial
                return False
            parts = self._parts_of(dest, flat)
            begin = time.perf_counter_ns()
            for low, high, room in parts:
                room[:] = flat[low:high]
                here += 1
                words[_HERE] = here
        except BaseException:  # Ctrl-C: the receiver must not wait for ever
            words[_HERE] = serial << _DONE | _SPOILT
            raise
        self._hope[dest] = RENDEZVOUS_TRIES
        if tells:
            self._weigh(dest, nbytes < _NEAR * (time.perf_counter_ns() - begin))
        return True

    def take(
        self, source: int, tag: int, flat: Any, nbytes: int, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Wait for a message of source to be handed over into flat; false: it comes by MPI.

        Args:
            meanwhile: what to do while the sender copies; not done if it is known before that MPI brings it.

        Raises:
            PeerFailedError: its sender was stopped, or ended, while it copied.
        """
        number = self.received[source]
        if self.pending or (not self._trust[source] and (number < 0 or number & RENDEZVOUS_AGAIN)):
            return False
        if not _landing.acquire(False):  # another thread waits
            return False
        try:
            if not self._shelves.prepare(nbytes):
                return False
            words = self._own
            self._serial = serial = self._serial + 1
            words[_TAG] = tag  # in this order: who sees the post sees these
            words[_SERIAL] = serial
            words[_POST] = (number & _COUNTS) << _COUNT | source << _SOURCE | _POSTED | nbytes
            here = serial << _DONE
            parts = self._parts_of(self._comm.rank, flat)
            try:
                if meanwhile is not None:
                    meanwhile()
                if not self._comes(source, tag, serial):
                    return False
                for low, high, room in parts:
                    here += 1
                    if words[_HERE] < here:
                        self._wait(source, here)
                    if words[_HERE] & _SPOILT == _SPOILT:
                        raise _stopped(self._comm, source)
                    flat[low:high] = room
            except BaseException:  # Ctrl-C: nobody may write here when the next message comes
                with suppress(PeerFailedError):
                    if not self._withdraw(source, serial):
                        self._wait(source, (serial << _DONE) + len(parts))
                raise
            words[_POST] = 0
            self._trust[source] = RENDEZVOUS_TRIES
            self.received[source] = number + 1
            return True
        finally:
            _landing.release()

    def exchange(
        self,
        dest: int,
        sendtag: int,
        flat: Any,
        nbytes: int,
        number: int,
        spec: Any,
        x: Any,
        source: int,
        recvtag: int,
        into: Any,
        room: int,
        target: Any,
    ) -> bool:
        """Hand over message `number` to dest and take one of source; false: nothing was done.

        Args:
            flat, nbytes, spec, x: elements to send, also as MPI wants them, and whose they are.
            into, room, target: to receive.
        """
        mpi, going, is_begun = self._comm.mpi_handle, None, False

        def send() -> None:
            nonlocal going, is_begun
            is_begun = True
            if not self.give(dest, sendtag, flat, nbytes, number):
                going = mpi.Isend(spec, dest, sendtag)

        try:
            if not self.take(source, recvtag, into, room, send):
                if not is_begun:
                    return False
                status = MPI.Status()
                receive(mpi, target, source, recvtag, status)
                self.received[source] += 1
                transport.check_length(self._comm, "sendrecv", status, room)
            if going is not None:
                going.Wait()
        except BaseException:
            abandon(going, x)  # its receiver may still come for it
            raise
        return True

    def _weigh(self, dest: int, is_slow: bool) -> None:
        """Note how the copy of a message that tells went."""
        if not is_slow:
            self._slow[dest], self._seldom[dest] = 0, _SELDOM
            return
        self._slow[dest] += 1
        if self._slow[dest] > _SLOW:
            self._seldom[dest] = min(2 * self._seldom[dest] + 1, _RARELY)

    def sends(self, dest: int) -> None:
        """Note that a message to dest goes by MPI."""
        if dest >= 0:
            self.number[dest]()

    def expects(self) -> None:
        """Note that a receive is pending which may take any message."""
        self.pending += 1

    def came(self, source: int) -> None:
        """Note that a receive which was pending has its message."""
        self.pending -= 1
        if source >= 0:
            self.received[source] += 1

    def leave(self, dest: int) -> None:
        """Leave messages to dest to MPI from now on: those of a plan are started unseen."""
        if dest >= 0:
            self._notes[dest] = self._nobody

    def stop(self) -> None:
        """Leave all that this rank sends and receives to MPI from now on."""
        self._notes.clear()
        self.pending += 1

    def _comes(self, source: int, tag: int, serial: int) -> bool:
        """Wait until a message is handed over; false: there is one of MPI's, or none for long."""
        words, nothing, begin = self._own, serial << _DONE, 0.0
        while words[_HERE] <= nothing:
            if self._comm.mpi_handle.Iprobe(source, tag):
                self._trust[source] = max(self._trust[source] - 1, 0)
                return not self._withdraw(source, serial)
            for _ in self._looks:
                if words[_HERE] > nothing:
                    return True
            now = time.monotonic()
            begin = begin or now
            if now - begin > RENDEZVOUS_PATIENCE_S:
                return not self._withdraw(source, serial)
            if self._is_crowded:
                os.sched_yield()
        return True

    def _withdraw(self, source: int, serial: int) -> bool:
        """Take the post back; false: it was claimed before, and the message is on its way."""
        words = self._own
        words[_POST] = 0
        with self._fence:
            pass
        if words[_CLAIM] == serial:  # the claim stands, or the sender backs out
            self._wait(source, (serial << _DONE) + 1, -serial)
        return bool(words[_CLAIM] != serial)

    def _wait(self, source: int, here: int, backed_out: int = 0) -> None:
        """Wait until so much is here; the sender is at it."""
        words = self._own
        for _ in self._looks:
            if words[_HERE] >= here:
                return
        begin = looked = time.monotonic()
        while words[_HERE] < here and not (backed_out and words[_CLAIM] == backed_out):
            now = time.monotonic()
            if now - begin < RENDEZVOUS_PATIENCE_S:
                os.sched_yield()
                continue
            time.sleep(RENDEZVOUS_SLEEP_S)
            if now - looked > RENDEZVOUS_CHECK_S:
                looked = now
                if self._comm.node_regions[source].gone and words[_HERE] < here:
                    raise _stopped(self._comm, source)

    def _parts_of(self, owner: int, flat: Any) -> Parts:
        """The pieces of an array like flat in a rank's receive buffer: first and last element, and where."""
        known = owner, flat.size, flat.dtype
        if known not in self._parts:
            if len(self._parts) >= _KEPT:
                self._parts.clear()
            landing = self._shelves.landing(self._shelf_of[owner])
            room = np.frombuffer(landing, flat.dtype, flat.size)
            piece = min(max(flat.nbytes // 4, _PIECE.start), _PIECE.stop) // flat.itemsize
            bounds = [*range(0, flat.size, piece), flat.size]
            self._parts[known] = [(low, high, room[low:high]) for low, high in pairwise(bounds)]
        return self._parts[known]


_landing = threading.Lock()  # this process has one receive buffer


def _stopped(comm: Comm, source: int) -> PeerFailedError:
    return PeerFailedError(
        f"rank {source} was stopped while it copied its message",
        where("recv", comm),
        "look at what that rank printed",
        [source],
    )
