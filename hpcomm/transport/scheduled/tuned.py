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
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError
from .. import mpi_control_variables

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Choices", "read", "table_path"]


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


def read(mpi: MPI.Comm) -> dict[str, Choices]:
    """The choices of each verb that was tuned, for this many ranks; collective over mpi.

    Raises:
        ConfigError: there is a table that cannot be read.
    """
    found: Any = None
    if mpi.Get_rank() == 0:
        try:
            table = json.loads(table_path().read_text())
            known = table["mpi"] in (mpi_control_variables.vendor(), "")
            found = table["ranks"].get(str(mpi.Get_size()), {}) if known else {}
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            found = f"{table_path()}: {type(error).__name__}: {error}"
    found = mpi.bcast(found, 0)
    if isinstance(found, str):
        raise ConfigError(f"the table of tuned algorithms cannot be read: {found}", hint="hpcomm tune")
    return {verb: Choices.of([(int(n), name) for n, name in rows]) for verb, rows in found.items()}
