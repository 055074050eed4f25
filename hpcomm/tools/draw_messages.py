"""Pictures of who sends to whom: trees as trees, rings as rings, all else as ranks over steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import counted
from ..schedule.steps import messages
from .canvas import arrow, pyplot, rank_axis, step_bar, step_colour, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..schedule.stream import Schedule

    Edges = dict[tuple[int, int], int]  # (child, parent): the first step in which a message goes along it

_MOST_TREES = 2  # of one picture, each with its way up and its way down
_LOOKED_AT = 50_000  # messages of a schedule that may be one of trees
_TREE_VERBS = ("all_reduce", "barrier", "broadcast", "reduce")


def schedule_picture(schedule: Schedule, heading: str = "") -> Figure:
    """Who sends to whom: trees as trees, rings as rings, all else as ranks over steps."""
    heading = heading or f"{schedule.verb} by {schedule.name}: {counted(schedule.size, 'rank')}"
    found = trees(schedule)
    if found:
        return _trees(schedule, found, heading)
    return (_ring if _is_ring(schedule) else _exchanges)(schedule, heading)


@dataclass
class Tree:
    """The ways of some chunks: up, where they are reduced, and down, where they are copied."""

    chunks: list[int] = field(default_factory=list)
    up: Edges = field(default_factory=dict)
    down: Edges = field(default_factory=dict)

    @property
    def halves(self) -> list[tuple[str, Edges]]:
        return [(name, edges) for name, edges in (("up", self.up), ("down", self.down)) if edges]


def trees(schedule: Schedule) -> list[Tree]:
    """The trees along which all chunks go; [] where they go otherwise, or along too many different ones."""
    if schedule.verb not in _TREE_VERBS or sum(s.active * s.rows for s in schedule.streams) > _LOOKED_AT:
        return []
    found: dict[tuple[frozenset[tuple[int, int]], ...], Tree] = {}
    for way in _ways(schedule):
        same = found.setdefault((frozenset(way.up), frozenset(way.down)), Tree([], way.up, way.down))
        same.chunks += way.chunks
    several = list(found.values())
    # Each way, if there is one, has to lead through all ranks, and from or to one of them.
    are_trees = all(
        tree.halves and all(_root(edges, schedule.size) is not None for _, edges in tree.halves)
        for tree in several
    )
    return several if are_trees and len(several) <= _MOST_TREES else []


def _ways(schedule: Schedule) -> list[Tree]:
    """The way of each chunk."""
    ways = [Tree([chunk]) for chunk in range(schedule.cells)]
    for t in range(schedule.iterations):
        for source, dest, chunks in messages(schedule, t):
            for _, chunk, reduces in chunks:
                if reduces:
                    ways[chunk].up.setdefault((source, dest), t + 1)
                else:
                    ways[chunk].down.setdefault((dest, source), t + 1)
    return ways


def _root(edges: Edges, size: int) -> int | None:
    """The rank that all others are below; None: this is no tree of so many ranks."""
    parent = dict([*edges])
    tops = set(range(size)) - {*parent}
    if len(tops) != 1 or len(edges) != size - 1 or any(len(_way_up(rank, parent)) > size for rank in parent):
        return None
    return tops.pop()


def _way_up(rank: int, parent: dict[int, int]) -> list[int]:
    """The ranks above one, nearest first; too many where it goes round and round."""
    way: list[int] = []
    while rank in parent and len(way) <= len(parent) + 1:
        rank = parent[rank]
        way.append(rank)
    return way


def _trees(schedule: Schedule, found: list[Tree], heading: str) -> Figure:
    """A panel for each way of each tree: where a rank stands, and an arrow for each message."""
    p, steps = schedule.size, schedule.iterations
    panels = [(tree, name, edges) for tree in found for name, edges in tree.halves]
    columns = len(found[0].halves)
    deepest = max(len(_way_up(r, dict([*edges]))) for *_, edges in panels for r in range(p))
    size = columns * max(3.6, p * 0.42) + 0.7, len(found) * max(2.2, 0.9 + 0.62 * deepest)
    figure, grid = pyplot().subplots(len(found), columns, figsize=size, squeeze=False, layout="constrained")
    for axes, (tree, name, edges) in zip(grid.flat, panels, strict=True):
        parent = dict([*edges])
        where = _places(parent, p, schedule.root)
        for (child, above), step in edges.items():
            start, end = (child, above) if name == "up" else (above, child)
            arrow(axes, where[start], where[end], step_colour(step, steps), 8)
        _dots(axes, where)
        part = _share(tree.chunks, schedule.chunks)
        verb = "reduced on the way up" if name == "up" else "copied on the way down"
        axes.set_title(f"{part} {verb}", fontsize=9)
        axes.set_axis_off()
        axes.margins(0.1)
    figure.suptitle(heading, fontsize=10)
    pipelined = schedule.chunks > len(found)
    step_bar(figure, [*grid.flat], steps, "first step on this way" if pipelined else "step")
    return figure


def _share(chunks: list[int], several: int) -> str:
    """`x`, `first half of x`, `chunks 1, 4 of x`."""
    half = several // 2
    if len(chunks) == several:
        return "x is"
    if chunks in ([*range(half)], [*range(half, several)]) and several % 2 == 0:
        return f"{'second' if chunks[0] else 'first'} half of x is"
    return f"chunks {', '.join(map(str, chunks))} of x are"


def _places(parent: dict[int, int], size: int, root: int) -> list[tuple[float, float]]:
    """Where ranks stand: side by side, from root on, or from the one before if ways are shorter so."""

    def length(first: int) -> int:
        return sum(abs((a - first) % size - (b - first) % size) for a, b in parent.items())

    first = min((root, root - 1), key=length)
    return [(float((rank - first) % size), -float(len(_way_up(rank, parent)))) for rank in range(size)]


def _is_ring(schedule: Schedule) -> bool:
    """Whether all ranks give to the next one, or to the one before, in all steps."""
    import numpy as np

    p, streams = schedule.size, [s for s in schedule.streams if s.active]
    if p < 3 or not streams or any(s.rows != p or s.moves for s in streams):
        return False
    far = np.concatenate([(dest - source) % p for source, dest in (s.ends(0, p) for s in streams)])
    return np.unique(far).tolist() in ([1], [p - 1])


def _ring(schedule: Schedule, heading: str) -> Figure:
    """Ranks on a circle, and which chunk each sends in the first step."""
    p = schedule.size
    figure, axes = pyplot().subplots(figsize=(5, 5), layout="constrained")
    at = [(math.sin(2 * math.pi * r / p), math.cos(2 * math.pi * r / p)) for r in range(p)]
    for message in messages(schedule, 0):
        a, b = at[message.source], at[message.dest]
        arrow(axes, a, b, "black", 11)
        if p <= 24:
            x, y = ((a[i] + b[i]) / 2 * (1.12 if p > 4 else 1.2) for i in (0, 1))
            axes.text(x, y, str(message.chunks[0][0]), fontsize=7, color="gray", ha="center", va="center")
    _dots(axes, at)
    axes.set_title("every arrow is used in every step; gray: the chunk sent in step 1", fontsize=8)
    axes.set_aspect("equal")
    axes.margins(0.15)
    axes.set_axis_off()
    figure.suptitle(f"{heading}, {counted(schedule.iterations, 'step')}", fontsize=10)
    return figure


def _exchanges(schedule: Schedule, heading: str) -> Figure:
    """Ranks downwards, steps to the right, an arrow per message."""
    steps = schedule.iterations
    figure, axes = pyplot().subplots(
        figsize=(max(5, 1.1 * steps + 1), max(2.5, schedule.size * 0.3)), layout="constrained"
    )
    for step in range(1, steps + 1):
        for a, b, *_ in messages(schedule, step - 1):
            if a != b:
                arrow(axes, (step - 0.4, a), (step + 0.4, b), step_colour(step, steps), 2)
    axes.set_xlim(0.5, max(1, steps) + 0.5)
    axes.set_xlabel("step")
    whole_numbers(axes.xaxis, range(1, steps + 1))
    rank_axis(axes, schedule.size)
    axes.set_title(heading, fontsize=10)
    return figure


def _dots(axes: Axes, places: Sequence[tuple[float, float]]) -> None:
    """A circle with its number for each rank."""
    x, y = zip(*places, strict=True)
    axes.scatter(x, y, s=240, c="white", edgecolors="black", zorder=2)
    for rank, at in enumerate(places):
        axes.text(*at, str(rank), ha="center", va="center", fontsize=7, zorder=3)
