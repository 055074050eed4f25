"""Backends beside this one: "cpu:mpi,cuda:nccl" is one group, whose CUDA tensors torch's nccl serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any

import torch

from .calls import flat
from .names import backends, c10d, dist, options
from .process_group import ProcessGroupMPI
from .ranks import Ranks
from .rendezvous import OURS

_NAMES = """allreduce allreduce_coalesced broadcast reduce allgather allgather_coalesced gather scatter
    reduce_scatter alltoall send recv recv_anysource"""
_RENAMED = {  # newer torch's name: the older one
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


class MixedGroup(ProcessGroupMPI):
    """A process group whose calls go to torch's own backends where their tensors lie on devices of those."""

    def __init__(self, comm: Ranks, told: Mapping[str, Any]) -> None:
        super().__init__(comm, told)
        served = backends(told["backend"])
        self._others = {kind: backend for kind, backend in served.items() if backend not in OURS}
        words = ",".join(f"{kind}:{backend}" for kind, backend in self._others.items())
        self._inner = _inner_group(words, told, self._rank, self._size)
        self._node = None  # whose calls do not ask where a tensor lies

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in backends(self._told["backend"])]

    def _get_backend(self, device: torch.device) -> object:
        is_ours = torch.device(device).type in self._devices
        return self if is_ours else self._inner._get_backend(device)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        for kind in self._others:
            other = self._inner._get_backend(torch.device(kind))
            if hasattr(other, "_set_default_timeout"):
                other._set_default_timeout(timeout)

    def shutdown(self) -> None:
        was_closed = self.comm.is_closed
        super().shutdown()
        if self.comm.is_closed and not was_closed:
            self._inner.shutdown()


def _by_device(name: str, its: str) -> Callable[..., Any]:
    """A call of the group, or of torch's own, where it is called `its`."""
    ours = getattr(ProcessGroupMPI, name)

    @wraps(ours)
    def call(self: MixedGroup, *args: object, **named: object) -> object:
        x = next(filter(torch.is_tensor, flat([*args, *named.values()])))
        if x.device.type in self._others:
            return getattr(self._inner, its)(*args, **named)
        return ours(self, *args, **named)

    return call


for _name in _NAMES.split():
    setattr(MixedGroup, _name, _by_device(_name, _name))
for _new, _old in _RENAMED.items():
    _its = _new if hasattr(dist.ProcessGroup, _new) else _old
    setattr(MixedGroup, _new, _by_device(_new, _its))
    setattr(MixedGroup, _old, _by_device(_old, _its))


def _inner_group(backends: str, told: Mapping[str, object], rank: int, size: int) -> Any:
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
