"""Watchdog: a thread that ends or reports a call that cannot complete.

It sleeps, and looks a few times a second. It answers ranks that ask what this one is doing. It ends the job,
and says why, when the main thread is in a call that cannot complete:

- a rank that it needs has ended, or made another call;
- it has waited longer than a deadline: that of a link to another program, or HPCOMM_TIMEOUT.

A call that waits for a minute is reported, once. Code that tests requests again and again, and is not inside
MPI, gets a PeerFailedError instead.

    each WATCHDOG_TICK_S:
    quiet ──────── no rank has ended, none disagrees, no deadline ──> glance at the call every few seconds
      │
      └─ trouble (_is_troubled) ──> the main thread's call: which one is it, for whom does it wait?
            same call 4 ticks long ─┬─ a needed rank has ended ────────> abort: "... which has ended"
                                    ├─ a neighbour made another call ──> abort: both calls
                                    └─ past the link's deadline ───────> abort: how long it has waited
            any call, waiting for HPCOMM_TIMEOUT ──────────────────────> abort: report of who does what
            any call, waiting for REPORT_S ────────────────────────────> say the report once, go on

Why several ticks: between two looks a call may end, or the missing rank may have left what is needed before
it ended.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ..core.limits import (
    REPORT_S,
    SILENT_S,
    WATCHDOG_AFTER_S,
    WATCHDOG_GLANCE_S,
    WATCHDOG_TICK_S,
)
from ..core.present import MESSAGE, NEXT, NONE, calling
from ..core.request import Polled, Request, polled
from ..core.signature import REFUSED, describe
from ..errors import PeerFailedError
from ..node.call_log import CallLog
from ..node.segment import NodeSegment, Region
from . import runtime
from .agreement import past_call
from .one_thread import ConcurrentCalls
from .other_sort import crossed, passed_over
from .present_calls import answer, answers, call_of, describe_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.comm import Comm
    from .heartbeat import Heartbeat

_PATIENT = 4  # looks that find the same call before it is judged: what is needed may still be on its way
_BRIEF_S = 0.02
_SHOWN = 8  # ranks in a report
_idle = threading.Event()  # set while the thread sleeps and keeps no call of the program's
_idle.set()


def start(
    node_segment: NodeSegment | None,
    abort: Callable[[str], None],
    say: Callable[[str], None],
    look: Callable[[], None],
    patience_s: float | None = None,
    beat: Heartbeat | None = None,
) -> None:
    """Start the thread.

    Args:
        beat: this rank's heartbeat, if it is the first of its node and there are others.
        abort: abort(text) must say text and end the job; say(text) only says it.
        look: called at each look, too.
        patience_s: how long any call may wait before the job is ended; None: for ever.
    """
    told = node_segment, abort, say, look, patience_s, beat
    threading.Thread(target=_watch, args=told, name="hpcomm-watchdog", daemon=True).start()


def let_go() -> None:
    """Wait until the thread keeps no call of the program's, which would keep its arrays."""
    _idle.wait(_PATIENT * WATCHDOG_TICK_S)


def _is_troubled() -> bool:
    """Whether a call might be waiting in vain, as far as the node segment tells."""
    if runtime.end_notices is not None and runtime.end_notices.hear():
        return True
    for comm in runtime.living():
        if comm.partners is not None or comm.patience_s is not None:
            return True  # there is a deadline, and end notices come by message: the call must be known
        watched = comm.near.watched
        if watched is None:
            continue
        if _differing(comm, watched[0].last_call()):
            return True
    return False


def _logs(comm: Comm) -> tuple[CallLog | None, list[tuple[int, Region, CallLog]]]:
    """comm.near.watched, read once: close() may take it away between two looks."""
    return comm.near.watched or (None, [])


def _differing(comm: Comm, call: int) -> list[tuple[int, Region, CallLog, int]]:
    """Ranks of this node that made another call than this one, and its number: this one or their last before.

    With check="full" all are told before any goes on, so there is nothing to find.
    """
    ring, peers = _logs(comm)
    if ring is None or comm.settings.check == "full":
        return []
    found = []
    for rank, region, other in peers:
        number = min(call, other.last_call())
        mine, theirs = ring.posted(number), other.posted(number)
        if number > 0 and None not in (mine, theirs) and mine != theirs:
            found.append((rank, region, other, number))
    return found


