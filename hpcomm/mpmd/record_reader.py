"""Reader of a job of several programs from a TOML file, checked as a whole before anything starts.

docs/mpmd.md shows all keys. Every mistake is a ConfigError that names the line and what to try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..job.spec.programs import read_programs
from ..job.spec.toml_tables import Tables
from .declared_fields import read_field, read_grid
from .route.grid_checks import check_job
from .spec.spec_file import JobSpec

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, *, here: bool = True, command: str = "hpcomm run") -> JobSpec:
    """Read and check the spec at path.

    Args:
        here: whether commands and folders must exist on this machine, and units are looked at: where the job
            is started. Its ranks need not do that again, which takes a third of a second.
        command: which asks, for messages.
    """
    tables = Tables(path, command)
    listed = tables.named("grid")
    run = read_programs(tables, here)
    grids = {each: read_grid(tables, each, table) for each, table in listed.items()}
    fields = tables.root.get("field", [])
    if not isinstance(fields, list):
        tables.where = ("field",)
        tables.fail("fields are a list of tables", "write [[field]] with two brackets")
    programs = run.programs
    found = [read_field(tables, i, table, programs, grids, here) for i, table in enumerate(fields)]
    made = JobSpec(**vars(run), grids=grids, fields=tuple(found))
    check_job(tables, made)
    return made
