"""What a rank is doing, as it tells those that ask: its call, whom it waits for, what it may serve.

It answers in its watchdog, so also while the main thread stands in MPI or computes. No answer means that the
interpreter lock is held in C, or that the process is stopped.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from textwrap import indent
from typing import Any, NamedTuple, TextIO

from ..core.comm import Comm
from ..core.limits import DESCRIPTION_S
from ..core.present import MESSAGE, NONE, has_other_threads, several
from ..core.request import Request
from ..core.verbs import receives
from ..errors import NAMED
from ..job.launcher import memory_of
from ..node import segment
from ..node.segment import Region
from . import last_calls, runtime
from .blocked import ELSEWHERE, Blocked, Waiting, blocked_call, counted, needed, parts
from .present_calls import OUTSIDE, call_of, describe_call, program_stack

ANY = -1
_SERVED = 64  # messages in the background that are told
_FRAMES = 12  # of the program's own code, from the innermost one on
_AWAITED = 4  # requests of an event loop
_BRIEF_S = 1e-3
_AT_A_FAILURE_S = DESCRIPTION_S  # for ranks to say what they do when a call has failed
OTHERS_S = 2.0  # for ranks of other nodes to answer: their watchdogs look five times a second
waits: Waiting | None = None  # the watchdog's, once it runs
_others: TextIO | None = None  # what they have said last
_NEVER_S = 1e9
reported_at = -_NEVER_S  # when this rank has last said what all ranks do
kinds: list[type] = [Request]  # of what may be in the background


class Message(NamedTuple):
    """A message as both its ends know it.

    Attributes:
        comm: the communicator's number. sends: whether this end does.
        apart: whether it is an object or a ragged array, which travel apart from arrays.
        peer: the record of the other end, or ANY. tag: or ANY.
    """

    comm: int
    sends: bool
    apart: bool
    peer: int
    tag: int

    def meets(self, here: int, other: Message, there: int) -> bool:
        """Whether this one of rank here and the other one of rank there are the two ends of one message."""
        return (
            (self.comm, self.apart) == (other.comm, other.apart)
            and self.sends != other.sends
            and self.peer in (there, ANY)
            and other.peer in (here, ANY)
            and (self.tag == other.tag or ANY in (self.tag, other.tag))
        )


class Doing(NamedTuple):
    """What a rank says that it is doing. Ranks are told by their numbers in the job, or of one node there.

    Attributes:
        who: the rank, for people; pid: in its own container.
        text: its call, and the line.
        waited_s: for how long it has waited in this call, at least; 0: it does not wait.
        needs: those without which the call cannot end; blocked.ELSEWHERE: of other nodes, or not known.
            Of a counted call, or messages that are all needed, those, too, that may have come: see known().
        is_any: whether one of them is enough.
        comm: the name of its communicator; "": it is in no call of one.
        messages: what it waits for, if these are messages: is_any: none has come; else at least one has not.
        begun: messages in the background.
        others: whether threads, or other calls in the background, may do more than that.
        stack: lines of the program's own code, the innermost last.
        number: of this rank.
        counted: of a collective call, see blocked.counted.
        counts: of collective calls that it has begun, where they are counted: a communicator's number, calls.
        quiet_s: since it has last reported a wait, and so what all ranks do.
        verb: of its call; "": it is in none.
        calls: its last ones, in words.
        host: its name; core_s: seconds of processor time; nbytes: of memory.
        elsewhere: how many ranks are on other nodes.
    """

    who: str
    pid: int
    text: str
    waited_s: float = 0.0
    needs: tuple[int, ...] = ()
    is_any: bool = False
    comm: str = ""
    messages: tuple[Message, ...] = ()
    begun: tuple[Message, ...] = ()
    others: bool = False
    stack: tuple[str, ...] = ()
    number: int = 0
    counted: tuple[int, int, int] | None = None
    counts: tuple[tuple[int, int], ...] = ()
    quiet_s: float = _NEVER_S
    verb: str = ""
    calls: tuple[str, ...] = ()
    host: str = ""
    core_s: float = 0.0
    nbytes: int = 0
    elsewhere: int = 0

    @property
    def words(self) -> str:
        """Its call, the line and the communicator."""
        return f"{self.text} on '{self.comm}'" if self.comm else self.text

    @property
    def asks_a_person(self) -> bool:
        """Whether it goes on when somebody types."""
        return bool(re.match(rf"{OUTSIDE} in (a debugger at |input\()", self.text))

    def as_text(self) -> str:
        """For the record: without the last calls, and with a shorter stack, where it is too long."""
        import json

        doing = self
        while len(text := json.dumps(doing)) > segment.ANSWER_BYTES and (doing.calls or doing.stack):
            doing = doing._replace(calls=(), stack=doing.stack[0 if doing.calls else 1 :])
        if len(text) > segment.ANSWER_BYTES:
            short = self.text[: segment.ANSWER_BYTES // 8]
            text = json.dumps(Doing(self.who, self.pid, short, others=True, number=self.number))
        return text

    @staticmethod
    def of(text: str) -> Doing:
        """What as_text() made."""
        import json

        told = Doing(*_tuples(json.loads(text)))
        messages, begun = (tuple(Message(*each) for each in some) for some in (told.messages, told.begun))
        return told._replace(messages=messages, begun=begun)


def _tuples(x: Any) -> Any:
    """The same with tuples in place of lists, which JSON has."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def own() -> Doing:
    """What this rank is doing, by its main thread."""
    stack, call, now = program_stack(_FRAMES), blocked_call(), call_of(threading.main_thread().ident)
    if call is None and stack[-1:] and stack[-1].startswith("select at selectors.py:"):  # an idle event loop
        awaited = islice(under_way(*kinds), _AWAITED)
        stack += tuple(f"awaits {each.call}, started at {each.birth}" for each in awaited)
    notices = runtime.end_notices
    told = Doing(
        runtime.name, runtime.process, describe_call(threading.main_thread().ident), host=os.uname().nodename,
        core_s=round(time.process_time(), 1), nbytes=memory_of("self"),
        elsewhere=0 if notices is None else notices.elsewhere,
        comm="" if call is None else call.comm.name, stack=stack, number=own_number(),
        quiet_s=round(time.monotonic() - reported_at, 3), verb="" if now is None else now.verb,
        calls=last_calls.own(None if now is None else now.comm),
    )  # fmt: skip
    if call is None or waits is None or not waits.times or waits.mark != call.mark:
        return told
    return _waiting(told, call, waits.waited_s)


