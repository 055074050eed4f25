"""A trace for other programs: Chrome's JSON, as Perfetto and others read it, and torch's flight recorder."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..communicator.trace import RANGE
from ..core.verbs import TABLE
from .trace_reader import plain

if TYPE_CHECKING:
    from .trace_reader import Trace

_VERSION = "2.10"  # of torch's format


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
        tid = threads.setdefault(row.get("thread", ""), len(threads))
        is_range = row["verb"] == RANGE
        common = {"name": row["call"] if is_range else plain(row["verb"]), "pid": rank, "tid": tid}
        common["cat"] = RANGE if is_range else "hpcomm"
        found.append({**common, "ph": "X", "ts": begin / 1e3, "dur": (end - begin) / 1e3, "args": said})
        if until > end:  # it went on in the background
            found.append({**common, "ph": "b", "id": i, "ts": begin / 1e3})
            found.append({**common, "ph": "e", "id": i, "ts": until / 1e3})
    return json.dumps({"baseTimeNanoseconds": trace.begin, "displayTimeUnit": "ns", "traceEvents": found})


_OF_TORCH = frozenset(TABLE) - {"scan", "exscan"}


def write_for_torch(trace: Trace, folder: Path) -> None:
    """A file per rank for torch's `torchfrtrace FOLDER`: its collective calls, by communicator.

    That knows no backend but torch's own, so operations are called gloo's; sizes are bytes.
    """
    groups: dict[str, list[int]] = {}
    for row in trace.rows:
        if _is_of_torch(row) and row["of_rank"] not in (ranks := groups.setdefault(str(row["comm"]), [])):
            ranks.append(row["of_rank"])
    entries: list[list[dict[str, Any]]] = [[] for _ in trace.names]
    numbers: dict[tuple[int, str], int] = {}
    for event in trace.events.tolist():
        row, rank = trace.rows[event[3]], event[7]
        if _is_of_torch(row) and event[6] < 0:
            comm, its = str(row["comm"]), entries[rank]
            number = numbers[rank, comm] = numbers.get((rank, comm), 0) + 1
            its.append(_entry(trace.begin, event, row, len(groups[comm]), number, len(its)))
    folder.mkdir(parents=True, exist_ok=True)
    names = {str(row["comm"]): row["on"] for row in trace.rows if _is_of_torch(row)}
    for rank, its in enumerate(entries):
        told = {
            comm: {"name": comm, "desc": names[comm], "ranks": str(ranks)}
            for comm, ranks in groups.items()
            if rank in ranks
        }
        whole = {"version": _VERSION, "pg_config": told, "pg_status": {}, "entries": its}
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(whole))


def _is_of_torch(row: dict[str, Any]) -> bool:
    return row.get("size", 1) > 1 and not row["of"] and plain(row["verb"]) in _OF_TORCH


def _entry(first: int, event: Any, row: dict[str, Any], size: int, number: int, at: int) -> dict[str, Any]:
    begin, nbytes, until, verb = first + event[0], event[2], first + event[10], plain(row["verb"])
    given, taken = (nbytes, nbytes * size) if verb == "all_gather" else (nbytes, nbytes)
    taken = nbytes // size if verb == "reduce_scatter" else taken
    path, _, line = row["line"].rpartition(":")
    return {
        "record_id": at, "op_id": at, "pg_id": 0, "process_group": (str(row["comm"]), row["on"]),
        "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": f"gloo:{verb}",
        "input_sizes": [[given]], "output_sizes": [[taken]], "input_dtypes": ["Byte"],
        "output_dtypes": ["Byte"], "state": "completed", "retired": True, "timeout_ms": 0,
        "time_created_ns": begin, "time_discovered_started_ns": begin,
        "time_discovered_completed_ns": until, "duration_ms": (until - begin) / 1e6,
        "frames": [{"name": row["call"], "filename": path, "line": int(line) if line.isdigit() else 0}],
    }  # fmt: skip
