"""The level "strict": what a rank can tell of its own memory, messages and requests. It may be slow.

    what it finds                                        how, and who says so
    arrays written to while a request or plan has them   checksums at the beginning and the end; wait() raises
    sends that only MPI's buffers save                   sends are synchronous (MPI_Ssend): those ranks wait,
                                                         and a report about a circle of waits names them
    requests and plans never waited for,                 looked for at the end of each rank, which says so
    messages never received
    receives of any source that two messages fit         both are there before the receive begins; a warning
    accesses of two ranks to one place of a window       at fence(), a warning: see Accesses
    two threads in collectives of one communicator       agree/one_thread.py, which sees all calls here

A communicator of this level has an observer, so that all calls take the general path, and what it has under
way is a Strict. Nothing of this is in the way of other levels.

A receive in the background gets its message in memory of its own, and the array has it at the end. So what
the program reads there too early is always the old, and what it writes there is seen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, combinations
from threading import get_ident
from types import CodeType
from typing import Any

from .._lazy import MPI, np
from ..agree import runtime
from ..agree.doing import under_way
from ..core.checksum import of_elements
from ..core.comm import Comm
from ..core.operation import Call
from ..core.outstanding import Begun, Outstanding
from ..core.patience import Pause
from ..core.present import innermost
from ..core.request import Request, move_rounds
from ..core.verbs import receives
from ..errors import UsageError, at_line, calling_frame, warn, where
from ..transport.matching import is_awaited

_MOST = 20  # lines that a rank says at its end
_GRACE_S = 2e-3  # that a receive of any source waits for a second message once the first is there
_ACCESSES = 1000  # different ones that a rank keeps between two fences
_NEVER = "was never waited for"
_PLAIN = ("put", "get", "accumulate", "flush", "fence", "close")  # verbs of windows that order nothing
_calls = 0  # of this rank which may put it in order with another one
_warned: set[tuple[CodeType, int]] = set()


def look_on(comm: Comm) -> None:
    """Let a new communicator be of this level."""
    carriers = comm.carriers = comm.carriers._replace(
        plain=_synchronous(comm.carriers.plain), objects=_synchronous(comm.carriers.objects)
    )
    strict: Any = Strict()
    vars(comm).update(mpi_handle=carriers.plain, object_comm=carriers.objects, outstanding=strict)
    comm.observers = (strict,)
    if _say_what_is_left not in runtime.farewells:
        runtime.farewells.insert(0, _say_what_is_left)  # the last of them


class Strict(Outstanding):
    """What one communicator has under way; looks on at all of its calls."""

    def before(self, call: Call) -> None:
        """Look at a call that is to be carried out."""
        _count()
        is_apart = receives(call.verb)
        if is_apart is not None and call.peer == MPI.ANY_SOURCE:
            _look_for_two(call, call.comm.object_comm if is_apart else call.comm.mpi_handle)

    def after(self, call: Call) -> None:
        """Look at one that is complete."""

    def begin(self, stages: Begun, call: object = None) -> Begun:
        _count()
        if isinstance(call, Call) and call.after is None and call.carrier.stages is None:
            _Guard(call).begin()
        return super().begin(stages)

    def guard(self, call: Call) -> _Guard:
        made = _Guard(call, is_plan=True)
        call.then_fill(made.begin)
        return made


class _Guard:
    """Lets a call in the background, or a plan, find out whether the program has written to its arrays.

    Attributes:
        began: the line that started it last.
    """

    began = ""

    def __init__(self, call: Call, is_plan: bool = False) -> None:
        # Of a plan not the call, which holds this one: circles keep arrays until Python collects garbage.
        self._words, self._call = (str(call), call.verb, call.comm), None if is_plan else call
        self._looked_at: list[Any] = []
        self._into: Any = None  # what MPI would write to, and what it writes to in its place
        self._scratch: Any = None
        if call.peer == MPI.PROC_NULL or call.carrier.prepare is not None:  # of memory of its own
            return
        given, into = _arrays(call)
        if into is not None:
            self._into, self._scratch = into, into.copy()
            self._looked_at = [call.look.array if call.verb == "recv" else into]
            call.recv = (self._scratch, *call.recv[1:])
        if given is not None and not (self._looked_at and np.may_share_memory(given, into)):
            self._looked_at.append(given)
        self._finish, call.finish, call.give = call.finish, self._compare_and_finish, None

    def begin(self) -> None:
        """The call is started."""
        self.began, self._held = at_line(), [*map(of_elements, self._looked_at)]
        if self._into is not None:
            np.copyto(self._scratch, self._into)

    def _compare_and_finish(self, status: MPI.Status | None) -> Any:
        was_changed = self._held != [*map(of_elements, self._looked_at)]
        if self._into is not None:
            np.copyto(self._into, self._scratch)
        result = self._finish(status)
        if self._call is not None:
            self._call.let_go()
        if was_changed:
            call, verb, comm = self._words
            what = f"an array of {call}, started{self.began}, was written to before that was complete"
            raise UsageError(what, where(verb, comm), "write to it after wait(), or give a copy")
        return result


def _arrays(call: Call) -> tuple[Any, Any]:
    """What MPI reads, and what it writes to; None: nothing."""
    gives = call.send is not None or (call.verb == "broadcast" and call.root == call.comm.rank)
    into = call.recv[0] if type(call.recv) is tuple else None
    is_written = type(into) is np.ndarray and into.size and into.flags.writeable
    return getattr(call.look, "array", None) if gives else None, into if is_written else None


def _look_for_two(call: Call, mpi: MPI.Comm) -> None:
    """Before a receive of any source: warn if two ranks have sent a message that it could take."""
    comm, pause, end = call.comm, Pause(), 0.0
    ranks = range(comm.remote_size if comm.is_inter else comm.size)
    now = innermost.get(get_ident())
    waits = now is not None and now.waits and comm.timeout_s is None
    while not is_awaited(mpi, None, call.tag):  # or what is there may be for a receive begun before
        there = [rank for rank in ranks if mpi.Iprobe(rank, call.tag)]
        if len(there) > 1:
            what = f"{call.verb}(tag={call.tag if call.tag >= 0 else None})"
            place = f"on '{comm.name}' (rank {comm.rank} of {comm.size})"
            return _warn(
                f"{what} {place} takes a message of any source, and those of ranks {there[0]} and {there[1]} "
                "are there: which comes first is chance; source= names one"
            )
        if there:
            end = end or time.monotonic() + _GRACE_S
        if time.monotonic() > end if there else not waits:
            return
        move_rounds()
        pause.sleep()


class Accesses:
    """What a window has besides: it names accesses of two ranks to one place, one of which writes.

    Noted is what a rank does after a fence and before it calls anything else, an atomic operation and a lock
    included, that may put it in order with another rank. So two such accesses are in no order.
    """

    comm: Any
    _fenced = -1  # calls at the last fence
    _noted: dict[tuple[int, int, int, str, str], None]

    def _told(self, verb: str, function: Callable[..., object], *arguments: Any, **then: Any) -> None:
        super()._told(verb, function, *arguments, **then)  # type: ignore[misc]  # of the window
        if verb not in _PLAIN:
            _count()
        elif len(arguments) > 2 and _calls == self._fenced and len(self._noted) < _ACCESSES:
            (data, *_), rank, first = arguments[:3]
            if data.size and all(map(_is_seen, runtime.living())):
                self._noted[rank, first, first + data.nbytes, verb, at_line()] = None

    def fence(self) -> None:
        comm = self.comm
        known = comm.all_gather_object([*vars(self).get("_noted", ())])
        super().fence()  # type: ignore[misc]
        self._noted, self._fenced = {}, _calls
        if comm.rank == 0 and (text := _conflict(known)):
            _warn(
                f"{text}, of a window on '{comm.name}', and nothing orders them: a fence() between them does"
            )


def _conflict(known: list[list[tuple[int, int, int, str, str]]]) -> str:
    """Two accesses of different ranks (target, first and last byte, verb, line) that must not meet."""
    for (origin, some), (other, more) in combinations(enumerate(known), 2):
        for target, first, end, verb, line in some:
            for its, begin, last, access, there in more:
                is_fine = verb == access and verb in ("get", "accumulate")
                if its == target and begin < end and first < last and not is_fine:
                    one, two = f"{verb} of rank {origin}{line}", f"{access} of rank {other}{there}"
                    return f"{one} and {two} use the same memory of rank {target}"
    return ""


def _count() -> None:
    """Note that this rank calls what may put it in order with others."""
    global _calls
    _calls += 1


def _is_seen(comm: Any) -> bool:
    """Whether all calls on comm that other ranks may wait for are counted."""
    under_way = comm.outstanding
    return comm.is_closed or (_is_strict(comm) and not (under_way.plans or under_way.exchanges))


def _warn(text: str) -> None:
    """Warn of the program's line, once."""
    frame = calling_frame()
    if frame is not None and (place := (frame.f_code, frame.f_lineno)) not in _warned:
        _warned.add(place)
        warn(text)


