"""Cores that this process may use, told apart from their hyper-threads."""

from __future__ import annotations

import os
from pathlib import Path


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
