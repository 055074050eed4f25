"""The collective verbs. Each call goes down once: lane if there is one, else look, check, agree, transport.

Throughout, p is the number of ranks (on an inter-communicator: of the other group), x and out are
arrays as in `as_buffer`, and x is left alone unless it is also out. `async_op=True` returns a Request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .errors import DtypeError, HpcommError, LayoutError, RankError, UsageError
from .signature import BACKGROUND, head

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from . import buffer, dtypes, reduction
    from .buffer import Buffer, Shape
    from .communicator import Communicator
    from .reduction import Reduction
    from .transport import mpi as transport
    from .transport.mpi import Call
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.buffer")
    dtypes = LazyModule("hpcomm.dtypes")
    reduction = LazyModule("hpcomm.reduction")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "exscan",
    "gather",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
]


def broadcast(
    comm: Communicator,
    x: Any = None,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    src: int | None = None,
) -> Any:
    """Give every rank the array of root.

    On root x is the data. On the other ranks x tells shape and dtype and is left alone, or is None
    where out= is given. Same as MPI_Bcast, torch.distributed.broadcast (there in place: out=x).

    Args:
        x: array, same shape and dtype on every rank.
        root: rank whose x goes out; src is torch's word for it.
        out: array that receives; out=x is in place.

    Returns:
        out, or a new array.

    Raises:
        RankError: no such root. LayoutError, DtypeError: x or out does not fit.

    Example (4 ranks):
        >>> comm.broadcast(np.full(2, comm.rank), root=3)
        array([3, 3])
    """
    if not async_op and x is out:
        done = comm._lanes["broadcast"][type(x)][getattr(x, "dtype", None)](x, root if src is None else src)
        if done is not NotImplemented:
            return done
    return perform(comm, "broadcast", x, out, None, root if src is None else src, async_op)


def reduce(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    dst: int | None = None,
) -> Any:
    """Fold the arrays of all ranks element by element; root gets the result.

    Same as MPI_Reduce, torch.distributed.reduce.

    Args:
        x: array, same shape and dtype on every rank.
        op: see all_reduce.
        root: rank that receives; dst is torch's word for it.
        out: on root, array that receives; ignored elsewhere.

    Returns:
        On root out, or a new array; None elsewhere.

    Raises:
        As all_reduce; RankError: no such root.

    Example (4 ranks):
        >>> comm.reduce(np.ones(2))
        array([4., 4.])
    """
    return perform(comm, "reduce", x, out, op, root if dst is None else dst, async_op)


def all_reduce(
    comm: Communicator, x: Any, op: Any = "sum", *, out: Any = None, async_op: bool = False
) -> Any:
    """Fold the arrays of all ranks element by element; every rank gets the result.

    Same as MPI_Allreduce, torch.distributed.all_reduce (there in place: out=x).

    Args:
        x: array, same shape and dtype on every rank.
        op: "sum", "avg" (floating or complex), "prod", "min", "max" (not complex), "band", "bor", "bxor"
            (bool and integers), "land", "lor", premul_sum(factor), a torch ReduceOp, an MPI.Op, or a
            function f(a, b) -> c of two arrays of x's kind, folded in rank order, which need not commute.
            float16 and bfloat16 are folded in float32 and rounded once. On bool, sum and max are "or",
            prod and min are "and".
        out: array that receives, of x's shape and dtype; out=x is in place.

    Returns:
        out, or a new array.

    Raises:
        DtypeError: op has no right result on this dtype.
        LayoutError: x and out overlap without being the same, or out does not fit.

    Cost: the MPI library's; a function as op costs an all_gather and memory for p arrays.

    Example (4 ranks):
        >>> comm.all_reduce(np.ones(2))
        array([4., 4.])
    """
    if not async_op:
        try:
            lane = comm._folds[op][type(x)][x.dtype]
        except (AttributeError, TypeError):  # no array with a dtype, or an op that cannot be hashed
            pass
        else:
            done = lane(x, out)
            if done is not NotImplemented:
                return done
    return perform(comm, "all_reduce", x, out, op, 0, async_op)


def gather(
    comm: Communicator,
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    dst: int | None = None,
) -> Any:
    """Collect the arrays of all ranks on root.

    Same as MPI_Gather, torch.distributed.gather.

    Args:
        x: array, same shape and dtype on every rank (gather_ragged takes any).
        root: rank that receives; dst is torch's word for it.
        out: on root, array of shape (p, *x.shape), or the same blocks
            one after the other along the first axis.

    Returns:
        On root an array of shape (p, *x.shape), block r from rank r; None elsewhere.

    Example (4 ranks):
        >>> comm.gather(np.array([comm.rank]))
        array([[0], [1], [2], [3]])
    """
    return perform(comm, "gather", x, out, None, root if dst is None else dst, async_op)


def all_gather(comm: Communicator, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
    """Collect the arrays of all ranks on every rank.

    Same as MPI_Allgather, torch.distributed.all_gather_into_tensor.

    Args:
        x: array, same shape and dtype on every rank (all_gather_ragged takes any). It may
            be out[rank] itself.
        out: array of shape (p, *x.shape), or (p * x.shape[0], ...): the blocks one after the other.

    Returns:
        out, or a new array of shape (p, *x.shape), block r from rank r.

    Example (4 ranks):
        >>> comm.all_gather(np.array([comm.rank]))
        array([[0], [1], [2], [3]])
    """
    return perform(comm, "all_gather", x, out, None, 0, async_op)


def scatter(
    comm: Communicator,
    x: Any = None,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    src: int | None = None,
) -> Any:
    """Give each rank its own block of root's array.

    On root x has shape (p, *block). On the other ranks x tells shape and dtype and is left alone, or
    is None where out= is given. Same as MPI_Scatter, torch.distributed.scatter.

    Args:
        x: array of shape (p, *block).
        root: rank whose x goes out; src is torch's word for it.
        out: array that receives, of shape block.

    Returns:
        out, or a new array of shape block.

    Example (4 ranks):
        >>> comm.scatter(np.arange(8).reshape(4, 2))  # on rank 3
        array([6, 7])
    """
    return perform(comm, "scatter", x, out, None, root if src is None else src, async_op)


def reduce_scatter(
    comm: Communicator, x: Any, op: Any = "sum", *, out: Any = None, async_op: bool = False
) -> Any:
    """Fold x over the ranks and leave each rank its own block of the result.

    Same as MPI_Reduce_scatter_block, torch.distributed.reduce_scatter_tensor.

    Args:
        x: array of shape (p, *block), same on every rank; with out= also (p * n, ...) where out is (n, ...).
        op: see all_reduce.
        out: array that receives.

    Returns:
        out, or a new array of shape block.

    Raises:
        LayoutError: the first axis of x is not the number of ranks.

    Example (4 ranks):
        >>> comm.reduce_scatter(np.ones((4, 2)))
        array([4., 4.])
    """
    return perform(comm, "reduce_scatter", x, out, op, 0, async_op)


def all_to_all(comm: Communicator, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
    """Send block j of x to rank j, and receive block i from rank i.

    Same as MPI_Alltoall, torch.distributed.all_to_all_single.

    Args:
        x: array of shape (p, *block); with out= any shape whose first axis p divides.
        out: array of x's shape; out=x is in place.

    Returns:
        out, or a new array of x's shape.

    Example (2 ranks):
        >>> comm.all_to_all(np.array([10, 20]) + comm.rank)  # on rank 1
        array([20, 21])
    """
    return perform(comm, "all_to_all", x, out, None, 0, async_op)


def scan(comm: Communicator, x: Any, op: Any = "sum", *, out: Any = None, async_op: bool = False) -> Any:
    """Fold the arrays of the ranks up to and with this one (inclusive prefix).

    Same as MPI_Scan. Args and errors as all_reduce, but op "avg" is refused.

    Example (4 ranks):
        >>> comm.scan(np.ones(1))  # on rank 2
        array([3.])
    """
    return perform(comm, "scan", x, out, op, 0, async_op)


def exscan(comm: Communicator, x: Any, op: Any = "sum", *, out: Any = None, async_op: bool = False) -> Any:
    """Fold the arrays of the ranks below this one (exclusive prefix).

    Same as MPI_Exscan, but rank 0 gets what op does not notice: 0 for sum, 1 for prod, the largest
    value for min and so on. Where op is a function or an MPI.Op, rank 0 gets None and out is left alone.

    Example (4 ranks):
        >>> comm.exscan(np.ones(1))  # on rank 2
        array([2.])
    """
    return perform(comm, "exscan", x, out, op, 0, async_op)


def barrier(comm: Communicator, *, async_op: bool = False) -> Any:
    """Wait until every rank has come here. Same as MPI_Barrier, torch.distributed.barrier."""
    if not async_op and comm._lanes["barrier"][None][None]() is not NotImplemented:
        return None
    comm._check_open("barrier")
    return carry_out(transport.Call(comm, "barrier", code=head("barrier")), async_op)


_ROOT_SENDS = ("broadcast", "scatter")
_ROOT_RECEIVES = ("reduce", "gather")
_REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter", "scan", "exscan")
_MOVES_FOR_FOLD = {
    "reduce": "gather",
    "all_reduce": "all_gather",
    "scan": "all_gather",
    "exscan": "all_gather",
    "reduce_scatter": "all_to_all",
}
_HALVES_BY_BLOCKS = 16 * 1024  # bytes from which half types travel as halves: see _fold_blocks


def perform(comm: Communicator, verb: str, x: Any, out: Any, op: Any, root: int, async_op: bool) -> Any:
    """The careful way of every collective but barrier: look, check, agree, carry out."""
    try:
        comm._check_open(verb)
        call = compose(comm, verb, x, out, op, root, blocking=not async_op)
    except HpcommError as error:
        raise error.located(verb, comm) from None
    return carry_out(call, async_op)


def carry_out(call: Call, async_op: bool) -> Any:
    """Agree with the other ranks about call, show it to the observers, and hand it to the transport."""
    comm = call.comm
    for observer in comm._observers:
        observer.before(call)
    if not call.code:  # a message: only its two ranks know of it
        result = transport.start(call) if async_op else transport.run(call)
        for observer in comm._observers:
            observer.after(call)
        return result
    if async_op:
        leave = comm._agreement.late(call.code | BACKGROUND, call.count)
        finish = call.finish

        def finish_and_leave(status: Any) -> Any:
            leave()
            result = finish(status)
            for observer in comm._observers:
                observer.after(call)
            return result

        call.finish = finish_and_leave
        request = transport.start(call)
        request.needs_all(comm)
        return request
    comm._agreement.enter(call.code, call.count)
    result = transport.run(call)
    comm._agreement.leave()
    for observer in comm._observers:
        observer.after(call)
    return result


def compose(comm: Communicator, verb: str, x: Any, out: Any, op: Any, root: int, blocking: bool) -> Call:
    """Look at the arrays, check all that one rank can check, and say what is to be done as a Call."""
    sends, receives = _roles(comm, verb, root)
    send = _look(x, "x") if x is not None and x is not out else None
    recv = _look(out, "out") if out is not None and receives else None
    if x is not None and x is out:
        send = recv or _look(x, "x")
    template = send or recv
    if template is None or (sends and send is None):
        raise UsageError(f"{verb} needs x here", hint=_needs_x(verb, sends))
    dtype = template.dtype
    shape, block = _geometry(comm, verb, send, recv)
    if receives:
        if recv is None:
            assert send is not None
            recv = send.make(shape)
        else:
            _check_out(verb, send, recv, shape)
    else:
        recv = None
    call = transport.Call(comm, verb, root=root, look=template)
    fold: Reduction | None = None
    if verb in _REDUCTIONS:
        fold = reduction.resolve(op, dtype)
        if verb in ("scan", "exscan") and comm.is_inter:
            raise UsageError(
                f"{verb} has no meaning between two groups", hint="comm.merge() makes one group of them"
            )
        if verb in ("scan", "exscan") and fold.op.name == "avg":
            raise UsageError(
                f"{verb} has no average", hint="op='sum', then divide by the number of ranks folded"
            )
    call.code = head(verb, fold.code if fold else 0, dtype.code, root)
    call.count = block
    if not sends and verb in _ROOT_SENDS:
        send = None
    if fold is None:
        return _move(call, send, recv, block)
    assert send is not None
    if fold.fold is not None:
        return _fold_here(call, send, recv, block, fold)
    if blocking and dtype.kind == "h" and verb == "all_reduce" and _worth_blocks(comm, send, fold):
        assert recv is not None
        return _fold_blocks(call, send, recv, fold)
    return _fold_there(call, send, recv, block, fold)


def _roles(comm: Communicator, verb: str, root: int) -> tuple[bool, bool]:
    """Whether this rank gives an array, and whether it receives one."""
    rooted = verb in _ROOT_SENDS or verb in _ROOT_RECEIVES
    if not rooted:
        return True, True
    if comm.is_inter:
        return _inter_roles(comm, verb, root)
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)) or not 0 <= root < comm.size:
        raise RankError(
            f"root {root!r} is no rank of '{comm.name}'", hint=f"a rank from 0 to {comm.size - 1}"
        )
    is_root = comm.rank == root
    return (is_root, True) if verb in _ROOT_SENDS else (True, is_root)


def _inter_roles(comm: Communicator, verb: str, root: int) -> tuple[bool, bool]:
    if root in (MPI.ROOT, MPI.PROC_NULL):
        here = root == MPI.ROOT
        return (here, False) if verb in _ROOT_SENDS else (False, here)
    if not 0 <= root < comm.remote_size:
        raise RankError(
            f"root {root!r} is no rank of the other group of '{comm.name}'",
            hint=f"0 to {comm.remote_size - 1} in the group away from the root; hpcomm.ROOT at the root, "
            "hpcomm.PROC_NULL beside it",
        )
    return (False, True) if verb in _ROOT_SENDS else (True, False)


def _look(x: Any, name: str) -> Buffer:
    try:
        return buffer.as_buffer(x)
    except HpcommError as error:
        if name != "x":
            error.what = (
                error.what.replace("x ", f"{name} ", 1)
                if error.what.startswith("x ")
                else f"{name}: {error.what}"
            )
        raise


def _needs_x(verb: str, sends: bool) -> str:
    if sends or verb not in _ROOT_SENDS:
        return "give the array that this rank contributes"
    return f"give out=, or x with the shape and dtype that root has, or use {verb}_ragged, which carries both"


def _geometry(comm: Communicator, verb: str, send: Buffer | None, recv: Buffer | None) -> tuple[Shape, int]:
    """Shape of the result, and elements per rank (the same on all ranks)."""
    p = comm.remote_size if comm.is_inter else comm.size
    if verb in ("gather", "all_gather"):
        if send is None:  # root of an inter-communicator: only out tells
            assert recv is not None
            return recv.shape, recv.array.size // max(p, 1)
        return (p, *send.shape), send.array.size
    if verb in ("scatter", "reduce_scatter", "all_to_all") and send is not None:
        ranks = comm.size if verb == "reduce_scatter" else p
        return _blocks(verb, send, recv, ranks)
    look = send or recv
    assert look is not None
    return look.shape, look.array.size


def _blocks(verb: str, send: Buffer, recv: Buffer | None, p: int) -> tuple[Shape, int]:
    shape = send.shape
    if shape and shape[0] == p:
        return (shape if verb == "all_to_all" else shape[1:]), send.array.size // p
    if recv is not None and shape and shape[0] % p == 0:  # out says that the blocks lie one after the other
        rows = (shape[0] // p, *shape[1:])
        return (shape if verb == "all_to_all" else rows), send.array.size // p
    raise LayoutError(
        f"the first axis of x must be the number of ranks, {p}; x has shape {shape}",
        hint=f"x.reshape({p}, ...), or {verb}_ragged where blocks differ"
        if verb != "reduce_scatter"
        else f"x.reshape({p}, ...)",
    )


def _check_out(verb: str, send: Buffer | None, recv: Buffer, shape: Shape) -> None:
    if recv.frozen:
        raise LayoutError(f"out {recv.frozen}", hint="give an array that can be written, or leave out= away")
    if send is None:
        return
    if recv.dtype != send.dtype:
        raise DtypeError(f"out is {recv.dtype}, x is {send.dtype}", hint=f"give out the dtype {send.dtype}")
    if recv.shape != shape and recv.shape != _joined(verb, shape):
        raise LayoutError(
            f"out has shape {recv.shape}, the result has shape {shape}", hint=f"give out the shape {shape}"
        )


def _joined(verb: str, shape: Shape) -> Shape:
    """The shape of stacked blocks when they lie one after the other along the first axis."""
    if verb in ("gather", "all_gather"):
        return (math.prod(shape[:2]), *shape[2:])
    if verb in ("scatter", "reduce_scatter"):
        return (1, *shape)
    return shape


def _refuse_overlap(send: Buffer | None, recv: Buffer | None) -> None:
    if send is not None and recv is not None and buffer.overlap(send.array, recv.array):
        raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")


def _packed(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array)


def _filler(memory: NDArray[Any], array: NDArray[Any]) -> Any:
    return lambda: np.copyto(memory, array.reshape(memory.shape))


def _landing(recv: Buffer) -> NDArray[Any]:
    """Where MPI writes: out itself if its elements lie in order, else memory to unpack from."""
    return recv.array if recv.array.flags.c_contiguous else np.empty(recv.shape, recv.array.dtype)


def _move(call: Call, send: Buffer | None, recv: Buffer | None, block: int) -> Call:
    """Verbs that carry elements unchanged."""
    comm, verb = call.comm, call.verb
    landing = _landing(recv) if recv is not None else None
    if verb == "broadcast":
        if send is not None and recv is not None:
            if send is not recv and not buffer.same_memory(send.array, recv.array):
                _refuse_overlap(send, recv)
            if landing is not None and not buffer.same_memory(landing, send.array):
                call.fill = _filler(landing, send.array)
        elif send is not None:  # root of an inter-communicator
            landing = np.empty(send.shape, send.array.dtype)
            call.fill = _filler(landing, send.array)
        if call.fill is not None:
            call.fill()
        dtype = (send or recv).dtype  # type: ignore[union-attr]
        call.recv = transport.spec(landing, block, dtype) if landing is not None else None
        call.finish = _deliver(recv, landing)
        return call
    if send is not None:
        packed = _packed(send.array)
        if not np.may_share_memory(packed, send.array):
            call.fill = _filler(packed, send.array)
        call.send = transport.spec(packed, block, send.dtype)
    if recv is not None:
        assert landing is not None
        call.recv = transport.spec(landing, block, recv.dtype)
    if send is not None and recv is not None and buffer.overlap(send.array, recv.array):
        if verb == "all_to_all" and buffer.same_memory(send.array, recv.array):
            copy = send.array.copy()
            call.fill = _filler(copy, send.array)
            call.send = transport.spec(copy, block, send.dtype)
        elif (
            verb in ("gather", "all_gather")
            and landing is recv.array
            and _is_block(recv, send, comm.rank, comm.size)
        ):
            call.send = MPI.IN_PLACE
        elif (
            verb == "scatter"
            and send.array.flags.c_contiguous
            and _is_block(send, recv, comm.rank, comm.size)
        ):
            call.recv = MPI.IN_PLACE
        else:
            _refuse_overlap(send, recv)
    call.finish = _deliver(recv, landing)
    return call


def _is_block(whole: Buffer, part: Buffer, rank: int, p: int) -> bool:
    """Whether part is whole[rank] itself, as when each rank's shard lives inside the gathered array."""
    return (
        buffer.same_memory(whole.array.reshape(p, -1)[rank], part.array.reshape(-1))
        and part.array.flags.c_contiguous
    )


