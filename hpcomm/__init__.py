"""hpcomm: message passing for Python on CPUs and GPUs.

>>> import hpcomm
>>> hpcomm.world.all_reduce(x)

Importing starts nothing, also `from hpcomm import world`: MPI comes up when that, or another Communicator,
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    ConfigError,
    DtypeError,
    HpcommError,
    LayoutError,
    MismatchError,
    PeerFailedError,
    RankError,
    TransportError,
    UsageError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from .buffer import as_buffer
    from .communicator import Communicator
    from .envelope import Status
    from .field import Field
    from .halo import Halo
    from .mesh import Mesh
    from .mpmd.join import join
    from .p2p import P2POp, batch_isend_irecv
    from .partition import Box, Partition, Points
    from .plan import Plan
    from .redistribution import Redistribution
    from .reduction import Op, premul_sum
    from .request import Request, wait_all, wait_any
    from .torch_backend.bridge import from_torch

    world: Communicator
    self_: Communicator
    ANY_SOURCE: int
    ANY_TAG: int
    PROC_NULL: int
    ROOT: int

__version__ = "0.1.0"

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "PROC_NULL",
    "ROOT",
    "Box",
    "Communicator",
    "ConfigError",
    "DtypeError",
    "Field",
    "Halo",
    "HpcommError",
    "LayoutError",
    "Mesh",
    "MismatchError",
    "Op",
    "P2POp",
    "Partition",
    "PeerFailedError",
    "Plan",
    "Points",
    "RankError",
    "Redistribution",
    "Request",
    "Status",
    "TransportError",
    "UsageError",
    "WaitTimeoutError",
    "as_buffer",
    "batch_isend_irecv",
    "from_torch",
    "join",
    "premul_sum",
    "self_",
    "wait_all",
    "wait_any",
    "world",
]

_HOMES = {
    "Box": "partition",
    "Communicator": "communicator",
    "Field": "field",
    "Halo": "halo",
    "Mesh": "mesh",
    "Op": "reduction",
    "P2POp": "p2p",
    "Partition": "partition",
    "Plan": "plan",
    "Points": "partition",
    "Redistribution": "redistribution",
    "Request": "request",
    "Status": "envelope",
    "as_buffer": "buffer",
    "batch_isend_irecv": "p2p",
    "from_torch": "torch_backend.bridge",
    "join": "mpmd.join",
    "premul_sum": "reduction",
    "wait_all": "request",
    "wait_any": "request",
}


if not TYPE_CHECKING:  # where a misspelt name is an error

    def __getattr__(name: str) -> Any:
        """Everything but the errors is loaded when it is first asked for, MPI included."""
        if name in _HOMES:
            from importlib import import_module

            value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        elif name in ("world", "self_"):
            from .late import Late

            value = Late(name)
        elif name in ("ANY_SOURCE", "ANY_TAG", "PROC_NULL", "ROOT"):
            from .needs import load_mpi

            value = getattr(load_mpi(f"hpcomm.{name}"), name)
        else:
            raise AttributeError(f"module 'hpcomm' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
