"""A trace for other programs: a page that needs nothing else, Chrome's JSON, and torch's flight recorder."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from ..communicator.trace import RANGE
from ..core.verbs import TABLE
from ..errors import counted
from .trace_reader import Trace, plain

_VERSION = "2.10"  # of torch's format
_OF_TORCH = frozenset(TABLE) - {"scan", "exscan"}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>hpcomm: @title@</title>
<style>
body { font: 14px sans-serif; margin: 16px; color: #222; background: #fff }
canvas { width: 100%; border: 1px solid #ccc; cursor: grab }
#tip { position: fixed; background: #fffbe6; border: 1px solid #999; padding: 4px 8px; white-space: pre;
       pointer-events: none; display: none }
pre { font: 13px monospace; overflow-x: auto }
i { display: inline-block; width: 11px; height: 11px; margin: 0 4px 0 12px }
</style>
<h1>@title@</h1>
<p>Turn the wheel to zoom, drag to move, point at a call to read it.
<span id="key"><i style="background:#c0392b"></i>waits for another rank
<i style="background:#cfd8dc"></i>range</span></p>
<canvas id="c"></canvas><div id="tip"></div>
<pre>@report@</pre>
<script>
"use strict";
const D = @data@, {begin, took, lost, row, rank, whom} = D, LANE = 30, LEFT = 90, TOP = 22;
const [key, tip, c] = ["key", "tip", "c"].map(id => document.getElementById(id)), g = c.getContext("2d");
const colour = n => n < 0 ? "#cfd8dc" : `hsl(${(n * 137 + 200) % 360} 50% 55%)`;
const said = us => us >= 1e6 ? +(us / 1e6).toPrecision(4) + " s"
  : us >= 1e3 ? +(us / 1e3).toPrecision(4) + " ms"
  : +us.toPrecision(3) + " us";
D.verbs.forEach((name, n) => key.insertAdjacentHTML("beforeend",
  `<i style="background:${colour(n)}"></i>${name}`));
let from = 0, to = D.span || 1, width = 0, held = null, drawn = [];
const time = x => from + (x - LEFT) / (width - LEFT) * (to - from);
const place = t => Math.min(width, Math.max(LEFT, LEFT + (t - from) / (to - from) * (width - LEFT)));
function draw() {
  const scale = devicePixelRatio || 1, height = TOP + LANE * D.ranks.length, done = {};
  width = c.clientWidth;
  c.width = width * scale; c.height = height * scale; c.style.height = height + "px";
  g.scale(scale, scale);
  g.font = "12px sans-serif";
  for (let x = LEFT; x < width; x += 100) {
    g.fillStyle = "#eee"; g.fillRect(x, TOP, 1, height);
    g.fillStyle = "#666"; g.fillText(said(time(x)), x, 14);
  }
  drawn = [];
  for (let i = 0; i < begin.length; i++) {
    if (begin[i] + took[i] < from || begin[i] > to) continue;
    const x = place(begin[i]), w = Math.max(1, place(begin[i] + took[i]) - x);
    const [down, h] = D.verb[row[i]] < 0 ? [2, 6] : [10, 17], y = TOP + rank[i] * LANE + down;
    if (w <= 1 && done[y] === Math.floor(x)) continue;
    done[y] = Math.floor(x);
    g.fillStyle = colour(D.verb[row[i]]); g.fillRect(x, y, w, h);
    g.fillStyle = "#c0392b"; g.fillRect(x, y, place(begin[i] + lost[i]) - x, h);
    drawn.push([x, y, w, h, i]);
  }
  g.fillStyle = "#222";
  D.ranks.forEach((name, r) => g.fillText("rank " + name, 4, TOP + r * LANE + 22));
}
const at = (px, py) => drawn.findLast(
  ([x, y, w, h]) => x - 1 <= px && px <= x + w + 1 && y <= py && py <= y + h);
c.onwheel = e => {
  e.preventDefault();
  const t = time(Math.max(LEFT, e.offsetX)), by = Math.exp(e.deltaY / 400);
  from = Math.max(0, t - (t - from) * by); to = Math.min(D.span, t + (to - t) * by);
  draw();
};
c.onmousedown = e => { held = e.offsetX; };
onmouseup = () => { held = null; };
c.onmousemove = e => {
  if (held !== null) {
    const by = Math.max(-from, Math.min(D.span - to, time(held) - time(e.offsetX)));
    from += by; to += by; held = e.offsetX;
    return draw();
  }
  const found = at(e.offsetX, e.offsetY), i = found && found[4];
  tip.style.display = found ? "block" : "none";
  if (!found) return;
  tip.style.left = Math.min(e.clientX + 12, innerWidth - 420) + "px"; tip.style.top = e.clientY + 14 + "px";
  tip.textContent = `${D.call[row[i]]}\\n${D.line[row[i]]}\\n${said(took[i])}, begun at ${said(begin[i])}`
    + (lost[i] > 0 ? `\\nwaits ${said(lost[i])}, the last to come is rank ${D.ranks[whom[i]]}` : "");
};
c.onmouseleave = () => { tip.style.display = "none"; };
onresize = draw;
draw();
document.body.dataset.drawn = begin.length;
</script>
</html>
"""


def page(trace: Trace, text: str) -> str:
    """A page with a line for each rank, and the report's text below."""
    events = trace.events
    verbs = [
        plain(row["verb"]) if row.get("of") in (None, "", "Plan") else f"{row['of']}.{row['verb']}"
        for row in trace.rows
    ]
    number = {verb: n for n, verb in enumerate(dict.fromkeys(verb for verb in verbs if verb != RANGE))}
    times = {"begin": events["begin"], "took": events["end"] - events["begin"], "lost": events["lost"]}
    data = {
        **{name: (column / 1e3).tolist() for name, column in times.items()},
        **{name: events[name].tolist() for name in ("row", "rank", "whom")},
        "verbs": [*map(escape, number)],
        "verb": [number.get(verb, -1) for verb in verbs],
        "call": [row["call"] + (f" on {row['on']}" if "on" in row else "") for row in trace.rows],
        "line": [row["line"] for row in trace.rows],
        "ranks": trace.names,
        "span": float(events["until"].max(initial=0) / 1e3),
    }
    made = _PAGE.replace("@title@", f"what {counted(len(trace.names), 'rank')} did").replace(
        "@report@", escape(text)
    )
    return made.replace("@data@", json.dumps(data).replace("</", "<\\/"))  # which would end the script


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
