"""`hpcomm completion`: what makes a shell complete hpcomm's command lines (needs shtab).

eval "$(hpcomm completion bash)"                               in ~/.bashrc
hpcomm completion zsh > ~/.zfunc/_hpcomm                       in a folder of $fpath
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..job.command_line import Command, option
from ..job.optional_packages import load
from .commands import COMMANDS, parser_of

parser = partial(
    Command,
    "hpcomm completion",
    __doc__.partition("\n\n")[2] if __doc__ else None,
    option("shell", choices=("bash", "zsh", "fish", "tcsh"), help="whose language it is in"),
)
_PROGRAM = """\
_hpcomm_program() {{
  compgen -f -- "$1"
  compgen -W "{}" -- "$1"
}}
"""


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    hint = "pip install 'hpcomm[completion]'"
    shtab = load("shtab", "completion needs shtab", "hpcomm completion", hint)
    modules = (Path(__file__).parents[1] / "apps").glob("[!_]*.py")  # which `python -m` takes
    apps = " ".join(sorted(f"hpcomm.apps.{path.stem}" for path in modules))
    preamble: Any = {"bash": _PROGRAM.format(apps)}
    print(shtab.complete(_whole(shtab.FILE, shtab.DIRECTORY), shell=options.shell, preamble=preamble))
    return 0


def _whole(files: dict[str, Any], folders: dict[str, Any]) -> Command:
    """All commands as one; files, folders: how a shell completes these."""
    whole = Command("hpcomm")
    commands = whole.add_subparsers()
    for name, (_, what) in COMMANDS.items():
        found = parser_of(name)
        found.complete(files, folders, files | {"bash": "_hpcomm_program"})
        commands.add_parser(name, parents=[found], add_help=False, help=what)
    return whole
