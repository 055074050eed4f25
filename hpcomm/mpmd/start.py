"""`hpcomm run SPEC.toml`: start the programs of a spec as one job, watch them, and end them together.

    this process ── mpirun / mpiexec / srun ──┬── rank.py ── python ocean.py       a supervisor per rank
                 <─ lines, and who has ended ─┴── rank.py ── python atmosphere.py

MPI ends a job when a rank is killed or ends with a status; it does not when one ends with 0 too early, and
then the others wait for ever. So each rank's supervisor says when its program has ended, and here stands
the rule: a program that has ended while others still run has ended the job.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from .. import launch, supervise
from ..errors import ConfigError
from ..installation import VENDORS, Mpi, check_python, find_mpi, which
from . import spec as specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Composition", "compose", "main", "takes"]

USAGE = """\
usage: hpcomm run [options] SPEC.toml

Check SPEC.toml, start its programs as one job, show what they print with the name of each, end together.

  --dry-run             print the command line and the files that it needs; run nothing
  --as KIND             with --dry-run: for openmpi, mpich, slurm-openmpi, slurm-mpich, pbs-openmpi, pbs-mpich
  --only PROGRAM        run one program alone, against what --record has kept of the others
  --record FOLDER       keep what the programs exchange; --only reads it from there (default: recorded)
  --files FOLDER        write each rank's output to a file of its own: FOLDER/ocean.0.out
  --timeout SECONDS     end the job after that time, exit with 124 (default: timeout of [job])
  --launcher WHICH      mpiexec, srun or a path, instead of the one that fits
  -v, --verbose         print the command line, then run it
"""
MARK = "\x1e"  # begins a line that a supervisor says to us
GRACE_S = 5.0  # between the end of a program and that of the others
FAILED_S = 2.0  # the same where it has failed: enough for the others to say so too
FAILED = 1
_KINDS = tuple(f"{batch}{vendor}" for batch in ("", "slurm-", "pbs-") for vendor in VENDORS)
_VALUED = ("--as", "--only", "--record", "--files", "--timeout", "--launcher")


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


def takes(argv: Sequence[str]) -> bool:
    """Whether these words run a spec, and not a command that has one as its argument."""
    rest = [word for word in argv if not word.startswith("-")]
    return (
        bool(rest)
        and rest[-1].endswith(".toml")
        and not any(word in ("-n", "-np", "--ranks") for word in argv)
    )


def main(argv: Sequence[str]) -> int:
    """Carry out `hpcomm run SPEC.toml`; the job's exit status."""
    if argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    asked = parse(argv)
    spec = specs.read(asked.spec)
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
    if asked.dry_run or asked.verbose:
        print(shown(composed), file=sys.stdout if asked.dry_run else sys.stderr)
    return 0 if asked.dry_run else run(spec, composed, _timeout(asked, spec))


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
        elif word.startswith("-"):
            raise launch._unknown_option(name)
        else:
            asked.spec = Path(word)
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
    return launch.Machine(launch.usable_cores(), os.geteuid() == 0, environ)


def _options(asked: Asked) -> list[str]:
    shows_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    words = [] if asked.dry_run else ["--head", "--colour"] if shows_colour else ["--head"]
    for name in ("--files", "--record"):
        words += [name, str(Path(asked.values[name]).resolve())] if name in asked.values else []
    return words


