"""Collective operations: each tries the direct way, then prepares, agrees and runs a Call.

Here are those that move blocks, and what all share; those that reduce are in reductions.py.

Throughout, p is the number of ranks (on an inter-communicator: of the other group), x and out are
arrays as in `as_buffer`, and x is left alone unless it is also out. `async_op=True` returns a Request.
`algorithm="tuned"` takes what `hpcomm tune` found, "mpi:ring" an algorithm that the MPI library calls so;
`algorithm="ring"` takes one of hpcomm's own schedules instead of the MPI library's choice; which there are
for a verb, and what they cost, is in docs/algorithms.md. Large arrays on devices stay there
under a schedule's name; all others go through the hosts' memory then (docs/gpu.md).
"""

from __future__ import annotations

from typing import Any, overload

from ..._lazy import MPI, NDArray
from ...agree.agreement import refused, refusing
from ...core.operation import Arguments, Call, Carrier
from ...core.present import calling
from ...core.request import Request, note_collective, note_comparison
from ...core.signature import BACKGROUND, head, marked
from ...core.types import AlgorithmName, AnyArray, Array, ArrayLike, Later, Now, Scalar
from ...core.verbs import ROOTED
from ...errors import HpcommError, UsageError
from ...transport.late import host_calls, host_copy, prepare, schedule_transport, transport
from ..context import Context
from ..shell import Shell
from . import direct, timeouts


