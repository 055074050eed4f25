"""A schedule step by step: who holds what after each step, as a table, a picture or an animation.

A chunk is a letter and the ranks whose x went into it: a01 is the first chunk of x, reduced over ranks 0
and 1. What is new after a step is bold in the table; pictures frame it in the step's colour.
"""

from __future__ import annotations

import math
from base64 import b64encode
from html import escape
from io import BytesIO
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple

from ..core.verbs import REDUCTIONS
from ..errors import UsageError, spans
from ..schedule.steps import Chunk, Step, steps
from .canvas import arrow, pyplot, step_colour

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..schedule.stream import Schedule

_MOST = {"ranks": 16, "chunks": 32, "steps": 64}
_WIDE, _HIGH, _APART = 0.62, 0.24, 0.75  # inches: a chunk, and how far states are apart
_FRAMES, _PER_S = {".gif": (7, 6), ".html": (1, 1)}, 8  # a message on its way, a state; of them per second
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font-family: sans-serif; text-align: center }}
img {{ max-width: 95vw; max-height: 80vh }}</style>
<p><img id="frame" alt="{title}"></p>
<p><button id="back">Back</button> <button id="play">Play</button> <button id="next">Next</button>
<input id="at" type="range" min="0" max="{last}" value="0" aria-label="frame"></p>
<script>
const frames = {frames}, at = document.getElementById("at"), play = document.getElementById("play");
let timer = 0;
function show(i) {{
  at.value = i;
  document.getElementById("frame").src = "data:image/svg+xml;base64," + frames[at.value];
}}
function stop() {{ clearInterval(timer); timer = 0; play.textContent = "Play"; }}
function move(by) {{ stop(); show(+at.value + by); }}
document.getElementById("back").onclick = () => move(-1);
document.getElementById("next").onclick = () => move(1);
at.oninput = () => move(0);
play.onclick = () => {{
  if (timer) return stop();
  play.textContent = "Pause";
  timer = setInterval(() => show((+at.value + 1) % frames.length), 1000);
}};
show(0);
</script>
</html>
"""


def check_size(schedule: Schedule) -> None:
    """Refuse what nobody can follow step by step."""
    counts = {"ranks": schedule.size, "chunks": schedule.cells, "steps": schedule.iterations}
    for what, count in counts.items():
        if count > _MOST[what]:
            why = f"{schedule.verb} by {schedule.name} has {count} {what}, too many to follow step by step"
            raise UsageError(why, hint=f"at most {_MOST[what]}: fewer --ranks, or fewer --bytes")


def table(found: list[dict[str, str]]) -> str:
    """Records as a table in Markdown."""
    heads = list(found[0])
    lines = [heads, ["---"] * len(heads), *(list(each.values()) for each in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def records(schedule: Schedule) -> list[dict[str, str]]:
    """Who holds what after each step, by the names of columns."""
    heads = ["after step", "messages", *(f"rank {rank}" for rank in range(schedule.size))]
    found, rows = steps(schedule), []
    for i, step in enumerate(found):
        before = found[max(0, i - 1)].held
        sent = ", ".join(
            f"{m.source}→{m.dest} {''.join(_letter(before[m.source][c]) for c, _, _ in m.chunks)}"
            for m in step.messages
            if m.source != m.dest
        )
        row = [str(i) if i else "start", sent]
        for now, then in zip(step.held, before, strict=True):  # of a rank; what is new is bold
            words = [(label(schedule, chunk), chunk != old) for chunk, old in zip(now, then, strict=True)]
            row.append(" ".join(f"**{word}**" if new else word for word, new in words if word))
        rows.append(dict(zip(heads, row, strict=True)))
    return rows


def label(schedule: Schedule, chunk: Chunk) -> str:
    """`a01`: the first chunk of x, of ranks 0 and 1; `a`, where it is clear whose it is; "" for nothing."""
    if chunk.place < 0:
        return ""
    if schedule.verb not in (*REDUCTIONS, "all_to_all", "barrier"):
        return _letter(chunk)
    if schedule.size <= 5:
        return _letter(chunk) + "".join(map(str, chunk.ranks))
    return _letter(chunk) + spans(chunk.ranks).replace(" ", "")


def _letter(chunk: Chunk) -> str:
    return ascii_letters[chunk.place]


class _Stack(NamedTuple):
    """Where a rank's chunks are drawn, one below the other; x, y: the middle of the first one's left end."""

    x: float
    y: float

    def at(self, chunk: float) -> tuple[float, float]:
        return self.x, self.y - chunk * _HIGH

    def middle(self, chunk: int) -> tuple[float, float]:
        return self.x + _WIDE / 2, self.y - chunk * _HIGH


def picture(schedule: Schedule, heading: str) -> Figure:
    """All states side by side; an arrow for each chunk that goes from one rank to another."""
    found = steps(schedule)
    high = schedule.cells * _HIGH + 0.2
    inches = 0.9 + len(found) * (_WIDE + _APART), 1 + schedule.size * high
    figure, axes = pyplot().subplots(figsize=inches, layout="constrained")
    axes.set_aspect("equal")  # so that an inch of the axes is an inch
    axes.set_axis_off()
    figure.suptitle(heading, fontsize=10)
    stacks = [
        [_Stack(i * (_WIDE + _APART), -rank * high) for rank in range(schedule.size)]
        for i in range(len(found))
    ]
    for i, (step, here) in enumerate(zip(found, stacks, strict=True)):
        colour = step_colour(max(1, i), len(found) - 1)
        axes.text(*here[0].middle(-1), f"step {i}" if i else "start", ha="center", va="center", fontsize=8)
        before = found[max(0, i - 1)].held
        for rank, stack in enumerate(here):
            _chunks(axes, schedule, stack, step.held[rank], before[rank], colour)
        for m in step.messages:
            for a, b, _ in m.chunks if m.source != m.dest else ():
                x, y = stacks[i - 1][m.source].at(a)
                arrow(axes, (x + _WIDE, y), here[m.dest].at(b), colour)
    for rank, stack in enumerate(stacks[0]):
        x, y = stack.at((schedule.cells - 1) / 2)
        axes.text(x - 0.1, y, f"rank {rank}", ha="right", va="center", fontsize=8)
    axes.autoscale_view()
    return figure


def animate(schedule: Schedule, heading: str, out: Path) -> None:
    """Messages on their way between ranks on a circle: a GIF, or a page that needs nothing else."""
    found = steps(schedule)
    wide, high = _circle_size(schedule)
    figure = pyplot().figure(figsize=(wide, high))
    figure.suptitle(heading, fontsize=10, y=1 - 0.08 / high, va="top")
    axes = figure.add_axes((0, 0, 1, 1))
    slides, rests = _FRAMES[out.suffix]
    frames = [(0, 1.0)] * rests
    for i in range(1, len(found)):
        frames += [(i, (k + 0.5) / slides) for k in range(slides)] + [(i, 1.0)] * rests
    if out.suffix == ".gif":
        from matplotlib.animation import PillowWriter

        writer = PillowWriter(fps=_PER_S)
        with writer.saving(figure, str(out), dpi=90):
            for i, share in frames:
                _frame(axes, schedule, found, i, share)
                writer.grab_frame()
    else:
        texts = []
        for i, share in frames:
            _frame(axes, schedule, found, i, share)
            kept = BytesIO()
            figure.savefig(kept, format="svg", metadata={"Date": None})
            texts.append(b64encode(kept.getvalue()).decode())
        page = _PAGE.format(title=escape(heading), last=len(frames) - 1, frames=texts)
        out.write_text(page, encoding="utf-8")
    pyplot().close(figure)


def _circle(schedule: Schedule) -> float:
    """The radius of the circle on which the ranks' chunks have room."""
    room = math.hypot(_WIDE, schedule.cells * _HIGH) + 0.5
    return max(0.9, room / 2 / math.sin(math.pi / max(2, schedule.size)))


