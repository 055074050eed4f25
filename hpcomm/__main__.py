"""`hpcomm COMMAND ...`, also `python -m hpcomm COMMAND ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from .errors import ConfigError, HpcommError
from .job import launch, supervise
from .job.command_line import is_another_rank
from .tools.commands import COMMANDS

MISUSED = 2  # exit status
_FOR_ALL_RANKS = (
    "run",
    "doctor",
    "selftest",
    "fortran",
)  # the others are carried out by the first rank alone


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: sys.argv) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        if not is_another_rank():
            print(_usage())
        return 0 if words else MISUSED
    if words[0] == "--version":
        from . import __version__

        print(f"hpcomm {__version__}")
        return 0
    return _carry_out(words)


def _carry_out(words: list[str]) -> int:
    """A command, and what is said where it fails."""
    try:
        status = _dispatch(words[0], words[1:])
        print(end="", flush=True)  # there may be no stdout at all
    except HpcommError as error:
        return _misused(error)
    except BrokenPipeError:  # whoever read it, as head does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python says so at its end
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        what, where = f"{error.filename}: {error.strerror}", f"hpcomm {words[0]}"
        return _misused(ConfigError(what, where, "look at that path, or name another one"))
    return status


def _misused(error: HpcommError) -> int:
    """Say why this is not done; the exit status."""
    if not is_another_rank():
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return MISUSED


def _dispatch(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        raise ConfigError(f"hpcomm has no command {name!r}.", hint=_suggestion(name))
    module, _, function = COMMANDS[name][0].partition(":")
    if name not in _FOR_ALL_RANKS and is_another_rank():
        return 0
    supervise.tell_ranks = _tell_ranks
    if name == "run" and launch.has_spec(words):
        module, function = "hpcomm.mpmd.spec.draw_spec", "run"
    status: int = getattr(import_module(module), function or "main")(words)
    return status


def _tell_ranks(pid: int) -> list[int]:
    from .tools import where

    return where.tell(pid)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = [f"hpcomm {known}" for known in get_close_matches(name, COMMANDS)]
    return " or ".join([*close, "hpcomm --help"])


def _usage() -> str:
    lines = [f"  {name:12s}{what}" for name, (_, what) in COMMANDS.items()]
    more = ["  --version", "", "hpcomm COMMAND --help says more."]
    return "\n".join(["usage: hpcomm COMMAND ...", "", *lines, *more])


if __name__ == "__main__":
    sys.exit(main())