def _synchronous(mpi: MPI.Comm) -> MPI.Comm:
    """The same communicator of MPI's, whose sends return when they are received."""
    kind = type(mpi)
    if issubclass(kind, Synchronous):
        return mpi
    made: MPI.Comm = type(kind.__name__, (Synchronous, kind), {"plain": kind})(mpi)
    return made


class Synchronous:
    """What a communicator of MPI's has in place of sends; those of a rank to itself stay as they are."""

    rank: int
    plain: Any

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802  as MPI.Comm has it
        (self.plain.Send if dest == self.rank else self.plain.Ssend)(self, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802
        going: MPI.Request = (self.plain.Isend if dest == self.rank else self.plain.Issend)(
            self, buf, dest, tag
        )
        return going

    def Dup(self, info: Any = None) -> MPI.Comm:  # noqa: N802
        made: MPI.Comm = self.plain(self.plain.Dup(self, info) if info else self.plain.Dup(self))
        return made


def _say_what_is_left() -> None:
    """Say at the end of this rank what nobody has waited for, and what was not received."""
    left = Counter(chain(_dropped(), *map(_left_on, filter(_is_strict, runtime.living()))))
    if left:
        rows = [f"{what}{f' ({n} times)' if n > 1 else ''}" for what, n in left.items()]
        more = [f"and {len(rows) - _MOST} more"] if len(rows) > _MOST else []
        runtime.say("\n  ".join(["at the end of this rank", *rows[:_MOST], *more]))


def _dropped() -> Iterator[str]:
    """Requests that nobody has waited for."""
    for each in under_way(Request):
        comm = each.waits_for and each.waits_for[0]
        if _is_strict(comm) and not any(each is own for own in comm.to_itself):
            yield f"{each.call} on '{comm.name}', started at {each.birth}, {_NEVER}"


def _left_on(comm: Comm) -> Iterator[str]:
    """Plans, and messages that nobody has received."""
    for plan in comm.outstanding.plans:
        if plan.is_under_way:
            yield f"the plan of {plan.call} on '{comm.name}', started{plan.guard.began}, {_NEVER}"
    if not comm.is_closed:
        for mpi in (comm.carriers.plain, comm.carriers.objects):
            if (message := comm.carriers.unreceived(mpi)) is None:
                continue
            (source, tag), kinds = message, comm.message_kinds
            is_known = kinds is not None and source in comm.near.regions
            first = kinds.sent(source, tag)[1] if is_known else ""
            sent = f"; its first send of this sort: {first}" * bool(first)
            yield f"a message of rank {source} with tag {tag} on '{comm.name}' was never received{sent}"


def _is_strict(comm: Any) -> bool:
    return getattr(comm, "settings", None) is not None and comm.settings.check == "strict"
