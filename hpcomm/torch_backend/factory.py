"""Factory of process groups: ranks find each other, with MPI or without, and a group is made for them."""

from __future__ import annotations

import inspect
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch._C._distributed_c10d import Store

from ..agree.deadline import Stay
from ..communicator.communicator import Communicator
from ..communicator.making.groups import short_list
from ..core.present import calling
from ..errors import ConfigError, HpcommError, warn
from . import rendezvous
from .names import backends, c10d, dist, label
from .process_group import ProcessGroupMPI
from .ranks import NodeWorld, Ranks
from .torch_errors import is_unknown, moved

_making: list[dict[str, Any]] = []  # what the group that torch is just making is to be; innermost last


def make(before: Callable[..., object], call: inspect.BoundArguments, asked: dict[str, object]) -> Any:
    """Let torch make a group by its own function `before`, with MPI up and its questions answered.

    Args:
        call: of before; told of in words of torch 2.6.
        asked: the arguments of init_process_group, if that makes the group.
    """
    given = call.arguments
    ranks, size, rank = given["global_ranks_in_group"], given["group_size"], given["group_rank"]
    if ranks:
        _bring_up()
    else:
        meeting = given["store"] if size != -1 else None
        comm, meeting = _everybody(size, rank, meeting, asked)
        if size == -1:  # init_process_group("mpi"): torch leaves all three to MPI
            given["store"] = dist.PrefixStore("default_pg", meeting)
        given["group_size"], given["group_rank"] = comm.size, comm.rank
    _making.append({**given, "ranks": ranks})
    options = asked.get("pg_options", given.get("backend_options"))  # of "mpi" torch drops them
    if options is not None and set(backends(given["backend"]).values()) == {"mpi"}:
        warn("pg_options= has no effect: backend 'mpi' has no options", UserWarning)
    given["backend_options"] = None
    try:
        with calling(None, "new_group", str(ranks)) if ranks else calling(None, "init_process_group"):
            return before(*call.args, **call.kwargs)
    except (AttributeError, TypeError, RuntimeError) as error:
        if isinstance(error, HpcommError) or not is_unknown():
            raise
        raise moved(f"says {error}") from error
    finally:
        _making.pop()


def _everybody(
    size: int, rank: int, store: Store | None, asked: dict[str, Any]
) -> tuple[Communicator | NodeWorld, Store]:
    """All ranks, held against what torch was told of them; and a store of theirs."""
    if store is not None:
        return rendezvous.world(rendezvous.given_numbers(rank, size), lambda: store), store
    url, given = asked.get("init_method"), asked.get("store")
    said = rendezvous.given_numbers(asked.get("rank", -1), asked.get("world_size", -1), url)
    rendezvous.refuse_unsaid(said, url)

    timeout = asked.get("timeout") or c10d.default_pg_timeout

    @cache
    def meeting() -> Store:
        if given is not None:
            return given
        numbers = () if "?" in (url or "") else (said.rank, said.size)
        return next(dist.rendezvous(url or "env://", *numbers, timeout=timeout))[0]

    comm = rendezvous.world(said, meeting, timeout.total_seconds())
    return comm, rendezvous.store_of(comm, meeting)


def _bring_up() -> None:
    """Find all ranks, where a job has begun with another backend. Later groups are made by their members."""
    if rendezvous.is_up():
        return
    group = c10d._get_default_group()
    said = rendezvous.Told(group.rank(), group.size(), "the default group")
    rendezvous.world(*(() if rendezvous.is_launched() else (said, lambda: c10d._world.pg_map[group][1])))


def create() -> ProcessGroupMPI:
    """The group that torch is just making; called by its members."""
    told = _making[-1]
    world = rendezvous.world()
    ranks = [int(r) for r in told["ranks"]]
    name = label(str(told["group_name"]))
    # torch gives a group without a timeout its default: then that of the default group holds here
    own = told.get("timeout")
    seconds = None if own in (None, c10d.default_pg_timeout) else own.total_seconds()
    kind: type[ProcessGroupMPI] = ProcessGroupMPI
    if not {*backends(told["backend"]).values()} <= {*rendezvous.OURS}:
        from .other_devices import MixedGroup

        kind = MixedGroup
    with _watched(ranks, name, seconds):
        return kind(_ranks(world, ranks, name, told), told)


@contextmanager
def _watched(ranks: list[int], name: str, seconds: float | None) -> Iterator[None]:
    """While a group of these ranks of the default group is made: see Stay. seconds: the group's own."""
    group = c10d.GroupMember.WORLD
    if not isinstance(group, ProcessGroupMPI):
        yield
        return
    stay = Stay(group.comm.context, group.where, ranks)
    stay.words = lambda: f"making group '{name}' of {short_list(ranks)}"
    stay.seconds, stay.since = seconds or group.seconds, time.monotonic()
    try:
        yield
    finally:
        stay.since = None


def _ranks(world: Communicator | NodeWorld, ranks: list[int], name: str, told: dict[str, Any]) -> Ranks:
    if isinstance(world, NodeWorld):
        seconds = (told.get("timeout") or c10d.default_pg_timeout).total_seconds()
        return world.group(_checked(ranks, world) or range(world.size), name, told["store"], seconds)
    if ranks:
        # not by its name: torch counts each rank's own groups in the names of those that members make
        return world.group(_checked(ranks, world), name=name, tag=zlib.crc32(repr(ranks).encode()) & 0x7FFF)
    return world.group(range(world.size), name=name)


def _checked(ranks: list[int], world: Communicator | NodeWorld) -> list[int]:
    """torch's global ranks as ranks of the job: the same numbers, because make() and env:// see to that."""
    if not ranks:
        return ranks
    wrong = [rank for rank in ranks if not 0 <= rank < world.size]
    if wrong or c10d._get_default_group().rank() != world.rank:
        raise ConfigError(
            f"torch's rank {c10d._get_default_group().rank()} is rank {world.rank} of the MPI job",
            "new_group",
            "give torch the ranks that MPI has: init_process_group(rank=..., world_size=...)",
        )
    return ranks
