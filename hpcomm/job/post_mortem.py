"""Post-mortem reporter: says which rank was which program, when a rank is killed under plain mpirun.

A rank that is killed says nothing, and its launcher kills the others at once. So the first rank of the job
leaves a process behind, which outlives it: its standard input ends when the rank does. Needs the standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence

from .launcher import PRRTE, SLURM, call, is_supervised, launcher_of, name_of


def leave(came: str) -> Callable[[], None] | None:
    """Have came said, who is in this job, if this rank is killed. Returns what takes that back.

    `hpcomm run` says more, and so needs none. MPICH's launcher would take the process for a rank's that
    still runs, and give another status.
    """
    launcher = launcher_of(os.getpid())
    if is_supervised(launcher) or name_of(launcher) not in (*PRRTE, SLURM):
        return None
    with _voice(launcher) as its:
        process = subprocess.Popen(
            call("job.post_mortem", came),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=its,
            start_new_session=True,
        )
    return process.kill


@contextlib.contextmanager
def _voice(launcher: int) -> Iterator[int | None]:
    """The launcher's own stderr, if it is on this host: it may end before it passes on what comes by ours."""
    its = None
    if name_of(launcher) not in ("prted", SLURM):
        with contextlib.suppress(OSError):
            its = os.open(f"/proc/{launcher}/fd/2", os.O_WRONLY | os.O_APPEND)
    yield its
    if its is not None:
        os.close(its)


def main(words: Sequence[str]) -> None:
    """`CAME`: say it when standard input ends."""
    os.read(0, 1)
    what = "the job has been ended from outside, or a rank was killed; in it were"
    os.write(2, f"\nhpcomm: {what}\n{words[0]}\n".encode())
