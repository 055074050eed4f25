"""Supervisor of one rank: sets its program up, starts it, marks its output, reports its end.

    python -m hpcomm.mpmd.launch.rank_supervisor [--head] [--colour] [--files FOLDER] [--master HOST:PORT]
                               [--record FOLDER | --replay FOLDER] SPEC PROGRAM

Stands between the launcher and the program, as a shell would: the program inherits the launcher's
variables and file descriptors, so MPI does not notice.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ...job import rank_output
from ...job.torch_variables import variables
from ..coupling_progress import DONE, JOINED, PIPE
from ..handshake import PROGRAMS
from ..monitor.job_monitor import MARK, status_words
from ..record_reader import read
from ..spec import spec_file as specs

_COLOURS = (36, 33, 35, 32, 34, 31)  # of programs, in turn


def main(argv: Sequence[str]) -> int:
    """Run one rank; its exit status."""
    options, (path, name) = _read(argv)
    spec = read(Path(path), here=False)
    if "--replay" in options:
        spec = specs.JobSpec(spec.path, spec.name, {name: spec.programs[name]}, spec.grids, spec.fields)
    ranks = spec.world_ranks()[name]
    rank = rank_output.world_rank() - ranks[0]
    environ = environment(spec, name, rank)
    for option, variable in (("--record", "HPCOMM_RECORD"), ("--replay", "HPCOMM_REPLAY")):
        environ |= {variable: options[option]} if option in options else {}
    if "--master" in options:
        environ |= {**_for_torch(spec, name, rank, options["--master"]), **spec.programs[name].env}
    return _run(spec, name, rank, environ, options)


def _read(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    options, words = {}, list(argv)
    while words[0].startswith("--"):
        option = words.pop(0)
        options[option] = "" if option in ("--head", "--colour") else words.pop(0)
    return options, words


def environment(spec: specs.JobSpec, name: str, rank: int) -> dict[str, str]:
    """What the program of this rank finds in its environment."""
    program = spec.programs[name]
    joined = [
        f"{each}={ranks[0]}-{ranks[-1]}"
        for each, ranks in spec.world_ranks().items()
        if spec.programs[each].joins
    ]
    environ = dict(os.environ)
    environ |= {"HPCOMM_PROGRAM": name, PROGRAMS: " ".join(joined), "HPCOMM_SPEC": str(spec.path.resolve())}
    environ |= {"HPCOMM_DEVICE": program.device, "HPCOMM_ON_FAILURE": program.on_failure}
    if not program.joins:
        del environ[PROGRAMS]
    if program.threads:
        environ["OMP_NUM_THREADS"] = str(program.threads)
    if program.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = str(program.gpus[rank % len(program.gpus)])
    elif program.device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    return {**environ, **program.env}


def _for_torch(spec: specs.JobSpec, name: str, rank: int, master: str) -> dict[str, str]:
    """What torchrun would set, if it had started this program alone; master: of the first program."""
    program, (host, _, port) = spec.programs[name], master.rpartition(":")
    hosts = program.hosts or ((host, program.ranks),)
    near, node = rank, 0
    while node < len(hosts) - 1 and near >= hosts[node][1]:
        near, node = near - hosts[node][1], node + 1
    at = hosts[0][0], int(port) + list(spec.programs).index(name)
    within = (near, min(hosts[node][1], program.ranks))
    found = {**variables(rank, program.ranks, within, (node, len(hosts)), at), "ROLE_NAME": name}
    del found["HPCOMM_TOLD"]  # which is for numbers of the whole job
    return found


def _run(spec: specs.JobSpec, name: str, rank: int, environ: dict[str, str], options: dict[str, str]) -> int:
    program = spec.programs[name]
    has_head = "--head" in options
    pipe = (-1, -1)
    if has_head:
        _tell(f"began {name} {rank}")
        pipe = os.pipe()
        os.set_inheritable(pipe[1], True)
        environ = {**environ, PIPE: str(pipe[1])}
    try:
        child = rank_output.begin(program.command, environ, program.workdir)
    except OSError as error:
        sys.stderr.write(f"hpcomm: program '{name}' cannot be started: {error}\n")
        return 127
    prefix, folder = prefix_of(spec, name, rank, "--colour" in options), options.get("--files")
    copies = []
    for stream, fd, end in ((child.stdout, 1, "out"), (child.stderr, 2, "err")):
        target = (rank_output.opened(folder, f"{name}.{rank}.{end}"), b"") if folder else (fd, prefix)
        copies.append(rank_output.copy(stream, [target]))
    said: list[str] = []
    if has_head:
        os.close(pipe[1])
        copies.append(_pass_on(pipe[0], f"{name} {rank}", said))
    status, when = child.wait(), time.time()
    rank_output.finish(child, copies)
    _say_end(program, rank, status, when if has_head else None)
    if program.on_failure == "continue" and (JOINED in said or not program.joins):
        if status and has_head and DONE not in said:
            _stay()
        return 0
    return status if status >= 0 else 128 - status


def _say_end(program: specs.ProgramSpec, rank: int, status: int, when: float | None) -> None:
    """when: by this host's clock, if there is a head to judge who was the first."""
    if when is not None:
        _tell(f"ended {program.name} {rank} {status} {when:.6f}")
    elif status:
        sys.stderr.write(
            f"hpcomm: program '{program.name}' (rank {rank} of {program.ranks}) {status_words(status)}\n"
        )


def _stay() -> NoReturn:
    """Be there until the launcher ends us: it would end the job if we left now, as MPI was not finalized."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    while True:
        signal.pause()


def _tell(words: str) -> None:
    os.write(1, f"{MARK}{words}\n".encode())


def prefix_of(spec: specs.JobSpec, name: str, rank: int, coloured: bool) -> bytes:
    """`[ocean 0] `, in a colour of the program's own if a terminal shows it."""
    text = f"[{name} {rank}] " if spec.programs[name].ranks > 1 else f"[{name}] "
    colour = _COLOURS[list(spec.programs).index(name) % len(_COLOURS)]
    return f"\033[{colour}m{text}\033[0m".encode() if coloured else text.encode()


def _pass_on(fd: int, name: str, said: list[str]) -> threading.Thread:
    """Tell our head what the program says of its progress; said: the first word of each line."""

    def read() -> None:
        with os.fdopen(fd) as stream:
            for line in stream:
                what, *rest = line.split()
                said.append(what)
                _tell(" ".join([what, name, *rest]))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
