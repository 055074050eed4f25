"""What all file formats share: errors on all ranks, atomic appearance of files, fields from files.

A file or folder is written beside its name, as `.name.0123abcd.part`. A job that dies leaves that behind; the
next one that saves under the name clears it away, so one job at a time may write to a name. A folder replaces
an older one in two renames; a job that dies between them leaves the older one as `.name.aside`, and loading
takes that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, cast

from ..._lazy import MPI, np
from ...communicator.communicator import Communicator
from ...communicator.mesh import Mesh, ranks_of
from ...core.partition import Partition, Points
from ...errors import (
    DtypeError,
    HpcommError,
    LayoutError,
    MismatchError,
    MissingFileError,
    TransportError,
    UsageError,
    demand,
    where,
)
from ...transport.late import dtypes
from ..field import Field
from ..own_part import from_host, on_host, shared_comm

PathLike = Union[str, "os.PathLike[str]"]


# -- failures -------------------------------------------------------------------------------------------
class Missing(str):
    """What went wrong: a file is not there."""

    __slots__ = ()


def attempt(deed: Callable[[], object]) -> str:
    """Do it; "" or what went wrong."""
    try:
        deed()
    except FileNotFoundError as error:
        return Missing(error)
    except MPI.Exception as error:
        return str(error.Get_error_string())
    except (OSError, ValueError, RuntimeError) as error:  # the last: how HDF5 says that a disk is full
        return str(error) or type(error).__name__
    except Exception as error:  # what else a library thinks of; the other ranks wait to hear of it
        return f"{type(error).__name__}: {error}"
    return ""


def agree(comm: Communicator, failed: str, verb: str, path: PathLike) -> None:
    """Raise on every rank what failed on any of them ("" if nothing did). Collective."""
    comm.context.check_open(verb)
    rank = comm.context.mpi_handle.allreduce(comm.rank if failed else comm.size, MPI.MIN)
    if rank < comm.size:
        what = comm.context.mpi_handle.bcast(failed, rank)
        kind = MissingFileError if isinstance(what, Missing) and verb == "load" else TransportError
        raise kind(
            f"{verb} of {path} failed on rank {rank}: {what}",
            where(verb, comm),
            "the path, permissions, and whether the file is whole"
            if verb == "load"
            else "space, permissions and the path; what was there before is still there",
        )


def from_root(comm: Communicator, verb: str, path: PathLike, deed: Callable[[], object]) -> Any:
    """What deed returns on rank 0, on every rank; where it fails all raise. Collective."""
    found: list[Any] = []
    failed = attempt(lambda: found.append(deed())) if comm.rank == 0 else ""
    agree(comm, failed, verb, path)
    return comm.broadcast_object(found[0] if found else None)


# -- names ----------------------------------------------------------------------------------------------
def target_path(
    path: PathLike,
    verb: str,
    comm: Communicator | None = None,
    fields: Sequence[Field] = (),
    **said: object,
) -> Path:
    """The path of a file or folder that a verb was given. Collective over comm, if one is given.

    Raises:
        MismatchError: ranks give different paths, or say something else differently. Every rank raises.
    """
    found = Path(path) if isinstance(path, (str, os.PathLike)) else None
    if comm is not None:
        told: dict[str, str] = {"path": str(found.absolute()) if found else repr(path)}
        told |= {key: str(value) for key, value in said.items()}
        for i, field in enumerate(fields):
            told[f"field {i}"] = f"{field.name!r} [{field.unit}] {field.look.dtype} {field.shape}"
        try:
            comm.same(told, f"the arguments of {verb}")
        except MismatchError as error:
            error.where = where(verb, comm)
            raise
    if found is None:
        hint = "text, or a pathlib.Path, the same on all ranks"
        raise UsageError(f"the path is {path!r}", where(verb, comm), hint)
    return found


@contextmanager
def beside(comm: Communicator, path: Path) -> Iterator[Path]:
    """A name next to path to write to, which nothing is left of if that fails. Collective."""
    part: Path = from_root(comm, "save", path, lambda: _begin(path))
    try:
        yield part
    except HpcommError:
        if comm.rank == 0:
            _remove(part)
        raise


def _begin(path: Path) -> Path:
    """A new name, after what dead jobs have left is in order."""
    if standing(path) != path:
        standing(path).rename(path)
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    for each in [_aside(path), *path.parent.glob(".*.part")]:
        if each == _aside(path) or left.fullmatch(each.name):
            _remove(each)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def publish(
    comm: Communicator, part: Path, path: Path, expected: int | None = None, sync: bool = False
) -> None:
    """Give a file or folder its name. Collective.

    Args:
        expected: bytes that a file must have.
        sync: wait until a file is on the disk. Not by File.Sync: on a full disk Open MPI 5.0 hangs in it.
    """
    if sync:
        agree(comm, attempt(lambda: flush(part)), "save", path)
    from_root(comm, "save", path, lambda: _rename(part, path, expected))


def _rename(part: Path, path: Path, expected: int | None) -> None:
    found = part.stat().st_size
    if expected not in (None, found):
        raise OSError(f"{found} bytes arrived in the file instead of {expected}")
    if not (part.is_dir() and path.is_dir()):
        part.replace(path)  # atomic, also over what is there
        return
    path.rename(_aside(path))  # for folders replace none
    part.rename(path)
    _aside(path).rename(part)  # so that what is aside is complete at any time
    _remove(part)


def reserve(path: Path, nbytes: int, start: int = 0) -> None:
    """Room on the disk for so many bytes from start of a file, which is made if need be.

    Where a write of all ranks fails on some, Open MPI 5.0 hangs in the next one. posix_fallocate would write
    to each block where the file system cannot reserve; then what is free must do.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "rb") as file:
        if not nbytes:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        wrong = errno.ENOSYS
        if hasattr(libc, "fallocate"):
            failed = libc.fallocate(file.fileno(), 0, ctypes.c_long(start), ctypes.c_long(nbytes))
            wrong = ctypes.get_errno() if failed else 0
        if wrong in (errno.ENOSYS, errno.EOPNOTSUPP):
            disk, size = os.statvfs(file.fileno()), os.fstat(file.fileno()).st_size
            free = disk.f_bavail * disk.f_frsize + max(0, size - start)
            wrong = errno.ENOSPC if free < nbytes else 0
    if wrong:
        raise OSError(wrong, f"{os.strerror(wrong)}: {nbytes:,} bytes are needed")


