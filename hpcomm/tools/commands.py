"""All commands of `hpcomm`: where each is, and what it does; and how a shell completes them (needs shtab)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..job.command_line import Command, option
from ..job.optional_packages import load

_HOW = """\
eval "$(hpcomm completion bash)"                               in ~/.bashrc
hpcomm completion zsh > ~/.zfunc/_hpcomm                       in a folder of $fpath
"""
completion_parser = partial(
    Command,
    "hpcomm completion",
    _HOW,
    option("shell", choices=("bash", "zsh", "fish", "tcsh"), help="whose language it is in"),
)
_PROGRAM = """\
_hpcomm_program() {{
  compgen -f -- "$1"
  compgen -W "{}" -- "$1"
}}
"""
# name: (module whose main(words), or the function behind a colon, returns the exit status; what it does).
# Its options: parser() of the module, or FUNCTION_parser().
COMMANDS = {
    "run": ("hpcomm.job.launch", "start a job of ranks under the MPI at hand"),
    "check": (
        "hpcomm.mpmd.spec.draw_spec:check",
        "say whether the spec of a job of several programs is right",
    ),
    "plan": ("hpcomm.mpmd.spec.draw_spec:plan", "say who would start where, and what would go where"),
    "mpmd": ("hpcomm.mpmd.spec.draw_spec", "draw the programs and fields of a spec"),
    "fortran": ("hpcomm.tools.fortran", "say where the sources for programs in Fortran and C are"),
    "sim": ("hpcomm.tools.sim", "simulate collectives on a machine, up to 100,000 ranks"),
    "prove": ("hpcomm.tools.prove_file", "prove that algorithms of your own do what they should"),
    "draw": ("hpcomm.tools.draw", "draw a collective algorithm, its times, or which one wins where"),
    "tune": (
        "hpcomm.tools.tune",
        'measure which algorithm is fastest here, and keep it for algorithm="tuned"',
    ),
    "where": ("hpcomm.tools.where", "say where the ranks of running jobs are, and who waits for whom"),
    "top": ("hpcomm.tools.where:top", "show what the ranks of running jobs are doing"),
    "report": ("hpcomm.tools.report", "show what the calls of a traced run took, and who waited for whom"),
    "selftest": ("hpcomm.tools.selftest", "check all operations on the ranks that it is started with"),
    "diff": ("hpcomm.tools.diff", "name the first call in which two runs with --fingerprint differ"),
    "doctor": ("hpcomm.tools.doctor", "examine MPI, launcher, shared memory and environment of this machine"),
    "env": ("hpcomm.tools.env", "list the variables that hpcomm reads, and those that are set"),
    "completion": ("hpcomm.tools.commands:completion", "make a shell complete hpcomm's command lines"),
}


def parser_of(name: str) -> Command:
    """The options of a command."""
    module, _, function = COMMANDS[name][0].partition(":")
    made: Command = getattr(import_module(module), f"{function}_parser" if function else "parser")()
    return made


def completion(words: Sequence[str]) -> int:
    """Carry out `hpcomm completion`; returns the exit status."""
    options = completion_parser().parse_args(list(words))
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
