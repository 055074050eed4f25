"""Chunked files: fields are cut where chunks end, so that every chunk has one writer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..._lazy import np
from ...core.partition import Box, Partition, cuts, integers
from ...core.types import AnyArray
from ...errors import LayoutError
from ..field import Field
from ..redistribution import Redistribution
from . import file_folder
from .file_folder import PathLike

Chunks = bool | Sequence[int]
_LARGEST = 64 << 20  # bytes of a chunk that nobody asked for


def chunk_shape(partition: Partition, itemsize: int, wanted: Chunks = True) -> tuple[int, ...]:
    """The shape of chunks: as wanted, cut to the whole; True: the pieces of the ranks, below 64 MiB.

    Raises:
        LayoutError: not one positive number for each axis.
    """
    if isinstance(wanted, bool):
        shape = [max(1, -(-n // parts)) for n, parts in zip(partition.shape, partition.grid, strict=True)]
        while math.prod(shape) * itemsize > _LARGEST:
            axis = shape.index(max(shape))
            shape[axis] = -(-shape[axis] // 2)
        return tuple(shape)
    sizes = integers(wanted, "chunks")
    if len(sizes) != partition.ndim or min(sizes, default=1) < 1:
        raise LayoutError(
            f"chunks {sizes} do not fit the shape {partition.shape}",
            hint="one positive number for each axis, or True",
        )
    return tuple(min(c, max(1, n)) for c, n in zip(sizes, partition.shape, strict=True))


def aligned(partition: Partition, chunks: Sequence[int]) -> Partition:
    """The partition with its cuts moved to the nearest way of sharing whole chunks."""
    bounds = {
        axis: [min(n, chunk * i) for i in cuts(-(-n // chunk), parts)]
        for axis, (n, chunk, parts) in enumerate(zip(partition.shape, chunks, partition.grid, strict=True))
    }
    return Partition(partition.shape, partition.mesh, partition.split, bounds)


def boxes(field: Field) -> Partition:
    """The field's partition; for points one by rows."""
    if isinstance(field.partition, Partition):
        return field.partition
    return Partition(field.shape, {"rank": field.comm.size})


def share(field: Field, chunks: Sequence[int]) -> tuple[Box, AnyArray] | None:
    """Which box of the whole this rank is to write, and its values, of the dtype that the file has; None if
    others do. Collective.

    Where cuts and chunks differ, values move to the rank that writes their chunk.
    """
    target = aligned(boxes(field), chunks)
    data = field.on_host()
    if boxes(field) is not field.partition or target.edges != field.partition.edges:
        move = Redistribution(field.comm, field.partition, target)
        data = move(data)
        move.close()
    box = target.box(field.comm.rank)
    if not box.size or not target.is_first(field.comm.rank):
        return None
    return box, np.asarray(data, order="C").view(file_folder.storage_of(field))


def values(field: Field, read: Callable[[Box], Any], path: PathLike) -> Any:
    """What this rank owns of the field, as read(box) finds it there. Collective.

    Raises:
        TransportError: on every rank if read fails on any.
    """
    partition = boxes(field)
    found: list[Any] = []
    failed = file_folder.attempt(lambda: found.append(read(partition.box(field.comm.rank))))
    file_folder.agree(field.comm, failed, "load", path)
    native = np.asarray(found[0], file_folder.storage_of(field), order="C")
    data = native.view(field.look.dtype.storage)  # float16 is kept as its bits, also in memory
    if partition is not field.partition:
        move = Redistribution(field.comm, partition, field.partition)
        data = move(data)
        move.close()
    return data
