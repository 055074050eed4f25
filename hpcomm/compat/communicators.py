"""Communicators of mpi4py's kinds over hpcomm's, and what makes one of another."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Self, TypeVar, cast

from mpi4py import MPI

from ..communicator.communicator import Communicator
from .collectives import Collectives, Objects
from .messages import Messages
from .requests import Request
from .surface import Like, Surface, go, known, met, named, theirs

F = TypeVar("F", bound=Callable[..., object])


def over(communicator: Communicator, handle: MPI.Comm | None = None) -> Intracomm:
    """mpi4py's surface over a Communicator.

    Args:
        handle: MPI's communicator of the same ranks, for who asks for it; None: the Communicator's own.
    """
    mpi = communicator.context.mpi_handle if handle is None else handle
    if isinstance(mpi, Surface):  # of a class of the program's own, maybe
        made = cast("Intracomm", mpi)
    else:
        made = next((own for theirs, own in _KINDS if isinstance(mpi, theirs)), Intracomm)(mpi)
    made.bind(communicator)
    return made


def wrapped(mpi: MPI.Comm, parent: Communicator | None, verb: str = "") -> MPI.Comm:
    """The same of what MPI has made of parent, with a Communicator of its own; collective over its ranks."""
    if isinstance(mpi, MPI.Intercomm):
        return Intercomm(mpi).of(parent)
    if mpi == MPI.COMM_NULL:
        return mpi
    # As an object of mpi4py's own class, or what hpcomm asks of it would come back here:
    own = theirs(type(mpi))(mpi)
    if parent is None:
        return over(Communicator(own), mpi)
    made = Communicator(own, f"{parent.name}.{verb.lower()}", parent.context.settings.check)
    if parent.timeout is not None:
        made.timeout = parent.timeout
    return over(made, mpi)


def _makes(function: F, by_all: bool = True) -> F:
    """A method that makes a communicator. by_all: all ranks of this one call it."""
    make = met(function) if by_all else function

    @named(function)
    def method(self: Comm, *args: object, **kwargs: object) -> MPI.Comm:
        mpi = cast("MPI.Comm", make(self, *args, **kwargs))
        return wrapped(mpi, self.communicator, function.__name__)

    return method


class Comm(Messages, Collectives, Objects, metaclass=Like):
    """A communicator."""

    def __new__(cls, comm: MPI.Comm | None = None) -> Self:
        theirs(cls)(comm)  # is it of this kind?
        made = MPI.Comm.__new__(cls, comm)
        if comm is not None:
            made.bind(known(comm))
        return made

    def __reduce__(self) -> str | tuple[Any, ...]:
        for name in ("COMM_WORLD", "COMM_SELF"):
            if self == getattr(MPI, name):
                first = of_ours(name)
                return (of_ours, (name,)) if self is first else (type(self), (first,))
        return super().__reduce__()

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:  # noqa: N802
        """As Dup, which waits for all ranks; the request is complete."""
        return self.Dup(info), Request()

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:  # noqa: N802
        return self.Idup(info)

    @classmethod
    def Get_parent(cls) -> MPI.Intercomm:  # noqa: N802
        return Intercomm(MPI.Comm.Get_parent())

    def Free(self) -> None:  # noqa: N802
        communicator = self.communicator
        if self.handle != communicator.context.mpi_handle.handle:
            super().Free()
        communicator.close()

    def free(self) -> None:
        if self and self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            self.Free()

    def Disconnect(self) -> None:  # noqa: N802
        communicator = self.communicator
        super().Disconnect()
        communicator.close()


class Intracomm(Comm, MPI.Intracomm):
    """A communicator of one group."""


class Topocomm(Intracomm, MPI.Topocomm):
    """One whose ranks have neighbours; its collectives go to MPI, once all ranks have come to them."""


class Cartcomm(Topocomm, MPI.Cartcomm):
    """Ranks on a grid."""


class Graphcomm(Topocomm, MPI.Graphcomm):
    """Ranks as nodes of a graph that all ranks know."""


class Distgraphcomm(Topocomm, MPI.Distgraphcomm):
    """Ranks as nodes of a graph of which each knows its own edges."""


class Intercomm(MPI.Intercomm, metaclass=Like):
    """A communicator of two groups: MPI's own, but for what is made of it."""

    _parent: Communicator | None = None

    def of(self, parent: Communicator | None) -> Self:
        """The same, made of parent."""
        self._parent = parent
        return self

    def Merge(self, high: bool = False) -> MPI.Intracomm:  # noqa: N802
        return cast("MPI.Intracomm", wrapped(super().Merge(high), self._parent, "merge"))


def _of_handle(function: Callable[[int], MPI.Comm]) -> staticmethod[[int], MPI.Comm]:
    """mpi4py's function that makes an object of a handle: one of ours, if it is the handle of one."""

    @wraps(function)
    def make(handle: int) -> MPI.Comm:
        mpi = function(handle)
        if isinstance(mpi, MPI.Intercomm):
            return Intercomm(mpi)
        communicator = known(mpi)
        return mpi if communicator is None else over(communicator, mpi)

    return staticmethod(make)


for _name in ("fromhandle", "fromint", "f2py"):
    setattr(Comm, _name, _of_handle(getattr(MPI.Comm, _name)))

go(Comm, _makes, "Dup Clone Dup_with_info Split Split_type Create Shrink")
go(
    Intracomm,
    _makes,
    "Create_cart Create_graph Create_dist_graph Create_dist_graph_adjacent Create_intercomm",
)
go(Intracomm, _makes, "Spawn Spawn_multiple Accept Connect")
go(Intracomm, partial(_makes, by_all=False), "Create_group")
go(Topocomm, met, "Neighbor_allgather Neighbor_allgatherv neighbor_allgather")
go(Topocomm, met, "Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw neighbor_alltoall")
go(Cartcomm, _makes, "Sub")

_KINDS: tuple[tuple[type[MPI.Comm], type[Intracomm]], ...] = (
    (MPI.Cartcomm, Cartcomm), (MPI.Graphcomm, Graphcomm), (MPI.Distgraphcomm, Distgraphcomm),
)  # fmt: skip


def of_ours(name: str) -> Any:
    """What hpcomm.compat.MPI has of this name."""
    from . import MPI as ours  # noqa: N811

    return getattr(ours, name)


copyreg.pickle(Like, lambda kind: (of_ours, (kind.__name__,)) if kind.is_own else kind.__qualname__)
