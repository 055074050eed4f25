"""Plans: a call prepared once and started many times, over MPI's persistent requests."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, overload

from ..._lazy import MPI, NDArray
from ...agree.agreement import refused
from ...agree.end_notices import awaited
from ...core import types
from ...core.closing import ClosedByAll
from ...core.operation import Arguments, Call
from ...core.patience import Pause, patience
from ...core.present import calling, waiting
from ...core.request import Again, Needs, Request, Stages, T_co, abandon, deadline
from ...core.signature import NEIGHBOURS, head, operator, words_of
from ...core.types import AlgorithmName, Array, ArrayLike, Operator, Scalar
from ...core.verbs import REDUCTIONS, TABLE
from ...errors import HpcommError, LayoutError, UsageError, did_you_mean, incomplete, located, placed, where
from ...node.present import enter, leave
from ...transport import matching
from ...transport.late import buffer, prepare, schedule_transport, transport
from ..context import Context
from ..shell import Shell, watched
from .collectives import scheduled
from .planned_message import planned_receive, planned_send, taking
from .unknown_length import in_order, recv_behind

_PLANNED = [*TABLE, *NEIGHBOURS, "send", "recv"]
_AMERICAN = {name.replace("neighbour", "neighbor"): name for name in NEIGHBOURS}


@watched
class Plan(ClosedByAll, Generic[T_co]):
    """A prepared call on fixed arrays.

    start() begins it, wait() ends it and returns the result, calling the plan does both. Between start and
    wait do not touch the arrays. The call takes what x holds at start(). Collective plans are made by all
    ranks, in the same order. close() frees MPI's requests. A plan with algorithm= prepares the messages of
    all rounds. They make progress while a rank waits or polls.

    MPI cannot take some arrays as they are (strided, half types, bool). For these the plan copies to and
    from a buffer of its own, at each start and wait. explain() says so.

    Attributes:
        is_under_way: whether it was started and not waited for.
        guard, waits_for: what hpcomm's own layers know of it; not for programs.
    """

    is_under_way = False
    guard: Any = None
    _is_quick = False  # of some, from when all have made it
    _started: list[Any] | None = None
    _behind: Request[Any] | None = None  # of a start behind receives of unknown length
    _leave: Any = None  # looks whether the others made this plan too; until the first wait is over
    waits_for: Needs  # see Request

    def __init__(
        self, comm: Context, call: Call, prepared: Sequence[types.Prepared], tensors: Sequence[Any] = ()
    ) -> None:
        self._comm, self._call = comm, call
        self._tensors = tensors  # which may come to need a gradient
        self._again = None if call.verb in ("send", "recv") else comm.agreement.again
        self.waits_for = (comm, *awaited(call), call.verb, call.tag)
        if call.after is not None:  # on devices nothing is prepared but the call itself
            requests: list[Any] = []  # the one under way
            self._started = requests
            self._prepared: Sequence[Any] = [call]
            self._begin: Any = lambda: requests.append(transport.start(call))
            self._fill, self._complete = None, 0
            return
        self._prepared = prepared
        comm.outstanding.keep_plan(self, _look_again)
        self._begin = self._prepared[0].Start if len(self._prepared) == 1 else self._start_all
        self._fill = call.fill
        self._receives = call.verb == "recv"
        self._complete = 0  # requests of this start that a wait with timeout has seen the end of
        self._status = MPI.Status()

    def start(self) -> None:
        """Begin the call with what the arrays hold now.

        Raises:
            UsageError: the last start was not waited for, the plan is closed, or a tensor has come to need a
                gradient.
        """
        if self.is_under_way or not self._prepared:
            what, hint = (
                ("has been started and not waited for", "wait() after each start()")
                if self.is_under_way
                else ("is closed", "make a new one with comm.plan(), or close() this one later")
            )
            raise UsageError(f"the plan of {self._call} {what}", where("plan", self._comm), hint)
        _refuse_gradients(self._call, self._tensors)
        if self._leave is not None:
            self._leave()
        if self._again is not None:
            self._again()
        self.is_under_way = True
        if self._fill is not None:
            self._fill()
        call, mpi = self._call, self._comm.mpi_handle
        if call.verb == "recv" and self._started is None and matching.is_awaited(mpi, call.peer, call.tag):
            envelope = matching.Envelope(call.peer, call.tag)
            stages = recv_behind(self._comm, call.look, envelope)
            self._behind = in_order(self._comm, stages, envelope, True)
            return
        self._begin()

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait for the end; returns out.

        Raises:
            UsageError: the plan was not started, or timeout is not a number of seconds.
            WaitTimeoutError: timeout seconds are over. The call is still under way.
        """
        if not self.is_under_way:
            what, hint = f"the plan of {self._call} was not started", "plan.start(), or plan()"
            raise UsageError(what, where("plan", self._comm), hint)
        with waiting(self):
            return self._waited(timeout)

    def _waited(self, timeout: float | None) -> T_co:
        if self._started is not None:
            result: T_co = self._started[0].wait(timeout)
            self._started.clear()
            self.is_under_way = False
            return result
        if (behind := self._behind) is not None:
            try:
                taken: T_co = behind.wait(timeout)
                return taken
            finally:
                if behind.done():
                    self._behind, self.is_under_way = None, False
        status = self._status if self._receives else None
        timeout = patience(self._comm) if timeout is None else timeout
        try:
            if timeout is not None:
                self._poll(timeout, status)
            for i in range(self._complete, len(self._prepared)):
                self._prepared[i].Wait(status)
        except MPI.Exception as error:
            self.is_under_way, self._complete = False, 0
            raise transport.failure(error, self._call.verb, self._comm) from None
        self.is_under_way, self._complete = False, 0
        if self._leave is not None:
            self._agree()
        finished: T_co = self._call.finish(status)
        return finished

    def _agree(self) -> None:
        """Look a last time whether all made this plan. A plan is made without waiting for anybody."""
        leave, self._leave = self._leave, None
        leave()

    def __call__(self, timeout: float | None = None) -> T_co:
        with waiting(self, "plan"):
            self.start()
            return self.wait(timeout)

    @property
    def call(self) -> str:
        """What is planned, for messages."""
        call = self._call
        return f"{call}, {operator(call.code)}" if call.verb in REDUCTIONS else str(call)

    def close(self) -> None:
        """Free MPI's persistent requests. Waits for a call under way. A second close does nothing."""
        if self.is_under_way:
            self.wait()
        for request in self._prepared if self._started is None else ():
            request.Free()
        self._prepared = []

    def explain(self) -> str:
        """Which path the data take, and why."""
        if not self._prepared:
            return f"{self._call}: closed"
        if self._call.carrier.prepare is not None:
            name = self._prepared[0].name
            if isinstance(self._prepared[0], Again):
                return f"{self._call}: {name}, begun anew at each start"
            return f"{self._call}: own schedule {name}, rounds of persistent MPI, from memory of its own"
        if self._started is not None:
            return f"{self._call}: {self._comm.devices.explain(self._call)}"
        return f"{self._call}: persistent MPI ({len(self._prepared)} request), {self._way()}"

    def _way(self) -> str:
        look, then = self._call.look, "; what all ranks gave is folded here, in rank order"
        then = then if self._call.moves else ""
        if self._call.fill is None:
            return f"straight from x{then}"
        if self.guard is not None:
            return f"looked at by check='strict'{then}"
        if not look.array.flags.c_contiguous:
            why = "x is not contiguous"
        elif look.dtype.kind in "bh":
            why = f"{look.dtype} travels converted"
        else:
            why = "MPI is told the same on all ranks, in place or not"
        return f"from memory that each start fills from x, because {why}{then}"

    def __repr__(self) -> str:
        return f"<Plan {self.explain()}>"

    def __del__(self) -> None:
        if self._started is not None or not self.is_under_way or sys.is_finalizing():
            return
        abandon(self._prepared, self._call)
        self._comm.outstanding.begin(_never_over())
        warnings.warn(
            f"the plan of {self._call} was dropped while it was under way; keep the plan and wait()",
            RuntimeWarning,
            stacklevel=2,
        )

    def _start_all(self) -> None:
        for request in self._prepared:
            request.Start()

    def _poll(self, timeout: float, status: MPI.Status | None) -> None:
        end, pause = deadline(timeout), Pause()
        while self._complete < len(self._prepared):
            if self._prepared[self._complete].Test(status):
                self._complete += 1
            elif time.monotonic() >= end:
                place = where(self._call.verb, self._comm)
                raise incomplete(f"the plan of {self._call}", timeout, place, "start its plan")
            else:
                pause.sleep()


