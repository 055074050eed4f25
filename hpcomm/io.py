"""Fields in files, through MPI-IO: one `.npy` file that plain numpy reads, or raw numbers at an offset.

The file holds the whole in C order, whoever owns what, so any number of ranks and any partition reads
it back. A file appears under its name only when all of it is there.
"""

from __future__ import annotations

import io
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from .errors import DtypeError, HpcommError, LayoutError, TransportError, UsageError, where
from .exchange import strided
from .field import Field
from .mesh import Mesh
from .partition import Partition, Points

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from . import dtypes
    from .communicator import Communicator
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    dtypes = LazyModule("hpcomm.dtypes")

__all__ = [
    "agree",
    "attempt",
    "beside",
    "load",
    "move",
    "named",
    "on_root",
    "opened",
    "publish",
    "read_into",
    "read_raw",
    "save",
    "stored",
    "write_raw",
]

_PIECE = 1 << 30  # bytes of the largest single read or write: counts are C ints
PathLike = Union[str, "os.PathLike[str]"]


def save(field: Field, path: PathLike, *, collective: bool = True, sync: bool = False) -> None:
    """Write the whole field to one .npy file. Collective.

    The file is written beside its name and renamed when it is complete; if anything fails, what was
    there before stays.

    Args:
        collective: ranks write together (MPI_File_write_all), which gathers small pieces into large ones;
            False: each for itself.
        sync: wait until the bytes are on the disk, not only with the operating system.

    Raises:
        TransportError: on every rank, if any of them could not write (a full disk, no permission).
    """
    comm = field.comm
    field.check_whole("save")
    path = Path(path)
    head = _header(field)
    with beside(comm, path) as part:
        with opened(comm, part, "save", writing=True) as file:
            agree(comm, attempt(lambda: _write_head(comm, file, head)), "save", path)
            move(field, file, len(head), collective, writing=True)
        publish(comm, part, path, len(head) + _nbytes(field), sync)


def load(
    path: PathLike,
    ranks: Mesh | Communicator,
    whole: Partition | Points | None = None,
    *,
    split: Sequence[Any] | None = None,
    collective: bool = True,
    **options: Any,
) -> Field:
    """Read a .npy file into a new field over ranks. Collective.

    Args:
        whole, split: how to cut it, as Field takes them; default: over the mesh, or by rows.
        options: halo, periodic, name, unit, ... as Field takes them.

    Raises:
        TransportError: on every rank, if the file cannot be read, is no .npy file or is too short.
        LayoutError: the partition is of another shape.
    """
    comm = ranks.comm if isinstance(ranks, Mesh) else ranks
    shape, dtype, offset = _read_header(comm, Path(path))
    if whole is not None and whole.shape != shape:
        raise LayoutError(f"{path} holds shape {shape}, the partition is {whole}", where("load", comm))
    field = Field(ranks, shape if whole is None else whole, split=split, dtype=dtype, **options)
    read_raw(field, path, offset, collective=collective)
    return field


def read_into(field: Field, path: PathLike, *, collective: bool = True) -> None:
    """Fill a field from a .npy file of its shape and dtype; if that fails it stays as it was. Collective."""
    shape, dtype, offset = _read_header(field.comm, Path(path))
    if shape != field.shape:
        raise LayoutError(
            f"{path} holds shape {shape}, the field has {field.shape}", where("load", field.comm)
        )
    if np.dtype(dtype) != stored(field):
        raise DtypeError(
            f"{path} holds {np.dtype(dtype)}, the field {field.look.dtype}",
            where("load", field.comm),
            f"a field of dtype {np.dtype(dtype).name}",
        )
    read_raw(field, path, offset, collective=collective)


def write_raw(field: Field, path: PathLike, offset: int = 0, *, collective: bool = True) -> None:
    """Write the whole, C order, no header, at offset (bytes) of a file, which is made if need be. Collective.

    The rest of the file stays; so there is nothing atomic about it.
    """
    field.check_whole("write_raw")
    with opened(field.comm, Path(path), "write_raw", writing=True) as file:
        move(field, file, offset, collective, writing=True)


