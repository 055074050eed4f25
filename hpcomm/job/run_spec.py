"""`hpcomm run SPEC.toml`: what was asked, and what to tell the launcher; supervise.py then runs it."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..errors import ConfigError, did_you_mean
from . import launch, tracebacks
from .command_line import Command, make_folder
from .cores import Machine, here
from .installation import VENDORS, Mpi, check_python, find_mpi, refusal, unlike, which
from .launcher_command import Composition, Job, Program, launcher_command
from .program_watch import Watch
from .spec.programs import ProgramSpec, RunSpec
from .spec.toml_tables import at
from .supervise import supervise, with_restarts
from .survive import TELLS
from .torch_variables import master

_KINDS = tuple(f"{batch}{vendor}" for batch in ("", "slurm-", "pbs-") for vendor in VENDORS)
_BATCH = ("SLURM_JOB_ID", "PBS_NODEFILE")
_IN_SPEC = {  # options of `hpcomm run COMMAND`, and the key that says the same in a spec
    ("-n", "-np", "--ranks"): "ranks",
    ("-x", "--env"): "env",
    ("--hosts",): "hosts",
}


def run(spec: RunSpec, asked: argparse.Namespace) -> int:
    """Carry out `hpcomm run SPEC.toml`; the job's exit status."""
    options, kind = _options(asked), asked.kind
    if asked.only is not None:
        spec, options = _alone(spec, asked, options)
    mpi = Mpi(_launcher_of(kind), kind.rpartition("-")[2], True) if kind else find_mpi(asked.launcher)
    for program in spec.programs.values() if kind is None else ():
        check_mpi(program, mpi)
    machine = _machine(kind)
    composed = job_command(spec, mpi, machine, options)
    has_threads = all(program.threads for program in spec.programs.values())
    if launch.shows(composed, asked.dry_run, asked.verbose, has_threads):
        return 0
    make_folder("--files", asked.files)
    make_folder("--record", asked.record)
    timeout_s = spec.timeout_s if asked.timeout_s is None else asked.timeout_s

    def once(restart: tuple[int, int]) -> int:
        words = [*options, "--restart", "/".join(map(str, restart))]
        again = job_command(spec, mpi, machine, words)
        watch = Watch(spec, asked.progress, _at_a_death(spec, mpi, machine) is not None)
        return supervise(*again[:2], timeout_s, watch, again.files, asked.grace_s)

    return with_restarts(asked.restarts, once)


def _alone(spec: RunSpec, asked: argparse.Namespace, options: list[str]) -> tuple[RunSpec, list[str]]:
    """`--only PROGRAM`: its ranks alone, the others replaced by what was recorded."""
    name = asked.only
    if name not in spec.programs:
        hint = did_you_mean(name, spec.programs, f"one of {', '.join(spec.programs)}")
        raise ConfigError(f"there is no program {name!r}", spec.path.name, hint)
    folder = Path(asked.record or "recorded").resolve()
    if not any(folder.glob(f"{name}.*")):
        hint = f"{shlex.join(['hpcomm', 'run', '--record', str(folder), str(asked.spec)])} first"
        raise refusal(f"nothing is recorded for {name!r} in {folder}", hint)
    return replace(spec, programs={name: spec.programs[name]}), [*options, "--replay", str(folder)]


