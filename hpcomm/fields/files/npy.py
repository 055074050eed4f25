"""Fields in files, through MPI-IO: one `.npy` file that plain numpy reads, or raw numbers at an offset.

The file holds the whole in C order, whoever owns what, so any number of ranks and any partition reads
it back. A file appears under its name only when all of it is there.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..._lazy import MPI, np
from ...communicator.communicator import Communicator
from ...communicator.mesh import Mesh, ranks_of
from ...core.partition import Partition, Points, Split
from ...core.types import AnyArray
from ...errors import HpcommError, UsageError, demand, where
from ...transport.datatypes import strided
from ..field import Field
from ..own_part import check_whole, from_host, on_host
from . import file_folder

_PIECE = 1 << 30  # bytes of the largest single read or write: counts are C ints


def save(field: Field, path: file_folder.PathLike, *, collective: bool = True, sync: bool = False) -> None:
    """Write the whole field to one .npy file. Collective.

    The file is written under another name and renamed when it is complete. If anything fails, an older file
    of that name stays.

    Args:
        collective: ranks write together (MPI_File_write_all), which joins small pieces into large ones.
            False: each writes for itself.
        sync: wait until the operating system has written the bytes to the disk.

    Raises:
        TransportError: on every rank, if any of them could not write (a full disk, no permission).
        MismatchError: on every rank, if they do not give the same path and options.
    """
    path = _checked(field, "save", path, collective=bool(collective), sync=bool(sync))
    comm = field.comm
    head = _header(field, field.shape)
    with file_folder.beside(comm, path) as part:
        file_folder.from_root(comm, "save", path, lambda: _begin(part, head, len(head) + nbytes(field)))
        with opened(comm, part, "save", True, path) as file:
            move(field, file, len(head), collective, writing=True)
        file_folder.publish(comm, part, path, len(head) + nbytes(field), sync)


def append(field: Field, path: file_folder.PathLike, *, collective: bool = True, sync: bool = False) -> None:
    """Write the whole field behind what a .npy file holds, as the next entry of its first axis. Collective.

    A file that is not there is made. What it holds stays where it is, and the header counts an entry when all
    of it is there. So if anything fails, the file holds what it held before.

    Args:
        collective, sync: as of save.

    Raises:
        TransportError: on every rank, if any could not write, or the file holds another shape or dtype.

    Example:
        >>> for step in range(3):
        ...     io.append(T, "T.npy")  # of shape (512, 512)
        >>> numpy.load("T.npy", mmap_mode="r").shape
        (3, 512, 512)
    """
    path = _checked(field, "append", path, collective=bool(collective), sync=bool(sync))
    comm = field.comm
    head, end = file_folder.from_root(comm, "append", path, lambda: _behind(field, path))
    with opened(comm, path, "append", writing=True) as file:
        move(field, file, end, collective, writing=True)
    if sync:
        file_folder.agree(comm, file_folder.attempt(lambda: file_folder.flush(path)), "append", path)
    file_folder.from_root(comm, "append", path, lambda: _count(path, head, sync))


def _count(path: Path, head: bytes, sync: bool) -> None:
    with path.open("r+b") as file:
        file.write(head)
    if sync:
        file_folder.flush(path)


def _behind(field: Field, path: Path) -> tuple[bytes, int]:
    """The header of a file with one entry more, and where that begins; there is room for it."""
    if not path.exists():
        path.write_bytes(_header(field, (0, *field.shape)))
    shape, dtype, offset, fortran = _read_header(path)
    held, due = f"{dtype} {shape[1:]}", f"{file_folder.storage_of(field)} {field.shape}"
    if held != due or fortran or not shape:
        raise ValueError(f"its entries are {held}{' in Fortran order' * fortran}, the field is {due}")
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
    head = _header(field, (shape[0] + 1, *field.shape), version)
    if len(head) != offset:
        raise ValueError("its header has no room for a longer shape: save it again by this numpy")
    end = offset + shape[0] * nbytes(field)
    file_folder.reserve(path, nbytes(field), end)
    return head, end


def load(
    path: file_folder.PathLike,
    ranks: Mesh | Communicator,
    whole: Partition | Points | None = None,
    *,
    split: Sequence[Split] | None = None,
    collective: bool = True,
    **options: object,
) -> Field:
    """Read a .npy file into a new field over ranks. Collective.

    Args:
        whole, split: how to cut it, as Field takes them; default: over the mesh, or by rows.
        options: halo, periodic, name, unit, ... as Field takes them.

    Raises:
        TransportError: on every rank, if the file cannot be read, is no .npy file or is too short.
        LayoutError: the partition is of another shape.
    """
    comm = ranks_of(ranks, "load")
    return found(comm, path, collective).load(ranks, whole, split, options)


def read_into(field: Field, path: file_folder.PathLike, *, collective: bool = True) -> None:
    """Fill a field from a .npy file of its shape and dtype; if that fails it stays as it was. Collective."""
    _check(field, "read_into")
    found(field.comm, path, collective).into(field)


def write_raw(field: Field, path: file_folder.PathLike, offset: int = 0, *, collective: bool = True) -> None:
    """Write the whole, C order, no header, at offset (bytes) of a file, which is made if need be. Collective.

    The rest of the file stays; so there is nothing atomic about it.
    """
    path = _checked(field, "write_raw", path, collective=bool(collective), offset=offset)
    _check_offset(field, offset)
    comm = field.comm
    file_folder.from_root(comm, "write_raw", path, lambda: file_folder.reserve(path, nbytes(field), offset))
    with opened(comm, path, "write_raw", writing=True) as file:
        move(field, file, offset, collective, writing=True)


def read_raw(field: Field, path: file_folder.PathLike, offset: int = 0, *, collective: bool = True) -> None:
    """Fill a field from the numbers at offset (bytes) of a file, C order. Collective.

    Raises:
        TransportError: on every rank, and the field stays as it was, if the file ends too early.
    """
    _check(field, "read_raw")
    path = file_folder.target_path(path, "read_raw", field.comm, collective=bool(collective), offset=offset)
    _check_offset(field, offset)
    from_host(field, values(field, path, offset, collective))


def _check(field: Field, verb: str) -> None:
    hint = f"io.{verb}(field, path); an array x becomes a field by Field(comm, shape, array=x)"
    demand(field, Field, f"what {verb} was given", verb, hint)


def _checked(field: Field, verb: str, path: file_folder.PathLike, **said: object) -> Path:
    """The path where a field is to be written that can be."""
    _check(field, verb)
    check_whole(field, verb)
    said |= {"shape": field.shape, "dtype": field.look.dtype}  # names are not in the file
    path = file_folder.target_path(path, verb, field.comm, (), **said)
    if verb != "write_raw":
        check_kept([field])
    return path


def check_kept(fields: Sequence[Field]) -> None:
    """Refuse fields whose dtype the header of a .npy file does not tell."""

    def kept(dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype))

    file_folder.check_kept(fields, "a .npy file", kept)


def _check_offset(field: Field, offset: int) -> None:
    if not isinstance(offset, int) or offset < 0:
        raise UsageError(f"the offset is {offset!r}", where("raw", field.comm), "bytes, 0 or more")


# -- header and file -------------------------------------------------------------------------------------
def _header(field: Field, shape: tuple[int, ...], version: tuple[int, int] = (2, 0)) -> bytes:
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(file_folder.storage_of(field))
    first, later = np.lib.format.write_array_header_1_0, np.lib.format.write_array_header_2_0
    write = first if version == (1, 0) else later
    write(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def nbytes(field: Field) -> int:
    """Of the whole in a file."""
    return int(math.prod(field.shape) * field.look.dtype.itemsize)


def _begin(part: Path, head: bytes, nbytes: int) -> None:
    part.write_bytes(head)
    file_folder.reserve(part, nbytes)


def _read_header(path: Path) -> tuple[tuple[int, ...], np.dtype[np.generic], int, bool]:
    """Shape, dtype, where the numbers begin, and whether the first axis runs fastest."""
    first, later = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = (first if version == (1, 0) else later)(file)
        file_folder.native(dtype)
        if any(n < 0 for n in shape):
            raise ValueError(f"its shape is {shape}")
        _check_length(path, file.tell() + math.prod(shape) * dtype.itemsize)
        return tuple(shape), dtype, file.tell(), fortran and len(shape) > 1


def _check_length(path: Path, need: int) -> None:
    there = path.stat().st_size
    if there < need:
        raise OSError(f"it has {there:,} bytes, {need:,} are needed: it was cut off")


@contextmanager
def opened(
    comm: Communicator, path: Path, verb: str, writing: bool, meant: Path | None = None
) -> Iterator[MPI.File]:
    """The file on all ranks; errors are everybody's. meant: the name that it will have."""
    mode = MPI.MODE_WRONLY | MPI.MODE_CREATE if writing else MPI.MODE_RDONLY
    file: list[MPI.File] = []
    intra: Any = comm.context.mpi_handle
    failed = file_folder.attempt(lambda: file.append(MPI.File.Open(intra, str(path), mode)))
    try:
        file_folder.agree(comm, failed, verb, meant or path)
        yield file[0]
    except HpcommError:  # everybody's; at any other the ranks would wait for each other in Close
        for handle in file:
            file_folder.attempt(handle.Close)
        raise
    file_folder.agree(comm, file_folder.attempt(file[0].Close), verb, meant or path)


