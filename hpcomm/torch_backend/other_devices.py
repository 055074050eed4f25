"""Backends beside this one: "cpu:mpi,cuda:nccl" is one group, whose CUDA tensors torch's nccl serves."""

from __future__ import annotations

from collections.abc import Mapping

from .names import c10d, options


def inner_group(backends: str, told: Mapping[str, object], rank: int, size: int) -> object:
    """A group of torch's own for "cuda:nccl" and the like, unknown to torch's table of groups."""
    options = {
        "backend_options": told.get("backend_options"),
        "timeout": told.get("timeout"),
        "device_id": told.get("device_id"),
    }
    name = f"{told['group_name']}/beside-mpi"
    made, _ = c10d._new_process_group_helper(
        size, rank, told["ranks"], c10d.Backend(backends), told["store"], name, **options
    )
    _forget(made, name)
    return made


def _forget(group: object, name: str) -> None:
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_group_ranks):
        table.pop(group, None)
    tag = world.pg_to_tag.pop(group, None)
    for each in {tag, ""}:
        groups = world.tags_to_pg.get(each, [])
        if group in groups:
            groups.remove(group)
    options._unregister_process_group(name)
