"""Ranks that ranks start: comm.spawn(program, ranks); parent.py has what is started.

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
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, cast

from ..._lazy import MPI
from ...agree import runtime
from ...agree.agreement import refusing
from ...errors import ConfigError, UsageError, placed
from ...job.launcher import HYDRA, PRRTE, launcher_of, name_of
from ...watch import start_up
from ..context import Context
from ..payloads.objects import Objects
from .groups import agreed, made

if TYPE_CHECKING:
    import pathlib

else:
    from ..._lazy import LazyModule

    pathlib = LazyModule("pathlib")  # 5 ms of every rank's start

_MAIN = "from hpcomm.communicator.making.parent import main; main()"
_CAN = (*PRRTE, *HYDRA, "hydra_pmi_proxy")


def spawn(comm: Context, program: object, ranks: object, name: str, timeout: float) -> Context:
    """As Communicator.spawn."""
    from ...agree.deadline import within

    comm.check_one_group("spawn")
    with refusing("spawn", comm):
        words, number = _read(program, ranks)
        if not (isinstance(timeout, Real) and timeout > 0):
            what = f"timeout must be a number of seconds above 0, not {timeout!r}"
            raise UsageError(what, hint="how long the ranks may take to start")
    what = words, number, name
    with agreed(comm, "spawn", what):
        why = Objects(comm).broadcast_object(_why_not(words) if comm.rank == 0 else None)
        if why is not None:
            raise placed(why, "spawn", comm)
        start_up.expect_foreigners()
        late = f"spawn: {number} ranks of {' '.join(words)} are not there after {timeout:g} s"
        arguments = ["-c", _MAIN, name, *words]
        with within(timeout, late):
            start = cast("MPI.Intracomm", comm.mpi_handle).Spawn
            new = made(
                comm, "spawn", f"{comm.name}->{name}", start, sys.executable, arguments, number, _info()
            )
            watch(comm, new, name)
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


def watch(local: Context, inter: Context, name: str) -> None:
    """See from now on which ranks of the other side, called name, have ended. Collective over both."""
    from ...agree.partners import Partners

    inter.partners = Partners(inter, name, local)
    runtime.farewells.append(inter.close)
