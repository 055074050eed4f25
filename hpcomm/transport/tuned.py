"""The table that `hpcomm tune` writes: the fastest algorithm by verb, number of ranks and size.

`algorithm="tuned"` reads it, on rank 0 for all, so that all ranks choose alike whatever files they see.
"""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import controls

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["choice", "read", "table_path"]


def table_path() -> Path:
    """Where this machine's table lies: HPCOMM_TUNED, or in the user's cache by host and MPI library."""
    forced = os.environ.get("HPCOMM_TUNED")
    if forced:
        return Path(forced)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hpcomm" / f"tuned-{platform.node()}-{controls.vendor() or 'mpi'}.json"


def read(mpi: MPI.Comm) -> dict[str, list[tuple[int, str | None]]]:
    """verb: [(bytes, algorithm or None for the library's default)], for this many ranks; collective over mpi.

    Raises:
        ConfigError: there is a table that cannot be read.
    """
    found: Any = None
    if mpi.Get_rank() == 0:
        try:
            table = json.loads(table_path().read_text())
            known = table["mpi"] in (controls.vendor(), "")
            found = table["ranks"].get(str(mpi.Get_size()), {}) if known else {}
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            found = f"{table_path()}: {type(error).__name__}: {error}"
    found = mpi.bcast(found, 0)
    if isinstance(found, str):
        raise ConfigError(f"the table of tuned algorithms cannot be read: {found}", hint="hpcomm tune")
    return {verb: [(int(n), name) for n, name in rows] for verb, rows in found.items()}


def choice(rows: list[tuple[int, str | None]], nbytes: int) -> str | None:
    """The algorithm of the measured size that is nearest, as a ratio; None: the library's default."""
    if not rows:
        return None
    return min(rows, key=lambda row: abs(math.log(max(row[0], 1) / max(nbytes, 1))))[1]
