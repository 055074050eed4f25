"""Variables that torchrun sets for each rank, under a launcher that says the same by names of its own.

A program reads RANK and its kin as soon as it begins, before it brings MPI up. So a shell sets them, and
becomes the program. Needs the standard library only.
"""

from __future__ import annotations

import re
import shlex
import socket
import zlib
from collections.abc import Mapping

# rank, ranks, the same within the node, as a shell's expressions
_OPENMPI = [f"$OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
_EACH = "$(((SLURM_NTASKS + SLURM_NNODES - 1) / SLURM_NNODES))"
_LAUNCHERS = {
    "openmpi": _OPENMPI,
    "mpich": ["$PMI_RANK", "$PMI_SIZE", "$MPI_LOCALRANKID", "${MPI_LOCALNRANKS:-$PMI_SIZE}"],
    "srun": ["$SLURM_PROCID", "$SLURM_NTASKS", "$SLURM_LOCALID", _EACH],
}


def variables(
    rank: object,
    size: object,
    near: tuple[object, object],
    node: tuple[object, object],
    at: tuple[str, object],
    restart: tuple[int, int] = (0, 0),
) -> dict[str, str]:
    """What torchrun would set.

    Args:
        near: rank within the node, and the ranks there.
        node: the node's number, and how many there are.
        at: MASTER_ADDR and MASTER_PORT.
        restart: how often the job has been started again, and how often that may be.
    """
    found = {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": near[0], "LOCAL_WORLD_SIZE": near[1],
        "GROUP_RANK": node[0], "GROUP_WORLD_SIZE": node[1], "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default", "TORCHELASTIC_RESTART_COUNT": restart[0],
        "TORCHELASTIC_MAX_RESTARTS": restart[1],
        "MASTER_ADDR": at[0], "MASTER_PORT": at[1], "HPCOMM_TOLD": f"{rank}/{size}/{at[1]}",
    }  # fmt: skip
    return {name: str(value) for name, value in found.items()}


def setting(vendor: str, at: tuple[str, object], restart: tuple[int, int] = (0, 0)) -> str:
    """Shell commands that set them from what vendor's launcher, or srun, says; ":" for another one's."""
    if vendor not in _LAUNCHERS:
        return ":"
    rank, size, near, here = _LAUNCHERS[vendor]
    node = "$((RANK / LOCAL_WORLD_SIZE))", "$(((WORLD_SIZE + LOCAL_WORLD_SIZE - 1) / LOCAL_WORLD_SIZE))"
    address = shlex.quote(at[0]), at[1]
    found = variables(rank, size, (near, here), node, address, restart)
    return "; ".join(f"export {name}={value}" for name, value in found.items())


def master(hosts: str | None, is_local: bool, environ: Mapping[str, str]) -> tuple[str, int]:
    """Where rank 0 is, and a port there: what the user has set, or else a guess."""
    first = re.sub(r"\[(\d+).*", r"\1", hosts or environ.get("SLURM_JOB_NODELIST", "")).split(",")[0]
    host = "127.0.0.1" if is_local else first.partition(":")[0] or socket.gethostname()
    if is_local:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
    else:
        port = 20000 + zlib.crc32(f"{host}/{environ.get('SLURM_JOB_ID')}".encode()) % 10000
    return environ.get("MASTER_ADDR", host), int(environ.get("MASTER_PORT", port))