def _serve() -> None:
    """Answer ranks that ask who of another program has ended."""
    for comm in runtime.living():
        if comm.partners is not None:
            comm.partners.serve()


def _watch(
    node_segment: NodeSegment | None,
    abort: Callable[[str], None],
    say: Callable[[str], None],
    look: Callable[[], None],
    patience_s: float | None,
    beat: Heartbeat | None,
) -> None:
    waiting, crossing, reported = Waiting(patience_s), ConcurrentCalls(), False
    suspected = False  # that the call cannot complete, at the last look
    while not sys.is_finalizing():
        time.sleep(WATCHDOG_TICK_S)
        _idle.clear()
        look()
        _attend(node_segment, beat)
        troubled = _is_troubled()
        for each in polled() if troubled else ():
            _look_at(each)
        if (said := crossing.look()) is not None:
            abort(said)
        waiting.look(troubled)
        if (call := waiting.call) is None:
            _idle.set()
            continue
        silent = "" if node_segment is None else node_segment.regions[0].note
        verdict, before = _verdict(call, waiting), suspected
        suspected = verdict is not None
        if not before:  # a message may have come from one that has ended since: look again
            verdict = None
        if verdict is None and patience_s is not None:
            verdict = _out_of_time(call, waiting.waited_s, silent, patience_s)
        if verdict:
            abort(verdict)
        reported = reported and waiting.times > 0
        limit_s = SILENT_S if silent else REPORT_S
        if not reported and waiting.waited_s >= limit_s and _is_first(call):
            reported = True
            say(_report(call, waiting.waited_s, silent))


def _attend(node_segment: NodeSegment | None, beat: Heartbeat | None) -> None:
    """Answer what others ask, and let other hosts know that this rank lives."""
    _serve()
    answer()
    if beat is not None and node_segment is not None:
        beat.beat()
        node_segment.mine.note = beat.silent()


def _verdict(call: Blocked, waiting: Waiting) -> str | None:
    """Why the call cannot complete, or may wait no longer for another program; None: all is well so far."""
    if waiting.times < _PATIENT:
        return None
    found = _judge(call.comm, call.source, call.number) or _overdue(call, waiting.waited_s)
    return crossed(call.comm, call.call) if found is None and call.number == MESSAGE else found


def _out_of_time(call: Blocked, waited_s: float, silent: str, patience_s: float) -> str | None:
    """What ends the job after HPCOMM_TIMEOUT. The first of the ranks that wait says it, the others later."""
    if waited_s < patience_s + WATCHDOG_AFTER_S * (not _is_first(call)):
        return None
    return f"{_report(call, waited_s, silent)}\n  HPCOMM_TIMEOUT={patience_s:g} ends the job"


class Waiting:
    """What the main thread waits in, and since when.

    Attributes:
        call: None if it waits in nothing that lasts.
        times: looks in a row that found it in this call.
    """

    def __init__(self, patience_s: float | None) -> None:
        self.call: Blocked | None = None
        self._pause = WATCHDOG_GLANCE_S if patience_s is None else min(WATCHDOG_GLANCE_S, patience_s / 4)
        self.times, self._since, self._next = 0, 0.0, 0.0

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._since

    def look(self, closely: bool) -> None:
        """Look now; if not closely, only now and then, and at nothing that comes and goes.

        A call keeps its arrays as long as we keep it.
        """
        now, before = time.monotonic(), self.call
        if not closely and before is None:  # quiet: a glance now and then, twice within 20 ms
            if now < self._next:
                return
            self._next = now + self._pause
            before = _blocked_call()
            time.sleep(_BRIEF_S if before is not None else 0)
        call = _blocked_call() if closely or before is not None else None
        is_same = call is not None and before is not None and call.is_the(before)
        if self.call is None or not is_same:
            self.times, self._since = 0, now
        else:
            self.times += 1
        self.call = call if closely or is_same else None


