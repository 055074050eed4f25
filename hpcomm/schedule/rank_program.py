"""One rank's part of a schedule, ready to run: rounds of messages between ranges of elements.

Work memory holds the slots; a temporary holds what has to be packed, and what arrives to be reduced. A
message that lies in one piece is sent from, and if it is only copied received into, work memory itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._lazy import NDArray
from .stream import COPY, Schedule


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


_Outgoing = dict[int, list[tuple[int, int]]]  # peer: (low, high)
_Incoming = dict[int, list[tuple[int, int, int]]]  # peer: (low, high, how)
_Order = list[tuple[int, int]]  # (peer, which of its pieces), in the order of the rows
_Move = tuple[
    int, int, "NDArray[np.int64]", "NDArray[np.int64]", int
]  # source, dest, chunks there and here, how


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
    due: dict[int, list[_Move]] = {}
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


def _round(moves: list[_Move], rank: int, bounds: NDArray[np.int64], staged: bool) -> tuple[Round, int]:
    """The messages of one iteration of this rank, and how many elements of the temporary they take.

        work memory  |  slot 0  |  slot 1  | ...       temporary  | packed to peer a | from peer b | ...

        send, one range      straight from work          send, several ranges      packed into the temporary
        receive, one copy    straight into work, unless  receive, all else         into the temporary; then
                             that is still being sent                              `effects`, in row order

    What a rank gives itself is packed and takes effect, without a message.
    """
    outgoing, incoming, order = _by_peer(moves, rank, bounds)
    made, at, own = Round(), 0, 0
    for peer, ranges in outgoing.items():
        own = at if peer == rank else own  # where what a rank gives itself is packed
        at = _send(made, at, peer, ranges, is_message=peer != rank, staged=staged)
    place: dict[tuple[int, int], int] = {}
    for peer, parts in incoming.items():
        start, at = (own, at) if peer == rank else _receive(made, at, peer, parts, staged)
        for i, (low, high, _) in enumerate(parts):
            place[peer, i] = start
            start += high - low
    for peer, i in order:
        low, high, how = incoming[peer][i]
        if place[peer, i] >= 0 and high > low:
            made.effects.append((place[peer, i], low, high, how))
    return made, at


def _by_peer(moves: list[_Move], rank: int, bounds: NDArray[np.int64]) -> tuple[_Outgoing, _Incoming, _Order]:
    """What goes to each peer and what comes from it, and the order in which that takes effect."""
    outgoing: _Outgoing = {}
    incoming: _Incoming = {}
    order: _Order = []
    for source, dest, here, there, how in moves:
        if source == rank:
            outgoing.setdefault(dest, []).extend(pieces(here, bounds))
        if dest == rank:
            parts = incoming.setdefault(source, [])
            for low, high in pieces(there, bounds):
                order.append((source, len(parts)))
                parts.append((low, high, how))
    return outgoing, incoming, order


def _send(
    made: Round, at: int, peer: int, ranges: list[tuple[int, int]], *, is_message: bool, staged: bool
) -> int:
    """Add what goes to peer, packed into the temporary from `at` on if it has to be; where that ends."""
    total = sum(high - low for low, high in ranges)
    is_direct = is_message and len(ranges) == 1 and not staged
    if is_message and total:
        low = ranges[0][0] if is_direct else at
        made.sends.append(Message(peer, low, low + total, not is_direct))
    if is_direct:
        return at
    for low, high in ranges:
        made.packs.append((at, low, high))
        at += high - low
    return at


_DIRECT = -(1 << 62)  # place of what needs none in the temporary


def _receive(
    made: Round, at: int, peer: int, parts: list[tuple[int, int, int]], staged: bool
) -> tuple[int, int]:
    """Add what comes from peer: where it stands in the temporary, and where that ends."""
    total = sum(high - low for low, high, _ in parts)
    if not total:
        return at, at
    (low, high, how), *others = parts
    lands_on_sent = any(low < m.high and m.low < high for m in made.sends if not m.staged)
    if not others and how == COPY and not staged and not lands_on_sent:
        made.recvs.append(Message(peer, low, high, False))
        return _DIRECT, at
    made.recvs.append(Message(peer, at, at + total, True))
    return at, at + total


# -- where chunks lie in memory: blocks of count elements, each cut as evenly as can be ---------------------


def edges(schedule: Schedule, count: int) -> NDArray[np.int64]:
    """The first element of every chunk, and the end of the last.

    Args:
        count: elements in one slot; any number, also fewer than chunks: then some are empty.
    """
    c = schedule.chunks
    inner = np.arange(c) * count // c
    slots = np.arange(schedule.slots)[:, None] * count
    return np.append((slots + inner).reshape(-1), schedule.slots * count)


def pieces(chunks: NDArray[np.int64], bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Element ranges that these chunks cover, in order; neighbours joined, empty ones left out."""
    found: list[tuple[int, int]] = []
    for chunk in chunks.tolist():
        low, high = int(bounds[chunk]), int(bounds[chunk + 1])
        if low == high:
            continue
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found
