"""`hpcomm draw`: pictures of algorithms, of their times, and of which one wins where (needs matplotlib).

python -m hpcomm draw double_tree --ranks 14 -o tree.svg           who sends to whom
python -m hpcomm draw ring --ranks 8 --view time -o time.svg       space-time; past 64 ranks an occupancy map
python -m hpcomm draw ring,double_tree --ranks 64 --view cost -o cost.svg
python -m hpcomm draw all --view winners -o winners.svg
python -m hpcomm draw ring --ranks 8 -o ring.json                  a trace for chrome://tracing or Perfetto
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingError, UsageError
from ..job.command_line import Command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ..schedule.cost.machine_model import Machine
    from ..schedule.cost.simulator import Simulation
    from ..schedule.stream import Schedule

__all__ = ["chrome_trace", "cost", "main", "parser", "schedule_picture", "space_time", "winners"]

PICTURES = (".svg", ".png", ".pdf")
MOST_MESSAGES = 2_000_000  # of a picture or a trace
MOST_LINES = 64  # ranks up to which a space-time diagram has a line per message
_TREES = [
    ("all_reduce", "tree"),
    *((v, n) for v in ("broadcast", "reduce") for n in ("tree", "ring", "bine")),
]
_RINGS = ("all_reduce", "all_gather", "reduce_scatter", "barrier")  # nothing but a ring, from the beginning
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    from ..schedule.assured import assured
    from ..schedule.cost.machine_model import machine
    from ..schedule.cost.simulator import meant, simulate
    from ..schedule.registry import load, named
    from .sim import check_ranks, numbers

    drawn = re.sub(r"[^\w.-]+", "_", options.algorithm)
    out = Path(options.output or f"{drawn}_{options.view}.svg")
    writable(out, (*PICTURES, ".json"))
    if options.load:
        load(options.load)
    on, (nbytes, *_) = machine(options.machine), numbers(options.bytes)
    names = named(options.verb, options.algorithm)
    check_ranks(options.ranks)
    if options.view in ("cost", "winners"):
        draw = cost if options.view == "cost" else winners
        _save(draw(options.verb, names, on, options.ranks), out)
        print(f"{out}: {options.verb} by {', '.join(names)}")
        return 0
    if len(names) > 1:
        raise UsageError(f"{len(names)} algorithms in one picture", hint="one, or --view cost or winners")
    schedule = assured(options.verb, names[0], options.ranks, options.root)
    _check_messages(schedule)
    timed = meant(options.verb, names[0], options.ranks, nbytes, on, options.root)
    assured(options.verb, timed.name, options.ranks, options.root)
    if out.suffix == ".json":
        schedule = timed
        out.write_text(json.dumps(chrome_trace(simulate(schedule, on, nbytes, trace=True))))
    elif options.view == "time":
        schedule = timed
        _save(space_time(simulate(schedule, on, nbytes, trace=True)), out)
    else:
        _save(schedule_picture(schedule), out)
    print(
        f"{out}: {schedule.verb} by {schedule.name}, {schedule.size} ranks, {schedule.iterations} iterations"
    )
    return 0


def _check_messages(schedule: Schedule) -> None:
    """Refuse a picture of more messages than anybody can see.

    Raises:
        UsageError: there are too many.
    """
    messages = sum(s.active * s.rows for s in schedule.streams)
    if messages > MOST_MESSAGES:
        what = f"{schedule.verb} by {schedule.name} on {schedule.size:,} ranks sends {messages:,} messages"
        raise UsageError(what, hint="fewer ranks; --view cost or winners, and hpcomm sim, take more")


def writable(out: Path, kinds: Sequence[str] = PICTURES) -> None:
    """Refuse, before anything is computed, a name that no picture can be kept under.

    Raises:
        UsageError: the ending is none of kinds, there is no such folder, or nothing may be written there.
    """
    if out.suffix not in kinds:
        raise UsageError(f"{out} is no picture", hint=f"a name ending in {', '.join(kinds)}")
    from tempfile import TemporaryFile

    try:
        if not out.parent.is_dir():
            raise UsageError(f"there is no folder {out.parent}", hint=f"mkdir -p {out.parent}")
        with out.open("r+b") if out.exists() else TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}", hint="another place") from None


def pyplot() -> ModuleType:
    """matplotlib without a display.

    Raises:
        MissingError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingError("pictures need matplotlib", hint="pip install 'hpcomm[plot]'") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hpcomm"  # the same picture gives the same file
    import matplotlib.pyplot

    return matplotlib.pyplot


