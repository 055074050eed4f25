"""Agreement: do all ranks of a communicator make the same call?

Every collective call has a signature (verb, operator, dtype, root, number of elements). Three levels:

off    nothing is compared.
light  ranks of one node post the signature on the board before the call, and each looks at its
       neighbour's before and after. On disagreement at least two ranks see it, since going round the
       ring there is a place where the signature changes. Costs a few memory accesses; nobody waits.
full   all ranks compare before each call, wherever they are, and all raise. Costs one small
       all-reduce a call.

Light cannot stop a rank that is already inside MPI: the rank that sees the difference raises, and if
nobody catches that, the job ends with a message that names both calls.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MismatchError, PeerFailedError, where
from ..signature import describe, signature
from .board import LAPS, Board, Region, last_call, posted
from .stack import describe_call

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..communicator import Communicator

__all__ = ["Agreement", "full", "light", "off"]

_PATIENCE = 1.0  # s that a rank waits for another's description of its call


class Agreement:
    """How the ranks of one communicator agree.

    enter(head, count) before a call, leave() after it; late(head, count) -> leave for background calls;
    watch(function) -> f(signature, *arguments) that does both around a blocking function, or None if
    nothing is compared.
    """

    __slots__ = ("enter", "late", "leave", "level", "watch")

    def __init__(
        self,
        level: str,
        enter: Callable[[int, int], None],
        leave: Callable[[], None],
        late: Callable[[int, int], Callable[[], None]],
        watch: Callable[[Callable[..., Any]], Callable[..., None] | None],
    ) -> None:
        self.level = level
        self.watch = watch
        self.enter = enter
        self.leave = leave
        self.late = late


def off() -> Agreement:
    """Compare nothing."""
    return Agreement(
        "off", lambda code, count: None, lambda: None, lambda code, count: lambda: None, lambda function: None
    )


def light(
    comm: Communicator, board: Board, ring: memoryview, peers: list[tuple[int, Region, memoryview]]
) -> Agreement:
    """Compare with the next rank of this node.

    Args:
        ring: this rank's ring on the board.
        peers: the other ranks of comm on this node, next neighbour first: rank, region, ring.
    """
    theirs = peers[0][2]
    call = 0
    last = 0

    def enter(code: int, count: int) -> None:
        nonlocal call, last
        call += 1
        last = signature(code, count)
        i = call % LAPS
        ring[i] = last
        ring[LAPS] = call
        if theirs[i] != last and theirs[LAPS] >= call:
            suspect(call, last)

    def leave() -> None:
        if theirs[call % LAPS] != last and theirs[LAPS] >= call:
            suspect(call, last)

    def late(code: int, count: int) -> Callable[[], None]:
        enter(code, count)
        mine, number = last, call

        def leave_late() -> None:
            suspect(number, mine)

        return leave_late

    def watch(function: Callable[..., Any]) -> Callable[..., None]:
        at_end, mask = LAPS, LAPS - 1  # the hot path: locals only, and nothing is called that need not be

        def watched(mine: int, a: Any = None, b: Any = None, c: Any = None, d: Any = None) -> None:
            nonlocal call
            call += 1
            i = call & mask
            ring[i] = mine
            ring[at_end] = call
            if theirs[i] != mine and theirs[at_end] >= call:
                suspect(call, mine)
            if d is not None:
                function(a, b, c, d)
            elif c is not None:
                function(a, b, c)
            elif b is not None:
                function(a, b)
            else:
                function()
            if theirs[i] != mine and theirs[at_end] >= call:
                suspect(call, mine)

        return watched

    def suspect(number: int, expected: int) -> None:
        if peers[0][1].ended and last_call(theirs) < number:
            raise PeerFailedError(
                f"call #{number} on '{comm.name}' needs rank {peers[0][0]}, which has ended",
                where(describe_call().split("(")[0], comm),
                "look at what that rank printed; every rank must make the same collective calls",
                [peers[0][0]],
            )
        if posted(theirs, number) in (None, expected):
            return  # not there yet, or so far ahead that its entry is gone
        time.sleep(1e-4)  # where stores may be seen out of order: look again before accusing anybody
        others = [
            (rank, region, describe(called) if other[LAPS] > number else None)
            for rank, region, other in peers
            if (called := posted(other, number)) not in (None, expected)
        ]
        if others:
            raise _disagreement(comm, number, board, others)

    return Agreement("light", enter, leave, late, watch)


def full(comm: Communicator, shadow: MPI.Comm) -> Agreement:
    """Compare all ranks before every call; all of them raise."""
    from mpi4py import MPI

    call = 0

    def enter(code: int, count: int) -> None:
        nonlocal call
        call += 1
        mine = signature(code, count)
        both = bytearray(struct.pack("2q", mine, -mine))
        shadow.Allreduce(MPI.IN_PLACE, [both, MPI.INT64_T], MPI.MAX)
        high, low = struct.unpack("2q", both)
        if high != -low:
            calls = shadow.allgather(describe_call())
            rows = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(calls))
            raise _mismatch(comm, call, rows)

    def late(code: int, count: int) -> Callable[[], None]:
        enter(code, count)
        return lambda: None

    def watch(function: Callable[..., Any]) -> Callable[..., None]:
        def watched(mine: int, *arguments: Any) -> None:
            enter(mine & 0xFFFF_FFFF, mine >> 32)
            function(*arguments)

        return watched

    return Agreement("full", enter, lambda: None, late, watch)


def _disagreement(
    comm: Communicator, number: int, board: Board, others: list[tuple[int, Region, str | None]]
) -> MismatchError:
    """Ask the others (rank, region, its call if it has gone on since) what they are doing."""
    mine = describe_call()
    if (question := board.mine.question) is not None:
        board.mine.answer(question, mine)
    rows = {comm.rank: mine}
    called = {rank: past for rank, _, past in others if past}
    questions = [(rank, region, region.ask()) for rank, region, _ in others]
    deadline = time.monotonic() + _PATIENCE
    while questions and time.monotonic() < deadline:
        for entry in list(questions):
            rank, region, asked = entry
            text = region.answer_to(asked)
            if text is not None:
                rows[rank] = f"{called[rank]}, and has gone on to {text}" if rank in called else text
                questions.remove(entry)
        time.sleep(1e-3)
        if (question := board.mine.question) is not None:
            board.mine.answer(question, mine)
    for rank, _, _ in questions:
        rows[rank] = called.get(rank, "another call, and gave no answer when asked which")
    return _mismatch(comm, number, "\n".join(f"  rank {rank}: {rows[rank]}" for rank in sorted(rows)))


def _mismatch(comm: Communicator, number: int, rows: str) -> MismatchError:
    return MismatchError(
        f"ranks disagree about call #{number} on '{comm.name}'.\n{rows}",
        where(describe_call().split("(")[0], comm),
        "give every rank the same verb, operator, dtype, number of elements and root, in the same order",
    )
