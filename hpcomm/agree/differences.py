"""What ranks call that do not call the same: who differs, by call logs and the core, and how that is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from .._lazy import MPI
from ..core.comm import Comm
from ..core.signature import LEFT, REFUSED, describe, verb_of
from ..core.verbs import RAGGED, TABLE
from ..errors import HpcommError, MismatchError, PeerFailedError, UsageError, named, where
from ..node.call_log import CallLog
from ..node.segment import Region
from .blocked import IN_CORE, core_calls
from .doing import Doing, ask
from .last_calls import lines, logs
from .present_calls import describe_call, verb_now

SHOWN = 16  # calls that are told apart, runs of ranks of each, and ranks that get a line of their own


def first_difference(mine: CallLog, theirs: CallLog, call: int) -> int:
    """The number of the call in which two logs differ, as far as both still have it; 0: none is known.

    call: this rank's; of another rank that has not come to it, its last one counts. IN_CORE: no log has that,
        so that whatever else the other rank has begun since is another one.
    """
    if call == IN_CORE:
        number = mine.last_call() + 1
        return 0 if theirs.posted(number) in (None, LEFT) else number
    number = min(call, theirs.last_call())
    own, its = mine.posted(number), theirs.posted(number)
    return number if None not in (own, its) and own != its else 0


class Other(NamedTuple):
    """A rank that makes another call.

    Attributes:
        call: which one, or why it refuses its part; "": not known.
        has_gone_on: whether it has left that call since.
        verb: of that call.
    """

    region: Region
    call: str = ""
    has_gone_on: bool = False
    refuses: bool = False
    verb: str = ""

    def row(self, doing: Doing | None) -> str:
        """What is to be said of it. doing: its own answer, if one has come."""
        if self.refuses:
            return self.call
        if doing is None:
            if self.has_gone_on and not self.region.ended:
                return self.call
            end = "has ended" if self.region.ended else "gave no answer when asked where"
            return f"{self.call or 'another call'}, and {end}"
        is_another = doing.verb in TABLE and doing.verb != self.verb  # it has not come to that in the core
        has_left = self.has_gone_on or (self.call and (is_another or not doing.comm))
        goes = "has gone on to" if doing.verb else "is"
        return f"{self.call}, and {goes} {doing.text}" if has_left else doing.text


def past_call(log: CallLog, number: int, size: int) -> str | None:
    """What is known of a call of a rank's which refused it, or has gone on since; None: it is at it."""
    called = log.posted(number)
    if called == REFUSED:
        return log.refusal(number) or describe(called)
    has_gone_on = log.last_call() > number and log.posted(number + 1) != LEFT
    return describe(called or 0, size) if has_gone_on or called == LEFT else None


def disagreement(
    comm: Comm, number: int, peers: Iterable[tuple[int, Region, CallLog]], is_over: bool = True
) -> HpcommError:
    """The error for a call of the call log, in which these peers are known to differ.

    is_over: this rank makes no call of comm any more.
    """
    mine, _ = logs(comm)
    total = present_number(comm) + (number if mine is None else min(number, mine.last_call()))
    others = {}
    for rank, region, log in peers:
        past, called = past_call(log, number, comm.size), log.posted(number)
        call = describe(called or 0, comm.size) if past is None else past
        others[rank] = Other(region, call, past is not None, called == REFUSED, verb_of(called or 0))
    own = None if mine is None else past_call(mine, number, comm.size)
    if is_over:
        comm.fall_out()
    return told(comm, total, own, others)


def told(comm: Comm, number: int, own: str | None, others: Mapping[int, Other]) -> HpcommError:
    """The error for a call about which the ranks disagree, once the others have told what they are doing.

    Args:
        own: this rank's call, if it has gone on since.
        others: by rank.
    """
    mine = describe_call()
    asked = [rank for rank, each in others.items() if not (each.refuses or each.region.ended)]
    said = dict(zip(asked, ask([others[rank].region for rank in asked]), strict=True))
    rows = {rank: each.row(said.get(rank)) for rank, each in others.items()}
    rows[comm.rank] = mine if own is None else f"{own}, and has gone on to {mine}"
    text = "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows))
    return mismatch(comm, number, text, [rank for rank, each in others.items() if each.refuses])


