"""`hpcomm run SPEC.toml`: what was asked, and what to tell the launcher; job_monitor.py then runs it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import ConfigError
from ...job import launch
from ...job.installation import VENDORS, Mpi, check_python, find_mpi, which
from ..monitor import job_monitor
from ..record_reader import read
from ..spec import spec_file as specs
from ..spec.toml_tables import at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Composition", "compose", "main"]

USAGE = """\
usage: hpcomm run [options] SPEC.toml

Check SPEC.toml, start its programs as one job, show what they print with the name of each, end together.

  --dry-run             print the command line and the files that it needs; run nothing
  --as KIND             with --dry-run: for openmpi, mpich, slurm-openmpi, slurm-mpich, pbs-openmpi, pbs-mpich
  --only PROGRAM        run one program alone, against what --record has kept of the others
  --record FOLDER       keep what the programs exchange; --only reads it from there (default: recorded)
  --files FOLDER        write each rank's output to a file of its own: FOLDER/ocean.0.out
  --progress SECONDS    say so often how far each program is (default: 10; 0: never)
  --timeout SECONDS     end the job after that time, exit with 124 (default: timeout of [job])
  --launcher WHICH      mpiexec, srun or a path, instead of the one that fits
  -v, --verbose         print the command line, then run it
"""
_KINDS = tuple(f"{batch}{vendor}" for batch in ("", "slurm-", "pbs-") for vendor in VENDORS)
_VALUED = ("--as", "--only", "--record", "--files", "--progress", "--timeout", "--launcher")
_IN_SPEC = {  # options of `hpcomm run COMMAND`, and the key that says the same in a spec
    **dict.fromkeys(("-n", "-np", "--ranks"), "ranks"),
    **dict.fromkeys(("-x", "--env"), "env"),
    "--hosts": "hosts",
}


@dataclass
class Asked:
    """The words after `hpcomm run`."""

    spec: Path
    dry_run: bool = False
    verbose: bool = False
    values: dict[str, str] = field(default_factory=dict)


class Composition(NamedTuple):
    """What to run: command, what it adds to the environment, files to write first (name: content)."""

    command: list[str]
    environ: dict[str, str]
    files: dict[str, str]


def main(argv: Sequence[str]) -> int:
    """Carry out `hpcomm run SPEC.toml`; the job's exit status."""
    if argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    launch.check_folder()
    asked = parse(argv)
    spec = read(asked.spec)
    if "--only" in asked.values:
        return run_alone(spec, asked)
    kind = asked.values.get("--as")
    mpi = (
        Mpi(_launcher_of(kind), kind.rpartition("-")[2], True)
        if kind
        else find_mpi(asked.values.get("--launcher"))
    )
    for program in spec.programs.values() if kind is None else ():
        check_mpi(program, mpi)
    composed = compose(spec, mpi, _machine(kind), _options(asked))
    return _shown_or_run(spec, composed, asked)


def _shown_or_run(spec: specs.JobSpec, composed: Composition, asked: Asked) -> int:
    if asked.dry_run or asked.verbose:
        print(shown(composed), file=sys.stdout if asked.dry_run else sys.stderr)
    return 0 if asked.dry_run else _run(spec, composed, asked)


def parse(argv: Sequence[str]) -> Asked:
    """Read the words.

    Raises:
        ConfigError: an unknown option, one without its value, or no spec.
    """
    asked = Asked(Path())
    words = list(argv)
    while words:
        word = words.pop(0)
        name, joined, value = word.partition("=")
        if word in ("--dry-run", "-v", "--verbose"):
            asked.dry_run |= word == "--dry-run"
            asked.verbose |= word != "--dry-run"
        elif name in _VALUED:
            if not joined and not words:
                raise ConfigError(f"{name} needs a value.", "hpcomm run", "hpcomm run --help SPEC.toml")
            asked.values[name] = value if joined else words.pop(0)
        elif name in _IN_SPEC:
            key = _IN_SPEC[name]
            raise ConfigError(
                f"{name} does not go with a spec.", "hpcomm run", f"write {key} = ... below [program.NAME]"
            )
        elif word.startswith("-"):
            raise launch.unknown_option(name)
        elif asked.spec != Path():
            what = "two specs" if word.endswith(".toml") else f"{word!r} behind a spec"
            raise ConfigError(
                f"{what}: {asked.spec} says all of a job.", "hpcomm run", f"hpcomm run {asked.spec}"
            )
        else:
            asked.spec = Path(word)
    if asked.spec == Path():
        raise ConfigError("which spec?", "hpcomm run", f"hpcomm run {' '.join(argv[:-1])} ... SPEC.toml")
    kind = asked.values.get("--as")
    if kind is not None and (kind not in _KINDS or not asked.dry_run):
        raise ConfigError(
            f"--as {kind} is not possible.", "hpcomm run", f"with --dry-run, one of {', '.join(_KINDS)}"
        )
    return asked


