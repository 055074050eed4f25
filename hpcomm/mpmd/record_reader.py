"""Reader of a job of several programs from a TOML file, checked as a whole before anything starts.

docs/mpmd.md shows all keys. Every mistake is a ConfigError that names the line and what to try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .declared_fields import read_field, read_grid
from .programs import MOST_RANKS, read_program
from .route.grid_checks import check_job
from .spec.spec_file import JobSpec
from .spec.toml_tables import Tables, at, parse

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, *, here: bool = True, command: str = "hpcomm run") -> JobSpec:
    """Read and check the spec at path.

    Args:
        here: whether commands and folders must exist on this machine, and units are looked at: where the job
            is started. Its ranks need not do that again, which takes a third of a second.
        command: which asks, for messages.

    Raises:
        ConfigError: anything wrong; nothing has been started.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", command, "check the path of the spec"
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path.name} is no UTF-8: byte 0x{raw[error.start]:02x}", at(path, line), "save it as UTF-8"
        ) from None
    return _job(Tables(path, text), parse(path, text), here)


def _job(tables: Tables, root: dict[str, Any], here: bool) -> JobSpec:
    tables.known(root, ("job", "program", "grid", "field"), "the spec")
    job = root.get("job", {})
    tables.where = ("job",)
    tables.known(job, ("name", "timeout", "until"), "[job]")
    name = tables.file_name(job, "name", tables.path.stem)
    timeout, until = tables.time_limit(job, "timeout"), tables.model_time(job, "until")
    listed = {key: _tables_of(tables, root, key) for key in ("program", "grid")}
    tables.where = ()
    if not listed["program"]:
        tables.fail("the spec has no programs", '[program.ocean] command = "python ocean.py", ranks = 1')
    programs = {each: read_program(tables, each, table, here) for each, table in listed["program"].items()}
    total = sum(program.ranks for program in programs.values())
    if total > MOST_RANKS:
        tables.fail(f"the programs have {total:,} ranks in all", f"at most {MOST_RANKS:,}", "ranks")
    grids = {each: read_grid(tables, each, table) for each, table in listed["grid"].items()}
    fields = root.get("field", [])
    if not isinstance(fields, list):
        tables.where = ("field",)
        tables.fail("fields are a list of tables", "write [[field]] with two brackets")
    read = [read_field(tables, i, table, programs, grids, here) for i, table in enumerate(fields)]
    made = JobSpec(tables.path, name, programs, grids, tuple(read), timeout, until)
    check_job(tables, made)
    return made


def _tables_of(tables: Tables, root: dict[str, object], key: str) -> dict[str, object]:
    """What stands below [program.NAME] or [grid.NAME], by name."""
    found = root.get(key, {})
    if not isinstance(found, dict):
        tables.where = (key,)
        tables.fail(f"each {key} is a table with a name", f"[{key}.NAME], in one pair of brackets")
    return found
