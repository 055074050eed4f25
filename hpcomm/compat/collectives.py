"""Collectives on buffers: what each one means is said once, as a verb of hpcomm's, for now and for later.

hpcomm compares what all ranks call: the verb, the operator, the element type, the root and the length.
Operators that hpcomm does not know, such as a program's own, and reductions of its own datatypes go to MPI
itself. All ranks name the same ones, so all of them go there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

from ..core.buffer import as_buffer
from ..errors import HpcommError, where
from .buffers import Part, part, parts, typed
from .requests import Request
from .surface import Surface, met, named

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

    from ..core.types import NpArray
    from .buffers import Block

F = TypeVar("F", bound=Callable[..., object])
G = TypeVar("G", bound=Callable[..., object])

_NAMES = {
    op.handle: name
    for op, name in (
        (MPI.SUM, "sum"), (MPI.PROD, "prod"), (MPI.MIN, "min"), (MPI.MAX, "max"), (MPI.BAND, "band"),
        (MPI.BOR, "bor"), (MPI.BXOR, "bxor"), (MPI.LAND, "land"), (MPI.LOR, "lor"),
    )
}  # fmt: skip


class _Deed(NamedTuple):
    """A verb of hpcomm's, its arguments, and what is to be done with its result."""

    verb: str
    given: tuple[Any, ...]
    then: Callable[[Any], object] | None = None


def _both(say: Callable[..., _Deed | None], now: F, later: G) -> tuple[F, G]:
    """mpi4py's two methods, blocking and in the background, of what say tells; None: MPI itself does it."""
    by_mpi = met(now)

    @named(now)
    def carry_out(self: Surface, *args: object, **kwargs: object) -> object:
        deed = say(self, *args, **kwargs)
        if deed is None:
            return by_mpi(self, *args, **kwargs)
        try:
            got = getattr(self.communicator, deed.verb)(*deed.given)
        except HpcommError as error:
            error.where = where(now.__name__, self.communicator)  # as the program calls it
            raise
        return None if deed.then is None else deed.then(got)

    @named(later)
    def begin(self: Surface, *args: object, **kwargs: object) -> object:
        deed = say(self, *args, **kwargs)
        if deed is None:
            return later(self, *args, **kwargs)
        under = getattr(self.communicator, deed.verb)(*deed.given, async_op=True)
        return Request.over(under, deed.then)

    return carry_out, begin


# -- of blocks of one length ---------------------------------------------------------------------------
def _barrier(comm: Surface) -> _Deed:
    return _Deed("barrier", ())


def _bcast(comm: Surface, buf: BufSpec, root: int = 0) -> _Deed:
    x = part(buf)
    return _Deed("broadcast", (x.array, root, x.array), _stored(x))


