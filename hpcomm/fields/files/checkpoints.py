"""Checkpoints: several fields and a program's state, in a folder that is complete or not there.

    folder/step-00000100/T.npy  u.npy  manifest.json

A checkpoint is written beside its name and renamed at the end, so a crash while writing leaves the ones
before it. Loading verifies checksums before it touches a field, on any number of ranks.
"""

from __future__ import annotations

import json
import operator
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._lazy import np
from ...communicator.communicator import Communicator
from ...core.types import AnyArray
from ...errors import DtypeError, LayoutError, TransportError, UsageError, where
from ..field import Field
from ..own_part import from_host
from . import file_folder, npy

_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?$")
_FORMAT = 1


class Checkpoint:
    """What load() found: step, metadata, path."""

    def __init__(self, step: int, metadata: dict[str, object], path: Path) -> None:
        self.step, self.metadata, self.path = step, metadata, path

    def __repr__(self) -> str:
        return f"<Checkpoint of step {self.step}: {self.path}>"


def save(
    folder: file_folder.PathLike,
    fields: Field | Sequence[Field],
    step: int = 0,
    metadata: Mapping[str, object] | None = None,
    *,
    keep: int | None = None,
    sync: bool = True,
) -> Path:
    """Write a checkpoint of a field, or of several that live on one communicator. Collective.

    Args:
        fields: with different names, by which load() finds them.
        step: its number, 0 or more. load() takes the highest.
        metadata: anything that JSON can hold. That of rank 0 is written.
        keep: how many checkpoints to leave there, this one included; None: all.
        sync: wait until it is on the disk before it counts.

    Returns:
        The folder of this checkpoint.

    Raises:
        UsageError: fields have no names or equal ones, JSON cannot hold metadata, or step or keep is not a
            valid number.
        MismatchError: on every rank, if they do not give the same folder, fields and numbers.
        TransportError: on every rank, if any could not write; older checkpoints are untouched.
    """
    comm, fields = file_folder.named(fields, "save")
    folder = file_folder.target_path(folder, "save", comm, fields, step=step, keep=keep, sync=bool(sync))
    npy.check_kept(fields)
    for name, number, least in (("step", step, 0), ("keep", 1 if keep is None else keep, 1)):
        if not hasattr(number, "__index__") or number < least:
            raise UsageError(f"{name} is {number!r}", where("save", comm), f"an integer, {least} or more")
    step = operator.index(step)
    said = _told(comm, metadata)
    with file_folder.beside(comm, folder / "step") as part:
        file_folder.from_root(comm, "save", folder, lambda: part.mkdir(parents=True))
        entries = {}
        for field in fields:
            npy.save(field, part / f"{field.name}.npy", sync=sync)
            entries[field.name] = _entry(field)
        manifest = {"format": _FORMAT, "step": step, "metadata": said, "fields": entries}
        made: Path = file_folder.from_root(
            comm, "save", folder, lambda: _publish(folder, part, step, manifest, keep)
        )
    return made


def load(
    folder: file_folder.PathLike, fields: Field | Sequence[Field], step: int | None = None
) -> Checkpoint:
    """Fill fields, by their names, from the newest undamaged checkpoint, or from that of step. Collective.

    A damaged checkpoint is skipped with a warning, unless step asks for it. No field is touched
    before all of them have been read and verified.

    Raises:
        UsageError: there is none.
        LayoutError, DtypeError: a field is not in it, or has another shape or dtype.
        TransportError: it is damaged.
    """
    comm, fields = file_folder.named(fields, "load")
    folder = file_folder.target_path(folder, "load", comm, fields, step=step)
    found = _found(comm, folder, step)
    for path in found:
        try:
            return load_from(path, fields)
        except TransportError as error:
            if step is not None or path is found[-1]:
                raise
            if comm.rank == 0:
                warnings.warn(f"{path} is passed over: {error.what}", RuntimeWarning, stacklevel=2)
    raise AssertionError("unreachable")


def said(path: Path) -> Checkpoint:
    """The checkpoint at path, as it says of itself. Not collective.

    Raises:
        ValueError, OSError: it is damaged.
    """
    manifest = _manifest(path)
    return Checkpoint(manifest["step"], manifest["metadata"], path)


def steps(folder: file_folder.PathLike) -> list[int]:
    """The steps whose checkpoints are in folder, ascending. Not collective."""
    return sorted({_number(path)[0] for path in paths(file_folder.target_path(folder, "steps"), None)})


def paths(folder: Path, step: int | None) -> list[Path]:
    """The checkpoints in folder, or those of step, the newest first. Not collective."""
    found = [path for path in folder.glob("step-*") if _number(path)[0] >= 0]
    return sorted((p for p in found if step in (None, _number(p)[0])), key=_number, reverse=True)


# -- how ----------------------------------------------------------------------------------------------------
def _found(comm: Communicator, folder: Path, step: int | None) -> list[Path]:
    """Checkpoints in folder, the newest first."""
    found: list[Path] = file_folder.from_root(comm, "load", folder, lambda: paths(folder, step))
    if not found:
        what = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise UsageError(f"there is no {what} in {folder}", where("load", comm), "checkpoint.steps(folder)")
    return found


