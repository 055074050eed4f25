"""The last calls of a rank, as its node's memory still holds them, for reports.

Calls that the native core carries out stand in a rank's eight cells, others in its call log. Each of the two
counts for itself: which call came before one of the other kind is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from ..core.comm import Comm
from ..core.signature import LEFT, describe
from ..errors import grouped, named, spans
from ..node.call_log import CallLog
from ..node.segment import Region
from . import runtime

Who = TypeVar("Who")
MOST = 8  # calls, or rows of equal ones, of a rank
RANKS = 4  # or groups of ranks with the same calls, of which a report tells them


def logs(comm: Comm) -> tuple[CallLog | None, list[tuple[int, Region, CallLog]]]:
    """comm.near.watched, read once: close() may take it away between two looks."""
    return comm.near.watched or (None, [])


def log_of(comm: Comm, rank: int) -> CallLog | None:
    """The call log of a rank of this node."""
    mine, peers = logs(comm)
    return mine if rank == comm.rank else next((log for peer, _, log in peers if peer == rank), None)


def of(comm: Comm, rank: int) -> tuple[str, ...]:
    """A row for each call of a rank of this node on comm, or for equal ones that follow each other."""
    node, log = getattr(comm, "node", None), log_of(comm, rank)
    if comm.is_inter:  # ranks are the other group's
        return ()
    try:
        carried = [] if node is None else node.last_calls(rank)
    except ValueError:  # the main thread has closed it meanwhile
        carried = []
    logged = [] if log is None else [call for call in log.last(MOST) if call[1] != LEFT]
    most = MOST // 2 if carried and logged else MOST
    return (*_rows(comm, carried, "")[-most:], *_rows(comm, logged, ", by MPI")[-most:])


def _rows(comm: Comm, calls: list[tuple[int, int]], how: str) -> list[str]:
    said = ((number, describe(signature, comm.size)) for number, signature in calls)
    runs = groupby(said, itemgetter(1))
    return [f"#{spans(n for n, _ in same)} {call} on '{comm.name}'{how}" for call, same in runs]


def own(comm: Comm | None) -> tuple[str, ...]:
    """The same of this rank on all its communicators; last comes comm, in whose call it is."""
    known = (each for each in runtime.living() if hasattr(each, "near"))
    rows = [row for each in sorted(known, key=lambda each: each is comm) for row in of(each, each.rank)]
    return tuple(rows[-MOST:])


def lines(comm: Comm, ranks: Container[int] | None = None) -> list[str]:
    """What an error says of the last calls of these ranks, or all, as far as they are on this node."""
    known = {comm.rank, *comm.near.regions}
    return told({rank: of(comm, rank) for rank in sorted(known) if ranks is None or rank in ranks}, named)


def told(
    calls: Mapping[Who, tuple[str, ...]], name: Callable[[list[Who]], str], most: int = RANKS
) -> list[str]:
    """The same of calls by ranks, those with the same calls together, and the fewest first.

    most: groups of ranks.
    """
    groups = grouped((rows, rank) for rank, rows in calls.items() if rows)
    found = []
    for rows, ranks in sorted(groups.items(), key=lambda group: len(group[1]))[:most]:
        found += [f"  last calls of {name(ranks)}:", *(f"    {row}" for row in rows)]
    return [*found, *["  others: hpcomm where --calls, while the job runs"] * (len(groups) > most)]