def schedule_picture(schedule: Schedule) -> Figure:
    """Who sends to whom: trees as trees, rings as rings, all else as ranks over iterations."""
    name = schedule.name.partition(":")[0]
    if name == "double_tree" and schedule.verb == "all_reduce" and "node=" not in schedule.name:
        return _two_trees(schedule.size)
    if (schedule.verb, name) in _TREES:
        return _one_tree(schedule)
    if name == "ring" and schedule.verb in _RINGS and schedule.size > 2:
        return _ring(schedule)
    return _exchanges(schedule)


def _two_trees(size: int) -> Figure:
    """The two binary trees side by side."""
    from ..schedule.tree import two_trees

    figure, both = pyplot().subplots(1, 2, figsize=(max(7, size * 0.62), 3.2))
    for axes, (parent, depth), title, colour in zip(
        both, two_trees(size), ("first half of x", "second half of x"), _COLOURS, strict=False
    ):
        for child, above in enumerate(parent.tolist()):
            if above >= 0:
                axes.plot([child, above], [-depth[child], -depth[above]], color=colour, zorder=1)
        leaf = _leaves(parent.tolist())
        _dots(
            axes, range(size), [-d for d in depth.tolist()], ["white" if x else colour for x in leaf], colour
        )
        axes.set_title(
            f"{title}: {sum(not x for x in leaf)} inner ranks, height {int(depth.max())}", fontsize=9
        )
        _bare(axes)
    return figure


def _leaves(parent: list[int]) -> list[bool]:
    inner = set(parent)
    return [rank not in inner for rank in range(len(parent))]


def _one_tree(schedule: Schedule) -> Figure:
    """The edges over which x goes down (reduce: up), by the iteration in which each is first used."""
    import numpy as np

    up = schedule.verb == "reduce"
    edges: dict[tuple[int, int], int] = {}  # (upper, lower): when it is first used; all_reduce: downwards
    for s in schedule.streams:
        if np.any(s.reduce) != up:
            continue
        for k in range(s.active):
            source, dest = s.ends(k, schedule.size)
            for a, b in zip(source.tolist(), dest.tolist(), strict=True):
                edges.setdefault((b, a) if up else (a, b), s.begin + k * s.every)
    depth = {schedule.root: 0}
    for (a, b), _ in sorted(edges.items(), key=lambda edge: edge[1], reverse=up):
        depth.setdefault(b, depth.get(a, 0) + 1)
    figure, axes = pyplot().subplots(figsize=(max(5, schedule.size * 0.4), 3.2))
    for (a, b), t in edges.items():
        start, end = (b, a) if up else (a, b)
        line = {"arrowstyle": "->", "color": _COLOURS[t % 6], "shrinkA": 7, "shrinkB": 8}
        axes.annotate("", (end, -depth[end]), (start, -depth[start]), arrowprops=line)
    ranks = sorted(depth)
    _dots(axes, ranks, [-depth[r] for r in ranks], ["white"] * len(ranks), "black")
    axes.set_title(f"{schedule.verb} by {schedule.name}: colours are iterations", fontsize=9)
    _bare(axes)
    return figure


def _ring(schedule: Schedule) -> Figure:
    """Ranks on a circle, and which block each sends in the first iterations."""
    import math

    p = schedule.size
    figure, axes = pyplot().subplots(figsize=(4.6, 4.6))
    at = [(math.sin(2 * math.pi * r / p), math.cos(2 * math.pi * r / p)) for r in range(p)]
    source, dest = schedule.streams[0].ends(0, p)
    first = schedule.streams[0].starts(0)[0] % p
    for a, b, block in zip(source.tolist(), dest.tolist(), first.tolist(), strict=True):
        axes.annotate(
            "",
            at[b],
            at[a],
            arrowprops={"arrowstyle": "->", "color": _COLOURS[0], "shrinkA": 11, "shrinkB": 11},
        )
        if p <= 24:
            x, y = ((at[a][i] + at[b][i]) / 2 * 1.12 for i in (0, 1))
            axes.text(x, y, f"{block}", fontsize=7, color="gray", ha="center", va="center")
    _dots(axes, [x for x, _ in at], [y for _, y in at], ["white"] * p, _COLOURS[0])
    axes.set_title(
        f"{schedule.verb} by ring, {schedule.iterations} iterations;\ngray: block sent in the first",
        fontsize=9,
    )
    axes.set_aspect("equal")
    axes.margins(0.15)
    _bare(axes)
    return figure


