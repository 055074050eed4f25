"""TOML tables whose values are read one by one: an error names the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ...errors import ConfigError, did_you_mean
from .schema import Schema, example_of, fits, misfit

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
        what = f"{path.name} is no valid TOML: {what}"
        raise ConfigError(what, at(path, line), f"look at `{shown}`; {hint}") from None
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

    @contextmanager
    def blaming(self, key: str, whose: str = "") -> Iterator[None]:
        """A ConfigError that leaves it is said of a key of the table being read, with its line."""
        try:
            yield
        except ConfigError as error:
            self.fail(f"{whose}{error.what}", error.hint or "", key)

    def known(self, table: Any, schema: Schema, what: str) -> None:
        """Refuse keys that schema does not have."""
        keys = schema["properties"]
        if not isinstance(table, dict):
            head = "[[field]]" if self.where[:1] == ("field",) else f"[{'.'.join(self.where)}]"
            self.fail(f"{what} must be a table, not {table!r}", head)
        for key in table:
            if key not in keys:
                hint = did_you_mean(key, keys, f"known: {', '.join(keys)}")
                self.fail(f"{what} has no key {key!r}", hint, key)

    def read(self, table: Any, schema: Schema, what: str) -> dict[str, Any]:
        """The keys of a table that is as schema says, with their defaults."""
        self.known(table, schema, what)
        keys = schema["properties"]
        for key in schema.get("required", ()):
            if key not in table:
                self.fail(f"{what} has no {key}", example_of(key, keys[key]))
        for key, value in table.items():
            if wrong := misfit(key, value, keys[key]):
                self.fail(*wrong, key)
        for rule in schema.get("allOf", ()):
            if fits(table, rule["if"]) and not fits(table, rule["then"]):
                key = rule["if"].get("required", [None])[0]
                self.fail(f"{what} has {rule['description']}", rule["examples"][0], key)
        found = {key: table.get(key, keys[key].get("default")) for key in keys}
        return found | {key: float(table[key]) for key in table if keys[key].get("type") == "number"}
