"""Makes a process group when torch asks for one: MPI up, its ranks found, and a Communicator for them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..communicator import Communicator
from ..errors import ConfigError, HpcommError
from . import rendezvous
from .errors import is_unknown, moved
from .far import Far
from .group import ProcessGroupMPI
from .names import c10d, dist, label

__all__ = ["create", "make"]

_making: list[dict[str, Any]] = []  # what the group that torch is just making is to be; innermost last


def make(before: Callable[..., Any], names: dict[str, Any], options: dict[str, Any]) -> Any:
    """Let torch make a group by its own function `before`, with MPI up and its questions answered."""
    comm = rendezvous.world()
    ranks = names["ranks"]
    size, rank, store = names["group_size"], names["group_rank"], names["store"]
    if not ranks and size == -1:  # init_process_group("mpi"): torch leaves all three to MPI
        size, rank = comm.size, comm.rank
        store = dist.PrefixStore("default_pg", rendezvous.store(comm))
    elif not ranks and (size, rank) != (comm.size, comm.rank):
        raise ConfigError(
            f"torch was told rank {rank} of {size}, MPI says rank {comm.rank} of {comm.size}",
            "init_process_group",
            "leave rank and world_size away, or give MPI's",
        )
    told = {**names, **options, "group_size": size, "group_rank": rank, "store": store}
    _making.append(told)
    try:
        made = before(
            size, rank, ranks, names["backend"], store, names["group_name"],
            **{**options, "backend_options": None},
        )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError) as error:
        if isinstance(error, HpcommError) or not is_unknown():
            raise
        raise moved(f"says {error}") from error
    finally:
        _making.pop()
    return made


def create() -> ProcessGroupMPI:
    """The group that torch is just making; called by its members."""
    told = _making[-1]
    world = rendezvous.world()
    ranks = [int(r) for r in told["ranks"]]
    name = label(str(told["group_name"]))
    with _watched(ranks, name):
        return ProcessGroupMPI(_communicator(world, ranks, name), told)


@contextmanager
def _watched(ranks: list[int], name: str) -> Iterator[None]:
    """While a group of these ranks of the default group is made: see watch."""
    group = c10d.GroupMember.WORLD
    carrier = Far(group.comm, group.gate) if isinstance(group, ProcessGroupMPI) else None
    if carrier is not None:
        carrier.call, carrier.needs = (0, group.seconds, lambda: f"making group '{name}'"), ranks
        carrier.inside = time.monotonic()
    try:
        yield
    finally:
        if carrier is not None:
            carrier.done()


def _communicator(world: Communicator, ranks: list[int], name: str) -> Communicator:
    if ranks:
        # not by its name: torch counts each rank's own groups in the names of those that members make
        return world.group(_as_mpi(ranks, world), name=name, tag=zlib.crc32(repr(ranks).encode()) & 0x7FFF)
    return world.group(range(world.size), name=name)


def _as_mpi(ranks: list[int], world: Communicator) -> list[int]:
    """torch's global ranks as ranks of the job: the same numbers, because make() and env:// see to that."""
    wrong = [rank for rank in ranks if not 0 <= rank < world.size]
    if wrong or c10d._get_default_group().rank() != world.rank:
        raise ConfigError(
            f"torch's rank {c10d._get_default_group().rank()} is rank {world.rank} of the MPI job",
            "new_group",
            "give torch the ranks that MPI has: init_process_group(rank=..., world_size=...)",
        )
    return ranks
