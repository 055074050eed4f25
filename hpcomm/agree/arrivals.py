"""Arrivals: what the native core asks while a rank waits in a call, and what is said when the call fails.

Calls that the core carries out are not in the call log: their signatures come with the ranks' arrivals, and
the core compares them. Of what goes on around it the core knows nothing. So it asks about every ms of a wait:

    hook("waits", ranks that have not come)
      │  moves MPI on: others may wait for it
      ├─ a second thread of this rank has come to a call ─────────> UsageError
      ├─ one of the ranks has ended ──────────────────────────────> PeerFailedError
      ├─ one of them is out of step ──────────────────────────────> what it was told: mostly a MismatchError
      └─ one of them has begun another call, as its log tells ────> MismatchError; PeerFailedError: it refused
    hook("mismatch", ranks, mine, theirs) ────────────────────────> the same two
    hook("busy") another thread of this rank is in a call ────────> UsageError
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import current_thread, get_ident

from ..core.comm import Comm
from ..core.present import is_own
from ..core.signature import LEFT, REFUSED, describe, verb_of
from ..errors import HpcommError, MismatchError, PeerFailedError, WaitTimeoutError, has_ended, named, where
from .blocked import IN_CORE
from .differences import (
    Other,
    disagreement,
    first_difference,
    open_node,
    past_call,
    present_number,
    told,
)
from .doing import doings
from .last_calls import lines, log_of, logs
from .present_calls import verb_now
from .survival import DETECTED_S, failure


class Arrivals:
    """What the core calls for a node of which comm's ranks are all the ranks.

    A process group, whose calls all wait for all, has one of its own (torch_backend/entry_barrier.py).

    Attributes:
        what, where: the call and this rank, for messages.
        seconds: how long a call waits for the others; hint: what sets that.
    """

    hint = "look for the rank that did not make the matching call; comm.timeout sets the time"

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        # Found out of step. What they have disagreed about the core may find at its next look: it compared
        # before this one, and so perhaps before they came.
        self._seen_left: set[int] = set()

    def __call__(self, reason: str, ranks: Sequence[int], mine: int = 0, theirs: int = 0) -> None:
        if reason == "waits":
            self.look_at(ranks)
        elif reason == "busy":
            raise self.comm.call_guard.refusal()
        elif reason == "mismatch":
            raise self.differs(ranks[0], mine, theirs)
        elif reason == "late":
            raise self.late(ranks)
        else:
            raise self.left(ranks[0])

    @property
    def what(self) -> str:
        return f"{verb_now()} on '{self.comm.name}'"

    @property
    def where(self) -> str:
        return where(verb_now(), self.comm)

    @property
    def seconds(self) -> float:
        return self.comm.timeout_s or 0.0

    def look_at(self, ranks: Sequence[int]) -> None:
        """Raise if one of those who have not come to this call never will."""
        comm = self.comm
        if is_own(current_thread()):  # which moves on what is in the background
            return
        comm.move_on()
        comm.call_guard.waiting = get_ident()
        comm.call_guard.check()
        for rank in ranks:
            self._look_at(rank)

    def _look_at(self, rank: int) -> None:
        comm = self.comm
        begun, has_left, region = _other_call(comm, rank), _has_left(comm, rank), comm.near.regions.get(rank)
        has_died, is_over = (False, False) if region is None else (region.died, region.ended)
        if has_died:  # also in the midst of a call to which it has come
            raise _ended(comm, rank, rank)
        if not (has_left or is_over or begun):
            return
        node = comm.node  # None: closed meanwhile, by another thread
        if node is not None and node.calls()[rank][0] >= present_number(comm):
            return  # it has come to this call since
        if begun:
            raise _elsewhere(comm, rank, begun)
        if not has_left:
            raise _ended(comm, rank, rank)
        if rank in self._seen_left:
            raise _out_of_step(comm, rank)
        self._seen_left.add(rank)

    def differs(self, rank: int, mine: int, theirs: int) -> HpcommError:
        """A rank has come to the same call with another signature."""
        comm = self.comm
        if begun := _other_call(comm, rank):  # it made, or refused, another call before
            return _elsewhere(comm, rank, begun)
        log, own = logs(comm)[0], _refused_here(comm, rank)
        total = present_number(comm) + (0 if log is None else log.last_call())  # of the core and in the log
        comm.fall_out()
        node = open_node(comm, verb_now())
        calls = node.calls()
        number = present_number(comm)
        own = own or (describe(mine, comm.size) if node.number > number else None)
        others = {}
        for other, (theirs_number, signature, _, _) in enumerate(calls):
            is_another = signature != mine if theirs_number == number else other == rank
            if is_another and other != comm.rank:
                its = theirs if other == rank else signature
                called, has_gone_on = describe(its, comm.size), theirs_number > number
                others[other] = Other(comm.near.regions[other], called, has_gone_on, verb=verb_of(its))
        return told(comm, total, own, others)

    def late(self, ranks: Sequence[int]) -> HpcommError:
        """Some ranks have not come in time."""
        what = f"{self.what} reached its timeout after it waited {self.seconds:.3g} s for {named(ranks)}"
        return WaitTimeoutError("\n".join([what, *doings(self.comm, ranks)]), self.where, self.hint)

    def left(self, rank: int) -> HpcommError:
        """A rank has come, and has left this call since."""
        if (died := failure(self.comm, verb_now(), DETECTED_S)) is not None:
            return died
        if _has_left(self.comm, rank):  # before it told so
            return _out_of_step(self.comm, rank)
        what = f"{self.what} needs rank {rank}, which gave up: it left this call by an error"
        hint = "look at what that rank printed; if it waited for this one, give it more time"
        return PeerFailedError(what, self.where, hint, [rank])


def _has_left(comm: Comm, rank: int) -> bool:
    """Whether a rank is out of step: it makes no call any more."""
    log = log_of(comm, rank)
    return log is not None and log.posted(log.last_call()) == LEFT


def _ended(comm: Comm, rank: int, cause: int) -> HpcommError:
    """This call needs rank, which has ended; or whose own call needed another one, the cause."""
    comm.fall_out()
    if (died := failure(comm, verb_now())) is not None:
        return died
    what = f"{verb_now()} on '{comm.name}'"
    if rank != cause:
        what += f" needs rank {rank}, which is out of step: its own call"
    return has_ended(what, where(verb_now(), comm), [cause], lines(comm, [cause]))


def _out_of_step(comm: Comm, rank: int) -> HpcommError:
    """This call needs a rank that is out of step: for the reason which made it so, as far as others show."""
    for other, region in comm.near.regions.items():
        if (region.ended or region.died) and not _has_left(comm, other):
            return _ended(comm, rank, other)
    for other, _, log in logs(comm)[1]:
        number = log.last_call() - (log.posted(log.last_call()) == LEFT)
        if log.posted(number) == REFUSED:
            return _elsewhere(comm, other, number)
    comm.fall_out()
    verb = verb_now()
    return MismatchError(
        f"{verb} on '{comm.name}' needs rank {rank}, which is out of step: ranks disagreed about a call",
        where(verb, comm),
        "look at what that rank printed; every rank must make the same collective calls",
    )


def _other_call(comm: Comm, rank: int) -> int:
    """The number of a call in the log that a rank has made and this one has not; 0: there is none."""
    (mine, _), log = logs(comm), log_of(comm, rank)
    number = 0 if mine is None or log is None else first_difference(mine, log, IN_CORE)
    # To what it has begun in the background before that one it may still come.
    return 0 if number and (comm.node is None or comm.node.queued(rank)) else number


def _refused_here(comm: Comm, rank: int) -> str | None:
    """A call that this rank has refused, and that another one has not come to: it makes that in the core."""
    (mine, _), log = logs(comm), log_of(comm, rank)
    number = 0 if mine is None or log is None else first_difference(log, mine, IN_CORE)
    return past_call(mine, number, comm.size) if mine and mine.posted(number) == REFUSED else None


def _elsewhere(comm: Comm, rank: int, number: int) -> HpcommError:
    """A rank that has not come to this call has begun one that is in the call log."""
    return disagreement(comm, number, [peer for peer in logs(comm)[1] if peer[0] == rank])
