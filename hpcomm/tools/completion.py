"""`hpcomm completion`: what makes a shell complete hpcomm's command lines (needs shtab).

eval "$(hpcomm completion bash)"                               in ~/.bashrc
hpcomm completion zsh > ~/.zfunc/_hpcomm                       in a folder of $fpath
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MissingError
from ..job.command_line import Command
from .commands import COMMANDS, parser_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "parser"]


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    try:
        import shtab
    except ImportError:
        raise MissingError(
            "completion needs shtab", "hpcomm completion", "pip install 'hpcomm[completion]'"
        ) from None
    print(shtab.complete(_whole(), shell=options.shell))
    return 0


def parser() -> Command:
    """The command's options."""
    made = Command("hpcomm completion", __doc__.partition("\n\n")[2] if __doc__ else None)
    made.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="whose language it is in")
    return made


def _whole() -> Command:
    """All commands as one."""
    whole = Command("hpcomm")
    commands = whole.add_subparsers()
    for name, (_, what) in COMMANDS.items():
        commands.add_parser(name, parents=[parser_of(name)], add_help=False, help=what)
    return whole
