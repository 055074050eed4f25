"""Fields in zarr stores, each chunk written by its owner. Needs zarr 3: pip install 'hpcomm[zarr]'."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any
from warnings import catch_warnings

from ..._lazy import LazyModule, np
from ...communicator.communicator import Communicator
from ...errors import MissingError, UsageError, did_you_mean, located, where
from ...job.optional_packages import load as load_package
from ..field import Field
from . import file_folder
from .chunks import Chunks, Found, Reader, boxes, chunk_shape, share, values

zarr: Any = LazyModule("zarr")
_COMPLETE = "all_chunks_written"  # attribute of an array


def save(
    fields: Field | Sequence[Field], path: file_folder.PathLike, *, chunks: Chunks = True, **options: Any
) -> None:
    """Write fields to a zarr group, each as the array of its name, the unit as attribute. Collective.

    The group is a folder. It is written under another name and renamed when it is complete. If anything
    fails, an older group of that name stays. If the job is killed while it renames, only load finds the
    group.
    bfloat16 is stored as the 16-bit integers of its bits.

    Args:
        fields: over one communicator, with different names.
        chunks: shape of the chunks; True: the parts of the ranks, so that no messages are needed.
        options: as zarr's create_array has them: compressors, shards, fill_value, ...

    Raises:
        MissingError: zarr is not installed, or is older than 3.
        UsageError: names that are missing or equal, or an option that zarr does not have.
        DtypeError: elements that zarr does not give back.
        LayoutError: chunks that do not fit, or a partial field.
        TransportError: on every rank, if any of them could not write, or if path is something else.
    """
    _library()
    comm, fields = file_folder.named(fields, "save")
    path = file_folder.target_path(path, "save", comm, fields, chunks=chunks, options=sorted(options))
    _check_options(options, comm)
    file_folder.check_kept([f for f in fields if f.look.dtype.kind not in "biuhq"], "a zarr store", _kept)
    with located("save", comm):
        shapes = [chunk_shape(boxes(field), field.look.dtype.itemsize, chunks) for field in fields]

    # zarr reads a chunk that is not there as empty; so all are written, and a lost one can be told
    all_of_them = bool(dict(options.get("config") or {}).get("write_empty_chunks", True))

    def create() -> None:
        if path.exists() and not (path / "zarr.json").exists():
            raise OSError("something else is there")
        group = zarr.open_group(part, mode="w-")
        for field, shape in zip(fields, shapes, strict=True):
            made = group.create_array(
                field.name, shape=field.shape, chunks=shape, dtype=file_folder.storage_of(field), **options
            )
            made.attrs.update({"unit": field.unit, _COMPLETE: all_of_them})

    def write() -> None:
        group = zarr.open_group(part, mode="r+")
        with zarr.config.set({"array.write_empty_chunks": all_of_them}):
            for field, own in zip(fields, shares, strict=True):
                if own is not None:
                    group[field.name][own[0].slices()] = own[1]

    with file_folder.beside(comm, path) as part:
        file_folder.from_root(comm, "save", path, create)
        # with shards, files are these and not the chunks within them
        borders = [options.get("shards") or shape for shape in shapes]
        shares = [share(field, border) for field, border in zip(fields, borders, strict=True)]
        file_folder.agree(comm, file_folder.attempt(write), "save", path)
        file_folder.publish(comm, part, path)


# -- how ----------------------------------------------------------------------------------------------------
def _library() -> None:
    hint = "pip install 'hpcomm[zarr]'"
    version = load_package("zarr", "zarr cannot be loaded", "hpcomm.zarr", hint).__version__
    if int(version.split(".")[0]) < 3:
        raise MissingError(f"zarr is version {version}, 3 is needed", "hpcomm.zarr", hint)


def _check_options(options: dict[str, Any], comm: Communicator) -> None:
    known = {*signature(zarr.Group.create_array).parameters} - {"self", "name", "shape", "dtype", "data"}
    for name in sorted(options.keys() - known):
        hint = "all fields of a group in one call: save replaces a group that is there"
        hint = hint if name == "mode" else did_you_mean(name, known, "zarr's create_array has others")
        raise UsageError(f"zarr.save has no option {name!r}", where("save", comm), hint)


def _kept(dtype: np.dtype[Any]) -> Any:
    """What zarr makes of a dtype, seen in memory."""
    with catch_warnings(action="ignore"):  # that other programs may not know it, which saving says
        return zarr.create_array({}, shape=(1,), dtype=dtype).dtype


def _read(path: Path, found: Found, field: Field, out: Any) -> Any:
    return values(field, lambda box, _: np.asarray(_array(found.place, found.name)[box.slices()]), path)


def _look(path: Path, name: str | None) -> Found:
    """The array, whose name is empty where path is one, and the path."""
    path = file_folder.standing(path)
    if not path.is_dir():  # zarr would speak of a node
        raise FileNotFoundError(f"No such folder: {path}")
    store: Any = zarr.open(path, mode="r")
    wanted = ""
    if isinstance(store, zarr.Group):
        wanted = file_folder.meant(name, sorted(each for each, _ in store.arrays()), "array")
        store = store[wanted]
    dtype = file_folder.native(np.dtype(store.dtype))
    lost = store.nchunks - store.nchunks_initialized if store.attrs.get(_COMPLETE) else 0
    if lost:
        raise ValueError(f"{lost} of its {store.nchunks} chunks are lost")
    unit = str(store.attrs.get("unit", ""))
    return Found(wanted, tuple(store.shape), dtype, unit, path)


def _array(path: Path, name: str) -> Any:
    found: Any = zarr.open(path, mode="r")
    return found[name] if name else found


_reader = Reader("zarr", _library, _look, _read)
load, read_into = _reader.load, _reader.read_into
