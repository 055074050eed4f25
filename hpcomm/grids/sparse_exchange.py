"""Sparse exchange: objects for some ranks, from ranks that do not know who sends to them.

Messages are synchronous, so a rank whose messages have all arrived enters a barrier in the background. Once
that is over, nothing is under way any more (NBX: Hoefler, Siebert, Lumsdaine 2010). A rank sends to those it
has something for, and takes part in one barrier: nothing grows with the number of ranks but its log2.
"""

from __future__ import annotations

import time
from typing import TypeVar

from .._lazy import MPI
from ..core.present import calling

_TAG = 0
_NAP_S = 5e-5

T = TypeVar("T")


def exchange_sparse(comm: MPI.Intracomm, parts: dict[int, T]) -> list[T]:
    """Send each rank its part of parts; what came for this rank, lowest source first. Collective.

    No other messages may be under way on comm, and ranks meet before it is called on comm again.
    """
    if play := getattr(comm, "exchange_sparse", None):  # of ranks that threads play (mpmd/virtual_ranks.py)
        return list(play(parts))
    sent = [comm.issend(part, rank, _TAG) for rank, part in parts.items()]
    got: dict[int, T] = {}
    status = MPI.Status()
    barrier: MPI.Request | None = None
    with calling(None, "exchange"):
        while barrier is None or not barrier.Test():
            if message := comm.improbe(MPI.ANY_SOURCE, _TAG, status):
                got[status.source] = message.recv()
            elif barrier is None and MPI.Request.Testall(sent):
                barrier = comm.Ibarrier()
            else:
                time.sleep(_NAP_S)
    return [got[rank] for rank in sorted(got)]
