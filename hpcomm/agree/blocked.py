"""What the main thread waits in, since when, and for whom.

a message        its peer; any: one of all
in the core      the rank whose arrival it waits for
in MPI           those that have not come to the call, as their logs tell; of several hosts, as they count
                 their calls. Which of them it needs depends on the verb
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from ..core.comm import Comm
from ..core.present import MESSAGE, NEXT, NONE, calling, meeting, several, waiting
from ..core.verbs import MUTUAL, PREFIXES, ROOT_RECEIVES, ROOT_SENDS, TABLE
from . import runtime
from .last_calls import logs
from .letters import FEW
from .present_calls import call_of

IN_CORE = -2
ELSEWHERE = -1
_LIVED_S = 1.0  # between two looks at most: else this process, or the whole job, was stopped


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

    @property
    def mark(self) -> object:
        """What tells it from all other calls, and keeps no array of it."""
        return self.call.noted or weakref.ref(self.call), self.number


def blocked_call() -> Blocked | None:
    """What the main thread waits in, if that is a call of a communicator that we follow."""
    call = call_of(threading.main_thread().ident, of_comm=True)
    if call is None or call.ends:  # what ends by itself is told: see core/request.py
        return None
    return _blocked(call)


def parts(call: Blocked) -> list[Blocked]:
    """The call; of one that asks several requests a wait for each of them, as far as it is known for whom."""
    if not isinstance(call.call, several):
        return [call]
    needing = [each for each in call.call.asked.requests if getattr(each, "waits_for", None)]
    return [part for each in needing if (part := _blocked(waiting(each))) is not None]


def _blocked(call: calling) -> Blocked | None:
    comm = call.comm
    if comm is None or not hasattr(comm, "near"):
        return None
    number = call.number
    if comm.partners is not None or comm.patience_s is not None:
        number = MESSAGE if number == MESSAGE else NONE
    elif number == NEXT:
        ring, _ = logs(comm)
        begun = 0 if ring is None else ring.last_call()
        number = NONE if ring is None else begun or 1  # which it is about to begin, if that is the first one
        if core_calls(comm) and (_awaited(comm) is not None or not begun):
            number = IN_CORE
    return Blocked(call, comm, call.peer, number)


def _awaited(comm: Comm) -> int | None:
    """The rank whose arrival this one waits for in the native core."""
    calls = core_calls(comm)
    return calls[comm.rank][2] if calls else None


class Waiting:
    """What the main thread waits in, and since when. Keeps none of its calls, and so none of their arrays.

    Attributes:
        mark: of the call at the last look.
        times: looks in a row before that which found it in the same call.
        waited_s: how long the process has lived in it; not while it was stopped.
    """

    def __init__(self) -> None:
        self.mark: object = None
        self.times, self.waited_s, self._looked = 0, 0.0, 0.0

    def look(self) -> Blocked | None:
        """The call, if the main thread was in it at the last look, too."""
        now, call = time.monotonic(), blocked_call()
        mark = None if call is None else call.mark
        if is_same := mark is not None and mark == self.mark:
            self.times += 1
            self.waited_s += min(now - self._looked, _LIVED_S)
        else:
            self.times, self.waited_s = 0, 0.0
        self.mark, self._looked = mark, now
        return call if is_same else None


def core_calls(comm: Comm) -> list[tuple[int, int, int | None, float | None]]:
    """What the native core knows of each rank's last call; nothing where it carries out none."""
    node = getattr(comm, "node", None)  # it may just be made
    try:
        return [] if node is None else list(node.calls())
    except ValueError:  # the main thread has closed it meanwhile
        return []


def late(call: Blocked) -> list[int]:
    """The ranks that a call waits for: of a message its other end, of other calls those of this node."""
    if call.number == IN_CORE:
        calls, ranks = core_calls(call.comm), sorted(call.comm.near.regions)
        return [rank for rank in ranks if calls and calls[rank][0] < calls[call.comm.rank][0]]
    if call.number > 0:
        return [rank for rank, _, other in logs(call.comm)[1] if other.last_call() < call.number]
    return [] if call.source is None or call.source < 0 else [call.source]


def _ends(call: Blocked) -> list[int]:
    """The other ends of a message; of sendrecv both, since it is not known which of them is still missing."""
    size = call.comm.remote_size if call.comm.is_inter else call.comm.size
    anybody = [*range(size)] if size <= FEW else [ELSEWHERE]
    peers = [call.source, call.call.sent[0]] if call.call.verb == "sendrecv" else [call.source]
    return [rank for peer in peers for rank in (anybody if peer is None or peer < 0 else [peer])]


def needed(call: Blocked) -> tuple[list[int], bool]:
    """Without which ranks a call cannot end, ELSEWHERE for those not known; whether one is enough.

    Where calls are counted: all that it would need if nobody had come.
    """
    comm, verb, root = call.comm, _verb(call), call.call.words.get("root")
    if call.number == MESSAGE and comm.partners is None:
        return _ends(call), True
    if call.number == IN_CORE:
        awaited = _awaited(comm)
        return ([ELSEWHERE], True) if awaited is None else ([awaited], False)
    if ranks := met(call):  # who is in no such call may have left it, so that one that goes on is enough
        return [rank for rank in ranks if rank != comm.rank], True
    if counted(call):
        return [rank for rank in range(comm.size) if rank != comm.rank], _goes_round(call)
    found = [] if comm.is_inter or call.number == NONE else late(call)
    if verb in ROOT_SENDS and root in found:
        return [root], False
    is_known = found or (call.number != NONE and len(comm.near.ranks) == comm.size)
    return (found, _goes_round(call)) if is_known else ([ELSEWHERE], True)


def _goes_round(call: Blocked) -> bool:
    """Whether one of those that are missing is enough, since not all need all."""
    verb, root = _verb(call), call.call.words.get("root")
    is_rooted = verb in ROOT_SENDS or (verb in ROOT_RECEIVES and root != call.comm.rank)
    return is_rooted or verb in PREFIXES or verb not in TABLE


def counted(call: Blocked) -> tuple[int, int, int] | None:
    """Of a collective call whose ranks count it, those of several hosts, or are met: what it is.

    The communicator's number; which call there, NONE: they are met; the rank that all others wait for, or
    ELSEWHERE.
    """
    comm, notices = call.comm, runtime.end_notices
    if met(call):
        return comm.tag_base, NONE, ELSEWHERE
    if call.call.number != NEXT or notices is None or comm.is_inter or comm.partners is not None:
        return None
    number, root = notices.counts.get(comm.tag_base, 0), call.call.words.get("root")
    root = root if _verb(call) in ROOT_SENDS and isinstance(root, int) else ELSEWHERE
    return (comm.tag_base, number, root) if number else None


def met(call: Blocked) -> Sequence[int]:
    """The ranks of a call that no log has, as of a plan, if nobody gets through before all have begun."""
    comm, made = call.comm, call.call
    if call.number != NONE or comm.is_inter or comm.partners is not None:
        return ()
    return made.ranks if isinstance(made, meeting) else range(comm.size) if made.verb in MUTUAL else ()


def _verb(call: Blocked) -> str:
    return call.call.verb.removesuffix("_object").removesuffix("_ragged")