def parser() -> Command:
    """The options of a job that a spec says."""
    about = "Check SPEC.toml, start its programs as one job, show what they print with the name of each."
    made = Command("hpcomm run", about, *launch.of_jobs(), usage="hpcomm run [options] SPEC.toml")
    add = made.add_argument
    add("--as", dest="kind", metavar="KIND", help=f"with --dry-run: for {', '.join(_KINDS)} (default: here)")
    add("--only", metavar="PROGRAM", help="run it alone, against what --record has kept of the others")
    what = "keep what the programs exchange; --only reads it from there (default: recorded)"
    add("--record", metavar="FOLDER", help=what)
    add("--files", metavar="FOLDER", help="write each rank's output to a file of its own: FOLDER/ocean.0.out")
    often = partial(launch.seconds, "--progress", may_be_none=True)
    what = "say so often how far each program is; 0: never"
    add("--progress", type=often, default="10", metavar="SECONDS", help=what)
    for names, key in _IN_SPEC.items():
        hint = f"write {key} = ... below [program.NAME]"
        refused = launch.refusing(f"{names[0]} does not go with a spec.", hint)
        add(*names, type=refused, help=argparse.SUPPRESS)
    add("spec", nargs="*", metavar="SPEC.toml", help="programs, fields and limits of a job")
    return made


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the words."""
    launch.check_folder()
    asked = parser().parse_intermixed_args(argv)
    if not asked.spec:
        raise refusal("which spec?", f"hpcomm run {shlex.join(argv[:-1])} ... SPEC.toml")
    if len(asked.spec) > 1:
        first, word, *_ = asked.spec
        what = "two specs" if word.endswith(".toml") else f"{word!r} behind a spec"
        raise refusal(f"{what}: {first} says all of a job.", f"hpcomm run {shlex.quote(first)}")
    asked.spec = Path(asked.spec[0])
    if asked.kind is not None and (asked.kind not in _KINDS or not asked.dry_run):
        raise refusal(f"--as {asked.kind} is not possible.", f"with --dry-run, one of {', '.join(_KINDS)}")
    return asked


def _launcher_of(kind: str) -> str:
    return "srun" if kind.startswith("slurm") else "mpirun" if kind.endswith("openmpi") else "mpiexec"


def _machine(kind: str | None) -> Machine:
    machine = here()
    if kind is None:
        return machine
    environ = {name: value for name, value in machine.environ.items() if name not in _BATCH}
    environ |= {"SLURM_JOB_ID": "1"} if kind.startswith("slurm") else {}
    environ |= {"PBS_NODEFILE": "$PBS_NODEFILE"} if kind.startswith("pbs") else {}
    return Machine(machine.cores, machine.is_root, environ)


def _options(asked: argparse.Namespace) -> list[str]:
    """What each rank's supervisor is told."""
    record = None if asked.only is not None else asked.record
    new = {f"--{name.removeprefix('HPCOMM_').lower()}": of for name, of in launch.merged(asked.env).items()}
    folders = {"--files": asked.files, "--record": record}
    new |= {name: str(Path(folder).resolve()) for name, folder in folders.items() if folder}
    words = [word for setting in new.items() for word in setting]
    if asked.dry_run:
        return words
    shows_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    host, port = master(None, "SLURM_JOB_ID" not in os.environ, os.environ)
    flags = ["--head", *["--sends"] * (os.environ.get(tracebacks.VARIABLE) != tracebacks.FULL)]
    return [*flags, *["--colour"] * shows_colour, *words, "--master", f"{host}:{port}"]


def check_mpi(program: ProgramSpec, mpi: Mpi) -> None:
    """Refuse a program that loads another MPI than the launcher's."""
    path = _path_of(program)
    if path is None or not mpi.vendor:
        return
    check_python(path, mpi)
    linked = linked_vendor(program)
    if linked and linked != mpi.vendor:
        one = f"program {program.name!r} ({path}) is linked to {VENDORS[linked]}"
        hint = "build all programs of a job with the same MPI"
        raise unlike(one, f"the job is started by {VENDORS[mpi.vendor]}", hint)


def _path_of(program: ProgramSpec) -> str | None:
    word = program.command[0]
    return which(str(program.workdir / word) if "/" in word else word)


