"""Parts of a node that a process may run in: NUMA domains, caches, sockets, cores; as Linux tells in /sys."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
# Files of a CPU, of which the last one has the CPUs of its part: of its caches that is the largest.
PARTS = {
    "numa": "node*/cpulist",
    "socket": "topology/core_siblings_list",
    "cache": "cache/index*/shared_cpu_list",
    "core": "topology/thread_siblings_list",
}


def place(part: str, cpus: Path = _CPUS) -> list[str]:
    """The parts in which this process may run, each as its list of CPUs; "" where the system tells none."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    own = affinity(0) if affinity else range(os.cpu_count() or 1)
    return sorted({_part_of(cpus / f"cpu{cpu}", PARTS[part]) for cpu in own})


def _part_of(cpu: Path, files: str) -> str:
    try:
        found = sorted(cpu.glob(files))
        return found[-1].read_text().strip() if found else ""
    except OSError:
        return ""
