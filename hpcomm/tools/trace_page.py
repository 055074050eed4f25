"""A trace as a page that needs nothing else: a line for each rank, and the report's table below."""

from __future__ import annotations

import json
from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..communicator.trace import RANGE
from .trace_reader import plain

if TYPE_CHECKING:
    from .._lazy import NDArray
    from .trace_reader import Trace

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
const D = @data@;
const of = (text, kind) => new kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
const begin = of(D.begin, Float64Array), took = of(D.took, Float64Array), lost = of(D.lost, Float64Array),
      row = of(D.row, Int32Array), rank = of(D.rank, Int32Array), whom = of(D.whom, Int32Array);
const colour = n => `hsl(${(n * 137 + 200) % 360} 50% 55%)`, LANE = 30, LEFT = 90, TOP = 22;
const key = document.getElementById("key"), tip = document.getElementById("tip"),
      c = document.getElementById("c"), g = c.getContext("2d");
D.verbs.forEach((verb, n) => key.insertAdjacentHTML("beforeend",
  `<i style="background:${colour(n)}"></i>${verb}`));
let from = 0, to = D.span || 1, width = 0;
const said = us => us >= 1e6 ? (us / 1e6).toPrecision(4) + " s"
  : us >= 1e3 ? (us / 1e3).toPrecision(4) + " ms"
  : us.toPrecision(3) + " us";
function draw() {
  const scale = devicePixelRatio || 1, height = TOP + LANE * D.ranks.length;
  width = c.clientWidth;
  c.width = width * scale; c.height = height * scale; c.style.height = height + "px";
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "12px sans-serif";
  const per = (width - LEFT) / (to - from), step = 10 ** Math.floor(Math.log10((to - from) / 4));
  g.fillStyle = "#666"; g.strokeStyle = "#eee";
  for (let t = Math.ceil(from / step) * step, end = -99; t <= to; t += step) {
    const x = LEFT + (t - from) * per;
    g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, height); g.stroke();
    if (x > end + 70) { g.fillText(said(t), x, 14); end = x; }
  }
  const drawn = [new Int32Array(D.ranks.length).fill(-1), new Int32Array(D.ranks.length).fill(-1)];
  for (let i = 0; i < begin.length; i++) {
    const end = begin[i] + took[i];
    if (end < from || begin[i] > to) continue;
    const r = rank[i], verb = D.verb[row[i]], isRange = verb < 0, done = drawn[+isRange];
    const x = Math.max(LEFT, LEFT + (begin[i] - from) * per),
          last = Math.min(width, LEFT + (end - from) * per);
    if (last - x < 1) {
      if (done[r] === Math.floor(x)) continue;
      done[r] = Math.floor(x);
    }
    const y = TOP + r * LANE + (isRange ? 2 : 10), h = isRange ? 6 : 17;
    g.fillStyle = isRange ? "#cfd8dc" : colour(verb);
    g.fillRect(x, y, Math.max(1, last - x), h);
    if (lost[i] > 0) {
      const until = Math.min(last, LEFT + (begin[i] + lost[i] - from) * per);
      g.fillStyle = "#c0392b";
      if (until > x) g.fillRect(x, y, Math.max(1, until - x), h);
    }
  }
  g.fillStyle = "#222";
  D.ranks.forEach((name, r) => g.fillText("rank " + name, 4, TOP + r * LANE + 22));
}
function at(x, y) {
  const t = from + (x - LEFT) / (width - LEFT) * (to - from), r = Math.floor((y - TOP) / LANE);
  const near = (to - from) / (width - LEFT), isRange = (y - TOP) % LANE < 9;
  let best = -1;
  for (let i = 0; i < begin.length; i++)
    if (rank[i] === r && (D.verb[row[i]] < 0) === isRange && begin[i] - near <= t
        && t <= begin[i] + took[i] + near
        && (best < 0 || took[i] <= took[best])) best = i;
  return best;
}
let held = null;
c.onwheel = e => {
  e.preventDefault();
  const t = from + Math.max(0, e.offsetX - LEFT) / (width - LEFT) * (to - from),
        by = Math.exp(e.deltaY / 400);
  from = Math.max(0, t - (t - from) * by); to = Math.min(D.span, t + (to - t) * by);
  draw();
};
c.onmousedown = e => { held = e.offsetX; };
onmouseup = () => { held = null; };
c.onmousemove = e => {
  if (held !== null) {
    const by = Math.max(-from, Math.min(D.span - to, (held - e.offsetX) / (width - LEFT) * (to - from)));
    from += by; to += by; held = e.offsetX;
    return draw();
  }
  const i = at(e.offsetX, e.offsetY);
  tip.style.display = i < 0 ? "none" : "block";
  if (i < 0) return;
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
    """The page; text: the report."""
    events, calls = trace.events, [row["verb"] != RANGE for row in trace.rows]
    verbs = {verb: 0 for verb, is_call in zip(map(_verb, trace.rows), calls, strict=True) if is_call}
    number = {verb: n for n, verb in enumerate(verbs)}
    data = {
        "begin": _packed(events["begin"] / 1e3, "<f8"),
        "took": _packed((events["end"] - events["begin"]) / 1e3, "<f8"),
        "lost": _packed(events["lost"] / 1e3, "<f8"),
        **{name: _packed(events[name], "<i4") for name in ("row", "rank", "whom")},
        "verbs": [escape(verb) for verb in verbs],
        "verb": [
            number[_verb(row)] if is_call else -1 for row, is_call in zip(trace.rows, calls, strict=True)
        ],
        "call": [row["call"] + (f" on {row['on']}" if "on" in row else "") for row in trace.rows],
        "line": [row["line"] for row in trace.rows],
        "ranks": trace.names,
        "span": float(events["until"].max(initial=0) / 1e3),
    }
    parts = {
        "title": f"what {len(trace.names)} ranks did",
        "report": escape(text),
        "data": json.dumps(data).replace("</", "<\\/"),  # which would end the script
    }
    made = _PAGE
    for name, part in parts.items():
        made = made.replace(f"@{name}@", part)
    return made


def _verb(row: dict[str, Any]) -> str:
    return f"{row['of']}.{row['verb']}" if row.get("of") not in (None, "", "Plan") else plain(row["verb"])


def _packed(column: NDArray[Any], dtype: str) -> str:
    return b64encode(np.ascontiguousarray(column, dtype).tobytes()).decode()
