"""From one grid to another. Public names of grids/remap.py."""

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
