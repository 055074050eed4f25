"""Cells given by their vertices, and the grids that are made of such: polygons, curvilinear, HEALPix.

On the sphere their edges are great circles, on a plane straight lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from .._lazy import LazyModule
from ..core.buffer import refuse_masked
from ..core.types import Floats, Ints
from ..errors import ConfigError, LayoutError
from .geometry import last_repeated
from .grid import Grid, check_counts, numbers, placed
from .triangulation import crossing

spatial: Any = LazyModule("scipy.spatial")
_SAME = 1e-6  # of the width of the smallest cell: middles so near are of the same cell


class Cells(Grid):
    """Cells given by their vertices: this rank's own, in the order of its field's points.

    Args:
        vertices: (cells, vertices, 2): longitude and latitude in degrees, or x and y, one way round or the
            other; a cell with fewer vertices repeats its last one. Edges of a cell must not cross each
            other. Cells that are not convex are cut into several triangles.
        centres: (cells, 2): where the values live; None: in the middle.

    Raises:
        LayoutError: vertices have another shape, or a cell has no area.
    """

    kind = "cells"

    def __init__(self, vertices: object, *, sphere: bool = True, centres: object = None) -> None:
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
            what = f"the edges of {len(crossed)} cells cross each other; the first is {crossed[0]}"
            raise LayoutError(
                what, "Cells(vertices)", "vertices in the order in which they go round the cell"
            )
        self._centres = None
        if centres is not None:
            self._centres = numbers("Cells(centres)", centres, "(cells, 2)", sphere)
            if len(self._centres) != self.size:
                what = f"there are {len(self._centres)} centres of {self.size} cells"
                raise LayoutError(what, "Cells(centres)", "one of each cell")

    def corners(self, points: Ints) -> Floats:
        return placed(self.vertices, self.sphere)

    def centres(self, points: Ints) -> Floats:
        if self._centres is not None:
            return placed(self._centres, self.sphere)
        area, moment = self.moments(points)
        x = moment / area[:, None]
        return x / np.linalg.norm(x, axis=-1, keepdims=True) if self.sphere else x

    def copies(self) -> Ints:
        """Numbers of cells that are there before, as in halo columns and at the fold of a tripolar grid."""
        if not self.size:
            return np.empty(0, np.int64)
        area, moment = self.moments(np.arange(self.size))
        near = _SAME * float(np.sqrt(area.min()))
        pairs = spatial.cKDTree(moment / area[:, None]).query_pairs(near, output_type="ndarray")
        return np.unique(pairs[:, 1]).astype(np.int64)  # of each pair the second has the higher number

    def part(self, which: Ints) -> Cells:
        part = copy(self)
        part.vertices, part.size = self.vertices[which], len(which)
        part._centres = None if self._centres is None else self._centres[which]
        return part


def _turned(vertices: Floats) -> Floats:
    """The other way round, those that repeat the last one behind it."""
    back = vertices[:, ::-1]
    same = (back == back[:, :1]).all(axis=2).cumprod(axis=1).sum(axis=1)
    order = (np.arange(back.shape[1]) + same[:, None]) % max(1, back.shape[1])
    return np.take_along_axis(back, order[..., None], axis=1)


class Polygons(Cells):
    """Cells that share vertices, as unstructured meshes have them: this rank's own.

    Args:
        vertices: (vertices, 2): longitude and latitude in degrees, or x and y.
        cells: of each cell the numbers of its vertices, one way round or the other. Lists, or an array
            (cells, most vertices), in which negative numbers behind the last one mean none.
        centres: as of Cells.
    """

    def __init__(
        self,
        vertices: object,
        cells: Sequence[Sequence[int]] | Ints,
        *,
        sphere: bool = True,
        centres: object = None,
    ) -> None:
        places = numbers("Polygons(vertices, cells)", vertices, "(vertices, 2)", sphere)
        wide = max(map(len, cells), default=1)
        lists = [[*cell, *[-1] * (wide - len(cell))] for cell in cells]
        numbered = np.array(lists, np.int64).reshape(-1, wide)
        wrong = (numbered >= len(places)) | (numbered[:, :1] < 0)
        if wrong.any():
            which = int(wrong.any(axis=1).argmax())
            what = f"cell {which} has vertices {[*map(int, cells[which])]}, and there are {len(places)}"
            raise LayoutError(what, "Polygons(vertices, cells)", "numbers of vertices from 0")
        super().__init__(places[last_repeated(numbered, numbered >= 0)], sphere=sphere, centres=centres)


class Curvilinear(Cells):
    """Quadrilaterals in rows and columns at any coordinates (rotated and tripolar grids): this rank's own.

    Args:
        lon, lat: (rows, columns): where the values live, in degrees; or x and y.
        corners: longitudes and latitudes of the corners: two arrays (rows + 1, columns + 1), or two arrays
            (rows, columns, 4) or (4, rows, columns) that go round each cell.
    """

    def __init__(self, lon: object, lat: object, corners: Sequence[object], *, sphere: bool = True) -> None:
        for each in (lon, lat, *corners):
            refuse_masked(each, "the coordinates are", "Curvilinear")
        centres = np.stack([np.asarray(each, float) for each in (lon, lat)], axis=-1)
        around = np.stack([np.asarray(each, float) for each in corners], axis=-1)
        shape = centres.shape[:-1]
        if around.shape[:-1] == tuple(n + 1 for n in shape) and len(shape) == 2:
            around = np.stack([around[:-1, :-1], around[:-1, 1:], around[1:, 1:], around[1:, :-1]], axis=-2)
        elif around.shape[1:-1] == shape:
            around = np.moveaxis(around, 0, -2)
        if around.shape[:-2] != shape:
            what = f"corners have the shape {np.asarray(corners[0]).shape}, and lon {shape}"
            raise LayoutError(what, "Curvilinear", "(rows + 1, columns + 1), or (rows, columns, 4)")
        super().__init__(
            around.reshape(-1, around.shape[-2], 2), sphere=sphere, centres=centres.reshape(-1, 2)
        )


class Healpix(Grid):
    """The 12 nside² pixels of HEALPix (Górski et al. 2005), with great circles between their corners.

    Their true edges are other curves, between which all areas are equal. Areas here differ from those by up
    to a tenth, and fill the sphere as well.

    Args:
        nside: pixels along the edges of its 12 squares; for nest a power of two.
        nest: whether pixels are numbered in the nested scheme; else in rings from the north.
    """

    kind = "healpix"

    def __init__(self, nside: int, nest: bool = False) -> None:
        check_counts("Healpix(nside)", nside)
        if nest and nside & (nside - 1):
            raise ConfigError(f"nside {nside} is no power of two", "Healpix(nside, nest=True)", "nest=False")
        self.nside, self.nest, self.size = nside, nest, 12 * nside * nside

    def centres(self, points: Ints) -> Floats:
        return _unprojected(*self._projected(points))

    def corners(self, points: Ints) -> Floats:
        x, y, base = self._projected(points)
        way = np.pi / (4 * self.nside)
        steps = ((0, -way), (way, 0), (0, way), (-way, 0))
        return np.stack([_unprojected(x + a, y + b, base) for a, b in steps], axis=1)

    def _projected(self, points: Ints) -> tuple[Floats, Floats, Floats]:
        """Where pixels are squares on their corners: (x, y, middle of the polar triangle that x lies in)."""
        n = self.nside
        if self.nest:
            face, inside = np.divmod(points, n * n)
            a, b = _every_second_bit(inside), _every_second_bit(inside >> 1)
            ring = (2 + face // 4) * n - a - b - 1
            x = np.array([1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7])[face] + (a - b) / n
        else:
            ring, x = self._in_rings(points)
        eighths = np.stack([x, 2 - ring / n, 2 * np.floor(x / 2) + 1]) * (np.pi / 4)
        return eighths[0], eighths[1], eighths[2]

    def _in_rings(self, points: Ints) -> tuple[Ints, Floats]:
        """(ring from the north, x in eighths of a turn)."""
        n, polar = self.nside, 2 * self.nside * (self.nside - 1)  # pixels before the belt of full rings
        row, nth = np.divmod(points - polar, 4 * n)
        belt = (2 * nth + (row % 2 == 0)) / n
        south = points >= self.size - polar
        up = np.where(south, self.size - 1 - points, points)  # the southern ones mirrored
        capped = up < polar
        up = np.where(capped, up, 0)
        i = np.floor((1 + np.sqrt(1.0 + 2 * up)) / 2).astype(np.int64)
        i += (2 * i * (i + 1) <= up).astype(np.int64) - (2 * i * (i - 1) > up)
        quarter, nth = np.divmod(up - 2 * i * (i - 1), i)
        x = 2 * quarter + 1 + (2 * nth - i + 1) / n
        ring = np.where(capped, np.where(south, 4 * n - i, i), row + n)
        return ring, np.where(capped, np.where(south, 8 - x, x), belt)


def _every_second_bit(x: Ints) -> Ints:
    found = np.zeros_like(x)
    for bit in range(31):
        found |= (x >> bit) & (1 << bit)
    return found


def _unprojected(x: Floats, y: Floats, base: Floats) -> Floats:
    """The HEALPix projection undone: a belt of Lambert's cylinder, and triangles towards the poles."""
    share = 2 - np.abs(y) * (4 / np.pi)  # of the full circle, at the poles 0
    share = np.where(share < 1e-12, 0.0, np.minimum(share, 1.0))
    z = np.where(share < 1, np.sign(y) * (1 - share * share / 3), y * (8 / (3 * np.pi)))
    ring = np.sqrt(np.where(share < 1, share * share * (2 - share * share / 3) / 3, 1 - z * z))
    u = base + (x - base) / np.where(share > 0, share, 1.0)
    return np.stack([ring * np.cos(u), ring * np.sin(u), z], axis=-1)
