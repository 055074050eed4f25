"""hpcomm: message passing for Python on CPUs and GPUs.

>>> import hpcomm
>>> hpcomm.world.all_reduce(x)

Importing starts nothing, also `from hpcomm import world`: MPI comes up when that, or another Communicator,
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._lazy import undisturbed
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
    from . import checkpoint as checkpoint
    from . import compat as compat
    from . import differentiable as differentiable
    from . import hdf5 as hdf5
    from . import io as io
    from . import machine as machine
    from . import mpmd as mpmd
    from . import regrid as regrid
    from . import simulate as simulate
    from . import zarr as zarr
    from .communicator.communicator import Communicator
    from .communicator.making.parent import parent
    from .communicator.mesh import Mesh
    from .communicator.trace import trace
    from .communicator.verbs.p2p import P2POp, batch_isend_irecv
    from .communicator.verbs.persistent import Plan
    from .core.buffer import as_buffer
    from .core.op import Op
    from .core.partition import Box, Partition, Points
    from .core.reduction import premul_sum
    from .core.request import Request
    from .core.status import Status
    from .core.types import Algorithm
    from .core.waiting import wait_all, wait_any
    from .fields.field import Field
    from .fields.halo import Halo
    from .fields.redistribution import Redistribution
    from .mpmd.join import join
    from .torch_backend.bridge import as_process_group, from_torch

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
    "Algorithm",
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
    "as_process_group",
    "batch_isend_irecv",
    "from_torch",
    "join",
    "parent",
    "premul_sum",
    "self_",
    "trace",
    "wait_all",
    "wait_any",
    "world",
    "wtime",
]

_HOMES = {
    "Algorithm": "core.types",
    "Box": "core.partition",
    "Communicator": "communicator.communicator",
    "Field": "fields.field",
    "Halo": "fields.halo",
    "Mesh": "communicator.mesh",
    "Op": "core.op",
    "P2POp": "communicator.verbs.p2p",
    "Partition": "core.partition",
    "Plan": "communicator.verbs.persistent",
    "Points": "core.partition",
    "Redistribution": "fields.redistribution",
    "Request": "core.request",
    "Status": "core.status",
    "as_buffer": "core.buffer",
    "as_process_group": "torch_backend.bridge",
    "batch_isend_irecv": "communicator.verbs.p2p",
    "from_torch": "torch_backend.bridge",
    "join": "mpmd.join",
    "parent": "communicator.making.parent",
    "premul_sum": "core.reduction",
    "trace": "communicator.trace",
    "wait_all": "core.waiting",
    "wait_any": "core.waiting",
}
_MODULES = (
    "checkpoint", "compat", "differentiable", "hdf5", "io", "machine", "mpmd", "regrid", "simulate", "zarr",
)  # fmt: skip


def wtime() -> float:
    """Seconds since some time in the past, as MPI_Wtime has them. Those of two hosts may differ."""
    from .job.optional_packages import load_mpi

    seconds: float = load_mpi("hpcomm.wtime").Wtime()
    return seconds


if not TYPE_CHECKING:  # where a misspelt name is an error

    def __getattr__(name: str) -> Any:
        """Everything but the errors is loaded when it is first asked for, MPI included."""
        with undisturbed():  # a signal handler would find modules that are loaded by half
            value = globals()[name] = _found(name)
        return value


def _found(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in ("world", "self_"):
        from .communicator.lazy_world import named

        return named(name)
    if name in ("ANY_SOURCE", "ANY_TAG", "PROC_NULL", "ROOT"):
        from .job.optional_packages import load_mpi

        return getattr(load_mpi(f"hpcomm.{name}"), name)
    from .communicator.mpi4py_names import of_module

    raise AttributeError(f"module 'hpcomm' has no attribute {name!r}{of_module(name)}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "errors", *(name for name in globals() if name.startswith("_"))})