def standing(path: Path) -> Path:
    """Where what is saved as path is: there, or aside, if a job died while it replaced it."""
    return _aside(path) if not path.exists() and _aside(path).is_dir() else path


def flush(path: Path) -> None:
    """Wait until what this rank's node holds of a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.aside")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# -- fields ---------------------------------------------------------------------------------------------
def named(fields: Field | Sequence[Field], verb: str) -> tuple[Communicator, list[Field]]:
    """One field or several, which are to be told apart by their names in one file or folder; with their
    communicator.

    Raises:
        UsageError: no field, something else, different communicators, or names that are missing, equal or
            no file names.
    """
    several = isinstance(fields, Iterable) and not isinstance(fields, (Mapping, str))
    given = list(fields) if several and not isinstance(fields, Field) else [fields]
    hint = "a Field, or a list of Fields, each of which has a name: Field(name=...)"
    for field in given:
        demand(field, Field, f"what {verb} was given", verb, hint)
    if not given:
        raise UsageError(f"{verb} was given an empty list", where(verb, None), hint)
    fields = cast("list[Field]", given)
    comm, names = shared_comm(fields, verb), [field.name for field in fields]
    if len(set(names)) < len(names) or not all(re.fullmatch(r"\w[\w.-]*", name) for name in names):
        hint = "different names of letters and digits: Field(name=...)"
        raise UsageError(f"fields are called {names}", where(verb, comm), hint)
    return comm, fields


def storage_of(field: Field) -> np.dtype[np.generic]:
    """The numpy dtype of the file. bfloat16 and the 8-bit floats have none: their bits as integers."""
    look = field.look
    if look.dtype.kind in "hq" and look.dtype.name != "float16":
        return np.dtype(look.dtype.storage)
    return dtypes.numpy_dtype(look.dtype)


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a field for elements of a file, in this machine's byte order."""
    made = dtype.newbyteorder("=")
    if dtype.hasobject or dtype.subdtype or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, which no field does")
    return made if made.names else np.dtype(made.str)  # without what h5py notes with it


