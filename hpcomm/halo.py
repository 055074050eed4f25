"""Halo exchange: the rim of every rank's array gets what its neighbours own there.

halo = Halo(temperature, pressure)          # planned once, one message to each neighbour
halo.start(); inside(); halo.wait(); rim()  # overlapped
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import UsageError, where
from .exchange import Exchange
from .partition import halo

if TYPE_CHECKING:
    from .field import Field

__all__ = ["Halo", "reverse"]


class Halo(Exchange):
    """The halos of some fields over the same ranks, exchanged together. Collective to make.

    start() sends what the fields hold now; until wait() the insides may be read and the halos are in
    motion; an inside that is to be written must be one that no neighbour's halo needs. Calling it does both.

    Raises:
        UsageError: no field, or fields over different communicators.
        LayoutError: a field is partial.
    """

    def __init__(self, *fields: Field) -> None:
        sends, receives = _faces(fields)
        super().__init__(fields[0].comm, sends, receives, verb="halo exchange")
        self.fields = fields


def reverse(field: Field) -> Exchange:
    """The exchange in which the halo goes back to its owners and is added to what they have."""
    sends, receives = _faces([field])
    return Exchange(field.comm, receives, sends, range(len(sends)), verb="halo, in reverse")


def _faces(fields: Sequence[Field]) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
    """What goes out and what comes in: (peer, place in memory)."""
    if not fields:
        raise UsageError("Halo needs a field", "Halo", "Halo(field)")
    comm = fields[0].comm
    if any(field.comm is not comm for field in fields):
        raise UsageError(
            "the fields live on different communicators",
            where("halo", comm),
            "one Halo for those of each communicator",
        )
    sends: list[tuple[int, Any]] = []
    receives: list[tuple[int, Any]] = []
    for field in fields:
        field.check_whole("halo")
        route = halo(field.partition, comm.rank, field.halo, field.periodic, field.corners)
        sends += [(piece.peer, field.place(piece.here)) for piece in route.sends]
        receives += [(piece.peer, field.place(piece.here)) for piece in route.receives]
    return sends, receives
