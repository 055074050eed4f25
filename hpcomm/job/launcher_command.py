"""What to tell a launcher of MPI: its command line for a job, and variables.

Pure, so that every cluster can be tested on a laptop.

What each setting is for, with the measurements behind it: docs/launching.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from . import room, survive
from .cores import THREADS, Machine
from .installation import Mpi
from .launcher import host_and_slots

# MPICH's collectives in shared memory spin without yielding when MPI was brought up without threads.
_MPICH_YIELDING = {
    f"MPIR_CVAR_{verb}_POSIX_INTRA_ALGORITHM": "mpir" for verb in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")
}
# By these a user has decided himself; Open MPI 5 reads the first of a pair, version 4 the second.
_MAPPING_SET = {"PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe"}
_BINDING_SET = {"PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy"}
_PLACING_SET = _MAPPING_SET | _BINDING_SET
# UCX rewrites the start of mmap and its kin to hear of memory that goes, and yields the core all the while.
_UCX_UNHOOKED = {"UCX_MEM_EVENTS": "n"}
_NO_UCX_WINDOWS = {"OMPI_MCA_osc": "^ucx"}  # which without such a network complains at each window


class Program(NamedTuple):
    """One executable of a job, its ranks (None: as many as there is room for), its own placement."""

    ranks: int | None
    command: tuple[str, ...]
    options: tuple[str, ...] = ()


class Job(NamedTuple):
    """What was asked for on the command line."""

    programs: tuple[Program, ...]
    hosts: str | None = None
    timeout_s: float | None = None
    env: Mapping[str, str] = MappingProxyType({})
    launcher: str | None = None
    dry_run: bool = False
    verbose: bool = False
    spawn: bool = False
    label: bool = False
    output: str | None = None
    restarts: int = 0
    grace_s: float | None = None
    check: bool = False
    bind: str | None = None


class Composition(NamedTuple):
    """What to run: command, what it adds to the environment, files to write first (name: content).

    shares: whether each rank finds its own share of its host's cores.
    """

    command: list[str]
    environ: dict[str, str]
    files: Mapping[str, str] = MappingProxyType({})
    shares: bool = False


def launcher_command(job: Job, mpi: Mpi, machine: Machine) -> Composition:
    """The launcher's command line, and what to add to the environment. Pure.

    What the user has set in the environment stays as it is, unless -x says otherwise.
    """
    tell = _for_srun if mpi.is_srun else _for_openmpi if mpi.vendor == "openmpi" else _for_mpich
    words, wanted = tell(job, mpi, machine)
    is_here = is_local(job, machine)
    wanted |= {THREADS: str(_share(job, machine) or 1)} if is_here and _ranks(job, machine) > 1 else {}
    added = {name: value for name, value in wanted.items() if name not in machine.environ}
    shares = not (is_here or job.launcher or THREADS in {**machine.environ, **job.env})
    words = [mpi.launcher, *survive.words(job.env, mpi), *words]
    return Composition(words, {**added, **job.env}, shares=shares)


def _for_openmpi(job: Job, mpi: Mpi, machine: Machine) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    wanted: dict[str, str] = {}
    if machine.is_root:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if job.hosts:
        words += ["--host", job.hosts]
    elif "PBS_NODEFILE" in machine.environ:
        words += ["--hostfile", machine.environ["PBS_NODEFILE"]]
    words += ["--bind-to", job.bind] if job.bind else []
    # By whole lines, a prompt would come after its answer. Version 4, of some clusters, takes no such option.
    words += ["--output", ":raw"] if machine.keyboard and mpi.bundled else []
    if not is_local(job, machine):
        # Other hosts get variables by name only, and each program its own.
        names = dict.fromkeys([*job.env, *machine.environ.keys() & {THREADS}])
        return [*words, *_joined(job, machine, [f"-x {name}" for name in names])], wanted
    ways, (placing, yielding) = _ways_of_openmpi(job, mpi, machine), _placing_by_openmpi(job, mpi, machine)
    return [*words, *placing, *_joined(job, machine)], wanted | ways | yielding


def _ways_of_openmpi(job: Job, mpi: Mpi, machine: Machine) -> dict[str, str]:
    """By which ways messages of one host are to go."""
    wanted = {} if machine.registers else _UCX_UNHOOKED | _NO_UCX_WINDOWS
    # By tcp, ranks listen on all addresses, which they need where shared memory is short, and to meet those
    # that they spawn, for whom Open MPI has no shared memory. Then by loopback:
    # a bridge of containers may go meanwhile. ofi's search for a fabric sleeps a second in MPI_Init.
    by_tcp = job.spawn or _is_short(job, machine)
    left = [*(["ofi"] if mpi.bundled else []), *([] if by_tcp else ["tcp"])]
    wanted |= {"OMPI_MCA_btl": f"^{','.join(left)}"} if left else {}
    if by_tcp and "OMPI_MCA_btl_tcp_if_exclude" not in machine.environ:
        wanted["OMPI_MCA_btl_tcp_if_include"] = "lo"
    return wanted


def _placing_by_openmpi(job: Job, mpi: Mpi, machine: Machine) -> tuple[list[str], dict[str, str]]:
    """Which cores ranks of one host have."""
    share, is_set = _share(job, machine), machine.environ.keys()
    if not share:
        words = [] if is_set & _MAPPING_SET else ["--oversubscribe"]
        words += [] if job.bind or is_set & _BINDING_SET else ["--bind-to", "none"]
        return words, {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if share == 1 or not mpi.bundled or job.spawn or job.bind or is_set & _PLACING_SET:
        return [], {}
    return ["--map-by", f"slot:PE={share}", "--bind-to", "core:if-supported"], {}  # else to one core each


def _for_mpich(job: Job, mpi: Mpi, machine: Machine) -> tuple[list[str], dict[str, str]]:
    words = [*_hosts_of_mpich(job, mpi, machine), *(["-bind-to", job.bind] if job.bind else [])]
    wanted: dict[str, str] = {}
    if is_local(job, machine):
        wanted |= {} if machine.registers else _UCX_UNHOOKED
        # By tcp, ranks listen on all interfaces; by posix, UCX crashes where /dev/shm is short.
        left = [*([] if job.spawn else ["tcp"]), *(["posix"] if _is_short(job, machine) else [])]
        wanted |= {"UCX_TLS": f"^{','.join(left)}"} if left else {}
        share = _share(job, machine)
        if not share:
            wanted |= _MPICH_YIELDING
        elif mpi.bundled and machine.binds and len(job.programs) == 1 and not job.bind:
            wanted |= {"HYDRA_BINDING": f"core:{share}"} if share < machine.cores else {}
    return [*words, *_joined(job, machine)], wanted


def _hosts_of_mpich(job: Job, mpi: Mpi, machine: Machine) -> list[str]:
    """Each host once, as a node, and the node of each rank.

    MPICH's launcher takes each entry of its list for a node of its own, which shares no memory with others.
    Its agents, which srun starts, take Slurm's order of nodes for that of the list.
    """
    if not job.hosts:
        return []
    places, entries = _places(job), [entry.partition(":")[0] for entry in job.hosts.split(",")]
    nodes = sorted({*places}, key=_in_order)
    is_plain = entries == nodes or ("SLURM_JOB_ID" not in machine.environ and len(entries) == len(nodes))
    if is_plain or not places or not mpi.bundled:
        return ["-hosts", job.hosts]
    listed = ",".join(f"{node}:{places.count(node)}" for node in nodes)
    return ["-hosts", listed, "-rankmap", ",".join(str(nodes.index(host)) for host in places)]


def _in_order(host: str) -> list[tuple[int, str]]:
    """As Slurm sorts nodes: n2 before n10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", host)]


