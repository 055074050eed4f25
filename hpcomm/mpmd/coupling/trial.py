"""Quality of a mapping: error on a smooth function, and how much of its integral is kept.

The fields of a link may be of different times on its two sides (lag, mean, linear), and their true values
between the points are not known. So a known function is sent through the same messages and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from ..._lazy import NDArray
from ...communicator.communicator import Communicator
from ...grids.methods import KINDS
from ..coupled_field import Load
from .coupler import Incoming, Outgoing
from .coupling_channel import Channel
from .wire import Lane, Part, Wire

_FIRST_TAG = 1 << 14  # beyond those of fields
_SAME = 1e-9  # areas of both sides that differ by more are of different regions


def extent(grid: Any, points: NDArray[np.int64], local: Communicator) -> list[list[float]]:
    """The lowest and the highest coordinates of all ranks' points. Collective over local."""
    x = grid.centres(points)
    low, high = x.min(axis=0, initial=np.inf), x.max(axis=0, initial=-np.inf)
    return [local.all_reduce(low, "min").tolist(), local.all_reduce(high, "max").tolist()]


class Measure(TypedDict):
    """Of one side of a field; area: None where its grid has none."""

    area: float | None
    integral: float
    worst: float
    mean: float


def measure(
    wire: Wire, side: Outgoing | Incoming, number: int, within: Sequence[Sequence[float]], local: Communicator
) -> Measure:
    """Send the function, or receive it: {"area", "integral", "worst", "mean"}, of this side, over all ranks.

    worst and mean are of the error, as shares of how much the function changes; at the giver 0.
    Collective over both programs. within: the giver's extent; number: of the field, alike on both sides.
    """
    field, weights = side.field, getattr(side, "weights", None)
    assert field.grid is not None  # of a field with weights
    exact = _smooth(field.grid.centres(field.points), within)
    made = exact if weights is None else np.zeros(weights.columns)
    part = Part(Load(field.name, made), side.part.rows, made.dtype)
    channel = Channel(Lane(wire, _FIRST_TAG + number, side.timeout_s), [part], sends=weights is None)
    channel.start()
    channel.finish()
    channel.free()
    off = np.zeros(len(exact))
    if weights is not None:
        made = weights.apply(made)
        off[weights.rows] = np.abs(made - exact)[weights.rows]
    worst = float(local.all_reduce(np.array(off.max(initial=0.0)), "max"))
    found = areas(side)
    area = np.ones(len(exact)) if found is None else found
    weight = weighing(side)
    mine = np.array([area.sum(), ((area if weight is None else weight) * made).sum(), (area * off).sum()])
    whole, integral, missed = local.all_reduce(mine).tolist()
    mean = missed / whole if whole else 0.0
    return {"area": None if found is None else whole, "integral": integral, "worst": worst, "mean": mean}


def judged(given: Measure, taken: Measure) -> str:
    """Both sides' measure in words."""
    words = f"a smooth function is off by {taken['mean']:.1e} on average, {taken['worst']:.1e} at most"
    if given["area"] is None or taken["area"] is None:
        return words
    if comparable(given, taken):
        lost = abs(given["integral"] - taken["integral"]) / abs(given["integral"])
        return f"{words}, its integral by {lost:.1e}"
    return f"{words}, and {taken['area'] / given['area']:.1%} of the area given is taken"


def comparable(given: Measure, taken: Measure) -> bool:
    """Whether both integrals are over the same area: not with land on one side."""
    a, b = given["area"], taken["area"]
    return a is not None and b is not None and abs(a - b) < _SAME * a


def _smooth(x: NDArray[np.float64], within: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """From 1.5 to 2.5 and once round, over the extent."""
    low, high = np.array(within)
    u = (x - low) / np.where(high > low, high - low, 1.0)
    return np.asarray(2.0 + 0.5 * np.sin(np.pi * u[:, 0]) * np.cos(np.pi * u[:, -1]))


def areas(side: Outgoing | Incoming) -> NDArray[np.float64] | None:
    """Areas of the cells, as far as they are covered."""
    grid, points, weights = side.field.grid, side.field.points, getattr(side, "weights", None)
    if grid is None or KINDS[grid.kind].has != "cells":
        return None
    return grid.areas(points) if weights is None else grid.areas(points) * weights.fraction


def weighing(side: Outgoing | Incoming) -> NDArray[np.float64] | None:
    """What integrals weigh values with: the program's own areas, or the grid's, of what each is for."""
    field, weights = side.field, getattr(side, "weights", None)
    if field.grid is None or (field.areas is None and KINDS[field.grid.kind].has != "cells"):
        return None
    area = field.grid.areas(field.points) if field.areas is None else field.areas
    return np.asarray(area if weights is None else area * weights.valid)