def check_kept(fields: Sequence[Field], kind: str, kept: Callable[[Any], object]) -> None:
    """Refuse fields whose elements a kind of file does not give back: kept(dtype) is what it would give."""
    for field in fields:
        due, gives = storage_of(field), ""
        try:
            found = kept(due)
            if found == due:
                continue
            gives = f", but {found}"
        except (TypeError, ValueError) as error:
            gives = f": {error}"
        raise DtypeError(
            f"field {field.name!r} holds {due}, which {kind} does not give back{gives}",
            where("save", field.comm),
            "a field for each component" if due.names else "a field of another dtype",
        )


def meant(name: str | None, names: Sequence[str], kind: str) -> str:
    """Which of the datasets or arrays in a file is meant: the one of this name, or the only one."""
    there = ", ".join(names) or "(none)"
    if name is None and len(names) != 1:
        raise ValueError(f"it holds the {kind}s {there}: name one")
    if name is not None and name not in names:
        raise ValueError(f"it has no {kind} {name!r}, but {there}")
    return names[0] if name is None else name


@dataclass
class Stored:
    """An array that was found in a file, for fields of its shape and dtype.

    read: (field, out) -> what this rank owns of it, as from_host takes it; collective. It may be
        read into out, if that is not None.
    """

    path: PathLike
    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Field, Any], Any]
    name: str = ""
    unit: str = ""

    def into(self, field: Field) -> None:
        """Fill a field, which stays as it was if that fails. Collective."""
        from_host(field, self.values(field))

    def values(self, field: Field, out: Any = None) -> Any:
        """What this rank is to own, for from_host; it may have been read into out. Collective."""
        if self.shape != field.shape:
            raise LayoutError(
                f"{self.path} holds shape {self.shape}, the field has {field.shape}",
                where("load", field.comm),
                f"a field of shape {self.shape}",
            )
        if self.dtype != storage_of(field):
            raise DtypeError(
                f"{self.path} holds {self.dtype}, the field {field.look.dtype}",
                where("load", field.comm),
                f"a field of dtype {self.dtype.name}",
            )
        return self.read(field, out)

    def load(
        self,
        ranks: Mesh | Communicator,
        whole: Partition | Points | None,
        split: Sequence[Any] | None,
        options: dict[str, Any],
    ) -> Field:
        """Fill a new field over ranks. Collective."""
        if whole is not None:
            demand(whole, (Partition, Points), "the partition", "load", "a Partition, Points, or split=")
        if whole is not None and whole.shape != self.shape:
            raise LayoutError(
                f"{self.path} holds shape {self.shape}, the partition is {whole}",
                where("load", ranks_of(ranks, "load")),
                f"a partition of shape {self.shape}",
            )
        dtype = {} if "like" in options else {"dtype": self.dtype}
        options = {"name": self.name, "unit": self.unit} | dtype | options
        field = Field(ranks, self.shape if whole is None else whole, split=split, **options)
        own = on_host(field) if field.look.place is None else None
        straight = own is not None and own.flags.c_contiguous  # nobody has seen what the field holds yet
        data = self.values(field, own if straight else None)
        if data is not own:
            from_host(field, data)
        return field
