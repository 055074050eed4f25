"""Deterministic all_reduce: exact sums of blocks, each made by one rank."""

from __future__ import annotations

from ...core.operation import Call, Carrier
from ...core.reduction import Reduction
from ...core.request import Stages
from ...core.signature import marked
from ...core.types import NpArray
from ...errors import UsageError
from ...schedule import exact
from ...schedule.rank_program import program
from .comm_cache import own
from .executor import Channel, Executor, memory_for
from .proved import proved
from .schedule_channels import Passing, Running, background


def deterministic_call(
    call: Call, algorithm: str | None, reduce: Reduction | None, array: NpArray, count: int
) -> Call:
    """Everyone reduces one block of x, which no order can change: all_to_all, reduction, all_gather."""
    comm = call.comm
    if call.verb != "all_reduce" or reduce is None or reduce.op.mpi is not None or algorithm is not None:
        raise UsageError(
            "deterministic=True reduces by operators with a name, in its own way",
            hint="a named op, without algorithm=",
        )
    p, each = comm.size, -(-count // comm.size)
    call.code = marked(call.code, "deterministic")
    plans = [proved("all_to_all", "pairwise", p, 0), proved("all_gather", "ring", p, 0)]

    def make(channel: Channel, which: int) -> Executor:
        mine = program(plans[which], comm.rank, each)
        return Executor(mine, channel, memory_for(mine, array.dtype), None)

    def scatter(executor: Executor) -> None:
        given = call.send[0] if type(call.send) is tuple else call.recv[0]
        executor.work[: p * each] = 0
        executor.work[:count] = given.reshape(-1)

    def join(first: Executor, second: Executor) -> None:
        parts = first.work[p * each :].reshape(p, each)
        second.work[comm.rank * each : (comm.rank + 1) * each] = exact.reduce_ranks(parts, reduce.mpi_op)

    def deliver(second: Executor) -> None:
        call.recv[0].reshape(-1)[:] = second.work[:count]

    def carry() -> None:
        mine = own(comm)
        two = [
            mine.executor(("deterministic", i, each, array.dtype.str), lambda c, i=i: make(c, i))  # type: ignore[misc]
            for i in (0, 1)
        ]
        scatter(two[0])
        two[0].run()
        join(*two)
        two[1].run()
        deliver(two[1])

    def stages() -> Stages:
        mine = own(comm)
        two = [make(Passing(mine.mpi, mine.tag(), mine.most), i) for i in (0, 1)]
        scatter(two[0])

        def both() -> Stages:
            yield from background(two[0])
            join(*two)
            yield from background(two[1])

        yield [Running(both())]
        deliver(two[1])
        return call.finish(None)

    call.carrier = Carrier(carry, stages)
    return call
