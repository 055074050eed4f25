"""Supervisor of one rank: starts it, tells its output apart, and reports its end.

    python -m hpcomm.job.rank_supervisor [--label] [--output FOLDER] COMMAND...
    python -m hpcomm.job.rank_supervisor [--head] [--sends] [--colour] [--files FOLDER] [--master HOST:PORT]
                               [--restart COUNT/MOST]
                               [--fingerprint FOLDER] [--trace FOLDER] [--timeout SECONDS]
                               [--record FOLDER | --replay FOLDER] --spec SPEC PROGRAM

Stands between the launcher and the program, as a shell would: the program inherits the launcher's
variables and file descriptors, so MPI does not notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from . import tracebacks
from .cores import THREADS, threads
from .launcher import wait_for
from .process_role import world_rank
from .program_watch import MARK, status_words
from .progress import DONE, JOINED, PIPE
from .torch_variables import variables

if TYPE_CHECKING:
    from .spec.programs import RunSpec

_FLAGS = ("--label", "--head", "--sends", "--colour")  # options without a value
_COLOURS = (36, 33, 35, 32, 34, 31)  # of programs, in turn
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_FOR_PROGRAM = (signal.SIGABRT, signal.SIGUSR1, signal.SIGUSR2)  # which gets them itself, as of our group
_READ_S = 2.0  # for what the program has written last; a child of its own may hold the pipe
_Target = tuple[int, bytes]  # a file descriptor, and what stands before each line there


def main(argv: Sequence[str]) -> int:
    """Run one rank; its exit status."""
    options, words = {}, list(argv)
    while words[0].startswith("--"):
        option = words.pop(0)
        options[option] = "" if option in _FLAGS else words.pop(0)
    for number in _FOR_PROGRAM:
        signal.signal(number, signal.SIG_IGN)
    if "--spec" in options:
        from .spec import programs, toml_tables  # which a command's rank need not wait for

        read, name = programs.read_programs(toml_tables.Tables(Path(options["--spec"])), here=False), words[0]
        spec = read.with_members()
        if "--replay" in options:
            spec = programs.RunSpec(spec.path, spec.name, {name: spec.programs[name]})
        return _run_program(spec, name, options)
    rank, folder = world_rank(), options.get("--output")
    kept = [(_opened(folder, f"rank-{rank}"), b"")] if folder else []
    shown = [[(fd, f"[{rank}] ".encode())] if "--label" in options or not folder else [] for fd in (1, 2)]
    told = {**os.environ}
    if folder and told.get(tracebacks.VARIABLE) != tracebacks.FULL:  # the file has all, and the screen either
        told[tracebacks.VARIABLE] = tracebacks.FULL if "--label" in options else tracebacks.BOTH
    try:
        child, copies = _begin(words, told, None, [[*each, *kept] for each in shown])
    except OSError as error:
        sys.stderr.write(f"hpcomm run: {words[0]} cannot be started: {error.strerror}\n")
        return 127
    return _shell_status(_finish(child, copies))


# -- the rank of a program in a spec -------------------------------------------------------------------


def environment(spec: RunSpec, name: str, rank: int, options: Mapping[str, str]) -> dict[str, str]:
    """What the program of this rank finds in its environment."""
    program = spec.programs[name]
    joined = [
        f"{each}={ranks[0]}-{ranks[-1]}"
        for each, ranks in spec.world_ranks().items()
        if spec.programs[each].joins
    ]
    environ = {**os.environ, "HPCOMM_PROGRAM": name, "HPCOMM_SPEC": str(spec.path.resolve())}
    environ |= {"HPCOMM_DEVICE": program.device, "HPCOMM_ON_FAILURE": program.on_failure}
    environ |= {"HPCOMM_MEMBER": str(program.member)} if program.member else {}
    environ["HPCOMM_PROGRAMS"] = " ".join(joined)
    if not program.joins:
        del environ["HPCOMM_PROGRAMS"]  # which may be of an outer job
    if each := program.threads or (THREADS not in environ and threads(spec.ranks_beside(name, rank))):
        environ[THREADS] = str(each)
    if program.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = str(program.gpus[rank % len(program.gpus)])
    elif program.device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    for option in ("--record", "--replay", "--fingerprint", "--trace", "--timeout"):
        environ |= {f"HPCOMM_{option[2:].upper()}": options[option]} if option in options else {}
    if "--master" in options:
        count, most = map(int, options.get("--restart", "0/0").split("/"))
        environ |= _for_torch(spec, name, rank, options["--master"], (count, most))
    return {**environ, **program.env}


def _for_torch(spec: RunSpec, name: str, rank: int, master: str, restart: tuple[int, int]) -> dict[str, str]:
    """What torchrun would set, if it had started this program alone; master: of the first program."""
    program, (host, _, port) = spec.programs[name], master.rpartition(":")
    hosts = program.hosts or ((host, program.ranks),)
    node, near = program.place_of(rank)
    at = hosts[0][0], int(port) + list(spec.programs).index(name)
    within = (near, min(hosts[node][1], program.ranks))
    found = {**variables(rank, program.ranks, within, (node, len(hosts)), at, restart), "ROLE_NAME": name}
    del found["HPCOMM_TOLD"]  # which is for numbers of the whole job
    return found


def misplaced(spec: RunSpec, name: str, rank: int, here: str) -> str:
    """What is wrong with this host as the place of a rank; empty: nothing, or the spec calls it otherwise."""
    program, here = spec.programs[name], here.partition(".")[0]
    placed = [host.partition(".")[0] for each in spec.programs.values() for host, _ in each.hosts]
    wanted = program.hosts[program.place_of(rank)[0]][0] if program.hosts else here
    if here not in placed or wanted.partition(".")[0] == here or _is_here(wanted):
        return ""
    hint = "the hosts of the spec in the order in which the launcher numbers them"
    return f"the launcher has put rank {rank} of {name!r} on {here}, and the spec on {wanted}\n  try: {hint}"


def _is_here(host: str) -> bool:
    """Whether a host is this one, which may have several names."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # only at an address of its own
        except (OSError, UnicodeError):
            return False
    return True