# -- data -------------------------------------------------------------------------------------------------
def found(comm: Communicator, path: file_folder.PathLike, collective: bool = True) -> file_folder.Stored:
    """What a .npy file holds. Collective."""
    path = file_folder.target_path(path, "load", comm, collective=bool(collective))
    shape, dtype, offset, fortran = file_folder.from_root(comm, "load", path, lambda: _read_header(path))
    native = file_folder.native(dtype)

    def read(field: Field, out: object) -> Any:
        data = values(field, path, offset, collective, out, fortran)
        if dtype != native:
            data.view(native)[...] = data.view(dtype)
        return data

    return file_folder.Stored(path, shape, native, read)


def values(
    field: Field,
    path: file_folder.PathLike,
    offset: int,
    collective: bool = True,
    out: Any = None,
    fortran: bool = False,
) -> Any:
    """What this rank owns of the whole that begins at offset, read into out if that is given. Collective.

    Args:
        fortran: whether the first axis of the whole runs fastest.

    Raises:
        TransportError: on every rank, if the file ends too early for any.
    """
    path = Path(path)
    need = offset + nbytes(field)
    file_folder.from_root(field.comm, "load", path, lambda: _check_length(path, need))
    with opened(field.comm, path, "load", writing=False) as file:
        if not fortran:
            return move(field, file, offset, collective, writing=False, out=out)
        data: Any = move(field, file, offset, collective, writing=False, fortran=True)
    if out is None:
        return data
    out.view(data.dtype)[...] = data
    return out


