"""Chunked files: fields are cut where chunks end, so that each has one writer; how both formats are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..._lazy import np
from ...communicator.communicator import Communicator
from ...communicator.mesh import Mesh, ranks_of
from ...core.partition import Box, Partition, Points, Split, cuts, integers
from ...core.types import AnyArray
from ...errors import LayoutError, demand
from ..field import Field
from ..own_part import on_host
from ..redistribution import Redistribution
from . import file_folder
from .file_folder import PathLike

Chunks = bool | Sequence[int]
_LARGEST = 64 << 20  # bytes of a chunk that nobody asked for


class Found(NamedTuple):
    """An array of a file: its name, shape, native dtype and unit, and what a format needs to read it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    unit: str
    place: Any


@dataclass(frozen=True)
class Reader:
    """A format of files that hold arrays with names: what its load and its read_into are.

    Attributes:
        module: the public one.
        need: loads what the format needs, or raises MissingError.
        look: finds the array of that name in a file; on rank 0.
        read: (path, found, field, out) -> what this rank owns of it; as Stored.read.
    """

    module: str
    need: Callable[[], object]
    look: Callable[[Path, str | None], Found]
    read: Callable[[Path, Found, Field, Any], Any]

    def _stored(self, comm: Communicator, path: PathLike, name: str | None) -> file_folder.Stored:
        self.need()
        path = file_folder.target_path(path, "load", comm, name=name)
        found: Found = file_folder.from_root(comm, "load", path, lambda: self.look(path, name))
        read, last = partial(self.read, path, found), found.name.rpartition("/")[2]
        return file_folder.Stored(path, found.shape, found.dtype, read, last, found.unit)

    def load(
        self,
        path: PathLike,
        ranks: Mesh | Communicator,
        name: str | None = None,
        whole: Partition | Points | None = None,
        *,
        split: Sequence[Split] | None = None,
        **options: object,
    ) -> Field:
        """Read an array of a file or store, of whatever origin, into a new field over ranks. Collective.

        Args:
            path: of an HDF5 file; of a zarr group, or of one array (format 2 or 3).
            name: of the array ("group/name" below the top in HDF5); may be left out if there is only one.
            whole, split: how to cut it, as Field takes them; default: over the mesh, or by rows.
            options: halo, periodic, ... as Field takes them.

        Raises:
            MissingError: h5py, or zarr 3, is not installed.
            TransportError: on every rank, if it cannot be read or has no such array of numbers.
            LayoutError: the partition is of another shape.
        """
        comm = ranks_of(ranks, "load")
        return self._stored(comm, path, name).load(ranks, whole, split, options)

    def read_into(self, field: Field, path: PathLike, name: str | None = None) -> None:
        """Fill a field from the array of its name; if that fails it stays as it was. Collective.

        Args:
            name: of the array, if it is another one.

        Raises:
            LayoutError, DtypeError: the array has another shape or dtype.
            TransportError: on every rank, if it cannot be read.
        """
        hint = f"{self.module}.read_into(field, path)"
        demand(field, Field, "what read_into was given", "read_into", hint)
        self._stored(field.comm, path, name or field.name or None).into(field)


def chunk_shape(partition: Partition, itemsize: int, wanted: Chunks = True) -> tuple[int, ...]:
    """The shape of chunks: as wanted, cut to the whole; True: the pieces of the ranks, below 64 MiB."""
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
    data = on_host(field)
    if boxes(field) is not field.partition or target.edges != field.partition.edges:
        move = Redistribution(field.comm, field.partition, target)
        data = move(data)
        move.close()
    box = target.box(field.comm.rank)
    if not box.size or not target.is_first(field.comm.rank):
        return None
    return box, np.asarray(data, order="C").view(file_folder.storage_of(field))


def values(
    field: Field, read: Callable[[Box, AnyArray | None], Any], path: PathLike, out: AnyArray | None = None
) -> Any:
    """What this rank owns of the field, as read(box, out) finds it there, in out or beside it. Collective."""
    partition = boxes(field)
    found: list[Any] = []
    straight = (
        out.view(file_folder.storage_of(field)) if out is not None and partition is field.partition else None
    )
    failed = file_folder.attempt(lambda: found.append(read(partition.box(field.comm.rank), straight)))
    file_folder.agree(field.comm, failed, "load", path)
    if straight is not None and found[0] is straight:
        return out
    native = np.asarray(found[0], file_folder.storage_of(field), order="C")
    data = native.view(field.look.dtype.storage)  # float16 is kept as its bits, also in memory
    if partition is not field.partition:
        move = Redistribution(field.comm, partition, field.partition)
        data = move(data)
        move.close()
    return data
