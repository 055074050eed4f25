"""Native core: the module in C that moves, folds and waits, or why there is none."""

from __future__ import annotations

import os
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

from .._lazy import loaded
from ..core.limits import NODE_SPINS
from ..errors import ConfigError

if TYPE_CHECKING:
    from ._native import core as native_core
    from .segment import NodeSegment

__all__ = ["core", "node", "why_not"]


@lru_cache(maxsize=1)
def _found() -> tuple[ModuleType | None, str]:
    """The module, or why there is none.

    Raises:
        ConfigError: HPCOMM_NODE is neither on nor off.
    """
    said = os.environ.get("HPCOMM_NODE") or "on"
    if said not in ("on", "off"):
        raise ConfigError(f"HPCOMM_NODE is {said!r}", hint="on, or off to leave all to MPI")
    if said == "off":
        return None, "HPCOMM_NODE=off"
    try:
        from ._native import core
    except ImportError as error:  # built without a compiler
        return None, f"it was not built with this installation ({error})"
    return core, ""


def core() -> ModuleType | None:
    """hpcomm.node._native.core; None: all goes by MPI."""
    return _found()[0]


def why_not() -> str:
    """Why core() is None; empty if it is there."""
    return _found()[1]


def node(
    there: NodeSegment, place: int, rank: int, hook: native_core.Hook, checks: bool
) -> native_core.Node | None:
    """This rank's part of a place that was reserved for all ranks of a communicator.

    Args:
        hook: see agree/arrivals.py.
        checks: whether this rank compares calls.
    """
    module = core()
    if module is None or there.shared is None:
        return None
    know_arrays()
    made: native_core.Node = module.Node(
        there.shared, place, rank, hook, 0 if there.is_crowded else NODE_SPINS, checks
    )
    return made


@lru_cache(maxsize=4)
def _know(name: str) -> None:
    module = core()
    if module is not None:
        getattr(module, f"know_{name}")(loaded(name))


def know_arrays() -> None:
    """Let the core take the arrays of numpy and torch, as far as these are loaded."""
    for name in ("numpy", "torch"):
        if loaded(name) is not None:
            _know(name)
