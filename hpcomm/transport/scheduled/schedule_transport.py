"""Own schedules as a transport: executes any algorithm of the registry over messages.

Blocking calls run over persistent requests and memory that are kept for the next call of the same kind;
calls in the background over requests of their own, so that any number may be under way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core import dtypes, reduction
from ...core.comm import Comm
from ...core.dtypes import Dtype
from ...core.limits import SCHEDULE_IN_OUT
from ...core.operation import Call, Carrier
from ...core.reduction import Reduction
from ...core.request import Stages
from ...core.signature import marked
from ...core.types import NpArray
from ...core.ufuncs import UFUNCS
from ...core.verbs import GATHERING, ROOT_RECEIVES, ROOT_SENDS, ROOTED, SCATTERING
from ...errors import UsageError
from ...schedule.rank_program import Program
from ...schedule.registry import algorithms, build, cut
from .. import mpi_control_variables, rank_order
from ..library_algorithms import library_call
from .comm_cache import MIDWAY, own
from .executor import Channel, Executor, Memory, Operator, memory_for
from .proved import Which, in_order, part, proved
from .schedule_channels import Lasting, Passing, Running, background, release

Key = tuple[str, str, int, int, Any, int, Any, int]

_CALM = {
    name: np.errstate(all="ignore")(ufunc) for name, ufunc in UFUNCS.items()
}  # as MPI is: without warnings
_FLOATS = ("FLOAT", "DOUBLE", "LONG_DOUBLE", "C_FLOAT_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX")
_STANDS_FOR = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "gather": "tree",
    "all_to_all": "pairwise",
}  # to move what functions reduce


class Planned:
    """A schedule prepared once on memory of its own; is started and waited for as MPI's persistent requests.

    Attributes:
        name: of the algorithm, with its parameters.
    """

    def __init__(
        self, name: str, executor: Executor, bring: Callable[[], None], take: Callable[[], None]
    ) -> None:
        self.name, self.executor, self.bring, self.take = name, executor, bring, take
        self.running: Running | None = None

    def Start(self) -> None:  # noqa: N802  as MPI.Prequest has it
        self.running = Running(self._rounds())

    def Test(self, status: object = None) -> bool:  # noqa: N802
        return self.running is None or self.running.Test()

    def Wait(self, status: object = None) -> None:  # noqa: N802
        if self.running is not None:
            self.running.Wait()

    def Free(self) -> None:  # noqa: N802
        release(self.executor)

    def _rounds(self) -> Stages:
        self.bring()
        yield from background(self.executor)
        self.take()


def schedule_call(call: Call, algorithm: str, op: object = None, later: bool = False) -> Call:
    """Let call be carried out by an own schedule.

    Args:
        call: as compose_call made it, for the background.
        algorithm: a name, with parameters if any; "wire=bfloat16" or "wire=float16" among them lets
            float32 travel narrower.
        op: the operator as the user gave it.
        later: it goes on in the background.

    Raises:
        UsageError: no such algorithm; a wire that does not fit; an operator that need not commute with an
            algorithm that does not keep the order of ranks.
    """
    comm, verb = call.comm, call.moves or call.verb
    if comm.is_inter:
        raise UsageError("own schedules need one group of ranks", hint="comm.merge() makes one of two")
    if not isinstance(algorithm, str):
        raise UsageError(f"algorithm={algorithm!r} is no name", hint=f"one of {', '.join(algorithms(verb))}")
    reduce = reduction.resolve(op, call.look.dtype) if op is not None else None
    if algorithm.startswith("mpi:"):
        return library_call(call, algorithm.removeprefix("mpi:"))
    if later:
        _refuse_rounds(comm, algorithm)
    key, operator = _chosen(call, algorithm, reduce)
    name = key[1]
    call.code = marked(call.code, algorithm)

    def carry() -> None:
        mine = own(comm)
        try:
            if _is_long(comm, key):
                executor, take = _long(call, key, operator, Passing(mine.mpi, mine.tag(), mine.most), True)
            else:  # kept for the next call of this kind
                executor = mine.executor(key, lambda channel: _executor(comm, key, operator, channel))
                _bring(call, executor)
                take = partial(_take, call, executor)
            executor.run()
            take()
        except BaseException:  # also of a signal's handler
            comm.fall_out(MIDWAY)
            raise

    def stages() -> Stages:
        mine = own(comm)
        yield from _passed(call, key, operator, Passing(mine.mpi, mine.tag(), mine.most))
        return call.finish(None)

    def prepare() -> Planned:
        mine = own(comm)
        executor = _executor(comm, key, operator, Lasting(mine.mpi, mine.plan_tag(), mine.most))
        return Planned(name, executor, lambda: _bring(call, executor), lambda: _take(call, executor))

    call.carrier = Carrier(carry, stages, prepare)
    return call


def _refuse_rounds(comm: Comm, algorithm: str) -> None:
    """Refuse an own schedule in the background where it may stop for ever: the same on all ranks.

    Over TCP between hosts Open MPI 5.0 loses messages where two threads of a process test requests in turn,
    also one after the other: a program of plain mpi4py with one lock around all calls stops as well.
    """
    may_stop = mpi_control_variables.vendor() == "openmpi" and mpi_control_variables.unannounced_bytes()
    if may_stop and not rank_order.nodes_of(comm).is_one:
        raise UsageError(
            f"algorithm={algorithm!r} may stop for ever in the background between hosts, over Open MPI's TCP",
            hint="a blocking call, or none of hpcomm's algorithms, or MPICH",
        )


def takes_devices(algorithm: str | None) -> bool:
    """Whether algorithm names one that can move arrays from device to device: a schedule, not narrowed."""
    if not isinstance(algorithm, str) or algorithm == "tuned":
        return False
    return not algorithm.startswith("mpi:") and "wire=" not in algorithm


def named(call: Call, algorithm: str, reduce: Reduction | None, nbytes: int) -> str:
    """algorithm with its pieces, for a call on slots of nbytes; raises as schedule_call does."""
    verb, p, root = call.moves or call.verb, call.comm.size, call.root
    name = cut(verb, algorithm, nbytes)
    schedule = proved(verb, name, p, root)
    if reduce is not None and not call.moves and not operator_of(reduce)[1] and not in_order(schedule):
        fitting = [a for a in algorithms(verb) if in_order(build(verb, a, p, schedule.root))]
        raise UsageError(
            f"{name} does not keep the order of ranks, and op need not commute",
            hint=f"algorithm= one of {', '.join(fitting)}",
        )
    return name


def rounds(call: Call, algorithm: str, reduce: Reduction | None, mpi: MPI.Comm, tag: int) -> Stages:
    """What carries a call out in the background, as schedule_call has it, under a tag of another mpi."""
    return _passed(call, *_chosen(call, algorithm, reduce), Passing(mpi, tag, own(call.comm).most))


def _passed(call: Call, key: Key, operator: Operator, channel: Channel) -> Stages:
    if _is_long(call.comm, key):
        executor, take = _long(call, key, operator, channel)
    else:
        executor = _executor(call.comm, key, operator, channel)
        _bring(call, executor)
        take = partial(_take, call, executor)
    yield [Running(background(executor))]
    take()


def _chosen(call: Call, algorithm: str, reduce: Reduction | None) -> tuple[Key, Operator]:
    """All that the executor of a call goes by, checked."""
    verb, (array, count) = call.moves or call.verb, _look(call)
    name, wire = _wire(algorithm, array, reduce)
    if call.moves and name.partition(":")[0] not in algorithms(verb):
        name = _STANDS_FOR[verb]
    name = named(call, name, reduce, count * array.itemsize)
    operator: Operator = np.bitwise_or
    code = own_op = 0
    if reduce is not None:
        code, own_op = reduce.code, id(reduce.op.mpi)
        operator = operator if call.moves else operator_of(reduce)[0]
    return (verb, name, call.root if verb in ROOTED else 0, count, array.dtype, code, wire, own_op), operator


def _executor(
    comm: Comm, key: Key, operator: Operator, channel: Channel,
    memory: Callable[[Program], Memory] | None = None,
) -> Executor:  # fmt: skip
    """What carries out this rank's part, in memory made for that, or new one."""
    verb, name, root, count, dtype, _, wire, _ = key
    mine = part(Which(verb, name, comm.size, root), comm.rank, count, staged=wire is not None)
    made = memory_for(mine, dtype, wire) if memory is None else memory(mine)
    return Executor(mine, channel, made, operator, wire)


