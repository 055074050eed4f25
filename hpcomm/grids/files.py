"""Grids in the files that models have: which form a file has shows in its variables.

form            known by                            cells
SCRIP           grid_corner_lon, grid_corner_lat    corners of each
OASIS           NAME.clo, NAME.cla (grids.nc)       corners of each; masks.nc and areas.nc lie beside it
ESMF mesh       nodeCoords, elementConn             numbers of nodes
UGRID           a variable with cf_role             numbers of nodes
MPAS            verticesOnCell                      numbers of vertices
FESOM           nod2d.out, elem2d.out; face_nodes   triangles of nodes
GEOS            corner_lons, corner_lats            (face, y, x) between (face, y + 1, x + 1) corners
CF, ICON        longitudes with `bounds`            corners of each

Each rank reads the slice between its first and its last cell, and of nodes those between the first and the
last that these need.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from ..core.types import AnyArray, Floats, Ints
from ..errors import ConfigError, LayoutError, MissingFileError, did_you_mean
from .cells import Cells
from .grid import PointCloud, indices
from .netcdf import File, Nodes, Span

_EARTH_M = 6.371e6
Read: TypeAlias = Callable[[Span], Floats]


class GridFile:
    """A grid in a file. Made by open_grid().

    Attributes:
        path, name: the file; which of several grids in it.
        form: "SCRIP", "OASIS", "ESMF mesh", "UGRID", "MPAS", "FESOM", "GEOS", "CF" or "ICON".
        shape: of the grid, such as (y, x). Cells are numbered in C order, from 0.
    """

    def __init__(self, path: Path, found: _Found) -> None:
        self.path, self._found = path, found
        self.form, self.name, self.shape = found.form, found.name, found.shape

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{self.form} grid{name} of {' x '.join(map(str, self.shape))} cells in {self.path}>"

    @property
    def size(self) -> int:
        """How many cells it has."""
        return int(np.prod(self.shape))

    def mask(self) -> AnyArray:
        """(size,) of bool: which cells count. All, where the file has no mask."""
        return np.ones(self.size, bool) if self._found.mask is None else self._found.mask()

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
        return Cells(self._read(self._found.corners, points))

    def centres(self, points: object = None) -> PointCloud:
        """Where the values of these cells live: as the file says, else the middles of the cells."""
        if self._found.centres is not None:
            return PointCloud(self._read(self._found.centres, points))
        x = self.cells(points).centres(np.arange(0))
        return PointCloud(np.degrees(np.stack([np.arctan2(x[:, 1], x[:, 0]), np.arcsin(x[:, 2])], axis=1)))

    def areas(self, points: object = None) -> Floats | None:
        """Of these cells on the unit sphere, as the model has them; None: the file does not say."""
        return None if self._found.areas is None else self._read(self._found.areas, points)

    def _read(self, read: Read, points: object) -> Floats:
        which = self.points() if points is None else indices(points, self.size, "points", str(self.path))
        first = int(which.min()) if len(which) else 0
        return read((first, int(which.max(initial=-1)) + 1))[which - first]


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
    if path.is_dir() or path.suffix == ".out":
        return GridFile(path, _fesom_text(path if path.is_dir() else path.parent))
    file = File(path)
    for form, known in _FORMS:
        if file.has(*known) and (found := form(file, name)):
            if name not in (None, found.name):
                what = f"{path} has one grid, without a name, and none of the name {name!r}"
                raise ConfigError(what, "regrid.open", "leave the name out")
            return GridFile(path, found)
    what = f"{path} has no grid of a form that is known; it has {', '.join(list(file.variables)[:12])}"
    raise ConfigError(
        what, "regrid.open", "SCRIP, OASIS, ESMF, UGRID, MPAS, FESOM, GEOS, ICON, or CF with bounds"
    )


class _Found(NamedTuple):
    """What reads it, of some cells.

    corners: (cells, corners, 2) in degrees; centres: (cells, 2); areas: (cells). mask: of all.
    """

    form: str
    shape: tuple[int, ...]
    corners: Read
    centres: Read | None = None
    mask: Callable[[], AnyArray] | None = None
    areas: Read | None = None
    name: str = ""


# -- forms ------------------------------------------------------------------------------------------------


def _scrip(file: File, name: str | None) -> _Found:
    shape = file.shape("grid_corner_lon")[:1]
    dims = tuple(map(int, file.whole("grid_dims")))[::-1] if file.has("grid_dims") else shape
    return _Found(
        "SCRIP",
        dims if np.prod(dims) == shape[0] else shape,
        lambda cells: file.degrees(("grid_corner_lon", "grid_corner_lat"), cells, shape),
        _centres(file, "grid_center_lon", "grid_center_lat", shape),
        _mask(file, "grid_imask", shape, lambda mask: mask != 0),
        _areas(file, "grid_area", shape),
    )


def _oasis(file: File, name: str | None) -> _Found | None:
    name = _chosen(
        file, name, [each.removesuffix(".clo") for each in file.variables if each.endswith(".clo")]
    )
    if name is None:
        return None
    clo, cla, lon, lat = (f"{name}.{each}" for each in ("clo", "cla", "lon", "lat"))
    found = file.shape(clo)
    shape = file.shape(lon) if lon in file.variables else found[:-1]
    axis = int(found[1:] == shape)  # corners first
    masks, areas = (_beside(file, what) for what in ("masks", "areas"))
    return _Found(
        "OASIS",
        shape,
        lambda cells: file.degrees((clo, cla), cells, shape, axis),
        _centres(file, lon, lat, shape),
        None if masks is None else _mask(masks, f"{name}.msk", shape, lambda mask: mask == 0),
        None if areas is None else _areas(areas, f"{name}.srf", shape),
        name,
    )


def _chosen(file: File, name: str | None, names: list[str]) -> str | None:
    """The grid of that name, or the only one; None: there is none."""
    if names and name not in names and (name is not None or len(names) > 1):
        what = f"{file.path} has the grids {', '.join(names)}" + f", and no {name!r}" * (name is not None)
        raise ConfigError(what, "regrid.open", did_you_mean(name or "", names, f"name = {names[0]!r}"))
    return name or names[0] if names else None


def _beside(file: File, what: str) -> File | None:
    """OASIS keeps masks and areas in files of their own."""
    path = file.path.with_name(file.path.name.replace("grids", what))
    return File(path) if path != file.path and path.exists() else None


def _esmf(file: File, name: str | None) -> _Found:
    shape = file.shape("elementConn")[:1]
    start = int(file.attribute("elementConn", "start_index", 1))
    counts = "numElementConn" if file.has("numElementConn") else ""
    return _Found(
        "ESMF mesh",
        shape,
        lambda cells: file.by_numbers("elementConn", cells, Nodes(("nodeCoords",), start), counts),
        None,
        _mask(file, "elementMask", shape, lambda mask: mask != 0),
        _areas(file, "elementArea", shape),
    )


def _mpas(file: File, name: str | None) -> _Found:
    shape = file.shape("nEdgesOnCell")
    nodes = Nodes(("lonVertex", "latVertex"), 1, radians=True)
    radius = float(getattr(file.data, "sphere_radius", 1.0)) or 1.0
    return _Found(
        "MPAS",
        shape,
        lambda cells: file.by_numbers("verticesOnCell", cells, nodes, "nEdgesOnCell"),
        lambda cells: file.degrees(("lonCell", "latCell"), cells, shape, radians=True),
        None,
        _areas(file, "areaCell", shape, radius),
    )


def _geos(file: File, name: str | None) -> _Found:
    faces, ny, nx = file.shape("corner_lons")
    shape = faces, ny - 1, nx - 1

    def corners(cells: Span) -> Floats:
        (first, last), per = cells, shape[1] * shape[2]
        low, high = first // per, -(-last // per)
        size = ny * nx
        net = file.degrees(("corner_lons", "corner_lats"), (low * size, high * size), (faces, ny, nx))
        net = net.reshape(high - low, ny, nx, 2)
        around = [net[:, :-1, :-1], net[:, :-1, 1:], net[:, 1:, 1:], net[:, 1:, :-1]]
        return np.stack(around, axis=3).reshape(-1, 4, 2)[first - low * per : last - low * per]

    return _Found("GEOS", shape, corners, _centres(file, "lons", "lats", shape))


def _fesom(file: File, name: str | None) -> _Found:
    axis, start = int(file.shape("face_nodes")[0] == 3), int(file.attribute("face_nodes", "start_index", 1))
    shape, nodes = (file.shape("face_nodes")[axis],), Nodes(("lon", "lat"), start)
    return _Found("FESOM", shape, lambda cells: file.by_numbers("face_nodes", cells, nodes, axis=axis))


def _ugrid(file: File, name: str | None) -> _Found | None:
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
    nodes = Nodes(names, int(file.attribute(faces, "start_index", 0)))
    shape = (file.shape(faces)[axis],)
    return _Found("UGRID", shape, lambda cells: file.by_numbers(faces, cells, nodes, axis=axis), name=mesh)


def _cf(file: File, name: str | None) -> _Found | None:
    """Longitudes and latitudes whose bounds are the corners: (y), (x) of rows; (y, x); (cells)."""
    pair = tuple(_coordinate(file, kind) for kind in ("longitude", "latitude"))
    if None in pair:
        return None
    lon, lat = map(str, pair)
    bounds = tuple(str(file.attribute(each, "bounds")) for each in (lon, lat))
    if not file.has(*bounds):
        raise file.fault(f"{lon} and {lat} name the bounds {bounds}, which are not all there")
    shape = file.shape(lon)
    is_rows = file.variables[lon].dimensions != file.variables[lat].dimensions
    if is_rows:
        return _rows(file, (lon, lat), bounds)
    areas = _areas(file, "cell_area", shape)
    form = "ICON" if "vertices" in bounds[0] else "CF"
    return _Found(form, shape, lambda cells: file.degrees((bounds[0], bounds[1]), cells, shape),
                  _centres(file, lon, lat, shape), None, areas)  # fmt: skip


def _coordinate(file: File, kind: str) -> str | None:
    unit = {"longitude": ("degrees_east", "degree_east"), "latitude": ("degrees_north", "degree_north")}[kind]
    for name in file.variables:
        is_one = file.attribute(name, "standard_name") == kind or file.attribute(name, "units") in unit
        if is_one and file.attribute(name, "bounds"):
            return name
    return None


def _rows(file: File, names: tuple[str, str], bounds: tuple[str, ...]) -> _Found:
    nx, ny = (file.shape(name)[0] for name in names)
    (west, east), (south, north) = (
        np.asarray(file.read(each, (0, n), (n,)), float).T for each, n in zip(bounds, (nx, ny), strict=True)
    )
    x, y = (np.asarray(file.read(each, (0, n), (n,)), float) for each, n in zip(names, (nx, ny), strict=True))

    def corners(cells: Span) -> Floats:
        j, i = np.divmod(np.arange(*cells), nx)
        around = [(west[i], south[j]), (east[i], south[j]), (east[i], north[j]), (west[i], north[j])]
        return np.stack([np.stack(each, axis=-1) for each in around], axis=1)

    def centres(cells: Span) -> Floats:
        j, i = np.divmod(np.arange(*cells), nx)
        return np.stack([x[i], y[j]], axis=-1)

    return _Found("CF", (ny, nx), corners, centres)


def _fesom_text(folder: Path) -> _Found:
    """nod2d.out: number, longitude, latitude, mark of each node; elem2d.out: three nodes of each triangle."""
    nodes, triangles = (
        _table(folder / name, columns) for name, columns in (("nod2d.out", 4), ("elem2d.out", 3))
    )
    numbers = triangles.astype(np.int64) - 1
    wrong = np.argwhere((numbers < 0) | (numbers >= len(nodes)))
    if len(wrong):
        cell, corner = wrong[0]
        what = f"triangle {cell} of elem2d.out has node {numbers[cell, corner] + 1}"
        raise LayoutError(f"{folder}: {what}, and there are {len(nodes)}", "regrid.open")
    corners = nodes[:, 1:3][numbers]
    return _Found("FESOM", (len(numbers),), lambda cells: np.asarray(corners[slice(*cells)]))


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


_FORMS: tuple[tuple[Callable[[File, str | None], _Found | None], tuple[str, ...]], ...] = (
    (_scrip, ("grid_corner_lon", "grid_corner_lat")),
    (_esmf, ("nodeCoords", "elementConn")),
    (_mpas, ("verticesOnCell", "lonVertex")),
    (_geos, ("corner_lons", "corner_lats")),
    (_oasis, ()),
    (_ugrid, ()),
    (_fesom, ("face_nodes", "lon", "lat")),
    (_cf, ()),
)


# -- what all have ------------------------------------------------------------------------------------------


def _centres(file: File, lon: str, lat: str, shape: tuple[int, ...]) -> Read | None:
    return (lambda cells: file.degrees((lon, lat), cells, shape)) if file.has(lon, lat) else None


def _mask(
    file: File, name: str, shape: tuple[int, ...], counts: Callable[[AnyArray], AnyArray]
) -> Callable[[], AnyArray] | None:
    if name not in file.variables:
        return None
    return lambda: counts(file.read(name, (0, int(np.prod(shape))), shape))


def _areas(file: File, name: str, shape: tuple[int, ...], radius: float = 1.0) -> Read | None:
    """On the unit sphere; those in square metres are of one of 6,371 km, or of the radius that is said."""
    if name not in file.variables:
        return None
    is_metres = str(file.attribute(name, "units")) in ("m2", "m^2", "m**2")

    def read(cells: Span) -> Floats:
        part = np.asarray(file.read(name, cells, shape), float)
        is_large = radius == 1.0 and part.max(initial=0.0) > 4 * np.pi
        return part / (_EARTH_M if is_metres or is_large else radius) ** 2

    return read
