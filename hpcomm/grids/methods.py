"""Kinds of grids, a grid as specs describe it, and which mapping method goes between which kinds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

GRID_KEYS = {  # kind: the numbers that say how large a grid is
    "latlon": ("nlat", "nlon"),
    "gaussian": ("nlat", "nlon"),
    "plane": ("nx", "ny"),
    "points": ("size",),
    "cells": ("size",),
}
_ANY = tuple(GRID_KEYS)
_ROWS = ("latlon", "gaussian", "plane")
_AREAS = (*_ROWS, "cells")
_FITS = {  # mapping: kinds that it can read from and write to
    "nearest": (_ANY, _ANY),
    "idw": (_ANY, _ANY),
    "bilinear": (_ROWS, _ANY),
    "conservative": (_AREAS, _AREAS),
    "conservative2": (_AREAS, _AREAS),
}
MAPPINGS = tuple(_FITS)


@dataclass(frozen=True)
class GridSpec:
    """A grid that fields live on. shape: what its kind needs, in the order of GRID_KEYS."""

    name: str
    kind: str
    shape: tuple[int, ...]
    bounds: tuple[float, ...] = (0.0, 1.0, 0.0, 1.0)  # of a plane: x0, x1, y0, y1
    sphere: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)


def misfit(mapping: str, source: tuple[str, bool], target: tuple[str, bool]) -> tuple[str, str, str] | None:
    """Why mapping does not go between grids of these kinds; None: it does.

    Args:
        source, target: (kind, whether it lies on the sphere).

    Returns:
        (the side whose grid does not fit, "from" or "to", what is wrong, what to do).
    """
    for side, (kind, _), kinds in zip(("from", "to"), (source, target), _FITS[mapping], strict=True):
        if kind not in kinds:
            what = f"mapping {mapping!r} does not go {side} a grid of kind {kind}"
            return side, what, f"kinds that it fits: {', '.join(sorted(kinds))}"
    if source[1] != target[1]:
        where = ["on a sphere" if each[1] else "on a plane" for each in (source, target)]
        what = f"mapping {mapping!r} goes from a grid {where[0]} to one {where[1]}"
        return "from", what, "grids of one field lie on the same surface"
    return None
