"""Radians where degrees are meant: a guess from the range of a grid's coordinates. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_FEW = 8  # points that may well lie near 0 degrees
_WIDE = (5.0, 2.0)  # of longitude and latitude: globes in radians span more, regions in degrees seldom


class Ends(NamedTuple):
    """How many coordinates, and between which they lie: (west, south) and (east, north)."""

    points: int = 0
    low: tuple[float, ...] = (np.inf, np.inf)
    high: tuple[float, ...] = (-np.inf, -np.inf)

    @classmethod
    def of(cls, grid: Any) -> Ends:
        """Those of points and cells on the sphere, as they were given; of other grids none."""
        given = getattr(grid, "coordinates", getattr(grid, "vertices", None))
        if given is None or not grid.sphere or not given.size:
            return cls()
        flat = given.reshape(-1, 2)
        return cls(len(given), tuple(flat.min(axis=0).tolist()), tuple(flat.max(axis=0).tolist()))

    def joined(self, other: Ends) -> Ends:
        """Those of both."""
        low, high = tuple(map(min, self.low, other.low)), tuple(map(max, self.high, other.high))
        return Ends(self.points + other.points, low, high)

    def doubt(self) -> str:
        """What there is to say of them; "" if they look like degrees."""
        (west, south), (east, north) = self.low, self.high
        within = max(-west, east) <= 2 * np.pi + 1e-6 and max(-south, north) <= np.pi / 2 + 1e-6
        if not within or self.points <= _FEW or east - west < _WIDE[0] or north - south < _WIDE[1]:
            return ""
        where = f"longitudes from {west:.4g} to {east:.4g} and latitudes from {south:.4g} to {north:.4g}"
        return f"{where}, which look like radians and are taken as degrees: numpy.degrees(x)"
