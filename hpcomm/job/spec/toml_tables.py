"""TOML tables whose values are read one by one: an error names the line."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_S = 1e9  # of a wait: 30 years, which every clock can add to now
_LATEST_S = 1e15  # of a model: 30 million years
_PART = r"\"[^\"]*\"|'[^']*'|[A-Za-z0-9_\-]+"  # of a key with dots


def _read(path: Path, command: str) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(what, command, "check the path of the spec") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"{path.name} is no UTF-8: byte 0x{raw[error.start]:02x}"
        raise ConfigError(what, at(path, raw.count(b"\n", 0, error.start) + 1), "save it as UTF-8") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        what = f"{path.name} is nested too deeply"
        raise ConfigError(what, at(path, _deepest(text)), "tables in tables, a few levels") from None
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


def _deepest(text: str) -> int:
    """The line with the most brackets."""
    lines = text.split("\n")
    return 1 + max(range(len(lines)), key=lambda i: lines[i].count("[") + lines[i].count("{"))


def at(path: Path, line: int) -> str:
    """Where a mistake is, as errors say it."""
    return f"{path.name}, line {line}"


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key: ("program", "ocean", "ranks"), ("field", "0", "name")."""
    found: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    text = re.sub(r'("""|\'\'\').*?\1', lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    path = rf"((?:{_PART})(?:\s*\.\s*(?:{_PART}))*)"
    for number, line in enumerate(text.split("\n"), start=1):
        head = re.match(rf"\s*\[(\[?)\s*{path}\s*\]", line)
        key = re.match(rf"\s*{path}\s*=", line)
        if head:
            table = _parts(head[2])
            if head[1]:
                seen[table] = seen.get(table, -1) + 1
                table = (*table, str(seen[table]))
            found.setdefault(table, number)
            found.setdefault(table[:1], number)
        elif key:
            found.setdefault((*table, *_parts(key[1])), number)
    return found


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, path))


class Tables:
    """Looks at values of the file at path.

    Attributes:
        root: the tables of the file.
        where: the table being read, for messages.

    Args:
        command: which asks, for messages.
    """

    def __init__(self, path: Path, command: str = "hpcomm run") -> None:
        text = _read(path, command)
        self.path = path
        self.root = _parse(path, text)
        self.lines = lines_of(text)
        self.where: tuple[str, ...] = ()

    def named(self, key: str) -> dict[str, Any]:
        """What stands below [program.NAME] or [grid.NAME], by name."""
        found: object = self.root.get(key, {})
        if not isinstance(found, dict):
            self.where = (key,)
            self.fail(f"each {key} is a table with a name", f"[{key}.NAME], in one pair of brackets")
        return found

    def line_of(self, key: str | None = None) -> int:
        """Of the table being read, or of a key in it."""
        place = (*self.where, key) if key else self.where
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def fail(self, what: str, hint: str, key: str | None = None) -> NoReturn:
        raise ConfigError(what, at(self.path, self.line_of(key)), hint)

    def known(self, table: object, keys: tuple[str, ...], what: str) -> None:
        if not isinstance(table, dict):
            head = "[[field]]" if self.where[:1] == ("field",) else f"[{'.'.join(self.where)}]"
            self.fail(f"{what} must be a table, not {table!r}", head)
        for key in table:
            if key not in keys:
                hint = did_you_mean(key, keys, f"known: {', '.join(keys)}")
                self.fail(f"{what} has no key {key!r}", hint, key)

    def text(self, table: dict[str, object], key: str, default: str | None = None) -> Any:
        value = table.get(key, default)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self.fail(f"{key} must be a text, not {value!r}", f'{key} = "..."', key)
        return value

    def file_name(self, table: dict[str, object], key: str, default: str) -> str:
        """A name that files are called by."""
        value: str = self.text(table, key, default)
        if "/" in value or not value.isprintable() or value != value.strip(" ") or not value.strip("."):
            hint = "printable characters, no / and no blanks around them"
            self.fail(f"{key} {value!r} cannot be part of a file's name", hint, key)
        return value

    def whole(
        self,
        table: dict[str, object],
        key: str,
        least: int,
        default: int | None = None,
        *,
        most: int | None = None,
    ) -> Any:
        value = table.get(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fail(
                f"{key} must be a whole number from {least}, not {value!r}", f"{key} = {max(least, 2)}", key
            )
        if most is not None and value > most:
            self.fail(f"{key} must be at most {most:,}, not {value:,}", f"{key} = {max(least, 2)}", key)
        return value

    def yes(self, table: dict[str, object], key: str, default: bool) -> bool:
        value = table.get(key, default)
        if not isinstance(value, bool):
            self.fail(f"{key} must be true or false, not {value!r}", f"{key} = {str(default).lower()}", key)
        return value

    def seconds(
        self,
        table: dict[str, Any],
        key: str,
        default: float | None = None,
        *,
        most: float = _LATEST_S,
        zero: bool = False,
    ) -> Any:
        """Seconds in a model, of whatever scale; with most=LONGEST_S such that we can wait."""
        value = table.get(key, default)
        if value is None:
            return None
        wrong = isinstance(value, bool) or not isinstance(value, (int, float))
        if wrong or not value >= 0 or (value == 0 and not zero):
            least = "0 or more" if zero else "above 0"
            self.fail(f"{key} must be a number of seconds, {least}, not {value!r}", f"{key} = 60.0", key)
        if value > most:
            self.fail(f"{key} must be at most {most:g} s, not {value!r}", f"{key} = 60.0", key)
        return float(value)

    def choice(self, table: dict[str, object], key: str, choices: tuple[str, ...], default: str) -> str:
        value = table.get(key, default)
        if value not in choices:
            hint = did_you_mean(value, choices, f"one of {', '.join(choices)}")
            self.fail(f"there is no {key} {value!r}", hint, key)
        return str(value)

    def needed(self, table: dict[str, object], key: str, what: str, example: str) -> None:
        if key not in table:
            self.fail(f"{what} has no {key}", example)
