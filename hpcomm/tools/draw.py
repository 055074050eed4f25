"""`hpcomm draw`: pictures of algorithms, of their times, and of which one wins where (needs matplotlib).

python -m hpcomm draw double_tree --ranks 14 -o tree.svg           who sends to whom
python -m hpcomm draw ring --ranks 4 --view steps                  who holds what after each step, as a table
python -m hpcomm draw ring --ranks 4 --view steps -o ring.html     an animation (or .gif); .svg: a picture
python -m hpcomm draw ring --ranks 8 --view time -o time.svg       space-time; past 64 ranks an occupancy map
python -m hpcomm draw ring,double_tree --ranks 64 --view cost -o cost.svg
python -m hpcomm draw all --view winners -o winners.svg
python -m hpcomm draw ring --ranks 8 -o ring.json                  a trace for chrome://tracing or Perfetto
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..errors import UsageError, counted
from ..job.command_line import LOAD, Command, option
from ..schedule.assured import assured
from ..schedule.cost.machine_model import Machine, machine
from ..schedule.cost.simulator import Simulation, meant, simulate
from ..schedule.registry import load, named
from ..schedule.stream import Schedule
from . import draw_messages, draw_steps, draw_times
from .canvas import PICTURES, save, title, writable
from .sim import check_ranks, numbers

VIEWS = ("messages", "steps", "time", "cost", "winners")
OUTPUT = """.svg, .png or .pdf, or .json for a Chrome trace; with --view steps also .gif or .html, an
animation, or .md, a table (default: ALGORITHM_VIEW.svg; with --view steps a table on the screen)"""
parser = partial(
    Command,
    "hpcomm draw",
    "Draw collective algorithms and what they cost.",
    option("algorithm", help="a name; with --view cost or winners several, with commas, or all"),
    option("--verb", metavar="OPERATION", default="all_reduce", help="all_reduce, broadcast, ..."),
    option("--ranks", type=int, default=8, help="how many; with --view winners the largest number"),
    option("--root", type=int, default=0, help="the root, for operations that have one"),
    option("--view", choices=VIEWS, default=VIEWS[0], help="what is drawn"),
    option("--bytes", default="64k", help="size of x, which decides times, and the chunks of pipelines"),
    option("--machine", default="cluster", help="a preset's name, or a JSON file; it decides times"),
    LOAD,
    option("--json", action="store_true", help="with --view steps: records instead of a table on the screen"),
    option("-o", "--output", metavar="FILE", help=OUTPUT),
)
MOST_MESSAGES = 2_000_000  # of a picture or a trace
TABLE, TRACE = ".md", ".json"


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    out = _out(options.output, options.algorithm, options.view)
    if options.load:
        load(options.load)
    on, (nbytes, *_) = machine(options.machine), numbers(options.bytes)
    names = named(options.verb, options.algorithm)
    check_ranks(options.ranks)
    if options.view in ("cost", "winners"):
        draw = draw_times.cost if options.view == "cost" else draw_times.winners
        save(draw(options.verb, names, on, options.ranks), out or Path())
        print(f"{out}: {options.verb} by {', '.join(names)}")
        return 0
    if len(names) > 1:
        raise UsageError(f"{len(names)} algorithms in one picture", hint="one, or --view cost or winners")
    schedule = meant(options.verb, names[0], options.ranks, nbytes, on, options.root)
    _check_messages(schedule)
    assured(options.verb, schedule.name, options.ranks, options.root)
    if options.view == "steps":
        draw_steps.check_size(schedule)
    if out is None:
        records = draw_steps.records(schedule)
        print(json.dumps(records, indent=1) if options.json else draw_steps.table(records).rstrip("\n"))
        return 0
    _draw(schedule, options.view, out, nbytes, on)
    size, steps = counted(schedule.size, "rank"), counted(schedule.iterations, "step")
    print(f"{out}: {schedule.verb} by {schedule.name}, {size}, {steps}")
    return 0


def _out(asked: str | None, algorithm: str, view: str) -> Path | None:
    """The file that is to be written, which can be; None: a table on the screen."""
    if view == "steps" and not asked:
        return None
    drawn = re.sub(r"[^\w.-]+", "_", algorithm)
    out = Path(asked or f"{drawn}_{view}.svg")
    more = {"messages": (TRACE,), "time": (TRACE,), "steps": (".gif", ".html", TABLE)}
    writable(out, (*PICTURES, *more.get(view, ())))
    return out


def _draw(schedule: Schedule, view: str, out: Path, nbytes: int, on: Machine) -> None:
    """Draw one algorithm."""
    heading = title(schedule, nbytes, on)
    if view == "steps":
        if out.suffix == TABLE:
            out.write_text(draw_steps.table(draw_steps.records(schedule)), encoding="utf-8")
        elif out.suffix in PICTURES:
            save(draw_steps.picture(schedule, heading), out)
        else:
            draw_steps.animate(schedule, heading, out)
    elif out.suffix == TRACE:
        out.write_text(json.dumps(chrome_trace(simulate(schedule, on, nbytes, trace=True))))
    elif view == "time":
        save(draw_times.space_time(simulate(schedule, on, nbytes, trace=True)), out)
    else:
        save(draw_messages.schedule_picture(schedule, heading), out)


def _check_messages(schedule: Schedule) -> None:
    """Refuse a picture of more messages than anybody can see."""
    messages = sum(s.active * s.rows for s in schedule.streams)
    if messages > MOST_MESSAGES:
        what = f"{schedule.verb} by {schedule.name} on {schedule.size:,} ranks sends {messages:,} messages"
        raise UsageError(what, hint="fewer ranks; --view cost or winners, and hpcomm sim, take more")


def chrome_trace(found: Simulation) -> dict[str, object]:
    """The simulation for chrome://tracing or Perfetto: a row per rank, a bar per message at its sender."""
    events = [
        {"name": f"to {b}", "cat": "message", "ph": "X", "ts": begin * 1e6, "dur": (end - begin) * 1e6,
         "pid": 0, "tid": a, "args": {"iteration": t, "bytes": nbytes, "dest": b}}
        for t, a, b, nbytes, begin, end in found.messages
    ]  # fmt: skip
    rows = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": r, "args": {"name": f"rank {r}"}}
        for r in range(found.schedule.size)
    ]
    return {"traceEvents": rows + events, "displayTimeUnit": "ns"}
