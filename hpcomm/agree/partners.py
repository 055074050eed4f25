"""Which ranks of linked programs have ended: seen in the node segment, or told in a last message.

MPI keeps a rank that has ended inside MPI_Finalize, where it says nothing, and leaves those that wait for it
waiting. So when its Python ends, a rank sends an end notice to the ranks of the linked programs. If they are
many, that is too much, and two of them hear of it:

    a rank that ends ── end notice ──> two ranks of the other program, its delegates
    a rank that waits ── question ──> delegates in its own program ── who has ended ──> that rank

So nobody hears of ends that nobody waits for, and there are as many messages as ranks that end or wait. Where
both delegates have ended themselves, deadlines tell (docs/mpmd.md).
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import zlib
from typing import Any

from .._lazy import MPI
from ..core.comm import Comm
from ..core.patience import until
from ..job.host import host_mark
from ..job.launcher import began_of
from ..node import segment
from ..node.segment import Region
from . import runtime, survival
from .letters import FEW, Letters

_BYE = 32099  # tag
_ASK, _ANSWER = 1, 2  # those within a program
_ASK_S = 0.2  # between an answer and the next question
_LIVES, _NONE = -2, -1  # in place of the calls that a rank has begun: it has not ended, or not said how many
_UNDER_WAY_S = 1.0  # for messages that were sent before an end: the node segment is quicker than MPI
_POLL_S = 0.01
_LAST_WORDS_S = 0.2  # for what is said at the same moment: UCX complains of messages that nobody received


def _informed(size: int) -> set[int]:
    """Whom of so many ranks a rank of the other program tells that it ends."""
    return {*range(size)} if size <= FEW else {0, size // 2}


class Partners:
    """The ranks of the program called name, at the other side of comm, an inter-communicator.

    Made collectively by both sides, unless the other is plain: a program without hpcomm, which can
    send an end notice only. local: this program's ranks, which ask each other if they are many.
    """

    _mates: Letters | None = None  # for questions
    _is_told = True  # by all that end; else they say it to others

    def __init__(self, comm: Comm, name: str, local: Comm | None = None, *, plain: bool = False) -> None:
        if local is not None and local.size > FEW:
            self._mates = Letters(local.mpi_handle.Dup())
            self._is_told = local.rank in _informed(local.size)
            self._asks = dict.fromkeys(_informed(local.size) - {local.rank}, 0.0)  # when to ask these
            runtime.farewells.append(self._leave_mates)
            runtime.looks.append(self._serve)
        inter: Any = comm.object_comm if plain else comm.mpi_handle.Dup()

        self.name = name
        self._foreign, self._is_plain = segment.has_foreigners(inter), plain
        self._inter, self._comm, self._letters = inter, comm, Letters(inter, _BYE)
        self._carries = (
            (comm.mpi_handle,) if plain else (comm.mpi_handle, comm.object_comm, comm.block_channel)
        )
        self._gone: set[int] = set()
        self._they_began: dict[int, int] = {}  # how many collective calls, of those of whom that was told
        self._since: dict[int, float] = {}  # when lost() first heard of it
        self._lock = threading.Lock()
        self._regions: list[tuple[int, Region]] = []
        self._processes: list[tuple[int, int, int]] = []  # of another job here: rank, id, when begun
        if not plain:
            self._meet()

    def _meet(self) -> None:
        inter, node_segment = self._inter, segment.current
        here = zlib.crc32(host_mark("pid").encode())  # this host, and its process ids as seen from here
        # Ids are given again, but to none that began then; 0 if that is unknown.
        own = here, os.getpid(), began_of(os.getpid())
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
                if self._mates is not None:
                    due = [mate for mate, at in self._asks.items() if time.monotonic() >= at]
                    self._asks.update(dict.fromkeys(due, math.inf))  # until it has answered
                    self._mates.send(due, _ASK, b"")
            return set(self._gone)

    def _dead(self) -> set[int]:
        """Ranks over there whose process is no more. Those that said farewell wait for this one's."""
        found = {rank for rank, region in self._regions if region.gone and not region.ended}
        found |= {rank for rank, pid, began in self._processes if began_of(pid) != began}
        return found | self._letters.failed() if runtime.may_call_mpi() else found

    def _serve(self) -> None:
        """Answer this program's ranks that ask who has ended. Never blocks."""
        if self._mates is not None and runtime.may_call_mpi():
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
        unknown = _NONE if self._is_told else call
        return {rank for rank in self.lost() if self._they_began.get(rank, unknown) < call}

    def has_messages(self) -> bool:
        """Whether something that was sent before an end still waits here to be received."""
        probes = (survival.looked(mpi, mpi.Iprobe, MPI.ANY_TAG, MPI.Status()) for mpi in self._carries)
        return runtime.may_call_mpi() and any(probes)

    def _leave_mates(self) -> None:
        """Answer those who ask now, and ask no more."""
        with self._lock:
            self._hear()
            if self._mates is not None:
                self._mates.stop()
            self._mates = None

    def say_farewell(self) -> None:
        """Tell the ranks over there that this one ends; within a job, waits for nothing."""
        if not self._inter:
            return  # it has parted
        others = _informed(self._inter.remote_size) - self._dead()
        self._letters.send(others, _BYE, struct.pack("q", self._comm.begun))
        until(lambda: len(self.gone()) >= self._inter.remote_size, _LAST_WORDS_S * self._foreign)

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
            self._letters.stop()
            if not self._is_plain:  # else it is the link's own
                inter.Free()

    def _hear(self) -> None:
        for rank, _, text in self._letters.come():
            self._gone.add(rank)
            if len(text) == 8:  # programs without hpcomm say nothing
                (self._they_began[rank],) = struct.unpack("q", text)
        asking = []
        for mate, tag, text in self._mates.come() if self._mates is not None else ():
            if tag == _ASK:
                asking.append(mate)
                continue
            self._asks[mate] = time.monotonic() + _ASK_S
            told = struct.iter_unpack("i", zlib.decompress(text))
            ended = {rank: begun for rank, (begun,) in enumerate(told) if begun != _LIVES}
            self._gone |= ended.keys()
            self._they_began = ended | self._they_began
        if asking and self._mates is not None:
            # Of each rank over there how many calls it had begun: equal numbers mostly, so that it is short.
            found = dict.fromkeys(self._since_a_while(self._gone), _NONE) | self._they_began
            begun = [found.get(rank, _LIVES) for rank in range(self._comm.remote_size)]
            self._mates.send(asking, _ANSWER, zlib.compress(struct.pack(f"{len(begun)}i", *begun)))