def _run_program(spec: RunSpec, name: str, options: Mapping[str, str]) -> int:
    program, rank = spec.programs[name], world_rank() - spec.world_ranks()[name][0]
    if wrong := misplaced(spec, name, rank, os.uname().nodename):
        sys.stderr.write(f"hpcomm: {wrong}\n")
        return 127
    environ = environment(spec, name, rank, options)
    has_head = "--head" in options
    prefix, folder = prefix_of(spec, name, rank, "--colour" in options), options.get("--files")
    if has_head:
        _tell(f"began {name} {rank}")
        listens, speaks = os.pipe()
        os.set_inheritable(speaks, True)
        environ[PIPE] = str(speaks)
    if "--sends" in options:
        environ[tracebacks.SENT] = "1"
    try:
        shown: list[_Target] = [(1, prefix), (2, prefix)]
        if folder:
            if environ.get(tracebacks.VARIABLE) != tracebacks.FULL:
                environ[tracebacks.VARIABLE] = tracebacks.BOTH
            shown = [(_opened(folder, f"{name}.{rank}.{end}"), b"") for end in ("out", "err")]
        child, copies = _begin(program.command, environ, program.workdir, [[each] for each in shown])
    except OSError as error:
        sys.stderr.write(f"hpcomm: program '{name}' cannot be started: {error}\n")
        return 127
    said: list[str] = []
    if has_head:
        os.close(speaks)
        copies.append(_thread(_pass_on, os.fdopen(listens), f"{name} {rank}", said))
    status, when = wait_for(child), time.time()
    _finish(child, copies)
    if has_head:  # it judges who was the first, by this host's clock
        _tell(f"ended {name} {rank} {status} {when:.6f}")
    elif status:
        sys.stderr.write(
            f"hpcomm: program '{name}' (rank {rank} of {program.ranks}) {status_words(status)}\n"
        )
    if program.on_failure == "continue" and (JOINED in said or not program.joins):
        if status and has_head and DONE not in said:
            _stay()
        return 0
    return _shell_status(status)


def _stay() -> NoReturn:
    """Be there until the launcher ends us: it would end the job if we left now, as MPI was not finalized."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    while True:
        signal.pause()


def _tell(words: str) -> None:
    os.write(1, f"{MARK}{words}\n".encode())


def _pass_on(stream: IO[str], name: str, said: list[str]) -> None:
    """Tell our head what the program says of its progress; said: the first word of each line."""
    for line in stream:
        what, *rest = line.split()
        said.append(what)
        _tell(" ".join([what, name, *rest]))


def prefix_of(spec: RunSpec, name: str, rank: int, coloured: bool) -> bytes:
    """`[ocean 0] `, in a colour of the program's own if a terminal shows it."""
    text = f"[{name} {rank}] " if spec.programs[name].ranks > 1 else f"[{name}] "
    colour = _COLOURS[list(spec.programs).index(name) % len(_COLOURS)]
    return f"\033[{colour}m{text}\033[0m".encode() if coloured else text.encode()


# -- the process ---------------------------------------------------------------------------------------


def _opened(folder: str, name: str) -> int:
    """A new file in folder, which is made if it is not there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def _begin(
    command: Sequence[str],
    environ: Mapping[str, str],
    workdir: Path | None,
    targets: Sequence[Sequence[_Target]],
) -> tuple[subprocess.Popen[bytes], list[threading.Thread]]:
    """Start a program, which gets the signals that we get, and what copies its output to targets."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, cwd=workdir, env=environ, close_fds=False, stdout=pipe, stderr=pipe, preexec_fn=_prepare
    )
    for number in _SIGNALS:
        signal.signal(number, lambda n, _: child.send_signal(n))
    streams = zip((child.stdout, child.stderr), targets, strict=True)
    return child, [_thread(_copy, stream, where) for stream, where in streams]


def _prepare() -> None:
    """In the program: a supervisor that is killed takes it along (Linux), and signals are as they were."""
    import ctypes

    for number in _FOR_PROGRAM:
        signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)


def _copy(stream: IO[bytes], targets: Sequence[_Target]) -> None:
    for line in stream:
        if line.startswith(tracebacks.MARK):  # a traceback for who has started the job
            os.write(2, line)
            continue
        for fd, prefix in targets:
            os.write(fd, prefix + line + (b"" if line.endswith(b"\n") else b"\n"))


def _finish(child: subprocess.Popen[bytes], copies: Sequence[threading.Thread]) -> int:
    """Wait for the program, and for what it has written last; its status."""
    status = wait_for(child)
    for each in copies:
        each.join(_READ_S)
    return status


def _thread(run: Callable[..., None], *given: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=given, daemon=True)
    thread.start()
    return thread


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
