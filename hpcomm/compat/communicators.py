"""Communicators of mpi4py's kinds over hpcomm's, and what makes one of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar, cast

from mpi4py import MPI

from ..communicator.communicator import Communicator
from .collectives import Collectives
from .messages import Messages
from .objects import Objects
from .requests import Request
from .surface import Like, Surface, met, named, theirs

F = TypeVar("F", bound=Callable[..., object])


def over(communicator: Communicator, handle: MPI.Comm | None = None) -> Intracomm:
    """mpi4py's surface over a Communicator.

    Args:
        handle: MPI's communicator of the same ranks, for who asks for it; None: the Communicator's own.
    """
    mpi = communicator.mpi_handle if handle is None else handle
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
    made = Communicator(own, f"{parent.name}.{verb.lower()}", parent.asked_check)
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
        made.bind(getattr(comm, "_communicator", None))
        return made

    def __reduce__(self) -> str | tuple[Callable[[str], MPI.Comm], tuple[str]]:
        for name in ("COMM_WORLD", "COMM_SELF"):
            if self == getattr(MPI, name):
                return _named, (name,)
        return super().__reduce__()

    Dup, Clone, Dup_with_info = _makes(MPI.Comm.Dup), _makes(MPI.Comm.Clone), _makes(MPI.Comm.Dup_with_info)
    Split, Split_type = _makes(MPI.Comm.Split), _makes(MPI.Comm.Split_type)
    Create, Shrink = _makes(MPI.Comm.Create), _makes(MPI.Comm.Shrink)

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
        if self.handle != communicator.mpi_handle.handle:
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

    Create_group = _makes(MPI.Intracomm.Create_group, by_all=False)
    Create_cart, Create_graph = _makes(MPI.Intracomm.Create_cart), _makes(MPI.Intracomm.Create_graph)
    Create_dist_graph = _makes(MPI.Intracomm.Create_dist_graph)
    Create_dist_graph_adjacent = _makes(MPI.Intracomm.Create_dist_graph_adjacent)
    Create_intercomm = _makes(MPI.Intracomm.Create_intercomm)
    Spawn, Spawn_multiple = _makes(MPI.Intracomm.Spawn), _makes(MPI.Intracomm.Spawn_multiple)
    Accept, Connect = _makes(MPI.Intracomm.Accept), _makes(MPI.Intracomm.Connect)


class Topocomm(Intracomm, MPI.Topocomm):
    """One whose ranks have neighbours; its collectives go to MPI, once all ranks have come to them."""

    Neighbor_allgather = met(MPI.Topocomm.Neighbor_allgather)
    Neighbor_allgatherv = met(MPI.Topocomm.Neighbor_allgatherv)
    Neighbor_alltoall = met(MPI.Topocomm.Neighbor_alltoall)
    Neighbor_alltoallv = met(MPI.Topocomm.Neighbor_alltoallv)
    Neighbor_alltoallw = met(MPI.Topocomm.Neighbor_alltoallw)
    neighbor_allgather = met(MPI.Topocomm.neighbor_allgather)
    neighbor_alltoall = met(MPI.Topocomm.neighbor_alltoall)


class Cartcomm(Topocomm, MPI.Cartcomm):
    """Ranks on a grid."""

    Sub = _makes(MPI.Cartcomm.Sub)


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


_KINDS: tuple[tuple[type[MPI.Comm], type[Intracomm]], ...] = (
    (MPI.Cartcomm, Cartcomm), (MPI.Graphcomm, Graphcomm), (MPI.Distgraphcomm, Distgraphcomm),
)  # fmt: skip


def _named(name: str) -> MPI.Comm:
    """A communicator of MPI's own, unpickled."""
    from . import MPI as ours  # noqa: N811

    made: MPI.Comm = getattr(ours, name)
    return made
