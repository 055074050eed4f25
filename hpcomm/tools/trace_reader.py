"""Traces read: the calls of all ranks on one clock, and for whom each of them waited.

Of a call that several ranks make, everyone waits until those have come of whom it gets something:

    rank 0   ├──────── waits for rank 2 ───────┤─ moves ─┤
    rank 1           ├─── waits for rank 2 ────┤─ moves ─┤
    rank 2                                     ├─ moves ─┤

    all_reduce, barrier, ...   for all          recv                     for the sender
    broadcast, scatter         for the root     halos, redistribution    for those that send to it
    gather, reduce             the root for all    get between programs     for who puts that field
    scan, exscan               for the ranks below

The n-th call of one rank on a communicator belongs to the n-th of the others, and so do messages of a pair.

Clocks of hosts are put on one by the calls themselves: nobody leaves such a call before the last one has
come. So each call between two hosts bounds how much their clocks differ, from both sides.

         here   ──────├──── begin ...  end ────┤────        begin here <= end there - difference
         there  ───├──── begin ...     end ──┤──────        begin there - difference <= end here
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..communicator.trace import RECORD, RECORDS, ROWS
from ..core.verbs import PREFIXES, ROOT_RECEIVES, ROOT_SENDS
from ..errors import ConfigError

if TYPE_CHECKING:
    from .._lazy import NDArray

    Array = NDArray[Any]

_RECORD = np.dtype(
    [("begin", "<i8"), ("end", "<i8"), ("nbytes", "<i8"), *((n, "<i4") for n in ("row", "peer", "tag", "of"))]
)
_EVENT = np.dtype([*_RECORD.descr, ("rank", "<i4"), ("lost", "<i8"), ("whom", "<i4"), ("until", "<i8")])
_WINDOWS = 32  # in which the clocks' difference is looked for, as it may change
_NEVER = -(2**62)
_MESSAGES, _COUPLED = ("send", "recv", "sendrecv"), ("Link", "Program")
assert _RECORD.itemsize == RECORD.size


class Trace(NamedTuple):
    """The calls of all ranks.

    Attributes:
        names: of the ranks: "3", "ocean 0"; hosts: where they ran. Below, a rank is a place in this list.
        rows: what a row of any rank says, with its rank.
        events: records, by rank and begin; row is a place in rows, peer and whom a rank, of a place here.
            Beside what trace.py says: rank; lost: ns that it waited; whom: mostly for that rank, or -1;
            until: when it was over, in the background, too. Times are ns after begin.
        moved: bytes of messages and of halos, from rank to rank.
        begin: ns of the wall clock of the first host.
        error_s: by how much the clocks of hosts may differ; None: nobody knows.
    """

    names: list[str]
    hosts: list[str]
    rows: list[dict[str, Any]]
    events: Array
    moved: Array
    begin: int
    error_s: float | None


def plain(verb: str) -> str:
    """The verb of arrays, of which this is one in the background, of objects or of other lengths."""
    base = verb.removesuffix("_object").removesuffix("_ragged")
    return base[1:] if base in ("isend", "irecv") else base


def read(folder: Path) -> Trace:
    """Raises ConfigError where there is no trace."""
    try:
        files = sorted(map(partial(_file, folder), folder.glob(f"*{ROWS}")), key=lambda each: each[:2])
        files = [each for each in files if each[2]]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}", "hpcomm report", "trace it again") from error
    if not files:
        what = f"{folder} has no trace" if folder.is_dir() else f"there is no folder {folder}"
        raise ConfigError(what, "hpcomm report", f"hpcomm run --trace {folder} ...")
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    events, clocks, hosts, before = [], list[str](), [], 0
    for rank, (program, number, its, records) in enumerate(files):
        there = records["row"] > 0
        made = np.zeros(there.sum(), _EVENT)
        for name in _RECORD.names or ():
            made[name] = records[name][there]
        number_of = np.r_[-1, before + np.cumsum(there) - 1]  # of each record
        made["of"] = number_of[np.clip(made["of"], 0, len(there))]
        made["row"] += len(rows) - 1
        made["rank"], made["whom"] = rank, -1
        shift = its[0]["wall"] - its[0]["monotonic"]
        if its[0]["clock"] in clocks:
            shift = files[clocks.index(its[0]["clock"])][2][0]
            shift = shift["wall"] - shift["monotonic"]
        made["begin"], made["end"] = made["begin"] + shift, made["end"] + shift
        names.append(f"{program} {number}" if program else str(number))
        clocks.append(its[0]["clock"])
        hosts.append(its[0]["host"])
        rows += [{**row, "of_rank": rank, "program": program} for row in its[1:]]
        events.append(made)
        before += len(made)
    return _judged(names, hosts, clocks, rows, np.concatenate(events))


def _file(folder: Path, path: Path) -> tuple[str, int, list[dict[str, Any]], Array]:
    """Program, rank, lines and records of a rank; what was not written to its end is left away."""
    program, _, rank = path.name.removesuffix(ROWS).rpartition(".")
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    data = path.with_name(path.name.removesuffix(ROWS) + RECORDS).read_bytes()
    records = np.frombuffer(data[: len(data) // RECORD.size * RECORD.size], _RECORD)
    return program, int(rank), lines, records[records["row"] < max(1, len(lines))]


def _judged(names: list[str], hosts: list[str], clocks: list[str], rows: Any, events: Array) -> Trace:
    order = np.lexsort((events["begin"], events["rank"]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    events = events[order]
    waits = np.flatnonzero(events["of"] >= 0)
    events["of"][waits] = place[events["of"][waits]]
    first = int(events["begin"].min())
    events["begin"], events["end"] = events["begin"] - first, events["end"] - first
    events["until"] = events["end"]
    np.maximum.at(events["until"], events["of"][waits], events["end"][waits])
    groups = [*_together(rows, events), *_coupled(rows, events)]
    sent, got = _messages(rows, events)
    planned = np.array([sum(row.get("sends", {}).values()) for row in rows])
    events["nbytes"] = np.maximum(events["nbytes"], planned[events["row"]])
    moved = _moved(rows, events, sent, got, len(names))
    numbers = {clock: i for i, clock in enumerate(dict.fromkeys(clocks))}
    where = np.array([numbers[clock] for clock in clocks])
    error = _align(events, where, groups, (sent, got)) if len(numbers) > 1 else 0.0
    late, whom = np.full(len(events), _NEVER), np.full(len(events), -1)
    for group in groups:
        group.judge(events, late, whom)
    late[got], whom[got] = events["begin"][sent], events["rank"][sent]
    background = events["of"][waits]
    late[waits], whom[waits] = late[background], whom[background]
    late[background] = _NEVER  # who begins a call in the background waits for nobody
    events["lost"] = np.clip(late - events["begin"], 0, events["end"] - events["begin"])
    events["whom"] = np.where(events["lost"] > 0, whom, -1)
    return Trace(names, hosts, rows, events, moved, first, error)


# -- what belongs together -------------------------------------------------------------------------------
class _Group(NamedTuple):
    """Calls that several ranks make together.

    Attributes:
        calls: events, a line for each call and a column for each rank; -1: it is not there.
        from_whom: of each rank, for whom it waits: bool (calls, ranks, ranks), or for all calls alike.
    """

    calls: Array
    from_whom: Array

    def judge(self, events: Array, late: Array, whom: Array) -> None:
        """Say when the last of those came for whom a rank waits, and who that was."""
        begin = np.where(self.calls >= 0, events["begin"][self.calls], _NEVER)
        for column in range(self.calls.shape[1]):
            mine = self.calls[:, column]
            theirs = np.where(self.from_whom[..., column, :], begin, _NEVER)
            last, there = theirs.argmax(1), mine >= 0
            late[mine[there]] = theirs.max(1)[there]
            whom[mine[there]] = events["rank"][np.take_along_axis(self.calls, last[:, None], 1)[there, 0]]


def _columns(events: Array, chosen: Array, ranks: list[int]) -> Array:
    """The n-th of the chosen events of each rank in one line."""
    its = [chosen[events["rank"][chosen] == rank] for rank in ranks]
    found = np.full((max(map(len, its)), len(ranks)), -1)
    for column, each in enumerate(its):
        found[: len(each), column] = each
    return found


def _together(rows: list[dict[str, Any]], events: Array) -> Iterator[_Group]:
    """Collective calls."""
    for comm in {row["comm"] for row in rows if _is_shared(row)}:
        its = [row if _is_shared(row) and row["comm"] == comm else {} for row in rows]
        by_number = {row["rank"]: row["of_rank"] for row in its if row}
        numbers = sorted(by_number)
        chosen = np.flatnonzero(np.array([bool(row) for row in its])[events["row"]] & (events["of"] < 0))
        calls = _columns(events, chosen, [by_number[number] for number in numbers])
        first = calls[np.arange(len(calls)), (calls >= 0).argmax(1)]
        kinds = np.array([_kind(row) for row in its])[events["row"][first]]
        for kind in dict.fromkeys(kinds.tolist()):
            lines = kinds == kind
            root = np.searchsorted(numbers, events["peer"][first[lines]])
            waits = _neighbours(its, numbers) if kind == "near" else _from_whom(kind, root, len(numbers))
            yield _Group(calls[lines], waits)


def _is_shared(row: dict[str, Any]) -> bool:
    """Whether it is of a call that all ranks of a communicator make."""
    return row.get("size", 1) > 1 and row["of"] not in _COUPLED and plain(row["verb"]) not in _MESSAGES


def _kind(row: dict[str, Any]) -> str:
    verb = plain(row.get("verb", ""))
    kinds = {
        "from": ROOT_SENDS,
        "to": ROOT_RECEIVES,
        "below": PREFIXES,
        "near": verb if "near" in row else "",
    }
    return next((kind for kind, verbs in reversed(kinds.items()) if verb and verb in verbs), "all")


def _from_whom(kind: str, root: Array, size: int) -> Array:
    """For whom each of the ranks waits."""
    is_root = np.arange(size) == root[:, None]
    if kind in ("from", "to"):
        of = is_root[:, None, :] if kind == "from" else is_root[:, :, None]
        return np.broadcast_to(of, (len(root), size, size))
    return np.tri(size, k=-1, dtype=bool) if kind == "below" else np.ones((size, size), bool)


def _neighbours(its: list[dict[str, Any]], numbers: list[int]) -> Array:
    found = np.zeros((len(numbers), len(numbers)), bool)
    for row in its:
        found[numbers.index(row["rank"]) if row else 0] |= np.isin(numbers, row.get("near", ()))
    return found


def _coupled(rows: list[dict[str, Any]], events: Array) -> Iterator[_Group]:
    """Fields that go from one program to another, where both name them as often."""
    its: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row.get("of") in _COUPLED and row["verb"] in ("put", "get"):
            its.setdefault(row["call"].partition("(")[2], []).append(i)
    for places in its.values():
        verbs = {rows[i]["of_rank"]: rows[i]["verb"] for i in places}
        calls = _columns(events, np.flatnonzero(np.isin(events["row"], places)), [*verbs])
        gets = np.array([verb == "get" for verb in verbs.values()])
        if (calls >= 0).all() and gets.any() and not gets.all():
            yield _Group(calls, gets[:, None] & ~gets)


def _messages(rows: list[dict[str, Any]], events: Array) -> tuple[Array, Array]:
    """Sends, and the receives that belong to them; peers become ranks of the job."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if "comm" in row:
            ranks.setdefault((row["comm"], row["rank"]), set()).add(row["of_rank"])
    verbs = [plain(row.get("verb", "")) for row in rows]
    loose = {
        rows[i]["comm"]
        for i in np.unique(events["row"][events["tag"] < 0])
        if verbs[i] in ("recv", "sendrecv")
    }
    queues: dict[Any, tuple[list[int], list[int]]] = {}
    for i in np.flatnonzero(np.isin(verbs, _MESSAGES)[events["row"]] & (events["of"] < 0)).tolist():
        place, tag, here = (int(events[name][i]) for name in ("row", "tag", "rank"))
        row, verb, peer = rows[place], verbs[place], int(events["peer"][i])
        peer, tag = (row.get("peer", peer), row.get("tag", tag)) if row["of"] else (peer, tag)
        others = {"send": (peer, None), "recv": (None, peer), "sendrecv": (tag, peer)}[verb]
        tag = -1 if verb == "sendrecv" or row["comm"] in loose else tag
        for k, number in enumerate(others):
            there = ranks.get((row["comm"], number), set()) - {here} if number is not None else ()
            if other := [*there][:1]:
                pair = (here, *other) if k == 0 else (*other, here)
                queues.setdefault((row["comm"], *pair, tag), ([], []))[k].append(i)
    pairs = [pair for queue in queues.values() for pair in zip(*queue, strict=False)]
    sent, got = np.array(pairs, int).reshape(-1, 2).T
    return sent, got


