"""Own schedules as a transport: carries out any algorithm of the registry over a channel's messages.

Blocking calls run over persistent requests and memory that are kept for the next call of the same kind;
calls in the background over requests of their own, so that any number may be under way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .. import dtypes, reduction
from ..errors import HpcommError, UsageError
from ..schedule import exact
from ..schedule.program import program
from ..schedule.prove import keeps_order, prove
from ..schedule.registry import ROOTED, algorithms, build, cut
from ..signature import marked
from . import controls, tuned
from .channels import LARGEST, Lasting, Passing, Running, background, release, wait
from .executor import Executor
from .mpi import _pieces, largest_tag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..call import Call
    from ..communicator import Communicator
    from ..schedule.program import Program
    from ..schedule.stream import Schedule
    from .executor import Channel, Fold

    Array = NDArray[Any]

__all__ = ["Own", "by_library", "by_schedule", "fold_of", "own", "schedule_call", "tuned_for"]

EXACT_UP_TO = 512  # ranks up to which a schedule is proved before its first use
_TAGS = 32_000  # for calls; those above are for plans
_KEPT = 16  # executors with their memory, per communicator
_LONG = 256 << 10  # bytes of x per rank from which all_reduce works in `out`: a copy costs more than requests
_ROOM = 64 << 20  # bytes up to which it keeps the memory for what arrives to be folded
_UFUNCS: dict[str, Any] = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
    "BOR": np.bitwise_or, "BXOR": np.bitwise_xor, "LAND": np.logical_and, "LOR": np.logical_or,
}  # fmt: skip
IN_PLACE = MPI.IN_PLACE
_STANDS_FOR = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "gather": "tree",
    "all_to_all": "pairwise",
}  # to move what functions fold


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

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        return self.running is None or self.running.Test()

    def Wait(self, status: Any = None) -> None:  # noqa: N802
        if self.running is not None:
            self.running.Wait()

    def Free(self) -> None:  # noqa: N802
        release(self.executor)

    def _rounds(self) -> Generator[list[Any], Any, None]:
        self.bring()
        yield from background(self.executor)
        self.take()


class Own:
    """What a communicator keeps for its own schedules: a duplicate, a counter of tags, executors by call."""

    def __init__(self, comm: Communicator) -> None:
        self.mpi, made = comm.mpi.Idup()
        wait(made)
        self.mpi.Set_errhandler(MPI.ERRORS_RETURN)
        self._tag = self._plans = 0
        self._kept: dict[Any, Executor] = {}
        self._far = _far(self.mpi, MPI.Get_processor_name())
        self._table: dict[str, tuned.Choices] | None = None
        self._library: dict[tuple[str, str], MPI.Comm] = {}
        self._room = np.empty(0, np.uint8)

    def choices(self, verb: str) -> tuned.Choices:
        """What `hpcomm tune` found for this many ranks; read at its first use, which is collective."""
        if self._table is None:
            self._table = tuned.read(self.mpi)
        return self._table.get(verb) or tuned.Choices.of([])

    def library(self, verb: str, name: str) -> MPI.Comm:
        """A communicator on which the library uses its algorithm name (Open MPI: a duplicate keeps it)."""
        if controls.vendor() != "openmpi":
            return self.mpi
        if (verb, name) not in self._library:
            with controls.forced(verb, name):
                self._library[verb, name] = self.mpi.Dup()
            self._library[verb, name].Set_errhandler(MPI.ERRORS_RETURN)
        return self._library[verb, name]

    def tag(self) -> int:
        """A number that all ranks come to alike, since they make the same calls in the same order."""
        self._tag = (self._tag + 1) % _TAGS
        return self._tag

    def plan_tag(self) -> int:
        """As tag(), of numbers for plans alone: those stay in use."""
        self._plans += 1
        return _TAGS + self._plans % (largest_tag() - _TAGS + 1)

    def most(self, peer: int) -> int:
        """Bytes that one message to or from a peer may have."""
        return self._far.get(peer, LARGEST)

    def executor(self, key: Any, make: Callable[[Channel], Executor]) -> Executor:
        """The executor for key, made at its first use; the oldest one gives way.

        The oldest, not the one that was not used for longest: so that ranks of which some come here by a
        lane and others by the careful way keep the same ones.
        """
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make(Lasting(self.mpi, self.tag(), self.most))
            if len(self._kept) > _KEPT:
                release(self._kept.pop(next(iter(self._kept))))
        return found

    def room(self, nbytes: int) -> Array | None:
        """Memory for one long call at a time: fresh pages would cost more than they carry. None: too much."""
        if nbytes > self._room.nbytes and nbytes <= _ROOM:
            self._room = np.empty(nbytes, np.uint8)
        return self._room if nbytes <= self._room.nbytes else None

    def close(self) -> None:
        for executor in self._kept.values():
            release(executor)
        self._kept.clear()
        for each in self._library.values():
            each.Free()
        self.mpi.Free()


def _far(mpi: MPI.Comm, name: str) -> dict[int, int]:
    """{peer on another node: bytes that travel there without being announced}; where such a limit matters.

    Open MPI announces longer messages over TCP and waits for the answer, which waits behind all that the
    peer sends at that moment. Pieces below that limit do not wait.
    """
    if mpi.size == 1 or controls.vendor() != "openmpi":
        return {}
    node = zlib.crc32(name.encode())
    cards = np.empty((mpi.size, 2), np.int64)
    wait(mpi.Iallgather(np.array([node, controls.unannounced_bytes()], np.int64), cards))
    least = int(cards[:, 1].min())
    return dict.fromkeys(np.flatnonzero(cards[:, 0] != node).tolist(), least) if least else {}


def own(comm: Communicator) -> Own:
    """What comm keeps for its schedules; made at the first call with algorithm=, which is collective."""
    if comm._schedules is None:
        comm._schedules = Own(comm)
    return comm._schedules  # type: ignore[no-any-return]


def schedule_call(call: Call, algorithm: str | None, op: Any = None, deterministic: bool = False) -> Call:
    """Let call be carried out by an own schedule.

    Args:
        call: as compose made it, for the background.
        algorithm: a name, with parameters if any; "wire=bfloat16" or "wire=float16" among them lets
            float32 travel narrower.
        op: the operator as the user gave it.
        deterministic: fold in an order, or so exactly, that the number of ranks does not matter.

    Raises:
        UsageError: no such algorithm; a wire that does not fit; an operator that need not commute with an
            algorithm that does not keep the order of ranks.
    """
    comm, verb = call.comm, call.moves or call.verb
    if comm.is_inter:
        raise UsageError("own schedules need one group of ranks", hint="comm.merge() makes one of two")
    if algorithm is not None and not isinstance(algorithm, str):
        raise UsageError(f"algorithm={algorithm!r} is no name", hint=f"one of {', '.join(algorithms(verb))}")
    fold = reduction.resolve(op, call.look.dtype) if op is not None else None
    array, count = _look(call)
    if algorithm is not None and algorithm.startswith("mpi:") and not deterministic:
        return _by_library(call, algorithm.removeprefix("mpi:"))
    if deterministic and not call.moves:
        return _deterministic(call, algorithm, fold, array, count)
    name, wire = _wire(_STANDS_FOR[verb] if algorithm is None else algorithm, array, fold)
    if call.moves and name.partition(":")[0] not in algorithms(verb):
        name = _STANDS_FOR[verb]
    name = cut(verb, name, count * array.itemsize)
    schedule = _proved(verb, name, comm.size, call.root if verb in ROOTED else 0)
    folding, commutes = (np.bitwise_or, True) if fold is None or call.moves else fold_of(fold)
    if not commutes and not _in_order(schedule):
        fitting = [a for a in algorithms(verb) if _in_order(build(verb, a, comm.size, schedule.root))]
        raise UsageError(
            f"{name} does not keep the order of ranks, and op need not commute",
            hint=f"algorithm= one of {', '.join(fitting)}",
        )
    call.code = marked(call.code, algorithm or name)
    own_op = id(fold.op.mpi) if fold is not None and fold.op.mpi is not None else None
    key = (verb, name, schedule.root, count, array.dtype, fold.code if fold else 0, wire, own_op)

    def make(channel: Channel, work: Any = None) -> Executor:
        part = _part(verb, name, comm.size, schedule.root, comm.rank, count, staged=wire is not None)
        room = None if work is None else own(comm).room(part.room * array.itemsize)
        return Executor(part, channel, array.dtype, folding, wire, work, room)

    def carry() -> None:
        mine, into = own(comm), None
        if verb == "all_reduce" and wire is None and _is_long(comm, count * array.itemsize):
            into = _flat(call.recv[0])
            executor = make(Passing(mine.mpi, mine.tag(), mine.most), into)
        else:
            executor = mine.executor(key, make)
        _bring(call, executor)
        executor.run()
        if into is None:
            _take(call, executor)

    def stages() -> Generator[list[Any], Any, Any]:
        mine = own(comm)
        executor = make(Passing(mine.mpi, mine.tag(), mine.most))
        _bring(call, executor)
        yield [Running(background(executor))]
        _take(call, executor)
        return call.finish(None)

    def prepare() -> Planned:
        mine = own(comm)
        executor = make(Lasting(mine.mpi, mine.plan_tag(), mine.most))
        return Planned(name, executor, lambda: _bring(call, executor), lambda: _take(call, executor))

    call.carry, call.stages, call.prepare = carry, stages, prepare
    return call


def by_schedule(comm: Communicator, name: str, dtype: Any, fold: Any) -> Callable[..., Any] | None:
    """As MPI.Allreduce on plain arrays of numpy, by an own schedule; None: the careful way must look."""
    if name.partition(":")[0] not in algorithms("all_reduce") or "wire=" in name:
        return None
    folding, commutes = fold_of(fold)
    if not commutes:
        return None
    try:
        _proved("all_reduce", cut("all_reduce", name, 0), comm.size, 0)
    except HpcommError:
        return None

    def make(channel: Channel, way: str, n: int, work: Any = None) -> Executor:
        part = _part("all_reduce", way, comm.size, 0, comm.rank, n)
        room = None if work is None else own(comm).room(part.room * dtype.itemsize)
        return Executor(part, channel, dtype, folding, work=work, room=room)

    def work_in(out: Any, n: int) -> tuple[Executor, Any]:
        mine, into = own(comm), _flat(out)
        way = cut("all_reduce", name, n * dtype.itemsize)
        return make(Passing(mine.mpi, mine.tag(), mine.most), way, n, into), into

    def executor_of(n: int) -> Executor:
        way = cut("all_reduce", name, n * dtype.itemsize)
        key = ("all_reduce", way, 0, n, dtype, fold.code, None, None)
        found = ready[n] = own(comm).executor(key, lambda channel: make(channel, way, n))
        return found

    ready: dict[int, Executor] = {}

    def call(send: Any, recv: Any, _: Any) -> None:
        out, n, _ = recv
        executor, into = ready.get(n), None
        if executor is None or not executor.rounds:  # none yet, or it has given way to others
            executor, into = work_in(out, n) if _is_long(comm, n * dtype.itemsize) else (executor_of(n), None)
        given, work = out if send is IN_PLACE else send[0], executor.work
        if into is None or given is not out:
            work[:] = given if given.ndim == 1 else given.reshape(-1)
        executor.run()
        if into is not None:
            return
        if out.ndim == 1:
            out[:] = work
        else:
            out.reshape(-1)[:] = work

    return call


def _is_long(comm: Communicator, nbytes: int) -> bool:
    """Whether all_reduce works in `out` where it can: alike on all ranks, which choose their tags by it."""
    return nbytes >= _LONG * comm.size


def _flat(out: Any) -> Any:
    """The memory of out for a schedule to work in; None: it lies scattered."""
    return out.reshape(-1) if out.flags.c_contiguous and out.flags.aligned else None


def tuned_for(call: Call, op: Any = None) -> str | None:
    """What `algorithm="tuned"` stands for in this call; None: the library's default. Collective at first.

    Operators that the measurements were not made with are left to the library.
    """
    if call.comm.is_inter or call.moves:
        return None
    if op is not None:
        fold = reduction.resolve(op, call.look.dtype)
        if not fold_of(fold)[1]:
            return None
    array, count = _look(call)
    return own(call.comm).choices(call.verb).name(count * array.itemsize)


def by_library(comm: Communicator, verb: str, name: str, function: str) -> Callable[..., Any]:
    """MPI's function, carried out by the library's algorithm name.

    What that takes is made when it is first called, all ranks together: then they agree about the call.
    """
    made: Callable[..., Any] | None = None

    def call(*arguments: Any) -> None:
        nonlocal made
        if made is None:
            made = _switched(verb, name, getattr(own(comm).library(verb, name), function))
        made(*arguments)

    return call


def _switched(verb: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """function, with what MPICH has to be told around it."""
    if controls.vendor() == "openmpi":
        return function
    on, off = controls.switch(verb, name)

    def called(*arguments: Any) -> None:
        on()
        try:
            function(*arguments)
        finally:
            off()

    return called


def _by_library(call: Call, name: str) -> Call:
    """Let call be carried out by one of the MPI library's own algorithms; blocking calls only choose it."""
    comm, verb = call.comm, call.verb
    if call.moves or name not in controls.choices(verb):
        known = ", ".join(f"mpi:{each}" for each in controls.choices(verb)) or "leave algorithm= away"
        raise UsageError(f"the MPI library offers no algorithm {name!r} for this {verb}", hint=known)
    call.code = marked(call.code, f"mpi:{name}")

    def carry() -> None:
        for function, arguments in _pieces(call):
            by_library(comm, verb, name, function)(*arguments)

    call.carry = carry
    return call


