"""Direct calls: what collective verbs try first.

A direct call takes plain arrays and does the whole job, or returns NotImplemented before any other rank could
know of it. Then the general path prepares the arrays, says what is wrong with them, or takes another way.
What is tried has the methods of the native core's Node, and is one of three:

    core.Node   all ranks are on one node                               (node/_native)
    ByLibrary   they are not, or there is no core: numpy's contiguous arrays, by one call of MPI;
                BetweenGroups: they are two groups
    NO_DIRECT   none of these, it is closed, or observers look on: the general path takes every call

Calls in the background try OnNode, which is the core, InBackground, which is ByLibrary with MPI's nonblocking
functions, or NO_DIRECT. What the core does not take as it is, by_copies() gives it in another form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard

from ..._lazy import MPI, NDArray, np
from ...core import result_memory
from ...core.comm import Comm
from ...core.limits import BACKGROUND_COPIED
from ...core.operation import Arguments
from ...core.signature import BACKGROUND, DTYPE, SCHEDULED, head
from ...core.types import AnyArray
from ...core.verbs import TABLE, Verb
from ...errors import HpcommError
from ...node.present import enter, leave
from ...transport.late import (
    buffer,
    dtypes,
    host_calls,
    ordered_blocks,
    rank_order,
    reduction,
    single_request,
    transport,
    wrapping,
)

if TYPE_CHECKING:
    from ...core.dtypes import Dtype

_LARGEST = 2**31 - 1  # elements of one call of MPI, and so bytes that are no more
_IN_PLACE = ("broadcast", "all_reduce")
_NUMBERS = {verb: head(verb) for verb in TABLE}
_BOUNDED = ("sum", "min", "max", None)  # what makes ints of 64 bits of ints up to this
_SURE = 2**31


class NoDirect:
    """Every call takes the general path."""

    def _leave(self, *arguments: Any) -> object:
        return NotImplemented

    barrier = broadcast = reduce = all_reduce = gather = all_gather = scatter = _leave
    reduce_scatter = all_to_all = scan = exscan = share = _leave


NO_DIRECT = NoDirect()


class ByLibrary(NoDirect):
    """Collectives of one call of MPI each, on contiguous arrays of numpy.

    Every check that the general path makes on such arrays is made here, at a fifth of its cost. Ranks that
    take that path meet these: both make the same call of MPI.
    """

    is_later = False  # in the background

    def __init__(self, comm: Comm) -> None:
        self._comm, self._size, self._rank = comm, comm.size, comm.rank
        self._most = _LARGEST if comm.devices is None else comm.devices.eager  # bytes
        self._known = cache(partial(_known, comm))  # by operator, or None, and dtype
        self._is_short = lru_cache(partial(_is_short, comm, not self.is_later))  # by verb, and bytes of x

    def barrier(self) -> object:
        return self._carry("barrier", None, (head("barrier"), 0), self._function("barrier"), lambda: None)

    def broadcast(self, x: object, root: object, out: object) -> object:
        return self._call("broadcast", x, out, None, root)

    def all_reduce(self, x: object, op: object, out: object) -> object:
        return self._call("all_reduce", x, out, op)

    def reduce(self, x: object, op: object, root: object, out: object) -> object:
        return self._call("reduce", x, out, op, root)

    def gather(self, x: object, root: object, out: object) -> object:
        return self._call("gather", x, out, None, root)

    def all_gather(self, x: object, out: object) -> object:
        return self._call("all_gather", x, out)

    def scatter(self, x: object, root: object, out: object) -> object:
        return self._call("scatter", x, out, None, root)

    def reduce_scatter(self, x: object, op: object, out: object) -> object:
        return self._call("reduce_scatter", x, out, op)

    def scan(self, x: object, op: object, out: object) -> object:
        return self._call("scan", x, out, op)

    def all_to_all(self, x: object, out: object) -> object:
        return NotImplemented if self._size == 1 else self._call("all_to_all", x, out)

    def _call(self, verb: str, x: object, out: object, op: object = None, root: Any = 0) -> object:
        row = TABLE[verb]
        if not self._takes(x, out, op, root, row):
            return NotImplemented
        gets, known = row.root != "receives" or root == self._rank, self._known(op, x.dtype)
        result = self._result(verb, row, x, out) if gets else None
        if known is None or result is NotImplemented:
            return NotImplemented
        kind, code, operator, reduce, fold = known
        n = x.size // self._size if row.x_blocks else x.size
        named = head(verb, reduce, code, root), n
        moves, there = verb, result
        if fold is not None:  # what all ranks have brought comes here, and is reduced at the end
            if not self._is_short(verb, x.nbytes):
                return self._by_parts((verb, root, fold), x, named, result)
            moves, there = rank_order.MOVES[verb], np.empty((self._size, n), x.dtype) if gets else None
        given = self._given(moves, x, there, (n, kind), root)
        if verb == "all_gather" and rank_order.is_gathered_by_nodes(self._comm, x.nbytes):
            return self._by_parts((verb, 0, rank_order.Unchanged(self._comm)), x, named, result)
        taken = None if there is None else (there, n, kind)
        function = partial(self._function(moves), *transport.arguments(moves, given, taken, operator, root))
        finish = partial(_finished, function, result, fold, there, self._rank if verb == "scan" else None)
        step = function if fold is None or fold.nodes.groups else partial(fold.then, function)
        return self._carry(verb, x, named, step, finish)

    def _by_parts(
        self, which: tuple[str, int, Any], x: AnyArray, made: tuple[int, int], result: AnyArray | None
    ) -> object:
        """A long reduction in the order of ranks, or all_gather.

        which: verb, root and fold; made: as _carry has it.
        """
        flat = x.reshape(-1), None if result is None else result.reshape(-1)
        step = partial(ordered_blocks.by_parts, self._comm, *which, *flat)
        return self._carry(which[0], x, made, step, lambda: result)

    def _takes(self, x: object, out: object, op: object, root: object, row: Verb) -> TypeGuard[NDArray[Any]]:
        """Whether all are plain, and x an array with a block for each rank where it has to have one.

        Where there is an out, the blocks may also lie one after the other along the first axis.
        """
        if type(x) is not np.ndarray or not x.flags.c_contiguous or x.nbytes > self._most:
            return False
        if type(root) is not int or not 0 <= root < self._size or (row.reduces and type(op) is not str):
            return False
        if not row.x_blocks:
            return True
        return x.ndim > 0 and (len(x) == self._size or (out is not None and len(x) % self._size == 0))

    def _result(self, verb: str, row: Verb, x: AnyArray, out: object) -> Any:
        """out if it can receive, or a new array; NotImplemented: the general path has to look at it."""
        if out is x:
            return x if verb in _IN_PLACE and x.flags.writeable else NotImplemented
        shape = joined = x.shape
        if row.x_blocks and not row.result_blocks:
            shape = shape[1:] if shape[0] == self._size else (shape[0] // self._size, *shape[1:])
            joined = 1, *shape
        elif row.result_blocks and not row.x_blocks:
            joined = self._size * (shape[0] if shape else 1), *shape[1:]
            shape = self._size, *shape
        if out is None:
            return result_memory.empty(shape, x.dtype)
        if type(out) is not np.ndarray or out.dtype != x.dtype or out.shape not in (shape, joined):
            return NotImplemented
        return out if out.flags.carray and not np.may_share_memory(x, out) else NotImplemented

    def _given(self, moves: str, x: AnyArray, out: Any, size: tuple[int, object], root: int) -> object:
        """What MPI sends of x, which is copied to where it is to lie. out: None where nothing is received.

        All ranks work in place, or none: see transport.mpi._be_alike.
        """
        if moves == "scatter":
            return (x, *size) if root == self._rank else None
        if moves == "all_gather":
            out.reshape(self._size, -1)[self._rank] = x.reshape(-1)
            return MPI.IN_PLACE
        if moves == "all_reduce" and self.is_later and x.nbytes > BACKGROUND_COPIED:
            return (x.copy() if out is x else x, *size)
        if moves == "all_reduce" or (moves == "broadcast" and root == self._rank):
            if out is not x:
                np.copyto(out, x)
            return MPI.IN_PLACE
        return (x, *size)

    def _function(self, verb: str) -> Callable[..., Any]:
        return getattr(self._comm.mpi_handle, TABLE[verb].mpi)  # type: ignore[no-any-return]

    def _carry(
        self, verb: str, x: object, made: tuple[int, int], step: Callable[[], Any], finish: Callable[[], Any]
    ) -> object:
        """made: head and count of the call, of which its signature is made."""
        agreement = self._comm.agreement
        try:
            enter(self._comm, verb, x, made[0], None)
            agreement.enter(*made)
            step()
            agreement.leave()
            found = finish()
        except MPI.Exception as error:
            raise transport.failure(error, verb, self._comm) from None
        finally:
            leave()
        if self._comm.values is not None:
            self._comm.values.hold(verb, found, 5)
        return found


class BetweenGroups(ByLibrary):
    """Of two groups: reductions for all ranks, and barriers."""

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._size = comm.remote_size  # which bring something

    def _call(self, verb: str, x: object, out: object, op: object = None, root: Any = 0) -> object:
        return super()._call(verb, x, out, op) if verb == "all_reduce" and out is not x else NotImplemented

    def _given(self, moves: str, x: AnyArray, out: Any, size: tuple[int, object], root: int) -> object:
        return (x, *size)  # MPI has no calls in place there

    def _by_parts(self, *call: object) -> object:
        return NotImplemented  # too long for the order of ranks, which the general path says


class InBackground(ByLibrary):
    """The same in the background: each returns a Request."""

    is_later = True

    def _function(self, verb: str) -> Callable[..., Any]:
        return getattr(self._comm.mpi_handle, f"I{TABLE[verb].mpi.lower()}")  # type: ignore[no-any-return]

    def _by_parts(self, *call: object) -> object:
        return NotImplemented  # it is not one request of MPI's

    def _carry(
        self, verb: str, x: object, made: tuple[int, int], step: Callable[[], Any], finish: Callable[[], Any]
    ) -> object:
        comm, code = self._comm, made[0] | BACKGROUND
        try:
            enter(comm, verb, x, code, None)
            with comm.call_guard:
                left = comm.agreement.late(code, made[1])
                if comm.values is not None:
                    finish = comm.values.later(verb, finish)
                going = step()
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm) from None
        finally:
            leave()
        return single_request.Collective(comm, verb, x, going, left, finish)


class OnNode(NoDirect):
    """Collectives in the background by the native core: each returns a Request."""

    def __init__(self, comm: Comm) -> None:
        self._comm, self._begin = comm, comm.node.begin

    def barrier(self) -> object:
        return self._began("barrier", None)

    def broadcast(self, x: object, root: object, out: object) -> object:
        return self._began("broadcast", x, None, root, out)

    def all_reduce(self, x: object, op: object, out: object) -> object:
        return self._began("all_reduce", x, op, None, out)

    def reduce(self, x: object, op: object, root: object, out: object) -> object:
        return self._began("reduce", x, op, root, out)

    def gather(self, x: object, root: object, out: object) -> object:
        return self._began("gather", x, None, root, out)

    def all_gather(self, x: object, out: object) -> object:
        return self._began("all_gather", x, None, None, out)

    def scatter(self, x: object, root: object, out: object) -> object:
        return self._began("scatter", x, None, root, out)

    def reduce_scatter(self, x: object, op: object, out: object) -> object:
        return self._began("reduce_scatter", x, op, None, out)

    def all_to_all(self, x: object, out: object) -> object:
        return self._began("all_to_all", x, None, None, out)

    def scan(self, x: object, op: object, out: object) -> object:
        return self._began("scan", x, op, None, out)

    def exscan(self, x: object, op: object, out: object) -> object:
        return self._began("exscan", x, op, None, out)

    def _began(
        self, verb: str, x: object, op: object = None, root: object = None, out: object = None
    ) -> object:
        going = self._begin(_NUMBERS[verb], x, op, root, out, None)
        if going is NotImplemented:
            return going
        return single_request.OfNode(self._comm, verb, x, going)


def by_copies(comm: Comm, given: Arguments) -> object:
    """A blocking call of the core on an array of a number, or on the bytes of elements that the core does not
    know, such as records. NotImplemented: the general path has to look.
    """
    verb, x, out, op, root, _ = given
    node, row = comm.node, TABLE[verb]
    if node is None or comm.direct is not node or (row.reduces and type(op) is not str):
        return NotImplemented
    how = (*((op,) if row.reduces else ()), *((root,) if row.root else ()))
    if out is None and _is_number(x, op):
        made = getattr(node, verb)(np.array(x), *how, None)
        return made.item() if type(made) is np.ndarray and not made.ndim else made
    dtype = _dtype_of_both(x, out)
    if dtype is None or host_calls.core_knows(dtype):
        return NotImplemented
    return _by_bytes(comm, verb, how, dtype, x, out)


def _is_number(x: Any, op: object) -> bool:
    """Whether x is a number that stays one of 64 bits."""
    return type(x) is float or (type(x) is int and abs(x) <= _SURE and op in _BOUNDED)


def _by_bytes(comm: Comm, verb: str, how: tuple[Any, ...], dtype: Dtype, x: Any, out: Any) -> object:
    row, like = TABLE[verb], out if x is None else x
    if (
        row.reduces
        or 0 in (like.ndim, 1 if out is None else out.ndim)
        or any(type(root) is not int for root in how)
    ):
        return NotImplemented
    count = like.size // comm.size if row.x_blocks and x is not None else like.size
    try:
        enter(
            comm, verb, like, head(verb, root=how[0] if how else 0), None
        )  # or errors would speak of the bytes
        word = host_calls.core_word(dtype, count + dtype.checksum)
        return _of_bytes(getattr(comm.node, verb), how, word, x, out)
    finally:
        leave()


def _of_bytes(function: Callable[..., Any], how: tuple[Any, ...], elements: int, x: Any, out: Any) -> object:
    """The call on the bytes of both, packed. elements: what the core is told, see host_calls.core_word."""
    packed = None if x is None else host_calls.aligned(x, filled=True).view("u1")
    into = packed if out is x else None if out is None else host_calls.aligned(out, filled=False).view("u1")
    made = function(packed, *how, into, elements)
    if type(made) is not np.ndarray:
        return made
    if out is None:
        return made.view(x.dtype)
    if not np.may_share_memory(made, out):
        out[...] = made.view(out.dtype)
    return out


def _dtype_of_both(x: Any, out: Any) -> Dtype | None:
    """The record of arrays of which copies may be made; None: the general path has to look at them."""
    like = out if x is None else x
    if type(like) is not np.ndarray or not (out is None or _may_land(x, out)):
        return None
    try:
        return dtypes.from_numpy(like.dtype)
    except HpcommError:
        return None


def _may_land(x: AnyArray | None, out: Any) -> bool:
    """Whether a result can be copied into out; what is wrong with it, the general path says."""
    if type(out) is not np.ndarray:
        return False
    if x is not None and x is not out and (x.dtype != out.dtype or np.may_share_memory(x, out)):
        return False
    return buffer.as_buffer(out).frozen is None


def _finished(
    function: object, result: AnyArray | None, fold: Any, brought: AnyArray | None, last: int | None
) -> object:
    """The result, which may have to be reduced first. Until then function keeps the memory that MPI uses.

    last: the last rank that counts. None: all do.
    """
    if fold is not None and result is not None and brought is not None:
        made = fold.total(brought) if last is None else fold.prefixes(brought[: last + 1])[-1]
        result[...] = made.reshape(result.shape)
    return result


def _is_short(comm: Comm, waits: bool, verb: str, nbytes: int) -> bool:
    """Whether one call of MPI does it, though the order of ranks is kept."""
    return not rank_order.is_too_long(comm, nbytes, waits) and rank_order.is_whole(comm, verb, nbytes, waits)


def _known(comm: Comm, op: str | None, dtype: np.dtype[Any]) -> tuple[Any, int, Any, int, Any] | None:
    """MPI's type, our code; MPI's operator, our code, or the fold in the order of ranks that replaces it.

    None: the general path sees to it. Where ranks compare in full, it does to what may wrap around, too.
    """
    try:
        record = dtypes.from_numpy(dtype)
        if op is None:
            kind = transport.native(record)
            return None if kind is None else (kind, record.code, None, 0, None)
        reduce = reduction.resolve(op, record)
    except HpcommError:
        return None
    beside = reduce.widen, reduce.narrow, reduce.finish, reduce.function  # what MPI's operator does not do
    can_wrap = comm.compared == "full" and wrapping.can_wrap(record, reduce)
    if any(beside) or record.mpi is None or can_wrap:
        return None
    code = record.code | (SCHEDULED >> DTYPE if comm.is_fast else 0)
    if rank_order.applies(comm, reduce, record):
        return transport.native(record), code, None, reduce.code, rank_order.Fold(comm, reduce, record)
    return getattr(MPI, reduce.mpi_type), code, reduce.mpi(), reduce.code, None
