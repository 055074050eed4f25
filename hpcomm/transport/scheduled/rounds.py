"""Own schedules on devices: messages from workspace to workspace, reductions by kernels.

A message goes from device to device where the receiver has the sender's workspace open: it waits for the
event `ready`, copies, and records `read`, which the sender waits for before it works on. Else it goes through
pinned memory, in pieces. The host passes words, and waits for no device but for its pinned memory.
"""

from __future__ import annotations

import struct

from mpi4py import MPI

from ...core.limits import SCHEDULE_RING
from ...core.request import Stages
from ...device.kernels import Kernels
from ...schedule.rank_program import Message
from ...schedule.stream import AFTER, COPY
from ..device.device_columns import Moved
from ..device.pipeline import Line, receive_bytes, send_bytes
from ..device.workspace import Workspace
from ..progress import Together
from .proved import Which, part, proved

TAGS = 3  # tags of the channel that rounds use, from 0
_WORD, _ANSWER, _DATA = range(TAGS)


def algorithm(verb: str, p: int, nbytes: int) -> str:
    """The schedule for a verb on blocks of nbytes."""
    large = nbytes >= p * SCHEDULE_RING
    return {
        "all_reduce": "ring" if large else "rabenseifner",
        "reduce": "ring_gather" if large else "tree",
        "broadcast": "scatter_ring" if large else "tree",
        "all_gather": "ring", "reduce_scatter": "ring",
        "gather": "pairwise", "scatter": "pairwise", "all_to_all": "pairwise",
        "scan": "tree", "exscan": "tree",
    }[verb]  # fmt: skip


def fitting(space: Workspace, verb: str, name: str, root: int, itemsize: int) -> int:
    """Elements of a slot so that work memory and this rank's temporary fit into its workspace; 0: none do."""
    key = Which(verb, name, space.size, root)
    slots = proved(*key).slots
    count = space.nbytes // (slots * itemsize)
    while count:
        need = (slots * count + part(key, space.rank, count).room) * itemsize
        if need <= space.nbytes:
            break
        count = min(count - 1, count * space.nbytes // need)
    return count


class Rounds:
    """How a collective goes on in a workspace: work memory from its beginning, the temporary behind it."""

    def __init__(
        self, space: Workspace, channel: MPI.Comm, kernels: Kernels | None, name: str, moved: Moved
    ) -> None:
        self.workspace, self.channel, self.kernels = space, channel, kernels
        self.key = Which(moved.verb, name, space.size, moved.root)
        self.op, self.dtype, self.slots = moved.op, moved.dtype, moved.slots
        half = space.nbytes // (2 * moved.slots * moved.dtype.itemsize)
        self.capacity = max(1, half)  # the default ones hold the other half in the temporary

    def move(self, count: int) -> Stages:
        """All rounds, on slots of count elements."""
        own = part(self.key, self.workspace.rank, count)
        device, stream, work = self.workspace.device, self.workspace.stream, self.workspace.work
        size = self.dtype.itemsize
        room = work + self.slots * count * size
        assert (self.slots * count + own.room) * size <= self.workspace.nbytes

        def at(message: Message) -> int:
            return (room if message.staged else work) + message.low * size

        for each in own.rounds:
            for start, low, high in each.packs:
                device.copy(room + start * size, work + low * size, (high - low) * size, stream)
            if any(self.workspace.peers[m.peer].gives for m in each.sends):
                device.record(self.workspace.ready, stream)
            branches = [self._give(m.peer, at(m), (m.high - m.low) * size) for m in each.sends]
            branches += [self._take(m.peer, at(m), (m.high - m.low) * size) for m in each.recvs]
            yield [Together(branches)]
            for start, low, high, how in each.effects:
                theirs, mine = room + start * size, work + low * size
                if how == COPY:
                    device.copy(mine, theirs, (high - low) * size, stream)
                else:
                    self._reduce(mine, theirs, high - low, how)

    def _reduce(self, mine: int, theirs: int, count: int, how: int) -> None:
        assert self.kernels is not None
        assert self.op is not None
        with self.kernels.on(self.workspace.stream):
            a, b = (self.kernels.view(address, count, self.dtype) for address in (mine, theirs))
            self.kernels.reduce(self.op, *((a, b) if how == AFTER else (b, a)), out=a)

    def _give(self, rank: int, address: int, nbytes: int) -> Stages:
        space, peer = self.workspace, self.workspace.peers[rank]
        if not peer.gives:
            line = Line(self.channel, rank, _DATA)
            yield from send_bytes(line, space.device, space.stream, address, nbytes)
            return
        word, answer = struct.pack("=q", address - space.base), bytearray(1)
        yield [
            self.channel.Isend([word, MPI.BYTE], rank, _WORD),
            self.channel.Irecv([answer, MPI.BYTE], rank, _ANSWER),
        ]
        space.device.wait(space.stream, peer.has_read)

    def _take(self, rank: int, address: int, nbytes: int) -> Stages:
        space, peer = self.workspace, self.workspace.peers[rank]
        if peer.why:
            line = Line(self.channel, rank, _DATA)
            yield from receive_bytes(line, space.device, space.stream, address, nbytes)
            return
        word = bytearray(8)
        yield [self.channel.Irecv([word, MPI.BYTE], rank, _WORD)]
        space.device.wait(space.stream, peer.ready)
        space.device.copy(address, peer.base + struct.unpack("=q", word)[0], nbytes, space.stream)
        space.device.record(peer.read, space.stream)
        yield [self.channel.Isend([b"k", MPI.BYTE], rank, _ANSWER)]
