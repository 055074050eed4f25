"""Meeting: what the ranks of a new communicator tell each other, and what of a node's memory they share then.

    ranks of a node    each tells the others its settings; the first one, where it has reserved memory
    all ranks          the least of the settings, where they are on several nodes or in two groups

Nobody is told of ranks of other nodes, so that costs and memory follow the ranks of a node, not all.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from ..._lazy import MPI
from ...agree.arrivals import Arrivals
from ...agree.levels import LEVELS, depth
from ...core.comm import Comm
from ...core.signature import head
from ...device import driver
from ...errors import MismatchError, where
from ...node import native, segment
from ...node.call_log import CallLog
from ...node.native import native_core as core
from ...node.segment import NodeSegment, Region
from ..payloads.pickling import mark_of
from .dropped import NOTHING

_FEW = 4096  # bytes that go by the core
_MARK = 4  # bytes of a communicator's mark
# Of a rank: a place in the core's memory, whether it notes calls, whose carriers its parent has spare, mark,
# and settings as meet has them
_SAID = struct.Struct(f"q?q{_MARK}s12s")


class Near:
    """The ranks of a communicator on this node, and what they share of its memory.

    Attributes:
        ranks: all of them, this one too, in their order.
        regions: the records of the others; others: the same of the other one of two groups.
        node: what the core has of their calls, if there was room for that.
        watched: this rank's call log, and of the others that note calls, the next one first: rank, record,
            log; None: there is nobody to compare with.
    """

    regions: Mapping[int, Region] = MappingProxyType({})
    others: Mapping[int, Region] = MappingProxyType({})
    node: core.Node | None = None
    watched: tuple[CallLog, list[tuple[int, Region, CallLog]]] | None = None

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def leave(self) -> None:
        """Leave node, whose memory may serve others when all ranks have left.

        While a thread is in a call, the node is left when that has dropped it.
        """
        if self.node is not None:
            with suppress(RuntimeError):  # which it raises for that alone
                self.node.close()


class Met(NamedTuple):
    """What the ranks of a communicator have found out.

    Attributes:
        near: those of this node; node: the native core's collectives, if these are all ranks.
        compared: the level of agreement that all can do; both: the two groups, where they compare.
        devices: whether some rank may have arrays there.
        spare: whether parent's spare carriers may be used.
        mark: a number by chance, the same on all ranks.
    """

    near: Near
    node: core.Node | None
    compared: str
    both: MPI.Intracomm | None
    devices: bool
    spare: bool
    mark: int


def meet(comm: Comm, level: str, parent: Comm | None) -> Met:
    """Let the ranks of comm know each other; all compare in full, or none, and pickle alike.

    Where there is room, ranks of a node get a place in the core's memory, for their call logs. Its
    collectives are for them, too, where they are all ranks and none compares in full. Collective.

    Args:
        level: of agreement, on this rank.
        parent: what comm is a duplicate of: the ranks meet in its core.Node, before comm has anything of
            MPI's.

    Raises:
        MismatchError: some ranks would wait in each call for others that do not compare, or
            pickle otherwise.
    """
    alike = mark_of(comm.settings.pickler)
    nowhere = not driver.possible() if parent is None else parent.devices is None
    own = bytes([nowhere, level != "off", depth(level), 255 - depth(level)]) + alike
    mark = time.monotonic_ns().to_bytes(8, "little")[:_MARK]  # that of rank 0 is for all
    here, there = _Here(Near([comm.rank]), None, own, mark, False), segment.current
    if there is not None and comm.is_inter:
        here.near.others = _found(comm, there, None).regions
    elif there is not None and comm.size > 1:
        here = _meet_on_node(comm, there, level, here, parent)
    heard, mark = here.heard, here.mark
    if comm.is_inter or len(here.near.ranks) < comm.size:
        heard = _least_by_mpi(comm, heard + (b"\xff" * _MARK if comm.rank else mark))
        heard, mark = heard[:-_MARK], heard[-_MARK:]
    compared, both = _compared(comm, level, here, heard)
    if heard[4:] != alike:
        its = getattr(comm.settings.pickler, "__name__", "pickle")
        what = f"objects are pickled by {its} on rank {comm.rank}, and by another module elsewhere"
        _part(comm, here, what, "the same HPCOMM_PICKLER and pickler= for all ranks")
    return Met(here.near, here.node, compared, both, not heard[0], here.spare, int.from_bytes(mark, "little"))


class _Here(NamedTuple):
    """What ranks of this node have found out: near, node and spare as Met has them, the least of what they
    say, and the first one's mark."""

    near: Near
    node: core.Node | None
    heard: bytes
    mark: bytes
    spare: bool