def _exchanges(schedule: Schedule) -> Figure:
    """Ranks upwards, iterations to the right, an arrow per message."""
    figure, axes = pyplot().subplots(
        figsize=(max(4, 1.1 * schedule.iterations + 1), max(2.5, schedule.size * 0.3))
    )
    for s in schedule.streams:
        for k in range(s.active):
            t = s.begin + k * s.every
            source, dest = s.ends(k, schedule.size)
            for a, b in zip(source.tolist(), dest.tolist(), strict=True):
                if a != b:
                    axes.annotate(
                        "",
                        (t + 0.9, b),
                        (t + 0.1, a),
                        arrowprops={"arrowstyle": "->", "color": _COLOURS[a % 6]},
                    )
    axes.set_xlim(0, max(1, schedule.iterations))
    axes.set_ylim(schedule.size - 0.5, -0.5)
    axes.locator_params(integer=True)
    axes.set_xlabel("iteration")
    axes.set_ylabel("rank")
    axes.set_title(f"{schedule.verb} by {schedule.name}", fontsize=9)
    figure.tight_layout()
    return figure


def space_time(found: Simulation) -> Figure:
    """Messages in time: a line each, up to 64 ranks; beyond, how many are under way."""
    schedule = found.schedule
    figure, axes = pyplot().subplots(figsize=(8, 4.5))
    if schedule.size <= MOST_LINES:
        for t, a, b, _, begin, end in found.messages:
            axes.plot([begin * 1e6, end * 1e6], [a, b], color=_COLOURS[t % 6], linewidth=0.8)
        way = critical_way(found)
        axes.plot([time * 1e6 for time, _ in way], [rank for _, rank in way], color="black", linewidth=2)
        title = "black: the critical path"
    else:
        image, span = occupancy(found)
        shown = axes.imshow(
            image, aspect="auto", extent=(0, span * 1e6, schedule.size, 0), cmap="magma", vmin=0
        )
        figure.colorbar(shown, label="messages under way per rank")
        title = "occupancy"
    axes.set_xlabel("time, us")
    axes.set_ylabel("rank")
    axes.set_title(f"{schedule.verb} by {schedule.name} on {schedule.size} ranks: {title}", fontsize=9)
    figure.tight_layout()
    return figure


def critical_way(found: Simulation) -> list[tuple[float, int]]:
    """The critical path as a line: (time, rank) where each of its messages begins and ends."""
    ends = {(t, a, b): (begin, end) for t, a, b, _, begin, end in found.messages}
    way = []
    for (_, a), (t, b) in pairwise(found.path):
        begin, end = ends[t, a, b]
        way += [(begin, a), (end, b)]
    return way


def occupancy(found: Simulation, rows: int = 64, columns: int = 256) -> tuple[NDArray[np.float64], float]:
    """How many messages a rank has under way, on average over a few ranks (rows) and a while (columns).

    Returns:
        (array of shape (rows, columns), seconds that it spans).
    """
    import numpy as np

    _, sender, _, _, begin, end = (np.array(column) for column in zip(*found.messages, strict=True))
    edges = np.linspace(0, float(end.max()), columns + 1)
    row = np.arange(found.schedule.size) * rows // found.schedule.size
    image = np.zeros((rows, columns))
    for i in range(rows):
        mine = row[sender] == i
        busy = _before(end[mine], edges) - _before(begin[mine], edges)  # seconds until each edge, of all
        image[i] = np.diff(busy) / np.diff(edges) / (row == i).sum()
    return image, float(edges[-1])


