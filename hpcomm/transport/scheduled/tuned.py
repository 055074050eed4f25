"""Tuned table that `hpcomm tune` writes: the fastest algorithm by verb, number of ranks and size.

`algorithm="tuned"` reads it, on rank 0 for all, so that all ranks choose alike whatever files they see.
"""

from __future__ import annotations

import json
import os
import platform
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..._lazy import MPI
from ...errors import ConfigError
from .. import mpi_control_variables


class Choices(NamedTuple):
    """For one verb: up to how many bytes (of x, or of one block) each name serves, the last one for ever.

    A name is an algorithm's; None: the library's default, which also serves between two sizes that were
    measured and chose differently.
    """

    limits: list[int]
    names: list[str | None]

    @classmethod
    def of(cls, rows: list[tuple[int, str | None]]) -> Choices:
        """From (bytes, name) as measured."""
        rows = sorted(rows)
        found = cls([], [rows[0][1] if rows else None])
        for (a, one), (b, other) in pairwise(rows):
            if one != other and one is not None:
                found.limits.append(a)
                found.names.append(None)
            if one != other and other is not None:
                found.limits.append(b - 1)
                found.names.append(other)
        return found

    def name(self, nbytes: int) -> str | None:
        """Who serves a call of so many bytes."""
        return self.names[bisect_left(self.limits, nbytes)]


def table_path() -> Path:
    """Where this machine's table lies: HPCOMM_TUNED, or in the user's cache by host and MPI library."""
    forced = os.environ.get("HPCOMM_TUNED")
    if forced:
        return Path(forced)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hpcomm" / f"tuned-{platform.node()}-{mpi_control_variables.vendor() or 'mpi'}.json"


def kept(path: Path) -> dict[str, Any] | None:
    """What is in a table's file; None: there is none."""
    try:
        table: dict[str, Any] = json.loads(path.read_text())
        _check(table)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the table of tuned algorithms cannot be read: {path}: {error}",
            hint="remove it; hpcomm tune writes a new one",
        ) from None
    return table


def _check(table: Any) -> None:
    """Raise ValueError for what hpcomm tune has not written."""
    if not isinstance(table, dict) or not isinstance(table.get("mpi"), str):
        raise ValueError('it has no "mpi"')
    for ranks, verbs in _items(table.get("ranks"), '"ranks"'):
        for verb, rows in _items(verbs, f"{ranks!r} ranks"):
            _check_choices(f"{verb} of {ranks} ranks", rows)
    for record in table.get("records", ()):
        if not isinstance(record, dict) or not record.keys() >= {"ranks", "verb"}:
            raise ValueError(f"a record is {record!r:.60}")


def _check_choices(what: str, rows: Any) -> None:
    for row in rows if isinstance(rows, list) and rows else [rows]:
        if not isinstance(row, list) or [type(x) for x in row] not in ([int, str], [int, type(None)]):
            raise ValueError(f"{what} has {row!r:.60}, not [bytes, algorithm]")


def _items(table: Any, what: str) -> Any:
    if not isinstance(table, dict):
        raise ValueError(f"{what} is {table!r:.60}, no table")
    return table.items()


def read(mpi: MPI.Comm) -> dict[str, Choices]:
    """The choices of each verb that was tuned, for this many ranks; collective over mpi."""
    found: Any = None
    if mpi.Get_rank() == 0:
        try:
            table = kept(table_path()) or {"mpi": None}
            known = table["mpi"] in (mpi_control_variables.vendor(), "")
            found = table["ranks"].get(str(mpi.Get_size()), {}) if known else {}
        except ConfigError as error:
            found = error
    found = mpi.bcast(found, 0)
    if isinstance(found, ConfigError):
        raise found
    return {verb: Choices.of([tuple(row) for row in rows]) for verb, rows in found.items()}