def linked_vendor(program: ProgramSpec) -> str:
    """The MPI that a program was linked to, as the loader tells; "" if none, or unknown."""
    try:
        done = subprocess.run(
            ["ldd", _path_of(program) or ""], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "openmpi" if "libmpi.so.40" in done.stdout else "mpich" if "libmpi.so.12" in done.stdout else ""


# -- what to tell the launcher -----------------------------------------------------------------------


def job_command(spec: RunSpec, mpi: Mpi, machine: Machine, options: Sequence[str] = ()) -> Composition:
    """The launcher's command line for all programs. Pure.

    Every rank is a supervisor that reads the spec itself, so nothing but its place has to pass through
    the launcher: environment, folder and devices are the same under all of them.
    """
    supervisor = (sys.executable, "-m", "hpcomm.job.rank_supervisor", *options)
    words = {name: (*supervisor, "--spec", str(spec.path.resolve()), name) for name in spec.programs}
    hosts = _hosts(spec)
    listed = ",".join(f"{host}:{n}" for host, n in hosts) or None
    if mpi.is_srun:
        return _multi_prog(spec, mpi, machine, words, listed)
    if mpi.vendor == "openmpi":
        job = Job(tuple(_placed_by_openmpi(spec, words, hosts)))
    else:
        programs = (Program(program.ranks, words[name]) for name, program in spec.programs.items())
        job = Job(tuple(programs), hosts=listed)
    made = launcher_command(job, mpi, machine)
    if "PBS_NODEFILE" in machine.environ and mpi.vendor != "openmpi" and not hosts:
        made.command[1:1] = ["-f", machine.environ["PBS_NODEFILE"]]
    made.command[1:1] = _at_a_death(spec, mpi, machine) or []
    return made


def _hosts(spec: RunSpec) -> list[tuple[str, int]]:
    """Hosts in the order of the ranks, and how many each has; none: the launcher places the ranks."""
    hosts = [each for program in spec.programs.values() for each in program.hosts]
    unplaced = [program for program in spec.programs.values() if not program.hosts]
    if hosts and unplaced:
        raise ConfigError(
            f"program {unplaced[0].name!r} has no hosts, but others have.",
            at(spec.path, unplaced[0].line),
            "hosts for every program or for none",
        )
    return hosts


def _placed_by_openmpi(
    spec: RunSpec, words: Mapping[str, tuple[str, ...]], hosts: list[tuple[str, int]]
) -> Iterator[Program]:
    """Programs with their hosts.

    Where programs share a host, its slots are those of all, which they fill in turn. A list of such hosts
    would fill the first one with ranks of one program, so each is told alone.
    """
    slots: Counter[str] = Counter()
    for host, n in hosts:
        slots[host] += n
    for name, program in spec.programs.items():
        if all(slots[host] == n for host, n in program.hosts):
            named = ",".join(f"{host}:{n}" for host, n in program.hosts)
            yield Program(program.ranks, words[name], ("--host", named) if named else ())
            continue
        for host, n in program.hosts:
            yield Program(n, words[name], ("--host", f"{host}:{slots[host]}"))


def _at_a_death(spec: RunSpec, mpi: Mpi, machine: Machine) -> list[str] | None:
    """What lets programs go on when a rank of another one is killed, for the launcher; None: nothing does.

    Between hosts a death breaks MPI's connections.
    """
    hosts = {host for program in spec.programs.values() for host, _ in program.hosts}
    is_batch = not machine.environ.keys().isdisjoint(_BATCH)
    is_near = len(hosts) < 2 and not (is_batch and machine.environ.get("SLURM_JOB_NUM_NODES") != "1")
    if is_near or all(program.on_failure == "end" for program in spec.programs.values()):
        return []
    return TELLS if mpi.vendor == "openmpi" and not mpi.is_srun else None


def _multi_prog(
    spec: RunSpec, mpi: Mpi, machine: Machine, words: Mapping[str, tuple[str, ...]], hosts: str | None
) -> Composition:
    """`srun --multi-prog`: a line per program, `0-1 python ...`."""
    lines = []
    for name, ranks in spec.world_ranks().items():
        place = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        lines.append(f"{place} {shlex.join(words[name])}")
    file = f"{spec.name}.multiprog"
    total = sum(program.ranks for program in spec.programs.values())
    job = Job((Program(total, ("--multi-prog", file)),), hosts=hosts)
    return launcher_command(job, mpi, machine)._replace(files={file: "\n".join(lines) + "\n"})