def _waiting(told: Doing, call: Blocked, waited_s: float) -> Doing:
    """The same with what its main thread waits for."""
    numbers = numbers_of(call.comm)
    needs, is_any, messages = _missing(call)
    begun, others = _begun(getattr(call.call, "what", None))
    is_at, notices = counted(call), runtime.end_notices
    counts = () if notices is None else tuple(notices.counts.items())
    return told._replace(
        waited_s=round(max(waited_s, _BRIEF_S), 3),
        needs=needs,
        is_any=is_any,
        messages=messages,
        begun=begun,
        others=others or "hpcomm.compat.MPI" in sys.modules,
        counted=is_at and (*is_at[:2], numbers.get(is_at[2], ELSEWHERE)),
        counts=counts if len(counts) <= _SERVED else (),
    )


def known(doings: Mapping[int, Doing]) -> dict[int, Doing]:
    """doings, by their ranks: needs are without those that have come to a counted call, or to a message."""
    return {
        rank: each._replace(needs=tuple(dict.fromkeys(_lacking(rank, each, doings))))
        for rank, each in doings.items()
    }


def _lacking(rank: int, doing: Doing, doings: Mapping[int, Doing]) -> Iterable[int]:
    """Those that rank needs, as far as they are not seen to have come."""
    if doing.messages and not doing.is_any:
        return [message.peer for message in doing.messages if not is_met(message, rank, doings)]
    if doing.counted is None:
        return doing.needs
    comm, call, root = doing.counted
    if call == NONE:
        there = {
            other for other, its in doings.items() if (its.verb, its.counted) == (doing.verb, doing.counted)
        }
        return [other for other in doing.needs if other not in there]
    calls = {
        other: dict(doings[other].counts).get(comm) if other in doings else None for other in doing.needs
    }
    late = [ELSEWHERE if its is None else other for other, its in calls.items() if its is None or its < call]
    return [root] if root in late and root >= 0 else late


def is_met(message: Message, rank: int, doings: Mapping[int, Doing]) -> bool:
    """Whether the other end of what rank waits for is there, in the foreground or in the background."""
    return any(
        message.meets(rank, end, other)
        for other, its in doings.items()
        for end in ((*its.messages, *its.begun) if other != rank else its.begun)
    )


def own_number() -> int:
    """This rank's, as Doing has it."""
    notices, here = runtime.end_notices, segment.current
    if notices is not None and notices.by_message:
        return notices.rank
    return 0 if here is None else here.here


def numbers_of(comm: Comm) -> dict[int, int]:
    """Those of comm's ranks, of two groups of the other one's, as far as they are known."""
    notices, here = runtime.end_notices, segment.current
    if notices is not None and notices.by_message:
        return dict(enumerate(notices.members(comm)))
    if here is None:
        return {}
    records = comm.near.others if comm.is_inter else comm.near.regions
    found = {rank: here.regions.index(region) for rank, region in records.items()}
    return found if comm.is_inter else {**found, comm.rank: here.here}


def _missing(call: Blocked) -> tuple[tuple[int, ...], bool, tuple[Message, ...]]:
    """Doing's needs, is_any and messages of a call."""
    asked = call.call.asked if isinstance(call.call, several) else None
    waits = [(part, *needed(part)) for part in parts(call)[:_SERVED]]
    is_any = waits[0][2] if asked is None else asked.is_any
    found = []
    if asked is not None and is_any:
        waits = [(part, ranks or [ELSEWHERE], one) for part, ranks, one in waits]
        found = [ELSEWHERE] * (len(waits) < len(asked.requests))
    elif asked is not None:  # only those of which it is known which rank is missing
        waits = [
            each for each in waits if each[0].comm.partners is None and (len(each[1]) == 1 or not each[2])
        ]
    for part, ranks, _ in waits:
        numbers = numbers_of(part.comm)
        found += [numbers.get(rank, ELSEWHERE) for rank in ranks]
    messages = [message for part, _, _ in waits for message in _messages(part)]
    return tuple(dict.fromkeys(found)), is_any, tuple(messages)