def read_raw(field: Field, path: PathLike, offset: int = 0, *, collective: bool = True) -> None:
    """Fill a field from the numbers at offset (bytes) of a file, C order. Collective.

    Raises:
        TransportError: on every rank, and the field stays as it was, if the file ends too early.
    """
    path = Path(path)
    need = offset + _nbytes(field)

    def long_enough() -> None:
        found = path.stat().st_size
        if found < need:
            raise OSError(f"it has {found} bytes, {need} are needed: it was cut off")

    agree(field.comm, on_root(field.comm, long_enough), "load", path)
    with opened(field.comm, path, "load", writing=False) as file:
        # into memory of its own, and only when every rank has all of it into the field
        data = move(field, file, offset, collective, writing=False)
    field.look.array[field._own()] = data


def named(fields: Sequence[Field], verb: str) -> Communicator:
    """The communicator of fields that are to be told apart by their names in one file or folder.

    Raises:
        UsageError: no field, different communicators, or names that are missing, equal or no file names.
    """
    if not fields:
        raise UsageError(f"{verb} needs a field", verb)
    comm = fields[0].comm
    names = [field.name for field in fields]
    if any(field.comm is not comm for field in fields):
        raise UsageError("the fields live on different communicators", where(verb, comm))
    if len(set(names)) < len(names) or not all(re.fullmatch(r"\w[\w.-]*", name) for name in names):
        raise UsageError(
            f"fields are called {names}",
            where(verb, comm),
            "different names of letters and digits: Field(name=...)",
        )
    for field in fields:
        field.check_whole(verb)
    return comm


def agree(comm: Communicator, failed: str, verb: str, path: PathLike) -> None:
    """Raise on every rank what failed on any of them ("" if nothing did). Collective."""
    told = comm.mpi.allgather(failed)
    for rank, what in enumerate(told):
        if what:
            raise TransportError(
                f"{verb} of {path} failed on rank {rank}: {what}",
                where(verb, comm),
                "space, permissions and the path; what was there before is still there",
            )


# -- header and file -------------------------------------------------------------------------------------
def stored(field: Field) -> Any:
    """The numpy dtype of the file. bfloat16 and the 8-bit floats have none: their bits as integers."""
    look = field.look
    if look.dtype.kind in "hq" and look.dtype.name != "float16":
        return np.dtype(look.dtype.storage)
    return dtypes.numpy_dtype(look.dtype)


def _header(field: Field) -> bytes:
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(stored(field))
    np.lib.format.write_array_header_2_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": field.shape}
    )
    return buffer.getvalue()


def _nbytes(field: Field) -> int:
    return math.prod(field.shape) * int(field.look.array.itemsize)


def _write_head(comm: Communicator, file: MPI.File, head: bytes) -> None:
    if comm.rank == 0:
        file.Write_at(0, head)


def _read_header(comm: Communicator, path: Path) -> tuple[tuple[int, ...], Any, int]:
    found: list[Any] = []

    def look() -> None:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(file)
            if fortran and len(shape) > 1:
                raise ValueError("its elements are in Fortran order; numpy.ascontiguousarray before saving")
            found.extend((tuple(shape), dtype, file.tell()))

    agree(comm, on_root(comm, look), "load", path)
    shape, dtype, offset = comm.broadcast_object(found if found else None)
    return shape, dtype, offset


@contextmanager
def opened(comm: Communicator, path: Path, verb: str, writing: bool) -> Iterator[MPI.File]:
    """The file on all ranks; errors are everybody's."""
    mode = MPI.MODE_WRONLY | MPI.MODE_CREATE if writing else MPI.MODE_RDONLY
    file: list[MPI.File] = []
    intra: Any = comm.mpi
    failed = attempt(lambda: file.append(MPI.File.Open(intra, str(path), mode)))
    try:
        agree(comm, failed, verb, path)
        yield file[0]
    except HpcommError:  # everybody's; at any other the ranks would wait for each other in Close
        for handle in file:
            attempt(handle.Close)
        raise
    agree(comm, attempt(file[0].Close), verb, path)


@contextmanager
def beside(comm: Communicator, path: Path) -> Iterator[Path]:
    """A name next to path to write to, which nothing is left of if that fails. Collective."""
    part: Path = comm.broadcast_object(path.with_name(f".{path.name}.{secrets.token_hex(4)}.part"))
    try:
        yield part
    except HpcommError:
        if comm.rank == 0:
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        raise


