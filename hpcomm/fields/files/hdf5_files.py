"""Fields in HDF5 files, written and read by all ranks together. Needs h5py: pip install 'hpcomm[hdf5]'.

A dataset in one piece is made by rank 0 and then written by all ranks through MPI-IO at its place in the
file, whatever HDF5 was built like. A dataset in chunks is written by the owners of the chunks: together if
h5py was built with parallel HDF5, else one rank after the other. Compressed chunks are made by all ranks at
once, in memory, and written one rank after the other. `explain()` says which.

HDF5 ends the process where it finds the disk full while it closes a file. So the space of all is reserved
before it is written, that of compressed chunks as soon as their sizes are known.
"""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..._lazy import LazyModule, np
from ...communicator.communicator import Communicator
from ...core.partition import Box
from ...core.types import AnyArray
from ...errors import UsageError, located, where
from ...job.optional_packages import load as load_package
from ..field import Field
from . import file_folder, npy
from .chunks import Chunks, Found, Reader, boxes, chunk_shape, share, values

h5py: Any = LazyModule("h5py")
_MODES = ("w", "a", "r+", "x", "w-")
_METADATA = 1 << 14  # bytes that HDF5 needs at most for a dataset without its data
_ENTRY = 512  # and for the place of a chunk


def save(
    fields: Field | Sequence[Field],
    path: file_folder.PathLike,
    *,
    mode: str = "w",
    chunks: Chunks | None = None,
    compression: object = None,
    sync: bool = False,
) -> None:
    """Write fields to a file, each as the dataset of its name, the unit as attribute. Collective.

    The file is written under another name and renamed when it is complete. If anything fails, an older file
    of that name stays. bfloat16 is stored as the 16-bit integers of its bits.

    Args:
        fields: over one communicator, with different names.
        mode: as h5py's. "w" makes a new file in place of an older one; "x" or "w-" only where none is. "a"
            adds to a file or makes it; "r+" to one that is there. A dataset of the same name is an error.
            What is added to is copied first, so it stays as it was if anything fails.
        chunks: shape of the chunks; True: the parts of the ranks; None: datasets in one piece.
        compression: of the chunks, as h5py's create_dataset has it ("gzip", "lzf", ...).
        sync: wait until the bytes are on the disk.

    Raises:
        MissingError: h5py is not installed.
        UsageError: names that are missing or equal, or another mode.
        DtypeError: elements that HDF5 does not give back, such as dates in records.
        LayoutError: chunks that do not fit, or a partial field.
        TransportError: on every rank, if any of them could not write, or mode or a name does not fit what is
            there.
    """
    _library()
    comm, fields = file_folder.named(fields, "save")
    if compression is not None and chunks in (None, False):
        chunks = True
    options = {"mode": mode, "chunks": chunks, "compressed": compression is not None, "sync": bool(sync)}
    path = file_folder.target_path(path, "save", comm, fields, **options)
    file_folder.check_kept(
        fields, "an HDF5 file", lambda dtype: h5py.h5t.py_create(_kept(dtype), logical=True).dtype
    )
    with located("save", comm):
        shapes = [_chunks(field, chunks) for field in fields]
    if mode not in _MODES:
        raise UsageError(f"the mode is {mode!r}", where("save", comm), f"one of {', '.join(_MODES)}")
    together = h5py.get_config().mpi and any(shapes) and compression is None
    with file_folder.beside(comm, path) as part:
        room = _METADATA * (1 + len(fields)) + (0 if compression else sum(map(_room, fields, shapes)))
        now = file_folder.from_root(comm, "save", path, lambda: _begin(path, part, fields, mode, room))
        if together:
            _write_together(comm, part, now, fields, shapes, path)
        else:
            places = file_folder.from_root(
                comm, "save", path, lambda: _create(part, now, fields, shapes, compression)
            )
            _write_plain(comm, part, zip(fields, places, strict=True))
            if any(shapes):
                _write_chunks(comm, part, zip(fields, shapes, strict=True), compression, path)
        file_folder.publish(comm, part, path, sync=sync)


def explain() -> str:
    """Who writes what, with the h5py that is installed."""
    _library()
    chunks = "all ranks together" if h5py.get_config().mpi else "its owners, one rank after the other"
    build = "with" if h5py.get_config().mpi else "without"
    return (
        f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version} {build} MPI: datasets in one piece are "
        f"written through MPI-IO by all ranks together, chunks by {chunks}; all ranks compress at once, and "
        "write compressed chunks one after the other"
    )


# -- writing ------------------------------------------------------------------------------------------------
def _library() -> Any:
    return load_package("h5py", "h5py cannot be loaded", "hpcomm.hdf5", "pip install 'hpcomm[hdf5]'")


def _chunks(field: Field, wanted: Chunks | None) -> tuple[int, ...] | None:
    """The shape of a field's chunks; None: in one piece, as what has no axes or no elements always is."""
    if wanted is None or wanted is False or not field.shape or 0 in field.shape:
        return None
    return chunk_shape(boxes(field), field.look.dtype.itemsize, wanted)


