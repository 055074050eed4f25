"""Collective operations: each tries the direct way, then prepares, agrees and runs a Call.

Throughout, p is the number of ranks (on an inter-communicator: of the other group), x and out are
arrays as in `as_buffer`, and x is left alone unless it is also out. `async_op=True` returns a Request.
`algorithm="tuned"` takes what `hpcomm tune` found, "mpi:ring" an algorithm that the MPI library calls so;
`algorithm="ring"` takes one of hpcomm's own schedules instead of the MPI library's choice; which there are
for a verb, and what they cost, is in docs/algorithms.md. Large arrays on devices stay there
under a schedule's name; all others go through the hosts' memory then (docs/gpu.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..agree.agreement import refused
from ..core.operation import Call
from ..core.signature import BACKGROUND, head, marked
from ..errors import HpcommError
from ..node import native

if TYPE_CHECKING:
    from ..transport import mpi as transport
    from ..transport import prepare
    from ..transport.device import host_copy
    from ..transport.scheduled import schedule_transport
    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    prepare = LazyModule("hpcomm.transport.prepare")
    host_copy = LazyModule("hpcomm.transport.device.host_copy")
    transport = LazyModule("hpcomm.transport.mpi")
    schedule_transport = LazyModule("hpcomm.transport.scheduled.schedule_transport")

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
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
    src: int | None = None,
) -> Any:
    """Give every rank the array of root.

    On root x is the data. On the other ranks x tells shape and dtype and is left alone, or is None
    where out= is given. Same as MPI_Bcast, torch.distributed.broadcast (there in place: out=x).

    Args:
        x: array, same shape and dtype on every rank.
        root: rank whose x goes out; src is torch's word for it.
        out: array that receives; out=x is in place.
        async_op, algorithm: see all_reduce.

    Returns:
        out, or a new array.

    Raises:
        RankError: no such root. LayoutError, DtypeError: x or out does not fit.

    Example (4 ranks):
        >>> comm.broadcast(np.full(2, comm.rank), root=3)
        array([3, 3])
    """
    root = root if src is None else src
    if algorithm is None and not async_op:
        done = comm.direct.broadcast(x, root, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "broadcast", x, out, None, root, async_op, algorithm)


def reduce(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    root: int = 0,
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
    dst: int | None = None,
) -> Any:
    """Reduce the arrays of all ranks element by element; root gets the result.

    Same as MPI_Reduce, torch.distributed.reduce.

    Args:
        x: array, same shape and dtype on every rank.
        op: see all_reduce.
        root: rank that receives; dst is torch's word for it.
        out: on root, array that receives; ignored elsewhere.
        async_op, algorithm: see all_reduce.

    Returns:
        On root out, or a new array; None elsewhere.

    Raises:
        As all_reduce; RankError: no such root.

    Example (4 ranks):
        >>> comm.reduce(np.ones(2))
        array([4., 4.])
    """
    root = root if dst is None else dst
    if algorithm is None and not async_op:
        done = comm.direct.reduce(x, op, root, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "reduce", x, out, op, root, async_op, algorithm)


def all_reduce(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
    deterministic: bool = False,
) -> Any:
    """Reduce the arrays of all ranks element by element; every rank gets the result.

    Same as MPI_Allreduce, torch.distributed.all_reduce (there in place: out=x).

    Args:
        x: array, same shape and dtype on every rank.
        op: "sum", "avg" (floating or complex), "prod", "min", "max" (not complex), "band", "bor", "bxor"
            (bool and integers), "land", "lor", premul_sum(factor), a torch ReduceOp, an MPI.Op, or a
            function f(a, b) -> c of two arrays of x's kind, reduced in rank order, which need not commute;
            Python's sum, max, any and the like mean what they reduce by. float16 and bfloat16 are reduced in
            float32 and rounded once; min and max of floats keep what is not a number, as numpy's do. On
            arrays of bool, sum and max are "or", prod and min "and"; Python's own bools are counted.
        out: array that receives, of x's shape and dtype; out=x is in place.
        algorithm: an own schedule: "ring", "double_tree", "circulant:wire=bfloat16", ...
        deterministic: the same bits whatever the number and order of the ranks: sums of floats are the
            exact sum of all contributions, rounded once. Costs an all_to_all and an all_gather.
        async_op: begin, and return a Request to wait for.

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
    if algorithm is None and not (async_op or deterministic):
        done = comm.direct.all_reduce(x, op, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "all_reduce", x, out, op, 0, async_op, algorithm, deterministic)


