"""Installer: puts hpcomm in place of torch's MPI backend.

Nothing but the name "hpcomm" is there before there is a job of MPI's, or somebody says "mpi" or "hpcomm",
which mean the same: programs that do not must not notice that hpcomm is installed. Backend(...) is where
torch reads what they say, so there this module listens. Then torch.distributed.distributed_c10d, which looks
names up when its functions are called, is given others, as few as can be:

_MPI_AVAILABLE, ProcessGroupMPI   whether "mpi" exists, and who makes its groups
_new_process_group_helper         every group passes here with its timeout and name, which "mpi" needs
_new_group_with_tag               refuses use_local_synchronization for "mpi", without need
rendezvous                        env:// without RANK and MASTER_ADDR, where an MPI launcher knows them
monitored_barrier, split_group    refuse whoever is not gloo or nccl
_set_pg_timeout                   knows gloo's and nccl's groups only
_maybe_attach_flight_recorder     since 2.14 asks every group for a half of it in C++, which ours has not

init_process_group drops rank, world_size and init_method for "mpi"; they are read in its frame. What was
there before serves all that is not ours. A torch that lacks one of these names, or a newer one that fails
where they lead, gets one clear sentence at init_process_group("mpi"), and all else of it works as ever.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, NoReturn

from ..job.optional_packages import load_torch
from . import rendezvous
from .torch_errors import moved

_NEEDED = ("_new_process_group_helper", "_new_group_with_tag", "rendezvous", "_world", "Backend")
# Of groups that only members make, in their names. torch 2.15 counts them with the others, whose names then
# differ between the ranks: gloo waits for ever under a name that others have not.
_own_counts = count(1 << 20)
_MARK = "_hpcomm"  # on what this module has put into torch


def install() -> None:
    """Put the names in place, or listen until somebody says "mpi"; no torch.distributed: nothing.

    Raises:
        ConfigError: there is no torch.
    """
    dist = load_torch("hpcomm.torch_backend").distributed
    if not dist.is_available():
        return
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    backend = getattr(c10d, "Backend", None)
    if backend is not None and not hasattr(backend, "HPCOMM"):
        _name_ours(backend)
    if backend is None or rendezvous.at_hand():
        take()
    elif not hasattr(backend.__new__, _MARK):
        _listen(backend)


def _name_ours(backend: Any) -> None:
    """Have "hpcomm" among the backends. Others' groups change where there is a plugin: so see _helper."""
    backend.register_backend("hpcomm", _create, extended_api=True, devices=["cpu", "cuda"])
    _plugins.update(HPCOMM=backend._plugins.pop("HPCOMM"))


def _create(*options: object) -> object:
    from . import factory

    return factory.create()


_plugins: dict[str, object] = {}


def _listen(backend: Any) -> None:
    """Take the names when a backend is spoken of that names mpi."""
    before = backend.__new__

    @functools.wraps(before)
    def heard(cls: type, name: object) -> object:
        if names_mpi(name):
            backend.__new__ = before
            take()
        return before(cls, name)

    setattr(heard, _MARK, True)
    backend.__new__ = heard


def take() -> None:
    """Put the names in place, once per process."""
    dist = load_torch("hpcomm.torch_backend").distributed
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    if hasattr(getattr(c10d, "_new_process_group_helper", None), _MARK):
        return
    missing = [name for name in _NEEDED if not hasattr(c10d, name)]
    if missing:
        _announce(c10d, lambda ranks: _refuse(missing))
        return
    _announce(c10d, _create)
    wrappers: dict[str, Callable[..., Any]] = {
        "_new_process_group_helper": _helper,
        "_new_group_with_tag": _new_group,
        "rendezvous": _rendezvous,
        "monitored_barrier": _by_method("monitored_barrier"),
        "split_group": _by_method("split", "parent_pg"),
        "_set_pg_timeout": _by_method("set_timeout"),
        "_maybe_attach_flight_recorder": _record_flight,
    }
    for name, around in wrappers.items():
        _put(c10d, dist, name, around)


def names_mpi(backend: object) -> bool:
    """Whether a backend string names ours: "mpi", "hpcomm", "cpu:mpi", "cpu:gloo,cuda:mpi"."""
    return any(part.rpartition(":")[2] in rendezvous.OURS for part in str(backend).lower().split(","))