def publish(comm: Communicator, part: Path, path: Path, expected: int | None, sync: bool) -> None:
    """Give a file its name, if it is as long as expected. Collective.

    Args:
        sync: wait until it is on the disk. Not by File.Sync: on a full disk Open MPI 5.0 hangs in it.
    """

    def rename() -> None:
        found = part.stat().st_size
        if expected not in (None, found):
            raise OSError(f"{found} bytes arrived in the file instead of {expected}")
        os.replace(part, path)  # noqa: PTH105  atomic, also over what is there

    if sync:
        agree(comm, attempt(lambda: _flush(part)), "save", path)
    agree(comm, on_root(comm, rename), "save", path)


def _flush(path: Path) -> None:
    """Wait until what this rank's node holds of a file is on the disk."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def on_root(comm: Communicator, deed: Callable[[], Any]) -> str:
    return attempt(deed) if comm.rank == 0 else ""


def attempt(deed: Callable[[], Any]) -> str:
    """Do it; "" or what went wrong."""
    try:
        deed()
    except MPI.Exception as error:
        return str(error.Get_error_string())
    except (OSError, ValueError, RuntimeError) as error:  # the last: how HDF5 says that a disk is full
        return str(error) or type(error).__name__
    return ""


# -- data -------------------------------------------------------------------------------------------------
def move(field: Field, file: MPI.File, offset: int, collective: bool, writing: bool) -> Any:
    """Write what this rank owns to its place in the file, or read it."""
    own = field.look.array[field._own()]
    order, displacement, kind = _view(field, offset)
    if writing:
        mine = own if order is None else own[order]
        data = np.ascontiguousarray(mine) if field._is_first else np.empty(0, own.dtype)  # once of copies
    else:
        data = np.empty(own.shape, own.dtype)
    flat = data.reshape(-1).view(np.uint8)
    verb = "save" if writing else "load"
    failed = attempt(lambda: file.Set_view(displacement, MPI.BYTE, kind, "native"))
    agree(field.comm, failed, verb, "the file")
    pieces = field.comm.mpi.allreduce(-(-flat.nbytes // _PIECE), MPI.MAX)
    name = ("Write" if writing else "Read") + ("_all" if collective else "")
    failed = ""
    for i in range(pieces):
        piece = flat[i * _PIECE : (i + 1) * _PIECE]
        if collective:  # the others need this rank's call, whatever went wrong here
            failed = _moved(file, name, piece) or failed
        elif piece.nbytes and not failed:
            failed = _moved(file, name, piece)
    kind.Free()
    agree(field.comm, failed, verb, "the file")
    if not writing and order is not None:
        sorted_rows = data.copy()
        data[order] = sorted_rows
    return data


def _moved(file: MPI.File, name: str, piece: Any) -> str:
    status = MPI.Status()
    failed = attempt(lambda: getattr(file, name)([piece, MPI.BYTE], status))
    count = status.Get_count(MPI.BYTE)
    if not failed and count != piece.nbytes:
        failed = f"{count} of {piece.nbytes} bytes went through"
    return failed


def _view(field: Field, offset: int) -> tuple[Any, int, MPI.Datatype]:
    """(order of own rows in the file, where this rank begins, its type in the file)."""
    itemsize = int(field.look.array.itemsize)
    strides = [itemsize] * len(field.shape)
    for axis in range(len(field.shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * field.shape[axis + 1]
    row = math.prod(field.shape[1:]) * itemsize
    if isinstance(field.partition, Points):
        held = field.partition.owned[field.comm.rank]
        order = np.argsort(held, kind="stable")
        unit = MPI.BYTE.Create_contiguous(row)
        kind = unit.Create_hindexed_block(1, [int(i) * row for i in held[order]]).Commit()
        unit.Free()
        return order, offset, kind if held.size else _nothing(kind)
    assert field.box is not None
    if not field.box.size:
        return None, offset, MPI.BYTE.Create_contiguous(1).Commit()
    begin = sum(a * s for a, s in zip(field.box.start, strides, strict=True))
    return None, offset + begin, strided(field.box.shape, strides, itemsize).Commit()


def _nothing(kind: MPI.Datatype) -> MPI.Datatype:
    kind.Free()
    return MPI.BYTE.Create_contiguous(1).Commit()
