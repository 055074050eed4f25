"""A TOML file whose values are asked for one by one: whatever is wrong is an error that names its line."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tables", "at", "lines_of", "parse"]


def parse(path: Path, text: str) -> dict[str, Any]:
    """The tables of text, which is that of path.

    Raises:
        ConfigError: it is no valid TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise ConfigError(
                "reading a spec needs tomli on Python 3.10", "hpcomm run", "pip install 'hpcomm[mpmd]'"
            ) from None
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
        what, line = (found[1], int(found[2])) if found else (str(error), text.count("\n") + 1)
        shown = (text.split("\n")[line - 1 : line] or [""])[0].strip()
        twice = "twice" in what or "overwrite" in what
        hint = "each table and key once" if twice else "texts need quotes"
        raise ConfigError(
            f"{path.name} is no valid TOML: {what}", at(path, line), f"look at `{shown}`; {hint}"
        ) from None
    return tables


def at(path: Path, line: int) -> str:
    """Where a mistake is, as errors say it."""
    return f"{path.name}, line {line}"


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key: ("program", "ocean", "ranks"), ("field", "0", "name")."""
    found: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        head = re.match(r"\s*\[(\[?)\s*([^\]]+?)\s*\]", line)
        key = re.match(r"\s*([A-Za-z0-9_\-\"'.]+)\s*=", line)
        if head:
            table = tuple(part.strip().strip("\"'") for part in head[2].split("."))
            if head[1]:
                seen[table] = seen.get(table, -1) + 1
                table = (*table, str(seen[table]))
            found.setdefault(table, number)
            found.setdefault(table[:1], number)
        elif key:
            path = tuple(part.strip("\"'") for part in key[1].split("."))
            found.setdefault((*table, *path), number)
    return found


class Tables:
    """Looks at values. where: the table being read, for messages."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = lines_of(text)
        self.where: tuple[str, ...] = ()

    def fail(self, what: str, hint: str, key: str | None = None) -> NoReturn:
        place = (*self.where, key) if key else self.where
        while place and place not in self.lines:
            place = place[:-1]
        raise ConfigError(what, at(self.path, self.lines.get(place, 1)), hint)

    def known(self, table: Any, keys: tuple[str, ...], what: str) -> None:
        if not isinstance(table, dict):
            head = "[[field]]" if self.where[:1] == ("field",) else f"[{'.'.join(self.where)}]"
            self.fail(f"{what} must be a table, not {table!r}", head)
        for key in table:
            if key not in keys:
                close = get_close_matches(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(keys)}"
                self.fail(f"{what} has no key {key!r}", hint, key)

    def text(self, table: dict[str, Any], key: str, default: str | None = None) -> Any:
        value = table.get(key, default)
        if value is not None and (not isinstance(value, str) or not value):
            self.fail(f"{key} must be a text, not {value!r}", f'{key} = "..."', key)
        return value

    def file_name(self, table: dict[str, Any], key: str, default: str) -> str:
        """A name that files are called by."""
        value: str = self.text(table, key, default)
        if "/" in value or not value.isprintable():
            self.fail(f"{key} {value!r} cannot be part of a file's name", "printable characters, no /", key)
        return value

    def whole(self, table: dict[str, Any], key: str, least: int, default: int | None = None) -> Any:
        value = table.get(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            self.fail(
                f"{key} must be a whole number from {least}, not {value!r}", f"{key} = {max(least, 2)}", key
            )
        return value

    def seconds(
        self, table: dict[str, Any], key: str, default: float | None = None, zero: bool = False
    ) -> Any:
        value = table.get(key, default)
        wrong = isinstance(value, bool) or not isinstance(value, (int, float))
        if value is not None and (wrong or not (0 <= value < float("inf")) or (value == 0 and not zero)):
            least = "0 or more" if zero else "above 0"
            self.fail(f"{key} must be a number of seconds, {least}, not {value!r}", f"{key} = 60.0", key)
        return None if value is None else float(value)

    def choice(self, table: dict[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
        value = table.get(key, default)
        if value not in choices:
            close = get_close_matches(str(value), choices, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(choices)}"
            self.fail(f"there is no {key} {value!r}", hint, key)
        return str(value)

    def needed(self, table: dict[str, Any], key: str, what: str, example: str) -> None:
        if key not in table:
            self.fail(f"{what} has no {key}", example)