def _put(c10d: object, dist: object, name: str, around: Callable[..., object]) -> None:
    """Have around called with what was there, and with the call's arguments by their names in this torch."""
    before = getattr(c10d, name, None)
    if before is None:
        return
    signature = inspect.signature(before)

    @functools.wraps(before)
    def ours(*args: object, **kwargs: object) -> object:
        return around(before, signature.bind(*args, **kwargs))

    setattr(ours, _MARK, True)
    setattr(c10d, name, ours)
    if getattr(dist, name, None) is before:
        setattr(dist, name, ours)


def _pass(before: Callable[..., object], call: inspect.BoundArguments) -> object:
    return before(*call.args, **call.kwargs)


def _asked() -> dict[str, object]:
    """The arguments of init_process_group, if that has called us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("hpcomm."):
        frame = frame.f_back
    return dict(frame.f_locals) if frame.f_code.co_name == "init_process_group" else {}


def _announce(c10d: Any, create: Callable[..., object]) -> None:
    """Say that "mpi" is there. create: as of the C++ class in a torch that was built with MPI."""
    c10d._MPI_AVAILABLE = True
    c10d.ProcessGroupMPI = SimpleNamespace(create=create)


def _refuse(missing: list[str]) -> NoReturn:
    raise moved(f"has no {', '.join(missing)} in torch.distributed")


def _helper(before: Callable[..., object], call: inspect.BoundArguments) -> object:
    """Make a group: bring MPI up first, and tell the group what create() is not told."""
    if not names_mpi(call.arguments["backend"]):
        return _pass(before, call)
    from . import factory

    plugins = sys.modules["torch.distributed.distributed_c10d"].Backend._plugins
    plugins.update(_plugins)
    try:
        return factory.make(before, call, _asked())
    finally:
        for name in _plugins:
            plugins.pop(name, None)


def _new_group(before: Callable[..., object], call: inspect.BoundArguments) -> object:
    """Groups that only their members make: torch refuses them for "mpi" by name, MPI has them."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    given = call.arguments
    backend = given.get("backend") or c10d._world.pg_map[c10d._get_default_group()][0]
    if not (given.get("use_local_synchronization") and str(backend).lower() == "mpi"):
        return _pass(before, call)
    world, so_far = c10d._world, c10d._world.group_count
    world.group_count = next(_own_counts)
    given["backend"] = "cpu:mpi,cuda:mpi"  # the same, in words it does not refuse
    try:
        made = _pass(before, call)
    finally:
        world.group_count = so_far
    if made is not None and made in c10d._world.pg_map:
        c10d._world.pg_map[made] = (c10d.Backend("mpi"), c10d._world.pg_map[made][1])
    return made


def _rendezvous(before: Callable[..., object], call: inspect.BoundArguments) -> object:
    """env:// where the environment says nothing, but MPI does; and mpi's, told other ranks than MPI's."""
    call.apply_defaults()
    given = call.arguments
    numbers = given["url"], given["rank"], given["world_size"]
    if rendezvous.by_mpi(names_mpi(_asked().get("backend")), *numbers):
        return rendezvous.over_mpi()
    return _pass(before, call)


def _by_method(name: str, group: str = "group") -> Callable[..., object]:
    """Have a group of ours make the call, by its method of this name; group: the argument that says which."""

    def around(before: Callable[..., object], call: inspect.BoundArguments) -> object:
        others = dict(call.arguments)
        ours = _ours(others.pop(group, None))
        return _pass(before, call) if ours is None else getattr(ours, name)(**others)

    return around


def _record_flight(before: Callable[..., object], call: inspect.BoundArguments) -> object:
    return None if _ours(next(iter(call.arguments.values()))) is not None else _pass(before, call)


def _ours(group: object) -> Any:
    """The group (default: the world) if it is one of ours and this rank is in it, else None."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    found = c10d.GroupMember.WORLD if group is None else group
    module = sys.modules.get("hpcomm.torch_backend.process_group")
    return found if module is not None and isinstance(found, module.ProcessGroupMPI) else None
