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

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..communicator import program_calls
from ..communicator.trace import RECORD, RECORDS, ROWS
from ..core.verbs import PREFIXES, ROOT_RECEIVES, ROOT_SENDS

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
    asked = "hpcomm report", "trace"
    files = program_calls.read(folder, (ROWS, RECORDS), _RECORD, *asked)
    rows: list[dict[str, Any]] = []
    parts, before, shifts = [], 0, dict[str, int]()  # of each clock, to the wall clock
    for rank, (program, _, (about, *its), records) in enumerate(files):
        records["of"][records["of"].view("<u4") > len(records)] = 0  # damaged
        order = np.argsort(records["begin"], kind="stable")
        order = order[(records["row"][order] > 0) & (records["row"][order] <= len(its))]
        place = np.full(len(records) + 1, -1)
        place[order + 1] = range(before, before + len(order))
        made = np.zeros(len(order), _EVENT)
        made[list(_RECORD.names or ())] = records[order]
        shift = shifts.setdefault(about["clock"], about["wall"] - about["monotonic"])
        made["begin"], made["end"] = made["begin"] + shift, made["end"] + shift
        made["row"] += len(rows) - 1
        made["of"], made["rank"] = place[made["of"]], rank
        rows += [{**row, "of_rank": rank, "program": program} for row in its]
        parts.append(made)
        before += len(order)
    events = np.concatenate(parts)
    if not len(events):
        raise program_calls.nothing(folder, *asked)
    first = int(events["begin"].min())
    events["begin"], events["end"] = events["begin"] - first, events["end"] - first
    names = [f"{program} {number}" if program else str(number) for program, number, *_ in files]
    told = [lines[0] for _, _, lines, _ in files]
    clocks = np.array([[*shifts].index(about["clock"]) for about in told])
    return _judged(names, [about["host"] for about in told], clocks, rows, events, first)


def _judged(
    names: list[str], hosts: list[str], clocks: Array, rows: list[dict[str, Any]], events: Array, first: int
) -> Trace:
    waits = np.flatnonzero(events["of"] >= 0)
    background = events["of"][waits]
    events["until"] = events["end"]
    np.maximum.at(events["until"], background, events["end"][waits])
    planned = np.array([sum(row.get("sends", {}).values()) for row in rows])
    events["nbytes"] = np.maximum(events["nbytes"], planned[events["row"]])
    parts = np.array([*_parts(rows, events)], np.int64).reshape(-1, 6).T
    error = _align(events, clocks[events["rank"]], parts) if clocks.any() else 0.0
    event, match, gives, gets, nbytes, to = parts[:, np.argsort(events["begin"][parts[0]], kind="stable")]
    given, giver = gives > 0, np.full(match.max(initial=-1) + 1, -1)
    giver[match[given]] = event[given]  # the last one stays
    got = (gets > 0) & (giver[match] >= 0)
    sender, event, of = event, event[got], giver[match[got]]
    sizes = np.zeros(len(giver), np.int64)
    sizes[match[given]] = nbytes[given]
    events["nbytes"][event] += np.where(
        events["nbytes"][event] == 0, sizes[match[got]], 0
    )  # in the background
    moved = np.zeros((len(names), len(names)), np.int64)
    np.add.at(moved, (events["rank"][of], events["rank"][event]), sizes[match[got]])
    alone = (to >= 0) & ~np.isin(match, match[got])  # whose receive does not say for whom it waits
    np.add.at(moved, (events["rank"][sender[alone]], to[alone]), nbytes[alone])
    late = np.argsort(events["begin"][of], kind="stable")
    cause = np.full(len(events), -1)
    cause[event[late]] = of[late]
    cause[waits], cause[background] = cause[background], -1  # who begins one in the background does not wait
    lost = np.clip(events["begin"][cause] - events["begin"], 0, events["end"] - events["begin"])
    events["lost"] = np.where(cause >= 0, lost, 0)
    events["whom"] = np.where(events["lost"] > 0, events["rank"][cause], -1)
    return Trace(names, hosts, rows, events, moved, first, error)