def _told(comm: Communicator, metadata: Mapping[str, object] | None) -> dict[str, object]:
    """Rank 0's metadata, on every rank."""
    wrong = ""
    told: dict[str, Any] = {}
    if comm.rank == 0:
        try:
            told = dict(metadata or {})
            json.dumps(told, sort_keys=True)
        except (TypeError, ValueError) as error:
            wrong = str(error)
    wrong = comm.broadcast_object(wrong)
    if wrong:
        raise UsageError(
            f"the metadata is nothing for JSON: {wrong}",
            where("save", comm),
            "a dict of numbers, text, lists and dicts of them, by names",
        )
    return told


def _entry(field: Field) -> dict[str, object]:
    return {
        "shape": list(field.shape),
        "dtype": field.look.dtype.name,
        "unit": field.unit,
        "checksum": f"{checksum(field):016x}",
    }


def _publish(folder: Path, part: Path, step: int, manifest: Mapping[str, object], keep: int | None) -> Path:
    text = json.dumps(manifest, indent=1, sort_keys=True)
    sealed = f"{text}\n{zlib.crc32(text.encode()):08x}\n"
    with (part / "manifest.json").open("w", encoding="utf-8") as file:
        file.write(sealed)
        file.flush()
        os.fsync(file.fileno())
    final = folder / f"step-{step:08d}"
    if older := paths(folder, step):  # the same step once more: the older one stays until this one is there
        final = folder / f"step-{step:08d}.{_number(older[0])[1] + 1}"
    part.rename(final)
    file_folder.flush(folder)  # the new name itself must reach the disk
    for old in paths(folder, None)[keep:] if keep else []:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _number(path: Path) -> tuple[int, int]:
    found = _NAME.fullmatch(path.name)
    return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)


def load_from(path: Path, fields: Sequence[Field]) -> Checkpoint:
    """Fill fields from the checkpoint at path, as load does. Collective."""
    comm = fields[0].comm
    manifest = file_folder.from_root(comm, "load", path, lambda: _manifest(path))
    for field in fields:
        _check(comm, path, field, manifest["fields"])
    read = []
    for field in fields:
        file = path / f"{field.name}.npy"
        try:
            values = npy.found(comm, file).values(field)
        except (LayoutError, DtypeError) as error:  # not what the manifest says
            raise TransportError(f"{file} is damaged: {error.what}", where("load", comm)) from None
        if f"{checksum(field, values):016x}" != manifest["fields"][field.name]["checksum"]:
            raise TransportError(
                f"the checksum of {file} is not that of the field that was saved",
                where("load", comm),
                "an older checkpoint; the disk is to be mistrusted",
            )
        read.append(values)
    for field, values in zip(fields, read, strict=True):
        from_host(field, values)
    return Checkpoint(manifest["step"], manifest["metadata"], path)


def _manifest(path: Path) -> dict[str, Any]:
    text, _, seal = (path / "manifest.json").read_text(encoding="utf-8").rstrip("\n").rpartition("\n")
    if f"{zlib.crc32(text.encode()):08x}" != seal:
        raise ValueError("its manifest is damaged")
    read: dict[str, Any] = json.loads(text)
    said = read.get("format") if isinstance(read, dict) else None
    if said != _FORMAT:
        raise ValueError(f"it has format {said}, this hpcomm reads {_FORMAT}")
    kinds: dict[str, type] = {"step": int, "metadata": dict, "fields": dict}
    lists: list[tuple[Any, dict[str, type], str]] = [(read, kinds, "its manifest")]
    if isinstance(read.get("fields"), dict):
        each: dict[str, type] = {"shape": list, "dtype": str, "checksum": str}
        lists += [(entry, each, f"field {name!r} in its manifest") for name, entry in read["fields"].items()]
    for found, kinds, what in lists:
        for key, kind in kinds.items():
            if not isinstance(found, dict) or not isinstance(found.get(key), kind):
                raise ValueError(f"{what} has no {key}")
    return read


def _check(comm: Communicator, path: Path, field: Field, entries: Mapping[str, Any]) -> None:
    if field.name not in entries:
        raise LayoutError(
            f"{path} holds no field {field.name!r}",
            where("load", comm),
            f"one of {', '.join(sorted(entries))}",
        )
    entry = entries[field.name]
    if tuple(entry["shape"]) != field.shape:
        raise LayoutError(
            f"{field.name!r} has shape {tuple(entry['shape'])} in {path}, the field {field.shape}",
            where("load", comm),
            f"a field of shape {tuple(entry['shape'])}, in any partition",
        )
    if entry["dtype"] != field.look.dtype.name:
        raise DtypeError(
            f"{field.name!r} is {entry['dtype']} in {path}, the field {field.look.dtype}",
            where("load", comm),
            f"a field of dtype {entry['dtype']}",
        )


def checksum(field: Field, owned: AnyArray | None = None) -> int:
    """The checksum of the whole: a number below 2**64, for any partition, the same on every rank. Collective.

    Args:
        owned: what this rank owns, if not yet in the field.
    """
    return int(field.comm.all_reduce(np.array([field.own_checksum(owned)], np.uint64))[0])
