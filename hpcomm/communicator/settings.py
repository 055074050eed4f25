"""Settings of a communicator, which those made of it take over."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..agree.agreement import LEVELS, depth
from ..errors import ConfigError
from ..transport.device.path_choice import PATHS
from .payloads.pickling import Pickler

ORDERS = ("rank", "fast")


class Settings(NamedTuple):
    """What a communicator takes over from the one that makes it, where it is None: as Communicator has it."""

    check: str | None = None
    gpu: str | None = None
    pickler: Pickler | None = None

    @property
    def compares_all(self) -> bool:
        """Whether all ranks compare each call before it begins."""
        return self.check is not None and depth(self.check) > 0


INHERITED = Settings()


def require_known(check: str | None, gpu: str | None) -> str:
    """The level of agreement, from check= or the environment; before anything is made that others wait for.

    Raises:
        ConfigError: there is no such level, no such path for device arrays, or no such order.
    """
    level = check or os.environ.get("HPCOMM_CHECK") or "light"
    if level not in LEVELS:
        hint = f"one of {', '.join(LEVELS)} (HPCOMM_CHECK, check=)"
        raise ConfigError(f"there is no check level {level!r}", hint=hint)
    if (order := os.environ.get("HPCOMM_ORDER") or ORDERS[0]) not in ORDERS:
        raise ConfigError(f"there is no order {order!r}", hint=f"{', '.join(ORDERS)} (HPCOMM_ORDER)")
    if gpu is not None and gpu not in PATHS:
        raise ConfigError(f"there is no path {gpu!r} for device arrays (gpu=)", hint=f"{', '.join(PATHS)}")
    return level


def is_fast_by_default() -> bool:
    """Whether MPI may reduce floats in whatever order, where no communicator says so (Communicator.order)."""
    return os.environ.get("HPCOMM_ORDER") == "fast"