def _compared(comm: Comm, level: str, here: _Here, heard: bytes) -> tuple[str, MPI.Intracomm | None]:
    """Met's compared and both, of what all ranks say."""
    compares, low, high = heard[1], heard[2], 255 - heard[3]
    if comm.is_inter:  # programs may have been started with different levels
        compared = "full" if low else "light" if compares else "off"
        return compared, comm.carriers.plain.Merge() if compares else None
    if low != high:
        there = "another one" if depth(level) else LEVELS[high + 1]
        hint = "the same HPCOMM_CHECK and check= for all ranks; does the launcher pass the variable on?"
        _part(comm, here, f"check={level!r} on rank {comm.rank}, and {there} elsewhere", hint)
    return "off" if comm.size == 1 else "full" if depth(level) else level, None


def _meet_on_node(comm: Comm, there: NodeSegment, level: str, own: _Here, parent: Comm | None) -> _Here:
    """Tell the others of this node of own, and hear them."""
    near = _found(comm, there, parent)
    place = None
    if comm.rank == near.ranks[0] and len(near.ranks) > 1:
        place = there.reserved([near.regions.get(rank, there.mine) for rank in near.ranks])
    number = NOTHING if parent is None else parent.life.children.usable()
    entry = _SAID.pack(place or 0, level != "off", number, own.mark, own.heard)
    said = {rank: _SAID.unpack(each) for rank, each in _heard_near(comm, near, parent, entry).items()}
    place, _, _, mark, _ = said[near.ranks[0]]
    node = None
    if place:
        noting = [rank for rank, its in said.items() if its[1] and rank != comm.rank]
        node = _take_place(comm, near, there, place, level, noting)
    _, _, numbers, _, settings = map(set, zip(*said.values(), strict=True))
    is_same = number != NOTHING and numbers == {number}
    return _Here(near, node, bytes(map(min, own.heard, *settings)), mark, is_same)


def _found(comm: Comm, there: NodeSegment, parent: Comm | None) -> Near:
    """Which ranks are on this node: those of parent, where comm is a duplicate."""
    if parent is not None:
        near = Near(parent.near.ranks)
        near.regions = parent.near.regions
        return near
    records = dict(there.near(comm.mpi_handle))
    near = Near([*records])
    near.regions = {
        rank: there.regions[its] for rank, its in records.items() if comm.is_inter or rank != comm.rank
    }
    return near


def _heard_near(comm: Comm, near: Near, parent: Comm | None, entry: bytes) -> dict[int, bytes]:
    """What all ranks of this node say, this one's entry first, then the next one's."""
    if parent is None or parent.node is None:
        return segment.exchanged(comm.mpi_handle, near.ranks, entry)
    told = parent.node.tell(head("dup"), entry)
    return {rank: told[rank] for rank in (*near.ranks[comm.rank :], *near.ranks[: comm.rank])}


def _take_place(
    comm: Comm, near: Near, there: NodeSegment, place: int, level: str, noting: list[int]
) -> core.Node | None:
    """Have call logs in the core's memory, and its collectives where they are for all."""
    here = near.ranks.index(comm.rank)
    node = native.node(there, place, here, Arrivals(comm), level != "off")
    near.node = node
    if noting and level != "off" and comm.size > 1:
        logs = {rank: CallLog(node, i, there.shared) for i, rank in enumerate(near.ranks)}
        near.watched = logs[comm.rank], [(rank, near.regions[rank], logs[rank]) for rank in noting]
    return None if len(near.ranks) < comm.size or depth(level) else node


def _part(comm: Comm, here: _Here, what: str, hint: str) -> NoReturn:
    """Give up a communicator about which the ranks disagree."""
    here.near.leave()
    if "carriers" in vars(comm):
        comm.carriers.Free()
    raise MismatchError(what, where("communicator", comm), hint)


def least(comm: Comm, here: bytes) -> bytes:
    """The least value of each byte on any rank, of either group."""
    if comm.node is not None and len(here) <= _FEW:
        return bytes(map(min, *comm.node.tell(head("dup"), here)))
    return _least_by_mpi(comm, here)


def _least_by_mpi(comm: Comm, here: bytes) -> bytes:
    known = [here]
    for _ in range(1 + comm.is_inter):  # between groups: what is so there, then what they heard of here
        heard = bytearray(len(here))
        comm.mpi_handle.Allreduce([known[-1], MPI.UINT8_T], [heard, MPI.UINT8_T], MPI.MIN)
        known.append(bytes(heard))
    return bytes(map(min, *known))