def _for_srun(job: Job, mpi: Mpi, machine: Machine) -> tuple[list[str], dict[str, str]]:
    words = ["--kill-on-bad-exit=1", *([f"--cpu-bind={job.bind}"] if job.bind else [])]
    wanted: dict[str, str] = {}
    if "SLURM_MPI_TYPE" not in machine.environ:
        words = {"openmpi": ["--mpi=pmix"], "mpich": ["--mpi=pmi2"]}.get(mpi.vendor, []) + words
    if mpi.vendor == "openmpi" and mpi.bundled:
        # A wheel was built elsewhere: it must hear where it lives, and not to ask for munge, which it lacks.
        wanted = {"OPAL_PREFIX": machine.prefix, "PMIX_PREFIX": machine.prefix, "PMIX_MCA_psec": "native"}
    if job.hosts:
        places = _places(job)
        words += ["--distribution", "arbitrary"] if places else []
        words += ["--nodelist", ",".join(places) or job.hosts]
    return [*words, *_joined(job, machine)], wanted


def is_local(job: Job, machine: Machine) -> bool:
    """Whether all ranks are on this machine."""
    if job.hosts or any(program.options for program in job.programs):
        return False
    return not machine.environ.keys() & {"PBS_NODEFILE", "SLURM_JOB_ID"}


def _is_short(job: Job, machine: Machine) -> bool:
    return room.is_short(_ranks(job, machine), machine.shared)


def _ranks(job: Job, machine: Machine) -> int:
    return sum(program.ranks or machine.cores for program in job.programs)


def _share(job: Job, machine: Machine) -> int:
    """The cores of a rank where all ranks are on this machine; 0: they are more than its cores."""
    return machine.cores // _ranks(job, machine)


def _places(job: Job) -> list[str]:
    """The host of each rank, where the hosts have as many as there are ranks; else none."""
    slots = _slots(job)
    return slots if len(slots) == sum(each.ranks or len(slots) for each in job.programs) else []


def _slots(job: Job) -> list[str]:
    """Each host as often as it has ranks; none where they are in Slurm's words, which srun counts."""
    if not job.hosts or "[" in job.hosts:
        return []
    read = [host_and_slots(entry) or (entry, 1) for entry in job.hosts.split(",")]
    return [host for host, n in read for _ in range(n)]


def _joined(job: Job, machine: Machine, options: Iterable[str] = ()) -> list[str]:
    """`-n 1 a : -n 2 b`, with these options repeated for each program."""
    words: list[str] = []
    for program in job.programs:
        ranks = program.ranks or _room(job, machine)
        words += [":"] if words else []
        words += ["-n", str(ranks)] if ranks else []
        words += " ".join(options).split()
        words += [*program.options, *program.command]
    return words


def _room(job: Job, machine: Machine) -> int | None:
    """The number of ranks where none was asked for; None: the launcher knows."""
    if slots := _slots(job):
        return len(slots)
    if "PBS_NODEFILE" in machine.environ:
        return len(Path(machine.environ["PBS_NODEFILE"]).read_text().split())
    return None if "SLURM_JOB_ID" in machine.environ else machine.cores