@watched
class _DirectPlan(Plan[T_co]):
    """A plan of which each round is two calls of MPI's and nothing else, while it is quick.

    Of a receive what has come is looked at, too.
    """

    _end: Callable[..., object]

    def __init__(
        self, comm: Context, call: Call, prepared: Sequence[types.Prepared], tensors: Any, result: T_co
    ) -> None:
        super().__init__(comm, call, prepared, tensors)
        self._end, self._result, self._mpi_error = prepared[0].Wait, result, MPI.Exception
        if tensors:
            self._begin = _first_looking(call, tensors, self._begin)
        if call.verb in ("send", "recv"):
            self._is_quick = patience(comm) is None
        if call.verb == "recv":
            self._end = taking(prepared[0].Wait, call.finish, self._status)

    def start(self) -> None:
        if self.is_under_way or not self._is_quick or (self._receives and matching.some_wait()):
            return super().start()
        self._begin()
        self.is_under_way = True

    def wait(self, timeout: float | None = None) -> T_co:
        if timeout is not None or not (self.is_under_way and self._is_quick) or self._behind:
            return super().wait(timeout)
        self.is_under_way = False
        try:
            enter(self, "wait", None, None, None)
            self._end()
        except self._mpi_error as error:
            raise transport.failure(error, self._call.verb, self._comm) from None
        finally:
            leave()
        return self._result

    def __call__(self, timeout: float | None = None) -> T_co:
        if timeout is not None or self.is_under_way or not self._is_quick or self._receives:
            return super().__call__(timeout)
        try:
            enter(self, "plan", None, None, None)
            self._begin()
            self._end()
        except self._mpi_error as error:
            raise transport.failure(error, self._call.verb, self._comm) from None
        finally:
            leave()
        return self._result

    def _agree(self) -> None:
        super()._agree()
        self._is_quick = patience(self._comm) is None and self._again is None

    def close(self) -> None:
        super().close()
        self._is_quick = False


