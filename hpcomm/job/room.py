"""Room for an MPI in /dev/shm, looked at before it comes up: it crashes where it gets too little."""

from __future__ import annotations

import os
import resource
import sys

from ..errors import ConfigError
from .process_role import told

_EACH = 32 << 20  # bytes for a rank: Open MPI's segment takes 16 MiB, UCX up to 8
_LEAST = 1060 << 10  # bytes for a rank of MPICH's, whose ranks share one file
_RANKS = ("MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", "PMI_SIZE")  # of a node: Hydra's, torchrun's; of the job


def free() -> int:
    """Bytes that are free in /dev/shm, or that a file may have, if that is less."""
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    there = _in_memory()
    return min(sys.maxsize if largest == resource.RLIM_INFINITY else largest, there)


def _in_memory() -> int:
    try:
        there = os.statvfs("/dev/shm")
    except OSError:
        return sys.maxsize  # MPI has another place
    return there.f_bavail * there.f_frsize if there.f_blocks else sys.maxsize


def is_short(ranks: int, free: int) -> bool:
    """Whether ranks of this host had better not count on shared memory alone."""
    return free < _EACH * ranks


def check(where: str) -> None:
    """Refuse MPICH's wheel where it would crash, and keep UCX from what it does not survive."""
    ranks = told(_RANKS) or 1
    room = free()
    takes = not os.path.isdir("/dev/shm") or os.access("/dev/shm", os.W_OK | os.X_OK)  # noqa: PTH112  pathlib takes 5 ms
    if takes and not is_short(ranks, room):
        return
    from pathlib import Path

    from .installation import mpich_of_a_wheel

    if mpich_of_a_wheel() is None:
        return
    os.environ.setdefault("UCX_TLS", "^posix")
    need, is_limited = _LEAST * ranks, room < _in_memory()
    begun = 0 if is_limited else sum(file.stat().st_size for file in Path("/dev/shm").glob("mpich_shm_*"))
    if takes and room + begun >= need:  # another rank was quicker
        return
    why, hint = _short(takes, is_limited, room)
    what = f"MPICH crashes here: {why}, and its ranks share a file of {need}"
    raise ConfigError(what, where, hint)


def _short(takes: bool, is_limited: bool, room: int) -> tuple[str, str]:
    """(what room is short of, what to do)"""
    if not takes:
        return "/dev/shm takes no files", "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
    if is_limited:
        return f"no file may be larger than {room} bytes (ulimit -f)", "ulimit -f unlimited"
    return f"/dev/shm has {room} bytes free", "docker run --shm-size=1g, or remove what old jobs left"