def _deliver(recv: Buffer | None, landing: NDArray[Any] | None) -> Any:
    if recv is None:
        return lambda status: None
    if landing is recv.array:
        return lambda status: recv.give()

    def finish(status: Any) -> Any:
        recv.array[...] = landing
        return recv.give()

    return finish


def _fold_there(call: Call, send: Buffer, recv: Buffer | None, block: int, fold: Reduction) -> Call:
    """Reductions that the MPI library folds."""
    comm, verb = call.comm, call.verb
    in_place = recv is not None and (send is recv or buffer.same_memory(send.array, recv.array))
    if not in_place:
        _refuse_overlap(send, recv)
    call.op = fold.mpi()
    kind = getattr(MPI, fold.mpi_type)
    landing: NDArray[Any] | None = None
    travelling = fold.up(send.array) if fold.up is not None else _packed(send.array)
    if fold.up is not None:
        up = fold.up
        call.fill = lambda: np.copyto(travelling, up(send.array))
    elif not np.may_share_memory(travelling, send.array):
        call.fill = _filler(travelling, send.array)
    if recv is not None:
        plain = fold.up is None and recv.array.flags.c_contiguous and (recv.array.size > 0 or send is recv)
        landing = recv.array if plain else np.empty(recv.shape, travelling.dtype)
        call.recv = (landing, block, kind)
    if (
        in_place
        and fold.up is None
        and recv is not None
        and landing is recv.array
        and send.array.flags.c_contiguous
    ):
        call.send = MPI.IN_PLACE
    else:
        call.send = (travelling, block, kind)
    ranks = comm.remote_size if comm.is_inter else comm.size
    first = verb == "exscan" and comm.rank == 0

    def finish(status: Any) -> Any:
        if recv is None or landing is None:
            return None
        if first:
            return _first_of_exscan(recv, fold)
        if landing is not recv.array:
            recv.array[...] = (fold.down(landing, ranks) if fold.down is not None else landing).reshape(
                recv.shape
            )
        if fold.finish is not None:
            fold.finish(recv.array, ranks)
        return recv.give()

    call.finish = finish
    return call


