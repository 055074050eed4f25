"""Which ranks can never go on: a graph of who waits for whom.

A rank waits for all of those that it needs, or for any one of them. Who is not seen to wait may go on, as may
who has other threads, or is one end of a message whose other end is there. From these on, a rank may go on
when those that it needs may. Who is left waits for ever (the AND-OR model: E. Knapp, Deadlock Detection in
Distributed Databases, ACM Computing Surveys 19, 1987).

Cost: the number of ranks times that of their needs, in the worst case once for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..agree.doing import Doing, is_met

PATIENT_S = 3.0  # in one call: what a rank needs may still be on its way


def stuck(doings: Mapping[int, Doing]) -> list[int]:
    """The records of the ranks that can never go on."""
    held = {
        rank for rank, doing in doings.items()
        if doing.waited_s >= PATIENT_S and not doing.others and not _is_met(rank, doing, doings)
    }  # fmt: skip
    while free := {rank for rank in held if _may_go_on(doings[rank], held)}:
        held -= free
    return sorted(held)


def _may_go_on(doing: Doing, held: set[int]) -> bool:
    others = [rank not in held for rank in doing.needs]
    return not others or (any(others) if doing.is_any else all(others))


def _is_met(rank: int, doing: Doing, doings: Mapping[int, Doing]) -> bool:
    """Whether the other end is there of one message that is waited for, or of all where all are."""
    met = [is_met(message, rank, doings) for message in doing.messages]
    return bool(met) and (any(met) if doing.is_any else all(met))


def circles(held: list[int], doings: Mapping[int, Doing]) -> list[list[int]]:
    """Those that can never go on, as far as each waits for the next one, the last for the first."""
    found, seen = [], set[int]()
    for rank in held:
        path: list[int] = []
        while rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = next(each for each in doings[rank].needs if each in held)
        if rank in path:
            found.append(path[path.index(rank) :])
    return found
