"""Surface of a communicator: what mpi4py's class says, carried out by hpcomm's Communicator.

A method of mpi4py's goes one of five ways:

    by a verb    Send, Bcast, allreduce           checked, reported, with timeouts
    met          Neighbor_alltoall, Alltoallw     MPI itself, after a barrier of hpcomm's: all ranks are there
    beside       Ssend, Mprobe, Send_init         MPI itself, among the messages of hpcomm: comm.mpi
    made         Split, Dup, Create_cart          met; what is made has a Communicator of its own
    left alone   Get_attr, Get_group, Bcast_init  MPI itself
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from mpi4py import MPI

from ..communicator.communicator import Communicator
from ..errors import UsageError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])  # a method keeps its signature


class Like(type):
    """Of a class that stands for one of mpi4py's: objects of that one count as its instances.

    It says that it is of mpi4py's module, for petsc4py and others look no further than that.
    """

    is_own: bool

    def __init__(cls, *of: Any) -> None:
        super().__init__(*of)
        cls.is_own = cls.__module__.startswith(__package__ or "")  # not one that a program has made of it
        if cls.is_own:
            cls.__module__ = MPI.__name__

    def __instancecheck__(cls, x: object) -> bool:
        return type.__instancecheck__(cls, x) or (cls.is_own and isinstance(x, theirs(cls)))


def theirs(kind: type) -> type:
    """The class of mpi4py's that kind is made of."""
    return next(each for each in kind.__mro__ if each.__module__ == MPI.__name__ and type(each) is type)


class Surface(MPI.Comm):
    """A communicator of mpi4py's over one of hpcomm's.

    Its handle is MPI's own communicator, for all that takes one (Win, File, other libraries). hpcomm has
    duplicates of it, on which all messages of the program travel.
    """

    _communicator: Communicator | None = None

    def bind(self, communicator: Communicator | None) -> None:
        """Be carried out by communicator from now on."""
        self._communicator = communicator
        if communicator is not None and known(MPI.Comm(self)) is None:
            _known[self.handle] = communicator

    @property
    def communicator(self) -> Communicator:
        """hpcomm's communicator of the same ranks: its timeout, its observers and all operations.

        Raises:
            UsageError: there is none, as of a null handle.
        """
        if self._communicator is None:
            raise UsageError(
                f"this {type(self).__name__} has no Communicator of hpcomm's",
                hint="MPI.COMM_WORLD and what is made of it has one; MPI.of(comm) makes one of another",
            )
        return self._communicator


_known: WeakValueDictionary[int, Communicator] = WeakValueDictionary()  # by handle


def known(mpi: MPI.Comm) -> Communicator | None:
    """hpcomm's communicator of what has this handle, whatever library has made the object."""
    if isinstance(mpi, Surface):
        return mpi._communicator
    found = _known.get(mpi.handle)
    return None if found is None or found.is_closed else found


def named(function: F) -> Callable[[Callable[..., object]], F]:
    """A method that stands for one of mpi4py's: it is called so in tracebacks, and where ranks disagree."""

    def name(method: Any) -> F:
        method.__code__ = method.__code__.replace(co_name=function.__name__)
        return cast("F", wraps(function)(method))

    return name


def go(kind: type[MPI.Comm], way: Callable[[F], F], names: str) -> None:
    """Let these methods of mpi4py's class go one way."""
    for name in names.split():
        setattr(kind, name, way(getattr(theirs(kind), name)))


def met(function: F) -> F:
    """A collective method of MPI's own, once all ranks have come to it."""

    @named(function)
    def method(self: Surface, *args: object, **kwargs: object) -> object:
        self.communicator.barrier()
        return watched(function(self, *args, **kwargs))

    return method


def beside(function: F) -> F:
    """A method of MPI's own for messages, which meet those of hpcomm."""

    @named(function)
    def method(self: Surface, *args: object, **kwargs: object) -> object:
        return watched(function(self.communicator.mpi, *args, **kwargs))

    return method


def watched(made: T) -> T:
    """A request of MPI's own as one of ours: while a program waits in that, hpcomm's messages move on."""
    from .requests import Request  # which stands above

    is_raw = type(made) is MPI.Request and bool(made)
    return cast("T", Request(cast("MPI.Request", made))) if is_raw else made
