"""`hpcomm COMMAND ...`, also `python -m hpcomm COMMAND ...`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .errors import ConfigError, HpcommError
from .job import launch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# name: (module whose main(words), or the function behind a colon, returns the exit status; what it does)
COMMANDS = {
    "run": ("hpcomm.job.launch", "start a job of ranks under the MPI at hand"),
    "check": (
        "hpcomm.mpmd.spec.draw_spec:check",
        "say whether the spec of a job of several programs is right",
    ),
    "plan": ("hpcomm.mpmd.spec.draw_spec:plan", "say who would start where, and what would go where"),
    "mpmd": ("hpcomm.mpmd.spec.draw_spec", "draw the programs and fields of a spec"),
    "sim": ("hpcomm.tools.sim", "simulate collectives on a machine, up to 100,000 ranks"),
    "prove": ("hpcomm.tools.prove_file", "prove that algorithms of your own do what they should"),
    "draw": ("hpcomm.tools.draw", "draw a collective algorithm, its times, or which one wins where"),
    "tune": (
        "hpcomm.tools.tune",
        'measure which algorithm is fastest here, and keep it for algorithm="tuned"',
    ),
    "doctor": ("hpcomm.tools.doctor", "examine MPI, launcher, shared memory and environment of this machine"),
}
MISUSED = 2  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: sys.argv) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else MISUSED
    if words[0] == "--version":
        from . import __version__

        print(f"hpcomm {__version__}")
        return 0
    try:
        status = _dispatch(words[0], words[1:])
        print(end="", flush=True)  # there may be no stdout at all
    except HpcommError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return MISUSED
    except BrokenPipeError:  # whoever read it, as head does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python says so at its end
        return 1
    return status


def _dispatch(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        raise ConfigError(f"hpcomm has no command {name!r}.", hint=_suggestion(name))
    module, _, function = COMMANDS[name][0].partition(":")
    if name == "run" and launch.has_spec(words):
        module = "hpcomm.mpmd.launch.start"
    status: int = getattr(import_module(module), function or "main")(words)
    return status


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = [f"hpcomm {known}" for known in get_close_matches(name, COMMANDS)]
    return " or ".join([*close, "hpcomm --help"])


def _usage() -> str:
    lines = [f"  {name:10s}{what}" for name, (_, what) in COMMANDS.items()]
    more = ["  --version", "", "hpcomm COMMAND --help says more."]
    return "\n".join(["usage: hpcomm COMMAND ...", "", *lines, *more])


if __name__ == "__main__":
    sys.exit(main())