def _before(times: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of min(time, edge) over all times, for every edge."""
    import numpy as np

    times = np.sort(times)
    passed = np.searchsorted(times, edges)
    return np.concatenate([[0.0], np.cumsum(times)])[passed] + (times.size - passed) * edges


def cost(verb: str, names: list[str], on: Machine, ranks: int) -> Figure:
    """Time against size, with the lower bound, and where the winner changes."""
    from ..schedule.assured import evidence
    from ..schedule.cost.machine_model import lower_bound
    from ..schedule.cost.simulator import predict

    for name in names:
        evidence(verb, name, ranks)

    sizes = [2**k for k in range(3, 31)]
    times = {name: [predict(verb, name, ranks, n, on).seconds for n in sizes] for name in names}
    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    for i, (name, row) in enumerate(times.items()):
        line = ("-", ":", "-.")[i // 10 % 3]  # there are 10 colours
        axes.loglog(sizes, [t * 1e6 for t in row], line, color=f"C{i % 10}", label=name)
    axes.loglog(sizes, [lower_bound(verb, ranks, n, on) * 1e6 for n in sizes], "k--", label="lower bound")
    best = [min(times, key=lambda name, i=i: times[name][i]) for i in range(len(sizes))]  # type: ignore[misc]
    low = axes.get_ylim()[0]
    for i in range(len(sizes)):
        if i and best[i] != best[i - 1]:
            axes.axvline((sizes[i] * sizes[i - 1]) ** 0.5, color="lightgray", zorder=0)
        if not i or best[i] != best[i - 1]:
            axes.text(sizes[i], low, best[i], rotation=90, fontsize=7, color="gray", va="bottom")
    axes.set_xlabel("bytes")
    axes.set_ylabel("us")
    axes.set_title(f"{verb} on {ranks} ranks of {on.name}", fontsize=9)
    axes.legend(fontsize=7, ncols=2)
    figure.tight_layout()
    return figure


def winners(verb: str, names: list[str], on: Machine, ranks: int) -> Figure:
    """Which algorithm is fastest, over size and number of ranks up to `ranks`; gaps where none fits."""
    import numpy as np

    from ..schedule.assured import evidence
    from ..schedule.cost.simulator import predict

    def seconds(name: str, p: int, nbytes: int) -> float:
        try:
            evidence(verb, name, p)
            return predict(verb, name, p, nbytes, on).seconds
        except UsageError:  # nodes that do not divide so many ranks
            return np.inf

    sizes = [2**k for k in range(3, 31, 3)]
    several = sorted({max(2, int(ranks / 2 ** (i / 2))) for i in range(14)})
    times = np.array([[[seconds(name, p, n) for name in names] for n in sizes] for p in several])
    best = np.ma.masked_where(np.isinf(times).all(2), times.argmin(2))
    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    colours = pyplot().get_cmap("tab20", len(names))
    axes.imshow(best, origin="lower", aspect="auto", cmap=colours, vmin=-0.5, vmax=len(names) - 0.5)
    axes.set_xticks(range(len(sizes)), [_short(n) for n in sizes], fontsize=7)
    axes.set_yticks(range(len(several)), [str(p) for p in several], fontsize=7)
    for i in np.unique(best.compressed()):
        axes.plot([], [], "s", color=colours(int(i)), label=names[int(i)])
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlabel("bytes")
    axes.set_ylabel("ranks")
    axes.set_title(f"fastest {verb} on {on.name}, as simulated", fontsize=9)
    figure.tight_layout()
    return figure


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


def _short(nbytes: int) -> str:
    from .sim import size

    return size(nbytes).replace(".00", "")


def _dots(axes: Axes, x: Sequence[float], y: Sequence[float], fill: list[str], edge: str) -> None:
    x, y = list(x), list(y)
    axes.scatter(x, y, s=240, c=fill, edgecolors=edge, zorder=2)
    for rank, (a, b) in enumerate(zip(x, y, strict=True)):
        dark = fill[rank] != "white"
        axes.text(
            a,
            b,
            str(rank),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
            zorder=3,
        )


def _bare(axes: Axes) -> None:
    axes.set_axis_off()
    axes.margins(0.12)


def _save(figure: Figure, out: Path) -> None:
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot().close(figure)


def parser() -> Command:
    """The command's options."""
    parser = Command("hpcomm draw", "Draw collective algorithms and what they cost.")
    parser.add_argument("algorithm", help="a name; for cost and winners several with commas, or all")
    parser.add_argument("--verb", default="all_reduce", help="all_reduce, broadcast, ...")
    parser.add_argument("--ranks", type=int, default=8, help="of the picture; the most for winners")
    parser.add_argument("--root", type=int, default=0, help="of verbs that have one")
    views = ("messages", "time", "cost", "winners")
    parser.add_argument("--view", choices=views, default=views[0], help="what is drawn")
    parser.add_argument("--bytes", default="64k", help="of x, for --view time and traces")
    parser.add_argument("--machine", default="cluster", help="for everything that has to do with time")
    parser.add_argument("--load", metavar="FILE", help="Python that registers algorithms of your own")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=".svg, .png, .pdf; .json: a Chrome trace (default: ALGORITHM_VIEW.svg)",
    )
    return parser
