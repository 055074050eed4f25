"""Pictures of times: messages on a simulated machine, times by size, and which algorithm wins where."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..job.command_line import size
from ..schedule.assured import evidence
from ..schedule.cost.machine_model import Machine, lower_bound
from ..schedule.cost.simulator import Simulation, meant, simulate
from .canvas import algorithm_colour, pyplot, rank_axis, step_bar, step_colour, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 64  # ranks up to which a space-time diagram has a line per message


def space_time(found: Simulation) -> Figure:
    """Messages in time: a line each, up to 64 ranks; beyond, how many are under way."""
    schedule = found.schedule
    figure, axes = pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    if schedule.size <= MOST_LINES:
        steps = schedule.iterations
        for t, a, b, _, begin, end in found.messages:
            colour = step_colour(t + 1, steps)
            axes.plot([begin * 1e6, end * 1e6], [a, b], color=colour, linewidth=0.8)
        way = critical_way(found)
        axes.plot([time * 1e6 for time, _ in way], [rank for _, rank in way], color="black", linewidth=2)
        step_bar(figure, axes, steps)
        shown = "a line per message, from its sender to its receiver; black: the critical path"
    else:
        image, span = occupancy(found)
        bottom = schedule.size - 0.5
        map_ = axes.imshow(image, aspect="auto", extent=(0, span * 1e6, bottom, -0.5), cmap="Greys", vmin=0)
        figure.colorbar(map_, label="messages under way per rank")
        shown = "the darker, the more messages a rank has under way"
    axes.set_xlabel("time, us")
    rank_axis(axes, schedule.size)
    figure.suptitle(title(schedule, found.nbytes, found.on), fontsize=10)
    axes.set_title(shown, fontsize=8)
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
    times = np.sort(times)
    passed = np.searchsorted(times, edges)
    return np.concatenate([[0.0], np.cumsum(times)])[passed] + (times.size - passed) * edges


def cost(verb: str, names: list[str], on: Machine, ranks: int) -> Figure:
    """Time against size, with the lower bound, and where the winner changes."""
    sizes = [2**k for k in range(3, 31)]
    times = {name: [_seconds(verb, name, ranks, n, on) for n in sizes] for name in names}
    figure, axes = pyplot().subplots(figsize=(7, 4.5), layout="constrained")
    for i, (name, row) in enumerate(times.items()):
        line = "-" if i < 10 else "-."
        axes.loglog(sizes, [t * 1e6 for t in row], line, color=algorithm_colour(i), label=name)
    axes.loglog(sizes, [lower_bound(verb, ranks, n, on) * 1e6 for n in sizes], "k--", label="lower bound")
    best = [min(range(len(names)), key=lambda k, i=i: times[names[k]][i]) for i in range(len(sizes))]  # type: ignore[misc]
    for i, n in enumerate(sizes):
        axes.axvspan(n / 2**0.5, n * 2**0.5, 0, 0.03, color=algorithm_colour(best[i]), linewidth=0)
    axes.margins(x=0)
    axes.set_xlabel("bytes (strip below: the fastest)")
    axes.set_ylabel("us")
    axes.set_title(f"{verb}: {ranks} ranks, {on.name}, as simulated", fontsize=10)
    axes.legend(fontsize=7, ncols=2)
    return figure


def _seconds(verb: str, name: str, ranks: int, nbytes: int, on: Machine) -> float:
    """What an algorithm takes, proved as it would run there."""
    schedule = meant(verb, name, ranks, nbytes, on)
    evidence(verb, schedule.name, ranks)
    return simulate(schedule, on, nbytes).seconds


def winners(verb: str, names: list[str], on: Machine, ranks: int) -> Figure:
    """Which algorithm is fastest, over size and number of ranks up to `ranks`; gaps where none fits."""
    from matplotlib.colors import ListedColormap

    def seconds(name: str, p: int, nbytes: int) -> float:
        try:
            return _seconds(verb, name, p, nbytes, on)
        except UsageError:  # nodes that do not divide so many ranks
            return np.inf

    sizes = [2**k for k in range(3, 31, 3)]
    several = sorted({max(2, int(ranks / 2 ** (i / 2))) for i in range(14)})
    times = np.array([[[seconds(name, p, n) for name in names] for n in sizes] for p in several])
    best = np.ma.masked_where(np.isinf(times).all(2), times.argmin(2))
    figure, axes = pyplot().subplots(figsize=(7, 4.5), layout="constrained")
    colours = ListedColormap([algorithm_colour(i) for i in range(len(names))])
    axes.imshow(best, origin="lower", aspect="auto", cmap=colours, vmin=-0.5, vmax=len(names) - 0.5)
    axes.set_xticks(range(len(sizes)), [size(n) for n in sizes], fontsize=7)
    axes.set_yticks(range(len(several)), [str(p) for p in several], fontsize=7)
    for i in np.unique(best.compressed()):
        axes.plot([], [], "s", color=algorithm_colour(int(i)), label=names[int(i)])
    figure.legend(fontsize=7, loc="outside right upper")
    axes.set_xlabel("bytes")
    axes.set_ylabel("ranks")
    axes.set_title(f"fastest {verb}: {several[0]} to {ranks} ranks, {on.name}, as simulated", fontsize=10)
    return figure
