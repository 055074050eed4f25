"""Factory of process groups: MPI comes up, ranks are found, and a Communicator is made for them."""

from __future__ import annotations

import inspect
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..communicator.communicator import Communicator
from ..communicator.making.groups import short_list
from ..core.present import calling
from ..errors import ConfigError, HpcommError
from . import rendezvous
from .names import backends, c10d, dist, label
from .process_group import ProcessGroupMPI
from .torch_errors import is_unknown, moved

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

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
        comm = rendezvous.world()
    else:
        comm = _everybody(size, rank, given["store"], asked)
        if size == -1:  # init_process_group("mpi"): torch leaves all three to MPI
            given["store"] = dist.PrefixStore("default_pg", rendezvous.store(comm))
        given["group_size"], given["group_rank"] = comm.size, comm.rank
    _making.append({**given, "ranks": ranks})
    options = asked.get("pg_options", given.get("backend_options"))  # of "mpi" torch drops them
    if options is not None and set(backends(given["backend"]).values()) == {"mpi"}:
        rendezvous.warn("pg_options= has no effect: backend 'mpi' has no options")
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


def _everybody(size: int, rank: int, store: Store, asked: dict[str, Any]) -> Communicator:
    """All ranks, held against what torch was told of them."""
    if size != -1:
        return rendezvous.world(rendezvous.given_numbers(rank, size), lambda: store)
    url, given = asked.get("init_method"), asked.get("store")
    said = rendezvous.given_numbers(asked.get("rank", -1), asked.get("world_size", -1), url)
    rendezvous.refuse_unsaid(said, url)

    timeout = asked.get("timeout") or c10d.default_pg_timeout

    def meeting() -> Store:
        if given is not None:
            return given
        numbers = () if "?" in (url or "") else (said.rank, said.size)
        return next(dist.rendezvous(url or "env://", *numbers, timeout=timeout))[0]

    return rendezvous.world(said, meeting, timeout.total_seconds())


def create() -> ProcessGroupMPI:
    """The group that torch is just making; called by its members."""
    told = _making[-1]
    world = rendezvous.world()
    ranks = [int(r) for r in told["ranks"]]
    name = label(str(told["group_name"]))
    # torch gives a group without a timeout its default: then that of the default group holds here
    own = told.get("timeout")
    seconds = None if own in (None, c10d.default_pg_timeout) else own.total_seconds()
    with _watched(ranks, name, seconds):
        return ProcessGroupMPI(_communicator(world, ranks, name), told)


@contextmanager
def _watched(ranks: list[int], name: str, seconds: float | None) -> Iterator[None]:
    """While a group of these ranks of the default group is made: see Stay. seconds: the group's own."""
    group = c10d.GroupMember.WORLD
    if not isinstance(group, ProcessGroupMPI):
        yield
        return
    stay = group.entry.stay(ranks)
    stay.words = lambda: f"making group '{name}' of {short_list(ranks)}"
    stay.seconds, stay.since = seconds or group.seconds, time.monotonic()
    try:
        yield
    finally:
        stay.since = None


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