def _late(call: Blocked) -> list[tuple[int, Region]]:
    """The ranks of this node that a call waits for."""
    if call.number == IN_CORE:
        calls, regions = _core_calls(call.comm), call.comm.near.regions
        return [(r, regions[r]) for r in sorted(regions) if calls and calls[r][0] < calls[call.comm.rank][0]]
    _, peers = _logs(call.comm)
    if call.number > 0:
        return [(rank, region) for rank, region, other in peers if other.last_call() < call.number]
    return [(rank, region) for rank, region, _ in peers if rank == call.source]


def _core_calls(comm: Comm) -> list[tuple[int, int, int | None, float | None]]:
    """What the native core knows of each rank's last call; nothing where it carries out none."""
    node = getattr(comm, "node", None)  # it may just be made
    try:
        return [] if node is None else list(node.calls())
    except ValueError:  # the main thread has closed it meanwhile
        return []


def _is_first(call: Blocked) -> bool:
    """Whether no lower rank of this node waits in the same collective call, and says so."""
    if call.number != IN_CORE and (call.number <= 0 or call.comm.near.watched is None):
        return True
    late = [rank for rank, _ in _late(call)]
    return all(rank > call.comm.rank or rank in late for rank in call.comm.near.regions)


def _report(call: Blocked, waited_s: float, silent: str) -> str:
    """What a call waits for, and what those are doing; silent: hosts that do not answer."""
    lines = [f"{describe_call()} on '{call.comm.name}' has waited {waited_s:.0f} s"]
    late = _late(call)
    asked = late[:_SHOWN]
    for (rank, _), text in zip(asked, answers([region for _, region in asked]), strict=True):
        lines.append(f"  for rank {rank}: {text or 'it gives no answer'}")
    if late[_SHOWN:]:
        lines.append(f"  and {len(late) - _SHOWN} more ranks of this node")
    if not asked and call.number == 0 and call.source is not None and call.source >= 0:
        lines.append(f"  for rank {call.source}")
    if call.number == MESSAGE and (there := passed_over(call.comm, call.call)):
        lines.append(f"  {there}")
    lines += [f"  {line}" for line in silent.splitlines()]
    return "\n".join(lines)


_ASKED = 10  # times that requests are asked between looks that count: MPI progresses only while it is asked


def _look_at(asked: Polled) -> None:
    """Tell the one who tests requests, if they cannot complete."""
    found = [_failure(request) for request in asked.requests]
    failures = [failure for failure in found if failure is not None]
    if not failures or (asked.is_any and None in found):
        asked.looks = 0
    elif asked.turns >= asked.judged + _ASKED:
        asked.looks, asked.judged = asked.looks + 1, asked.turns
        if asked.looks > _PATIENT:
            asked.failure = failures[0]


def _failure(request: Request[object]) -> PeerFailedError | None:
    """Why a request cannot complete, or None."""
    if request.waits_for is None or request._stages is None:
        return None
    needs = request.waits_for[:3]
    found = _ended(*needs) or _refused(*needs)
    if found is None:
        return None
    said, ranks = found
    return PeerFailedError(
        f"{request.call}{said}",
        f"started at {request.birth}",
        "look at what that rank printed, and whether it makes the matching call",
        ranks,
    )


IN_CORE = -2


class Blocked(NamedTuple):
    """Which call the main thread is in.

    source: the rank that a message must come from, or go to; None or below 0 for any
    number: of a collective call; MESSAGE; NONE, such as for a plan; IN_CORE for one that waits in the native
        core, which asks itself why (arrivals.py)
    """

    call: calling
    comm: Comm
    source: int | None
    number: int

    def is_the(self, other: Blocked) -> bool:
        """Whether the thread has not moved on since."""
        return self.call.is_the(other.call) and self.number == other.number


def _overdue(call: Blocked, waited_s: float) -> str | None:
    """The sentence about a wait for another program that has taken too long, or None."""
    patience_s = call.comm.patience_s
    if patience_s is None or waited_s < patience_s:
        return None
    return (
        f"{describe_call()} on '{call.comm.name}' has waited {waited_s:.0f} s for the other program: look at"
        " what that does, or at the network; link.deadline_s is how long it may wait"
    )


