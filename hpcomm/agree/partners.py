"""Which ranks of linked programs have ended: seen in the node segment, or told in a last message.

MPI keeps a rank that has ended inside MPI_Finalize, where it says nothing, and leaves those that wait for it
waiting. So when its Python ends, a rank sends an end notice to the ranks of the linked programs; to two of
them if they are many (ended_ranks.py).
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._lazy import MPI
from ..job.launcher import began_of
from ..node import segment
from . import runtime, survival
from .ended_ranks import FEW, EndedRanks, informed

if TYPE_CHECKING:
    from ..core.comm import Comm
    from ..node.segment import Region

_BYE = 32099  # tag
_UNDER_WAY_S = 1.0  # for messages that were sent before an end: the node segment is quicker than MPI
_POLL_S = 0.01
_LAST_WORDS_S = 0.2  # for what is said at the same moment: UCX complains of messages that nobody received


class Partners:
    """The ranks of the program called name, at the other side of comm, an inter-communicator.

    Made collectively by both sides, unless the other is plain: a program without hpcomm, which can
    send an end notice only. local: this program's ranks, which ask each other if they are many.
    """

    _notary: EndedRanks | None = None

    def __init__(self, comm: Comm, name: str, local: Comm | None = None, *, plain: bool = False) -> None:
        if local is not None and local.size > FEW:
            self._notary = EndedRanks(local.mpi_handle.Dup(), comm.remote_size)
            runtime.farewells.append(self._leave_mates)
        inter: Any = comm.object_comm if plain else comm.mpi_handle.Dup()

        self.name = name
        self._foreign, self._is_plain = segment.has_foreigners(inter), plain
        self._inter, self._comm = inter, comm
        self._carries = (
            (comm.mpi_handle,) if plain else (comm.mpi_handle, comm.object_comm, comm.block_channel)
        )
        self._gone: set[int] = set()
        self._they_began: dict[int, int] = {}  # how many collective calls, of those that said farewell
        self._is_told = self._notary is None or self._notary.is_told  # else they say it to others
        self._call, self._came_not = -1, set[int]()  # of which call others are asked; who did not come to it
        self._since: dict[int, float] = {}  # when lost() first heard of it
        self._lock = threading.Lock()
        self._going: list[MPI.Request] = []
        self._regions: list[tuple[int, Region]] = []
        self._processes: list[tuple[int, int, int]] = []  # of another job here: rank, id, when begun
        if not plain:
            self._meet()

    def _meet(self) -> None:
        inter, node_segment = self._inter, segment.current
        own = _process()
        entry = struct.pack(
            "5q", node_segment.node if node_segment else -1, node_segment.here if node_segment else -1, *own
        )
        entries = bytearray(len(entry) * inter.remote_size)
        inter.Allgather([entry, MPI.INT64_T], [entries, MPI.INT64_T])
        for rank, (node, here, host, pid, began) in enumerate(struct.iter_unpack("5q", entries)):
            if self._foreign:
                self._processes += [(rank, pid, began)] if began and host == own[0] else []
            elif node_segment is not None and node == node_segment.node:
                self._regions.append((rank, node_segment.regions[here]))

    def gone(self) -> set[int]:
        """Ranks over there that have ended. Never blocks."""
        with self._lock:
            self._gone |= {rank for rank, region in self._regions if region.ended} | self._dead()
            if runtime.may_call_mpi():
                self._hear()
                if self._notary is not None:
                    gone, before = self._notary.ask(self._call)
                    self._gone |= gone
                    self._came_not |= before
            return set(self._gone)

    def _dead(self) -> set[int]:
        """Ranks over there whose process is no more. Those that said farewell wait for this one's."""
        found = {rank for rank, region in self._regions if region.gone and not region.ended}
        found |= {rank for rank, pid, began in self._processes if began_of(pid) != began}
        asks = self._inter and runtime.may_call_mpi()
        return found | survival.failed(self._inter) if asks else found

    def serve(self) -> None:
        """Answer this program's ranks that ask who has ended. Never blocks."""
        if self._notary is not None and runtime.may_call_mpi():
            with self._lock:
                self._hear()

    def lost(self) -> set[int]:
        """Those of whom nothing more comes: they ended a while ago, so that what they sent is through."""
        return self._since_a_while(self.gone())

    def _since_a_while(self, gone: set[int]) -> set[int]:
        now = time.monotonic()
        return {rank for rank in gone if now - self._since.setdefault(rank, now) >= _UNDER_WAY_S}

    def lost_before(self, call: int) -> set[int]:
        """Those that do not come to a collective call any more: they ended before it."""
        self._call = call
        return self._before(call, self.lost())

    def _before(self, call: int, lost: set[int]) -> set[int]:
        unknown = -1 if self._is_told else call
        return {rank for rank in lost if rank in self._came_not or self._they_began.get(rank, unknown) < call}

    def has_messages(self) -> bool:
        """Whether something that was sent before an end still waits here to be received."""
        probes = (survival.is_there(comm, MPI.Status()) for comm in self._carries)
        return runtime.may_call_mpi() and any(probes)

    def _leave_mates(self) -> None:
        """Answer those who ask now, and ask no more."""
        with self._lock:
            self._hear()
            if self._notary is not None:
                self._notary.close()
            self._notary = None

    def say_farewell(self) -> None:
        """Tell the ranks over there that this one ends; within a job, waits for nothing."""
        if not self._inter:
            return  # it has parted
        said = struct.pack("q", self._comm.begun)
        for rank in {*informed(self._inter.remote_size)} - self._dead():
            self._going.append(self._inter.Isend([said, MPI.BYTE], rank, _BYE))
        deadline = time.monotonic() + _LAST_WORDS_S * self._foreign
        while time.monotonic() < deadline and len(self.gone()) < self._inter.remote_size:
            time.sleep(_POLL_S)

    def part(self) -> None:
        """Say that this rank ends or closes what joins both, and wait for the others, but not at a failure.

        To go on and finalize MPI would leave Open MPI with messages to ranks that have gone, and hang it.
        """
        if not self._inter:
            return
        self.say_farewell()
        while runtime.ending is None and not runtime.status and len(self.gone()) < self._inter.remote_size:
            time.sleep(_POLL_S)
        with self._lock:
            inter, self._inter = self._inter, type(self._inter)()
            if not self._is_plain:  # else it is the link's own
                inter.Free()

    def _hear(self) -> None:
        status = MPI.Status()
        while self._inter and survival.is_there(self._inter, status, _BYE):
            said = bytearray(8)
            self._inter.Recv([said, MPI.BYTE], status.source, _BYE, status)
            self._gone.add(status.source)
            if status.count == len(said):  # programs without hpcomm say nothing
                self._they_began[status.source] = struct.unpack("q", said)[0]
        if self._notary is not None and self._inter:
            self._notary.serve(self._gone, lambda call: self._before(call, self._since_a_while(self._gone)))


def _process() -> tuple[int, int, int]:
    """This process: a number for this host and its process ids as seen from here, its id, when it began.

    Ids are given again, but to none that began then. 0 if that is unknown.
    """
    pid = os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return zlib.crc32(f"{boot}{Path('/proc/self/ns/pid').readlink()}".encode()), pid, began_of(pid)
    except OSError:
        return 0, pid, 0
