"""Output of a rank, told apart: `[3] ` before each line, or a file for each rank, whichever launcher it has.

    python -m hpcomm.job.rank_output [--label] [--output FOLDER] COMMAND...

Stands between the launcher and the program, as a shell would: the program inherits the launcher's variables
and file descriptors, so MPI does not notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def told_apart(command: Sequence[str], label: bool, output: str | None) -> tuple[str, ...]:
    """What runs command with its output told apart, if that is asked for."""
    options = [*["--label"] * label, *(["--output", str(Path(output).absolute())] if output else [])]
    wrapper = (sys.executable, "-m", "hpcomm.job.rank_output", *options) if options else ()
    return (*wrapper, *command)


def main(argv: Sequence[str]) -> int:
    """Run one rank; its exit status."""
    words, label, kept = list(argv), False, -1
    rank = world_rank()
    while words[0] in ("--label", "--output"):
        if words.pop(0) == "--label":
            label = True
        else:
            kept = opened(words.pop(0), f"rank-{rank}")
    signal.signal(signal.SIGABRT, signal.SIG_IGN)  # it is for the program, which prints its stacks then
    try:
        child = begin(words, {**os.environ})
    except OSError as error:
        sys.stderr.write(f"hpcomm run: {words[0]} cannot be started: {error.strerror}\n")
        return 127
    prefix = f"[{rank}] ".encode()
    copies = []
    for stream, fd in ((child.stdout, 1), (child.stderr, 2)):
        shown = [(fd, prefix)] if label or kept < 0 else []
        copies.append(copy(stream, [*shown, *([(kept, b"")] if kept >= 0 else [])]))
    status = finish(child, copies)
    return status if status >= 0 else 128 - status


def world_rank() -> int:
    """This process's rank in the world, as its launcher says."""
    return next((int(os.environ[name]) for name in _RANKS if name in os.environ), 0)


def opened(folder: str, name: str) -> int:
    """A new file in folder, which is made if it is not there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def begin(
    command: Sequence[str], environ: Mapping[str, str], workdir: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a program whose output is read here, and which gets the signals that this process gets.

    Raises:
        OSError: it cannot be started.
    """
    child = subprocess.Popen(
        command,
        cwd=workdir,
        env=environ,
        close_fds=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_prepare,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda n, _: child.send_signal(n))
    return child


def copy(stream: IO[bytes] | None, targets: Sequence[tuple[int, bytes]]) -> threading.Thread:
    """Copy stream line by line to file descriptors, each with what stands before a line there."""
    assert stream is not None

    def run() -> None:
        for line in stream:
            for fd, prefix in targets:
                os.write(fd, prefix + line + (b"" if line.endswith(b"\n") else b"\n"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def finish(child: subprocess.Popen[bytes], copies: Sequence[threading.Thread]) -> int:
    """Wait for the program, and for what it has written last; its status."""
    status = child.wait()
    for each in copies:
        each.join(2.0)  # a child of its own may hold the pipe
    return status


def _prepare() -> None:
    """In the program: a supervisor that is killed takes it along (Linux), and signals are as they were."""
    import ctypes

    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
