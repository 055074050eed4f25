"""Meeting: what the ranks of a new communicator tell each other, and what of a node's memory they share then.

    ranks of a node    each tells the others its settings; the first one, where it has reserved memory
    all ranks          the least of the settings, where they are on several nodes or in two groups

Nobody is told of ranks of other nodes, so that costs and memory follow the ranks of a node, not all.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .._lazy import MPI
from ..agree import arrivals
from ..core.signature import head
from ..device import driver
from ..errors import MismatchError, where
from ..node import native, segment
from ..node.call_log import CallLogs
from .dropped import NOTHING
from .pickling import mark_of

if TYPE_CHECKING:
    from ..node.segment import NodeSegment
    from .communicator import Communicator

_FEW = 4096  # bytes that go by the core
_MARK = 4  # bytes of a communicator's mark
# Of a rank: a place in the core's memory, whether it notes calls, whose carriers its parent has spare, mark,
# and settings as exchange_settings has them
_SAID = struct.Struct(f"q?q{_MARK}s12s")


class Met(NamedTuple):
    """What is so of all ranks. devices: some may have arrays there. spare: parent's carriers may be used."""

    devices: bool
    spare: bool


def exchange_settings(comm: Communicator, level: str, parent: Communicator | None) -> Met:
    """Let the ranks of comm know each other; all compare in full, or none, and pickle alike.

    Where there is room, ranks of a node get a place in the core's memory, for their call logs. Its
    collectives are for them, too, where they are all ranks and none compares in full. Collective.

    Args:
        parent: what comm is a duplicate of: the ranks meet in its core.Node, before comm has anything of
            MPI's.

    Raises:
        MismatchError: some ranks would wait in each call for others that do not compare, or
            pickle otherwise.
    """
    is_full, alike = level == "full", mark_of(comm.pickler)
    nowhere = not driver.possible() if parent is None else parent.devices is None
    heard, is_same = bytes([nowhere, not is_full, is_full, level != "off"]) + alike, False
    mark = time.monotonic_ns().to_bytes(8, "little")[:_MARK]  # that of rank 0 is for all
    if not comm.is_inter and comm.size > 1 and segment.current is not None:
        heard, mark, is_same = _meet_on_node(comm, segment.current, level, heard, mark, parent)
    if comm.is_inter or len(comm.near_ranks) < comm.size:
        heard = comm.bytewise_min(heard + (b"\xff" * _MARK if comm.rank else mark))
        heard, mark = heard[:-_MARK], heard[-_MARK:]
    comm.tag_base = int.from_bytes(mark, "little")
    nowhere, nobody, everybody, compares = map(bool, heard[:4])
    if comm.is_inter:  # programs may have been started with different levels
        _compare_between(comm, compares, everybody)
    elif not (nobody or everybody):
        there = "another one" if is_full else "full"
        hint = "the same HPCOMM_CHECK and check= for all ranks; does the launcher pass the variable on?"
        _part(comm, f"check={level!r} on rank {comm.rank}, and {there} elsewhere", hint)
    if heard[4:] != alike:
        its = getattr(comm.pickler, "__name__", "pickle")
        what = f"objects are pickled by {its} on rank {comm.rank}, and by another module elsewhere"
        _part(comm, what, "the same HPCOMM_PICKLER and pickler= for all ranks")
    return Met(not nowhere, is_same)


def _compare_between(comm: Communicator, compares: bool, in_full: bool) -> None:
    comm.compared = "full" if in_full else "light" if compares else "off"
    if compares:
        comm.both = comm.carriers.plain.Merge()  # type: ignore[attr-defined]


def _meet_on_node(
    comm: Communicator, near: NodeSegment, level: str, own: bytes, mark: bytes, parent: Communicator | None
) -> tuple[bytes, bytes, bool]:
    """Tell the others of this node of own, and hear the least of it, the first one's mark, and whether all
    may use the parent's spare carriers."""
    if parent is None:
        _find_near(comm, near)
    else:
        comm.near_ranks, comm.node_regions = parent.near_ranks, parent.node_regions
    ranks = comm.near_ranks
    place = None
    if comm.rank == ranks[0] and len(ranks) > 1:
        regions, mine = comm.node_regions, near.mine
        place = near.reserved([regions.get(rank, mine) for rank in ranks])
    number = NOTHING if parent is None else parent.children.usable()
    heard = _heard_near(comm, parent, _SAID.pack(place or 0, level != "off", number, mark, own))
    said = {rank: _SAID.unpack(each) for rank, each in heard.items()}
    place, _, _, mark, _ = said[ranks[0]]
    if place:
        noting = [rank for rank, its in said.items() if its[1] and rank != comm.rank]
        _take_place(comm, near, place, level, noting)
    _, _, numbers, _, settings = map(set, zip(*said.values(), strict=True))
    return bytes(map(min, own, *settings)), mark, number != NOTHING and numbers == {number}


def _find_near(comm: Communicator, near: NodeSegment) -> None:
    """Which ranks are on this node."""
    records = dict(near.near(comm.mpi_handle))
    comm.near_ranks = [*records]
    comm.node_regions = {rank: near.regions[its] for rank, its in records.items() if rank != comm.rank}


def _heard_near(comm: Communicator, parent: Communicator | None, entry: bytes) -> dict[int, bytes]:
    """What all ranks of this node say, this one's entry first, then the next one's."""
    if parent is None or parent.node is None:
        return segment.exchanged(comm.mpi_handle, comm.near_ranks, entry)
    told = parent.node.tell(head("dup"), entry)
    return {rank: told[rank] for rank in (*comm.near_ranks[comm.rank :], *comm.near_ranks[: comm.rank])}


def _take_place(comm: Communicator, near: NodeSegment, place: int, level: str, noting: list[int]) -> None:
    """Have call logs in the core's memory, and its collectives where they are for all."""
    here = comm.near_ranks.index(comm.rank)
    node = native.node(near, place, here, arrivals.hook(comm), level != "off")
    comm.call_logs = CallLogs(node, near.shared)
    comm.noting = noting
    if len(comm.near_ranks) == comm.size and level != "full":
        comm.node = node


def _part(comm: Communicator, what: str, hint: str) -> NoReturn:
    """Give up a communicator about which the ranks disagree."""
    comm.node = None
    if comm.call_logs is not None:
        comm.call_logs.close()
    if "carriers" in vars(comm):
        comm.carriers.Free()
    raise MismatchError(what, where("communicator", comm), hint)


def least(comm: Communicator, here: bytes) -> bytes:
    """The least value of each byte on any rank, of either group."""
    if comm.node is not None and len(here) <= _FEW:
        return bytes(map(min, *comm.node.tell(head("dup"), here)))
    known = [here]
    for _ in range(1 + comm.is_inter):  # between groups: what is so there, then what they heard of here
        heard = bytearray(len(here))
        comm.mpi_handle.Allreduce([known[-1], MPI.UINT8_T], [heard, MPI.UINT8_T], MPI.MIN)
        known.append(bytes(heard))
    return bytes(map(min, *known))
