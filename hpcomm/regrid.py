"""Weights from one grid to another."""

from .core.types import Floats, Ints
from .errors import ConfigError
from .grids.cells import Cells, Curvilinear, Healpix, Polygons
from .grids.files import GridFile
from .grids.files import open_grid as open
from .grids.grid import Grid, Mesh, PointCloud
from .grids.mesh_files import open_mesh
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
    "Mesh",
    "Plane",
    "PointCloud",
    "Points",
    "Polygons",
    "ReducedGaussian",
    "Weights",
    "areas_against",
    "from_spec",
    "open",
    "open_mesh",
    "weights",
    "weights_between",
]

Points = PointCloud  # its name until the next release: hpcomm.Points is a partition


def from_spec(spec: GridSpec) -> Grid:
    """The grid that a spec describes. Of points and cells a spec has only the kind."""
    kind = KINDS[spec.kind]
    if kind.is_own:
        what, hint = f"is of kind {spec.kind}: its coordinates are the program's", "hpcomm.regrid."
        hint += "PointCloud(coordinates) or hpcomm.regrid.Cells(vertices)"
        if spec.file is not None:
            what, hint = "is in a file, and each rank has its own part", "leave grid= out; or hpcomm.regrid."
            hint += f"open({str(spec.file)!r}, {spec.entry!r}).cells(points)"
        raise ConfigError(f"grid {spec.name!r} {what}", "grid", hint)
    made: Grid = globals()[kind.maker](*spec.shape, **spec.more)
    return made


def areas_against(grid: Grid, points: Ints, other_kind: str | None = None) -> Floats:
    """grid.areas(points), which no longer depend on the grid at the other end: goes with the next release."""
    return grid.areas(points)
