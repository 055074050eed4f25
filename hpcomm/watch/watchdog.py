"""Watchdog: a thread that ends or reports a call that cannot complete.

It sleeps, and looks a few times a second. It answers ranks that ask what this one is doing. It ends the job,
and says why, when the main thread is in a call that cannot complete:

- a rank that it needs has ended, or made another call;
- it has waited longer than a deadline: that of a link to another program, or HPCOMM_TIMEOUT.

A call that lasts is reported, once. Code that tests requests again and again, and is not inside MPI, judges
them by the same, and gets a PeerFailedError instead (core/request.py).

    each WATCHDOG_TICK_S:
    the main thread's call: which one is it, for whom does it wait?
      same call 4 ticks long ─┬─ a needed rank has ended ────────> abort: "... which has ended"
                              ├─ a neighbour made another call ──> abort: both calls
                              └─ past the link's deadline ───────> abort: how long it has waited
      any call, waiting for HPCOMM_TIMEOUT, and no rank is in
      input() or a debugger ─────────────────────────────────────> abort: report of who does what
      any call, waiting for some seconds ────────────────────────> report.py: say who waits for whom

Why several ticks: between two looks a call may end, or the missing rank may have left what is needed before
it ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Container

from ..agree import doing, runtime
from ..agree.blocked import IN_CORE, Blocked, Waiting, met
from ..agree.differences import disagreement, first_difference, past_call
from ..agree.last_calls import lines, logs
from ..agree.message_kinds import crossed
from ..agree.one_thread import concurrent_calls
from ..agree.present_calls import describe_call
from ..core import patience
from ..core import request as requests
from ..core.comm import Comm
from ..core.limits import REPORT_S, WATCHDOG_AFTER_S, WATCHDOG_TICK_S
from ..core.present import EXCHANGE, MESSAGE
from ..core.request import Request
from ..core.signature import LEFT, REFUSED
from ..errors import PeerFailedError
from ..job import exit_hooks, variables
from ..node import segment
from ..node.call_log import CallLog
from ..node.segment import Region
from .report import Reporter

_PATIENT = 4  # looks that find the same call before it is judged: what is needed may still be on its way
_idle = threading.Event()  # set while the thread sleeps
_idle.set()
current: Watchdog | None = None


def start() -> None:
    """Start the thread; the second time does nothing.

    Raises:
        ConfigError: HPCOMM_TIMEOUT or HPCOMM_STALL is no number of seconds.
    """
    global current
    if current is None:
        current = Watchdog()
        requests.judge = _failure
        exit_hooks.keepers.append(let_go)
        threading.Thread(target=current.run, name="hpcomm-watchdog", daemon=True).start()


def let_go() -> None:
    """Wait until the thread looks at no call of the program's, which would keep its arrays."""
    _idle.wait(_PATIENT * WATCHDOG_TICK_S)


def _differing(comm: Comm, call: int) -> list[tuple[tuple[int, Region, CallLog], int]]:
    """Ranks of this node that made another call than this one, and its number: this one or their last before.

    Where all compare all are told before any goes on, so there is nothing to find.
    """
    ring, peers = logs(comm)
    if ring is None or comm.settings.compares_all:
        return []
    found = [(peer, number) for peer in peers if (number := first_difference(ring, peer[2], call))]
    if segment.survives:  # who has left has given up a communicator that lost a rank
        return [each for each in found if LEFT not in (ring.posted(each[1]), each[0][2].posted(each[1]))]
    return found


class Watchdog:
    """The thread's work. reporter: who speaks of calls that last."""

    def __init__(self) -> None:
        self._patience_s = variables.seconds("HPCOMM_TIMEOUT")
        stall_s = variables.seconds("HPCOMM_STALL")
        self._says_exchanges = stall_s is not None
        self.reporter = Reporter(runtime.say, REPORT_S if stall_s is None else stall_s)
        if self._patience_s is not None:
            self.reporter.end = lambda told: runtime.abort(f"{told}\n  {self._reason()}")
        self._asked_s = 0.0  # until when, of this wait, a person was asked somewhere
        self._waiting = doing.waits = Waiting()
        self._concurrent = 0  # looks in a row that have found two threads in calls at once
        self._suspected = False  # that the call cannot complete, at the last look

    def run(self) -> None:
        """Look until the interpreter ends. A fault of ours is said, once, and the job goes on.

        One look may fail: the program makes and closes communicators meanwhile, and nothing is locked.
        """
        failures = 0  # in a row
        while not sys.is_finalizing():
            time.sleep(WATCHDOG_TICK_S)
            _idle.clear()
            try:
                self._look()
                failures = 0
            except Exception:
                failures += 1
                if failures >= _PATIENT and not sys.is_finalizing():
                    self._say_failed(failures)
            _idle.set()

    def _say_failed(self, failures: int) -> None:
        """The time that the user has set ends the job without a report, too."""
        from traceback import format_exc

        waited_s, patience_s = self._waiting.waited_s, self._patience_s
        what = f"a look at what this rank does failed; please report it\n{format_exc()}"
        if patience_s is not None and waited_s >= patience_s + WATCHDOG_AFTER_S:
            runtime.abort(f"{what}  it has waited {waited_s:.0f} s; {self._reason()}")
        if failures == _PATIENT:
            runtime.say(what)

    def _reason(self) -> str:
        return f"--stall {self._patience_s:g} (HPCOMM_TIMEOUT) ends the job"

    def _look(self) -> None:
        runtime.end_if_late()
        doing.answer()
        doing.answer_for_others()
        if patience.look():
            for comm in runtime.living():
                comm.ask_again()
        said = concurrent_calls()
        self._concurrent = self._concurrent + 1 if said else 0
        if said and self._concurrent >= _PATIENT:
            runtime.abort(said)
        call = self._waiting.look()
        if call is not None and (verdict := self._verdict(call)):
            runtime.abort(verdict)
        if call is not None and call.call.verb == EXCHANGE and not self._says_exchanges:
            call = None  # coupled programs wait for each other in each of their steps
        self.reporter.look(call, self._waiting.waited_s)
        if not threading.main_thread().is_alive():
            self.reporter.look_at_end(WATCHDOG_TICK_S)

    def _verdict(self, call: Blocked) -> str | None:
        """Why the job ends; None: all is well so far."""
        found, before = _verdict(call, self._waiting), self._suspected
        self._suspected = found is not None
        if found is not None and before:  # not at once: a message may have come from one that has ended since
            return found
        patience_s, waited_s = self._patience_s, self._waiting.waited_s
        if waited_s < self._asked_s:  # another wait
            self._asked_s = 0.0
        alone_s = waited_s - self._asked_s
        if patience_s is None or alone_s < patience_s:
            return None
        if alone_s < patience_s + WATCHDOG_AFTER_S and not self.reporter.may_speak():
            return None  # the one that speaks says it, the others later
        if self.reporter.is_a_person_asked():
            self._asked_s = waited_s
            return None
        return f"{self.reporter.report(call, waited_s)}\n  {self._reason()}"


