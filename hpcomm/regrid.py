"""Weights from one grid to another."""

from .grids.files import GridFile
from .grids.files import open_grid as open
from .grids.grid import Cells, Gaussian, LatLon, Plane, Points, areas_against, from_spec
from .grids.methods import MAPPINGS
from .grids.remap import weights, weights_between
from .grids.weights import Weights

__all__ = [
    "MAPPINGS",
    "Cells",
    "Gaussian",
    "GridFile",
    "LatLon",
    "Plane",
    "Points",
    "Weights",
    "areas_against",
    "from_spec",
    "open",
    "weights",
    "weights_between",
]