def present_number(comm: Comm) -> int:
    """The number, of the core's calls, of the one that this rank waits in, as far as it has come; 0: none."""
    node, calls = comm.node, core_calls(comm)  # close() takes it away
    return min(int(node.number), calls[comm.rank][0]) if node is not None and calls else 0


def open_node(comm: Comm, verb: str) -> Any:
    """comm's node, in a call that has begun.

    Raises:
        UsageError: another thread has closed comm since.
    """
    if (node := comm.node) is None:
        hint = "close it when no thread calls it any more"
        raise UsageError(f"'{comm.name}' was closed while this call began", where(verb, comm), hint)
    return node


def mismatch(comm: Comm, number: int, rows: str, refusing: list[int], verb: str = "") -> HpcommError:
    """refusing: the ranks that do not make this call for an error of their own. verb: of this rank's call."""
    verb = verb or verb_now()
    if refusing:
        return PeerFailedError(
            f"rank {refusing[0]} refused its part of call #{number} on '{comm.name}'.\n{rows}",
            where(verb, comm),
            "look at that rank's own error",
            refusing,
        )
    hint = "make the same call on every rank, in the same order: operator, dtype, number of elements, root"
    if verb in RAGGED:
        hint += f"; {verb}_ragged takes arrays of any shape and dtype"
    what = [f"ranks disagree about call #{number} on '{comm.name}'.", rows, *lines(comm)]
    return MismatchError("\n".join(what), where(verb, comm), hint)


# -- what all ranks call: equal calls together, so that a report stays short -----------------------------
class Call(NamedTuple):
    """What a rank calls, and why it refuses that: "" where it does not."""

    text: str
    why: str = ""


class Ranks(NamedTuple):
    """The first and last ranks of the lowest runs, and how many ranks there are in all."""

    runs: tuple[tuple[int, int], ...]
    total: int

    def known(self) -> list[int]:
        """Those of the runs."""
        return [rank for first, last in self.runs for rank in range(first, last + 1)]

    def __str__(self) -> str:
        known = self.known()
        more = self.total - len(known)
        return named(known) + (f" and {more} more" if more else "")


Calls = dict[Call, Ranks]
OTHERS = Call("other calls")


def alone(rank: int) -> Ranks:
    return Ranks(((rank, rank),), 1)


def calls_of(shadow: MPI.Comm, rank: int, mine: Call) -> Calls:
    """The calls of all ranks, or of those of the other group. Collective, in log2 p rounds."""
    return shadow.allreduce({mine: alone(rank)}, joined)  # type: ignore[no-any-return]


def joined(some: Calls, more: Calls) -> Calls:
    """Both; of too many calls those that are refused, then those of low ranks."""
    found: Calls = {}
    for call, ranks in chain(some.items(), more.items()):
        found[call] = _together(found[call], ranks) if call in found else ranks
    known = sorted(found, key=lambda call: (call == OTHERS, not call.why, found[call].runs))
    made = {call: found[call] for call in known[:SHOWN]}
    for call in known[SHOWN:]:
        made[OTHERS] = _together(made[OTHERS], found[call]) if OTHERS in made else found[call]
    return made


def _together(some: Ranks, more: Ranks) -> Ranks:
    runs: list[tuple[int, int]] = []
    for first, last in sorted(some.runs + more.runs):
        if runs and runs[-1][1] + 1 == first:
            runs[-1] = runs[-1][0], last
        else:
            runs.append((first, last))
    return Ranks(tuple(runs[:SHOWN]), some.total + more.total)


def holding(calls: Calls) -> list[str]:
    """A line for each group of ranks that hold the same."""
    return [f"  {ranks} hold{'s' * (ranks.total == 1)} {call.text}" for call, ranks in calls.items()]


def refusers(calls: Calls) -> list[int]:
    """The ranks that are known to refuse their call."""
    return sorted(rank for call, ranks in calls.items() if call.why for rank in ranks.known())


def rows(calls: Calls, side: str = "") -> list[str]:
    """A line for each rank, or of many ranks for each call."""
    if sum(ranks.total for ranks in calls.values()) <= SHOWN:
        each = {rank: call for call, ranks in calls.items() for rank in ranks.known()}
        return [f"  rank {rank}{side}: {each[rank].why or each[rank].text}" for rank in sorted(each)]
    found = sorted(calls, key=lambda call: calls[call].runs)
    return [f"  {calls[call]}{side}: {call.why or call.text}" for call in found]