def _moved(rows: list[dict[str, Any]], events: Array, sent: Array, got: Array, size: int) -> Array:
    moved = np.zeros((size, size), np.int64)
    np.add.at(moved, (events["rank"][sent], events["rank"][got]), events["nbytes"][sent])
    ranks = {(row["comm"], row["rank"]): row["of_rank"] for row in rows if "comm" in row}
    times = np.bincount(events["row"], minlength=len(rows))
    for row, many in zip(rows, times.tolist(), strict=True):
        for peer, nbytes in row.get("sends", {}).items():
            if (there := ranks.get((row["comm"], int(peer)))) is not None:
                moved[row["of_rank"], there] += many * nbytes
    return moved


# -- one clock -------------------------------------------------------------------------------------------
def _align(events: Array, where: Array, groups: list[_Group], messages: tuple[Array, Array]) -> float | None:
    """Put the times of all hosts on the clock of the first; the largest error in seconds, if it is known.

    where: the number of its clock, of each rank.
    """
    bounds = [_of_messages(events, where, *messages)]
    bounds += [each for group in groups for each in _of_group(events, where, group)]
    begun, ended, since, until = (np.concatenate(each) for each in zip(*bounds, strict=True))
    known, error = {0}, 0.0
    while rest := {*where.tolist()} - known:
        near = [np.count_nonzero((begun == host) & np.isin(ended, [*known])) for host in sorted(rest)]
        host = sorted(rest)[int(np.argmax(near))]
        low = (begun == host) & np.isin(ended, [*known])
        high = (ended == host) & np.isin(begun, [*known])
        knots, ahead, its = _difference(since[low], until[low], until[high], since[high])
        error = max(error, its)
        for times, mine in (
            (since, begun == host), (until, ended == host),
            *((events[name], where[events["rank"]] == host) for name in ("begin", "end", "until")),
        ):  # fmt: skip
            times[mine] -= np.interp(times[mine], knots, ahead).astype(np.int64)
        known.add(host)
    return error if error < np.inf else None


