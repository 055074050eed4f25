"""Halo exchange: the rim of every rank's array gets what its neighbours own there.

halo = Halo(temperature, pressure)          # planned once, one message to each neighbour
halo.start(); inside(); halo.wait(); rim()  # overlapped
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import LayoutError, UsageError, where
from .exchange import Exchange
from .partition import halo

if TYPE_CHECKING:
    from .field import Field

__all__ = ["Halo", "exchange_of"]


class Halo:
    """The halos of some fields over the same ranks, exchanged together. Collective to make.

    start() sends what the fields hold now; until wait() the insides may be read and the halos are in
    motion; an inside that is to be written must be one that no neighbour's halo needs. Calling it does both.

    Raises:
        UsageError: no field, or fields over different communicators.
    """

    def __init__(self, *fields: Field) -> None:
        if not fields:
            raise UsageError("Halo needs a field", "Halo", "Halo(field)")
        comm = fields[0].comm
        if any(field.comm is not comm for field in fields):
            raise UsageError(
                "the fields live on different communicators",
                where("halo", comm),
                "one Halo for those of each communicator",
            )
        self.fields: Sequence[Field] = fields
        self._exchange = exchange_of(fields)
        # the two words of every time step, without a detour
        self.start = self._exchange.start
        self.wait = self._exchange.wait

    def __call__(self, timeout: float | None = None) -> None:
        """Exchange now."""
        self._exchange(timeout)

    def explain(self) -> str:
        """Which way the bytes take."""
        return self._exchange.explain()

    def close(self) -> None:
        """Give back what MPI holds for it."""
        self._exchange.close()


def exchange_of(fields: Sequence[Field], reverse: bool = False) -> Exchange:
    """The exchange of these fields' halos; reverse: halos go back and are added to what their owners have."""
    comm = fields[0].comm
    sends: list[tuple[int, Any]] = []
    receives: list[tuple[int, Any]] = []
    for field in fields:
        if getattr(field.partition, "summands", 1) > 1:
            raise LayoutError(
                f"{field} is partial: its values are sums yet to be made",
                where("halo", comm),
                "redistribute it first",
            )
        route = halo(field.partition, comm.rank, field.halo, field.periodic, field.corners)
        sends += [(piece.peer, field.place(piece.here)) for piece in route.sends]
        receives += [(piece.peer, field.place(piece.here)) for piece in route.receives]
    if reverse:
        return Exchange(comm, receives, sends, range(len(sends)), verb="halo, in reverse")
    return Exchange(comm, sends, receives, verb="halo exchange")