def _begin(path: Path, part: Path, fields: Sequence[Field], mode: str, room: int) -> str:
    """Make part, with room for more, a copy of what is added to; the mode in which it is opened."""
    if mode in ("x", "w-") and path.exists():
        raise FileExistsError("it is there already")
    adds = mode == "r+" or (mode == "a" and path.exists())
    if adds:
        with h5py.File(path, "r") as file:
            for field in fields:
                if field.name in file:
                    raise ValueError(f"it has {field.name!r} already: another name, or del by h5py")
        shutil.copy(path, part)
    file_folder.reserve(part, room, path.stat().st_size if adds else 0)
    return "r+" if adds else "w"


def _create(
    part: Path,
    mode: str,
    fields: Sequence[Field],
    shapes: Sequence[tuple[int, ...] | None],
    compression: object,
) -> list[int | None]:
    """Make the file with its datasets; where the data of each begin in it (None: in chunks, or nowhere)."""
    with h5py.File(part, mode) as file:
        datasets = [_dataset(file, f, c, compression) for f, c in zip(fields, shapes, strict=True)]
        places = [d.id.get_offset() if d.chunks is None else None for d in datasets]
    chunked = [_room(f, c) for f, c in zip(fields, shapes, strict=True) if c and compression is None]
    # Of what HDF5 has not taken in the end, closing the file gives back the rest.
    file_folder.reserve(part, sum(chunked), part.stat().st_size)
    return places