def _messages(call: Blocked) -> tuple[Message, ...]:
    """What a call waits for, as far as it is known who has the other end."""
    if call.number != MESSAGE:
        return ()
    made, comm = call.call, call.comm
    found = [_message(comm, made.verb, call.source, made.tag)]
    if made.verb == "sendrecv":
        found.append(_message(comm, "send", *made.sent))
    return tuple(each for each in found if each is not None)


def _message(comm: Comm, verb: str, peer: int | None, tag: int | None) -> Message | None:
    """A message of this rank; None: it is none, or it is not known who has its other end."""
    is_apart = receives(verb)
    plain = verb.removesuffix("_object").removesuffix("_ragged")
    if is_apart is None and plain not in ("send", "isend"):
        return None
    other = ANY if peer is None or peer < 0 else numbers_of(comm).get(peer)
    if other is None:
        return None
    sends = is_apart is None
    return Message(comm.tag_base, sends, plain != verb if sends else bool(is_apart), other,
                   ANY if tag is None or tag < 0 else tag)  # fmt: skip


def _begun(what: object) -> tuple[tuple[Message, ...], bool]:
    """The messages that this rank has in the background; whether more might move on by itself.

    what: that it waits for, which does not.
    """
    found, others = [], has_other_threads()
    for one in runtime.living():
        kept = vars(one).get("outstanding")
        others |= kept is not None and any(plan.is_under_way and plan is not what for plan in [*kept.plans])
    for each in under_way(*kinds):
        comm, peer, number, verb, tag = each.waits_for or (None, None, None, "", None)
        if comm is None or number != MESSAGE or verb == "sendrecv":
            others = True
        elif (message := _message(comm, verb, peer, tag)) is not None:
            found.append(message)
    return tuple(found[:_SERVED]), others or len(found) > _SERVED


def under_way(*classes: type) -> Iterator[Any]:
    """What there is of these classes in the background.

    It is looked for among all objects: nothing is noted while requests begin.
    """
    for each in gc.get_objects():
        # not isinstance: it asks some objects, such as torch's reduce_op, which warns
        if issubclass(type(each), classes) and each.is_under_way:
            yield each


def ask(regions: Sequence[Region], seconds: float = DESCRIPTION_S) -> list[Doing | None]:
    """What the ranks of these records are doing, as far as they say it in time; this one answers, too."""
    answer()
    questions = [region.ask() for region in regions]
    end = time.monotonic() + seconds
    while True:
        said = [region.answer_to(question) for region, question in zip(regions, questions, strict=True)]
        is_open = [text is None and not region.ended for text, region in zip(said, regions, strict=True)]
        if not any(is_open) or time.monotonic() > end:
            return [Doing.of(text) if text else None for text in said]
        time.sleep(_BRIEF_S)
        answer()


def no_answer(region: Region) -> str:
    """Why a rank does not say what it does."""
    if region.gone:
        return "it has ended"
    return f"no answer: {'stopped' if region.stopped else 'in code that holds the interpreter lock'}"


def silent() -> str:
    """A line for each host that does not answer."""
    return "" if segment.current is None else segment.current.regions[0].note


def doings(comm: Comm, ranks: Container[int]) -> list[str]:
    """Lines: what the first of some ranks that are on this node do, and which hosts do not answer."""
    near = [(rank, region) for rank, region in sorted(comm.near.regions.items()) if rank in ranks][:NAMED]
    said = ask([region for _, region in near], _AT_A_FAILURE_S)
    rows = [
        f"  rank {rank}: {no_answer(region) if each is None else each.text}"
        for (rank, region), each in zip(near, said, strict=True)
    ]
    return [*rows, *indent(silent(), "  ").splitlines(), *last_calls.lines(comm, dict(near))]


def answer() -> None:
    """Say what this rank is doing, if another one asks."""
    mine = None if segment.current is None else segment.current.mine
    if mine is not None and (question := mine.question) is not None:
        mine.answer(question, own().as_text())


def answer_for_others() -> None:
    """Leave what ranks of other nodes say in a file without a name, if a process of this node asks for it."""
    global _others
    mine = None if segment.current is None else segment.current.mine
    if mine is None or (asked := mine.others_asked) == mine.others_answered:
        return
    import json

    said = {} if runtime.end_notices is None else runtime.end_notices.ask(OTHERS_S, False)
    _others = os.fdopen(os.memfd_create("hpcomm-others"), "w")
    json.dump(said, _others)
    _others.flush()
    mine.others_file, mine.others_answered = _others.fileno(), asked