def _look_again(plan: Plan[Any], is_over: bool = False) -> None:
    """Let it look at all there is from now on, such as a deadline. is_over: be as after close()."""
    plan._is_quick = False
    if is_over:
        plan._prepared, plan.is_under_way = [], False


def _refuse_gradients(call: Call, tensors: Sequence[Any]) -> None:
    """Refuse what the plan's tensors could not be given when it was made."""
    for x in tensors:
        if x.requires_grad and not (call.verb == "broadcast" and x.is_leaf):
            with located(f"plan of {call.verb}", call.comm):
                buffer.refuse_gradient(x)


def _first_looking(call: Call, tensors: Sequence[Any], begin: Callable[[], object]) -> Callable[[], None]:
    def looked() -> None:
        _refuse_gradients(call, tensors)
        begin()

    return looked


def _never_over() -> Stages:
    """Stands for what was dropped under way."""
    yield []


class Plans(Shell):
    """What makes plans."""

    # fmt: off
    @overload
    def plan(
        self, verb: Literal["barrier"], *, algorithm: AlgorithmName | None = ...,
    ) -> Plan[None]: ...
    @overload
    def plan(
        self, verb: Literal["send"], x: ArrayLike, *, dest: int | None = ...,
        tag: int | None = ...,
    ) -> Plan[None]: ...
    @overload
    def plan(
        self, verb: Literal["recv"], x: Array, *, source: int | None = ..., tag: int | None = ...,
    ) -> Plan[Array]: ...
    @overload
    def plan(
        self, verb: Literal["recv"], x: object = ..., *, out: Array, source: int | None = ...,
        tag: int | None = ...,
    ) -> Plan[Array]: ...
    @overload
    def plan(
        self, verb: types.OfBlocks, x: NDArray[Scalar], *, out: NDArray[Scalar] | None = ...,
        op: Operator = ..., root: int = ..., algorithm: AlgorithmName | None = ...,
    ) -> Plan[NDArray[Scalar]]: ...
    @overload
    def plan(
        self, verb: types.ToAll, x: Array, *, out: Array | None = ..., op: Operator = ...,
        root: int = ..., algorithm: AlgorithmName | None = ...,
    ) -> Plan[Array]: ...
    @overload
    def plan(
        self, verb: types.FromRoot, x: None = ..., *, out: Array, root: int = ...,
        algorithm: AlgorithmName | None = ...,
    ) -> Plan[Array]: ...
    @overload
    def plan(
        self, verb: types.ToRoot, x: Array, *, out: Array | None = ..., op: Operator = ...,
        root: int = ..., algorithm: AlgorithmName | None = ...,
    ) -> Plan[Array | None]: ...
    # fmt: on
    def plan(
        self,
        verb: str,
        x: object = None,
        *,
        out: object = None,
        op: Operator = "sum",
        root: int = 0,
        dest: int | None = None,
        source: int | None = None,
        tag: int | None = None,
        algorithm: str | None = None,
    ) -> Plan[Any]:
        """Prepare a call once to start it many times. Same as MPI_Allreduce_init and its kin.

        Args:
            verb: name of a collective operation, also of a `neighbour_` one, "send" or "recv".
            x, out, op, root: as the operation takes them. Without out each wait() returns the plan's own
                array, which the next start may fill again.
            dest, source, tag: for "send" and "recv".
            algorithm: one of hpcomm's for a collective, such as "ring" (docs/algorithms.md).

        Raises:
            The errors of the operation, here and not at start. UsageError: it cannot be planned, or not with
            this algorithm: "tuned" and "mpi:..." choose at each call.

        Example (4 ranks):
            >>> step = comm.plan("all_reduce", x, out=x)
            >>> for _ in range(1000):
            ...     step()
        """
        comm, verb = self.context, _AMERICAN.get(str(verb), verb)
        is_message, tensors = verb in ("send", "recv"), _tensors(x, out)
        try:
            comm.check_open("plan")
            _check_plannable(self, verb, x, algorithm)
            if verb == "send":
                return _make(comm, planned_send(comm, x, dest, tag), tensors)
            if verb == "recv":
                return _make(comm, planned_receive(comm, x if out is None else out, source, tag), tensors)
            if verb in NEIGHBOURS:
                call = self._planned(verb, x, out)  # type: ignore[attr-defined]  # it is a Topology
            else:
                reducing = op if verb in REDUCTIONS else None
                call = _composed(comm, Arguments(verb, x, out, reducing, root), algorithm)
        except HpcommError as error:
            if is_message:
                raise placed(error, f"plan of {verb}", comm) from None
            raise refused(comm, f"plan of {verb}", error) from None
        return _collective(comm, call, tensors)


