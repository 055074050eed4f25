"""Device workspace of a communicator's collectives, and which ranks can open each other's.

Each rank exports its workspace once; the others of its node try to open it, with a pattern. What they found
is told to all, so that all choose alike. A pair whose memory can be opened copies from device to device.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core.limits import WORKSPACE
from ...core.request import Stages
from ...device.driver import Device
from ...errors import TransportError
from .ipc import node
from .staging import Reached, station

HEAD = 256  # bytes before the working memory: the pattern
_HEADER, _WHY = 768, 160  # bytes of what ranks tell
_PAIR = struct.Struct("=?64s")  # whether I can open your workspace, and the event after which I have read


@dataclass
class Header:
    """What a rank tells all others of itself."""

    node: str
    process: int
    device: bytes  # no other device has the same
    handle: bytes | None
    ready: bytes
    why: str  # there is no handle
    pattern: bytes
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the choice among transports


@dataclass
class Peer:
    """Another rank of the node whose workspace is open here, or why it is not.

    base: where its workspace is here; ready: its event; read: mine, after which I have read from it;
    has_read: its own, after which it has read from mine, where it can (gives).
    """

    why: str = ""
    base: int = 0
    ready: int = 0
    read: int = 0
    has_read: int = 0
    gives: bool = False


class Workspace:
    """The workspace of one communicator on this process' device; made by all ranks together, in share()."""

    def __init__(self, device: Device, rank: int, size: int, facts: Mapping[str, object]) -> None:
        self.device, self.rank, self.size = device, rank, size
        self.station = station(device)
        self.stream = self.station.side
        self.nbytes = WORKSPACE
        self.base = device.allocate(HEAD + self.nbytes)
        self.work = self.base + HEAD
        self.peers = [Peer() for _ in range(size)]
        self.headers: list[Header] = []
        self.whys: list[str] = []  # of each rank: the first pair that it cannot copy from
        pattern = os.urandom(16)
        handle, told, why = None, b"", ""
        self.ready = 0
        try:
            self.ready = device.event(interprocess=True)
            handle, told = device.export(self.base), device.export_event(self.ready)
        except TransportError as error:
            why = error.what
        self._header = Header(
            node(), os.getpid(), device.identity(), handle, told, why[:_WHY], pattern, facts
        )

    def share(self, channel: MPI.Comm) -> Stages:
        """Let all ranks of channel get to know each other. Collective.

        1  all to all    header: node, process, device, handle of the workspace, a random pattern in it
        2  here          open what is of this node, and compare the pattern
        3  pairwise      whether I can open yours, with an event by which I say that I have read
        4  pairwise      whether I could open that event in return
        5  all to all    the first reason of each rank why it cannot open some other one's
        """
        self._write_pattern()
        said = pickle.dumps(self._header)
        assert len(said) <= _HEADER, len(said)
        everyone = bytearray(_HEADER * self.size)
        yield [channel.Iallgather([said.ljust(_HEADER, b"\0"), MPI.BYTE], [everyone, MPI.BYTE])]
        each = (memoryview(everyone)[i : i + _HEADER] for i in range(0, len(everyone), _HEADER))
        self.headers = [pickle.loads(header) for header in each]
        yield from self._open_all()
        yield from self._open_events(channel)
        lacks = [f"rank {r}: {peer.why}" for r, peer in enumerate(self.peers) if peer.why]
        why, whys = (lacks[0] if lacks else "").encode()[:_WHY], bytearray(_WHY * self.size)
        yield [channel.Iallgather([why.ljust(_WHY, b"\0"), MPI.BYTE], [whys, MPI.BYTE])]
        parts = (bytes(whys[i * _WHY : (i + 1) * _WHY]).rstrip(b"\0") for i in range(self.size))
        self.whys = [part.decode(errors="replace") for part in parts]

    def _open_events(self, channel: MPI.Comm) -> Stages:
        """Steps 3 and 4 of meet."""
        mine, theirs = bytearray(), bytearray(_PAIR.size * self.size)
        for peer in self.peers:
            mine += _PAIR.pack(not peer.why, self.device.export_event(peer.read) if peer.read else b"")
        yield [channel.Ialltoall([mine, MPI.BYTE], [theirs, MPI.BYTE])]
        for peer, (reads, event) in zip(self.peers, _PAIR.iter_unpack(theirs), strict=True):
            if reads and any(event):
                with suppress(TransportError):
                    peer.has_read = self.device.open_event(event)
            peer.gives = bool(peer.has_read)
        may, granted = bytearray(peer.gives for peer in self.peers), bytearray(self.size)
        yield [channel.Ialltoall([may, MPI.BYTE], [granted, MPI.BYTE])]
        for r, peer in self._opened():
            if not granted[r]:
                peer.why = "cannot open this rank's event in return"

    def _opened(self) -> list[tuple[int, Peer]]:
        """The other ranks whose workspaces could be opened so far."""
        return [(r, peer) for r, peer in enumerate(self.peers) if r != self.rank and not peer.why]

    def _write_pattern(self) -> None:
        """And wait for it: so the pinned memory that it came from can be given back."""
        device, host, event = self.device, self.device.pinned(16), self.device.event()
        host[:] = np.frombuffer(self._header.pattern, np.uint8)
        device.copy(self.base, int(host.__array_interface__["data"][0]), 16, self.stream)
        if self.ready:
            device.record(self.ready, self.stream)
        device.record(event, self.stream)
        device.synchronize(event)
        device.destroy_event(event)
        device.unpin(host)

    def _open_all(self) -> Stages:
        """Open the workspaces of this node, and read what was written there."""
        device, seen = self.device, self.device.pinned(16 * self.size)
        address, mine = int(seen.__array_interface__["data"][0]), self.headers[self.rank]
        for r, (peer, header) in enumerate(zip(self.peers, self.headers, strict=True)):
            if r == self.rank:
                continue
            if header.node != mine.node:
                peer.why = "is on another node, or in another PID namespace"
            elif header.process == mine.process:
                peer.why = "is this process"
            elif header.handle is None:
                peer.why = f"cannot export memory: {header.why}"
            else:
                try:
                    peer.base, peer.ready = device.open(header.handle), device.open_event(header.ready)
                    peer.read = device.event(interprocess=True)
                    device.wait(self.stream, peer.ready)
                    device.copy(address + 16 * r, peer.base, 16, self.stream)
                except TransportError as error:
                    peer.why = f"cannot be opened: {error.what}"
        event = self.station.record_event(self.stream)
        yield [Reached(device, event)]
        self.station.return_event(event)
        for r, peer in self._opened():
            if seen[16 * r : 16 * r + 16].tobytes() != self.headers[r].pattern:
                peer.why = "cannot be opened: what was read there is not what it wrote"
        device.unpin(seen)

    def leave(self, channel: MPI.Comm) -> Stages:
        """Give everything back, all ranks together: what is others' first, and one's own after all did so."""
        device = self.device
        yield [Reached(device, event := self.station.record_event(self.stream))]
        self.station.return_event(event)
        for peer in self.peers:
            if peer.base:
                device.close(peer.base)
            for each in (peer.ready, peer.read, peer.has_read):
                if each:
                    device.destroy_event(each)
        yield [channel.Ibarrier()]
        device.free(self.base)
        if self.ready:
            device.destroy_event(self.ready)
