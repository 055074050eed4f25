"""Grids in the files that models have: which form a file has shows in its variables.

form            known by                            cells
SCRIP           grid_corner_lon, grid_corner_lat    corners of each
ESMF mesh       nodeCoords, elementConn             numbers of nodes
MPAS            verticesOnCell                      numbers of vertices
GEOS            corner_lons, corner_lats            (face, y, x) between (face, y + 1, x + 1) corners
OASIS           NAME.clo, NAME.cla (grids.nc)       corners of each; masks.nc and areas.nc lie beside it
UGRID           a variable with cf_role             numbers of nodes
FESOM           nod2d.out, elem2d.out; face_nodes   triangles of nodes
CF, ICON        longitudes with `bounds`            corners of each

Each rank reads the slice between its first and its last cell, and of nodes those between the first and the
last that these need.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.types import AnyArray, Floats, Ints
from ..errors import ConfigError, LayoutError, MissingFileError, did_you_mean
from .cells import Cells
from .grid import PointCloud, degrees, indices
from .netcdf import File, Span

_EARTH_M = 6.371e6


class _Form(NamedTuple):
    """Which variables of a file have what."""

    form: str
    at: tuple[str, ...]  # longitudes and latitudes of corners, or of nodes; or one variable that has both
    numbers: str = ""  # of each cell those of its nodes
    counts: str = ""  # how many these are
    centres: tuple[str, ...] = ()  # longitudes and latitudes
    mask: str = ""
    areas: str = ""
    axis: int = 0  # 1: the axis of the corners comes before those of the cells
    start: int = 1  # the number of the first node, where the file does not say it
    name: str = ""
    shape: tuple[int, ...] = ()  # of the cells, where it is not that of numbers or at without the corners
    is_rows: bool = False  # longitudes are those of columns, latitudes those of rows


_CORNERS, _CENTRES = ("grid_corner_lon", "grid_corner_lat"), ("grid_center_lon", "grid_center_lat")
_VERTICES = ("lonVertex", "latVertex")
_NAMED = (
    _Form("SCRIP", _CORNERS, "", "", _CENTRES, "grid_imask", "grid_area"),
    _Form("ESMF mesh", ("nodeCoords",), "elementConn", "numElementConn", (), "elementMask", "elementArea"),
    _Form("MPAS", _VERTICES, "verticesOnCell", "nEdgesOnCell", ("lonCell", "latCell"), "", "areaCell"),
    _Form("GEOS", ("corner_lons", "corner_lats"), centres=("lons", "lats")),
)
_FESOM = _Form("FESOM", ("lon", "lat"), "face_nodes")


class GridFile:
    """A grid in a file. Made by open_grid().

    Attributes:
        path, name: the file; which of several grids in it.
        form: "SCRIP", "OASIS", "ESMF mesh", "UGRID", "MPAS", "FESOM", "GEOS", "CF" or "ICON".
        shape: of the grid, such as (y, x). Cells are numbered in C order, from 0.
    """

    def __init__(self, file: File, form: _Form) -> None:
        self.path, self.form, self.name = file.path, form.form, form.name
        self._file, self._form = file, form
        file.is_radians = self.form == "MPAS"
        corners = file.shape(form.numbers or form.at[0])
        self._shape = form.shape or (corners[1:] if form.axis else corners[:-1])  # as variables have it
        dims = tuple(map(int, file.whole("grid_dims")))[::-1] if file.has("grid_dims") else ()
        is_said = form.form == "SCRIP" and dims and np.prod(dims) == self.size
        self.shape = dims if is_said else self._shape

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{self.form} grid{name} of {' x '.join(map(str, self.shape))} cells in {self.path}>"

    @property
    def size(self) -> int:
        """How many cells it has."""
        return int(np.prod(self._shape))

    def mask(self) -> AnyArray:
        """(size,) of bool: which cells count. All, where the file has no mask."""
        name = self._form.mask
        file = self._file.beside.get(name, self._file)
        if not file.has(name):
            return np.ones(self.size, bool)
        mask = file.read(name, (0, self.size), self._shape)
        return np.asarray((mask != 0) != (self.form == "OASIS"))

    def points(self) -> Ints:
        """Global indices of the cells that count."""
        return np.flatnonzero(self.mask())

    def copies(self) -> Ints:
        """Global indices of cells that count and are there before, as in halo columns and at the fold of a
        tripolar grid. Reads the corners of all."""
        points = self.points()
        return points[self.cells(points).copies()]

    def cells(self, points: object = None) -> Cells:
        """These cells, by their corners. Those that go clockwise are turned.

        Args:
            points: global indices, those of this rank; None: of all that count.

        Raises:
            DtypeError, LayoutError: no indices of the grid, or numbers in the file that are no corners.
        """
        cells, which = self._slice(points)
        return Cells(self._corners(cells)[which])

    def centres(self, points: object = None) -> PointCloud:
        """Where the values of these cells live: as the file says, else the middles of the cells."""
        names = self._form.centres
        if not (names and self._file.has(*names)):
            return PointCloud(degrees(self.cells(points).centres(np.arange(0))))
        cells, which = self._slice(points)
        if self._form.is_rows:
            return PointCloud(self._of_rows(names, cells)[which])
        return PointCloud(self._file.degrees(names, cells, self._shape)[which])

    def areas(self, points: object = None) -> Floats | None:
        """Of these cells on the unit sphere, as the model has them; None: the file does not say."""
        name = self._form.areas
        file = self._file.beside.get(name, self._file)
        if not file.has(name):
            return None
        cells, which = self._slice(points)
        part = np.asarray(file.read(name, cells, self._shape), float)
        radius = float(getattr(file.data, "sphere_radius", 1.0)) or 1.0 if self.form == "MPAS" else 1.0
        is_metres = str(file.attribute(name, "units")) in ("m2", "m^2", "m**2")
        if is_metres or (radius == 1.0 and part.max(initial=0.0) > 4 * np.pi):
            radius = _EARTH_M
        return part[which] / radius**2

    def _slice(self, points: object) -> tuple[Span, Ints]:
        """(the cells from the first to the last of these, which of them these are)"""
        which = self.points() if points is None else indices(points, self.size, "points", str(self.path))
        first = int(which.min()) if len(which) else 0
        return (first, int(which.max(initial=-1)) + 1), which - first

    def _corners(self, cells: Span) -> Floats:
        """(cells, corners, 2) in degrees."""
        file, form = self._file, self._form
        if form.is_rows:
            bounds = self._of_rows(form.at, cells)  # (cells, from and to, 2)
            return np.stack([bounds[:, [0, 1, 1, 0], 0], bounds[:, [0, 0, 1, 1], 1]], axis=-1)
        if form.form == "GEOS":
            return self._of_faces(cells)
        if form.numbers:
            return file.by_numbers(form.numbers, cells, form.at, form.start, form.counts, form.axis)
        return file.degrees(form.at, cells, self._shape, form.axis)

    def _of_rows(self, names: tuple[str, ...], cells: Span) -> Floats:
        """(cells, ..., 2) of cells in rows, by what columns and rows have."""
        ny, nx = self._shape
        j, i = np.divmod(np.arange(*cells), nx)
        x, y = (self._file.read(name, (0, n), (n,)) for name, n in zip(names, (nx, ny), strict=True))
        return np.stack([x[i], y[j]], axis=-1).astype(float)

    def _of_faces(self, cells: Span) -> Floats:
        """Corners of cells between those of faces, each with a row and a column more than it has cells."""
        (first, last), (faces, ny, nx) = cells, self._shape
        per, net = ny * nx, (faces, ny + 1, nx + 1)
        low, high = first // per, -(-last // per)
        its = self._file.degrees(self._form.at, (low * (ny + 1) * (nx + 1), high * (ny + 1) * (nx + 1)), net)
        its = its.reshape(-1, ny + 1, nx + 1, 2)
        around = [its[:, :-1, :-1], its[:, :-1, 1:], its[:, 1:, 1:], its[:, 1:, :-1]]
        return np.stack(around, axis=3).reshape(-1, 4, 2)[first - low * per : last - low * per]


def open_grid(path: str | Path, name: str | None = None) -> GridFile:
    """The grid in a file of a model.

    Args:
        path: of a netCDF file, or the folder of FESOM's nod2d.out and elem2d.out.
        name: which grid, where a file has several (OASIS).

    Raises:
        MissingFileError: there is no such file. MissingError: the package netCDF4 is needed.
        ConfigError: the file has no grid of a form that is known, or several and none of that name.
        LayoutError: the file is damaged: the variable is named, and where it goes wrong the index.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFileError(f"there is no file {path}", "regrid.open", "the path of a grid")
    is_text = path.is_dir() or path.suffix == ".out"
    file = _fesom_text(path if path.is_dir() else path.parent) if is_text else File(path)
    form = _named(file, *_NAMED) or _oasis(file, name) or _ugrid(file, name)
    form = form or _named(file, _FESOM) or _cf(file)
    if form is None:
        what = f"{path} has no grid of a form that is known; it has {', '.join(list(file.variables)[:12])}"
        raise ConfigError(
            what, "regrid.open", "SCRIP, OASIS, ESMF, UGRID, MPAS, FESOM, GEOS, ICON, or CF with bounds"
        )
    if name not in (None, form.name) and not is_text:
        what = f"{path} has one grid, without a name, and none of the name {name!r}"
        raise ConfigError(what, "regrid.open", "leave the name out")
    file.path = path
    return GridFile(file, form)


