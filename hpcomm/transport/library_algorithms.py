"""Collectives by one of the MPI library's own algorithms, chosen at run time."""

from __future__ import annotations

from contextlib import nullcontext

from mpi4py import MPI

from ..core.operation import Call, Carrier
from ..core.signature import marked
from ..errors import UsageError
from . import mpi_control_variables
from .mpi import pieces
from .scheduled.comm_cache import own

_NOT_IN_PLACE = ("sparbit",)  # of Open MPI 5.0, which moves nothing then (3 ranks)


def library_call(call: Call, name: str) -> Call:
    """Let call be carried out by one of the MPI library's own algorithms; blocking calls only choose it."""
    comm, verb = call.comm, call.verb
    if call.moves or name not in mpi_control_variables.choices(verb):
        known = (
            ", ".join(f"mpi:{each}" for each in mpi_control_variables.choices(verb))
            or "leave algorithm= away"
        )
        raise UsageError(f"the MPI library offers no algorithm {name!r} for this {verb}", hint=known)
    is_kept = mpi_control_variables.vendor() == "openmpi"  # by the communicator that it is made for
    call.code = marked(call.code, f"mpi:{name}")

    def carry() -> None:
        for function, arguments in pieces(call):
            if name in _NOT_IN_PLACE and arguments[0] is MPI.IN_PLACE:
                received, count, kind = arguments[1]
                block = received.reshape(-1)[comm.rank * count : (comm.rank + 1) * count]
                arguments = ((block.copy(), count, kind), *arguments[1:])
            chosen = getattr(own(comm).library(verb, name), function)
            with nullcontext() if is_kept else mpi_control_variables.forced(verb, name):
                chosen(*arguments)

    call.carrier = Carrier(carry)
    return call