def _wire(algorithm: str, array: Array, fold: Any) -> tuple[str, Any]:
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
    if array.dtype != np.float32 or (fold is not None and fold.fold is not None):
        raise UsageError(f"wire={wires[0]} narrows float32 only", hint="leave wire= away")
    return plain, dtypes.BY_NAME[wires[0]]


def _deterministic(call: Call, algorithm: str | None, fold: Any, array: Array, count: int) -> Call:
    """Everyone folds one block of x, which no order can change: all_to_all, fold, all_gather."""
    comm = call.comm
    if call.verb != "all_reduce" or fold is None or fold.op.mpi is not None or algorithm is not None:
        raise UsageError(
            "deterministic=True folds by operators with a name, in its own way",
            hint="a named op, without algorithm=",
        )
    p, each = comm.size, -(-count // comm.size)
    call.code = marked(call.code, "deterministic")
    plans = [_proved("all_to_all", "pairwise", p, 0), _proved("all_gather", "ring", p, 0)]

    def make(channel: Channel, which: int) -> Executor:
        return Executor(program(plans[which], comm.rank, each), channel, array.dtype, None)

    def scatter(executor: Executor) -> None:
        given = call.send[0] if type(call.send) is tuple else call.recv[0]
        executor.work[: p * each] = 0
        executor.work[:count] = given.reshape(-1)

    def join(first: Executor, second: Executor) -> None:
        parts = first.work[p * each :].reshape(p, each)
        second.work[comm.rank * each : (comm.rank + 1) * each] = exact.fold(parts, fold.mpi_op)

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

    def stages() -> Generator[list[Any], Any, Any]:
        mine = own(comm)
        two = [make(Passing(mine.mpi, mine.tag(), mine.most), i) for i in (0, 1)]
        scatter(two[0])

        def both() -> Generator[list[Any], Any, None]:
            yield from background(two[0])
            join(*two)
            yield from background(two[1])

        yield [Running(both())]
        deliver(two[1])
        return call.finish(None)

    call.carry, call.stages = carry, stages
    return call


def fold_of(fold: Any) -> tuple[Fold, bool]:
    """(how two arrays are folded, whether the order of ranks does not matter) for a Reduction."""
    op = fold.mpi_op
    if isinstance(op, str):
        return _UFUNCS[op], True

    def by_mpi(first: Array, second: Array, out: Array) -> None:
        result = np.array(second)
        op.Reduce_local(np.ascontiguousarray(first), result)  # result = first op result
        out[:] = result

    return by_mpi, bool(op.Is_commutative())


@lru_cache(maxsize=256)
def _proved(verb: str, algorithm: str, p: int, root: int) -> Schedule:
    schedule = build(verb, algorithm, p, root)
    if p <= EXACT_UP_TO:
        prove(schedule)
    return schedule


@lru_cache(maxsize=64)
def _part(
    verb: str, algorithm: str, p: int, root: int, rank: int, count: int, staged: bool = False
) -> Program:
    return program(_proved(verb, algorithm, p, root), rank, count, staged=staged)


@lru_cache(maxsize=256)
def _in_order_of(key: tuple[str, str, int, int]) -> bool:
    return keeps_order(build(*key))


def _in_order(schedule: Schedule) -> bool:
    return _in_order_of((schedule.verb, schedule.name, schedule.size, schedule.root))


def _look(call: Call) -> tuple[Array, int]:
    """An array of the type that travels, and the number of elements in one slot."""
    if call.verb == "barrier":
        return np.zeros(1, np.uint8), 1
    part = call.send if type(call.send) is tuple else call.recv
    return part[0], part[1]


def _bring(call: Call, executor: Executor) -> None:
    """Put what this rank gives into work memory."""
    verb, work = call.moves or call.verb, executor.work
    count, rank = executor.part.count, call.comm.rank
    if verb == "barrier":
        return
    own = slice(rank * count, (rank + 1) * count)
    if verb == "broadcast":
        if rank == call.root:
            work[:] = call.recv[0].reshape(-1)
        return
    given = call.send[0].reshape(-1) if type(call.send) is tuple else None
    if verb in ("all_gather", "gather"):
        work[own] = call.recv[0].reshape(-1)[own] if given is None else given
    elif verb == "scatter":
        if rank == call.root:
            work[:] = given
    elif verb == "all_to_all":
        work[: call.comm.size * count] = given
    else:
        work[:] = call.recv[0].reshape(-1) if given is None else given


def _take(call: Call, executor: Executor) -> None:
    """Put the result where the call receives it."""
    verb, work, count = call.moves or call.verb, executor.work, executor.part.count
    comm = call.comm
    if verb == "barrier" or type(call.recv) is not tuple:
        return
    if (verb in ("reduce", "gather") and comm.rank != call.root) or (verb == "exscan" and comm.rank == 0):
        return
    if verb in ("scatter", "reduce_scatter"):
        work = work[comm.rank * count : (comm.rank + 1) * count]
    elif verb == "all_to_all":
        work = work[comm.size * count :]
    call.recv[0].reshape(-1)[:] = work