def _launcher_of(kind: str) -> str:
    return "srun" if kind.startswith("slurm") else "mpirun" if kind.endswith("openmpi") else "mpiexec"


def _machine(kind: str | None) -> launch.Machine:
    environ = dict(os.environ)
    if kind is not None:  # as if we were there
        for name in ("SLURM_JOB_ID", "PBS_NODEFILE"):
            environ.pop(name, None)
        environ |= {"SLURM_JOB_ID": "1"} if kind.startswith("slurm") else {}
        environ |= {"PBS_NODEFILE": "$PBS_NODEFILE"} if kind.startswith("pbs") else {}
    registers = kind is not None or launch.registers_memory()
    return launch.Machine(launch.usable_cores(), os.geteuid() == 0, environ, registers=registers)


def _options(asked: Asked) -> list[str]:
    shows_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    words = [] if asked.dry_run else ["--head", "--colour"] if shows_colour else ["--head"]
    for name in ("--files", "--record"):
        words += [name, str(Path(asked.values[name]).resolve())] if name in asked.values else []
    return words


def _run(spec: specs.JobSpec, composed: Composition, asked: Asked) -> int:
    given = asked.values.get("--timeout")
    timeout_s = spec.timeout_s if given is None else launch.read_timeout(given)
    every_s = _seconds(asked.values.get("--progress", "10"))
    for name in ("--files", "--record"):
        _make_folder(name, asked.values.get(name))
    return job_monitor.run(spec, composed.command, composed.environ, composed.files, timeout_s, every_s)


def _make_folder(option: str, path: str | None) -> None:
    """So that a folder that cannot be is refused here, and not by each rank."""
    if path is None:
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{option} {path}: {why}", "hpcomm run", f"{option} FOLDER") from None


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        raise ConfigError(
            f"--progress {text}: a number of seconds, or 0 for none.", "hpcomm run", "--progress 10"
        )
    return float(text)


def check_mpi(program: specs.ProgramSpec, mpi: Mpi) -> None:
    """Refuse a program that loads another MPI than the launcher's.

    Raises:
        ConfigError: its ranks would each believe that they are alone.
    """
    command = program.command[0]
    path = which(str(program.workdir / command) if "/" in command else command)
    if path is None or not mpi.vendor:
        return
    check_python(path, mpi)
    linked = _linked_vendor(path)
    if linked and linked != mpi.vendor:
        raise ConfigError(
            f"program {program.name!r} ({path}) is linked to {VENDORS[linked]}, but the job is started by "
            f"{VENDORS[mpi.vendor]}.",
            "hpcomm run",
            "build all programs of a job with the same MPI",
        )


def _linked_vendor(path: str) -> str:
    """The MPI that a program was linked to, as the loader tells; "" if none, or unknown."""
    try:
        done = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "openmpi" if "libmpi.so.40" in done.stdout else "mpich" if "libmpi.so.12" in done.stdout else ""


# -- what to tell the launcher -----------------------------------------------------------------------


