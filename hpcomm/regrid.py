"""Weights from one grid to another."""

from .grids.remap import (
    MAPPINGS,
    Cells,
    Gaussian,
    LatLon,
    Plane,
    Points,
    Weights,
    areas_against,
    from_spec,
    weights,
    weights_between,
)

__all__ = [
    "MAPPINGS",
    "Cells",
    "Gaussian",
    "LatLon",
    "Plane",
    "Points",
    "Weights",
    "areas_against",
    "from_spec",
    "weights",
    "weights_between",
]
