"""Meeting: what the ranks of a new communicator tell each other, and what of a node's memory they share then.

    ranks of a node    each tells the others its settings; the first one, where it has reserved memory
    all ranks          the least of the settings, where they are on several nodes or in two groups

Nobody is told of ranks of other nodes, so that costs and memory follow the ranks of a node, not all.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, NoReturn, TypeAlias

from ..._lazy import MPI, once
from ...agree.agreement import LEVELS, depth
from ...agree.arrivals import Arrivals
from ...core.comm import Comm
from ...core.signature import head
from ...device import driver
from ...errors import MismatchError, where
from ...node import native, segment
from ...node.call_log import CallLog
from ...node.native import native_core as core
from ...node.segment import NodeSegment, Region
from ..payloads.pickling import mark_of
from .carriers import Spare

_FEW = 4096  # bytes that go by the core
_MARK = 4  # bytes of a communicator's mark
_SAID = struct.Struct(f"q{_MARK}s12s")  # of a rank: a place in the core's memory, mark, settings as in meet
Watched: TypeAlias = "tuple[CallLog, list[tuple[int, Region, CallLog]]] | None"


class Near:
    """The ranks of a communicator on this node, and what they share of its memory.

    Attributes:
        ranks: all of them, this one too, in their order; places: of each, where its record is in the node's.
        regions: the records of the others; others: the same of the other one of two groups.
        node: what the core has of their calls, if there was room for that.
        noting: those that note calls, if this one does.
    """

    others: Mapping[int, Region] = MappingProxyType({})
    node: core.Node | None = None
    noting: Collection[int] = ()

    def __init__(
        self,
        ranks: Sequence[int],
        regions: Mapping[int, Region] = MappingProxyType({}),
        places: Sequence[int] = (),
    ) -> None:
        self.ranks, self.regions, self.places = ranks, regions, places

    @once
    def watched(self) -> Watched:
        """This rank's call log, and of the others in noting, the next one first: rank, record, log; None:
        there is nobody to compare with."""
        there, node = segment.current, self.node
        if len(self.noting) < 2 or node is None or there is None:
            return None
        try:
            logs = [CallLog(node, i, there.shared) for i in range(node.size)]
        except ValueError:  # another thread has closed it meanwhile
            return None
        here = node.rank
        order = [*range(here + 1, node.size), *range(here)]
        peers = [(self.ranks[i], logs[i]) for i in order]
        return logs[here], [(rank, self.regions[rank], log) for rank, log in peers if rank in self.noting]

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
        mark: a number by chance, the same on all ranks.
    """

    near: Near
    node: core.Node | None
    compared: str
    both: MPI.Intracomm | None
    devices: bool
    mark: int


def meet(comm: Comm, level: str, parent: Comm | None, kin: Comm | Spare | None) -> Met:
    """Let the ranks of comm know each other; all compare in full, or none, and pickle alike.

    Where there is room, ranks of a node get a place in the core's memory, for their call logs. Its
    collectives are for them, too, where they are all ranks and none compares in full. Collective.

    Args:
        level: of agreement, on this rank.
        parent: what comm is made of, where all ranks of that meet in its core.Node, and not in MPI.
        kin: who had the same ranks there: parent, or a closed one.

    Raises:
        MismatchError: some ranks would wait in each call for others that do not compare, or
            pickle otherwise.
    """
    alike, deep = mark_of(comm.settings.pickler), depth(level)
    nowhere = not driver.possible() if parent is None else parent.devices is None
    heard = bytes([nowhere, level != "off", deep, 255 - deep]) + alike
    mark = time.monotonic_ns().to_bytes(8, "little")[:_MARK]  # that of rank 0 is for all
    near, there, node = comm.near, segment.current, None
    if there is not None and comm.is_inter:
        near.others = _found(comm, there).regions
    elif there is not None and comm.size > 1:
        near = _found(comm, there) if kin is None else Near(kin.near.ranks, kin.near.regions, kin.near.places)
        heard, mark = _meet_on_node(comm, near, there, parent, heard, mark)
        node = None if len(near.ranks) < comm.size or deep else near.node
    elif parent is not None:  # whose other ranks meet
        parent.node.tell(head("dup"), bytes(_SAID.size))
    if comm.is_inter or len(near.ranks) < comm.size:
        heard = _least_by_mpi(comm, heard + (b"\xff" * _MARK if comm.rank else mark))
        heard, mark = heard[:-_MARK], heard[-_MARK:]
    compared, both = _compared(comm, level, near, heard)
    if heard[4:] != alike:
        its = getattr(comm.settings.pickler, "__name__", "pickle")
        what = f"objects are pickled by {its} on rank {comm.rank}, and by another module elsewhere"
        _part(comm, near, what, "the same HPCOMM_PICKLER and pickler= for all ranks")
    return Met(near, node, compared, both, not heard[0], int.from_bytes(mark, "little"))


def _compared(comm: Comm, level: str, near: Near, heard: bytes) -> tuple[str, MPI.Intracomm | None]:
    """Met's compared and both, of what all ranks say."""
    compares, low, high = heard[1], heard[2], 255 - heard[3]
    if comm.is_inter:  # programs may have been started with different levels
        compared = "full" if low else "light" if compares else "off"
        return compared, comm.carriers.plain.Merge() if compares else None
    if low != high:
        there = "another one" if depth(level) else LEVELS[high + 1]
        hint = "the same HPCOMM_CHECK and check= for all ranks; does the launcher pass the variable on?"
        _part(comm, near, f"check={level!r} on rank {comm.rank}, and {there} elsewhere", hint)
    return "off" if comm.size == 1 else "full" if low else level, None


def _meet_on_node(
    comm: Comm, near: Near, there: NodeSegment, parent: Comm | None, own: bytes, mark: bytes
) -> tuple[bytes, bytes]:
    """Tell the others of this node own settings, and hear the least of theirs, and the first one's mark."""
    here, checks = near.ranks.index(comm.rank), bool(own[1])
    place = there.reserved(near.places) if here == 0 and len(near.ranks) > 1 else None
    entry = _SAID.pack(place or 0, mark, own)
    if parent is None:
        told = segment.exchanged(comm.carriers.plain, near.ranks, entry)
    else:
        told = parent.node.tell(head("dup"), entry)
        if near.places != parent.near.places:
            at = dict(zip(parent.near.places, told, strict=True))
            told = [at[each] for each in near.places]
    said = [*map(_SAID.unpack, told)]
    place, mark, _ = said[0]
    if place:  # for call logs, and for collectives where they are for all
        near.node = native.node(there, place, here, Arrivals(comm), checks)
    if checks:
        near.noting = {rank for rank, its in zip(near.ranks, said, strict=True) if its[2][1]}
    return bytes(map(min, own, *(its[2] for its in said))), mark


def _found(comm: Comm, there: NodeSegment) -> Near:
    """Which ranks are on this node."""
    records = dict(there.near(comm.carriers.plain))
    own = None if comm.is_inter else comm.rank
    regions = {rank: there.regions[its] for rank, its in records.items() if rank != own}
    return Near([*records], regions, [*records.values()])


def _part(comm: Comm, near: Near, what: str, hint: str) -> NoReturn:
    """Give up a communicator about which the ranks disagree."""
    near.leave()
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
        comm.carriers.plain.Allreduce([known[-1], MPI.UINT8_T], [heard, MPI.UINT8_T], MPI.MIN)
        known.append(bytes(heard))
    return bytes(map(min, *known))