def _check_plannable(comm: Shell, verb: str, x: object, algorithm: str | None) -> None:
    """Refuse what no plan can be made of.

    Raises:
        LayoutError, UsageError: it is such.
    """
    if any(getattr(x, bit, bool)() for bit in ("is_conj", "is_neg")):
        raise LayoutError(
            "x is a tensor with a conjugate or negative bit, whose elements are computed when read",
            hint="x.resolve_conj().resolve_neg(), filled before each start",
        )
    if str(algorithm) == "tuned" or str(algorithm).startswith("mpi:"):
        raise UsageError(
            f"algorithm={algorithm!r} cannot be planned", hint="an own schedule by name, or leave it away"
        )
    if verb not in _PLANNED:
        hint = did_you_mean(verb, _PLANNED, "a collective operation, 'send' or 'recv'")
        raise UsageError(f"{verb!r} cannot be planned", hint=hint)
    if algorithm is not None and verb not in TABLE:
        raise UsageError(f"{verb} has no algorithm", hint="leave algorithm= away")
    if verb in NEIGHBOURS and not isinstance(getattr(comm, "sources", None), tuple):
        hint = "comm.cart(...) or comm.graph(...), and its plan(), without one"
        raise UsageError(f"'{comm.context.name}' has no neighbours", hint=hint)


def _tensors(*given: object) -> tuple[Any, ...]:
    return tuple(each for each in given if hasattr(each, "requires_grad"))


def _make(comm: Context, call: Call, tensors: tuple[Any, ...]) -> Plan[object]:
    if call.after is not None:
        return Plan(comm, call, [], tensors)
    guard = comm.outstanding.guard(call)
    prepared = transport.prepare(call)
    give = (lambda: None) if call.verb in ("barrier", "send") else call.give
    if len(prepared) == 1 and call.fill is None and give is not None:
        result = give()
        if result is None or hasattr(result, "__dlpack__"):  # not a number, which is a new one each time
            return _DirectPlan(comm, call, prepared, tensors, result)
    made: Plan[object] = Plan(comm, call, prepared, tensors)
    made.guard = guard
    return made


def _composed(comm: Context, given: Arguments, algorithm: str | None) -> Call:
    if given.verb == "barrier":
        call = Call(comm, "barrier", code=head("barrier"))
        return call if algorithm is None else schedule_transport.schedule_call(call, algorithm, later=True)
    if algorithm is None:
        return prepare.compose_call(comm, given, blocking=False)
    return scheduled(comm, given, algorithm, True)


def _collective(comm: Context, call: Call, tensors: tuple[Any, ...]) -> Plan[Any]:
    with calling(comm, "plan", call.look or None, op=words_of(call.verb, call.code)["op"]), comm.call_guard:
        leave = comm.agreement.late(call.code - head(call.verb) + head("plan"), call.agreed)
        made = _make(comm, call, tensors)
        if call.carrier.settle is not None:
            call.carrier.settle()
        leave()
    if made._started is None:
        made._leave = leave
    return made
