"""`hpcomm report FOLDER`: what the calls of a traced run took: moving, waiting, and for whom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..communicator.trace import RANGE
from ..core.verbs import INPUT_BLOCKS, TABLE
from ..errors import ConfigError, counted, grouped
from ..job.command_line import (
    AS_JSON,
    Command,
    check_file,
    duration,
    make_folder,
    option,
    size,
    table,
)
from ..schedule.cost.machine_model import Machine, lower_bound, machine
from .trace_files import chrome, page, write_for_torch
from .trace_reader import Trace, plain, read

parser = partial(
    Command,
    "hpcomm report",
    "Show what the calls of a run took that was traced by hpcomm run --trace.",
    option("folder", metavar="FOLDER", help="what hpcomm run --trace FOLDER has written"),
    option(
        "-o", "--output", metavar="FILE", help=".html: a page with a picture; .json: for Perfetto, Chrome"
    ),
    option("--torch", metavar="FOLDER", help="write a file per rank there, for torch's torchfrtrace"),
    AS_JSON,
    option("--machine", help="a preset's name, or a JSON file: say what the calls take at least there"),
)
_SHOWN = 16  # ranks of the matrix


class Line(NamedTuple):
    """The calls of one operation at one line of the program. Times are seconds, of all ranks together.

    Attributes:
        moving_s, waiting_s: parts of it; of a range 0.
        whom: for which rank they mostly waited, and part: which part of waiting_s that was.
        least_s: what all of that would take at least on a machine that was asked for.
    """

    call: str
    line: str
    calls: int
    nbytes: int
    time_s: float
    moving_s: float
    waiting_s: float
    whom: str
    part: float
    least_s: float | None


def main(words: Sequence[str]) -> int:
    """Carry out the command."""
    options = parser().parse_args(list(words))
    out = Path(options.output or "")
    if options.output:
        if out.suffix not in (".html", ".json"):
            raise ConfigError(f"-o {out}: a report is a page or a trace", "hpcomm report", ".html or .json")
        check_file(out)
    trace = read(Path(options.folder))
    make_folder("--torch", options.torch)
    found = lines(trace, machine(options.machine) if options.machine else None)
    if options.torch:
        write_for_torch(trace, Path(options.torch))
    if options.output:
        is_page = out.suffix == ".html"
        out.write_text(page(trace, text(trace, found)) if is_page else chrome(trace), "utf-8")
    if options.json:
        print(json.dumps(_record(trace, found), indent=1))
    elif not (options.output or options.torch):
        print(text(trace, found))
    return 0


def lines(trace: Trace, on: Machine | None = None) -> list[Line]:
    """The operations, those that took longest first."""
    events = trace.events
    of = np.where(events["of"] >= 0, events["row"][events["of"]], events["row"])  # a wait belongs to its call
    places = grouped(
        ((row["verb"], row.get("on", ""), row["line"], row.get("of", ""), row["program"]), i)
        for i, row in enumerate(trace.rows)
    )
    found = []
    for (verb, comm, line, *_), rows in places.items():
        its, call = events[np.isin(of, rows)], trace.rows[rows[0]]
        if not len(its):
            continue
        nbytes = its["nbytes"][its["of"] < 0]
        whom = _for_whom(trace, its)
        waiting_s, time_s = float(whom.sum()), float((its["end"] - its["begin"]).sum() / 1e9)
        name = trace.names[whom.argmax()] if waiting_s else ""
        part = float(whom.max()) / waiting_s if waiting_s else 0.0
        moving_s = time_s - waiting_s if verb != RANGE else 0.0
        least_s = None if on is None else _least_s(call, nbytes, on)
        words = call["call"] + f" on {comm}" * bool(comm)
        total = int(nbytes.sum())
        found.append(Line(words, line, len(nbytes), total, time_s, moving_s, waiting_s, name, part, least_s))
    return sorted(found, key=lambda each: -each.time_s)


def _for_whom(trace: Trace, events: NDArray[Any]) -> NDArray[Any]:
    """Seconds that were waited for each rank."""
    return np.bincount(events["whom"] + 1, events["lost"], len(trace.names) + 1)[1:] / 1e9


def _least_s(row: dict[str, Any], nbytes: NDArray[Any], on: Machine) -> float | None:
    """What calls of so many bytes each take at least; None: nobody knows."""
    verb, size = plain(row["verb"]), row.get("size", 1)
    if verb not in TABLE or row["of"]:
        return None
    parts = size if verb in INPUT_BLOCKS else 1
    return sum(
        lower_bound(verb, size, n // parts, on) * times for n, times in Counter(nbytes.tolist()).items()
    )


def by_rank(trace: Trace) -> list[dict[str, Any]]:
    """What each rank did: seconds in calls, of these waiting, in none; and how long others waited for it."""
    events = trace.events[np.array([row["verb"] != RANGE for row in trace.rows])[trace.events["row"]]]
    caused = _for_whom(trace, events)
    found = []
    for rank, name in enumerate(trace.names):
        its = events[events["rank"] == rank]
        last, inside = its["until"].max(initial=0), float((its["end"] - its["begin"]).sum() / 1e9)
        spans = float(last - its["begin"].min(initial=last)) / 1e9
        found.append(
            {
                "rank": name, "host": trace.hosts[rank], "calls": int((its["of"] < 0).sum()),
                "calls_s": inside, "waiting_s": float(its["lost"].sum() / 1e9),
                "computing_s": max(0.0, spans - inside), "others_waited_s": float(caused[rank]),
            }
        )  # fmt: skip
    return found


def _record(trace: Trace, found: list[Line]) -> dict[str, Any]:
    """imbalance: by which part the rank that computes longest is above the mean."""
    ranks = by_rank(trace)
    times = [each["computing_s"] for each in ranks]
    return {
        "clock_error_s": trace.error_s,
        "imbalance": max(times) * len(times) / sum(times) - 1 if sum(times) else 0.0,
        "ranks": ranks,
        "operations": [each._asdict() for each in found],
        "moved": trace.moved.tolist(),
    }


def text(trace: Trace, found: list[Line]) -> str:
    return "\n".join(_said(trace, found, _record(trace, found)))


def _time(seconds: float | None) -> str:
    return duration(seconds) if seconds else "-"


def _clocks(trace: Trace) -> str:
    """What there is to say of those of several hosts."""
    if trace.error_s == 0:
        return ""
    said = "not aligned" if trace.error_s is None else f"aligned within {_time(trace.error_s)}"
    return f"; clocks of {len(set(trace.hosts))} hosts, {said}"


def _said(trace: Trace, found: list[Line], record: dict[str, Any]) -> Iterator[str]:
    ranks = record["ranks"]
    calls = sum(each["calls"] for each in ranks)
    span = float(trace.events["until"].max(initial=0)) / 1e9
    yield f"{counted(len(ranks), 'rank')}, {_time(span)}, {counted(calls, 'call')}{_clocks(trace)}\n"
    least = ["at least"] * any(each.least_s is not None for each in found)
    head = ["operation", "line", "calls", "bytes", "time", "moving", "waiting", *least, "for"]
    rows: list[Sequence[object]] = []
    for each in found:
        times = each.time_s, each.moving_s, each.waiting_s, *[each.least_s] * len(least)
        whom = f"rank {each.whom} ({each.part:.0%})" if each.whom else ""
        rows.append((each.call, each.line, each.calls, size(each.nbytes), *map(_time, times), whom))
    yield table(head, rows, left=(0, 1, len(head) - 1)) + "\n"
    columns = ("computing_s", "calls_s", "waiting_s", "others_waited_s")
    rows = [(each["rank"], each["calls"], *(_time(each[column]) for column in columns)) for each in ranks]
    yield table(["rank", "calls", "computing", "in calls", "waiting", "others waited"], rows)
    yield f"imbalance: the longest computing is {record['imbalance']:.0%} above the mean"
    if trace.moved.any() and len(ranks) <= _SHOWN:
        yield "\nbytes of messages and halos, from the rank of a line to that of a column"
        rows = [(name, *map(size, line)) for name, line in zip(trace.names, record["moved"], strict=True)]
        yield table(["", *trace.names], rows)
