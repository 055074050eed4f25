"""Cells given by their vertices. On the sphere their edges are great circles, on a plane straight lines."""

from __future__ import annotations

import numpy as np

from ..core.types import Floats, Ints
from ..errors import LayoutError
from .grid import Grid, numbers, placed
from .triangulation import crossing


class Cells(Grid):
    """Cells given by their vertices: this rank's own, in the order of its field's points.

    Args:
        vertices: (cells, vertices, 2): longitude and latitude in degrees, or x and y, one way round or the
            other; a cell with fewer vertices repeats its last one. Edges of a cell must not cross each
            other. Cells that are not convex are cut into several triangles.

    Raises:
        LayoutError: vertices have another shape, or a cell has no area.
    """

    kind = "cells"

    def __init__(self, vertices: object, *, sphere: bool = True) -> None:
        self.vertices = numbers("Cells(vertices)", vertices, "(cells, vertices, 2)", sphere)
        self.sphere = sphere
        self.size = len(self.vertices)
        area = self.areas(np.arange(self.size))
        self.vertices = np.where((area < 0)[:, None, None], _turned(self.vertices), self.vertices)
        flat = np.flatnonzero(~(np.abs(area) > 0))
        if len(flat):
            what = f"{len(flat)} cells have no area; the first is {flat[0]}"
            raise LayoutError(what, "Cells(vertices)", "three vertices or more that are not on one line")
        crossed = crossing(self.corners(np.arange(self.size)))
        if len(crossed):
            raise LayoutError(
                f"the edges of {len(crossed)} cells cross each other; the first is {crossed[0]}",
                "Cells(vertices)",
                "vertices in the order in which they go round the cell",
            )

    def corners(self, points: Ints) -> Floats:
        return placed(self.vertices, self.sphere)

    def centres(self, points: Ints) -> Floats:
        area, moment = self.moments(points)
        x = moment / area[:, None]
        return x / np.linalg.norm(x, axis=-1, keepdims=True) if self.sphere else x

    def part(self, which: Ints) -> Cells:
        return Cells(self.vertices[which], sphere=self.sphere)


def _turned(vertices: Floats) -> Floats:
    """The other way round, those that repeat the last one behind it."""
    back = vertices[:, ::-1]
    same = (back == back[:, :1]).all(axis=2).cumprod(axis=1).sum(axis=1)
    order = (np.arange(back.shape[1]) + same[:, None]) % max(1, back.shape[1])
    return np.take_along_axis(back, order[..., None], axis=1)