def compose(
    spec: specs.JobSpec, mpi: Mpi, machine: launch.Machine, options: Sequence[str] = ()
) -> Composition:
    """The launcher's command line for all programs. Pure.

    Every rank is a supervisor that reads the spec itself, so nothing but its place has to pass through
    the launcher: environment, folder and devices are the same under all of them.
    """
    words = {
        name: (
            sys.executable,
            "-m",
            "hpcomm.mpmd.launch.rank_supervisor",
            *options,
            str(spec.path.resolve()),
            name,
        )
        for name in spec.programs
    }
    placed = any(program.hosts for program in spec.programs.values())
    if mpi.is_srun and not placed:
        return _multi_prog(spec, mpi, machine, words)
    hosts = None
    programs = []
    for name, program in spec.programs.items():
        programs.append(launch.Program(program.ranks, words[name], _placement(program, mpi)))
    if placed and not mpi.is_srun and mpi.vendor != "openmpi":  # it takes one list for all, in rank order
        hosts = _host_list(spec)
        programs = [program._replace(options=()) for program in programs]
    job = launch.Job(tuple(programs), hosts=hosts)
    command, added = launch.compose(job, mpi, machine)
    if "PBS_NODEFILE" in machine.environ and mpi.vendor != "openmpi" and not placed:
        command[1:1] = ["-f", machine.environ["PBS_NODEFILE"]]
    return Composition(command, added, {})


def _placement(program: specs.ProgramSpec, mpi: Mpi) -> tuple[str, ...]:
    if not program.hosts:
        return ()
    if mpi.is_srun:
        names = ",".join(host for host, _ in program.hosts)
        return ("-N", str(len(program.hosts)), "--nodelist", names)
    return ("--host", ",".join(f"{host}:{slots}" for host, slots in program.hosts))


def _host_list(spec: specs.JobSpec) -> str:
    """`n1:2,n2:1`: hosts in the order of the ranks."""
    unplaced = [program for program in spec.programs.values() if not program.hosts]
    if unplaced:
        raise ConfigError(
            f"program {unplaced[0].name!r} has no hosts, but others have.",
            at(spec.path, unplaced[0].line),
            "MPICH and its kin need hosts for every program or for none",
        )
    return ",".join(f"{host}:{slots}" for program in spec.programs.values() for host, slots in program.hosts)


def _multi_prog(
    spec: specs.JobSpec, mpi: Mpi, machine: launch.Machine, words: Mapping[str, tuple[str, ...]]
) -> Composition:
    """`srun --multi-prog`: a line per program, `0-1 python ...`."""
    lines = []
    for name, ranks in spec.world_ranks().items():
        place = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        lines.append(f"{place} {shlex.join(words[name])}")
    file = f"{spec.name}.multiprog"
    total = sum(program.ranks for program in spec.programs.values())
    job = launch.Job((launch.Program(total, ("--multi-prog", file)),))
    command, added = launch.compose(job, mpi, machine)
    return Composition(command, added, {file: "\n".join(lines) + "\n"})


def shown(composed: Composition) -> str:
    """The files, then the line, as one could type them."""
    parts = [f"cat > {name} <<'END'\n{content}END" for name, content in composed.files.items()]
    line = launch.shell_line(composed.command, composed.environ).replace("'$PBS_NODEFILE'", '"$PBS_NODEFILE"')
    return "\n".join([*parts, line])


def run_alone(spec: specs.JobSpec, asked: Asked) -> int:
    """`--only PROGRAM`: its ranks alone, the others replaced by what was recorded."""
    name = asked.values["--only"]
    if name not in spec.programs:
        close = get_close_matches(name, spec.programs, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(spec.programs)}"
        raise ConfigError(f"there is no program {name!r}", spec.path.name, hint)
    folder = Path(asked.values.get("--record", "recorded")).resolve()
    if not any(folder.glob(f"{name}.*")):
        raise ConfigError(
            f"nothing is recorded for {name!r} in {folder}",
            "hpcomm run",
            f"hpcomm run --record {folder} {asked.spec} first",
        )
    program = spec.programs[name]
    alone = specs.JobSpec(spec.path, spec.name, {name: program}, spec.grids, (), spec.timeout_s, spec.until_s)
    mpi = find_mpi(asked.values.get("--launcher"))
    asked.values.pop("--record", None)
    composed = compose(alone, mpi, _machine(None), [*_options(asked), "--replay", str(folder)])
    return _shown_or_run(alone, composed, asked)
