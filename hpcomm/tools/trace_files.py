"""A trace for other programs: Chrome's JSON, as Perfetto and others read it, and torch's flight recorder."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from ..communicator.trace import RANGE
from ..core.verbs import TABLE
from .trace_reader import Trace, plain

_VERSION = "2.10"  # of torch's format
_OF_TORCH = frozenset(TABLE) - {"scan", "exscan"}


def chrome(trace: Trace) -> str:
    """Chrome's JSON: a process for each rank, ts and dur in microseconds after baseTimeNanoseconds."""
    found: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {name} ({host})"}}
        for rank, (name, host) in enumerate(zip(trace.names, trace.hosts, strict=True))
    ]
    threads: dict[str, int] = {"": 0}
    for i, event in enumerate(trace.events.tolist()):
        begin, end, nbytes, place, _, _, _, rank, lost, whom, until = event
        row = trace.rows[place]
        said: dict[str, Any] = {"call": row["call"], "line": row["line"], "bytes": nbytes}
        if whom >= 0:
            said |= {"waits_us": lost / 1e3, "waits_for": f"rank {trace.names[whom]}"}
        names = (row["call"], RANGE) if row["verb"] == RANGE else (plain(row["verb"]), "hpcomm")
        tid = threads.setdefault(row.get("thread", ""), len(threads))
        common = {"name": names[0], "cat": names[1], "pid": rank, "tid": tid, "ts": begin / 1e3}
        found.append({**common, "ph": "X", "dur": (end - begin) / 1e3, "args": said})
        if until > end:  # it went on in the background
            found += [{**common, "ph": "b", "id": i}, {**common, "ph": "e", "id": i, "ts": until / 1e3}]
    return json.dumps({"baseTimeNanoseconds": trace.begin, "displayTimeUnit": "ns", "traceEvents": found})


def write_for_torch(trace: Trace, folder: Path) -> None:
    """A file per rank for torch's `torchfrtrace FOLDER`: its collective calls, by communicator.

    That knows no backend but torch's own, so operations are called gloo's; sizes are bytes.
    """
    rows = {
        i: row
        for i, row in enumerate(trace.rows)
        if row.get("size", 1) > 1 and not row["of"] and plain(row["verb"]) in _OF_TORCH
    }
    groups: dict[str, dict[str, Any]] = {}
    for row in rows.values():
        name = str(row["comm"])
        group = groups.setdefault(name, {"name": name, "desc": row["on"], "ranks": {}})
        group["ranks"][row["of_rank"]] = True
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(len(trace.names)):
        entries, numbers = list[dict[str, Any]](), Counter[int]()
        for event in trace.events[trace.events["rank"] == rank].tolist():
            if event[3] in rows and event[6] < 0:
                row = rows[event[3]]
                numbers[row["comm"]] += 1
                entries.append(_entry(trace.begin, event, row, numbers[row["comm"]], len(entries)))
        its = {
            name: {**each, "ranks": str([*each["ranks"]])}
            for name, each in groups.items()
            if rank in each["ranks"]
        }
        whole = {"version": _VERSION, "pg_config": its, "pg_status": {}, "entries": entries}
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(whole))


def _entry(first: int, event: Any, row: dict[str, Any], number: int, at: int) -> dict[str, Any]:
    begin, nbytes, until, verb = first + event[0], event[2], first + event[10], plain(row["verb"])
    taken = {"all_gather": nbytes * row["size"], "reduce_scatter": nbytes // row["size"]}.get(verb, nbytes)
    path, _, line = row["line"].rpartition(":")
    return {
        "record_id": at, "op_id": at, "pg_id": 0, "process_group": (str(row["comm"]), row["on"]),
        "p2p_seq_id": 0, "is_p2p": False, "collective_seq_id": number,
        "profiling_name": f"gloo:{verb}", "input_sizes": [[nbytes]], "output_sizes": [[taken]],
        "input_dtypes": ["Byte"], "output_dtypes": ["Byte"], "state": "completed", "retired": True,
        "timeout_ms": 0, "time_created_ns": begin, "time_discovered_started_ns": begin,
        "time_discovered_completed_ns": until, "duration_ms": (until - begin) / 1e6,
        "frames": [{"name": row["call"], "filename": path, "line": int(line) if line.isdigit() else 0}],
    }  # fmt: skip
