"""What a machine has for ranks: cores (not hyper-threads), a rank's share of them, room for MPI."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import launcher, room
from .process_role import told

THREADS = "OMP_NUM_THREADS"
_RANKS_HERE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # of a job on this host, as launchers say

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


def usable_cores(pid: int = 0) -> int:
    """The cores that a process may use, by affinity and container quota; hyper-threads do not count."""
    cores = len(core_names(pid))
    return max(1, min(cores, _cpu_quota() or cores))


def core_names(pid: int = 0) -> set[str]:
    """One name for each core that this process, or another one, may use: the list of its hyper-threads."""
    return {*map(core_of, _cpus(pid))}


def _cpus(pid: int) -> Collection[int]:
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return affinity(pid) if affinity else range(os.cpu_count() or 1)


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


# -- a rank's share of its host, seen from that rank -----------------------------------------------------


def threads(ranks: int | None = None, environ: Mapping[str, str] = os.environ) -> int | None:
    """A rank's share of the cores that its launcher has on this host, and no more than it is bound to.

    None: it is alone here, or nobody says how many ranks are here. ranks: as many, where that is known.
    """
    ranks = ranks or told(_RANKS_HERE, environ) or _tasks_here(environ)
    if ranks is None:
        return None
    own = cores = usable_cores()
    with suppress(OSError):
        cores = usable_cores(launcher.launcher_of(os.getpid()))
    if cpus := told(["SLURM_CPUS_ON_NODE"], environ):  # Slurm's own process may use those of others, too
        cores = min(cores, cpus * len(core_names()) // len(_cpus(0)))
    each = max(1, min(own, cores // ranks))
    return each if ranks > 1 or each < own else None


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """The ranks of a step of Slurm on this node, of `4(x2),3`."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = [int(count) for count, times in counts for _ in range(int(times or 1))]
    return dict(enumerate(tasks)).get(told(["SLURM_NODEID"], environ) or 0)


def sharing() -> str:
    """Commands of a shell above a rank, which set its threads where nobody has."""
    asked = f"{THREADS}=$({shlex.join(launcher.call('job.cores'))} 2>/dev/null)"
    return f'[ "${{{THREADS}+set}}" ] || {{ {asked}; [ -z "${THREADS}" ] || export {THREADS}; }}'


def main(_: Sequence[str]) -> None:
    """Print that number, if there is one."""
    print(threads() or "")
