"""What ranks call that do not call the same: equal calls together, so that a report stays short."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from .._lazy import MPI
from ..errors import named

SHOWN = 16  # calls that are told apart, runs of ranks of each, and ranks that get a line of their own


class Call(NamedTuple):
    """What a rank calls, and why it refuses that: "" where it does not."""

    text: str
    why: str = ""


class Ranks(NamedTuple):
    """The first and last ranks of the lowest runs, and how many ranks there are in all."""

    runs: tuple[tuple[int, int], ...]
    total: int

    def known(self) -> list[int]:
        """Those of the runs."""
        return [rank for first, last in self.runs for rank in range(first, last + 1)]

    def __str__(self) -> str:
        known = self.known()
        more = self.total - len(known)
        return named(known) + (f" and {more} more" if more else "")


Calls = dict[Call, Ranks]
OTHERS = Call("other calls")


def alone(rank: int) -> Ranks:
    return Ranks(((rank, rank),), 1)


def calls_of(shadow: MPI.Comm, rank: int, mine: Call) -> Calls:
    """The calls of all ranks, or of those of the other group. Collective, in log2 p rounds."""
    return shadow.allreduce({mine: alone(rank)}, joined)  # type: ignore[no-any-return]


def joined(some: Calls, more: Calls) -> Calls:
    """Both; of too many calls those that are refused, then those of low ranks."""
    found: Calls = {}
    for call, ranks in chain(some.items(), more.items()):
        found[call] = _together(found[call], ranks) if call in found else ranks
    known = sorted(found, key=lambda call: (call == OTHERS, not call.why, found[call].runs))
    made = {call: found[call] for call in known[:SHOWN]}
    for call in known[SHOWN:]:
        made[OTHERS] = _together(made[OTHERS], found[call]) if OTHERS in made else found[call]
    return made


def _together(some: Ranks, more: Ranks) -> Ranks:
    runs: list[tuple[int, int]] = []
    for first, last in sorted(some.runs + more.runs):
        if runs and runs[-1][1] + 1 == first:
            runs[-1] = runs[-1][0], last
        else:
            runs.append((first, last))
    return Ranks(tuple(runs[:SHOWN]), some.total + more.total)


def holding(calls: Calls) -> list[str]:
    """A line for each group of ranks that hold the same."""
    return [f"  {ranks} hold{'s' * (ranks.total == 1)} {call.text}" for call, ranks in calls.items()]


def refusers(calls: Calls) -> list[int]:
    """The ranks that are known to refuse their call."""
    return sorted(rank for call, ranks in calls.items() if call.why for rank in ranks.known())


def rows(calls: Calls, side: str = "") -> list[str]:
    """A line for each rank, or of many ranks for each call."""
    if sum(ranks.total for ranks in calls.values()) <= SHOWN:
        each = {rank: call for call, ranks in calls.items() for rank in ranks.known()}
        return [f"  rank {rank}{side}: {each[rank].why or each[rank].text}" for rank in sorted(each)]
    found = sorted(calls, key=lambda call: calls[call].runs)
    return [f"  {calls[call]}{side}: {call.why or call.text}" for call in found]
