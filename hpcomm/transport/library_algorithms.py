"""Collectives by one of the MPI library's own algorithms, chosen at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..core.signature import marked
from ..errors import UsageError
from . import mpi_control_variables
from .mpi import pieces
from .scheduled.comm_cache import own

if TYPE_CHECKING:
    from ..core.comm import Comm
    from ..core.operation import Call

__all__ = ["by_library", "library_call"]


_NOT_IN_PLACE = ("sparbit",)  # of Open MPI 5.0, which moves nothing then (3 ranks)


def by_library(comm: Comm, verb: str, name: str, function: str) -> Callable[..., object]:
    """MPI's function, carried out by the library's algorithm name.

    What that takes is made when it is first called, all ranks together: then they agree about the call.
    """
    made: Callable[..., Any] | None = None

    def call(*arguments: object) -> None:
        nonlocal made
        if made is None:
            made = _switched(verb, name, getattr(own(comm).library(verb, name), function))
        made(*arguments)

    return call


def _switched(verb: str, name: str, function: Callable[..., object]) -> Callable[..., object]:
    """function, with what MPICH has to be told around it."""
    if mpi_control_variables.vendor() == "openmpi":
        return function
    on, off = mpi_control_variables.switch(verb, name)

    def called(*arguments: object) -> None:
        on()
        try:
            function(*arguments)
        finally:
            off()

    return called


def library_call(call: Call, name: str) -> Call:
    """Let call be carried out by one of the MPI library's own algorithms; blocking calls only choose it."""
    comm, verb = call.comm, call.verb
    if call.moves or name not in mpi_control_variables.choices(verb):
        known = (
            ", ".join(f"mpi:{each}" for each in mpi_control_variables.choices(verb))
            or "leave algorithm= away"
        )
        raise UsageError(f"the MPI library offers no algorithm {name!r} for this {verb}", hint=known)
    call.code = marked(call.code, f"mpi:{name}")

    def carry() -> None:
        for function, arguments in pieces(call):
            if name in _NOT_IN_PLACE and arguments[0] is MPI.IN_PLACE:
                received, count, kind = arguments[1]
                block = received.reshape(-1)[comm.rank * count : (comm.rank + 1) * count]
                arguments = ((block.copy(), count, kind), *arguments[1:])
            by_library(comm, verb, name, function)(*arguments)

    call.carry = carry
    return call
