"""What is said of calls that last: once for all ranks of a node, by the first of them that has waited.

Who speaks holds a lock of the node segment while it waits; the kernel takes it away when that rank ends.

    waits PATIENT_S ──> has the lock? ──> asks all ranks of the node, now and then
                          ├─ twice the same ranks can never go on ──> that, once for each circle
                          └─ it has waited for HPCOMM_STALL ────────> the report, once for this call, unless a
                                                                      circle has been said that holds it, or
                                                                      another rank has reported this wait
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Container, Mapping

from ..agree import blocked, doing, last_calls, runtime
from ..agree.blocked import ELSEWHERE, Blocked
from ..agree.doing import Doing
from ..agree.message_kinds import passed_over
from ..agree.present_calls import describe_call
from ..core.comm import Comm
from ..core.limits import SILENT_S
from ..core.present import MESSAGE
from ..errors import grouped
from ..node import segment
from . import stuck

_SHOWN = 8  # ranks, or groups of ranks, of which a report speaks
_AGAIN_S = 1.5  # between two looks at all ranks,
_SOON_S = 0.5  # or where some were found to be unable to go on, or have not waited long enough for that
_QUIET = 2  # times HPCOMM_STALL between a report and that of another rank which waited then
_ASKING_S = 5.0  # since a rank of another node has asked, which so speaks for all
_ANSWER_S = 1.0  # for them to answer: their watchdogs look five times a second


class Reporter:
    """The words of this rank about a call in which it waits.

    Args:
        say: says a text on stderr.

    Attributes:
        stall_s: after how long a call is reported.
        end: says what can never end; where the user wants that, it ends the job.
    """

    def __init__(self, say: Callable[[str], None], stall_s: float) -> None:
        self._say, self.end, self.stall_s = say, say, stall_s
        self._speaks = self._reported = False
        self._next_s = self._ended_s = 0.0
        self._before: list[str] = []  # what those that could never go on said at the last look
        self._said: set[str] = set()

    def look(self, call: Blocked | None, waited_s: float) -> None:
        """Say what is to be said of the call in which this rank waits, or None."""
        limit_s = min(SILENT_S, self.stall_s) if doing.silent() else self.stall_s
        if call is None:  # this rank has moved on
            if self._speaks and segment.current is not None:
                segment.current.give_word()
            self._speaks, self._reported, self._before, self._next_s = False, False, [], 0.0
            return
        if waited_s < max(min(stuck.PATIENT_S, limit_s), self._next_s) or not self.may_speak():
            return
        doings = _all()
        notices = runtime.end_notices
        is_silent = notices is not None and notices.leaves_word_to_others(_ASKING_S)  # one of another node
        before = self._before
        is_soon = not is_silent and self._look_for_circles(call, doings)
        self._next_s = waited_s + (_SOON_S if is_soon else _AGAIN_S)
        if self._before not in ([], before):  # a circle, perhaps: the next look says so, or reports the wait
            return
        quiet_s = min(each.quiet_s for each in doings.values())  # since a rank has reported this wait
        if self._reported or waited_s < limit_s or quiet_s < min(waited_s, _QUIET * limit_s):
            return
        now = blocked.blocked_call()
        if now is None or now.mark != call.mark:  # it has ended while others were asked
            return
        self._reported = True
        if not is_silent:
            doing.reported_at = time.monotonic()
            self._say(self.report(call, waited_s))

    def report(self, call: Blocked, waited_s: float) -> str:
        """The words about a call that has lasted, which are kept, too."""
        doings = _all()
        held = stuck.stuck(doings)
        is_held = doing.own_number() in held  # and not seen so twice so far, as on a busy machine
        return keep(never(held, doings, call) if is_held else _report(call, waited_s, doings), doings)

    def is_a_person_asked(self) -> bool:
        """Whether a rank goes on when somebody types."""
        return any(each.asks_a_person for each in _all().values())

    def look_at_end(self, seconds: float) -> None:
        """Say which threads keep this rank, whose program has ended, seconds after the last such look."""
        before_s, self._ended_s = self._ended_s, self._ended_s + seconds
        if not before_s < self.stall_s <= self._ended_s:
            return
        kept = (
            each for each in threading.enumerate() if not (each.daemon or each is threading.main_thread())
        )
        rows = [f"  {each.name}: {describe_call(each.ident)}" for each in kept]
        if rows:
            told = f"has come to the end of its program {self._ended_s:.0f} s ago, and waits for its threads:"
            self._say("\n".join([told, *rows, "  try:   join them, or make them daemons"]))

    def may_speak(self) -> bool:
        """Whether no other rank of the node speaks."""
        self._speaks = self._speaks or segment.current is None or segment.current.take_word()
        return self._speaks

    def _look_for_circles(self, call: Blocked, doings: Mapping[int, Doing]) -> bool:
        """Returns: whether to look again soon."""
        held = stuck.stuck(doings)
        said = [f"{doings[rank].who}: {doings[rank].words}" for rank in held]
        if held and said == self._before:
            told = never(held, doings, call)
            if told not in self._said:
                self._said.add(told)
                self.end(keep(told, doings))
            self._reported = self._reported or doing.own_number() in held
        self._before = said
        return bool(said) or any(0 < each.waited_s < stuck.PATIENT_S for each in doings.values())


def _all() -> dict[int, Doing]:
    """What ranks are doing, by their numbers, as far as they answer; of other nodes, unless one is silent."""
    here = segment.current
    said = [doing.own()] if here is None else doing.ask(here.regions, _ANSWER_S)
    found = {each.number: each for each in said if each is not None}
    if runtime.end_notices is not None and not doing.silent():
        far = runtime.end_notices.ask(2 * _ANSWER_S, True)
        found |= {rank: Doing.of(text) for rank, text in far.items() if text}
    return doing.known(found)


def keep(told: str, doings: Mapping[int, Doing]) -> str:
    """Keep what is said, and what all ranks do, in a file for programs, if that can be; what to say."""
    import json
    from pathlib import Path  # few jobs come to it

    file = Path(os.environ.get("HPCOMM_STALL_DIR", ""), f"hpcomm-stall-{os.getppid()}.json")
    ranks = [{"record": rank, **each._asdict()} for rank, each in sorted(doings.items())]
    record = {"said": told, "time": time.time(), "ranks": ranks, "can_never_end": stuck.stuck(doings)}
    try:
        file.write_text(json.dumps(record, indent=1))
    except OSError:
        return told
    return f"{told}\n  stacks: {file}"


def never(held: list[int], doings: Mapping[int, Doing], call: Blocked | None = None) -> str:
    """The words about ranks of which each waits for the next one, and the last for the first.

    call: in which this rank waits.
    """
    lines = ["these calls can never end, since each waits for the next one:"]
    inside = set[int]()
    for circle in stuck.circles(held, doings):
        inside.update(circle)
        for rank, after in zip(circle, [*circle[1:], circle[0]], strict=True):
            lines.append(f"  {doings[rank].who}: {doings[rank].words} waits for {doings[after].who}")
    if call is not None:
        lines += last_calls.told({doings[rank].who: doings[rank].calls for rank in sorted(inside)}, some)
    others = [doings[rank].who for rank in held if rank not in inside]
    if others:
        lines.append(f"  and for these wait {some(others)}")
    own = doing.own_number()
    if call is not None and own in held and (there := _passed_over(call)):
        lines.append(f"  {doings[own].who}: {there}")
    hint = "make the calls of all communicators in the same order on all ranks"
    if any(doings[rank].messages for rank in inside):
        hint = "let one of them call first what the other one waits for, or send in the background"
    return "\n".join([*lines, f"  try:   {hint}"])


def some(who: list[str]) -> str:
    return ", ".join(who[:_SHOWN]) + f" and {len(who) - _SHOWN} more" * (len(who) > _SHOWN)


def _report(call: Blocked, waited_s: float, doings: Mapping[int, Doing]) -> str:
    """What a call waits for, what the other ranks are doing, and which hosts do not answer."""
    lines = [f"{describe_call()} on '{call.comm.name}' has waited {waited_s:.0f} s"]
    named, late, parts = {doing.own_number()}, {}, blocked.parts(call)
    calls = {each.who: each.calls for number, each in doings.items() if number in named}
    for part in parts:
        for rank in blocked.late(part) or _elsewhere(part, doings):
            late[part.comm.name, rank] = part.comm
    for (name, rank), comm in itertools.islice(late.items(), _SHOWN):
        number = doing.numbers_of(comm).get(rank, ELSEWHERE)
        its = doings.get(number)
        who = f"rank {rank}" + f" of '{name}'" * (number != rank) if its is None else its.who
        what = _what(comm, rank, its)
        lines.append(f"  for {who}" + f" on '{name}'" * (comm is not call.comm) + f": {what}" * bool(what))
        named.add(number)
        calls[who] = last_calls.of(comm, rank) if its is None else its.calls
    if len(late) > _SHOWN:
        lines.append(f"  and {len(late) - _SHOWN} more ranks")
    is_of_all = not any(part.number == MESSAGE or part.comm.is_inter for part in parts)
    if not late and is_of_all and len(call.comm.near.ranks) < call.comm.size:
        lines.append("  for ranks of other hosts: those of this one have come, as far as they tell")
    if there := _passed_over(call):
        lines.append(f"  {there}")
    lines += [*_others(doings, named), *last_calls.told(calls, some)]
    lines += [f"  {line}" for line in doing.silent().splitlines()]
    return "\n".join(lines)


def _what(comm: Comm, rank: int, its: Doing | None) -> str:
    """What a rank that is waited for does, as it says; or why it says nothing, if that is known."""
    if its is not None:
        return its.words
    regions = comm.near.others if comm.is_inter else comm.near.regions
    return doing.no_answer(regions[rank]) if rank in regions else ""


def _passed_over(call: Blocked) -> str:
    return next(filter(None, (passed_over(part.comm, part.call) for part in blocked.parts(call))), "")


def _elsewhere(call: Blocked, doings: Mapping[int, Doing]) -> list[int]:
    """Ranks of other hosts that a collective call waits for, as far as known: they are in other calls."""
    if call.number == MESSAGE or call.comm.is_inter:
        return []
    numbers = doing.numbers_of(call.comm)
    if blocked.counted(call):
        needs = doings[doing.own_number()].needs
        return [rank for rank, its in numbers.items() if its in needs]
    far = {rank: doings[its] for rank, its in numbers.items() if its in doings}
    return [r for r, its in far.items() if r not in call.comm.near.ranks and its.comm != call.comm.name]


def _others(doings: Mapping[int, Doing], named: Container[int]) -> list[str]:
    """Lines about the ranks that are not named yet, those in the same call together."""
    groups = grouped((each.words, each.who) for number, each in doings.items() if number not in named)
    lines = [f"  meanwhile {some(who)}: {text}" for text, who in itertools.islice(groups.items(), _SHOWN)]
    return [*lines, *["  and others elsewhere"] * (len(groups) > _SHOWN)]
