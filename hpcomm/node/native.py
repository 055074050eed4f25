"""Native core: the module in C that moves, folds and waits, or why there is none."""

from __future__ import annotations

import os
from functools import lru_cache
from types import ModuleType

from ..errors import ConfigError

__all__ = ["core", "why_not"]


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
