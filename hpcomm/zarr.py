"""Fields in zarr stores, each chunk written by its owner. Needs zarr 3: pip install 'hpcomm[zarr]'."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import io
from .chunks import Chunks, boxes, chunk_shape, fill, share
from .errors import ConfigError, DtypeError, HpcommError, LayoutError, where
from .field import Field
from .mesh import Mesh

if TYPE_CHECKING:
    import numpy as np

    from .communicator import Communicator
    from .partition import Box, Partition, Points
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["load", "read_into", "save"]


def save(
    fields: Field | Sequence[Field], path: io.PathLike, *, chunks: Chunks = True, **options: Any
) -> None:
    """Write fields to a zarr group, each as the array of its name, the unit as attribute. Collective.

    The group is a folder. It is written beside its name and renamed when it is complete; if anything
    fails, what was there before stays. bfloat16 is stored as the 16-bit integers of its bits.

    Args:
        fields: over one communicator, with different names.
        chunks: their shape; True: the pieces of the ranks, so that nothing travels.
        options: as zarr's create_array has them: compressors, shards, fill_value, ...

    Raises:
        ConfigError: zarr is not installed, or is older than 3.
        UsageError: names that are missing or equal.
        LayoutError: chunks that do not fit, or a partial field.
        TransportError: on every rank, if any of them could not write, or if path is something else.
    """
    zarr = _library()
    fields = [fields] if isinstance(fields, Field) else list(fields)
    comm = io.named(fields, "save")
    path = Path(path)
    try:
        shapes = [chunk_shape(boxes(field), field.look.array.itemsize, chunks) for field in fields]
    except HpcommError as error:
        raise error.located("save", comm) from None

    def create() -> None:
        if path.exists() and not (path / "zarr.json").exists():
            raise OSError("something else is there")
        group = zarr.open_group(part, mode="w-")
        for field, shape in zip(fields, shapes, strict=True):
            made = group.create_array(
                field.name, shape=field.shape, chunks=shape, dtype=io.stored(field), **options
            )
            made.attrs["unit"] = field.unit

    def write() -> None:
        group = zarr.open_group(part, mode="r+")
        for field, own in zip(fields, shares, strict=True):
            if own is not None:
                group[field.name][own[0].slices()] = own[1]

    with io.beside(comm, path) as part:
        io.agree(comm, io.on_root(comm, create), "save", path)
        # with shards, files are these and not the chunks within them
        borders = [options.get("shards") or shape for shape in shapes]
        shares = [share(field, border) for field, border in zip(fields, borders, strict=True)]
        io.agree(comm, io.attempt(write), "save", path)
        io.agree(comm, io.on_root(comm, lambda: _publish(part, path)), "save", path)


def load(
    path: io.PathLike,
    ranks: Mesh | Communicator,
    name: str | None = None,
    whole: Partition | Points | None = None,
    *,
    split: Sequence[Any] | None = None,
    **options: Any,
) -> Field:
    """Read an array of a zarr store (format 2 or 3) into a new field over ranks. Collective.

    Args:
        path: of a group or of one array.
        name: of the array in the group; may be left out if there is only one.
        whole, split: how to cut it, as Field takes them; default: over the mesh, or by rows.
        options: halo, periodic, ... as Field takes them.

    Raises:
        ConfigError: zarr is not installed, or is older than 3.
        TransportError: on every rank, if the store cannot be read or has no such array of numbers.
        LayoutError: the partition is of another shape.
    """
    comm = ranks.comm if isinstance(ranks, Mesh) else ranks
    where_to, shape, dtype, unit = _found(comm, Path(path), name)
    if whole is not None and whole.shape != shape:
        raise LayoutError(f"{path} holds shape {shape}, the partition is {whole}", where("load", comm))
    options = {"name": where_to, "unit": unit} | options
    field = Field(ranks, shape if whole is None else whole, split=split, dtype=np.dtype(dtype), **options)
    _read(field, Path(path), where_to)
    return field


def read_into(field: Field, path: io.PathLike, name: str | None = None) -> None:
    """Fill a field from the array of its name; if that fails it stays as it was. Collective.

    Args:
        name: of the array, if it is another one.

    Raises:
        LayoutError, DtypeError: the array has another shape or dtype.
        TransportError: on every rank, if it cannot be read.
    """
    where_to, shape, dtype, _ = _found(field.comm, Path(path), name or field.name or None)
    if shape != field.shape:
        raise LayoutError(
            f"{path} holds shape {shape}, the field has {field.shape}", where("load", field.comm)
        )
    if np.dtype(dtype) != io.stored(field):
        raise DtypeError(
            f"{path} holds {np.dtype(dtype)}, the field {field.look.dtype}", where("load", field.comm)
        )
    _read(field, Path(path), where_to)


# -- how ----------------------------------------------------------------------------------------------------
def _library() -> Any:
    hint = "pip install 'hpcomm[zarr]', which needs Python 3.11"
    try:
        import zarr
    except ImportError as error:
        raise ConfigError(f"zarr cannot be loaded: {error}", "hpcomm.zarr", hint) from error
    if int(zarr.__version__.split(".")[0]) < 3:
        raise ConfigError(f"zarr is version {zarr.__version__}, 3 is needed", "hpcomm.zarr", hint)
    return zarr


def _publish(part: Path, path: Path) -> None:
    """Give the folder its name; an older one steps aside for a moment, because folders replace none."""
    old = part.with_suffix(".old")
    if path.exists():
        path.rename(old)
    part.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _array(path: Path, name: str) -> Any:
    found = _library().open(path, mode="r")
    return found[name] if name else found


def _found(comm: Communicator, path: Path, name: str | None) -> tuple[str, tuple[int, ...], str, str]:
    """Name (empty for path itself), shape, native dtype and unit of the array."""
    zarr = _library()
    found: list[Any] = []

    def look() -> None:
        if not os.path.isdir(path):  # noqa: PTH112  zarr would speak of a node
            raise FileNotFoundError(f"No such folder: {path}")
        store = zarr.open(path, mode="r")
        wanted = ""
        if isinstance(store, zarr.Group):
            names = sorted(each for each, _ in store.arrays())
            if name is None and len(names) != 1:
                raise ValueError(f"it holds the arrays {', '.join(names) or '(none)'}: name one")
            wanted = names[0] if name is None else name
            if wanted not in names:
                raise ValueError(f"it has no array {wanted!r}, but {', '.join(names) or '(none)'}")
            store = store[wanted]
        dtype = np.dtype(store.dtype)
        if dtype.kind not in "biufc":
            raise ValueError(f"it holds {dtype}, which no field does")
        unit = store.attrs.get("unit", "")
        found.append((wanted, tuple(store.shape), dtype.newbyteorder("=").str, str(unit)))

    io.agree(comm, io.on_root(comm, look), "load", path)
    told: tuple[str, tuple[int, ...], str, str] = comm.broadcast_object(found[0] if found else None)
    return told


def _read(field: Field, path: Path, name: str) -> None:
    def read(box: Box) -> Any:
        return np.asarray(_array(path, name)[box.slices()])

    fill(field, read, path)
