"""Where torch asks for its MPI backend, and what it finds there instead.

torch.distributed.distributed_c10d holds names that its functions look up when they are called. This
module gives it others, as few as can be:

_MPI_AVAILABLE, ProcessGroupMPI   whether "mpi" exists, and who makes its groups
_new_process_group_helper         every group passes here with its timeout and name, which "mpi" needs
_new_group_with_tag               refuses use_local_synchronization for "mpi", without need
rendezvous                        env:// without RANK and MASTER_ADDR, where an MPI launcher knows them
monitored_barrier, split_group    refuse whoever is not gloo or nccl
_maybe_attach_flight_recorder     since 2.14 asks every group for a half of it in C++, which ours has not

What was there before serves all that is not ours. A torch that lacks one of these names, or a newer one that
fails where they lead, gets one clear sentence at init_process_group("mpi"), and everything else of it works
as ever.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from ..needs import load_torch
from .errors import moved

__all__ = ["install", "names_mpi"]

_NEEDED = ("_new_process_group_helper", "_new_group_with_tag", "rendezvous", "_world", "Backend")
# Of groups that only members make, in their names. torch 2.15 counts them with the others, whose names then
# differ between the ranks: gloo waits for ever under a name that others have not.
_own_counts = count(1 << 20)
_MARK = "_hpcomm"  # on what this module has put into torch


def install() -> None:
    """Put the names in place, once per process. A torch without torch.distributed is left alone.

    Raises:
        ConfigError: there is no torch.
    """
    dist = load_torch("hpcomm.torch_backend").distributed
    if not dist.is_available():
        return
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    if hasattr(getattr(c10d, "_new_process_group_helper", None), _MARK):
        return
    missing = [name for name in _NEEDED if not hasattr(c10d, name)]
    if missing:
        _refuse(c10d, missing)
        return
    _announce(c10d)
    wrappers: dict[str, Callable[..., Any]] = {
        "_new_process_group_helper": _helper,
        "_new_group_with_tag": _new_group,
        "rendezvous": _rendezvous,
        "monitored_barrier": _monitored_barrier,
        "split_group": _split_group,
        "_maybe_attach_flight_recorder": _record_flight,
    }
    for name, around in wrappers.items():
        _put(c10d, dist, name, around)


def names_mpi(backend: Any) -> bool:
    """Whether a backend string names mpi: "mpi", "cpu:mpi", "cpu:gloo,cuda:mpi"."""
    return any(part.rpartition(":")[2] == "mpi" for part in str(backend).lower().split(","))


def _put(c10d: Any, dist: Any, name: str, around: Callable[..., Any]) -> None:
    before = getattr(c10d, name, None)
    if before is None:
        return

    @functools.wraps(before)
    def ours(*args: Any, **kwargs: Any) -> Any:
        return around(before, *args, **kwargs)

    setattr(ours, _MARK, True)
    setattr(c10d, name, ours)
    if getattr(dist, name, None) is before:
        setattr(dist, name, ours)


def _announce(c10d: Any) -> None:
    """Say that "mpi" is there."""
    c10d._MPI_AVAILABLE = True
    c10d.ProcessGroupMPI = _Maker


class _Maker:
    """Stands where torch built with MPI has its C++ class."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        from . import making

        return making.create()


def _refuse(c10d: Any, missing: list[str]) -> None:
    class Refusal:
        @staticmethod
        def create(ranks: list[int]) -> Any:
            raise moved(f"has no {', '.join(missing)} in torch.distributed")

    c10d._MPI_AVAILABLE = True
    c10d.ProcessGroupMPI = Refusal


def _helper(before: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a group: bring MPI up first, and tell the group what create() is not told."""
    names = dict(
        zip(("group_size", "group_rank", "ranks", "backend", "store", "group_name"), args, strict=False)
    )
    backend = names.get("backend", kwargs.get("backend"))
    if not names_mpi(backend):
        return before(*args, **kwargs)
    from . import making

    return making.make(before, names, kwargs)


def _new_group(before: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Groups that only their members make: torch refuses them for "mpi" by name, MPI has them."""
    names = ("ranks", "timeout", "backend", "backend_options", "pg_tag", "use_local_synchronization")
    kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    backend = kwargs.get("backend") or c10d._world.pg_map[c10d._get_default_group()][0]
    if not (kwargs.get("use_local_synchronization") and str(backend).lower() == "mpi"):
        return before(**kwargs)
    world, so_far = c10d._world, c10d._world.group_count
    world.group_count = next(_own_counts)
    try:
        made = before(**{**kwargs, "backend": "cpu:mpi,cuda:mpi"})  # the same, in words it does not refuse
    finally:
        world.group_count = so_far
    if made is not None and made in c10d._world.pg_map:
        c10d._world.pg_map[made] = (c10d.Backend("mpi"), c10d._world.pg_map[made][1])
    return made


def _rendezvous(
    before: Callable[..., Any], url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
) -> Any:
    """env:// where the environment says nothing, but an MPI launcher has started this process."""
    from . import rendezvous

    if url == "env://" and rank == -1 and world_size == -1 and rendezvous.by_launcher_alone():
        return rendezvous.over_mpi()
    return before(url, rank, world_size, **kwargs)


def _monitored_barrier(
    before: Callable[..., Any], group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> Any:
    ours = _ours(group)
    if ours is None:
        return before(group, timeout, wait_all_ranks)
    return ours.monitored_barrier(timeout, wait_all_ranks)


def _split_group(
    before: Callable[..., Any], parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
) -> Any:
    ours = _ours(parent_pg)
    if ours is None:
        return before(parent_pg, split_ranks, *args, **kwargs)
    return ours.split(split_ranks, *args, **kwargs)


def _record_flight(before: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    return None if _ours(group) is not None else before(group, *args, **kwargs)


def _ours(group: Any) -> Any:
    """The group (default: the world) if it is one of ours and this rank is in it, else None."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    found = c10d.GroupMember.WORLD if group is None else group
    module = sys.modules.get("hpcomm.torch_backend.group")
    return found if module is not None and isinstance(found, module.ProcessGroupMPI) else None
