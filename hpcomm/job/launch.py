"""`hpcomm run`: start a job of ranks under the MPI that mpi4py in this Python will load.

    hpcomm run [-n N] [options] COMMAND...
    hpcomm run -n 1 python a.py : -n 3 python b.py
    hpcomm run spec.toml                             (run_spec.py)

Three thoughts, one after the other: what was asked (`parse`), which MPI is at hand (installation.py),
what to tell its launcher (launcher_command.py). Then this process looks after the launcher until the job has
ended (supervise.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from . import supervise, survive, tracebacks
from .command_line import Command, Option, make_folder, option
from .cores import THREADS, Machine, here, sharing
from .installation import Mpi, check_python, find_mpi, refusal, which
from .launcher import begun, host_and_slots, programs_of, wrong_name
from .launcher_command import Composition, Job, Program, is_local, launcher_command
from .torch_variables import master, setting

_ABOUT = """\
hpcomm run [-n N] [options] COMMAND...
       hpcomm run -n N COMMAND... : -n M COMMAND... [: ...]
       hpcomm run [--dry-run] [--only PROGRAM] [...] SPEC.toml     (see: hpcomm run --help SPEC.toml)
"""


def has_spec(argv: Sequence[str]) -> bool:
    """Whether these words run a spec (run_spec.py), and not a command that has one as its argument."""
    words, valued = list(argv), parser().valued()
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if words and word in valued:
            words.pop(0)
    return (bool(words) and words[0].endswith(".toml")) or (
        bool(argv) and argv[0] in ("-h", "--help") and argv[-1].endswith(".toml")
    )


def main(argv: Sequence[str]) -> int:
    """`hpcomm run` with these words; returns only under --dry-run."""
    check_folder()
    job = parse(argv)
    mpi = find_mpi(job.launcher)
    for program in job.programs:
        check_python(program.command[0], mpi)
    job = job._replace(
        programs=tuple(
            each._replace(command=_told_apart(each.command, job.label, job.output)) for each in job.programs
        )
    )
    machine = here()
    if shows(launcher_command(job, mpi, machine), job.dry_run, job.verbose, THREADS in job.env):
        return 0
    make_folder("--output", job.output)

    # One that the user names may have been told to let the others live, and gets the commands as they are.
    def run(restart: tuple[int, int]) -> int:
        asked = job if job.launcher is not None else _for_torch(job, mpi, machine, restart)
        made = launcher_command(asked, mpi, machine)
        return supervise.supervise(made.command, made.environ, job.timeout_s, grace_s=job.grace_s)

    status = supervise.with_restarts(job.restarts, run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Python's own end takes 4 ms, and there is nothing left for it to end


def _told_apart(command: Sequence[str], label: bool, output: str | None) -> tuple[str, ...]:
    """What runs command with its output told apart, if that is asked for."""
    options = [*["--label"] * label, *(["--output", str(Path(output).absolute())] if output else [])]
    wrapper = (sys.executable, "-m", "hpcomm.job.rank_supervisor", *options) if options else ()
    return (*wrapper, *command)


def _for_torch(job: Job, mpi: Mpi, machine: Machine, restart: tuple[int, int]) -> Job:
    """The same job, whose ranks have what torchrun sets, are named if killed, and send their tracebacks."""
    is_here = is_local(job, machine)
    at = master(job.hosts, is_here, {**os.environ, **job.env})
    first = setting("srun" if mpi.is_srun else mpi.vendor, at, restart)
    first += "" if is_here else f"; {sharing()}"
    names = mpi.vendor == "mpich" and not mpi.is_srun
    programs = tuple(each._replace(command=begun(each.command, first, names)) for each in job.programs)
    sends = not is_here and os.environ.get(tracebacks.VARIABLE) != tracebacks.FULL
    return job._replace(programs=programs, env={**job.env, **({tracebacks.SENT: "1"} if sends else {})})


def check_folder() -> None:
    """Refuse to start where no launcher can."""
    try:
        Path.cwd()
    except OSError as error:
        raise refusal(
            f"the working directory cannot be used: {error.strerror}.", "cd to another one"
        ) from None


def shows(composed: Composition, dry_run: bool, verbose: bool, has_threads: bool) -> bool:
    """Print what is started, as one could type it, if that is asked for; whether that is all.

    On a terminal, say how many threads each rank gets, which may slow a program down. has_threads: the job
    says so itself.
    """
    if dry_run or verbose:
        print(shown(composed), file=sys.stdout if dry_run else sys.stderr)
    elif not has_threads and sys.stderr.isatty() and (composed.shares or THREADS in composed.environ):
        number, whose = ("", "its host's") if composed.shares else (f"={composed.environ[THREADS]}", "the")
        what = f"{THREADS}{number} in each rank: its share of {whose} cores"
        print(f"hpcomm run: {what} (set {THREADS} for another number)", file=sys.stderr)
    return dry_run


def shown(composed: Composition) -> str:
    """The files, then the line, as one could type them."""
    parts = [f"cat > {name} <<'END'\n{content}END" for name, content in composed.files.items()]
    added = (f"{name}={shlex.quote(value)}" for name, value in sorted(composed.environ.items()))
    line = " ".join([*added, shlex.join(composed.command)])
    return "\n".join([*parts, line.replace("'$PBS_NODEFILE'", '"$PBS_NODEFILE"')])


# -- what was asked ----------------------------------------------------------------------------------


def parser() -> Command:
    """The options in front of a command, by the names of Job's fields (and ranks), and the command."""
    about = "Start COMMAND on N ranks, under the MPI that mpi4py in this Python uses."
    made = Command("hpcomm run", about, usage=_ABOUT.rstrip())
    add, number = made.add_argument, partial(_whole, "-n", "the number of ranks", 1)
    what = "ranks (default: one rank per core, or what the batch system allots)"
    add("-n", "-np", "--ranks", dest="ranks", type=number, metavar="N", help=what)
    add("--hosts", type=_read_hosts, metavar="A:2,B:2", help="run on these hosts, with so many ranks each")
    for names, how in of_jobs():
        add(*names, **how)
    what = "set a variable for every rank (NAME alone: hand over its present value)"
    add("-x", "--env", **_setting("NAME=VALUE", _read_env, what))
    what = f"{THREADS}, of each rank (default: the cores of its host divided by the ranks there)"
    add("--threads", **_setting("N", _read_threads, what))
    what = "let each rank use all cores of its host (default: its share; on several hosts, as the MPI binds)"
    add("--bind", choices=["none"], help=what)
    what = "go on when a rank is killed; the others get PeerFailedError (Open MPI)"
    add("--survive", dest="env", action="append_const", const={survive.VARIABLE: "1"}, help=what)
    what = "run an mpi4py program over hpcomm, as it is: ranks compare their calls, errors name the line"
    add("--check", action="store_true", help=what)
    add("--spawn", action="store_true", help="let ranks start others: comm.spawn needs that under Open MPI")
    what = "print the traceback of each rank that fails, with hpcomm's own frames (default: once, without)"
    full = {tracebacks.VARIABLE: tracebacks.FULL}
    add("--full-traceback", dest="env", action="append_const", const=full, help=what)
    add("--label", action="store_true", help="put [RANK] before each line that a rank prints")
    what = "write what each rank prints to FOLDER/rank-RANK; with --label here as well"
    add("--output", metavar="FOLDER", help=what)
    for name in ("--nproc-per-node", "--nproc_per_node", "--nnodes"):
        hint = "-n N for N ranks in all; --hosts a:2,b:2 says how many on each host"
        refused = refusing(f"{name} {{}} is an option of torchrun's.", hint)
        add(name, type=refused, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for name, hint in _OF_SPECS.items():
        refused = refusing(f"{name} goes with a spec.", hint)
        add(name, type=refused, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    what = "what to run; `python` and `hpcomm` are this Python's; -- may stand before it"
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND...", help=what)
    return made


def of_jobs() -> Iterator[Option]:
    """The options of all jobs, of one command or of a spec."""
    what = "end the job after that time, show where each rank was, exit with 124 (default: none, or a spec's)"
    limit, grace = partial(seconds, "--timeout"), partial(seconds, "--grace")
    yield option("--timeout", dest="timeout_s", type=limit, metavar="SECONDS", help=what)
    what = f"how long ranks may go on after SIGTERM, which they get (default: {supervise.LEAVE_S:g})"
    yield option("--grace", dest="grace_s", type=grace, metavar="SECONDS", help=what)
    what = "end the job when a rank has waited so long in one call, and say for whom (default: wait)"
    yield option("--stall", **_setting("SECONDS", _read_stall, what))
    what = "start the job again up to N times when it fails: TORCHELASTIC_RESTART_COUNT says how often it was"
    times = partial(_whole, "--restarts", "how often", 0)
    yield option("--restarts", type=times, metavar="N", help=what, default=0)
    for name, what in (
        ("--fingerprint", "write 16 bytes for each call to this new folder: hpcomm diff compares two runs"),
        ("--trace", "write when each call begins and ends to this new folder: hpcomm report shows it"),
    ):
        yield option(name, **_setting("FOLDER", partial(_read_folder, name), what))
    yield option("--launcher", metavar="WHICH", help="mpiexec, srun or a path (default: the one that fits)")
    yield option("--dry-run", action="store_true", help="print the command line, and what it needs besides")
    yield option("-v", "--verbose", action="store_true", help="print the command line, then run it")


def _setting(metavar: str, read: Callable[[str], dict[str, str]], what: str) -> dict[str, Any]:
    """How an option is added that sets a variable for ranks."""
    return {"dest": "env", "action": "append", "type": read, "metavar": metavar, "help": what}


def parse(argv: Sequence[str]) -> Job:
    """Read the words after `hpcomm run`."""
    read, parts = parser(), programs_of(argv)
    first, *others = [vars(read.parse_args(words)) for words in parts]
    command = _checked if first["check"] else _command
    programs = [Program(each.pop("ranks"), command(each.pop("command"))) for each in (first, *others)]
    if any(value for each in others for value in each.values()):
        raise refusal(
            "only -n may stand behind a colon.", "put options for the whole job before the first program"
        )
    if others and any(program.ranks is None for program in programs):
        raise refusal(
            "a job of several programs needs -n for each.", "hpcomm run -n 1 python a.py : -n 3 python b.py"
        )
    return Job(tuple(programs), env=merged(first.pop("env")), **first)


def merged(given: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """The variables that options set for ranks, of which the last counts."""
    return {name: value for each in given or () for name, value in each.items()}


def _whole(option: str, what: str, least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise refusal(
            f"{option} {text}: {what} is a whole number, {least} or more.", f"hpcomm run {option} 4 ..."
        )
    return int(text)


def seconds(option: str, text: str, may_be_none: bool = False) -> float:
    """A time. may_be_none: whether it may be 0."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf") or not (found or may_be_none):
        wanted = ", or 0 for none" if may_be_none else " above 0"
        raise refusal(f"{option} {text}: the time is a number of seconds{wanted}.", f"{option} 60")
    return found


def _read_threads(text: str) -> dict[str, str]:
    if not text.isdecimal() or int(text) < 1:
        raise refusal(f"--threads {text}: a rank has 1 thread or more.", "--threads 2")
    return {THREADS: text}


def _read_stall(text: str) -> dict[str, str]:
    return {"HPCOMM_TIMEOUT": f"{seconds('--stall', text):g}"}


def _read_folder(option: str, text: str) -> dict[str, str]:
    folder = Path(text).resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise refusal(f"{option} {text}: something is there.", "a new folder for each run")
    return {f"HPCOMM_{option[2:].upper()}": str(folder)}


def _read_env(text: str) -> dict[str, str]:
    name, given, value = text.partition("=")
    if wrong := wrong_name(name):
        raise refusal(f"-x {text!r}: {wrong}.", "-x NAME=VALUE")
    if not given and name not in os.environ:
        raise refusal(f"-x {name}: the environment has no such variable.", f"-x {name}=VALUE")
    return {name: value if given else os.environ[name]}


def refusing(what: str, hint: str) -> Callable[[str], NoReturn]:
    """The type of an option that there is not."""

    def refuse(text: str) -> NoReturn:
        raise refusal(what.format(text), hint)

    return refuse


def _read_hosts(text: str) -> str:
    for host in re.split(r",(?![^\[]*\])", text):  # but not those in Slurm's node[1,3]
        if host_and_slots(host) is None:
            what = f"--hosts {text!r}: {host!r} is no host and its number of ranks."
            raise refusal(what, "--hosts a:2,b:2")
    return text


_OF_SPECS = {  # options of `hpcomm run SPEC.toml`, and what goes with a command
    "--as": "--dry-run shows what is started here",
    "--files": "--output FOLDER",
    **{name: f"hpcomm run {name} ... SPEC.toml" for name in ("--only", "--record", "--progress")},
}


def _command(words: list[str]) -> tuple[str, ...]:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise refusal("no command to run.", "hpcomm run -n 4 python program.py")
    if words[0] in ("python", "python3"):
        return (sys.executable, *words[1:])
    if words[0] == "hpcomm":  # this one, whatever PATH has
        return (sys.executable, "-m", *words)
    if which(words[0]) is None:
        hint = "check its spelling, or give its full path"
        if words[0].endswith(".py") and os.path.isfile(words[0]):  # noqa: PTH113
            hint = f"hpcomm run python {shlex.quote(words[0])}"
        raise refusal(f"command not found: {words[0]}", hint)
    return tuple(words)


def _checked(words: list[str]) -> tuple[str, ...]:
    """The same with hpcomm.compat in mpi4py's place. Words: `python program.py`, or `program.py` alone."""
    words = words[1:] if words[:1] == ["--"] else words
    if words and words[0].endswith(".py"):
        words = ["python", *words]
    first, *others = _command(words)
    at = 0  # behind the options of Python itself
    while at < len(others) and others[at].startswith("-") and others[at] not in ("-m", "-c"):
        at += 1 + (others[at] in ("-W", "-X"))
    if "python" not in Path(first).name or others[at : at + 1] in ([], ["-c"]):
        what = f"--check is for a program in Python, not for {' '.join(words)!r}."
        raise refusal(what, "hpcomm run -n 4 --check python program.py")
    return (first, *others[:at], "-m", "hpcomm.compat", *others[at:])
