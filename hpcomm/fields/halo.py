"""Halo exchange: the rim of every rank's array gets what its neighbours own there.

halo = Halo(temperature, pressure)          # planned once, one message to each neighbour
halo.start(); inside(); halo.wait(); rim()  # overlapped
"""

from __future__ import annotations

from itertools import chain
from typing import Any
from weakref import ref

from ..communicator.shell import watched
from ..errors import UsageError, demand
from .exchange import Exchange, Moves
from .own_part import OwnPart, check_whole, faces, shared_comm


@watched
class Halo(Exchange):
    """The halos of some fields over the same ranks, exchanged together. Making one is collective.

    start() sends what the fields hold then. Until wait(), elements that a rank owns may be read, halos may
    not. Elements that are in no neighbour's halo may be written as well. Calling the object does both steps.

    Attributes:
        comm: the communicator of the fields.
        sources, sends: other ranks of which this one gets something; bytes that go to each.
        device_side: what hpcomm's own layers know of it; not for programs.

    Raises:
        UsageError: no field, no fields of hpcomm, or fields over different communicators.
        LayoutError: a field is partial.
    """

    def __init__(self, *fields: OwnPart[Any]) -> None:
        if not fields:
            raise UsageError("Halo needs a field", "Halo", "Halo(field)")
        for field in fields:
            hint = "Halo(field, ...); an array x becomes one by Field(mesh, shape, halo=..., array=x)"
            demand(field, OwnPart, "what Halo was given", "Halo", hint)
        comm = shared_comm(fields, "halo", "one Halo for those of each communicator")
        sides = zip(*map(faces, fields), strict=True)
        sends, receives = ([*chain(*side)] for side in sides)
        super().__init__(comm, Moves(sends, receives), verb="halo exchange")
        self.comm = comm
        self._fields = [ref(field) for field in fields]  # which hold their own Halo
        arrays = [getattr(field, "array", None) for field in fields]
        self._tensors = tuple(x for x in arrays if hasattr(x, "requires_grad"))

    @property
    def fields(self) -> list[OwnPart[Any]]:
        """Those of the fields that are still there."""
        return [field for each in self._fields if (field := each()) is not None]


def reverse(field: OwnPart[Any]) -> Exchange:
    """The exchange in which the halo goes back to its owners and is added to what they have."""
    check_whole(field, "halo")
    sends, receives = faces(field)
    return Exchange(field.comm, Moves(receives, sends, range(len(sends))), verb="halo, in reverse")