def _verdict(call: Blocked, waiting: Waiting) -> str | None:
    """Why the call cannot complete, or may wait no longer for another program; None: all is well so far."""
    if waiting.times < _PATIENT or call.call.looks:
        return None
    if (found := _judge(call)) is not None:
        return found
    patience_s, waited_s = call.comm.patience_s, waiting.waited_s
    if patience_s is not None and waited_s >= patience_s:
        return (
            f"{describe_call()} on '{call.comm.name}' has waited {waited_s:.0f} s for the other program: look"
            " at what that does, or at the network; link.deadline_s is how long it may wait"
        )
    return crossed(call.comm, call.call) if call.number == MESSAGE else None


def _failure(request: Request[object]) -> PeerFailedError | None:
    """Why a request cannot complete, or None."""
    if request.waits_for is None or not request.is_under_way:
        return None
    needs = request.waits_for[:3]
    found = _ended(*needs) or _refused(*needs)
    if found is None:
        return None
    said, ranks = found
    hint = "look at what that rank printed, and whether it makes the matching call"
    return PeerFailedError(f"{request.call}{said}", f"started at {request.birth}", hint, ranks)


def _judge(call: Blocked) -> str | None:
    """Why the call cannot complete, or None."""
    comm = call.comm
    if call.number == IN_CORE:
        return None
    for peer, number in _differing(comm, call.number):
        return disagreement(comm, number, [peer], is_over=False).what
    if (found := _ended(comm, call.source, call.number, met(call))) is None:
        return None
    return "\n".join([describe_call() + found[0], *lines(comm, found[1])])


def _ended(
    comm: Comm, source: int | None, call: int, ranks: Container[int] = ()
) -> tuple[str, list[int]] | None:
    """That a call waits for ranks which have ended, in words that go on after it, and those ranks.

    Args:
        call: its number; 0: a message; below: it is not known.
        ranks: whom it needs, if not all of comm.
    """
    gone, whose = _gone(comm, call)
    if ranks:
        gone = [rank for rank in gone if rank in ranks]
    is_from_any = not call and (source is None or source < 0)
    if is_from_any:
        gone = gone if len(gone) >= (comm.remote_size or comm.size - 1) else []
    elif not call:
        gone = [rank for rank in gone if rank == source]
    if not gone:
        return None
    end = f"any rank{whose}, and all others have" if is_from_any else f"rank {gone[0]}{whose}, which has"
    return f" on '{comm.name}' waits for {end} ended", gone


def _gone(comm: Comm, call: int) -> tuple[list[int], str]:
    """The ranks that have ended before such a call, and whose they are."""
    notices, partners = runtime.end_notices, comm.partners
    if partners is not None:
        lost = partners.lost() if call == 0 else partners.lost_before(comm.begun)
        found = [] if lost and partners.has_messages() else sorted(lost)
        return found, f" of program '{partners.name}'"
    ended = {rank for rank, region in comm.near.regions.items() if region.ended}
    if call:
        ended &= {rank for rank, _, other in logs(comm)[1] if call < 1 or other.last_call() < call}
    if notices is not None:
        ended.update(notices.lost(comm, not call))
        if call and not ended and comm.is_inter:
            return notices.lost(comm, False, is_here=True), " of this group"
    return sorted(ended), " of the other group" if comm.is_inter else ""


def _refused(comm: Comm, source: int | None, call: int) -> tuple[str, list[int]] | None:
    """That ranks which a call waits for refused it, in words that go on after it, and those ranks."""
    refusing = [
        (rank, past_call(ring, number, comm.size))
        for (rank, _, ring), number in _differing(comm, call)
        if ring.posted(number) == REFUSED
    ]
    if not refusing:
        return None
    rank, why = refusing[0]
    return f" on '{comm.name}' waits for rank {rank}: {why}", [rank for rank, _ in refusing]
