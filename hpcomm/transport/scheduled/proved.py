"""Proved schedules for execution, and the part of each that a rank carries out."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...core.verbs import ROOTED
from ...schedule.assured import assured
from ...schedule.prove import keeps_order
from ...schedule.rank_program import Program, program
from ...schedule.registry import build
from ...schedule.stream import Schedule


@lru_cache(maxsize=256)
def proved(verb: str, algorithm: str, p: int, root: int) -> Schedule:
    """root: of a verb without one it does not matter."""
    return assured(verb, algorithm, p, root if verb in ROOTED else 0)


class Which(NamedTuple):
    """What a schedule is known by."""

    verb: str
    algorithm: str
    p: int
    root: int


@lru_cache(maxsize=64)
def part(key: Which, rank: int, count: int, staged: bool = False) -> Program:
    return program(proved(*key), rank, count, staged=staged)


@lru_cache(maxsize=256)
def _in_order_of(key: Which) -> bool:
    return keeps_order(build(*key))


def in_order(schedule: Schedule) -> bool:
    return _in_order_of(Which(schedule.verb, schedule.name, schedule.size, schedule.root))