# -- forms ------------------------------------------------------------------------------------------------


def _named(file: File, *known: _Form) -> _Form | None:
    """Of these forms, whose variables always have the same names."""
    form = next((each for each in known if file.has(*each.at, *filter(None, [each.numbers]))), None)
    if form is None:
        return None
    if form.form == "GEOS":
        faces, ny, nx = file.shape(form.at[0])
        return form._replace(shape=(faces, ny - 1, nx - 1))
    start = int(file.attribute(form.numbers, "start_index", 1)) if form.numbers else 1
    is_turned = form.form == "FESOM" and file.shape(form.numbers)[0] == 3
    counts = form.counts if form.form == "MPAS" or file.has(form.counts) else ""
    return form._replace(start=start, axis=int(is_turned), counts=counts)


def _oasis(file: File, name: str | None) -> _Form | None:
    """Masks and areas are kept in files of their own."""
    name = _chosen(file, name, [each[:-4] for each in file.variables if each.endswith(".clo")])
    if name is None:
        return None
    clo, cla, lon, lat, mask, areas = (
        f"{name}.{each}" for each in ("clo", "cla", "lon", "lat", "msk", "srf")
    )
    for what, its in (("masks", mask), ("areas", areas)):
        path = file.path.with_name(file.path.name.replace("grids", what))
        if path != file.path and path.exists():
            file.beside[its] = File(path)
    shape = file.shape(lon) if file.has(lon) else ()
    axis = int(file.shape(clo)[1:] == shape)
    return _Form("OASIS", (clo, cla), "", "", (lon, lat), mask, areas, axis, name=name, shape=shape)


