"""Direct calls: what collective verbs try first.

A direct call takes plain arrays and does the whole job, or returns NotImplemented before any other rank could
know of it. Then the general path prepares the arrays, says what is wrong with them, or takes another way.
What is tried has the methods of the native core's Node, and is one of three:

    core.Node   all ranks are on one node                               (node/_native)
    ByLibrary   they are not, or there is no core: numpy's contiguous arrays, by one call of MPI
    NO_DIRECT   none of these, it is closed, or observers look on: the general path takes every call
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard

from ..._lazy import MPI, NDArray, np
from ...core.signature import DTYPE, SCHEDULED, head
from ...errors import HpcommError
from ...node.present import enter, leave
from ...transport.late import dtypes, rank_order, reduction, transport, wrapping

if TYPE_CHECKING:
    from ...core.comm import Comm
    from ...core.types import AnyArray

_LARGEST = 2**31 - 1  # elements of one call of MPI, and so bytes that are no more


class NoDirect:
    """Every call takes the general path."""

    def _leave(self, *arguments: Any) -> object:
        return NotImplemented

    barrier = broadcast = reduce = all_reduce = gather = all_gather = scatter = _leave
    reduce_scatter = all_to_all = scan = exscan = share = _leave


NO_DIRECT = NoDirect()


class ByLibrary(NoDirect):
    """Collectives of one call of MPI each, on contiguous arrays of numpy.

    Every check that the general path makes on such arrays is made here, at a fifth of its cost.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm, self._size, self._rank = comm, comm.size, comm.rank
        self._mpi = comm.mpi_handle
        self._most = _LARGEST if comm.devices is None else comm.devices.eager  # bytes
        self._moved = cache(_moved)  # by dtype: MPI's type, its code
        # By operator and dtype: the same, MPI's operator or the fold in rank order, its code
        self._reduced = cache(partial(_reduced, comm))

    def barrier(self) -> None:
        self._run("barrier", head("barrier"), 0, None, self._mpi.Barrier)

    def broadcast(self, x: object, root: object, out: object) -> object:
        if not self._takes(x) or not self._has(root):
            return NotImplemented
        kind, code = self._moved(x.dtype)
        if out is None:
            out = x.copy() if root == self._rank else np.empty_like(x)
        elif out is not x or not x.flags.writeable:
            return NotImplemented
        if kind is None:
            return NotImplemented
        code = head("broadcast", 0, code, root)
        self._run("broadcast", code, x.size, x, self._mpi.Bcast, (out, x.size, kind), root)
        return out

    def all_reduce(self, x: object, op: object, out: object) -> object:
        if type(op) is not str or not self._takes(x):
            return NotImplemented
        kind, code, operator, reduce = self._reduced(op, x.dtype)
        out = self._result(x, out, x.shape)
        if kind is None or out is None or not self._is_short("all_reduce", x, operator):
            return NotImplemented
        code = head("all_reduce", reduce, code)
        if isinstance(operator, rank_order.Fold):
            parts = np.empty((self._size, x.size), x.dtype)
            parts[self._rank] = x.reshape(-1)
            there = (parts, x.size, kind)
            self._run("all_reduce", code, x.size, x, operator.after(self._mpi.Allgather), MPI.IN_PLACE, there)
            out[...] = operator.total(parts).reshape(x.shape)
            return out
        if out is not x:
            np.copyto(out, x)  # all ranks work in place, or none may
        self._run(
            "all_reduce", code, x.size, x, self._mpi.Allreduce, MPI.IN_PLACE, (out, x.size, kind), operator
        )
        return out

    def reduce(self, x: object, op: object, root: object, out: object) -> object:
        if type(op) is not str or not self._takes(x) or not self._has(root) or out is x:
            return NotImplemented
        kind, code, operator, reduce = self._reduced(op, x.dtype)
        is_root = root == self._rank
        out = self._result(x, out, x.shape) if is_root else None
        if kind is None or (is_root and out is None) or not self._is_short("reduce", x, operator):
            return NotImplemented
        code, given = head("reduce", reduce, code, root), (x, x.size, kind)
        if isinstance(operator, rank_order.Fold):
            parts = np.empty((self._size, x.size), x.dtype) if is_root else None
            room = None if parts is None else (parts, x.size, kind)
            self._run("reduce", code, x.size, x, operator.after(self._mpi.Gather), given, room, root)
            if out is not None and parts is not None:
                out[...] = operator.total(parts).reshape(x.shape)
            return out
        there = (out, x.size, kind) if is_root else None
        self._run("reduce", code, x.size, x, self._mpi.Reduce, given, there, operator, root)
        return out

    def gather(self, x: object, root: object, out: object) -> object:
        if not self._takes(x) or not self._has(root) or out is x:
            return NotImplemented
        kind, code = self._moved(x.dtype)
        is_root = root == self._rank
        out = self._result(x, out, (self._size, *x.shape)) if is_root else None
        if kind is None or (is_root and out is None):
            return NotImplemented
        there = (out, x.size, kind) if is_root else None
        code = head("gather", 0, code, root)
        self._run("gather", code, x.size, x, self._mpi.Gather, (x, x.size, kind), there, root)
        return out

    def all_gather(self, x: object, out: object) -> object:
        if not self._takes(x) or out is x:
            return NotImplemented
        kind, code = self._moved(x.dtype)
        out = self._result(x, out, (self._size, *x.shape))
        if kind is None or out is None:
            return NotImplemented
        out[self._rank] = x
        there = (out, x.size, kind)
        code = head("all_gather", 0, code)
        self._run("all_gather", code, x.size, x, self._mpi.Allgather, MPI.IN_PLACE, there)
        return out

    def reduce_scatter(self, x: object, op: object, out: object) -> object:
        if type(op) is not str or not self._takes(x, blocks=True) or out is x:
            return NotImplemented
        kind, code, operator, reduce = self._reduced(op, x.dtype)
        out = self._result(x, out, x.shape[1:])
        if kind is None or out is None:
            return NotImplemented
        n, code = out.size, head("reduce_scatter", reduce, code)
        if isinstance(operator, rank_order.Fold):
            parts = np.empty((self._size, n), x.dtype)
            ends = (x, n, kind), (parts, n, kind)
            self._run("reduce_scatter", code, n, x, operator.after(self._mpi.Alltoall), *ends)
            out[...] = operator.total(parts).reshape(out.shape)
            return out
        ends = (x, n, kind), (out, n, kind)  # mpi4py counts a block
        self._run("reduce_scatter", code, n, x, self._mpi.Reduce_scatter_block, *ends, operator)
        return out

    def all_to_all(self, x: object, out: object) -> object:
        if self._size == 1 or not self._takes(x, blocks=True) or out is x:
            return NotImplemented
        kind, code = self._moved(x.dtype)
        out = self._result(x, out, x.shape)
        if kind is None or out is None:
            return NotImplemented
        n = x.size // self._size
        self._run(
            "all_to_all", head("all_to_all", 0, code), n, x, self._mpi.Alltoall, (x, n, kind), (out, n, kind)
        )
        return out

    def _takes(self, x: object, blocks: bool = False) -> TypeGuard[NDArray[Any]]:
        """Whether x is a plain array; blocks: of one block for each rank."""
        if type(x) is not np.ndarray or not x.flags.c_contiguous or x.nbytes > self._most:
            return False
        return not blocks or (x.ndim > 0 and len(x) == self._size)

    def _is_short(self, verb: str, x: AnyArray, operator: object) -> bool:
        """Whether one call of MPI does it, also where the order of ranks is kept."""
        ordered = isinstance(operator, rank_order.Fold)
        return not ordered or rank_order.is_whole(self._comm, verb, x.nbytes)

    def _has(self, root: object) -> TypeGuard[int]:
        return type(root) is int and 0 <= root < self._size

    def _result(self, x: AnyArray, out: object, shape: tuple[int, ...]) -> AnyArray | None:
        """out if it can receive, or a new array; None: the general path has to look at it."""
        if out is None:
            return np.empty(shape, x.dtype)
        if type(out) is not np.ndarray or out.shape != shape or out.dtype != x.dtype:
            return None
        if not (out.flags.c_contiguous and out.flags.writeable):
            return None
        return out if out is x or not np.may_share_memory(x, out) else None

    def _run(
        self, verb: str, code: int, count: int, x: object, function: Callable[..., object], *arguments: object
    ) -> None:
        agreement = self._comm.agreement
        try:
            enter(self._comm, verb, x, code, None)
            agreement.enter(code, count)
            function(*arguments)
            agreement.leave()
        except MPI.Exception as error:
            raise transport.failure(error, verb, self._comm) from None
        finally:
            leave()


def _moved(dtype: object) -> tuple[object, int]:
    """MPI's type and our code for elements that are moved only; no type: the general path sees to it."""
    try:
        record = dtypes.from_numpy(dtype)
    except HpcommError:
        return None, 0
    return transport.native(record), record.code


def _reduced(comm: Comm, op: str, dtype: object) -> tuple[object, int, object, int]:
    """MPI's type, our code, what reduces and our code for a reduction; no type: as above.

    Where the ranks compare in full, the general path sees to what may wrap around.
    """
    try:
        record = dtypes.from_numpy(dtype)
        reduce = reduction.resolve(op, record)
    except HpcommError:
        return None, 0, None, 0
    if (
        reduce.widen
        or reduce.narrow
        or reduce.finish
        or reduce.function
        or reduce.op.mpi is not None
        or record.mpi is None
        or (comm.compared == "full" and wrapping.can_wrap(record, reduce))
    ):
        return None, 0, None, 0
    in_order = rank_order.applies(comm, reduce, record)
    by = rank_order.Fold(comm, reduce, record) if in_order else reduce.mpi()
    code = record.code | (SCHEDULED >> DTYPE if comm.is_fast else 0)
    return getattr(MPI, reduce.mpi_type), code, by, reduce.code
