"""A schedule step by step: which messages go, and who holds what afterwards."""

from __future__ import annotations

from typing import NamedTuple

from .interpret import advance, checked
from .prove import Sets
from .stream import Schedule


class Chunk(NamedTuple):
    """What a rank holds in one chunk of its memory: x of these ranks, at this place of x; -1: nothing."""

    place: int
    ranks: tuple[int, ...]


class Message(NamedTuple):
    """What one rank gives another one: each chunk from where to where, and whether it is reduced there."""

    source: int
    dest: int
    chunks: tuple[tuple[int, int, bool], ...]


class Step(NamedTuple):
    """The messages of one step, and what each rank then holds: [rank][chunk of its memory]."""

    iteration: int
    messages: list[Message]
    held: list[list[Chunk]]


def steps(schedule: Schedule) -> list[Step]:
    """What happens from the beginning (a Step of iteration -1, without messages) to the end.

    Raises:
        ScheduleError: a rank gives away what it does not have, or a contribution would count twice.
    """
    state = Sets(schedule)
    first = Step(-1, [], _held(schedule, state))
    after = advance(schedule, state, checked(schedule))
    return [first, *(Step(t, messages(schedule, t), _held(schedule, state)) for t in after)]


def messages(schedule: Schedule, iteration: int) -> list[Message]:
    """Who gives what to whom in an iteration, by sender and receiver; one message for each pair of them.

    What a rank moves within its own memory is one, too.
    """
    found: dict[tuple[int, int], Message] = {}
    for stream, k in schedule.active(iteration):
        source, dest = (end.tolist() for end in stream.ends(k, schedule.size))
        for row, ends in enumerate(zip(source, dest, strict=True)):
            here, there = (chunks.tolist() for chunks in stream.chunks(k, row))
            before = found.get(ends, Message(*ends, ()))
            reduces = [stream.reduces(row)] * len(here)
            found[ends] = before._replace(chunks=(*before.chunks, *zip(here, there, reduces, strict=True)))
    return [found[ends] for ends in sorted(found)]


def _held(schedule: Schedule, state: Sets) -> list[list[Chunk]]:
    place = state.place.tolist()
    ranks = [
        tuple(64 * i + bit for i, word in enumerate(row) for bit in range(64) if word >> bit & 1)
        for row in state.sets.tolist()
    ]
    cells = [Chunk(*each) for each in zip(place, ranks, strict=True)]
    return [cells[r * schedule.cells : (r + 1) * schedule.cells] for r in range(schedule.size)]
