"""Ranks that ranks start: comm.spawn(program, ranks), and hpcomm.parent() in what is started.

MPI's own call returns once all new ranks are in MPI_Init, or never. So what is started is a main() of ours:
it brings MPI up and meets those who have started it, and then becomes the program, whatever that does.

    comm.spawn("worker.py", 2)                         python -c main, 2 x
      can the launcher do it? all ranks hear             │
      MPI_Comm_spawn <═══════════════════════════════> MPI_Init
      joined() <═════════════════════════════════════> joined(), as hpcomm.parent()
      goes on                                          worker.py, as __main__

Each side sees when a rank of the other one ends (agree/partners.py).
"""

from __future__ import annotations

import os
import sys
from operator import index
from typing import TYPE_CHECKING, cast

from .._lazy import MPI
from ..agree import runtime
from ..agree.agreement import refused
from ..errors import ConfigError, UsageError
from ..job.launcher import HYDRA, PRRTE, launcher_of, name_of
from .groups import agreed, made

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    pathlib = LazyModule("pathlib")  # 5 ms of every rank's start

_MAIN = "from hpcomm.communicator.spawned import main; main()"
_CAN = (*PRRTE, *HYDRA, "hydra_pmi_proxy")
_parent: Communicator | None = None


def spawn(
    comm: Communicator,
    program: str | os.PathLike[str] | Sequence[str],
    ranks: int,
    *,
    name: str = "spawned",
    timeout: float = 60.0,
) -> Communicator:
    """Start a program of Python on new ranks, and return an inter-communicator with them.

    Collective. Same as MPI_Comm_spawn. On the new ranks hpcomm.parent() is that inter-communicator. The new
    ranks have a world of their own, the launcher's environment and rank 0's working directory. After close()
    either side may end before the other.

    Args:
        program: a file, or a file and its arguments, or "-m", a module and its arguments.
        name: of the new ranks, shown in errors.
        timeout: seconds until all must be there. After that the job ends, because MPI's call cannot be
            interrupted.

    Raises:
        ConfigError: there is no such file, or the launcher of this job cannot start more ranks.
        UsageError: program or ranks has another type.
        MismatchError: the ranks name different ones.
        TransportError: MPI could not start them.

    Example:
        >>> with comm.spawn("worker.py", 2) as workers:
        ...     done = workers.all_gather_object(comm.rank)
    """
    from ..agree.deadline import within

    comm.check_one_group("spawn")
    try:
        words, number = _read(program, ranks)
    except UsageError as error:
        raise refused(comm, "spawn", error) from None
    what = words, number, name
    with agreed(comm, "spawn", what):
        why = comm.broadcast_object(_why_not(words) if comm.rank == 0 else None)
        if why is not None:
            raise why.located("spawn", comm)
        runtime.expect_foreigners()
        late = f"spawn: {number} ranks of {' '.join(words)} are not there after {timeout:g} s"
        arguments = ["-c", _MAIN, name, *words]
        with within(timeout, late):
            start = cast("MPI.Intracomm", comm.mpi_handle).Spawn
            new = made(
                comm, "spawn", f"{comm.name}->{name}", start, sys.executable, arguments, number, _info()
            )
            _watch(comm, new, name)
    return new


def _read(program: object, ranks: object) -> tuple[tuple[str, ...], int]:
    """The words behind `python`, and the number of ranks."""
    hint = 'comm.spawn(["worker.py", "8"], 2), or ["-m", "package.worker"]'
    given = (program,) if isinstance(program, (str, os.PathLike)) else program
    try:
        words = tuple(map(os.fspath, given))  # type: ignore[call-overload]
    except TypeError:
        words = ()
    if not all(isinstance(word, str) for word in words) or not any(words[words[:1] == ("-m",) :]):
        raise UsageError(f"{program!r} is no program of Python", hint=hint)
    if isinstance(ranks, bool) or not hasattr(ranks, "__index__") or index(ranks) < 1:
        raise UsageError(f"{ranks!r} is no number of ranks", hint="1 or more")
    return words, index(ranks)


def _why_not(words: tuple[str, ...]) -> UsageError | None:
    """Why these cannot be started from here, where that is known before."""
    if words[0] != "-m" and not pathlib.Path(words[0]).is_file():
        return ConfigError(f"there is no file {words[0]} in {pathlib.Path.cwd()}", hint="its full path")
    launcher = name_of(launcher_of(os.getpid()))
    if launcher not in _CAN:
        what = f"{launcher or 'nobody'} has started this job, which starts no further ranks"
        return ConfigError(what, hint="hpcomm run, mpirun or mpiexec start it")
    left = os.environ.get("OMPI_MCA_btl", "")  # noqa: SIM112
    if "OMPI_COMM_WORLD_SIZE" in os.environ and left and left.startswith("^") == ("tcp" in left):
        what = f"OMPI_MCA_btl={left} leaves Open MPI nothing but the shared memory of one job's ranks"
        return ConfigError(what, hint="hpcomm run --spawn, which leaves it TCP")
    return None


def _info() -> MPI.Info:
    """Where to start them: here, and under Open MPI also where all cores have a rank."""
    info = MPI.Info.Create()
    info["wdir"] = str(pathlib.Path.cwd())
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        info["map_by"], info["bind_to"] = ":oversubscribe", "none"
    return info


def _watch(local: Communicator, inter: Communicator, name: str) -> None:
    """See from now on which ranks of the other side, called name, have ended. Collective over both."""
    from ..agree.partners import Partners

    inter.partners = Partners(inter, name, local)
    runtime.farewells.append(inter.close)


def parent() -> Communicator | None:
    """Inter-communicator with the ranks that started this one by comm.spawn; None if none did."""
    return _parent


def main() -> None:
    """`NAME PROGRAM...`: in a new rank, meet those who have started it, then be the program."""
    import runpy

    from .communicator import Communicator
    from .lazy_world import named

    global _parent
    name, *words = sys.argv[1:]
    runtime.start(name=f"rank {MPI.COMM_WORLD.rank} of '{name}'")
    world = named("world")
    runtime.expect_foreigners()
    _parent = object.__new__(Communicator)
    _parent.adopt(MPI.Comm.Get_parent(), "parent")
    _watch(world, _parent, "parent")
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(pathlib.Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
