"""Pictures of the apps, for which matplotlib is needed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import Box, UsageError
from ..tools.canvas import pyplot, writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..core.types import AnyArray


def require_picture(parser: argparse.ArgumentParser, path: str | None) -> None:
    """End the program with a sentence, before it starts, when there is nothing to draw with or nowhere to.

    Args:
        path: None: no picture is wanted.
    """
    if path is None:
        return
    if not find_spec("matplotlib"):
        parser.error("a picture needs matplotlib: pip install matplotlib")
    try:
        writable(Path(path))
    except UsageError as error:
        parser.error(f"{error.what}: {error.hint}")


def draw_field(whole: AnyArray, name: str, boxes: Sequence[Box], path: str) -> None:
    """A two-dimensional field in colours, with the outline of every rank's piece."""
    from matplotlib.patches import Rectangle

    figure, axes = _subplots(1)
    image = axes.imshow(whole, origin="lower", cmap="inferno")
    figure.colorbar(image, axes.inset_axes((1.03, 0, 0.04, 1)), label=name)  # as high as the map
    for box in boxes:
        (y, x), (height, width) = box.start, box.shape
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), width, height, fill=False, edgecolor="white", lw=0.7))
    axes.set(xlabel="x", ylabel="y", title="Every outline is one rank's piece")
    figure.savefig(path)


def draw_histogram(edges: AnyArray, counts: AnyArray, name: str, path: str) -> None:
    """The histogram, with a colour for each rank's share of it."""
    figure, axes = _subplots(1)
    for rank, mine in enumerate(counts):
        below = counts[:rank].sum(axis=0)
        axes.bar(edges[:-1], mine, np.diff(edges), below, align="edge", label=f"rank {rank}")
    axes.set(xlabel=name, ylabel="rows", title="Every rank counted its own rows")
    axes.legend()
    figure.savefig(path)


def draw_pingpong(rows: list[list[float]], path: str) -> None:
    """Latency and bandwidth over the size of the message, as a picture."""
    nbytes, one_way, both = np.array(rows).T
    figure, (left, right) = _subplots(2)
    left.loglog(nbytes, one_way * 1e6, "o-")
    left.set(xlabel="bytes", ylabel="µs", title="one-way latency")
    right.loglog(nbytes, nbytes / one_way / 1e9, "o-", label="one way")
    right.loglog(nbytes, 2 * nbytes / both / 1e9, "s--", label="both ways at once")
    right.set(xlabel="bytes", ylabel="GB/s", title="bandwidth")
    right.legend()
    figure.savefig(path)


def draw_bandwidths(rows: Sequence[tuple[str, int, float]], path: str) -> None:
    """(path, bytes, GB/s): a curve for each path."""
    figure, axes = _subplots(1)
    for name in dict.fromkeys(row[0] for row in rows):
        axes.loglog(*zip(*[row[1:] for row in rows if row[0] == name], strict=True), "o-", label=name)
    axes.set(xlabel="bytes", ylabel="GB/s", title="both ways at once, of each")
    axes.legend()
    figure.savefig(path)


def draw_timeline(runs: Mapping[str, Mapping[str, tuple[float, float]]], path: str) -> None:
    """(begin, end) in seconds of every deed of every run, as bars."""
    figure, axes = _subplots(1)
    labels = [f"{run}: {deed}" for run, deeds in runs.items() for deed in deeds]
    spans = [span for deeds in runs.values() for span in deeds.values()]
    names = [deed for deeds in runs.values() for deed in deeds]
    colours = {deed: f"C{i}" for i, deed in enumerate(dict.fromkeys(names))}
    for row, ((begin, end), deed) in enumerate(zip(spans, names, strict=True)):
        axes.barh(row, (end - begin) * 1e3, left=begin * 1e3, color=colours[deed])
    axes.set(xlabel="ms", yticks=range(len(labels)), yticklabels=labels, title="computing and a transfer")
    axes.invert_yaxis()
    figure.savefig(path)


def _subplots(columns: int) -> tuple[Figure, Any]:
    made: tuple[Figure, Any] = pyplot().subplots(
        1, columns, figsize=(4.5 * columns, 3.5), layout="constrained"
    )
    return made
