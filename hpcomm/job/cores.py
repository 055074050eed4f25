"""What this machine has for ranks: cores, told apart from their hyper-threads, and room for MPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from . import room

# What MPI registers memory for: RDMA, two kernel modules, GPUs.
_REGISTERED_FOR = (
    *("/sys/class/infiniband", "/dev/xpmem", "/dev/knem"),
    *("/dev/nvidiactl", "/dev/kfd", "/dev/dri", "/dev/dxg"),
)


class Machine(NamedTuple):
    """What launcher_command must know of the place it runs at; prefix is this Python's.

    binds: whether ranks may be bound to cores: on Linux, where all cores of the machine are ours.
    registers: whether there may be a device that MPI registers memory for.
    shared: bytes that MPI may take in /dev/shm.
    keyboard: whether a person may type what rank 0 reads.
    """

    cores: int
    is_root: bool
    environ: Mapping[str, str]
    prefix: str = sys.prefix
    binds: bool = False
    registers: bool = True
    shared: int = sys.maxsize
    keyboard: bool = False


def here() -> Machine:
    """The place that this process runs at."""
    ours = core_names(), usable_cores()
    binds = sys.platform == "linux" and {*map(core_of, range(os.cpu_count() or 1))} == ours[0]
    binds = binds and len(ours[0]) == ours[1]
    is_root, keyboard = os.geteuid() == 0, bool(sys.stdin and sys.stdin.isatty())
    found = registers_memory(), room.free(), keyboard
    return Machine(ours[1], is_root, os.environ, sys.prefix, binds, *found)


def registers_memory() -> bool:
    """Whether this machine may have a device that MPI registers memory for: always but on Linux."""
    return sys.platform != "linux" or any(Path(file).exists() for file in _REGISTERED_FOR)


def usable_cores() -> int:
    """The cores that this process may use, by affinity and container quota; hyper-threads do not count."""
    cores = len(core_names())
    return max(1, min(cores, _cpu_quota() or cores))


def core_names() -> set[str]:
    """One name for each core that this process may use: the list of its hyper-threads."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return {core_of(cpu) for cpu in (affinity(0) if affinity else range(os.cpu_count() or 1))}


def core_of(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:  # this system does not tell: count every CPU
        return str(cpu)


def _cpu_quota() -> int | None:
    """The whole CPUs that a container may use (cgroup v2); None: no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
