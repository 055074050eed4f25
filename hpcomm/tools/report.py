"""`hpcomm report FOLDER`: what the calls of a traced run took: moving, waiting, and for whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..communicator.trace import RANGE
from ..core.verbs import INPUT_BLOCKS, TABLE
from ..errors import ConfigError
from ..job.command_line import Command, table
from . import trace_files
from .trace_page import page
from .trace_reader import Trace, plain, read

if TYPE_CHECKING:
    from .._lazy import NDArray
    from ..schedule.cost.machine_model import Machine

_SHOWN = 16  # ranks of the matrix
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
    if options.output and out.suffix not in (".html", ".json"):
        raise ConfigError(f"-o {out}: a report is a page or a trace", "hpcomm report", ".html or .json")
    trace = read(Path(options.folder))
    on = None
    if options.machine:
        from ..schedule.cost.machine_model import machine

        on = machine(options.machine)
    found = lines(trace, on)
    if options.torch:
        trace_files.write_for_torch(trace, Path(options.torch))
    if options.output:
        write = trace_files.chrome if out.suffix == ".json" else partial(page, text=text(trace, found))
        out.write_text(write(trace), encoding="utf-8")
    if options.json or not (options.output or options.torch):
        print(json.dumps(_record(trace, found), indent=1) if options.json else text(trace, found))
    return 0


def parser() -> Command:
    """The command's options."""
    made = Command(
        "hpcomm report", "Show what the calls of a run took that was traced by hpcomm run --trace."
    )
    made.add_argument("folder", metavar="FOLDER", help="what hpcomm run --trace FOLDER has written")
    made.add_argument(
        "-o", "--output", metavar="FILE", help=".html: a page with a picture; .json: for Perfetto and Chrome"
    )
    made.add_argument(
        "--torch", metavar="FOLDER", help="write a file per rank there, for torch's torchfrtrace"
    )
    made.add_argument("--json", action="store_true", help="records, for programs")
    made.add_argument(
        "--machine",
        help="a preset's name, or a file of hpcomm fit: say what the calls take at least on that machine",
    )
    return made


def lines(trace: Trace, on: Machine | None = None) -> list[Line]:
    """The operations, those that took longest first."""
    events = trace.events
    of = np.where(events["of"] >= 0, events["row"][events["of"]], events["row"])  # a wait belongs to its call
    places: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(trace.rows):
        if row["verb"] != "wait":
            key = (row["verb"], row.get("of", ""), row.get("on", ""), row["line"], row["program"])
            places.setdefault(key, []).append(i)
    found = []
    for (_, _, comm, line, _), rows in places.items():
        its = events[np.isin(of, rows)]
        if not len(its):
            continue
        begun = its[its["of"] < 0]
        whom = np.bincount(its["whom"] + 1, its["lost"], len(trace.names) + 1)[1:]
        total, time_s = its["lost"].sum() / 1e9, (its["end"] - its["begin"]).sum() / 1e9
        most = int(whom.argmax())
        row = trace.rows[rows[0]]
        found.append(
            Line(
                row["call"] + f" on {comm}" * bool(comm),
                line,
                len(begun),
                int(begun["nbytes"].sum()),
                float(time_s),
                float(time_s - total) if row["verb"] != RANGE else 0.0,
                float(total),
                trace.names[most] if total else "",
                float(whom[most] / 1e9 / total) if total else 0.0,
                None if on is None else _least_s(row, begun["nbytes"], on),
            )
        )
    return sorted(found, key=lambda each: -each.time_s)