def _timeout(asked: Asked, spec: specs.JobSpec) -> float | None:
    return launch._read_timeout(asked.values["--timeout"]) if "--timeout" in asked.values else spec.timeout_s


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
        name: (sys.executable, "-m", "hpcomm.mpmd.rank", *options, str(spec.path.resolve()), name)
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
    unplaced = [name for name, program in spec.programs.items() if not program.hosts]
    if unplaced:
        raise ConfigError(
            f"program {unplaced[0]!r} has no hosts, but others have.",
            spec.path.name,
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
    line = launch._shell_line(composed.command, composed.environ).replace(
        "'$PBS_NODEFILE'", '"$PBS_NODEFILE"'
    )
    return "\n".join([*parts, line])


# -- running it --------------------------------------------------------------------------------------


class Watch:
    """Who runs, and who has ended how; fed by the lines of the supervisors."""

    def __init__(self, spec: specs.JobSpec) -> None:
        self.spec = spec
        self.running: dict[str, set[int]] = {}
        self.ended: dict[tuple[str, int], tuple[str, float]] = {}  # (program, rank): how, when
        self.statuses: dict[str, int] = {}
        self.first: str | None = None  # the sentence about the first failure
        self.started = time.monotonic()
        self._lock = threading.Lock()

    def hear(self, words: Sequence[str]) -> None:
        """`began PROGRAM RANK`, `ended PROGRAM RANK STATUS`."""
        with self._lock:
            what, program, *rest = words
            if what == "began":
                self.running.setdefault(program, set()).add(int(rest[0]))
            elif what == "ended":
                self._end(program, int(rest[0]), int(rest[1]))

    def _end(self, program: str, rank: int, status: int) -> None:
        self.running.get(program, set()).discard(rank)
        self.ended[program, rank] = (told(status), time.monotonic())
        goes_on = self.spec.programs[program].on_failure == "continue"
        if status and not goes_on:
            self.statuses.setdefault(program, status)
            n = self.spec.programs[program].ranks
            self.first = self.first or f"program '{program}' (rank {rank} of {n}) {told(status)}"
        elif status:
            print(
                f"hpcomm: program '{program}' (rank {rank}) {told(status)}; the others go on without it",
                file=sys.stderr,
                flush=True,
            )
        if not self.running[program] and not status:
            seconds = time.monotonic() - self.started
            print(f"hpcomm: program '{program}' has ended after {seconds:.1f} s", file=sys.stderr, flush=True)

    def verdict(self) -> str | None:
        """Why the job must be ended now, or None."""
        with self._lock:
            left = sorted(name for name, ranks in self.running.items() if ranks)
            now = time.monotonic()
            for (program, rank), (how, when) in self.ended.items():
                about = self.spec.programs[program]
                late = now - when > (FAILED_S if self.first else GRACE_S)
                if late and left and (self.first or (about.joins and about.on_failure == "end")):
                    others = " and ".join(f"'{name}'" for name in left)
                    what = (
                        f"program '{program}' (rank {rank} of {about.ranks}) {how}, while {others} still ran"
                    )
                    return self.first or what
                if late and left and all(self._is_free(name) for name in left):
                    return ""
        return None

    def explain(self, failed: bool) -> str | None:
        """The sentence about what ended the job, where it did not end well."""
        if not failed:
            return self.first
        ends = sorted((when, place, how) for place, (how, when) in self.ended.items())
        left = sorted(name for name, ranks in self.running.items() if ranks)
        killed = [program for _, (program, _), how in ends if "killed" in how]
        if ends and ends[0][2] == told(0) and (killed or (left and not self.first)):
            (program, rank), how = ends[0][1:]
            others = " and ".join(f"'{name}'" for name in {*killed, *left} - {program})
            n = self.spec.programs[program].ranks
            return f"program '{program}' (rank {rank} of {n}) {how}, while {others} still ran"
        return self.first

    def _is_free(self, program: str) -> bool:
        """Whether program may be ended when it is alone: it does not join."""
        return not self.spec.programs[program].joins


def told(status: int) -> str:
    """`ended with status 3`, `was killed by SIGKILL`."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else "ended (status 0)"


def run(spec: specs.JobSpec, composed: Composition, timeout_s: float | None) -> int:
    """Run it in a folder of its own; the job's exit status."""
    with tempfile.TemporaryDirectory(prefix="hpcomm-") as folder:
        command = list(composed.command)
        for name, content in composed.files.items():
            path = Path(folder, name)
            path.write_text(content)
            command = [str(path) if word == name else word for word in command]
        environ = {**os.environ, **composed.environ}
        environ |= supervise.settings(environ)
        return _watched(spec, command, environ, timeout_s)


def _watched(
    spec: specs.JobSpec, command: list[str], environ: dict[str, str], timeout_s: float | None
) -> int:
    mark = environ[supervise.MARK].rpartition(",")[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, supervise._raise_ended)
    watch = Watch(spec)
    launcher = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    readers = [_reader(stream, out, watch) for stream, out in ((launcher.stdout, 1), (launcher.stderr, 2))]
    status = None
    try:
        status = _until_the_end(launcher, watch, timeout_s)
    except supervise._EndedBySignalError as ended:
        watch.first = f"ended by {signal.Signals(ended.number).name}"
        status = 128 + ended.number
    if launcher.poll() is None or supervise.members(mark):
        supervise._end(launcher, mark, at_once=status is not None)
    for reader in readers:
        reader.join(supervise.GRACE_S)
    return _judged(watch, launcher.returncode, status)


def _until_the_end(launcher: subprocess.Popen[bytes], watch: Watch, timeout_s: float | None) -> int | None:
    """Wait; a status if the job must be ended, None if it has ended by itself."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while launcher.poll() is None:
        time.sleep(0.1)
        why = watch.verdict()
        if why is not None:
            watch.first = why or watch.first
            return next(iter(watch.statuses.values()), FAILED) if why else 0
        if deadline is not None and time.monotonic() > deadline:
            watch.first = f"the job had not ended after {timeout_s:g} s, so it was ended"
            return supervise.TIMED_OUT
    return None


def _judged(watch: Watch, launched: int, status: int | None) -> int:
    """The job's exit status, and the sentence that explains it."""
    if status is None:
        first = next(iter(watch.statuses.values()), 0)
        # MPICH's mpiexec ends with 0 when it has killed the others of a rank that left without Finalize;
        # their supervisors may be gone before they can say so.
        cut = FAILED if any(watch.running.values()) else 0
        status = first or (0 if _excused(watch) else launched or cut)
    why = watch.explain(bool(status)) or (f"the job ended with status {status}" if status else None)
    if why:
        print(f"hpcomm run: {why}", file=sys.stderr, flush=True)
    return status if status >= 0 else 128 - status


def _excused(watch: Watch) -> bool:
    """Whether only programs have failed that the others may go on without."""
    return not watch.statuses and bool(watch.ended) and not any(watch.running.values())


def _reader(stream: IO[bytes] | None, fd: int, watch: Watch) -> threading.Thread:
    """Pass lines on, but for those that are for us."""
    assert stream is not None

    def read() -> None:
        for line in stream:
            at = line.find(MARK.encode())
            if at < 0:
                os.write(fd, line)
                continue
            for part in line[at:].decode(errors="replace").split(MARK)[1:]:
                watch.hear(part.split())
            if at:
                os.write(fd, line[:at] + b"\n")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def run_alone(spec: specs.JobSpec, asked: Asked) -> int:
    """`--only PROGRAM`: its ranks alone, the others replaced by what was recorded."""
    name = asked.values["--only"]
    if name not in spec.programs:
        raise ConfigError(
            f"there is no program {name!r}", spec.path.name, f"one of {', '.join(spec.programs)}"
        )
    folder = Path(asked.values.get("--record", "recorded")).resolve()
    if not any(folder.glob(f"{name}.*")):
        raise ConfigError(
            f"nothing is recorded for {name!r} in {folder}",
            "hpcomm run",
            f"hpcomm run --record {folder} SPEC first",
        )
    program = spec.programs[name]
    alone = specs.JobSpec(spec.path, spec.name, {name: program}, spec.grids, (), spec.timeout_s)
    mpi = find_mpi(asked.values.get("--launcher"))
    composed = compose(alone, mpi, _machine(None), ["--head", "--replay", str(folder)])
    if asked.dry_run:
        print(shown(composed))
        return 0
    return run(alone, composed, _timeout(asked, spec))
