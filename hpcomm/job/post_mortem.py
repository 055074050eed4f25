"""Post-mortem reporter: says which rank was which program, when a rank is killed under plain mpirun.

A rank that is killed says nothing, and its launcher kills the others at once. So the first rank of the job
leaves a process behind, which outlives it: its standard input ends when the rank does. Needs the standard
library only.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from .launcher import PRRTE, SLURM, call, is_supervised, launcher_of, name_of, voice_of


def leave(came: str) -> Callable[[], None] | None:
    """Have came said, who is in this job, if this rank is killed. Returns what takes that back.

    `hpcomm run` says more, and so needs none. MPICH's launcher would take the process for a rank's that
    still runs, and give another status.
    """
    launcher = launcher_of(os.getpid())
    if is_supervised(launcher) or name_of(launcher) not in (*PRRTE, SLURM):
        return None
    its = None if name_of(launcher) in ("prted", SLURM) else voice_of(launcher)
    process = subprocess.Popen(
        call("job.post_mortem", came),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=its,
        start_new_session=True,
    )
    if its is not None:
        os.close(its)
    return process.kill


def main(words: Sequence[str]) -> None:
    """`CAME`: say it when standard input ends."""
    os.read(0, 1)
    what = "the job has been ended from outside, or a rank was killed; in it were"
    os.write(2, f"\nhpcomm: {what}\n{words[0]}\n".encode())