def _ugrid(file: File, name: str | None) -> _Form | None:
    """Of the mesh of that name, or the only one."""
    meshes = [each for each in file.variables if file.attribute(each, "cf_role") == "mesh_topology"]
    mesh = _chosen(file, name, meshes)
    if mesh is None:
        return None
    faces = str(file.attribute(mesh, "face_node_connectivity"))
    names = tuple(str(file.attribute(mesh, "node_coordinates")).split())
    if len(names) != 2 or not file.has(faces, *names):
        raise file.fault(f"mesh {mesh} names {faces!r} and {names}, which are not all there")
    if "lat" in str(file.attribute(names[0], "standard_name")):
        names = names[::-1]
    axis = int(file.attribute(mesh, "face_dimension") == file.variables[faces].dimensions[-1])
    start = int(file.attribute(faces, "start_index", 0))
    return _Form("UGRID", names, faces, axis=axis, start=start, name=mesh)


def _chosen(file: File, name: str | None, names: list[str]) -> str | None:
    """The grid of that name, or the only one; None: there is none."""
    if names and name not in names and (name is not None or len(names) > 1):
        what = f"{file.path} has the grids {', '.join(names)}" + f", and no {name!r}" * (name is not None)
        raise ConfigError(what, "regrid.open", did_you_mean(name or "", names, f"name = {names[0]!r}"))
    return name or names[0] if names else None


def _cf(file: File) -> _Form | None:
    """Longitudes and latitudes whose bounds are the corners: (y), (x) of rows; (y, x); (cells)."""
    units = {"longitude": ("degrees_east", "degree_east"), "latitude": ("degrees_north", "degree_north")}
    found = []
    for kind, unit in units.items():
        for name in file.variables:
            is_one = file.attribute(name, "standard_name") == kind or file.attribute(name, "units") in unit
            if is_one and file.attribute(name, "bounds"):
                found.append(name)
                break
    if len(found) < 2:
        return None
    bounds = tuple(str(file.attribute(each, "bounds")) for each in found)
    if not file.has(*bounds):
        raise file.fault(f"{' and '.join(found)} name the bounds {bounds}, which are not all there")
    lon, lat = found
    is_rows = file.variables[lon].dimensions != file.variables[lat].dimensions
    shape = (file.shape(lat)[0], file.shape(lon)[0]) if is_rows else file.shape(lon)
    form, areas = "ICON" if "vertices" in bounds[0] else "CF", "" if is_rows else "cell_area"
    return _Form(form, bounds, centres=(lon, lat), areas=areas, shape=shape, is_rows=is_rows)


def _fesom_text(folder: Path) -> File:
    """nod2d.out: number, longitude, latitude, mark of each node; elem2d.out: three nodes of each triangle.

    As the netCDF file of FESOM has them.
    """
    nodes, triangles = (
        _table(folder / name, columns) for name, columns in (("nod2d.out", 4), ("elem2d.out", 3))
    )
    numbers = triangles.astype(np.int64)
    file = File(folder / "elem2d.out", {"lon": nodes[:, 1], "lat": nodes[:, 2], "face_nodes": numbers.T})
    wrong = np.argwhere((numbers < 1) | (numbers > len(nodes)))
    if len(wrong):
        cell, corner = wrong[0]
        raise file.fault(f"triangle {cell} has node {numbers[cell, corner]}, and there are {len(nodes)}")
    return file


def _table(file: Path, columns: int) -> Floats:
    """Rows of numbers, behind a line that says how many there are."""
    if not file.exists():
        raise MissingFileError(f"there is no file {file}", "regrid.open", "nod2d.out and elem2d.out")
    said, *rows = file.read_text(errors="replace").splitlines() or [""]
    try:
        found = np.array([row.split() for row in rows if row.strip()], float).reshape(-1, columns)
        count = int(said)
    except ValueError as error:
        raise LayoutError(f"{file} is damaged: {error}", "regrid.open", "a whole file") from None
    if len(found) != count or not np.isfinite(found).all():
        what = f"{file} has {len(found)} rows of numbers, and says that it has {count}"
        raise LayoutError(what, "regrid.open", "a whole file")
    return found
