"""Conversion between process groups and Communicators, so that both APIs work in one job."""

from __future__ import annotations

import weakref
from typing import Any

from ..communicator.communicator import Communicator
from ..errors import ConfigError, UsageError
from ..job import process_role
from . import install, rendezvous
from .names import c10d, dist, options
from .process_group import ProcessGroupMPI

_comms: weakref.WeakKeyDictionary[Any, Communicator] = weakref.WeakKeyDictionary()
_groups: weakref.WeakKeyDictionary[Any, ProcessGroupMPI] = weakref.WeakKeyDictionary()


def from_torch(group: object = None) -> Communicator:
    """The Communicator of a process group's ranks. The first call is collective over them.

    Args:
        group: of any backend; None is the default group.
    """
    if not dist.is_initialized():
        raise UsageError(
            "torch.distributed has no process group yet", "from_torch", "dist.init_process_group('mpi')"
        )
    found = c10d._get_default_group() if group is None else group
    comm = _comms.get(found)
    if comm is None or comm.is_closed:
        process_role.check_has_mpi("from_torch")
        world: Any = rendezvous.world()
        if c10d._get_default_group().rank() != world.rank:
            raise ConfigError(
                f"torch's rank {c10d._get_default_group().rank()} is rank {world.rank} of the MPI job",
                "from_torch",
                "init_process_group(rank=..., world_size=...) with MPI's numbers",
            )
        made = world.group(dist.get_process_group_ranks(found), name=f"torch {c10d._world.pg_names[found]}")
        comm = _comms[found] = made.dup(made.name, check="light")
        made.close()
    return comm


def as_process_group(comm: Communicator) -> ProcessGroupMPI:
    """A process group of comm's ranks, for torch.distributed's functions. Collective when first asked.

    Ranks in group_src=, group_dst= are those of comm; src=, dst= count as torch's default group does, or,
    where there is none, as hpcomm.world does.
    """
    group = _groups.get(comm)
    if group is None or group.comm.is_closed:
        install.take()
        name = f"hpcomm/{comm.name}/{len(c10d._world.pg_names)}"
        world: Any = rendezvous.world()
        of_comm, of_world = (each.context.mpi_handle.Get_group() for each in (comm, world))
        world_ranks = of_comm.Translate_ranks(None, of_world)
        store = rendezvous.store(comm)
        told = {"group_name": name, "backend": "cpu:mpi", "store": store, "ranks": world_ranks}
        group = _groups[comm] = ProcessGroupMPI(comm.dup(comm.name, check="off"), told)
        group.label = comm.name
        _register(group, name, dist.PrefixStore(f"{name}/", store), world_ranks)
    return group


def _register(group: ProcessGroupMPI, name: str, store: object, world_ranks: list[int]) -> None:
    """Make group known to torch's functions; torch 2.6 has none for that."""
    world, tag = c10d._world, f"ptd:{name}"
    world.pg_map[group] = (c10d.Backend("mpi"), store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = "cpu:mpi"
    world.pg_group_ranks[group] = {outer: rank for rank, outer in enumerate(world_ranks)}
    world.pg_to_tag[group] = tag
    world.tags_to_pg.setdefault(tag, []).append(group)
    options._register_process_group(name, group)
