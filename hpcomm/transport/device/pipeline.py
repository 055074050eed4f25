"""Pipelined messages: in pieces, through pinned memory at the end that lies on a device.

Each end has two slots of pinned memory, used in turn. So piece i travels while piece i+1 is copied from the
device, and the receiver copies piece i to its device while piece i+1 arrives:

    sender's device    copy p0 | copy p1 | copy p2 |
    sender's MPI               | send p0 | send p1 | send p2 |
    receiver's MPI             | recv p0 | recv p1 | recv p2 |
    receiver's device                    | copy p0 | copy p1 | copy p2

A slot is written again only when its event and its MPI request are over: `landed` and `free` give what to
wait for. All functions are generators of stages (core/request.py), so nothing blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI
from mpi4py.typing import BufSpec

from ...core.dtypes import BY_NAME, Dtype
from ...core.limits import PIPELINE_PIECE
from ...core.request import Stages
from ...device.arrays import Place
from ...device.driver import Device
from .. import mpi as transport
from .staging import DeviceSink, DeviceSource, Sink, Source, pieces


def cut(count: int, blocks: int, itemsize: int) -> int:
    """Elements of a block that one piece takes, the same on all ranks."""
    return max(1, min(count, PIPELINE_PIECE // (blocks * itemsize)))


class Line(NamedTuple):
    """The way of one message's data on a channel: its tag, and the next one for answers."""

    channel: MPI.Comm
    peer: int
    tag: int

    def give(self, part: BufSpec) -> MPI.Request:
        return self.channel.Isend(part, self.peer, self.tag)

    def take(self, part: BufSpec) -> MPI.Request:
        return self.channel.Irecv(part, self.peer, self.tag)

    def give_answer(self, part: BufSpec) -> MPI.Request:
        return self.channel.Isend(part, self.peer, self.tag + 1)

    def take_answer(self, part: BufSpec) -> MPI.Request:
        return self.channel.Irecv(part, self.peer, self.tag + 1)


def send_pieces(line: Line, source: Source, dtype: Dtype, count: int, piece: int) -> Stages:
    """Send all elements of source; one piece is brought while another one travels."""
    parts = pieces(count, piece)
    source.bring(*parts[0])
    going: list[Any] = []
    for i, (low, high) in enumerate(parts):
        if waits := source.landed():
            yield waits
        part = transport.spec(source.columns(low, high), high - low, dtype)
        before, going = going, [line.give(part)]
        if before:
            yield before
        if i + 1 < len(parts):
            source.bring(*parts[i + 1])
    yield going
    source.end()


def receive_pieces(line: Line, sink: Sink, dtype: Dtype, count: int, piece: int) -> Stages:
    """Receive them into sink; sink.end() is left to the caller."""
    parts = pieces(count, piece)
    coming: list[Any] = []
    for i in range(len(parts) + 1):
        before = coming
        if i < len(parts):
            if waits := sink.free():
                yield waits
            low, high = parts[i]
            part = transport.spec(sink.columns(low, high), high - low, dtype)
            coming = [line.take(part)]
        if before:
            yield before
            sink.deliver(*parts[i - 1])


def send_bytes(line: Line, device: Device, stream: int, address: int, nbytes: int) -> Stages:
    """Send device memory, as stream leaves it."""
    source = DeviceSource(_bytes(device, address, nbytes), 1, nbytes, cut(nbytes, 1, 1), stream)
    return send_pieces(line, source, BY_NAME["uint8"], nbytes, cut(nbytes, 1, 1))


def receive_bytes(line: Line, device: Device, stream: int, address: int, nbytes: int) -> Stages:
    """Receive into device memory, by stream."""
    sink = DeviceSink(_bytes(device, address, nbytes), 1, nbytes, cut(nbytes, 1, 1), stream)
    yield from receive_pieces(line, sink, BY_NAME["uint8"], nbytes, cut(nbytes, 1, 1))
    sink.return_slots()


def _bytes(device: Device, address: int, nbytes: int) -> Place:
    return Place(None, address, (nbytes,), None, BY_NAME["uint8"], device, lambda: 0, None, None)
