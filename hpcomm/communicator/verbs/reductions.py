"""Collective operations that reduce: as those of collectives.py, where the words are explained."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TypeVar, overload

from ..._lazy import NDArray
from ...agree.agreement import refusing
from ...core.operation import Arguments
from ...core.present import calling
from ...core.request import Request, StagesOf, note_collective, note_rounds
from ...core.types import AlgorithmName, Array, ArrayLike, Later, Now, Operator, Scalar
from ...transport.late import buffer, reduction
from ..payloads.payload_agreement import each_of
from ..shell import Shell
from .collectives import careful

T = TypeVar("T")


class Reductions(Shell):
    """Collective verbs that reduce."""

    # fmt: off
    @overload
    def reduce(
        self, x: Array, op: Operator = ..., root: int = ..., out: Array | None = ...,
        async_op: Now = ..., algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Array | None: ...
    @overload
    def reduce(
        self, x: Array, op: Operator = ..., root: int = ..., out: Array | None = ..., *,
        async_op: Later, algorithm: AlgorithmName | None = ..., dst: int | None = ...,
    ) -> Request[Array | None]: ...
    # fmt: on
    def reduce(
        self,
        x: ArrayLike,
        op: Operator = "sum",
        root: int = 0,
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        dst: int | None = None,
    ) -> object:
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
        comm = self.context
        root = root if dst is None else dst
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).reduce(x, op, root, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("reduce", x, out, op, root), async_op, algorithm)

    # fmt: off
    @overload
    def all_reduce(
        self, x: Array, op: Operator = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ..., deterministic: bool = ...,
    ) -> Array: ...
    @overload
    def all_reduce(
        self, x: Array, op: Operator = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ..., deterministic: bool = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def all_reduce(
        self,
        x: ArrayLike,
        op: Operator = "sum",
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
        deterministic: bool = False,
    ) -> object:
        """Reduce the arrays of all ranks element by element; every rank gets the result.

        Same as MPI_Allreduce, torch.distributed.all_reduce (there in place: out=x).

        Args:
            x: array, same shape and dtype on every rank.
            op: "sum", "avg" (floating or complex), "prod", "min", "max" (not complex), "band", "bor", "bxor"
                (bool and integers), "land", "lor". Or premul_sum(factor), a torch ReduceOp, an MPI.Op,
                Python's sum, min, max, any or all, or numpy.add and its like, where they mean one of these.
                Or another function f(a, b) -> c of two arrays of x's kind. It is applied in rank order and
                need not commute. Floats are reduced in rank order, too, within nodes and then between them
                (docs/reproducible.md). float16 and bfloat16 are reduced in float32 and rounded once. min and
                max of floats return NaN where a rank has it, as numpy's do. On arrays of bool, sum and max
                mean "or", prod and min mean "and". The sum of Python's own bools counts those that are True.
            out: array that receives, of x's shape and dtype; out=x is in place.
            algorithm: one of hpcomm's, as "ring" or "double_tree"; None: the library's or the node core's
                (docs/algorithms.md).
            deterministic: sums and averages have the same bits for any number and order of ranks. Floats
                are added exactly, and rounded once (halves to float32 first). The ranks share the work, in
                pieces, which take up to 16 MiB of memory.
            async_op: begin, and return a Request to wait for.

        Returns:
            out, or a new array.

        Raises:
            DtypeError: op has no right result on this dtype; a sum of long doubles with deterministic=True.
            LayoutError: x and out overlap without being the same, or out does not fit.

        Cost: the MPI library's; a function as op costs an all_gather and memory for p arrays.

        Example (4 ranks):
            >>> comm.all_reduce(np.ones(2))
            array([4., 4.])
        """
        comm = self.context
        if algorithm is None and not deterministic:
            done = (comm.background if async_op else comm.direct).all_reduce(x, op, out)
            if done is not NotImplemented:
                return done
        return careful(
            comm, Arguments("all_reduce", x, out, op, exact=bool(deterministic)), async_op, algorithm
        )

    # fmt: off
    @overload
    def reduce_scatter(
        self, x: NDArray[Scalar], op: Operator = ..., out: NDArray[Scalar] | None = ...,
        async_op: Now = ..., algorithm: AlgorithmName | None = ...,
    ) -> NDArray[Scalar]: ...
    @overload
    def reduce_scatter(
        self, x: NDArray[Scalar], op: Operator = ..., out: NDArray[Scalar] | None = ..., *,
        async_op: Later, algorithm: AlgorithmName | None = ...,
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def reduce_scatter(
        self, x: Array, op: Operator = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Array: ...
    @overload
    def reduce_scatter(
        self, x: Array, op: Operator = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def reduce_scatter(
        self,
        x: ArrayLike,
        op: Operator = "sum",
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> object:
        """Reduce x over the ranks and leave each rank its own block of the result.

        Same as MPI_Reduce_scatter_block, torch.distributed.reduce_scatter_tensor.

        Args:
            x: array of shape (p, *block), same on every rank; with out= also (p * n, ...) where out is
                (n, ...).
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
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).reduce_scatter(x, op, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("reduce_scatter", x, out, op), async_op, algorithm)

    # fmt: off
    @overload
    def scan(
        self, x: Array, op: Operator = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Array: ...
    @overload
    def scan(
        self, x: Array, op: Operator = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def scan(
        self,
        x: ArrayLike,
        op: Operator = "sum",
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> object:
        """Reduce the arrays of the ranks up to and with this one (inclusive prefix).

        Same as MPI_Scan. Args and errors as all_reduce, but op "avg" is refused.

        Example (4 ranks):
            >>> comm.scan(np.ones(1))  # on rank 2
            array([3.])
        """
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).scan(x, op, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("scan", x, out, op), async_op, algorithm)

    # fmt: off
    @overload
    def exscan(
        self, x: Array, op: Operator = ..., out: Array | None = ..., async_op: Now = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Array: ...
    @overload
    def exscan(
        self, x: Array, op: Operator = ..., out: Array | None = ..., *, async_op: Later,
        algorithm: AlgorithmName | None = ...,
    ) -> Request[Array]: ...
    # fmt: on
    def exscan(
        self,
        x: ArrayLike,
        op: Operator = "sum",
        out: ArrayLike | None = None,
        async_op: bool = False,
        algorithm: str | None = None,
    ) -> object:
        """Reduce the arrays of the ranks below this one (exclusive prefix).

        Same as MPI_Exscan, but rank 0 gets the neutral element of op: 0 for sum, 1 for prod, the largest
        value for min. If op is a function or an MPI.Op, rank 0 gets None and out is left alone. Args and
        errors as scan.

        Example (4 ranks):
            >>> comm.exscan(np.ones(1))  # on rank 2
            array([2.])
        """
        comm = self.context
        if algorithm is None:
            done = (comm.background if async_op else comm.direct).exscan(x, op, out)
            if done is not NotImplemented:
                return done
        return careful(comm, Arguments("exscan", x, out, op), async_op, algorithm)

    @overload
    def reduce_scatter_ragged(
        self, xs: Sequence[Array], op: Operator = ..., *, async_op: Now = ...
    ) -> Array: ...
    @overload
    def reduce_scatter_ragged(
        self, xs: Sequence[Array], op: Operator = ..., *, async_op: Later
    ) -> Request[Array]: ...
    def reduce_scatter_ragged(
        self, xs: Sequence[ArrayLike], op: Operator = "sum", *, async_op: bool = False
    ) -> object:
        """Reduce array j of all ranks' lists over the ranks; rank j gets the result.

        Arrays may differ in length. Same as MPI_Reduce_scatter, whose counts the arrays tell.

        Args:
            xs: one array for each rank; array j has the same shape and dtype on every rank.
            op: see all_reduce.
            async_op: begin, and return a Request to wait for.

        Raises:
            As all_reduce; UsageError: xs has not one array for each rank.

        Cost: a reduce for each rank.

        Example (2 ranks):
            >>> comm.reduce_scatter_ragged([np.ones(1), np.ones(3)])
            array([2.])         on rank 0; array([2., 2., 2.]) on rank 1
        """
        comm = self.context
        name = "reduce_scatter_ragged"
        comm.check_one_group(name)
        with refusing(name, comm):
            items, wrong = each_of(comm, name, xs)
            if wrong is not None:
                raise wrong
            for x in items:
                reduction.resolve(op, buffer.as_buffer(x).dtype)
        if not async_op:
            with calling(comm, name, op=op):
                return [self.reduce(x, op, root) for root, x in enumerate(items)][comm.rank]
        each = [self.reduce(x, op, root, async_op=True) for root, x in enumerate(items)]
        request = Request(f"{name}()", _all_of(each, comm.rank))
        note_collective(request, comm, name)
        note_rounds(request)
        return request


def _all_of(requests: list[Request[T]], mine: int) -> StagesOf[T]:
    """Wait for all, and give the result of one."""
    yield [
        SimpleNamespace(
            Test=lambda _=None, each=each: each.done(), Wait=lambda _=None, each=each: each.wait()
        )
        for each in requests
    ]
    return [each.wait() for each in requests][mine]