def _difference(low_at: Array, low: Array, high_at: Array, high: Array) -> tuple[Array, Array, float]:
    """By how much a clock is ahead at some of its times: at low_at at least low_at - low, at high_at at
    most high_at - high; and the error in seconds."""
    both = np.r_[low_at, high_at, 0]
    for windows in (min(_WINDOWS, len(both) // 50), 1):
        edges = np.linspace(both[:-1].min(initial=both[0]), both[:-1].max(initial=both[0]) + 1, windows + 1)
        found = []
        for begin, end in pairwise(edges):
            least = (low_at - low)[(begin <= low_at) & (low_at < end)]
            most = (high_at - high)[(begin <= high_at) & (high_at < end)]
            if least.size and most.size:
                found.append(((begin + end) / 2, least.max() / 2 + most.min() / 2, most.min() - least.max()))
        if found:
            at, ahead, width = np.array(found).T
            return at, ahead, float(np.abs(width).max()) / 2e9
    return np.zeros(1), np.zeros(1), np.inf


def _of_messages(events: Array, where: Array, sent: Array, got: Array) -> tuple[Array, ...]:
    """(clock, clock, t, u): what began at t by the one had begun when something ended at u by the other."""
    of = where[events["rank"]]
    return of[sent], of[got], events["begin"][sent], events["until"][got]


def _of_group(events: Array, where: Array, group: _Group) -> Iterator[tuple[Array, ...]]:
    if group.from_whom.ndim > 2 or not group.from_whom.all():
        return
    calls = group.calls[(group.calls >= 0).all(1)]
    clocks = where[events["rank"][calls[0]]] if len(calls) else np.empty(0, int)
    for one in np.unique(clocks):
        begin = events["begin"][calls[:, clocks == one]].max(1)
        for other in np.unique(clocks[clocks != one]):
            end = events["until"][calls[:, clocks == other]].min(1)
            yield np.full(len(calls), one), np.full(len(calls), other), begin, end
