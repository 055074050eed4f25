"""Agreement: do all ranks of a communicator make the same call?

Every collective call has a signature (verb, operator, dtype, root, number of elements). Levels:

off    nothing is compared.
light  Calls that the native core carries out tell their signatures with their arrivals (arrivals.py). Of all
       others ranks of one node record the signature in the node segment before the call. Each looks at
       those of its two neighbours before the call, and at the next one's after it; nobody waits.
full   all ranks compare before each call, wherever they are, and all raise. Costs one small all-reduce a
       call. Calls are recorded, too, so that ranks which have ended are noticed as with light.

values full, and with it a checksum of the results so far that all should hold (values.py).
strict values, and what one rank can tell of its own memory, messages and requests (communicator/strict.py).

Two groups compare by such an all-reduce at light, too: neither sees what the other one records, and a rank
that refuses its part would leave the others waiting. Light compares calls in the background when they are
waited for.

Why two neighbours are enough for light: around the ring of ranks there are at least two places where the
signature changes. The rank that comes later to such a place sees the other one's entry, also where that one
has gone on since.

    rank         0         1         2         3     (0 again)
    call #7   all_reduce  all_reduce  barrier  all_reduce
                              └── differ ──┘└── differ ──┘

    a look at a neighbour's entry of call i:
      mine      it makes the same call                          go on
      none      it has not come yet                            go on: it will look at this rank's entry
                (or its entry is gone: it is far ahead)
      other     suspect(): look again, ask both for their call sites, raise MismatchError

Light cannot stop a rank that is already inside MPI, or has gone on. The rank that sees the difference raises;
if nobody catches that, the job ends with a message that names both calls. If somebody does, later collective
calls on that communicator raise as well, for they could take what an earlier one left.

A rank that refuses its part, as of a wrong dtype, has made a call all the same, one that fits only those of
ranks which refuse theirs. So the others are told in the same ways, and why.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from .._lazy import MPI
from ..core.comm import Comm
from ..core.limits import REFUSAL_S
from ..core.request import Stages, abandon
from ..core.signature import BACKGROUND, LEFT, REFUSED, ROOT, ROOTS, VERB, VERBS, describe, head, signature
from ..errors import HpcommError, MismatchError, has_ended, located, placed, where
from ..node.call_log import CallLog
from ..node.segment import Region
from . import runtime, survival
from .deadline import within
from .differences import (
    Call,
    Calls,
    alone,
    calls_of,
    disagreement,
    first_difference,
    joined,
    mismatch,
    refusers,
    rows,
)
from .last_calls import lines
from .present_calls import describe_call, verb_now
from .values import Values

Error = TypeVar("Error", bound=Exception)
LEVELS = ("off", "light", "full", "values", "strict")  # each includes those before it
_WHY = 1024  # bytes of what a refusal says between two groups


def depth(level: str) -> int:
    """How far beyond "light" a level goes: 0 where ranks do not compare each call before it begins."""
    return max(0, LEVELS.index(level) - 1)


class Agreement:
    """How the ranks of one communicator agree.

    enter(head, count) before a call, leave() after it; late(head, count) -> leave for background calls,
    which is the same leave unless several of them can be under way.
    refuse(why) in place of a call that this rank refuses; depart() after the last one of a rank that is out
    of step. compares_all: before each call. again() at each start of a plan; None: nobody looks at those.
    """

    __slots__ = ("again", "compares_all", "depart", "enter", "late", "leave", "level", "refuse")
    again: Callable[[], None] | None

    def __init__(
        self,
        level: str,
        enter: Callable[[int, int], None],
        late: Callable[[int, int], Callable[[], None]] | None = None,
        leave: Callable[[], None] = lambda: None,
        refuse: Callable[[str], None] = lambda why: None,
    ) -> None:
        def entered(code: int, count: int) -> Callable[[], None]:
            enter(code, count)
            return leave

        self.level, self.enter, self.leave, self.refuse = level, enter, leave, refuse
        self.compares_all = depth(level) > 0
        self.late = late or entered  # of those that have compared all by then
        self.depart: Callable[[], object] = lambda: None
        self.again = None


def off() -> Agreement:
    """Compare nothing."""
    return Agreement("off", lambda code, count: None)


def counted(comm: Comm) -> Agreement:
    """Compare nothing, but count the calls that two groups make together."""

    def enter(*_: object) -> None:
        comm.begun += 1

    return Agreement("off", enter)


def light(comm: Comm, log: CallLog, peers: list[tuple[int, Region, CallLog]]) -> Agreement:
    """Compare with the ranks of this node on either side.

    Args:
        log: this rank's call log.
        peers: the other ranks of comm on this node, next neighbour first: rank, region, log.
    """
    ahead, behind = peers[0], peers[-1]
    number = last = 0  # of the last call, and its signature

    def differs(peer: tuple[int, Region, CallLog], call: int, mine: int) -> bool:
        """Whether a neighbour makes another call, or none any more."""
        seen = peer[2].posted(call)
        return seen != mine and (seen is not None or peer[1].ended)

    def enter(code: int, count: int) -> None:
        nonlocal number, last
        last = signature(code, count)
        number = log.post(last)
        leave()
        if differs(behind, number, last):
            suspect(number)

    def leave() -> None:
        if differs(ahead, number, last):
            suspect(number)

    def late(code: int, count: int) -> Callable[[], None]:
        enter(code, count)
        mine, call = last, number

        def leave_late() -> None:
            if differs(ahead, call, mine):
                suspect(call)

        return leave_late

    def suspect(number: int) -> None:
        """Raise if a neighbour makes another call than this one."""
        rank, region, other = ahead
        survival.check(comm, verb_now())
        if region.ended and other.last_call() < number:
            what, told = f"call #{number} on '{comm.name}'", lines(comm, [rank])
            raise has_ended(what, where(verb_now(), comm), [rank], told)
        if first_difference(log, other, number) or first_difference(log, behind[2], number):
            time.sleep(1e-4)  # where stores may be seen out of order: look again before accusing anybody
            if others := [peer for peer in peers if first_difference(log, peer[2], number)]:
                raise disagreement(comm, number, others)

    def refuse_call(why: str) -> None:
        nonlocal number, last
        log.refuse(log.last_call() + 1, why)
        number, last = log.post(REFUSED), REFUSED
        if any(other.posted(number) not in (None, REFUSED) for _, _, other in (ahead, behind)):
            comm.fall_out()  # others come later than this, and see it

    made = Agreement("light", enter, late, leave, refuse_call)
    made.depart = lambda: log.post(LEFT)
    return made


def full(comm: Comm, shadow: MPI.Comm, log: CallLog | None = None) -> Agreement:
    """Compare all ranks before every call; all of them raise.

    log: this rank's call log, where others' watchdogs see to which call it has come.
    """
    call = 0
    values = comm.values or Values()  # of which nothing is said
    in_place, words, highest, layout = MPI.IN_PLACE, MPI.INT64_T, MPI.MAX, struct.Struct("4q")

    def heard(mine: int, why: str) -> Calls:
        """What the ranks call, if they differ."""
        nonlocal call
        call += 1
        if log is not None:
            log.post(mine)
        said, values.signature = values.said, mine
        both = bytearray(layout.pack(mine, -mine, said, -said))
        shadow.Allreduce(in_place, [both, words], highest)
        high, low, most, least = layout.unpack(both)
        if high != -low:
            return calls_of(shadow, comm.rank, Call(describe_call(), why))
        if most == -least:
            values.since.clear()
        elif told := values.difference(comm, shadow, most, -least):
            hint = "comm.same(result) right behind that call names the first element that differs"
            raise MismatchError(told, where(verb_now(), comm), hint)
        return {}

    def enter(code: int, count: int) -> None:
        if calls := heard(signature(code, count), ""):
            raise mismatch(comm, call, "\n".join(rows(calls)), refusers(calls))

    def refuse_call(why: str) -> None:
        with _saying(why):
            heard(REFUSED, why)

    level = comm.settings.check if comm.values or comm.settings.check == "strict" else "full"
    return Agreement(level, enter, refuse=refuse_call)


def between(comm: Comm, both: MPI.Intracomm) -> Agreement:
    """Compare two groups at every call; all ranks of both raise.

    A call in the background, light begins at once, and its comparison is waited for where the call is.

    Args:
        both: the ranks of the two groups in one.
    """
    nothing = -(1 << 63), -(1 << 63)
    # Numbers of roots are cut to 20 bits, where ROOT and PROC_NULL look like the last ones.
    is_large = max(comm.size, comm.remote_size) > ROOTS - 16
    is_root, is_beside, here = (head("?", root=rank) for rank in (MPI.ROOT, MPI.PROC_NULL, comm.rank))

    def begun(code: int, count: int, why: str = "") -> Comparison:
        """Say what this rank calls; the other group names a root by its rank in this one."""
        comm.begun += 1
        verb, root, rest = code & VERB, code & ROOT, code & ~ROOT
        root = 0 if is_large else here if root == is_root else root
        mine = signature(rest | root, count)
        is_nothing = root == is_beside and not is_large  # its arrays do not count
        said = verb, -verb, *(nothing if is_nothing else (mine, -mine))
        late = code & BACKGROUND if comm.compared != "full" else 0
        return Comparison(_heard(comm, both, (*said, both.rank if why else -1, late), mine, why))

    def late(code: int, count: int) -> Comparison:
        made = begun(code, count)
        if comm.compared == "full" or not code & BACKGROUND:
            made.Wait()
        return made

    def refuse_call(why: str) -> None:
        with _saying(why):
            begun(REFUSED, 0, why).Wait()

    return Agreement(comm.compared, lambda *call: begun(*call).Wait(), late, refuse=refuse_call)


def _heard(comm: Comm, both: MPI.Intracomm, said: tuple[int, ...], mine: int, why: str) -> Stages:
    """Hear what both groups call; of the ranks that refuse it, the last one tells all others why.

    Args:
        said: verb and signature, each with its negative; this rank of both, if it refuses; whether the call
            has begun.
        why: this rank refuses the call.
    """
    number, heard = comm.begun, bytearray(struct.pack("6q", *said))
    yield [both.Iallreduce(MPI.IN_PLACE, [heard, MPI.INT64_T], MPI.MAX)]
    verb, other_verb, high, low, refuser, has_begun = struct.unpack("6q", heard)
    if verb == -other_verb and (high == -low or high == low):  # the same, or nothing
        return
    if has_begun:
        comm.fall_out()
    is_first = both.rank == comm.rank
    if refuser == both.rank:
        reason = why.encode()[:_WHY]
        others = [rank for rank in range(both.size) if rank != both.rank]
        abandon(reason, [both.Isend([reason, MPI.BYTE], rank, 0) for rank in others])
        return
    own = describe(mine, comm.size) if has_begun else describe_call()
    if refuser >= 0:
        told = bytearray(_WHY)
        yield [both.Irecv([told, MPI.BYTE], refuser, 0)]
        second = refuser - (comm.size if is_first else comm.remote_size)  # as a rank of the second group
        rank, is_there = (refuser, not is_first) if second < 0 else (second, is_first)
        text = told.rstrip(b"\0").decode(errors="ignore")
        lines, refusing = [f"  rank {rank} {'there' if is_there else 'here'}: {text}"], [rank]
    else:
        calls: list[Calls] = [{}, {}]  # of each group
        calls[not is_first] = {Call(own): alone(comm.rank)}
        calls = both.allreduce(calls, lambda some, more: [*map(joined, some, more)])
        lines, refusing = rows(calls[is_first], " there"), []
    if not why:
        verb = VERBS[mine & VERB] if has_begun else verb_now()
        raise mismatch(comm, number, "\n".join([f"  rank {comm.rank} here: {own}", *lines]), refusing, verb)


class Comparison:
    """A comparison of two groups' calls under way; waited for as a request of MPI is."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self._pending = stages, next(stages)
        self.keeps: list[object] = []  # what MPI may still use where others have not begun the call

    def __call__(self) -> None:
        """What leaves a call: whoever has waited for it has waited for this."""

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        while self._pending and self._pending[0].Test():
            self._go_on()
        return not self._pending

    def Wait(self, status: object = None) -> None:  # noqa: N802
        while self._pending:
            self._pending[0].Wait()
            self._go_on()

    def _go_on(self) -> None:
        try:
            self._pending = next(self._stages, [])
        except HpcommError:
            abandon(self.keeps)
            raise


def _saying(why: str) -> AbstractContextManager[None]:
    """While a rank that refuses a call waits for others who may never make it: says why, after a while."""
    return within(REFUSAL_S, f"{why}\n  this rank waits to tell the others", runtime.say)


def refused(comm: Comm, verb: str, error: Error) -> Error:
    """error, for which this rank refuses its part of a call of verb, once the others are told."""
    what = str(error)
    if isinstance(error, HpcommError):
        what = error.what
        placed(error, verb, comm)
    if not comm.is_closed and not comm.disagreed:
        comm.agreement.refuse(f"{describe_call(verb=verb)} refused: {type(error).__name__}: {what}")
    return error


class refusing(located):  # noqa: N801
    """For an error of ours that leaves it this rank refuses its part of a call of verb, and tells others."""

    comm: Comm

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, HpcommError):
            refused(self.comm, self.verb, error).__suppress_context__ = True