def _first_of_exscan(recv: Buffer, fold: Reduction) -> Any:
    value = reduction.identity(fold.op, recv.dtype)
    if value is None:
        return None
    recv.array[...] = value
    return recv.give()


def _fold_here(call: Call, send: Buffer, recv: Buffer | None, block: int, fold: Reduction) -> Call:
    """Reductions by a function of the user's: gather the contributions, fold them in rank order."""
    comm, verb = call.comm, call.verb
    if recv is not None and send is not recv and not buffer.same_memory(send.array, recv.array):
        _refuse_overlap(send, recv)
    p = comm.remote_size if comm.is_inter else comm.size
    packed = _packed(send.array)
    if recv is not None and np.may_share_memory(packed, recv.array):
        packed = packed.copy()
    call.moves = _MOVES_FOR_FOLD[verb]
    if not np.may_share_memory(packed, send.array):
        call.fill = _filler(packed, send.array)
    call.send = transport.spec(packed, block, send.dtype)
    part_shape = recv.shape if recv is not None else send.shape
    gathered = np.empty((p, *part_shape), packed.dtype) if recv is not None else None
    call.recv = transport.spec(gathered, block, send.dtype) if gathered is not None else None
    until = {"scan": comm.rank + 1, "exscan": comm.rank}.get(verb, p)

    def finish(status: Any) -> Any:
        if recv is None or gathered is None or until == 0:
            return None
        folded = send.wrap(gathered[0])
        for part in gathered[1:until]:
            folded = fold.fold(folded, send.wrap(part))  # type: ignore[misc]
        result = buffer.as_buffer(folded)
        if result.shape != part_shape or result.dtype != send.dtype:
            raise UsageError(
                f"op {fold.op} made {result} of {send.dtype} {part_shape}",
                hint="op must keep shape and dtype",
            ).located(verb, comm)
        recv.array[...] = result.array
        return recv.give()

    call.finish = finish
    return call