def gather(
    comm: Communicator,
    x: Any,
    root: int = 0,
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
    dst: int | None = None,
) -> Any:
    """Collect the arrays of all ranks on root.

    Same as MPI_Gather, torch.distributed.gather.

    Args:
        x: array, same shape and dtype on every rank (gather_ragged takes any).
        root: rank that receives; dst is torch's word for it.
        out: on root, array of shape (p, *x.shape), or the same blocks
            one after the other along the first axis.
        async_op, algorithm: see all_reduce.

    Returns:
        On root an array of shape (p, *x.shape), block r from rank r; None elsewhere.

    Example (4 ranks):
        >>> comm.gather(np.array([comm.rank]))
        array([[0], [1], [2], [3]])
    """
    root = root if dst is None else dst
    if algorithm is None and not async_op:
        done = comm.direct.gather(x, root, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "gather", x, out, None, root, async_op, algorithm)


def all_gather(
    comm: Communicator, x: Any, out: Any = None, async_op: bool = False, algorithm: str | None = None
) -> Any:
    """Collect the arrays of all ranks on every rank.

    Same as MPI_Allgather, torch.distributed.all_gather_into_tensor.

    Args:
        x: array, same shape and dtype on every rank (all_gather_ragged takes any). It may
            be out[rank] itself.
        out: array of shape (p, *x.shape), or (p * x.shape[0], ...): the blocks one after the other.
        async_op, algorithm: see all_reduce.

    Returns:
        out, or a new array of shape (p, *x.shape), block r from rank r.

    Example (4 ranks):
        >>> comm.all_gather(np.array([comm.rank]))
        array([[0], [1], [2], [3]])
    """
    if algorithm is None and not async_op:
        done = comm.direct.all_gather(x, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "all_gather", x, out, None, 0, async_op, algorithm)


def scatter(
    comm: Communicator,
    x: Any = None,
    root: int = 0,
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
    src: int | None = None,
) -> Any:
    """Give each rank its own block of root's array.

    On root x has shape (p, *block). On the other ranks x tells shape and dtype and is left alone, or
    is None where out= is given. Same as MPI_Scatter, torch.distributed.scatter.

    Args:
        x: array of shape (p, *block).
        root: rank whose x goes out; src is torch's word for it.
        out: array that receives, of shape block.
        async_op, algorithm: see all_reduce.

    Returns:
        out, or a new array of shape block.

    Example (4 ranks):
        >>> comm.scatter(np.arange(8).reshape(4, 2))  # on rank 3
        array([6, 7])
    """
    root = root if src is None else src
    if algorithm is None and not async_op:
        done = comm.direct.scatter(x, root, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "scatter", x, out, None, root, async_op, algorithm)


