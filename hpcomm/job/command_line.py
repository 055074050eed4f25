"""What all command lines have in common: defaults in --help, one voice for several ranks, tables, units."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

from ..errors import ConfigError
from .process_role import is_child, world_rank

_TURN_S = 1.0  # between ranks that have an error to tell: the first to end ends the job, which takes a while


def is_another_rank() -> bool:
    """Whether a launcher has started this process as a rank other than the first, which speaks for all."""
    return world_rank() > 0 and not is_child()


class _Help(argparse.RawDescriptionHelpFormatter):
    """Says each default that says anything."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", action.default
        says = default is not None and not isinstance(default, bool) and action.nargs != argparse.REMAINDER
        if says and argparse.SUPPRESS not in (text, default) and "default" not in text:
            value = " ".join(map(str, default)) if isinstance(default, list) else "%(default)s"
            text += f" (default: {value})"
        return text


class Parser(argparse.ArgumentParser):
    """argparse's, for programs of several ranks: --help is said once, and so is what all have to refuse."""

    def __init__(self, prog: str | None = None, description: str | None = None, **more: Any) -> None:
        super().__init__(
            prog=prog, description=description, formatter_class=_Help, allow_abbrev=False, **more
        )

    def print_help(self, file: Any = None) -> None:
        if not is_another_rank():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        if _is_said(message):
            self.exit(2)
        super().error(message)


def _is_said(message: str) -> bool:
    """Whether another rank of this host has said that before, or is going to end the job by saying it."""
    folder = os.environ.get("HPCOMM_LIVING")
    try:
        if folder:
            os.close(os.open(f"{folder}/.said-{crc32(message.encode())}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    except OSError:  # it is on another host
        folder = None
    if not folder and is_another_rank():
        time.sleep(_TURN_S * min(world_rank(), 5))
    return False


Option = tuple[tuple[str, ...], dict[str, Any]]


def option(*names: str, **how: Any) -> Option:
    """An argument of a Command, in the words of argparse's add_argument."""
    return names, how


AS_JSON = option("--json", action="store_true", help="records, for programs, instead of text")
LOAD = option("--load", metavar="FILE", help="Python that registers algorithms of your own")


class Command(Parser):
    """A command of hpcomm's: what it refuses is a ConfigError, which __main__ says."""

    def __init__(self, prog: str, about: str | None = None, *options: Option, **more: Any) -> None:
        super().__init__(prog, about, **more)
        for names, how in options:
            self.add_argument(*names, **how)

    def valued(self) -> list[str]:
        """Options that have a value."""
        return [name for each in self._actions if each.nargs is None for name in each.option_strings]

    def complete(self, files: Any, folders: Any, program: Any) -> None:
        """Say how a shell completes what is a file, a folder, or a program and its words."""
        for each in self._actions:
            wanted = str(each.metavar or each.dest).upper()
            if wanted.startswith(("FILE", "FOLDER", "SPEC", "OUTPUT")):
                each.complete = folders if wanted == "FOLDER" else files  # type: ignore[attr-defined]
            if each.nargs == argparse.REMAINDER:
                each.complete = program  # type: ignore[attr-defined]

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0]
        name = unknown.partition("=")[0]
        if unknown:
            message = f"unknown option {name}." if unknown.startswith("-") else f"what is {unknown!r}?"
        near = get_close_matches(name, list(self._option_string_actions), 1, 0.7) if unknown else []
        raise ConfigError(message, self.prog, " or ".join([*near, f"{self.prog} --help"]))


def check_file(out: Path) -> None:
    """Refuse, before anything is computed, a file that cannot be written."""
    from tempfile import TemporaryFile

    try:
        if not out.parent.is_dir():
            raise ConfigError(
                f"there is no folder {out.parent}", hint=shlex.join(["mkdir", "-p", str(out.parent)])
            )
        with out.open("r+b") if out.exists() else TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", hint="another place") from None


def make_folder(option: str, path: str | Path | None) -> None:
    """So that a folder that cannot be is refused before anything is computed. None: no folder."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(
            f"{option} {path}: {why}", hint=f"{option} FOLDER, of one that can be made"
        ) from None


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], left: Collection[int] = (0,), rule: bool = True
) -> str:
    """Lay rows out under header.

    Args:
        left: the columns whose cells begin at the left; the others end at the right.
        rule: draw a line under the header.
    """
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if rule:
        lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """12.34 us, 4.560 ms, 7.800 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def size(nbytes: float) -> str:
    """8 B, 64 KiB, 1.50 MiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}".replace(".00", "")
    return f"{nbytes:.3g} B"
