"""Command line of a program in a spec, split into words and checked before anything starts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigError, did_you_mean
from ..installation import which

_EXAMPLE = 'command = "python ocean.py"'
_FOR_SHELLS = ("|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1")
_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "aprun")


def words_of(given: str | list[str]) -> list[str]:
    """The words of a command, a text or a list of texts; `python` becomes this Python."""
    if isinstance(given, str):
        try:
            words = shlex.split(given)
        except ValueError as error:
            raise ConfigError(f"command {given!r} cannot be read: {error}", hint="close the quotes") from None
        bare = given.split()  # there a quoted one has its quotes
        found = next((word for word in words if word in _FOR_SHELLS and word in bare), None)
        if found is not None:
            hint = '--files FOLDER keeps output in files; else command = ["sh", "-c", "exec ..."]'
            raise ConfigError(f"command has a {found!r}, but no shell reads it", hint=hint)
    else:
        words = given
    if not words or not words[0]:
        raise ConfigError("command is empty", hint=_EXAMPLE)
    return [sys.executable, *words[1:]] if words[0] in ("python", "python3") else words


def check(words: list[str], workdir: Path, env: Mapping[str, str]) -> None:
    """That what words name can be started in workdir."""
    if Path(words[0]).name in _LAUNCHERS:
        raise ConfigError(f"{words[0]} starts ranks of its own", hint="the bare command, and ranks = 2")
    path = workdir / words[0] if "/" in words[0] else Path(words[0])
    if which(str(path)) is None:
        raise ConfigError(*_not_found(words[0], path))
    if is_python(words):
        _check_python(words, workdir, env)


def is_python(words: Sequence[str]) -> bool:
    """Whether they start a Python."""
    return Path(words[0]).name.startswith("python")


def _not_found(word: str, path: Path) -> tuple[str, str, str]:
    """(what, where, hint)"""
    name, is_variable, value = word.partition("=")
    if is_variable and name.isidentifier():
        return f"command begins with a variable: {word}", "", f'env = {{ {name} = "{value}" }}'
    if word.startswith(("~", "$")):
        return f"command not found: {word}", "", "no shell reads it: write the full path"
    if "/" in word and os.path.isdir(path):  # noqa: PTH112 - Path's raises for a long name
        return f"command {word} is a folder", "", "the path of a program in it"
    if "/" in word and os.path.isfile(path):  # noqa: PTH113
        quoted = shlex.quote(word)
        return f"command {word} may not be executed", "", f"chmod +x {quoted}, or python {quoted}"
    return f"command not found: {word}", "", "check its spelling, or give its full path"


def _check_python(words: list[str], workdir: Path, env: Mapping[str, str]) -> None:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    if rest[:1] == ["-m"] and len(rest) > 1:
        is_known = words[0] == sys.executable and "PYTHONPATH" not in env
        _check_module(rest[1].partition(".")[0], workdir, is_known)
    elif rest and rest[0].endswith(".py"):
        _check_script(workdir / rest[0], rest[0], workdir)


def _check_module(name: str, workdir: Path, is_known: bool) -> None:
    here = (workdir / name).is_dir() or (workdir / f"{name}.py").is_file()
    if is_known and not here and find_spec(name) is None:
        raise ConfigError(f"there is no module {name}", hint=f"modules are looked for in {workdir} too")


def _check_script(path: Path, given: str, workdir: Path) -> None:
    if not path.is_file():
        scripts = [each.name for each in path.parent.glob("*.py")]
        hint = did_you_mean(path.name, scripts, f"paths count from {workdir}")
        raise ConfigError(f"there is no script {given}", hint=hint)
