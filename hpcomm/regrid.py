"""Weights from one grid to another."""

from .core.types import Floats, Ints
from .errors import ConfigError
from .grids.cells import Cells, Curvilinear, Healpix, Polygons
from .grids.files import GridFile
from .grids.files import open_grid as open
from .grids.grid import Grid, Points
from .grids.methods import KINDS, MAPPINGS, GridSpec
from .grids.remap import weights, weights_between
from .grids.rows import Gaussian, LatLon, Plane, ReducedGaussian
from .grids.weights import Weights

__all__ = [
    "MAPPINGS",
    "Cells",
    "Curvilinear",
    "Gaussian",
    "GridFile",
    "Healpix",
    "LatLon",
    "Plane",
    "Points",
    "Polygons",
    "ReducedGaussian",
    "Weights",
    "areas_against",
    "from_spec",
    "open",
    "weights",
    "weights_between",
]


def from_spec(spec: GridSpec) -> Grid:
    """The grid that a spec describes. Of points and cells a spec has only the kind."""
    kind = KINDS[spec.kind]
    if kind.is_own:
        raise ConfigError(
            f"grid {spec.name!r} is of kind {spec.kind}: its coordinates are the program's",
            "grid",
            "hpcomm.regrid.Points(coordinates) or hpcomm.regrid.Cells(vertices)",
        )
    more = (spec.bounds,) if spec.kind == "plane" else ()
    made: Grid = globals()[kind.maker](*spec.shape, *more)
    return made


def areas_against(grid: Grid, points: Ints, other_kind: str | None = None) -> Floats:
    """grid.areas(points), which no longer depend on the grid at the other end: goes with the next release."""
    return grid.areas(points)
