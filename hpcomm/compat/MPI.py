"""mpi4py's module MPI, whose communicators go by hpcomm: `from hpcomm.compat import MPI`.

Everything that is not about messages and collectives is mpi4py's own: datatypes, operators, Status, Group,
Info, Win, File, constants, MPI.pickle.
"""  # noqa: N999  the spelling is the point

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from ..job.optional_packages import load_mpi

if TYPE_CHECKING:
    import mpi4py.MPI as _theirs  # noqa: N811
    from mpi4py.MPI import *  # noqa: F403
else:
    _theirs = load_mpi("hpcomm.compat.MPI")

from ..communicator.communicator import Communicator
from ..errors import UsageError
from .communicators import (
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
    Topocomm,
    over,
    wrapped,
)
from .messages import Message
from .requests import Request

__all__ = [
    "Cartcomm",
    "Comm",
    "Distgraphcomm",
    "Graphcomm",
    "Intercomm",
    "Intracomm",
    "Message",
    "Request",
    "Topocomm",
    "of",
]


def of(comm: Communicator | _theirs.Comm) -> _theirs.Comm:
    """mpi4py's surface over any communicator: one of hpcomm's, or one of mpi4py's (collective then).

    Example:
        >>> comm = MPI.of(hpcomm.world.split(hpcomm.world.rank % 2))
        >>> comm.Allreduce(x, y)

    Raises:
        UsageError: comm is neither.
    """
    if isinstance(comm, Communicator):
        return over(comm)
    if not isinstance(comm, _theirs.Comm):
        raise UsageError(f"{comm!r} is no communicator", "MPI.of", "MPI.COMM_WORLD, or hpcomm.world")
    return wrapped(comm, None)


_making = Lock()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in ("COMM_WORLD", "COMM_SELF"):
            return getattr(_theirs, name)
        import hpcomm

        with _making:  # two threads may come at once
            if name not in globals():
                its = getattr(_theirs, name)
                own = hpcomm.world if name == "COMM_WORLD" else hpcomm.self_
                same = own.size == its.size  # not where it is a program's own part: see mpmd
                globals()[name] = over(own, its if same else None)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*dir(_theirs), *__all__})
