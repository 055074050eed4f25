"""NCCL: collectives and messages where each rank has a GPU of its own.

Messages from one rank to another have a group of two and a stream of their own: NCCL matches them by their
order alone, and on the stream of another call two ranks could wait for each other in a circle. NVIDIA does
not promise that two groups make progress side by side (nccl #195, #217), so messages go this way on demand
only.
"""

from __future__ import annotations

import os
from functools import partial

from mpi4py import MPI

from ...core.dtypes import Dtype
from ...core.request import Stages
from ...core.verbs import PREFIXES
from ...device.arrays import Place
from ...device.driver import Device
from ...device.nccl import DTYPES, OPS, Collective, Group
from ...errors import HpcommError
from ..progress import Thread, Until, in_thread
from .device_columns import Moved
from .pipeline import Line
from .staging import Reached, station
from .workspace import Header, Workspace

LIMIT_S = 60.0  # for a group to come together
_WHY = 160  # bytes of what went wrong there
RISK = "taken if forced only: messages both ways need two groups that move on side by side"
_SHARING = 23000  # the version from which ranks may share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1


def fact(device: Device) -> int | str:
    """The version of NCCL here, or why there is none."""
    try:
        return device.nccl().version  # type: ignore[no-any-return]
    except HpcommError as error:
        return error.what[:120]


def lack(headers: list[Header]) -> str:
    """Why these ranks cannot use NCCL together, or "". The same on all ranks."""
    if len(headers) == 1:
        return "there is one rank only"
    first = headers[0].facts["nccl"]
    for rank, header in enumerate(headers):
        version = header.facts["nccl"]
        if isinstance(version, str):
            return f"rank {rank}: {version}"
        if version != first:
            return f"rank 0 has NCCL {first}, rank {rank} {version}"
    if first >= _SHARING and all(header.facts["nccl_shares"] for header in headers):
        return ""
    seen: dict[bytes, int] = {}
    for rank, header in enumerate(headers):
        if header.device in seen:
            return f"ranks {seen[header.device]} and {rank} share a GPU"
        seen[header.device] = rank
    return ""


def lack_between(device: Device, other: bytes) -> str:
    """Why NCCL cannot carry a message from the device of identity other to this one, or ""."""
    version = fact(device)
    if isinstance(version, str):
        return version
    shared = other == device.identity() and not (version >= _SHARING and shares())
    return "both ranks share a GPU" if shared else ""


def shares() -> bool:
    """Whether NCCL was told that ranks may share a GPU."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


def refuses(verb: str, op: str | None, dtype: Dtype) -> str:
    """Why NCCL has no such collective, or ""."""
    if verb in PREFIXES:
        return f"NCCL has no {verb}"
    if op is None or (op == "SUM" and dtype.kind == "c"):
        return ""
    if op not in OPS or dtype.name not in DTYPES:
        return f"NCCL has no {op.lower()} of {dtype}"
    return ""


def join(channel: MPI.Comm, space: Workspace) -> Stages:
    """Make a group of NCCL's of all ranks; returns (the group or None, why there is none), alike on all."""
    library = space.device.nccl()
    unique = bytearray(library.unique() if space.rank == 0 else 128)
    yield [channel.Ibcast([unique, MPI.BYTE], 0)]
    joining = Thread(lambda: library.group(bytes(unique), space.size, space.rank), LIMIT_S)
    yield [joining]
    fine = bytearray([joining.why == ""])
    yield [channel.Iallreduce(MPI.IN_PLACE, [fine, MPI.BYTE], MPI.BAND)]
    if fine[0]:
        return joining.result, ""
    return None, joining.why or "another rank could not join the group"


class ByNccl:
    """How a collective goes on in a workspace by NCCL."""

    def __init__(self, space: Workspace, group: Group, moved: Moved) -> None:
        self.workspace, self.group, self.moved = space, group, moved
        self.capacity = moved.capacity(space.nbytes)

    def move(self, count: int) -> Stages:
        space, it = self.workspace, self.moved

        def carry() -> None:
            what = Collective(it.verb, count, it.dtype, it.op, it.root)
            self.group.carry(what, space.work, space.stream)

        if it.verb in self.group.used:
            carry()
            return
        yield from in_thread(carry)  # ranks connect at their first call, and the host waits for the others
        self.group.used.add(it.verb)


class Pair:
    """The way of messages from one rank to another, at one of its ends.

    Messages have numbers, which the receiver gives them: both ends put them into their streams in that order.
    """

    def __init__(self, device: Device, sends: bool) -> None:
        self.device, self.sends = device, sends
        self.stream = 0
        self.why = ""  # it cannot be used
        self.given = 0  # numbers
        self._turn = 0
        self._group: Group | None = None

    def number(self) -> int:
        self.given += 1
        return self.given - 1

    def carry(self, line: Line, place: Place, number: int, unique: bytes, event: int) -> Stages:
        """Put message number into the stream, behind event; returns why that could not be, or ""."""
        if number != self._turn:
            yield [Until(lambda: self._turn == number)]
        try:
            if number == 0:
                yield from self._join(line, unique)
            if self.why:
                return self.why
            self.device.wait(self.stream, event)
            assert self._group is not None
            put = self._group.send if self.sends else self._group.recv
            put = partial(put, place.address, place.nbytes, int(not self.sends), self.stream)
            if number == 0:  # the two connect, and the host waits for that
                yield from in_thread(put)
            else:
                put()
            # So that no stream of the user's waits for what nobody has enqueued yet:
            yield self._exchange(line, bytearray(1), b"k")
            return ""
        finally:
            self._turn += 1

    def _exchange(self, line: Line, theirs: bytearray, mine: bytes | bytearray) -> list[MPI.Request]:
        """Requests by which both ends tell each other something."""
        told, heard = [mine, MPI.BYTE], [theirs, MPI.BYTE]
        if self.sends:
            return [line.take_answer(heard), line.give(told)]
        return [line.take(heard), line.give_answer(told)]

    def _join(self, line: Line, unique: bytes) -> Stages:
        """Make the group, the receiver as its first rank; or find out, at both ends, why there is none."""
        self.stream = station(self.device).take_stream()
        version = fact(self.device)
        yield from self._agree(line, version if isinstance(version, str) else "")
        if self.why:
            return
        library = self.device.nccl()
        joining = Thread(lambda: library.group(unique, 2, int(self.sends)), LIMIT_S)
        yield [joining]
        self._group = joining.result
        yield from self._agree(line, joining.why)

    def _agree(self, line: Line, why: str) -> Stages:
        other = bytearray(_WHY)
        yield self._exchange(line, other, bytearray(why.encode()[:_WHY].ljust(_WHY)))
        theirs = other.decode(errors="replace").strip()
        self.why = why or (f"the other rank: {theirs}" if theirs else "")

    def leave(self) -> Stages:
        """Give the group back; returns when the other end does, too."""
        if self._group is not None:
            there = station(self.device)
            yield [Reached(self.device, event := there.record_event(self.stream))]
            there.return_event(event)
            yield from in_thread(self._group.close)
            there.return_stream(self.stream)