# -- what belongs together -------------------------------------------------------------------------------
def _parts(rows: list[dict[str, Any]], events: Array) -> Iterator[tuple[int, int, bool, bool, int, int]]:
    """Parts of calls: event, number of what matches; whether this rank gives something to the others of
    that, whether it gets something from them; the bytes of a message, and to whom it goes, or -1."""
    verbs = [plain(row.get("verb", "")) for row in rows]
    any_tag = np.unique(events["row"][events["tag"] < 0]).tolist()
    loose = {rows[i].get("comm") for i in any_tag if verbs[i] in ("recv", "sendrecv")}
    counts, numbers = Counter[Any](), dict[Any, int]()
    homes = {(row["comm"], row["rank"]): row["of_rank"] for row in rows if "comm" in row}
    columns = (events[name].tolist() for name in ("row", "rank", "peer", "tag", "of", "nbytes"))
    for i, (place, rank, peer, tag, of, nbytes) in enumerate(zip(*columns, strict=True)):
        if of >= 0 or "comm" not in rows[place]:
            continue
        row = {"peer": peer, "tag": tag, "nbytes": nbytes, **rows[place]}
        for key, gives, gets, size in _ends(row, verbs[place], row["comm"] in loose):
            n = counts[key, rank] = counts[key, rank] + 1
            to = homes.get((key[0], key[2]), -1) if size else -1
            yield i, numbers.setdefault((key, n), len(numbers)), gives, gets, size, to


def _ends(row: dict[str, Any], verb: str, is_loose: bool) -> Iterator[tuple[Any, bool, bool, int]]:
    """The parts of a call, as above; what matches is the n-th of a key."""
    comm, me, peer = row["comm"], row["rank"], row["peer"]
    if row["of"] in _COUPLED:
        yield row["call"].partition("(")[2], verb == "put", verb == "get", 0
        return
    if row["of"] == "Window" and verb != "fence":  # which waits for nobody
        return
    others = _others(row, verb, is_loose)
    if others is None:
        if row["size"] > 1:
            yield comm, verb not in ROOT_SENDS or peer == me, verb not in ROOT_RECEIVES or peer == me, 0
        return
    to, sources, kind = others
    yield from (((comm, me, other, kind), True, False, size) for other, size in to.items())
    yield from (((comm, other, me, kind), False, True, 0) for other in sources)


def _others(
    row: dict[str, Any], verb: str, is_loose: bool
) -> tuple[dict[int, int], Iterable[int], Any] | None:
    """(bytes by the rank that is given them, the ranks that give, what else matches); None: all, or none."""
    me, peer, tag, nbytes = row["rank"], row["peer"], row["tag"], row["nbytes"]
    if "near" in row:
        return {int(other): size for other, size in row["sends"].items()}, row["near"], "near"
    if verb in PREFIXES:
        return dict.fromkeys(range(me + 1, row["size"]), 0), range(me), verb
    if verb in _MESSAGES:
        to = {"send": {peer: nbytes}, "sendrecv": {tag: nbytes}}.get(verb, {})
        return to, [peer] * (verb != "send"), -1 if is_loose or verb == "sendrecv" else tag
    return None


# -- one clock -------------------------------------------------------------------------------------------
def _align(events: Array, clock: Array, parts: Array) -> float | None:
    """Put the times of all hosts on the clock of the first; the largest error in seconds, if it is known.

    clock: the number of its clock, of each event.
    """
    event, match, gives, gets, *_ = parts
    shape = clock.max() + 1, match.max(initial=-1) + 1
    begun, ended = np.full(shape, _NEVER), np.full(shape, -_NEVER)  # the last of each clock, and the first
    giver, getter = event[gives > 0], event[gets > 0]
    np.maximum.at(begun, (clock[giver], match[gives > 0]), events["begin"][giver])
    np.minimum.at(ended, (clock[getter], match[gets > 0]), events["until"][getter])
    rest, error = {*range(1, shape[0])}, 0.0
    while rest:
        known, over = begun[0] > _NEVER, ended[0] < -_NEVER  # by clocks that are aligned
        host = max(rest, key=lambda each: np.count_nonzero((begun[each] > _NEVER) & over))
        low, high = (begun[host] > _NEVER) & over, (ended[host] < -_NEVER) & known
        knots, ahead, its = _difference(begun[host, low], ended[0, low], ended[host, high], begun[0, high])
        error = max(error, its)
        mine = clock == host
        for times, here in (
            (begun[host], begun[host] > _NEVER), (ended[host], ended[host] < -_NEVER),
            *((events[name], mine) for name in ("begin", "end", "until")),
        ):  # fmt: skip
            times[here] -= np.interp(times[here], knots, ahead).astype(np.int64)
        begun[0], ended[0] = np.maximum(begun[0], begun[host]), np.minimum(ended[0], ended[host])
        rest.remove(host)
    return error if error < np.inf else None


def _difference(low_at: Array, low: Array, high_at: Array, high: Array) -> tuple[Array, Array, float]:
    """By how much a clock is ahead at some of its times: at low_at at least low_at - low, at high_at at
    most high_at - high; and the error in seconds."""
    both = np.r_[low_at, high_at]
    for windows in (min(_WINDOWS, len(both) // 50), 1) if len(both) else ():
        edges = np.linspace(both.min(), both.max() + 1, windows + 1)
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
