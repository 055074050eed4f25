"""Role of this process: a rank, a child of one, or under another MPI's launcher.

A child inherits what the launcher told its parent. If it brought MPI up, it would come as the same rank once
more, and end the job, or wait for ever. So a rank leaves a mark in its environment. And a rank under another
MPI's launcher believes that it is alone: the program would run once in each, and nobody would say so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from ..errors import ConfigError, UsageError
from .launcher import began_of, environ_of, launcher_of, parent_of

_MARK = "HPCOMM_IS_RANK"  # process, when it began, its number
NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")  # a batch script has Slurm's, and is no rank
RANKS = (*NUMBERS, "PMI_FD", "PMI_PORT")  # who has one was launched
SIZES = {"OMPI_COMM_WORLD_SIZE": "Open MPI", "PMI_SIZE": "MPICH", "SLURM_STEP_NUM_TASKS": "Slurm"}
_OWN_LAUNCHER = (
    "start it with its own MPI's launcher, as hpcomm run does; all programs of a job load the same MPI; "
    "under srun: --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
)
_HINT = "use hpcomm in the rank alone: give the child what it needs, and take results back from it"

is_without_mpi = False  # whether this is a rank of a job that does without MPI
forked = ""  # whose child this process is, if it was forked from a rank


def told(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> int | None:
    """The number in the first of these variables that has one."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal()), None)


def world_rank(environ: Mapping[str, str] = os.environ) -> int:
    """The rank in the world of who has this environment, as its launcher says; 0 where that says nothing."""
    return told((*NUMBERS, "SLURM_PROCID"), environ) or 0


def who_has(environ: Mapping[str, str]) -> str:
    """`rank 1`, or `rank 0 of 'ocean'` where a spec has several programs; "": no launcher has started it."""
    if told(NUMBERS, environ) is None:
        return ""
    program = environ.get("HPCOMM_PROGRAM", "")
    spans = dict(each.split("=") for each in environ.get("HPCOMM_PROGRAMS", "").split())
    rank = world_rank(environ) - int(spans.get(program, "0").partition("-")[0])
    return f"rank {rank} of '{program}'" if program else f"rank {rank}"


def mark(rank: int, size: int) -> None:
    """Note for children that this process is a rank."""
    if size > 1 or any(name in os.environ for name in RANKS):
        os.environ[_MARK] = f"{os.getpid()} {began_of(os.getpid())} {rank}"


def fork() -> None:
    """This process has just been forked from a rank."""
    global forked
    pid, _, rank = os.environ.get(_MARK, "0 0 0").split()
    forked = f"rank {rank} (process {pid})"


def is_child() -> bool:
    """Whether this process is a child of a rank."""
    return bool(forked or _parent())


def check_process(where: str) -> None:
    """Refuse a child of a rank."""
    if whose := forked or _parent():
        raise UsageError(
            f"this process ({os.getpid()}) is a child of {whose}, and no rank itself", where, _HINT
        )


def check_has_mpi(where: str | None = None) -> None:
    """Refuse a rank of a job that does without MPI: there it would be alone."""
    if is_without_mpi:
        raise ConfigError(
            "the ranks of this job have found each other by torch's store, and do without MPI",
            where,
            "start them with hpcomm run -n N python ..., or mpirun: then there are Communicators, too",
        )


def _parent() -> str:
    """The rank that this process is a child of; "" if it may be a rank."""
    pid, began, rank = os.environ.get(_MARK, "0 0 0").split()
    if pid != "0" and int(pid) != os.getpid():
        launcher, each = launcher_of(os.getpid()), os.getpid()
        while each > 1 and each != launcher:  # which is a nearer one in a job that the rank has started
            each = parent_of(each)
            if each == int(pid) and began_of(each) == int(began):
                return f"rank {rank} (process {pid})"
    processes = sys.modules.get("multiprocessing.process")
    parent = processes.parent_process() if processes is not None else None
    if parent is not None and any(name in environ_of(os.getpid()) for name in RANKS):
        return f"the rank that is process {parent.pid}"
    return ""


def check_library(where: str) -> None:
    """Refuse MPICH's wheel under Open MPI's launcher: it would end the process in MPI_Init."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ or os.environ.keys() & {"PMI_FD", "PMI_PORT", "PMI_SIZE"}:
        return
    from .installation import mpich_of_a_wheel

    library = mpich_of_a_wheel()
    if library is not None:
        raise ConfigError(
            "Open MPI's launcher started this program, but its MPI is MPICH.\n"
            f"  came:  {sys.argv[0]}, with {library}",
            where,
            _OWN_LAUNCHER,
        )


def check_launcher(size: int, vendor: str) -> None:
    """Refuse to be alone where a launcher has started several.

    Args:
        size: of the world.
        vendor: of the MPI that says so.
    """
    its = "OMPI_COMM_WORLD_SIZE" if vendor == "Open MPI" else "PMI_SIZE"
    sizes = {name: told([name]) or 1 for name in SIZES}
    name = max(sizes, key=lambda each: sizes[each])
    if size > 1 or told([its]) == 1 or sizes[name] == 1:
        return
    raise ConfigError(
        f"{SIZES[name]}'s launcher started {sizes[name]} ranks, but this program's MPI ({vendor}) sees only "
        f"itself.\n  came:  {sys.argv[0]}, alone",
        hint=_OWN_LAUNCHER,
    )