def _room(field: Field, chunks: tuple[int, ...] | None) -> int:
    """Bytes that the data take at most. Each chunk is whole in the file, and has its place in an index."""
    if chunks is None:
        return npy.nbytes(field)
    many = math.prod(-(-n // c) for n, c in zip(field.shape, chunks, strict=True))
    return many * (math.prod(chunks) * field.look.dtype.itemsize + _ENTRY)


def _kept(dtype: np.dtype[Any]) -> Any:
    """dtype for h5py, which keeps dates, and text of 32 bits a letter, as opaque bytes with a tag."""
    return h5py.opaque_dtype(dtype) if dtype.kind in "mMU" else dtype


def _share(field: Field, chunks: tuple[int, ...]) -> tuple[Box, AnyArray] | None:
    own = share(field, chunks)
    return own and (own[0], own[1].view(_kept(own[1].dtype)))


def _dataset(file: Any, field: Field, chunks: tuple[int, ...] | None, compression: object = None) -> Any:
    if chunks is None:
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that its place in the file is known now
        early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        kind = h5py.h5t.py_create(_kept(file_folder.storage_of(field)), logical=True)
        space = h5py.h5s.create_simple(field.shape) if field.shape else h5py.h5s.create(h5py.h5s.SCALAR)
        made = h5py.Dataset(h5py.h5d.create(file.id, field.name.encode(), kind, space, early))
    else:
        made = file.create_dataset(
            field.name,
            field.shape,
            _kept(file_folder.storage_of(field)),
            chunks=chunks,
            compression=compression,
            fillvalue=None,
        )
    made.attrs["unit"] = field.unit
    return made


def _write_plain(comm: Communicator, part: Path, fields: Iterable[tuple[Field, int | None]]) -> None:
    """Those that have a place, in one piece, all ranks together."""
    if plain := [(field, place) for field, place in fields if place]:
        with npy.opened(comm, part, "save", writing=True) as file:
            for field, place in plain:
                npy.move(field, file, place, collective=True, writing=True)


def _write_chunks(
    comm: Communicator,
    part: Path,
    fields: Iterable[tuple[Field, tuple[int, ...] | None]],
    compression: object,
    path: Path,
) -> None:
    """Those that have chunks: each rank opens the file when those before it have closed it."""
    shares = [(f, c, _share(f, c)) for f, c in fields if c]
    packed: list[list[Packed]] = []
    if compression is not None:
        failed = file_folder.attempt(
            lambda: packed.extend(_packed(f, c, compression, own) for f, c, own in shares if own)
        )
        file_folder.agree(comm, failed, "save", path)
        sizes = [len(chunk.data) + _ENTRY for chunks in packed for chunk in chunks]
        room = comm.context.mpi_handle.allreduce(sum(sizes))
        room += _METADATA
        file_folder.from_root(
            comm, "save", path, lambda: file_folder.reserve(part, room, part.stat().st_size)
        )
    mine = [(f.name, *own) for f, _, own in shares if own is not None]

    def write() -> None:
        with h5py.File(part, "r+") as file:
            for name, box, data in mine if compression is None else ():
                file[name][box.slices()] = data
            for (name, _, _), chunks in zip(mine, packed, strict=False):
                for chunk in chunks:
                    file[name].id.write_direct_chunk(chunk.begin, chunk.data, chunk.mask)

    failed = ""
    for rank in range(comm.size):
        if rank == comm.rank and mine:
            failed = file_folder.attempt(write)
        comm.context.mpi_handle.Barrier()
    file_folder.agree(comm, failed, "save", path)


class Packed(NamedTuple):
    """A chunk as it will be in the file: where in the whole it begins, and which filters it did without."""

    begin: tuple[int, ...]
    mask: int
    data: bytes


def _packed(
    field: Field, chunks: tuple[int, ...], compression: object, own: tuple[Box, AnyArray]
) -> list[Packed]:
    """The chunks of this rank's share, compressed in memory."""
    box, data = own
    with h5py.File(secrets.token_hex(8), "w", driver="core", backing_store=False) as memory:
        made = _dataset(memory, field, chunks, compression)
        made[box.slices()] = data
        memory.flush()
        begins = product(*(range(s.start, s.stop, n) for s, n in zip(box.slices(), chunks, strict=True)))
        return [Packed(at, *made.id.read_direct_chunk(at)) for at in begins]


def _write_together(
    comm: Communicator,
    part: Path,
    mode: str,
    fields: Sequence[Field],
    shapes: Sequence[tuple[int, ...] | None],
    path: Path,
) -> None:
    """All ranks in one parallel file: none goes on to the next step before all are through with this one."""
    opened: list[Any] = []

    def begin() -> None:
        opened.append(h5py.File(part, mode, driver="mpio", comm=comm.context.mpi_handle))

    def write(field: Field, chunks: tuple[int, ...] | None) -> None:
        dataset = _dataset(opened[0], field, chunks)
        if chunks is not None:
            _write_collectively(dataset, own)
        elif own is not None:  # one number or none at all
            dataset[own[0].slices()] = own[1]

    try:
        file_folder.agree(comm, file_folder.attempt(begin), "save", path)
        for field, chunks in zip(fields, shapes, strict=True):
            own = _share(field, chunks or chunk_shape(boxes(field), 1))
            file_folder.agree(comm, file_folder.attempt(partial(write, field, chunks)), "save", path)
    finally:
        failed = file_folder.attempt(opened[0].close) if opened else ""
    file_folder.agree(comm, failed, "save", path)


def _write_collectively(dataset: Any, own: tuple[Box, AnyArray] | None) -> None:
    """Who has nothing writes nothing, which h5py's own words leave out."""
    data = own[1] if own else np.empty((1,) * len(dataset.shape), dataset.dtype)
    memory, place = h5py.h5s.create_simple(data.shape), dataset.id.get_space()
    if own is None:
        memory.select_none()
        place.select_none()
    else:
        place.select_hyperslab(own[0].start, own[0].shape)
    how = h5py.h5p.create(h5py.h5p.DATASET_XFER)
    how.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
    dataset.id.write(memory, place, data, dxpl=how)


# -- reading ------------------------------------------------------------------------------------------------
def _read(path: Path, found: Found, field: Field, out: Any) -> Any:
    offset, held = found.place
    if offset is not None:
        return npy.values(field, held, offset, out=out)
    return values(field, lambda box: _read_box(path, found.name, box), path)


def _look(path: Path, name: str | None) -> Found:
    """The dataset; where its data begin, if that is all there is to it, and in which file (that of an
    external link is another one)."""
    with h5py.File(path, "r") as file:
        wanted, dataset = _dataset_called(file, name)
        dtype = file_folder.native(dataset.dtype)
        if dataset.shape is None:
            raise ValueError(f"{wanted!r} is empty (h5py.Empty): it has no shape")
        plist = dataset.id.get_create_plist()
        contiguous = plist.get_layout() == h5py.h5d.CONTIGUOUS and not plist.get_external_count()
        # Integers may have fewer bits than bytes, or lie shifted: only what is as in memory is a range.
        plain = dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True)
        offset = dataset.id.get_offset() if contiguous and plain and dataset.dtype.isnative else None
        unit = dataset.attrs.get("unit", "")
        unit = unit if isinstance(unit, str) else ""
        return Found(wanted, tuple(dataset.shape), dtype, unit, (offset, dataset.file.filename))


def _dataset_called(file: Any, name: str | None) -> tuple[str, Any]:
    """The dataset that is meant, also behind links, with its name."""
    names: list[str] = []
    linked: list[str] = []
    file.visititems(lambda each, what: names.append(each) if isinstance(what, h5py.Dataset) else None)
    soft = (h5py.SoftLink, h5py.ExternalLink)
    file.visititems_links(lambda each, link: linked.append(each) if isinstance(link, soft) else None)
    if name is None:  # links count where there is nothing else
        name = file_folder.meant(None, names or linked, "dataset")
    found = file.get(name)
    if isinstance(found, h5py.Dataset):
        return name, found
    link = file.get(name, getlink=True)
    if found is None and isinstance(link, soft):
        there = f" in {link.filename}" if isinstance(link, h5py.ExternalLink) else ""
        raise ValueError(f"{name!r} is a link to {link.path!r}{there}, where nothing is")
    return file_folder.meant(name, [each for each in names + linked if each != name], "dataset"), found


def _read_box(path: file_folder.PathLike, name: str, box: Box) -> Any:
    with h5py.File(path, "r") as file:
        return file[name][box.slices()]


_reader = Reader("hdf5", _library, _look, _read)
load, read_into = _reader.load, _reader.read_into