def _long(
    call: Call, key: Key, operator: Operator, channel: Channel, waits: bool = False
) -> tuple[Executor, Callable[[], None]]:
    """all_reduce in the memory of out, if it lies in one piece; and what is left to do at the end.

    waits: no other call begins meanwhile, so memory that is kept can be used.
    """
    out = call.recv[0]
    given = call.send[0] if type(call.send) is tuple else out
    x, into = _flat(given), _flat(out)
    work = np.empty(out.size, out.dtype) if into is None else into
    if x is None:
        work[:] = given.reshape(-1)

    def memory(mine: Program) -> Memory:
        room = own(call.comm).room(mine.room * out.itemsize) if waits else None
        return memory_for(mine, out.dtype, None, work, room)._replace(given=None if given is out else x)

    made = _executor(call.comm, key, operator, channel, memory)
    return made, lambda: _take(call, made) if into is None else None


def _flat(x: NpArray) -> NpArray | None:
    """x as it lies in memory; None: scattered."""
    return x.reshape(-1) if x.flags.c_contiguous and x.flags.aligned else None


def _is_long(comm: Comm, key: Key) -> bool:
    """Whether all_reduce works in `out` where it can: alike on all ranks, which choose their tags by it."""
    verb, _, _, count, dtype, _, wire, _ = key
    return verb == "all_reduce" and wire is None and count * dtype.itemsize >= SCHEDULE_IN_OUT * comm.size


