"""Ranks of a process group: a Communicator's; or those of one node, that find each other by torch's store.

These need no MPI. All that they tell each other before they share memory goes by the store, which torchrun's
agent serves, or whoever the user has named:

    who is on this node, and has the core    all of them on one node: they open its memory (node/segment.py)
    a group's place there                    told by its lowest rank among its members
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

from torch._C._distributed_c10d import Store

from ..agree import runtime
from ..errors import ConfigError, WaitTimeoutError, has_ended, named
from ..job.host import host_mark
from ..node import native, segment
from ..node.native import native_core as core
from ..node.segment import NodeSegment, Tell
from ..watch import start_up
from .store_reports import come
from .torch_errors import as_torch

_LOOK_S = 0.2  # between two looks who is missing


class Ranks(Protocol):
    """What a process group needs of its ranks."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def context(self) -> Any:
        """What the layers below the groups know, as of core.comm.Comm."""
        ...

    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...


class NodeWorld:
    """All ranks of a job that is on one node and does without MPI.

    mark: for keys that no other job has, nor an earlier attempt at this one, in a store that outlives both.
    """

    is_closed = False

    def __init__(self, near: NodeSegment) -> None:
        self.near, self.rank, self.size = near, near.here, len(near.regions)
        self.mark = f"hpcomm/{near.node:x}"
        self._made: Counter[tuple[int, ...]] = Counter()  # groups, by their ranks

    def group(self, ranks: Sequence[int], name: str, store: Store, seconds: float) -> NodeRanks:
        """Some ranks of these. Collective over them."""
        members, here = tuple(ranks), ranks.index(self.rank)
        self._made[members] += 1
        prefix = f"{self.mark}/{'-'.join(map(str, members))}/{self._made[members]}"
        tell = telling(store, here, [*ranks], prefix, seconds, self._look)
        place = self.near.reserved(ranks) or 0 if here == 0 and len(ranks) > 1 else 0
        said = tell(place.to_bytes(8, "little") + os.urandom(4))[0]
        place, mark = int.from_bytes(said[:8], "little"), int.from_bytes(said[8:], "little")
        if len(ranks) > 1 and not place:
            no_room()
        return NodeRanks(self.near, members, place, name, mark)

    def all_reduce(self, x: int, op: str) -> int:
        """As a Communicator has it, for numbers that only a mistake makes differ: nobody asks the others."""
        return x

    def _look(self, ranks: Sequence[int]) -> None:
        """Raise if one of the ranks that are waited for has ended."""
        if gone := [rank for rank in ranks if self.near.regions[rank].gone]:
            raise as_torch(has_ended("making a group", "new_group", gone))


def no_room(*_: object, **__: object) -> NoReturn:
    raise ConfigError(native.NO_ROOM.why, hint=native.NO_ROOM.hint)


class NodeRanks:
    """The ranks of a group of a NodeWorld; to the layers below also its context, as of core.comm.Comm."""

    is_inter, remote_size, partners, patience_s, devices, disagreed = False, 0, None, None, None, ""
    settings = SimpleNamespace(check="off")

    def __init__(self, here: NodeSegment, members: Sequence[int], place: int, name: str, mark: int) -> None:
        self.rank, self.size, self.name, self.tag_base = members.index(here.here), len(members), name, mark
        regions = {rank: here.regions[each] for rank, each in enumerate(members) if rank != self.rank}
        self.near = SimpleNamespace(ranks=[*range(self.size)], regions=regions, watched=None)
        self.is_closed = False
        self.node: core.Node | None = None
        if self.size > 1:
            self.node = native.node(here, place, self.rank, lambda *_: None, True)
        self.context = self
        runtime.note(self)  # type: ignore[arg-type]  # it has what is asked there

    def close(self) -> None:
        """Give the place back, as the group that has closed its node does."""
        self.is_closed, self.node = True, None

    forget_mpi = close

    # What a Communicator lets MPI do where the core has no room
    all_reduce = reduce = reduce_scatter = broadcast = all_gather = gather = scatter = all_to_all = no_room


def on_one_node(store: Store, rank: int, size: int, seconds: float) -> NodeWorld | str:
    """The ranks that this store brings together, if they share a node's memory; else why not. Collective.

    Raises:
        WaitTimeoutError: not all ranks have come.
    """
    attempt = "/".join(os.environ.get(f"TORCHELASTIC_{word}", "") for word in ("RUN_ID", "RESTART_COUNT"))
    tell = telling(store, rank, range(size), f"hpcomm/node/{attempt}", seconds)
    lack = native.missing()
    words = [lack.why if lack is not None else "", f"{os.uname().nodename} {host_mark('/dev/shm')}"]
    lacks, nodes = zip(*(said.decode().split("\n") for said in tell("\n".join(words).encode())), strict=True)
    if (n := len({*nodes})) > 1:
        return f"they are on {n} nodes"
    if any(lacks):
        return f"they have no node core: {next(filter(None, lacks))}"
    if size > native.MOST_RANKS:
        return f"one node has a core for {native.MOST_RANKS} ranks"
    near = segment.shared_by(tell, rank, size)
    if near is None:
        return f"they have no node core: {native.refused.why}"
    start_up.start_on_node(near)
    return NodeWorld(near)


def telling(
    store: Any, here: int, ranks: Sequence[int], prefix: str, seconds: float,
    look: Callable[[Sequence[int]], None] = lambda missing: None,
) -> Tell:  # fmt: skip
    """Tell all ranks, of which this one is number `here`, by a store.

    Args:
        prefix: of keys that nobody has used before.
        seconds: for all of it.
        look: called with those that have not come.
    """
    begin, calls = time.monotonic(), 0

    def tell(said: bytes) -> list[bytes]:
        nonlocal calls
        calls += 1
        keys = [f"{prefix}/{calls}/{rank}" for rank in ranks]
        store.set(keys[here], said.hex())
        while not come(store, keys, _LOOK_S):
            missing = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
            look(missing)
            if missing and time.monotonic() - begin > seconds:
                raise as_torch(_late(missing, seconds))
        return [bytes.fromhex(store.get(key).decode()) for key in keys]

    return tell


def _late(missing: list[int], seconds: float) -> WaitTimeoutError:
    return WaitTimeoutError(
        f"{named(missing)} did not come in {seconds:g} s",
        "making a process group",
        "look at what that rank does; init_process_group(timeout=...) sets the time",
    )
