"""Grids in files: each form that models write, small, beside the same cells given by hand; damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcomm import regrid
from hpcomm.errors import ConfigError, DtypeError, HpcommError, LayoutError, MissingFileError

nc = pytest.importorskip("netCDF4")

NX, NY = 6, 4


def net() -> tuple[Any, Any]:
    """(nodes, (n, 2) in degrees; four of them for each of NY x NX cells, anticlockwise)."""
    lon, lat = np.arange(NX) * 60.0, np.linspace(-80.0, 80.0, NY + 1)
    nodes = np.stack(np.meshgrid(lon, lat), axis=-1).reshape(-1, 2)
    j, i = (each.ravel() for each in np.indices((NY, NX)))
    east = (i + 1) % NX
    return nodes, np.stack([j * NX + i, j * NX + east, (j + 1) * NX + east, (j + 1) * NX + i], axis=1)


NODES, CELLS = net()
CORNERS = NODES[CELLS]
ORDER = np.argsort(NODES[:, 0])  # another order of the nodes, with gaps between those of one cell


class Writer:
    """A netCDF file, variable by variable."""

    def __init__(self, path: Path, form: str = "NETCDF3_CLASSIC") -> None:
        self.data = nc.Dataset(str(path), "w", format=form)

    def __call__(self, name: str, values: Any, dims: str = "", **attributes: Any) -> None:
        values = np.asarray(values)
        names = dims.split()
        for dim, n in zip(names, values.shape, strict=True):
            if dim not in self.data.dimensions:
                self.data.createDimension(dim, n)
        fill = attributes.pop("_FillValue", None)
        variable = self.data.createVariable(name, values.dtype, names, fill_value=fill)
        variable.setncatts(attributes)
        variable[...] = values


def scrip(path: Path) -> None:
    write = Writer(path)
    for axis, name in enumerate(("lon", "lat")):
        write(f"grid_corner_{name}", np.radians(CORNERS[..., axis]), "size corners", units="radians")
        write(f"grid_center_{name}", CORNERS[..., axis].mean(axis=1), "size", units="degrees")
    write("grid_dims", np.array([NX, NY], np.int32), "rank")
    write("grid_imask", (np.arange(NX * NY) % 5 > 0).astype(np.int32), "size")
    write("grid_area", np.arange(NX * NY) / 100.0, "size")
    write.data.close()


def oasis(path: Path) -> None:
    write, masks, areas = (
        Writer(path.with_name(path.name.replace("grids", each))) for each in ("grids", "masks", "areas")
    )
    for axis, name in enumerate(("clo", "cla")):
        write(f"sea.{name}", CORNERS[..., axis].T.reshape(4, NY, NX), "crn y x")
        write(f"air.{name}", CORNERS[..., axis], "n crn_air")
        write(
            f"sea.{name[1:]}n" if axis == 0 else "sea.lat",
            CORNERS[..., axis].mean(axis=1).reshape(NY, NX),
            "y x",
        )
    masks("sea.msk", (np.arange(NX * NY) % 5 == 0).astype(np.int32).reshape(NY, NX), "y x")
    areas("sea.srf", 6.371e6**2 * np.arange(NX * NY).reshape(NY, NX) / 100.0, "y x")
    for each in (write, masks, areas):
        each.data.close()


def esmf(path: Path) -> None:
    write = Writer(path, "NETCDF3_64BIT_DATA")
    write("nodeCoords", NODES[ORDER], "nodeCount coordDim", units="degrees")
    back = np.argsort(ORDER)[CELLS].astype(np.int32) + 1
    padded = np.concatenate([back, np.full((len(back), 1), -1, np.int32)], axis=1)
    write("elementConn", padded, "elementCount most", _FillValue=np.int32(-1))
    write("numElementConn", np.full(len(back), 4, np.int8), "elementCount")
    write("elementMask", (np.arange(NX * NY) % 5 > 0).astype(np.int32), "elementCount")
    write("elementArea", np.arange(NX * NY) / 100.0, "elementCount")
    write.data.close()


def ugrid(path: Path, transposed: bool = True) -> None:
    write = Writer(path, "NETCDF4")
    write("lat_of", NODES[:, 1], "node", standard_name="latitude", units="degrees_north")
    write("lon_of", NODES[:, 0], "node", standard_name="longitude", units="degrees_east")
    faces = np.concatenate([CELLS, np.full((len(CELLS), 1), -999)], axis=1).astype(np.int32)
    faces[:, 4] = -999
    write("faces", faces.T, "corner face", start_index=np.int32(0), _FillValue=np.int32(-999))
    names = {"face_node_connectivity": "faces", "node_coordinates": "lat_of lon_of", "face_dimension": "face"}
    write("mesh", np.int32(0), cf_role="mesh_topology", topology_dimension=np.int32(2), **names)
    write.data.close()


def mpas(path: Path) -> None:
    write = Writer(path, "NETCDF3_64BIT_OFFSET")
    for axis, name in enumerate(("lon", "lat")):
        write(f"{name}Vertex", np.radians(NODES[:, axis]), "nVertices")
        write(f"{name}Cell", np.radians(CORNERS[..., axis].mean(axis=1)), "nCells")
    write("verticesOnCell", np.pad(CELLS + 1, ((0, 0), (0, 2))).astype(np.int32), "nCells maxEdges")
    write("nEdgesOnCell", np.full(len(CELLS), 4, np.int32), "nCells")
    write("areaCell", 4.0 * np.arange(NX * NY) / 100.0, "nCells")
    write.data.sphere_radius = 2.0
    write.data.close()


def geos(path: Path) -> None:
    """Two faces of two rows each."""
    write = Writer(path, "NETCDF4")
    lon, lat = np.arange(NX + 1) * 60.0, np.linspace(-80.0, 80.0, NY + 1)
    corners = np.stack(np.meshgrid(lon, lat), axis=-1)
    two = np.stack([corners[:3], corners[2:]])
    for axis, name in enumerate(("lon", "lat")):
        write(f"corner_{name}s", two[..., axis], "nf YCdim XCdim", units="degrees")
    write.data.close()


def icon(path: Path) -> None:
    write = Writer(path, "NETCDF4")
    for axis, (name, what) in enumerate((("clon", "longitude"), ("clat", "latitude"))):
        write(name, np.radians(CORNERS[..., axis].mean(axis=1)), "cell", standard_name=what, units="radian",
              bounds=f"{name}_vertices")  # fmt: skip
        write(f"{name}_vertices", np.radians(CORNERS[..., axis]), "cell nv", units="radian")
    write("cell_area", 6.371e6**2 * np.arange(NX * NY) / 100.0, "cell", units="m2")
    write.data.close()


def cf_rows(path: Path) -> None:
    """From north to south."""
    write = Writer(path)
    lon, lat = np.arange(NX + 1) * 60.0, np.linspace(80.0, -80.0, NY + 1)
    for name, unit, edges in (("lon", "degrees_east", lon), ("lat", "degrees_north", lat)):
        write(name, (edges[1:] + edges[:-1]) / 2, name, units=unit, bounds=f"{name}_bnds")
        write(f"{name}_bnds", np.stack([edges[:-1], edges[1:]], axis=1), f"{name} bnds")
    write.data.close()


def fesom(path: Path) -> None:
    """Triangles, half of them clockwise; the second ones are the other halves."""
    path.mkdir()
    rows = [f"{n + 1} {x:.12g} {y:.12g} 0" for n, (x, y) in enumerate(NODES)]
    (path / "nod2d.out").write_text("\n".join([str(len(NODES)), *rows, ""]))
    halves = np.concatenate([CELLS[:, [0, 1, 2]], CELLS[:, [0, 3, 2]]]) + 1
    rows = [" ".join(map(str, each)) for each in halves]
    (path / "elem2d.out").write_text("\n".join([str(len(halves)), *rows, ""]))


FORMS: dict[str, Callable[[Path], None]] = {
    "SCRIP": scrip,
    "OASIS": oasis,
    "ESMF mesh": esmf,
    "UGRID": ugrid,
    "MPAS": mpas,
    "GEOS": geos,
    "ICON": icon,
    "CF": cf_rows,
    "FESOM": fesom,
}


def opened(form: str, folder: Path) -> regrid.GridFile:
    path = folder / ("fesom" if form == "FESOM" else "small_grids.nc")
    FORMS[form](path)
    return regrid.open(path, "sea" if form == "OASIS" else None)


def areas(grid: Any) -> Any:
    return grid.areas(np.arange(0))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_cells_that_were_written(form: str, tmp_path: Path) -> None:
    grid, every = opened(form, tmp_path), np.arange(NX * NY)
    assert grid.form == form
    found, wanted = areas(grid.cells(np.arange(grid.size))), areas(regrid.Cells(CORNERS))
    if form == "FESOM":
        np.testing.assert_allclose(found[: NX * NY] + found[NX * NY :], wanted, rtol=1e-12)
        return
    if form == "CF":
        assert grid.shape == (NY, NX)
        wanted = wanted.reshape(NY, NX)[::-1].ravel()
    assert grid.size == NX * NY
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    north = CORNERS[..., 1].mean(axis=1).reshape(NY, NX)[:: -1 if form == "CF" else 1].ravel()
    centres = grid.centres(every).coordinates
    assert np.abs(centres[:, 1] - north).max() < 4.0  # some files have none: the middles of cells then
    assert np.ptp(centres[::NX, 0]) < 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_ranks_read_their_own_cells(form: str, tmp_path: Path) -> None:
    grid = opened(form, tmp_path)
    whole = grid.cells(np.arange(grid.size)).vertices
    for points in ([7, 3, 11], [NX * NY - 1], [], range(5, 20)):
        part = np.array(points, np.int64)
        vertices = grid.cells(part).vertices
        np.testing.assert_array_equal(vertices if len(part) else whole[part], whole[part])
        assert len(vertices) == len(part)
        assert len(grid.centres(part).coordinates) == len(part)


@pytest.mark.parametrize("form", ["SCRIP", "OASIS", "ESMF mesh"])
def test_masked_cells_do_not_count(form: str, tmp_path: Path) -> None:
    grid = opened(form, tmp_path)
    kept = np.flatnonzero(np.arange(NX * NY) % 5)
    np.testing.assert_array_equal(grid.points(), kept)
    np.testing.assert_allclose(areas(grid.cells()), areas(regrid.Cells(CORNERS[kept])), rtol=1e-12)


@pytest.mark.parametrize("form", ["SCRIP", "OASIS", "ESMF mesh", "MPAS", "ICON"])
def test_the_areas_of_the_model_are_those_of_the_unit_sphere(form: str, tmp_path: Path) -> None:
    grid = opened(form, tmp_path)
    np.testing.assert_allclose(grid.areas(np.array([3, 21])), [0.03, 0.21], rtol=1e-12)


def test_copies_are_those_of_cells_that_count(tmp_path: Path) -> None:
    size, write = len(CORNERS), Writer(tmp_path / "grid.nc")
    for axis, name in enumerate(("lon", "lat")):
        twice = np.concatenate([CORNERS[..., axis], CORNERS[:3, ..., axis]])
        write(f"grid_corner_{name}", twice, "size corners", units="degrees")
    write("grid_dims", np.array([size + 3], np.int32), "rank")
    write("grid_imask", (np.arange(size + 3) != 1).astype(np.int32), "size")
    write.data.close()
    grid = regrid.open(tmp_path / "grid.nc")
    assert grid.copies().tolist() == [size, size + 2]  # and not that of cell 1, which is masked


def test_the_netcdf_of_fesom_has_the_cells_of_its_text(tmp_path: Path) -> None:
    text, write = opened("FESOM", tmp_path), Writer(tmp_path / "fesom.mesh.diag.nc")
    for axis, name in enumerate(("lon", "lat")):
        write(name, NODES[:, axis], "nod2", units="degrees")
    halves = np.concatenate([CELLS[:, [0, 1, 2]], CELLS[:, [0, 3, 2]]]) + 1
    write("face_nodes", halves.T.astype(np.int32), "n3 elem")
    write.data.close()
    grid = regrid.open(tmp_path / "fesom.mesh.diag.nc")
    assert (grid.form, grid.shape) == (text.form, text.shape)
    np.testing.assert_allclose(grid.cells().vertices, text.cells().vertices, rtol=1e-11)


def test_a_grid_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "grids.nc"
    oasis(path)
    assert regrid.open(path, "air").shape == (NX * NY,)
    for name in (None, "see"):
        with pytest.raises(ConfigError, match="sea, air") as raised:
            regrid.open(path, name)
    assert "'sea'" in str(raised.value)


SPEC = """
[program]
ocean = { command = "python -V", ranks = 1 }
air = { command = "python -V", ranks = 1 }
[grid.sky]
kind = "healpix"
nside = 2
nest = true
[grid.land]
kind = "reduced_gaussian"
rows = [4, 8, 8, 4]
[grid.sea]
file = "grids.nc"
name = "sea"
[[field]]
name = "sst"
from = "ocean"
to = "air"
from_grid = "sea"
to_grid = "sky"
mapping = "conservative"
"""


def test_a_grid_of_a_spec_is_read_from_its_file_by_each_rank_its_part(tmp_path: Path) -> None:
    from hpcomm.mpmd.connect import take_grids
    from hpcomm.mpmd.coupled_field import Field
    from hpcomm.mpmd.spec.spec_reader import read

    path, file, mine = tmp_path / "job.toml", tmp_path / "grids.nc", np.array([9, 2])
    path.write_text(SPEC)
    oasis(file)
    spec = read(path)
    sizes = {name: grid.size for name, grid in spec.grids.items()}
    assert sizes == {"sky": 48, "land": 24, "sea": NX * NY}
    for name, grid in (
        ("sky", regrid.Healpix(2, nest=True)),
        ("land", regrid.ReducedGaussian(rows=[4, 8, 8, 4])),
    ):
        assert regrid.from_spec(spec.grids[name]).is_same(grid)
    with pytest.raises(ConfigError, match=r"each rank has its own part(.|\n)*open\("):
        regrid.from_spec(spec.grids["sea"])
    fields = {("gives", "sst"): Field("sst", np.zeros(2), mine, None, "gives")}
    take_grids(read(path, here=False), "ocean", fields)
    taken = fields["gives", "sst"].grid
    assert taken is not None
    np.testing.assert_array_equal(taken.corners(mine), regrid.open(file, "sea").cells(mine).corners(mine))
    fields["gives", "sst"] = Field("sst", np.zeros(1), np.array([NX * NY]), None, "gives")
    with pytest.raises(LayoutError, match=r"field 'sst' on grid 'sea': .*the grid has 24 points"):
        take_grids(spec, "ocean", fields)
    path.write_text(SPEC.replace('name = "sea"', 'name = "see"'))
    with pytest.raises(
        ConfigError, match=r"(?s)grid 'sea': .* has the grids sea, air, and no 'see'.*line 14"
    ):
        read(path)


def changed(path: Path, name: str, change: Callable[[Any], None]) -> None:
    with nc.Dataset(str(path), "a") as data:
        data.set_auto_mask(False)
        values = data.variables[name][...]
        change(values)
        data.variables[name][...] = values


@pytest.mark.parametrize(
    ("form", "name", "value", "words"),
    [
        ("SCRIP", "grid_corner_lon", np.nan, r"grid_corner_lon of cell \[7, 2\] is nan"),
        ("SCRIP", "grid_corner_lat", 2.0, r"grid_corner_lat of cell \[7, 2\] is 114.592 degrees"),
        ("ESMF mesh", "elementConn", 9999, r"elementConn\[7, 2\] is 9999, and there are 30 nodes from 1"),
        ("MPAS", "verticesOnCell", 0, r"verticesOnCell\[7, 2\] is 0, and there are 30 nodes from 1"),
        ("MPAS", "verticesOnCell", -5, r"verticesOnCell\[7, 2\] is -5"),
    ],
)
def test_damage_is_told_by_variable_and_index(
    form: str, name: str, value: float, words: str, tmp_path: Path
) -> None:
    grid = opened(form, tmp_path)
    del grid
    path = tmp_path / "small_grids.nc"
    changed(path, name, lambda values: values.__setitem__((7, 2), value))
    with pytest.raises(LayoutError, match=words):
        regrid.open(path).cells(np.arange(NX * NY))
    assert len(regrid.open(path).cells(np.arange(3)).vertices) == 3  # which do not need it


def test_damage_beside_a_grid_of_oasis_is_told_of_the_file_that_has_it(tmp_path: Path) -> None:
    oasis(tmp_path / "grids.nc")
    for what, variable in (("masks", "sea.msk"), ("areas", "sea.srf")):
        write = Writer(tmp_path / f"{what}.nc")
        write(variable, np.zeros((2, 2)), "two also_two")
        write.data.close()
        found = regrid.open(tmp_path / "grids.nc", "sea")
        with pytest.raises(LayoutError, match=rf"{what}\.nc: {variable} has the shape \(2, 2\)"):
            found.mask() if what == "masks" else found.areas(np.arange(3))


def test_a_scrip_file_of_one_cell_has_one_axis(tmp_path: Path) -> None:
    write = Writer(tmp_path / "one.nc")
    write("grid_corner_lon", np.array([[0.0, 9.0, 9.0]]), "size corners")
    write("grid_corner_lat", np.array([[0.0, 0.0, 9.0]]), "size corners")
    write.data.close()
    assert regrid.open(tmp_path / "one.nc").shape == (1,)


def test_what_is_no_grid_is_refused_with_what_the_file_has(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        regrid.open(tmp_path / "none.nc")
    write = Writer(tmp_path / "other.nc")
    write("temperature", np.zeros(3), "x")
    write.data.close()
    with pytest.raises(ConfigError, match=r"it has temperature"):
        regrid.open(tmp_path / "other.nc")
    (tmp_path / "text.nc").write_text("no file of that kind")
    with pytest.raises(LayoutError, match="no netCDF file, or damaged"):
        regrid.open(tmp_path / "text.nc")
    scrip(tmp_path / "whole.nc")
    with pytest.raises(ConfigError, match="one grid, without a name"):
        regrid.open(tmp_path / "whole.nc", "torc")
    for points in (np.array([NX * NY]), np.array([-1]), np.array([0.5]), np.zeros((2, 2), int)):
        with pytest.raises((LayoutError, DtypeError), match=r"points (has|is)"):
            regrid.open(tmp_path / "whole.nc").cells(points)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "FESOM"])
def test_a_truncated_or_overwritten_file_is_an_error_or_right(form: str, tmp_path: Path) -> None:
    """Behind the header: where that ends too early, the netCDF library itself may crash."""
    opened(form, tmp_path)
    path = tmp_path / "small_grids.nc"
    whole = path.read_bytes()
    chance = np.random.default_rng(3)
    for n in range(12):
        cut = bytearray(whole[: int(chance.integers(len(whole) // 2, len(whole)))] if n % 2 else whole)
        for at in chance.integers(max(1, len(cut)), size=4 * (n % 3)):
            cut[at : at + 1] = chance.bytes(1)
        (file := tmp_path / f"{n}_grids.nc").write_bytes(cut)
        try:
            cells = regrid.open(file, "sea" if form == "OASIS" else None).cells(np.arange(NX * NY))
        except HpcommError:
            continue
        assert (areas(cells) > 0).all()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("5\n1 2 3\n", "has 1 rows of numbers"),
        ("3\n1 2 3\n1 2 99\n1 2 4\n", "triangle 1 has node 99, and there are"),
        ("3\n1 2 3\n1 2 3\n1 2 0\n", "triangle 2 has node 0, and there are"),
        ("x\n1 2 3\n", "damaged"),
        ("", "damaged"),
    ],
)
def test_a_damaged_text_of_fesom_is_an_error(rows: str, words: str, tmp_path: Path) -> None:
    fesom(tmp_path / "fesom")
    (tmp_path / "fesom/elem2d.out").write_text(rows)
    with pytest.raises(LayoutError, match=rf"elem2d.out.*{words}"):
        regrid.open(tmp_path / "fesom")


def test_weights_are_kept_as_esmf_has_them(tmp_path: Path) -> None:
    made = regrid.weights(regrid.Cells(CORNERS), regrid.LatLon(8, 16), "conservative", given=np.arange(5, 20))
    made.save(tmp_path / "w.nc")
    again = regrid.Weights.load(f"{tmp_path}/w.nc")
    assert (again.matrix != made.matrix).nnz == 0
    np.testing.assert_array_equal(again.sources, made.sources)
    np.testing.assert_array_equal(again.fraction, made.fraction)
    assert regrid.Weights.sizes(tmp_path / "w.nc") == (128, 20)


def scrip_weights(path: Path, gradient: float = 0.0) -> None:
    """Of five sources to four targets, in no order."""
    write = Writer(path)
    write("dst_address", np.array([3, 1, 3], np.int32), "num_links")
    write("src_address", np.array([5, 2, 1], np.int32), "num_links")
    write("remap_matrix", np.array([[0.25, 0.0], [1.0, gradient], [0.5, 0.0]]), "num_links num_wgts")
    write("dst_grid_frac", np.array([1.0, 0.0, 0.75, 0.0]), "dst_grid_size")
    write("src_grid_imask", np.ones(5, np.int32), "src_grid_size")
    write.data.close()


def test_weights_of_scrip_are_read(tmp_path: Path) -> None:
    scrip_weights(tmp_path / "rmp.nc")
    found = regrid.Weights.load(tmp_path / "rmp.nc")
    np.testing.assert_array_equal(found.sources, [0, 1, 4])
    np.testing.assert_array_equal(found.apply(np.array([8.0, 3.0, 4.0])), [3.0, 0.0, 5.0, 0.0])
    np.testing.assert_array_equal(found.fraction, [1.0, 0.0, 0.75, 0.0])
    assert regrid.Weights.sizes(tmp_path / "rmp.nc") == (4, 5)


def test_weights_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rmp.nc"
    scrip_weights(path, gradient=0.1)
    with pytest.raises(ConfigError, match=r"remap_matrix of .* has weights for gradients"):
        regrid.Weights.load(path)
    scrip_weights(path)
    changed(path, "src_address", lambda values: values.__setitem__(1, 6))
    with pytest.raises(LayoutError, match=r"src_address\[1\] is 6, and there are 5 points from 1"):
        regrid.Weights.load(path)
    scrip(path)
    with pytest.raises(ConfigError, match=r"no weights in .*: it has grid_corner_lon"):
        regrid.Weights.load(path)