def _gather(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> _Deed:
    if comm.rank != root:
        return _Deed("gather", (part(sendbuf).array, root))
    out = part(recvbuf, comm.size)
    return _Deed("gather", (_own(comm, sendbuf, out), root, out.array), _stored(out))


def _allgather(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> _Deed:
    out = part(recvbuf, comm.size)
    return _Deed("all_gather", (_own(comm, sendbuf, out), out.array), _stored(out))


def _scatter(comm: Surface, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> _Deed:
    if comm.rank != root:
        out = part(recvbuf)
        return _Deed("scatter", (None, root, out.array), _stored(out))
    x = part(sendbuf, comm.size)
    out = Part(_block(comm, x.array)) if _in_place(recvbuf) else part(recvbuf)
    return _Deed("scatter", (_blocks(comm, x), root, out.array), _stored(out))


def _alltoall(comm: Surface, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> _Deed:
    out = part(recvbuf, comm.size)
    x = out.array if _in_place(sendbuf) else part(sendbuf, comm.size).array
    return _Deed("all_to_all", (x, out.array), _stored(out))


# -- reductions ----------------------------------------------------------------------------------------
def _reduce(
    comm: Surface,
    sendbuf: BufSpec | InPlace,
    recvbuf: BufSpec | None,
    op: MPI.Op = MPI.SUM,
    root: int = 0,
) -> _Deed | None:
    given: Block = recvbuf if _in_place(sendbuf) else sendbuf
    name = _known(op, given)
    if name is None:
        return None
    x = part(given).array
    if comm.rank != root:
        return _Deed("reduce", (x, name, root))
    return _Deed("reduce", (x, name, root, x if given is recvbuf else part(recvbuf).array))


def _elementwise(verb: str) -> Callable[..., _Deed | None]:
    def say(
        comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
    ) -> _Deed | None:
        name = _known(op, recvbuf)
        if name is None:
            return None
        out: NpArray | None = part(recvbuf).array
        x = out if _in_place(sendbuf) else part(sendbuf).array
        if verb == "exscan" and comm.rank == 0:  # which MPI leaves as it is
            out = None
        return _Deed(verb, (x, name, out))

    return say


def _reduce_scatter_block(
    comm: Surface, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM
) -> _Deed | None:
    name = _known(op, recvbuf)
    if name is None:
        return None
    if not _in_place(sendbuf):
        return _Deed("reduce_scatter", (_blocks(comm, part(sendbuf, comm.size)), name, part(recvbuf).array))
    whole = part(recvbuf, comm.size)

    def place(got: NpArray) -> None:
        whole.array[: got.size] = got

    return _Deed("reduce_scatter", (_blocks(comm, whole), name), place)


# -- of blocks of any length: MPI's v-variants ----------------------------------------------------------
def _gatherv(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> _Deed:
    if comm.rank != root:
        return _Deed("gather_ragged", (_host(part(sendbuf)), root))
    into = parts(recvbuf, comm.size)
    x = _host(into[root] if _in_place(sendbuf) else part(sendbuf))
    return _Deed("gather_ragged", (x, root), _placed(into, root if _in_place(sendbuf) else -1))


def _allgatherv(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> _Deed:
    into = parts(recvbuf, comm.size)
    x = _host(into[comm.rank] if _in_place(sendbuf) else part(sendbuf))
    return _Deed("all_gather_ragged", (x,), _placed(into, comm.rank if _in_place(sendbuf) else -1))


def _scatterv(comm: Surface, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> _Deed:
    xs = [each.array for each in parts(sendbuf, comm.size)] if comm.rank == root else None
    if _in_place(recvbuf):
        return _Deed("scatter_ragged", (xs, root))
    out = part(recvbuf)
    return _Deed("scatter_ragged", (xs, root), lambda got: out.put(got, root))


def _alltoallv(comm: Surface, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> _Deed:
    into = parts(recvbuf, comm.size)
    given = into if _in_place(sendbuf) else parts(sendbuf, comm.size)
    return _Deed("all_to_all_ragged", ([each.array for each in given],), _placed(into))


def _in_place(spec: object) -> bool:
    return spec is None or spec is MPI.IN_PLACE


def _known(op: MPI.Op, spec: Block) -> str | None:
    """hpcomm's name of the operator; None: only MPI knows it, or how it works on such elements."""
    return _NAMES.get(op.handle) if type(spec) is np.ndarray or typed(spec) else None


def _stored(into: Part) -> Callable[[object], object] | None:
    """Bring what came to its place, if it does not lie there already."""
    store = into.store
    return None if store is None else lambda got: store()


def _placed(into: list[Part], but: int = -1) -> Callable[[list[NpArray]], None]:
    def place(got: list[NpArray]) -> None:
        for rank, (its, each) in enumerate(zip(into, got, strict=True)):
            if rank != but:
                its.put(each, rank)

    return place


def _own(comm: Surface, sendbuf: BufSpec | InPlace, out: Part) -> NpArray:
    """What this rank gives: its own block of what it receives, if it works in place."""
    return _block(comm, out.array) if _in_place(sendbuf) else part(sendbuf).array


def _block(comm: Surface, whole: NpArray) -> NpArray:
    n = len(whole) // comm.size
    return whole[comm.rank * n : (comm.rank + 1) * n]


def _blocks(comm: Surface, whole: Part) -> NpArray:
    return whole.array.reshape(comm.size, len(whole.array) // comm.size)


def _host(its: Part) -> NpArray:
    """As an array of numpy's: blocks of one call may be of several libraries."""
    return its.array if isinstance(its.array, np.ndarray) else as_buffer(its.array).array


class Collectives(Surface):
    """Collectives on buffers."""

    Barrier, Ibarrier = _both(_barrier, MPI.Comm.Barrier, MPI.Comm.Ibarrier)
    Bcast, Ibcast = _both(_bcast, MPI.Comm.Bcast, MPI.Comm.Ibcast)
    Gather, Igather = _both(_gather, MPI.Comm.Gather, MPI.Comm.Igather)
    Scatter, Iscatter = _both(_scatter, MPI.Comm.Scatter, MPI.Comm.Iscatter)
    Allgather, Iallgather = _both(_allgather, MPI.Comm.Allgather, MPI.Comm.Iallgather)
    Alltoall, Ialltoall = _both(_alltoall, MPI.Comm.Alltoall, MPI.Comm.Ialltoall)
    Gatherv, Igatherv = _both(_gatherv, MPI.Comm.Gatherv, MPI.Comm.Igatherv)
    Scatterv, Iscatterv = _both(_scatterv, MPI.Comm.Scatterv, MPI.Comm.Iscatterv)
    Allgatherv, Iallgatherv = _both(_allgatherv, MPI.Comm.Allgatherv, MPI.Comm.Iallgatherv)
    Alltoallv, Ialltoallv = _both(_alltoallv, MPI.Comm.Alltoallv, MPI.Comm.Ialltoallv)
    Reduce, Ireduce = _both(_reduce, MPI.Comm.Reduce, MPI.Comm.Ireduce)
    Allreduce, Iallreduce = _both(_elementwise("all_reduce"), MPI.Comm.Allreduce, MPI.Comm.Iallreduce)
    Scan, Iscan = _both(_elementwise("scan"), MPI.Intracomm.Scan, MPI.Intracomm.Iscan)
    Exscan, Iexscan = _both(_elementwise("exscan"), MPI.Intracomm.Exscan, MPI.Intracomm.Iexscan)
    Reduce_scatter_block, Ireduce_scatter_block = _both(
        _reduce_scatter_block, MPI.Comm.Reduce_scatter_block, MPI.Comm.Ireduce_scatter_block
    )
    Reduce_scatter = met(MPI.Comm.Reduce_scatter)
    Alltoallw = met(MPI.Comm.Alltoallw)
