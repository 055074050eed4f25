"""Collectives on device arrays, in pieces through the device workspace: load, move, store.

What travels is what op needs (reduction.py): half types as float32, truth values as bytes; kernels of an
array library convert. How it moves is another file: rounds.py by own schedules, nccl_transport.py,
cuda_aware.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...core import dtypes, reduction
from ...core.dtypes import BY_NAME, Dtype
from ...core.verbs import GATHERING, SCATTERING

if TYPE_CHECKING:
    from ...core.reduction import Reduction
    from ...core.request import Stages
    from ...device.kernels import Kernels
    from .device_call import Job
    from .workspace import Workspace


class Moved(NamedTuple):
    """What a Mover carries out."""

    verb: str
    root: int
    slots: int
    reduce: Reduction | None
    dtype: Dtype  # in which elements travel

    @property
    def op(self) -> Any:
        """Name of MPI's operator, if it reduces."""
        return None if self.reduce is None else self.reduce.mpi_op

    def capacity(self, nbytes: int) -> int:
        """Elements of a slot, if all slots have nbytes together."""
        return max(1, nbytes // (self.slots * self.dtype.itemsize))


class Mover(Protocol):
    """Moves what lies in a workspace: slots of count elements, as schedule.stream.Schedule has them."""

    capacity: int  # elements of a slot at most

    def move(self, count: int) -> Stages: ...


def travels(reduce: Reduction | None, dtype: Dtype) -> Dtype:
    """The dtype in which elements of dtype travel under a reduction."""
    if reduce is None or reduce.widen is None:
        return dtype
    if reduce.mpi_type == "UINT8_T" and (dtype.kind == "b" or reduce.op.name in ("land", "lor")):
        return BY_NAME["uint8"]
    return BY_NAME["float32"] if dtype.kind == "h" else dtype


def lacks(reduce: Reduction | None, dtype: Dtype, kernels: Kernels | str | None) -> tuple[str, str]:
    """Why there are no kernels that reduce as op does, and none that convert x for it; "" if there are."""
    if reduce is None:
        return "", ""
    if not isinstance(reduce.mpi_op, str):
        why = f"op {reduce.op} is no operator that kernels know"
        return why, why
    if kernels is None or isinstance(kernels, str):
        why = kernels or "x lies on the host"
        return why, why if _changes(reduce, dtype) else ""
    reduce_lacks = kernels.refuses(reduce.mpi_op, travels(reduce, dtype)) or ""
    return reduce_lacks, (kernels.refuses(None, dtype) or "") if _changes(reduce, dtype) else ""


def _changes(reduce: Reduction, dtype: Dtype) -> bool:
    """Whether kernels have more to do than to reduce what x holds."""
    converts = travels(reduce, dtype) is not dtype and dtype.kind != "b"
    return converts or reduce.op.name in ("avg", "premul_sum")


def carry(job: Job, space: Workspace, mover: Mover) -> Stages:
    """The stages of a collective on devices, in the workspace's stream."""
    send, recv = job.places()
    count, rank, verb = job.call.count, space.rank, job.call.verb
    where = _layout(verb, space.size, rank)
    way = _Way(space, job.reduce, job.kernels, job.call.look.dtype)
    step = min(mover.capacity, max(count, 1))
    for low in range(0, count, step):
        n = min(step, count - low)
        if send is not None:
            slot, blocks = where[0]
            for b in range(blocks):
                way.bring(send.address, b * count + low, (slot + b) * n, n)
        yield from mover.move(n)
        if recv is not None:
            slot, blocks = where[1]
            for b in range(blocks):
                if verb == "exscan" and rank == 0:
                    way.fill(recv.address, low, n)
                else:
                    way.take(recv.address, b * count + low, (slot + b) * n, n)


def _layout(verb: str, p: int, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(first slot, slots) of what a rank gives, and of what it gets."""
    if verb in GATHERING:
        return (rank, 1), (0, p)
    if verb in SCATTERING:
        return (0, p), (rank, 1)
    if verb == "all_to_all":
        return (0, p), (p, p)
    return (0, 1), (0, 1)


class _Way:
    """Between a user's array and the workspace, with what an operator asks for on the way."""

    def __init__(
        self, space: Workspace, reduce: Reduction | None, kernels: Kernels | None, dtype: Dtype
    ) -> None:
        self.workspace, self.reduce, self.kernels, self.dtype = space, reduce, kernels, dtype
        self.wide = travels(reduce, dtype)
        self.truth = reduce is not None and reduce.op.name in ("land", "lor") and dtype.kind != "b"
        alike = reduce is None or reduce.mpi_type == "" or dtype.kind == "b" or self.wide is dtype
        self.same = alike and not self.truth  # elements travel as they are

    def bring(self, address: int, at: int, slot: int, n: int) -> None:
        there, here = address + at * self.dtype.itemsize, self.workspace.work + slot * self.wide.itemsize
        factor = self.reduce.op.factor if self.reduce is not None else None
        if self.same:
            self.workspace.device.copy(here, there, n * self.dtype.itemsize, self.workspace.stream)
        if (self.same and factor is None) or self.kernels is None:
            return
        with self.kernels.on(self.workspace.stream):
            wide = self.kernels.view(here, n, self.wide)
            if self.truth:
                self.kernels.truth(self.kernels.view(there, n, self.dtype), wide)
            elif not self.same:
                self.kernels.convert(self.kernels.view(there, n, self.dtype), wide)
            if factor is not None:
                self.kernels.scale(wide, np.dtype(self.wide.storage).type(factor))

    def take(self, address: int, at: int, slot: int, n: int) -> None:
        there, here = address + at * self.dtype.itemsize, self.workspace.work + slot * self.wide.itemsize
        average = self.reduce is not None and self.reduce.op.name == "avg"
        if self.kernels is not None and (average or not self.same):
            with self.kernels.on(self.workspace.stream):
                if average:
                    parts, kind = _real(self.wide)
                    self.kernels.divide(self.kernels.view(here, n * parts, kind), self.workspace.size)
                if not self.same:
                    wide = self.kernels.view(here, n, self.wide)
                    self.kernels.convert(wide, self.kernels.view(there, n, self.dtype))
        if self.same:
            self.workspace.device.copy(there, here, n * self.dtype.itemsize, self.workspace.stream)

    def fill(self, address: int, at: int, n: int) -> None:
        """What the first rank gets of an exscan."""
        assert self.reduce is not None
        assert self.kernels is not None
        value = reduction.identity(self.reduce.op, self.dtype)
        if self.dtype.kind == "h":
            value = float(dtypes.widen(value.reshape(1), self.dtype)[0])
        with self.kernels.on(self.workspace.stream):
            self.kernels.fill(
                self.kernels.view(address + at * self.dtype.itemsize, n, self.dtype),
                value.item() if hasattr(value, "item") else value,
            )


def _real(dtype: Dtype) -> tuple[int, Dtype]:
    """Complex numbers as pairs: dividing by a complex number rounds more often."""
    if dtype.kind != "c":
        return 1, dtype
    return 2, BY_NAME["float32" if dtype.itemsize == 8 else "float64"]
