"""Collectives, on buffers and on objects.

On buffers: what each one means is said once, as a verb of hpcomm's, for now and for later.

hpcomm compares what all ranks call: the verb, the operator, the element type, the root and the length.
Operators that hpcomm does not know, such as a program's own, and reductions of its own datatypes go to MPI
itself. All ranks name the same ones, so all of them go there. Of objects, arrays travel from and into their
own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI

from ..core.buffer import as_buffer
from ..errors import HpcommError, where
from .buffers import Part, part, parts, typed
from .requests import Request
from .surface import Surface, go, met, named

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

    from ..core.types import NpArray
    from .buffers import Block

F = TypeVar("F", bound=Callable[..., object])
_Op = MPI.Op | Callable[[Any, Any], Any]

_NAMES = {
    op.handle: name
    for op, name in (
        (MPI.SUM, "sum"), (MPI.PROD, "prod"), (MPI.MIN, "min"), (MPI.MAX, "max"), (MPI.BAND, "band"),
        (MPI.BOR, "bor"), (MPI.BXOR, "bxor"), (MPI.LAND, "land"), (MPI.LOR, "lor"),
    )
}  # fmt: skip


# What a verb is given, and what is to be done with its result; None: only MPI can do it
_Deed = tuple[tuple[Any, ...], Callable[[Any], object] | None] | None


class Collectives(Surface):
    """Collectives on buffers."""


def _means(name: str, verb: str) -> Callable[[F], F]:
    """What is below says what mpi4py's name does by a verb of hpcomm's, now or in the background."""

    def note(say: F) -> F:
        now, later = getattr(MPI.Intracomm, name), getattr(MPI.Intracomm, f"I{name.lower()}")
        by_mpi = met(now)

        @named(now)
        def carry_out(self: Surface, *args: object, **kwargs: object) -> object:
            deed: Any = say(self, *args, **kwargs)
            if deed is None:
                return by_mpi(self, *args, **kwargs)
            given, then = deed
            try:
                got = getattr(self.communicator, verb)(*given)
            except HpcommError as error:
                error.where = where(name, self.communicator)  # as the program calls it
                raise
            return None if then is None else then(got)

        @named(later)
        def begin(self: Surface, *args: object, **kwargs: object) -> object:
            deed: Any = say(self, *args, **kwargs)
            if deed is None:
                return later(self, *args, **kwargs)
            return Request.over(getattr(self.communicator, verb)(*deed[0], async_op=True), deed[1])

        setattr(Collectives, name, carry_out)
        setattr(Collectives, later.__name__, begin)
        return say

    return note


go(Collectives, met, "Reduce_scatter Alltoallw")


# -- of blocks of one length ---------------------------------------------------------------------------
@_means("Barrier", "barrier")
def _barrier(comm: Surface) -> _Deed:
    return (), None


@_means("Bcast", "broadcast")
def _bcast(comm: Surface, buf: BufSpec, root: int = 0) -> _Deed:
    x = part(buf)
    return (x.array, root, x.array), x.store


@_means("Gather", "gather")
def _gather(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> _Deed:
    if comm.rank != root:
        return (part(sendbuf).array, root), None
    out = part(recvbuf, comm.size)
    return (_own(comm, sendbuf, out), root, out.array), out.store


@_means("Allgather", "all_gather")
def _allgather(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> _Deed:
    out = part(recvbuf, comm.size)
    return (_own(comm, sendbuf, out), out.array), out.store


@_means("Scatter", "scatter")
def _scatter(comm: Surface, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> _Deed:
    if comm.rank != root:
        out = part(recvbuf)
        return (None, root, out.array), out.store
    x = part(sendbuf, comm.size)
    out = Part(_block(comm, x.array)) if _in_place(recvbuf) else part(recvbuf)
    return (_blocks(comm, x), root, out.array), out.store


@_means("Alltoall", "all_to_all")
def _alltoall(comm: Surface, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> _Deed:
    out = part(recvbuf, comm.size)
    x = out.array if _in_place(sendbuf) else part(sendbuf, comm.size).array
    return (x, out.array), out.store


# -- reductions ----------------------------------------------------------------------------------------
@_means("Reduce", "reduce")
def _reduce(
    comm: Surface,
    sendbuf: BufSpec | InPlace,
    recvbuf: BufSpec | None,
    op: MPI.Op = MPI.SUM,
    root: int = 0,
) -> _Deed:
    given: Block = recvbuf if _in_place(sendbuf) else sendbuf
    name = _known(op, given)
    if name is None:
        return None
    x = part(given).array
    if comm.rank != root:
        return (x, name, root), None
    return (x, name, root, x if given is recvbuf else part(recvbuf).array), None


@_means("Allreduce", "all_reduce")
@_means("Scan", "scan")
def _elementwise(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> _Deed:
    name = _known(op, recvbuf)
    if name is None:
        return None
    out = part(recvbuf).array
    return (out if _in_place(sendbuf) else part(sendbuf).array, name, out), None


@_means("Exscan", "exscan")
def _exscan(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> _Deed:
    deed = _elementwise(comm, sendbuf, recvbuf, op)
    return deed if deed is None or comm.rank else ((*deed[0][:2], None), None)  # rank 0's stays as it is


@_means("Reduce_scatter_block", "reduce_scatter")
def _reduce_scatter_block(
    comm: Surface, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM
) -> _Deed:
    name = _known(op, recvbuf)
    if name is None:
        return None
    if not (_in_place(sendbuf) or _is_same(sendbuf, recvbuf)):
        return (_blocks(comm, part(sendbuf, comm.size)), name, part(recvbuf).array), None
    whole = part(recvbuf, comm.size)

    def place(got: NpArray) -> None:
        whole.array[: got.size] = got

    return (_blocks(comm, whole), name), place


# -- of blocks of any length: MPI's v-variants ----------------------------------------------------------
@_means("Gatherv", "gather_ragged")
def _gatherv(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> _Deed:
    if comm.rank != root:
        return (_host(part(sendbuf)), root), None
    into = parts(recvbuf, comm.size)
    x = _host(into[root] if _in_place(sendbuf) else part(sendbuf))
    return (x, root), _placed(into, root if _in_place(sendbuf) else -1)


@_means("Allgatherv", "all_gather_ragged")
def _allgatherv(comm: Surface, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> _Deed:
    into = parts(recvbuf, comm.size)
    x = _host(into[comm.rank] if _in_place(sendbuf) else part(sendbuf))
    return (x,), _placed(into, comm.rank if _in_place(sendbuf) else -1)


@_means("Scatterv", "scatter_ragged")
def _scatterv(comm: Surface, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> _Deed:
    xs = [each.array for each in parts(sendbuf, comm.size)] if comm.rank == root else None
    if _in_place(recvbuf):
        return (xs, root), None
    out = part(recvbuf)
    return (xs, root), lambda got: out.put(got, root)


@_means("Alltoallv", "all_to_all_ragged")
def _alltoallv(comm: Surface, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> _Deed:
    into = parts(recvbuf, comm.size)
    given = into if _in_place(sendbuf) else parts(sendbuf, comm.size)
    return ([each.array for each in given],), _placed(into)


def _in_place(spec: object) -> bool:
    return spec is None or spec is MPI.IN_PLACE


def _is_same(sendbuf: object, recvbuf: object) -> bool:
    """Whether both name one array: from mpi4py 4.2 on that is in place, too, in reductions."""
    both = (each[0] if isinstance(each, list | tuple) else each for each in (sendbuf, recvbuf))
    return next(both) is next(both)


def _known(op: MPI.Op, spec: Block) -> str | None:
    """hpcomm's name of the operator; None: only MPI knows it, or how it works on such elements."""
    if not isinstance(op, MPI.Op):
        raise TypeError(f"Argument 'op' has incorrect type (expected mpi4py.MPI.Op, got {type(op).__name__})")
    return _NAMES.get(op.handle) if type(spec) is np.ndarray or typed(spec) else None


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


# -- of objects ----------------------------------------------------------------------------------------
class Objects(Surface):
    """Collectives on objects. Operators are called as Python functions, in the order of ranks."""

    def barrier(self) -> None:
        self.communicator.barrier()

    def bcast(self, obj: object, root: int = 0) -> Any:
        return self.communicator.broadcast_object(obj, root)

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        return self.communicator.gather_object(sendobj, root)

    def scatter(self, sendobj: Sequence[object] | None, root: int = 0) -> Any:
        return self.communicator.scatter_object(sendobj, root)

    def allgather(self, sendobj: object) -> list[Any]:
        return self.communicator.all_gather_object(sendobj)

    def alltoall(self, sendobj: Sequence[object]) -> list[Any]:
        return self.communicator.all_to_all_object(sendobj)

    def reduce(self, sendobj: object, op: _Op = MPI.SUM, root: int = 0) -> Any | None:
        return self.communicator.reduce_object(sendobj, op, root)

    def allreduce(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        return self.communicator.all_reduce_object(sendobj, op)

    def scan(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        return reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: object, op: _Op = MPI.SUM) -> Any:
        """None on rank 0."""
        before = self.allgather(sendobj)[: self.rank]
        return reduce(op, before) if before else None