class Collectives(Shell):
    """Collective verbs that move blocks, and barrier."""

    # fmt: off
    @overload
    def broadcast(
        self, x: Array, root: int = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Array: ...
    @overload
    def broadcast(
        self, x: Array, root: int = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Request[Array]: ...
    @overload
    def broadcast(
        self, x: None = ..., root: int = ..., *, out: Array, async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Array: ...
    @overload
    def broadcast(
        self, x: None = ..., root: int = ..., *, out: Array, async_op: Later,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def broadcast(
        self,
        x: ArrayLike | None = None,
        root: int = 0,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        src: int | None = None,
    ) -> object:
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
            RankError: no such root.
            LayoutError, DtypeError: x or out does not fit.

        Example (4 ranks):
            >>> comm.broadcast(np.full(2, comm.rank), root=3)
            array([3, 3])
        """
        comm = self.context
        root = root if src is None else src
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).broadcast(x, root, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("broadcast", x, out, root=root), async_op, algorithm)

    # fmt: off
    @overload
    def gather(
        self, x: NDArray[Scalar], root: int = ..., out: NDArray[Scalar] | None = ...,
        async_op: Now = ..., algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> NDArray[Scalar] | None: ...
    @overload
    def gather(
        self, x: NDArray[Scalar], root: int = ..., out: NDArray[Scalar] | None = ..., *,
        async_op: Later, algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Request[NDArray[Scalar] | None]: ...
    @overload
    def gather(
        self, x: complex, root: int = ..., out: AnyArray | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> AnyArray | None: ...
    @overload
    def gather(
        self, x: complex, root: int = ..., out: AnyArray | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Request[AnyArray | None]: ...
    @overload
    def gather(
        self, x: Array, root: int = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Array | None: ...
    @overload
    def gather(
        self, x: Array, root: int = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Request[Array | None]: ...
    # fmt: on
    def gather(
        self,
        x: ArrayLike,
        root: int = 0,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        dst: int | None = None,
    ) -> object:
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
        comm = self.context
        root = root if dst is None else dst
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).gather(x, root, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("gather", x, out, root=root), async_op, algorithm)

    # fmt: off
    @overload
    def all_gather(
        self, x: NDArray[Scalar], out: NDArray[Scalar] | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def all_gather(
        self, x: NDArray[Scalar], out: NDArray[Scalar] | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def all_gather(
        self, x: complex, out: AnyArray | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> AnyArray: ...
    @overload
    def all_gather(
        self, x: complex, out: AnyArray | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[AnyArray]: ...
    @overload
    def all_gather(
        self, x: Array, out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Array: ...
    @overload
    def all_gather(
        self, x: Array, out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def all_gather(
        self,
        x: ArrayLike,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> object:
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
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).all_gather(x, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("all_gather", x, out), async_op, algorithm)

    # fmt: off
    @overload
    def scatter(
        self, x: NDArray[Scalar], root: int = ..., out: NDArray[Scalar] | None = ...,
        async_op: Now = ..., algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def scatter(
        self, x: NDArray[Scalar], root: int = ..., out: NDArray[Scalar] | None = ..., *,
        async_op: Later, algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def scatter(
        self, x: Array, root: int = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Array: ...
    @overload
    def scatter(
        self, x: Array, root: int = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Request[Array]: ...
    @overload
    def scatter(
        self, x: None = ..., root: int = ..., *, out: Array, async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Array: ...
    @overload
    def scatter(
        self, x: None = ..., root: int = ..., *, out: Array, async_op: Later,
        algorithm: AlgorithmName | None = ..., src: int | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def scatter(
        self,
        x: ArrayLike | None = None,
        root: int = 0,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        src: int | None = None,
    ) -> object:
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
        comm = self.context
        root = root if src is None else src
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).scatter(x, root, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("scatter", x, out, root=root), async_op, algorithm)

    # fmt: off
    @overload
    def all_to_all(
        self, x: Array, out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Array: ...
    @overload
    def all_to_all(
        self, x: Array, out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def all_to_all(
        self,
        x: ArrayLike,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> object:
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
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).all_to_all(x, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("all_to_all", x, out), async_op, algorithm)

    @overload
    def barrier(self, async_op: Now = ..., algorithm: AlgorithmName | None = ...) -> None: ...
    @overload
    def barrier(self, *, async_op: Later, algorithm: AlgorithmName | None = ...) -> Request[None]: ...
    def barrier(self, async_op: bool = False, algorithm: str | None = None) -> object:
        """Wait until every rank has come here. Same as MPI_Barrier, torch.distributed.barrier.

        async_op, algorithm: see all_reduce.
        """
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).barrier()
            if done is not NotImplemented:
                return done
        with calling(comm, "barrier", async_op=async_op, algorithm=algorithm):
            comm.check_open("barrier")
            call = Call(comm, "barrier", code=head("barrier"))
            own = None if algorithm == "tuned" else algorithm  # barriers are not tuned
            with refusing("barrier", comm):
                call = call if own is None else schedule_transport.schedule_call(call, own, later=async_op)
            node = comm.background_node if async_op else comm.node
            if own is None and node is not None:
                nothing = (None,) * 4
                call.carrier = Carrier(node.barrier, lambda: host_calls.of_node(call, nothing), is_core=True)
            return carried_in_time(comm, call, async_op)


def careful(comm: Context, given: Arguments, async_op: bool, algorithm: str | None = None) -> object:
    """The general path of every collective but barrier: look, check, agree, carry out."""
    if algorithm is None and not (async_op or given.exact):
        done = direct.by_copies(comm, given)
        if done is not NotImplemented:
            return done
    verb, x, root = given.verb, given.out if given.x is None else given.x, given.root
    words: dict[str, object] = {"op": given.op, "root": root if verb in ROOTED else None}
    words |= {
        "order": "fast" if comm.is_fast and given.op is not None else None,
        "async_op": async_op,
        "algorithm": algorithm,
        "deterministic": given.exact,
    }
    with calling(comm, verb, x, **words):
        call = _prepared(comm, given, async_op, algorithm)
        return carried_in_time(comm, call, async_op)


def carried_in_time(comm: Context, call: Call, async_op: bool) -> Any:
    """As carry_out, in comm.timeout seconds."""
    if comm.timeout_s is None or async_op or call.carrier.is_core:
        return carry_out(call, async_op)
    return timeouts.waited(comm, carry_out(call, True))


def _prepared(comm: Context, given: Arguments, async_op: bool, algorithm: str | None) -> Call:
    try:
        comm.check_open(given.verb)
        if algorithm is None:
            return prepare.compose_call(comm, given, not async_op, later=async_op)
        if given.exact:
            raise UsageError("deterministic=True reduces in its own way", hint="leave algorithm= away")
        if algorithm == "tuned":
            return _tuned(comm, given, async_op)
        return scheduled(comm, given, algorithm, async_op)
    except Exception as error:
        cause = None if isinstance(error, HpcommError) else error.__cause__
        raise refused(comm, given.verb, error) from cause


def scheduled(comm: Context, given: Arguments, algorithm: str, later: bool) -> Call:
    """By one of hpcomm's own schedules, for the background."""
    by = algorithm if schedule_transport.takes_devices(algorithm) else None
    call = prepare.compose_call(comm, given, blocking=False, hosts=True, algorithm=by)
    if call.after is None:
        call = schedule_transport.schedule_call(call, algorithm, given.op, later)
    return call


def _tuned(comm: Context, given: Arguments, async_op: bool) -> Call:
    """As `hpcomm tune` found it best."""
    if comm.devices is not None:  # the call may be prepared twice
        given = _beside(given)
    call = prepare.compose_call(comm, given, blocking=False, hosts=True)
    code = marked(call.code, "tuned")  # which one it stands for, all ranks know alike
    algorithm = schedule_transport.tuned_for(call, given.op)
    if algorithm is not None:
        call = schedule_transport.schedule_call(call, algorithm, given.op, async_op)
    elif not async_op:
        call = prepare.compose_call(comm, given, blocking=True, hosts=True)
    call.code = code
    return call


def _beside(given: Arguments) -> Arguments:
    """The same of memory of the host in place of x and out."""
    x, out = given.x, given.out
    there = None if x is None else host_copy.beside(prepare.buffer_of(x, "x"), True)
    if out is None or out is x:
        return given._replace(x=there, out=there if out is x else None)
    return given._replace(x=there, out=host_copy.beside(prepare.buffer_of(out, "out"), False))


def _nothing() -> None:
    """What leaves a call that the core compares."""


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
        return _begun(call)
    with comm.call_guard:
        if call.carrier.is_core:  # which compares
            result = transport.run(call)
        else:
            comm.agreement.enter(call.code, call.agreed)
            if call.beside is not None:
                call.beside(call)
            result = transport.run(call)
            comm.agreement.leave()
            if comm.values is not None:
                comm.values.hold(call.verb, result)
    for observer in comm.observers:
        observer.after(call)
    call.let_go()
    return result


def _begun(call: Call) -> Request[Any]:
    """A collective in the background, which leaves the call at its end."""
    comm, finish = call.comm, call.finish

    def finish_and_leave(status: MPI.Status | None) -> object:
        leave()
        result = finish(status)
        for observer in comm.observers:
            observer.after(call)
        call.let_go()
        return result

    call.finish = finish_and_leave
    with comm.call_guard:
        is_core, leave = call.carrier.is_core, _nothing
        if not is_core:
            leave = comm.agreement.late(call.code | BACKGROUND, call.agreed)
        if call.beside is not None:
            call.beside(call)
        if comm.values is not None:
            call.finish, call.give = comm.values.later(call.verb, call.finish), None
        request = transport.start(call)
    note_comparison(request, leave)
    if not is_core:
        note_collective(request, comm, call.verb)
    return request