def _worth_blocks(comm: Communicator, send: Buffer, fold: Reduction) -> bool:
    return (
        send.nbytes >= _HALVES_BY_BLOCKS
        and 1 < comm.size <= 64
        and not comm.is_inter
        and fold.op.factor is None
        and fold.op.name in _FOLD_BLOCK
    )


_FOLD_BLOCK = {"sum": "add", "avg": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}


def _fold_blocks(call: Call, send: Buffer, recv: Buffer, fold: Reduction) -> Call:
    """all_reduce of many halves: each rank folds one block in float32, and halves travel both ways.

    Half the bytes of a float32 all-reduce; each result is rounded once. Reduce-scatter by all-to-all
    followed by all-gather (Thakur, Rabenseifner and Gropp 2005): 2 n (p-1)/p bytes sent per rank.
    """
    comm = call.comm
    if send is not recv and not buffer.same_memory(send.array, recv.array):
        _refuse_overlap(send, recv)
    n, p = send.array.size, comm.size
    counts = [n // p + (r < n % p) for r in range(p)]
    starts = [sum(counts[:r]) for r in range(p)]
    mine = counts[comm.rank]
    landing = _landing(recv)
    packed = _packed(send.array).reshape(-1)

    def carry() -> None:
        parts = np.empty((p, mine), np.uint16)
        comm.mpi.Alltoallv(
            (packed, counts, starts, MPI.UINT16_T),
            (parts, [mine] * p, [r * mine for r in range(p)], MPI.UINT16_T),
        )
        wide = dtypes.widen(parts, send.dtype)
        folded = getattr(np, _FOLD_BLOCK[fold.op.name]).reduce(wide, axis=0)
        if fold.op.name == "avg":
            folded /= np.float32(p)
        narrow = dtypes.narrow(folded, send.dtype)
        comm.mpi.Allgatherv((narrow, mine, MPI.UINT16_T), (landing, counts, starts, MPI.UINT16_T))

    call.carry = carry
    call.finish = _deliver(recv, landing)
    return call