def tuned_for(call: Call, op: object = None) -> str | None:
    """What `algorithm="tuned"` stands for in this call; None: the library's default. Collective at first.

    Operators that the measurements were not made with are left to the library.
    """
    if call.comm.is_inter or call.moves:
        return None
    if op is not None:
        reduce = reduction.resolve(op, call.look.dtype)
        if not operator_of(reduce)[1]:
            return None
    array, count = _look(call)
    return own(call.comm).choices(call.verb).name(count * array.itemsize)


def _wire(algorithm: str, array: NpArray, reduce: Reduction | None) -> tuple[str, Dtype | None]:
    """An algorithm without its parameter wire, and that half type."""
    name, _, rest = algorithm.partition(":")
    words = [word for word in rest.split(",") if word]
    wires = [word.removeprefix("wire=") for word in words if word.startswith("wire=")]
    left = ",".join(word for word in words if not word.startswith("wire="))
    plain = f"{name}:{left}" if left else name
    if not wires:
        return plain, None
    if wires[0] not in ("float16", "bfloat16"):
        raise UsageError(f"wire={wires[0]!r} is no half type", hint="wire=bfloat16 or wire=float16")
    if array.dtype != np.float32 or (reduce is not None and reduce.function is not None):
        raise UsageError(f"wire={wires[0]} narrows float32 only", hint="leave wire= away")
    return plain, dtypes.BY_NAME[wires[0]]


def operator_of(reduce: Reduction) -> tuple[Operator, bool]:
    """(how two arrays are reduced, whether the order of ranks does not matter) for a Reduction."""
    op = reduce.mpi_op
    if isinstance(op, str):
        quiet = reduce.mpi_type not in _FLOATS
        return (UFUNCS[op] if quiet else _CALM[op]), True

    def by_mpi(first: NpArray, second: NpArray, out: NpArray) -> None:
        result = np.array(second)
        op.Reduce_local(np.ascontiguousarray(first), result)  # result = first op result
        out[:] = result

    return by_mpi, bool(op.Is_commutative())


def _look(call: Call) -> tuple[NpArray, int]:
    """An array of the type that travels, and the number of elements in one slot."""
    if call.verb == "barrier":
        return np.zeros(1, np.uint8), 1
    part = call.send if type(call.send) is tuple else call.recv
    return part[0], part[1]


def _bring(call: Call, executor: Executor) -> None:
    """Put what this rank gives into work memory."""
    verb, work = call.moves or call.verb, executor.work
    count, rank = executor.part.count, call.comm.rank
    if verb == "barrier" or (verb in ROOT_SENDS and rank != call.root):
        return
    in_place = type(call.send) is not tuple
    given = (call.recv if in_place else call.send)[0].reshape(-1)
    if verb in GATHERING:
        own = slice(rank * count, (rank + 1) * count)
        work, given = work[own], given[own] if in_place else given
    elif verb == "all_to_all":
        work = work[: call.comm.size * count]
    work[:] = given


def _take(call: Call, executor: Executor) -> None:
    """Put the result where the call receives it."""
    verb, work, count = call.moves or call.verb, executor.work, executor.part.count
    comm = call.comm
    if verb == "barrier" or type(call.recv) is not tuple:
        return
    if (verb in ROOT_RECEIVES and comm.rank != call.root) or (verb == "exscan" and comm.rank == 0):
        return
    if verb in SCATTERING:
        work = work[comm.rank * count : (comm.rank + 1) * count]
    elif verb == "all_to_all":
        work = work[comm.size * count :]
    call.recv[0].reshape(-1)[:] = work
