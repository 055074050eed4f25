"""Communicators for planned exchanges, so that their messages never meet the user's."""

from __future__ import annotations

from typing import NamedTuple

from ..._lazy import MPI
from ...core.present import calling
from ...transport.late import transport
from ..context import Context
from .groups import dup


class Channel(NamedTuple):
    """mpi: for exchanges alone; carrier: for those of arrays on devices, if a rank may have such."""

    mpi: MPI.Comm
    number: int
    carrier: Context | None


def channel(comm: Context, peek: bool = False) -> Channel:
    """Duplicates of comm for exchanges alone, and a number that tells this exchange from the others.

    The first use of a communicator is collective; closing it closes the duplicates. With peek no number is
    taken.
    """
    if comm.exchange_channel is None:
        try:
            with calling(comm, "a planned exchange"):
                made = comm.mpi_handle.Dup()
        except MPI.Exception as error:
            raise transport.failure(error, "a planned exchange", comm) from None
        made.Set_errhandler(MPI.ERRORS_RETURN)
        carrier = None if comm.devices is None else dup(comm, f"{comm.name}.exchange", "off")
        comm.exchange_channel = [made, 0, carrier]
    if not peek:
        comm.exchange_channel[1] += 1
    return Channel(comm.exchange_channel[0], comm.exchange_channel[1] % 32768, comm.exchange_channel[2])
