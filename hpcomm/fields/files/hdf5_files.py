"""Fields in HDF5 files, written and read by all ranks together. Needs h5py: pip install 'hpcomm[hdf5]'.

A dataset is made by rank 0, which asks HDF5 where in the file its data, or each of its chunks, will lie.
All ranks then write theirs there through MPI-IO, whatever HDF5 was built like. The size of compressed chunks
is not known before. They are made by all ranks at once, in memory, and written by HDF5, one rank after the
other.

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

from ..._lazy import MPI, LazyModule, np
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
    with file_folder.beside(comm, path) as part:
        room = _METADATA * (1 + len(fields)) + (0 if compression else sum(map(_room, fields, shapes)))
        now = file_folder.from_root(comm, "save", path, lambda: _begin(path, part, fields, mode, room))
        create = partial(_create, part, now, fields, shapes, compression)
        places = file_folder.from_root(comm, "save", path, create)
        if any(place is not None for place in places):
            _write(comm, part, zip(fields, shapes, places, strict=True), path)
        if compression is not None and any(shapes):
            _write_compressed(comm, part, zip(fields, shapes, strict=True), compression, path)
        file_folder.publish(comm, part, path, sync=sync)


def explain() -> str:
    """Who writes what, with the h5py that is installed."""
    _library()
    return (
        f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}: datasets and their chunks are written "
        "through MPI-IO by all ranks together; all ranks compress at once, and write compressed chunks one "
        "after the other"
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
) -> list[int | AnyArray | None]:
    """Make the file with its datasets; where the data of each begin in it, or those of each of its chunks.

    None: nowhere, or they are to be compressed.
    """
    with h5py.File(part, mode) as file:
        places = [_place(_dataset(file, f, c, compression)) for f, c in zip(fields, shapes, strict=True)]
    file_folder.reserve(part, part.stat().st_size)
    return places


def _place(dataset: Any) -> int | AnyArray | None:
    if dataset.chunks is None:
        return dataset.id.get_offset()  # type: ignore[no-any-return]
    if dataset.compression is not None:
        return None
    first = product(*(range(0, n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)))
    # github.com/HDFGroup/hdf5/issues/3003: chunks, unlike datasets, were told without the user block
    before = dataset.file.userblock_size if h5py.version.hdf5_version_tuple < (1, 14, 4) else 0
    places = [before + dataset.id.get_chunk_info_by_coord(at).byte_offset for at in first]
    return np.reshape(places, [-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)])


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
    dtype = _kept(file_folder.storage_of(field))
    if chunks is not None and compression is not None:
        made = file.create_dataset(
            field.name, field.shape, dtype, chunks=chunks, compression=compression, fillvalue=None
        )
    else:
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that its place in the file is known now
        early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        if chunks is not None:
            early.set_chunk(chunks)
        space = h5py.h5s.create_simple(field.shape) if field.shape else h5py.h5s.create(h5py.h5s.SCALAR)
        kind = h5py.h5t.py_create(dtype, logical=True)
        made = h5py.Dataset(h5py.h5d.create(file.id, field.name.encode(), kind, space, early))
    made.attrs["unit"] = field.unit
    return made


def _write(
    comm: Communicator,
    part: Path,
    fields: Iterable[tuple[Field, tuple[int, ...] | None, int | AnyArray | None]],
    path: Path,
) -> None:
    """Those that have a place, all ranks together."""
    with npy.opened(comm, part, "save", writing=True, meant=path) as file:
        for field, chunks, place in fields:
            if isinstance(place, int):
                npy.move(field, file, place, collective=True, writing=True)
            elif place is not None and chunks is not None:
                own = _share(field, chunks)
                failed = _write_chunks(file, chunks, place, *own) if own else ""
                file_folder.agree(comm, failed, "save", path)


def _write_chunks(file: MPI.File, chunks: tuple[int, ...], places: AnyArray, box: Box, data: AnyArray) -> str:
    """Write a box of whole chunks, each to its place; returns what failed."""
    for at in product(*(range(s.start, s.stop, n) for s, n in zip(box.slices(), chunks, strict=True))):
        inside = tuple(slice(a - b, a - b + n) for a, b, n in zip(at, box.start, chunks, strict=True))
        chunk = np.ascontiguousarray(data[inside])
        if chunk.shape != chunks:  # at the edge of the whole: in the file it is as long as all others
            cut, chunk = chunk, np.zeros(chunks, data.dtype)
            chunk[tuple(map(slice, cut.shape))] = cut
        place = int(places[tuple(a // n for a, n in zip(at, chunks, strict=True))])
        if failed := npy.moved(partial(file.Write_at, place), chunk.reshape(-1).view(np.uint8)):
            return failed
    return ""


def _write_compressed(
    comm: Communicator,
    part: Path,
    fields: Iterable[tuple[Field, tuple[int, ...] | None]],
    compression: object,
    path: Path,
) -> None:
    """Those that have chunks: each rank opens the file when those before it have closed it."""
    shares = [(f, c, _share(f, c)) for f, c in fields if c]
    mine: list[tuple[str, list[Packed]]] = []
    failed = file_folder.attempt(
        lambda: mine.extend((f.name, _packed(f, c, compression, own)) for f, c, own in shares if own)
    )
    file_folder.agree(comm, failed, "save", path)
    sizes = [len(chunk.data) + _ENTRY for _, chunks in mine for chunk in chunks]
    room = comm.context.mpi_handle.allreduce(sum(sizes)) + _METADATA
    file_folder.from_root(comm, "save", path, lambda: file_folder.reserve(part, room, part.stat().st_size))

    def write() -> None:
        with h5py.File(part, "r+") as file:
            for name, chunks in mine:
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


# -- reading ------------------------------------------------------------------------------------------------
def _read(path: Path, found: Found, field: Field, out: Any) -> Any:
    offset, held = found.place
    if offset is not None:
        return npy.values(field, held, offset, out=out)
    return values(field, partial(_read_box, path, found.name), path, out)


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


def _read_box(path: file_folder.PathLike, name: str, box: Box, out: AnyArray | None) -> Any:
    with h5py.File(path, "r") as file:
        if out is None or not out.size:
            return file[name][box.slices()]
        file[name].read_direct(out.view(_kept(out.dtype)), box.slices())
        return out


_reader = Reader("hdf5", _library, _look, _read)
load, read_into = _reader.load, _reader.read_into
