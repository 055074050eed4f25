"""Proof before use: a named algorithm is proved before it is executed, priced or drawn.

Where its schedule is too large for that, it is proved on a sample of fewer ranks, those that the number of
ranks comes from by doubling among them, and in fewer chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import HpcommError, UsageError
from .prove import EXACT_BYTES, Proof, prove
from .registry import build
from .stream import Schedule

EXACT_UP_TO = 512  # ranks up to which a schedule is always proved as it is
MOST = 20_000_000  # chunks that move, up to which larger ones are: about a second
_STEP = 5_000  # chunks that take as long as one more step of a stream does
_FEW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 31)  # ranks of a sample
_SAMPLED = 96  # ranks of the largest one
_CHUNKS = 6  # of a sample


@dataclass(frozen=True)
class Evidence:
    """What is known of an algorithm on p ranks. sizes: the numbers of ranks of a sample; (): p itself."""

    proof: Proof
    sizes: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        if self.sizes:
            return f"sampled on {', '.join(map(str, self.sizes))} ranks"
        return "proved" if self.proof.exact else "proved by fingerprints"


def assured(verb: str, algorithm: str, p: int, root: int = 0) -> Schedule:
    """The schedule of an algorithm, with evidence that it is right."""
    evidence(verb, algorithm, p, root)
    return build(verb, algorithm, p, root)


@lru_cache(maxsize=1024)
def evidence(verb: str, algorithm: str, p: int, root: int = 0, most: int = MOST) -> Evidence:
    """Prove an algorithm: as it is, or what moves more chunks than `most` on a sample."""
    schedule = build(verb, algorithm, p, root)
    if p <= EXACT_UP_TO:
        return Evidence(prove(schedule))
    found: dict[int, Proof] = {}
    for size, name in _sample(algorithm, p):
        try:
            smaller = build(verb, name, size, min(root, size - 1))
        except (HpcommError, ArithmeticError, AssertionError, LookupError, ValueError):
            continue  # an algorithm need not be for every number of ranks
        found[size] = prove(smaller)
    if work(schedule) <= most:  # now that quicker ones have found nothing
        return Evidence(prove(schedule))
    if not found:
        raise UsageError(
            f"{algorithm} for {verb} is too large to be proved on {p} ranks, and it takes no fewer",
            hint="an algorithm that is for 2 to 16 ranks, too",
        )
    return Evidence(found[max(found)], tuple(found))


def work(schedule: Schedule) -> int:
    """How many chunks a proof would have to move, about."""
    moved = 2 * schedule.size * schedule.cells
    if schedule.size * schedule.size * schedule.cells <= 8 * EXACT_BYTES:
        moved += schedule.size * schedule.size * schedule.cells // 64
    for s in schedule.streams:
        chunks = float(np.max(np.multiply(s.width, s.count), initial=1))
        moved += int(s.active * (s.rows * chunks + _STEP))
    return moved


def _sample(algorithm: str, p: int) -> Iterator[tuple[int, str]]:
    """(ranks, algorithm) of smaller schedules."""
    name = re.sub(r"\bchunks=(\d+)", lambda found: f"chunks={min(int(found[1]), _CHUNKS)}", algorithm)
    sizes = {*_FEW}
    for node in re.findall(r"\bnode=(\d+)", algorithm):
        sizes |= {int(node) * k for k in (1, 2, 3, 4, 6)}
    half = p
    while half % 2 == 0:
        half //= 2
        sizes.add(half)
    yield from ((size, name) for size in sorted(sizes) if 0 < size <= min(p, _SAMPLED))
