"""Shared arrays: one array per node in memory that its ranks share, comm.shared_array(shape, dtype)."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import index
from typing import TYPE_CHECKING, Any

from .._lazy import MPI, NDArray, np
from ..agree.agreement import refusing
from ..core.closing import ClosedByAll
from ..core.signature import head
from ..errors import ConfigError, HpcommError, LayoutError, UsageError, counted, placed, where
from ..node import native
from ..node.segment import all_of, opened, telling
from ..transport.late import dtypes, transport
from .making.groups import split_node
from .payloads.objects import Objects
from .shell import Shell
from .verbs.collectives import Collectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ..core.types import AnyArray
    from ..node._native import core
    from .communicator import Communicator
    from .context import Context

MOST = 1 << 47  # bytes of address space
_HEAD = 1 << 16  # bytes that a segment needs for itself, beside 1 in 1024


class SharedArray(ClosedByAll):
    """One array on a node, in memory that its ranks share. comm.shared_array(shape, dtype) makes it.

    Attributes:
        node: the ranks that share it, a Communicator of its own.
        shape, dtype: of the array.

    The memory is freed after close(), when no view of it is left, or when the ranks end.
    """

    def __init__(self, node: Communicator, array: AnyArray, record: dtypes.Dtype) -> None:
        self.node = node
        self.shape = array.shape
        self._array: NDArray[Any] | None = array
        self._record = record

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return dtypes.numpy_dtype(self._record)

    @property
    def array(self) -> NDArray[Any]:
        """The array. After fence() every rank of the node sees what the others have written into it."""
        return self._open().view(self.dtype)

    def _open(self) -> NDArray[Any]:
        if self._array is None:
            raise UsageError("this shared array is closed", where("array", None), "use it before close()")
        return self._array

    @property
    def tensor(self) -> Any:
        """The same memory as a torch tensor."""
        torch = import_module("torch")
        return torch.from_numpy(self._open()).view(dtypes.torch_dtype(self._record))

    def fence(self) -> None:
        """Make what any rank has written visible to all ranks of the node. Collective over the node."""
        self.node.barrier()

    def close(self) -> None:
        """Free the memory. Collective over the node. A second close does nothing."""
        self._array = None
        self.node.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._array is None else ""
        return f"<SharedArray {self._record} {self.shape} of {counted(self.node.size, 'rank')}{closed}>"


class SharedArrays(Shell):
    """What makes shared arrays."""

    def shared_array(self, shape: int | Sequence[int], dtype: DTypeLike = "float64") -> SharedArray:
        """One array of zeros on each node, in memory that all ranks of the node share.

        Collective. On several nodes each has an array of its own.

        Args:
            shape, dtype: the same on every rank.

        Raises:
            LayoutError: shape is not possible, or the ranks of a node give different shapes or dtypes.
            DtypeError: there is no such dtype.
            ConfigError: the node has not enough shared memory.

        Example:
            >>> with comm.shared_array((comm.size, 3)) as shared:
            ...     shared.array[comm.rank] = comm.rank
            ...     shared.fence()
            ...     total = shared.array.sum()
        """
        comm = self.context
        comm.check_one_group("shared_array")
        with refusing("shared_array", comm):
            lengths = shape_of(shape)
            record, _ = dtypes.parse(dtype)
            kind = np.dtype(record.storage)
        from .communicator import over

        node = split_node(comm, f"{comm.name}/shared", 0, "node")
        try:
            given = lengths, str(record)
            for rank, other in enumerate(Objects(node).all_gather_object(given)):
                if other != given:
                    theirs = f"{other[1]} {other[0]}"
                    what = f"this rank asks for {record} {lengths}, rank {rank} of the node for {theirs}"
                    raise LayoutError(what, hint="the same shape and dtype on every rank")
            return SharedArray(over(node), _array(node, lengths, kind), record)
        except HpcommError as error:
            node.close()
            raise placed(error, "shared_array", comm) from None


def _array(node: Context, shape: tuple[int, ...], kind: np.dtype[np.generic]) -> AnyArray:
    """The array in new memory, made sure of before: what is not there is no bus error later."""
    count = math.prod(shape)
    words = max(-(-count * kind.itemsize // 8), 1)
    nbytes = 8 * words + words // 128 + _HEAD
    tell = telling(node.mpi_handle) if node.node is None else partial(node.node.tell, head("window"))
    memory = opened(tell, node.rank, nbytes) if nbytes < MOST else None
    at = None
    if memory is not None:
        _spread(node, memory)
        at = memory.reserve_words(words) if node.rank == 0 else None
    at = Objects(node).broadcast_object(at)
    if memory is not None and at is not None:
        return np.frombuffer(memoryview(memory), kind, count, at).reshape(shape)
    if not all_of(tell, native.missing() is None) and all_of(tell, _has(8 * words)):
        return _by_mpi(node, count, kind).reshape(shape)
    why, hint = native.refused
    what = f"{8 * words} bytes of shared memory cannot be had on this node: {why}"
    raise ConfigError(
        what, hint=hint if native.refused != native.NO_ROOM else "df /dev/shm shows what is left"
    )


def _spread(node: Context, memory: core.Segment) -> None:
    """Let each rank take a part from the system, so that pages lie near all of them."""
    own = memory.nbytes // node.size
    with suppress(OSError):  # there is not so much: reserve_words says so
        os.posix_fallocate(memory.fileno(), node.rank * own, own)
    Collectives(node).barrier()


def _has(nbytes: int) -> bool:
    """Whether there is so much, where MPI itself would hang or end in a bus error."""
    with suppress(OSError):
        free = os.statvfs("/dev/shm")
        return free.f_blocks == 0 or free.f_bavail * free.f_frsize > nbytes
    return sys.platform != "linux"  # whose MPI takes it elsewhere


def _by_mpi(node: Context, count: int, kind: np.dtype[np.generic]) -> AnyArray:
    """Without the core MPI shares memory, which lasts until the end: nobody knows how long views are used."""
    own = count * kind.itemsize if node.rank == 0 else 0
    try:
        if MPI.get_vendor()[0] == "MPICH":  # which ends in a segmentation fault where it has no more of them
            node.mpi_handle.Dup().Free()
        window = MPI.Win.Allocate_shared(own, 1, comm=node.mpi_handle)  # type: ignore[arg-type]
    except MPI.Exception as error:
        raise transport.failure(error, "shared_array", node) from None
    memory: Any = window.Shared_query(0)[0]
    array: AnyArray = np.frombuffer(memory, kind, count)
    if node.rank == 0:
        array.fill(0)
    Collectives(node).barrier()
    return array


def shape_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths that a user gives for an array."""
    try:
        lengths = (index(shape),) if hasattr(shape, "__index__") else tuple(map(index, shape))
    except TypeError:
        lengths = (-1,)
    if min(lengths, default=0) < 0:
        raise LayoutError(f"{shape!r} is no shape of an array", hint="lengths from 0, such as (100, 3)")
    return lengths