def reduce_scatter(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Reduce x over the ranks and leave each rank its own block of the result.

    Same as MPI_Reduce_scatter_block, torch.distributed.reduce_scatter_tensor.

    Args:
        x: array of shape (p, *block), same on every rank; with out= also (p * n, ...) where out is (n, ...).
        op: see all_reduce.
        out: array that receives.
        async_op, algorithm: see all_reduce.

    Returns:
        out, or a new array of shape block.

    Raises:
        LayoutError: the first axis of x is not the number of ranks.

    Example (4 ranks):
        >>> comm.reduce_scatter(np.ones((4, 2)))
        array([4., 4.])
    """
    if algorithm is None and not async_op:
        done = comm.direct.reduce_scatter(x, op, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "reduce_scatter", x, out, op, 0, async_op, algorithm)


def all_to_all(
    comm: Communicator, x: Any, out: Any = None, async_op: bool = False, algorithm: str | None = None
) -> Any:
    """Send block j of x to rank j, and receive block i from rank i.

    Same as MPI_Alltoall, torch.distributed.all_to_all_single.

    Args:
        x: array of shape (p, *block); with out= any shape whose first axis p divides.
        out: array of x's shape; out=x is in place.
        async_op, algorithm: see all_reduce.

    Returns:
        out, or a new array of x's shape.

    Example (2 ranks):
        >>> comm.all_to_all(np.array([10, 20]) + comm.rank)  # on rank 1
        array([20, 21])
    """
    if algorithm is None and not async_op:
        done = comm.direct.all_to_all(x, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "all_to_all", x, out, None, 0, async_op, algorithm)


def scan(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Reduce the arrays of the ranks up to and with this one (inclusive prefix).

    Same as MPI_Scan. Args and errors as all_reduce, but op "avg" is refused.

    Args:
        async_op, algorithm: see all_reduce.

    Example (4 ranks):
        >>> comm.scan(np.ones(1))  # on rank 2
        array([3.])
    """
    if algorithm is None and not async_op:
        done = comm.direct.scan(x, op, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "scan", x, out, op, 0, async_op, algorithm)


def exscan(
    comm: Communicator,
    x: Any,
    op: Any = "sum",
    out: Any = None,
    async_op: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Reduce the arrays of the ranks below this one (exclusive prefix).

    Same as MPI_Exscan, but rank 0 gets what op does not notice: 0 for sum, 1 for prod, the largest
    value for min and so on. Where op is a function or an MPI.Op, rank 0 gets None and out is left alone.

    Args:
        async_op, algorithm: see all_reduce.

    Example (4 ranks):
        >>> comm.exscan(np.ones(1))  # on rank 2
        array([2.])
    """
    if algorithm is None and not async_op:
        done = comm.direct.exscan(x, op, out)
        if done is not NotImplemented:
            return done
    return careful(comm, "exscan", x, out, op, 0, async_op, algorithm)


def barrier(comm: Communicator, async_op: bool = False, algorithm: str | None = None) -> Any:
    """Wait until every rank has come here. Same as MPI_Barrier, torch.distributed.barrier.

    Args:
        async_op, algorithm: see all_reduce.
    """
    if algorithm is None and not async_op and comm.direct.barrier() is not NotImplemented:
        return None
    comm.check_open("barrier")
    call = Call(comm, "barrier", code=head("barrier"))
    own = algorithm is not None and algorithm != "tuned"  # barriers are not tuned
    try:
        call = schedule_transport.schedule_call(call, algorithm) if own else call
    except HpcommError as error:
        raise refused(comm, "barrier", error) from None
    if not (own or async_op) and comm.node is not None:
        call.carry, call.by_core = comm.node.barrier, True
    return carry_out(call, async_op)


def careful(
    comm: Communicator,
    verb: str,
    x: Any,
    out: Any,
    op: Any,
    root: int,
    async_op: bool,
    algorithm: str | None = None,
    deterministic: bool = False,
) -> Any:
    """The general path of every collective but barrier: look, check, agree, carry out."""
    try:
        comm.check_open(verb)
        if comm.node is not None:
            native.know_arrays()  # the next call of these may be direct
        own = algorithm is not None or deterministic
        tuned = algorithm == "tuned" and not deterministic
        if tuned and comm.devices is not None:  # that may look at them twice
            x, out = _beside(x, out)
        by = algorithm if own and not deterministic and schedule_transport.takes_devices(algorithm) else None
        call = prepare.compose(comm, verb, x, out, op, root, not (async_op or own), own, by)
        code = marked(call.code, "tuned") if tuned else 0
        if tuned:
            algorithm = schedule_transport.tuned_for(call, op)
            if algorithm is not None:
                call = schedule_transport.schedule_call(call, algorithm, op)
            elif not async_op:
                call = prepare.compose(comm, verb, x, out, op, root, blocking=True, hosts=True)
        elif own and call.after is None:
            call = schedule_transport.schedule_call(call, algorithm, op, deterministic)
        if tuned:
            call.code = code  # which one it stands for, all ranks know alike
    except Exception as error:
        raise refused(comm, verb, error) from (None if isinstance(error, HpcommError) else error.__cause__)
    return carry_out(call, async_op)


def _beside(x: Any, out: Any) -> tuple[Any, Any]:
    """x and out, or memory of the host in their place."""
    there = None if x is None else host_copy.beside(prepare.look(x, "x"), True)
    if out is None or out is x:
        return there, there if out is x else None
    return there, host_copy.beside(prepare.look(out, "out"), False)


def carry_out(call: Call, async_op: bool) -> Any:
    """Agree with the other ranks about call, show it to the observers, and hand it to the transport."""
    comm = call.comm
    for observer in comm.observers:
        observer.before(call)
    if not call.code:  # a message: only its two ranks know of it
        result = transport.start(call) if async_op else transport.run(call)
        for observer in comm.observers:
            observer.after(call)
        return result
    if async_op:
        finish = call.finish

        def finish_and_leave(status: Any) -> Any:
            leave()
            result = finish(status)
            for observer in comm.observers:
                observer.after(call)
            call.let_go()
            return result

        call.finish = finish_and_leave
        with comm.call_guard:
            leave = comm.agreement.late(call.code | BACKGROUND, call.agreed)
            request = transport.start(call)
        request.needs_all(comm)
        return request
    with comm.call_guard:
        if call.by_core:  # which compares
            result = transport.run(call)
        else:
            comm.agreement.enter(call.code, call.agreed)
            result = transport.run(call)
            comm.agreement.leave()
    for observer in comm.observers:
        observer.after(call)
    call.let_go()
    return result