def _circle_size(schedule: Schedule) -> tuple[float, float]:
    radius = _circle(schedule)
    return max(4.0, 2 * radius + _WIDE + 0.4), 2 * radius + schedule.cells * _HIGH + 1.6


def _frame(axes: Axes, schedule: Schedule, found: list[Step], i: int, share: float) -> None:
    """Step i with its messages so far on their way; 1: they have arrived."""
    axes.clear()
    p, radius = schedule.size, _circle(schedule)
    angles = [2 * math.pi * rank / p for rank in range(p)]
    top = schedule.cells * _HIGH / 2
    stacks = [_Stack(radius * math.sin(x) - _WIDE / 2, radius * math.cos(x) + top) for x in angles]
    colour, step = step_colour(max(1, i), len(found) - 1), found[i]
    before, held = found[max(0, i - 1)].held, step.held if share == 1.0 else found[i - 1].held
    for rank, stack in enumerate(stacks):
        _chunks(axes, schedule, stack, held[rank], before[rank], colour)
        axes.text(*stack.middle(-1), f"rank {rank}", ha="center", va="center", fontsize=8)
    for m in step.messages if share < 1.0 else ():
        for a, b, _ in m.chunks:
            start, end = stacks[m.source].middle(a), stacks[m.dest].middle(b)
            arrow(axes, start, end, colour)
            x, y = (s + share * (e - s) for s, e in zip(start, end, strict=True))
            word = label(schedule, before[m.source][a])
            box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour, "linewidth": 1.5}
            axes.text(x, y, word, ha="center", va="center", fontsize=8, zorder=4, bbox=box)
    wide, high = _circle_size(schedule)
    word = f"step {i} of {len(found) - 1}" if i else "start"
    axes.text(0, high / 2 - 0.08, word, ha="center", va="top", fontsize=9)
    axes.set_xlim(-wide / 2, wide / 2)
    axes.set_ylim(-high / 2 + 0.35, high / 2 + 0.35)
    axes.set_axis_off()


def _chunks(
    axes: Axes, schedule: Schedule, stack: _Stack, now: list[Chunk], then: list[Chunk], colour: object
) -> None:
    """What a rank holds; the darker, the more ranks have contributed; new ones in a frame of this colour."""
    from matplotlib.patches import Rectangle

    whole = schedule.size if schedule.verb in (*REDUCTIONS, "barrier") else 2
    for i, (chunk, old) in enumerate(zip(now, then, strict=True)):
        (x, y), word, new = stack.at(i), label(schedule, chunk), chunk != old
        place = Rectangle((x, y - _HIGH / 2), _WIDE, _HIGH, zorder=3 if new else 2)
        place.set(
            facecolor=str(1.0 - 0.35 * len(chunk.ranks) / whole),
            edgecolor=colour if new else "gray",
            linewidth=2.0 if new else 0.6,
        )
        axes.add_patch(place)
        small = 7 if len(word) < 9 else 5
        axes.text(x + _WIDE / 2, y, word, ha="center", va="center", fontsize=small, zorder=3)
