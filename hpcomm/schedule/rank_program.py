"""One rank's part of a schedule, ready to run: rounds of messages between ranges of elements.

Work memory holds the slots; a temporary holds what has to be packed, and what arrives to be reduced. A
message that lies in one piece is sent from, and if it is only copied received into, work memory itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .layout import edges, pieces
from .stream import COPY, Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Message", "Program", "Round", "program"]


@dataclass(frozen=True)
class Message:
    """Elements low..high-1 of the temporary (staged) or of work memory, to or from a peer."""

    peer: int
    low: int
    high: int
    staged: bool


@dataclass
class Round:
    """packs: (temporary, low, high) before; effects: (temporary, low, high, how) after the messages."""

    packs: list[tuple[int, int, int]] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    recvs: list[Message] = field(default_factory=list)
    effects: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """rounds, and how many elements the temporary has."""

    schedule: Schedule
    rank: int
    count: int
    rounds: list[Round]
    room: int


def program(schedule: Schedule, rank: int, count: int, staged: bool = False) -> Program:
    """What one rank has to do.

    Args:
        count: elements in one slot; any number.
        staged: all messages go through the temporary, as when it is of another element type or elsewhere.
    """
    bounds = edges(schedule, count)
    rounds, room = [], 0
    due: dict[int, list[tuple[int, int, NDArray[np.int64], NDArray[np.int64], int]]] = {}
    for s in schedule.streams:
        for k in range(s.active):
            source, dest = s.ends(k, schedule.size)
            how = np.broadcast_to(s.reduce, source.shape)
            for row in np.flatnonzero((source == rank) | (dest == rank)).tolist():
                here, there = s.chunks(k, row)
                move = (int(source[row]), int(dest[row]), here, there, int(how[row]))
                due.setdefault(s.begin + k * s.every, []).append(move)
    for _, moves in sorted(due.items(), key=lambda item: item[0]):
        made, used = _round(moves, rank, bounds, staged)
        if made.sends or made.recvs or made.packs:
            rounds.append(made)
            room = max(room, used)
    return Program(schedule, rank, count, rounds, room)


def _round(moves: list[tuple[int, int, NDArray[np.int64], NDArray[np.int64], int]], rank: int,
           bounds: NDArray[np.int64], staged: bool) -> tuple[Round, int]:  # fmt: skip
    """The messages of one iteration of this rank, and how many elements of the temporary they take.

        work memory  |  slot 0  |  slot 1  | ...       temporary  | packed to peer a | from peer b | ...

        send, one range      straight from work          send, several ranges      packed into the temporary
        receive, one copy    straight into work, unless  receive, all else         into the temporary; then
                             that is still being sent                              `effects`, in row order

    What a rank gives itself is packed and takes effect, without a message.
    """
    outgoing: dict[int, list[tuple[int, int]]] = {}
    incoming: dict[int, list[tuple[int, int, int]]] = {}
    order: list[tuple[int, int]] = []  # (peer, which of its pieces), in the order of the rows
    for source, dest, here, there, how in moves:
        if source == rank:
            outgoing.setdefault(dest, []).extend(pieces(here, bounds))
        if dest == rank:
            parts = incoming.setdefault(source, [])
            for low, high in pieces(there, bounds):
                order.append((source, len(parts)))
                parts.append((low, high, how))
    made, at = Round(), 0
    for peer, ranges in outgoing.items():
        total = sum(high - low for low, high in ranges)
        if peer != rank and total:
            one = len(ranges) == 1 and not staged
            low = ranges[0][0] if one else at
            made.sends.append(Message(peer, low, low + total, not one))
            if one:
                continue
        for low, high in ranges:
            made.packs.append((at, low, high))
            at += high - low
        if peer == rank:
            outgoing[rank] = [(at - total, total)]
    sent = [m for m in made.sends if not m.staged]
    place: dict[tuple[int, int], int] = {}
    for peer, parts in incoming.items():
        total = sum(high - low for low, high, _ in parts)
        if not total:
            continue
        if peer == rank:
            start = outgoing[rank][0][0]
        elif len(parts) == 1 and parts[0][2] == COPY and not staged and not _met(parts[0], sent):
            made.recvs.append(Message(peer, parts[0][0], parts[0][1], False))
            continue
        else:
            start, at = at, at + total
            made.recvs.append(Message(peer, start, start + total, True))
        for i, (low, high, _) in enumerate(parts):
            place[peer, i] = start
            start += high - low
    for peer, i in order:
        if (peer, i) in place:
            low, high, how = incoming[peer][i]
            made.effects.append((place[peer, i], low, high, how))
    return made, at


def _met(part: tuple[int, int, int], sent: list[Message]) -> bool:
    """Whether a copy would land on what is still being sent."""
    return any(part[0] < m.high and m.low < part[1] for m in sent)