def _blocked_call() -> Blocked | None:
    """What the main thread waits in, if that is a call of a communicator that we follow."""
    call = call_of(of_comm=True)
    comm = None if call is None or call.ends else call.comm  # what ends by itself is told: see _look_at
    if call is None or comm is None or not hasattr(comm, "near"):
        return None
    number = call.number
    if number == NEXT:
        ring, _ = _logs(comm)
        calls = _core_calls(comm)
        number = NONE if ring is None else ring.last_call()
        if calls and calls[comm.rank][2] is not None:
            number = IN_CORE
    if comm.partners is not None or comm.patience_s is not None:
        number = MESSAGE if call.number == MESSAGE else NONE
    return Blocked(call, comm, call.peer, number)


def _judge(comm: Comm, source: int | None, call: int) -> str | None:
    """Why the call cannot complete, or None."""
    if call == IN_CORE:
        return None
    for rank, region, other, number in _differing(comm, call):
        ring, _ = _logs(comm)
        text, own = past_call(other, number, comm.size), ring and past_call(ring, number, comm.size)
        if text is None:
            text = answers([region])[0] or describe(other.posted(number) or 0, comm.size)
        mine = describe_call() if own is None else f"{own}, and has gone on to {describe_call()}"
        rows = f"  rank {comm.rank}: {mine}\n  rank {rank}: {text}"
        node = comm.node
        number += 0 if node is None else int(node.number)
        return f"ranks disagree about call #{number} on '{comm.name}'.\n{rows}"
    found = _ended(comm, source, call)
    return None if found is None else describe_call() + found[0]


def _ended(comm: Comm, source: int | None, call: int) -> tuple[str, list[int]] | None:
    """That a call waits for ranks which have ended, in words that go on after it, and those ranks."""
    if comm.partners is not None:
        return _ended_partners(comm, source, call)
    _, peers = _logs(comm)  # none of a link to a program without hpcomm
    ended = {rank for rank, region in comm.near.regions.items() if region.ended}
    if call:
        ended &= {rank for rank, _, other in peers if call < 1 or other.last_call() < call}
    notices, group = runtime.end_notices, " of the other group" if comm.is_inter else ""
    gone = sorted(ended.union([] if notices is None else notices.lost(comm, not call)))
    if not call:
        if source is not None and source in gone:
            return f" waits for rank {source}{group} of '{comm.name}', which has ended", [source]
        alone = 0 < len(gone) == (comm.remote_size or comm.size - 1)
        if alone and (source is None or source < 0):
            return f" waits for any rank{group} of '{comm.name}', and all others have ended", gone
        return None
    if not gone and notices is not None and comm.is_inter:
        gone, group = notices.lost(comm, False, is_here=True), " of this group"
    return (f" on '{comm.name}' waits for rank {gone[0]}{group}, which has ended", gone) if gone else None


def _refused(comm: Comm, source: int | None, call: int) -> tuple[str, list[int]] | None:
    """That ranks which a call waits for refused it, in words that go on after it, and those ranks."""
    refusing = [
        (rank, past_call(ring, number, comm.size))
        for rank, _, ring, number in _differing(comm, call)
        if ring.posted(number) == REFUSED
    ]
    if not refusing:
        return None
    rank, why = refusing[0]
    return f" on '{comm.name}' waits for rank {rank}: {why}", [rank for rank, _ in refusing]


def _ended_partners(comm: Comm, rank: int | None, call: int) -> tuple[str, list[int]] | None:
    """The same of another program's. call: 0 for a message, -1 for a collective."""
    assert comm.partners is not None
    gone = comm.partners.lost() if call == 0 else comm.partners.lost_before(comm.begun)
    if not gone or comm.partners.has_messages():
        return None
    is_known = rank is not None and rank >= 0
    dead = rank in gone if is_known else len(gone) == comm.remote_size
    if not (dead if call == 0 else gone):
        return None
    who = f"rank {rank if is_known and call == 0 else min(gone)} of program '{comm.partners.name}'"
    return f" on '{comm.name}' waits for {who}, which has ended", sorted(gone)
