"""Broadcasts and reductions between two groups, in the background and as plans.

Those beside the root have no part in MPI's own, and the libraries do not count such a call there (MPICH 5.0
no broadcast, Open MPI 5.0 no reduction either): later ones of that group then wait for ever. In a scatter and
a gather they count it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mpi4py import MPI

from .._lazy import np
from ..core.operation import Call


def have_counted(call: Call) -> None:
    """Let a scatter carry a broadcast, and a gather a reduction, which all ranks of both groups count."""
    verb = call.moves or call.verb
    if verb == "broadcast":
        call.moves = "scatter"
        if call.root == MPI.ROOT:
            _cut_for_each(call)
    elif verb == "reduce":
        call.moves = "gather"
        if call.root == MPI.ROOT:
            _reduce_here(call)
        if call.root < 0:
            call.send = None


def _cut_for_each(call: Call) -> None:
    array, count, kind = call.recv
    given = array.reshape(-1)
    each = np.empty((call.comm.remote_size, given.size), given.dtype)
    call.then_fill(partial(np.copyto, each, given))
    call.send, call.recv = (each, count, kind), None


def _reduce_here(call: Call) -> None:
    (array, count, kind), op, finish = call.recv, call.op, call.finish
    received = array.reshape(-1)
    each = np.empty((call.comm.remote_size, received.size), received.dtype)

    def reduce(status: MPI.Status | None) -> Any:
        for above, below in zip(each[::-1], each[-2::-1], strict=False):
            op.Reduce_local([below, count, kind], [above, count, kind])
            below[...] = above
        received[...] = each[0]
        return finish(status)

    call.recv, call.finish, call.give = (each, count, kind), reduce, None