def _least_s(row: dict[str, Any], nbytes: NDArray[Any], on: Machine) -> float | None:
    """What calls of so many bytes each take at least; None: nobody knows."""
    from ..schedule.cost.machine_model import lower_bound

    verb, size = plain(row["verb"]), row.get("size", 1)
    if verb not in TABLE or row["of"]:
        return None
    sizes, times = np.unique(nbytes, return_counts=True)
    parts = size if verb in INPUT_BLOCKS else 1
    each = [lower_bound(verb, size, int(n) // parts, on) for n in sizes]
    return float(np.dot(each, times))


def by_rank(trace: Trace) -> list[dict[str, Any]]:
    """What each rank did: seconds in calls, of these waiting, in none; and how long others waited for it."""
    events = trace.events[np.array([row["verb"] != RANGE for row in trace.rows])[trace.events["row"]]]
    caused = np.bincount(events["whom"] + 1, events["lost"], len(trace.names) + 1)[1:] / 1e9
    found = []
    for rank, name in enumerate(trace.names):
        its = events[events["rank"] == rank]
        spans = its["until"].max(initial=0) - its["begin"].min(initial=its["until"].max(initial=0))
        inside = (its["end"] - its["begin"]).sum() / 1e9
        found.append(
            {
                "rank": name, "host": trace.hosts[rank], "calls": int((its["of"] < 0).sum()),
                "calls_s": float(inside), "waiting_s": float(its["lost"].sum() / 1e9),
                "computing_s": max(0.0, float(spans / 1e9 - inside)), "others_waited_s": float(caused[rank]),
            }
        )  # fmt: skip
    return found


def imbalance(ranks: list[dict[str, Any]]) -> float:
    """By which part the rank that computes longest is above the mean."""
    times = [each["computing_s"] for each in ranks]
    return max(times) * len(times) / sum(times) - 1 if sum(times) else 0.0


def _record(trace: Trace, found: list[Line]) -> dict[str, Any]:
    ranks = by_rank(trace)
    return {
        "clock_error_s": trace.error_s,
        "imbalance": imbalance(ranks),
        "ranks": ranks,
        "operations": [each._asdict() for each in found],
        "moved": trace.moved.tolist(),
    }


def size_of(nbytes: float) -> str:
    """`3.1 KiB`"""
    for unit in _UNITS:
        if nbytes < 1024 or unit == _UNITS[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:.4g} {unit}"


def time_of(seconds: float) -> str:
    """`3.1 ms`"""
    if not seconds:
        return "-"
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} us"


def text(trace: Trace, found: list[Line]) -> str:
    return "\n".join(_said(trace, found))


def _said(trace: Trace, found: list[Line]) -> Iterator[str]:
    ranks = by_rank(trace)
    many = len(set(trace.hosts))
    said = "not aligned" if trace.error_s is None else f"aligned within {time_of(trace.error_s)}"
    span = trace.events["until"].max(initial=0) / 1e9
    clocks = f"; clocks of {many} hosts, {said}" if trace.error_s != 0 else ""
    yield f"{len(ranks)} ranks, {time_of(float(span))}, {sum(each['calls'] for each in ranks)} calls{clocks}"
    has_least = any(each.least_s is not None for each in found)
    rows = []
    for each in found:
        times = (each.time_s, each.moving_s, each.waiting_s)
        whom = f"rank {each.whom} ({each.part:.0%})" if each.whom else ""
        least = ["" if each.least_s is None else time_of(each.least_s)] * has_least
        rows.append(
            (each.call, each.line, each.calls, size_of(each.nbytes), *map(time_of, times), *least, whom)
        )
    head = [
        "operation",
        "line",
        "calls",
        "bytes",
        "time",
        "moving",
        "waiting",
        *["at least"] * has_least,
        "for",
    ]
    yield ""
    yield table(head, rows, left=(0, 1, len(head) - 1))
    yield ""
    head = ["rank", "calls", "computing", "in calls", "waiting", "others waited"]
    columns = ("computing_s", "calls_s", "waiting_s", "others_waited_s")
    yield table(head, [(each["rank"], each["calls"], *(time_of(each[c]) for c in columns)) for each in ranks])
    yield f"imbalance: the longest computing is {imbalance(ranks):.0%} above the mean"
    if trace.moved.any() and len(ranks) <= _SHOWN:
        yield "\nbytes of messages and halos, from the rank of a line to that of a column"
        rows = [
            (name, *map(size_of, line)) for name, line in zip(trace.names, trace.moved.tolist(), strict=True)
        ]
        yield table(["", *trace.names], rows)