def move(
    field: Field,
    file: MPI.File,
    offset: int,
    collective: bool,
    writing: bool,
    out: AnyArray | None = None,
    fortran: bool = False,
) -> AnyArray | None:
    """Write what this rank owns to its place in the file, or read it, into out if that is given.

    Args:
        fortran: whether the first axis runs fastest in the file; such are read only, and into no out.
    """
    order, displacement, kind = _view(field, offset, fortran)
    if writing and field.is_first:
        own = on_host(field).view(field.look.dtype.storage)  # numpy leaves out what lies between components
        data = np.ascontiguousarray(own if order is None else own[order])
    elif writing:  # copies are written once
        data = np.empty(0, field.look.dtype.storage)
    else:
        shape, storage = field.owned_shape, field.look.dtype.storage
        data = np.empty(shape, storage, "F" if fortran else "C") if out is None else out
    flat = data.reshape(-1, order="A").view(np.uint8)  # as it lies in memory
    verb, function = ("save", "Write") if writing else ("load", "Read")
    failed = file_folder.attempt(lambda: file.Set_view(displacement, MPI.BYTE, kind, "native"))
    file_folder.agree(field.comm, failed, verb, "the file")
    failed = _move_pieces(field.comm, file, function, flat, collective)
    kind.Free()
    file_folder.agree(field.comm, failed, verb, "the file")
    if not writing and order is not None:
        sorted_rows = data.copy()
        data[order] = sorted_rows
    return data


def _move_pieces(comm: Communicator, file: MPI.File, function: str, flat: AnyArray, collective: bool) -> str:
    """Write or read flat in pieces, of which all ranks have as many; returns what failed."""
    failed = ""
    for i in range(comm.context.mpi_handle.allreduce(-(-flat.nbytes // _PIECE), MPI.MAX)):
        piece = flat[i * _PIECE : (i + 1) * _PIECE]
        if collective:  # the others need this rank's call, whatever went wrong here
            failed = moved(getattr(file, f"{function}_all"), piece) or failed
        elif piece.nbytes and not failed:
            failed = moved(getattr(file, function), piece)
    return failed


def moved(function: Callable[[Any, MPI.Status], object], piece: AnyArray) -> str:
    """Call one of MPI's functions that write or read flat bytes; returns what failed."""
    status = MPI.Status()
    failed = file_folder.attempt(lambda: function([piece, MPI.BYTE], status))
    count = status.Get_count(MPI.BYTE)
    if not failed and count != piece.nbytes:
        failed = f"{count} of {piece.nbytes} bytes went through"
    return failed


def _view(field: Field, offset: int, fortran: bool) -> tuple[AnyArray | None, int, MPI.Datatype]:
    """(order of own rows in the file, where this rank begins, its type in the file).

    A file in Fortran order is one in C order of the axes turned round.
    """
    itemsize, turn = field.look.dtype.itemsize, -1 if fortran else 1
    shape = field.shape[::turn]
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    if isinstance(field.partition, Points):
        return _view_of_points(field.partition.owned[field.comm.rank], field.shape, itemsize, offset, fortran)
    assert field.box is not None
    if not field.box.size:
        return None, offset, MPI.BYTE.Create_contiguous(1).Commit()
    begin = sum(a * s for a, s in zip(field.box.start[::turn], strides, strict=True))
    return None, offset + begin, strided(field.box.shape[::turn], strides, itemsize).Commit()


def _view_of_points(
    held: AnyArray, shape: tuple[int, ...], itemsize: int, offset: int, fortran: bool
) -> tuple[AnyArray, int, MPI.Datatype]:
    """The same for rows of an array, of which some are held."""
    order = np.argsort(held, kind="stable")
    others = math.prod(shape[1:])
    row = itemsize if fortran else others * itemsize
    unit = MPI.BYTE.Create_contiguous(row)
    rows = unit.Create_hindexed_block(1, [int(i) * row for i in held[order]])
    unit.Free()
    if not fortran:
        kind = rows.Commit()
    else:  # all rows' first elements, then all second ones, ...
        one = rows.Create_resized(0, shape[0] * itemsize)
        kind = one.Create_contiguous(others).Commit()
        rows.Free()
        one.Free()
    if not (held.size and others):
        kind.Free()
        kind = MPI.BYTE.Create_contiguous(1).Commit()
    return order, offset, kind
