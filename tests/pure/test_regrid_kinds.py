"""Grids as models have them: reduced Gaussian, HEALPix, regional, polygons; and cells cut by parallels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")
from hpcomm import regrid
from hpcomm.errors import LayoutError, UsageError
from hpcomm.grids.geometry import moments, tangents, within_rectangles
from hpcomm.grids.methods import KINDS, GridSpec


def everything(grid):
    return np.arange(grid.size)


def on_sphere(lon, lat):
    lon, lat = np.radians(lon), np.radians(lat)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def degrees(x):
    return np.degrees(np.stack([np.arctan2(x[..., 1], x[..., 0]), np.arcsin(np.clip(x[..., 2], -1, 1))], -1))


# -- polygons in rectangles --------------------------------------------------------------------------


def lune(width, latitude):
    """What a great circle and the parallel have between them, whose ends are at this latitude, so wide."""
    t, z = np.tan(np.radians(width) / 2), np.sin(np.radians(latitude))
    return 2 * np.arctan(z * t) - z * np.radians(width)


@pytest.mark.parametrize("latitude", [5.0, 45.0, 89.0, -30.0])
@pytest.mark.parametrize("width", [0.1, 20.0, 150.0])
def test_a_great_circle_crosses_a_parallel_twice(latitude, width):
    """A box by great circles has a lune beyond each of its parallels; the box by parallels has none of it."""
    lon, lat = np.array([-width, width, width, -width]) / 2, latitude + np.array([-1, -1, 1, 1])
    box, sides = on_sphere(lon, lat)[None], np.radians([[-width / 2], [width / 2]])
    low, high = (np.array([np.sin(np.radians(latitude + more))]) for more in (-1, 1))
    whole = np.radians(width) * (high - low)[0]
    lost, gained = lune(width, latitude - 1), lune(width, latitude + 1)
    assert moments(box)[0][0] == pytest.approx(whole + gained - lost, rel=1e-9)
    if latitude < 0:
        lost, gained = -gained, -lost
    for first, last, wanted in (
        (low, high, whole - lost),  # as far as a lune is no wider than the box
        (high if latitude > 0 else -np.ones(1), np.ones(1) if latitude > 0 else low, gained),
    ):
        if np.abs(lost) < whole / 2 and np.abs(gained) < whole / 2:
            assert within_rectangles(box, *sides, first, last)[0][0] == pytest.approx(wanted, rel=1e-8)


PLACES = st.tuples(
    st.floats(-180, 180), st.one_of(st.floats(-90, 90), st.sampled_from([-90.0, 0.0, 30.0, 90.0]))
)
EDGES = st.lists(st.integers(1, 34), min_size=2, max_size=12, unique=True).map(sorted)
ROWS = st.lists(st.integers(-8, 8), max_size=9, unique=True).map(sorted)


@settings(max_examples=200)
@given(PLACES, st.floats(-4, 0), st.integers(3, 6), EDGES, ROWS, st.integers(0, 3))
def test_rectangles_that_fill_the_sphere_divide_a_polygon(place, size, n, columns, rows, turned):
    """Round any place, poles and points of the rows among them, and of any size."""
    middle = on_sphere(*place)
    first, second = (each[0] for each in tangents(middle[None]))
    angle, size = 2 * np.pi * (np.arange(n) + turned / 4)[:, None] / n, 10.0**size
    polygon = np.cos(size) * middle + np.sin(size) * (np.cos(angle) * first + np.sin(angle) * second)
    grid = regrid.LatLon(
        lat_edges=[-90, *np.multiply(rows, 10), 90], lon_edges=[-10, *np.multiply(columns, 10), 350]
    )
    if grid.widest >= np.pi - 1e-6:
        return
    pieces = np.repeat(polygon[None], grid.size, axis=0)
    area, moment = within_rectangles(pieces, *grid.bounds(everything(grid)).T)
    whole, its_moment = moments(polygon[None])
    assert area.min() > -1e-15
    assert abs(area.sum() - whole[0]) < 1e-13 * size
    assert np.abs(moment.sum(axis=0) - its_moment[0]).max() < 1e-13 * size


# -- reduced Gaussian --------------------------------------------------------------------------------


def test_a_reduced_gaussian_grid_is_numbered_and_weighed_as_models_do_it():
    z, weight = np.polynomial.legendre.leggauss(48)
    grid = regrid.ReducedGaussian(24)
    assert grid.size == 4 * 24 * 33 == KINDS["reduced_gaussian"].size(24)
    counts = [20 + 4 * min(i, 47 - i) for i in range(48)]
    place = degrees(grid.centres(everything(grid)))
    first = np.concatenate([[0], np.cumsum(counts)])
    assert np.allclose(place[first[:-1]], np.stack([np.zeros(48), np.degrees(np.arcsin(z[::-1]))], axis=1))
    assert np.allclose(place[first[3] + 5], [5 * 360 / counts[3], np.degrees(np.arcsin(z[-4]))])
    areas = np.repeat(weight[::-1] * 2 * np.pi / counts, counts)
    assert np.allclose(grid.areas(everything(grid)), areas, rtol=1e-11)
    both = regrid.ReducedGaussian(rows=[8, 12, 12, 8]), regrid.ReducedGaussian(2, rows=[8, 12])
    assert both[0].is_same(both[1])
    assert not both[0].is_same(regrid.ReducedGaussian(2))
    assert regrid.from_spec(GridSpec("sky", "reduced_gaussian", (24,))).is_same(grid)


TARGETS = {
    "1 degree": lambda: regrid.LatLon(180, 360),
    "half a degree": lambda: regrid.LatLon(360, 720),
    "from -180, north to south": lambda: regrid.LatLon(
        lat=89.5 - np.arange(180.0), lon=np.arange(-179.5, 180)
    ),
    "healpix": lambda: regrid.Healpix(16),
    "octahedral": lambda: regrid.ReducedGaussian(20),
    "classical": lambda: regrid.ReducedGaussian(
        16, rows=[20, 27, 36, 40, 45, 50, 60, 64, 72, 75, 80, 90] + [96] * 4
    ),
}


@pytest.mark.parametrize("mapping", ["conservative", "conservative2"])
@pytest.mark.parametrize(("number", "target"), [(N, name) for name in TARGETS for N in (24, 32)])
def test_a_reduced_gaussian_grid_covers_others_once(number, target, mapping):
    source, target = regrid.ReducedGaussian(number), TARGETS[target]()
    weights = regrid.weights(source, target, mapping)
    assert np.abs(weights.fraction - 1).max() < 1e-12
    assert np.abs(weights.apply(np.ones(weights.columns)) - 1).max() < 1e-14
    values = 2 + np.sin(3 * source.centres(everything(source))[:, 0])
    lost = target.areas(everything(target)) @ weights.apply(values[weights.sources])
    lost -= source.areas(everything(source)) @ values
    assert abs(lost) < 1e-12 * 8 * np.pi


# -- latitudes and longitudes ------------------------------------------------------------------------


@pytest.mark.parametrize("mapping", [each for each in regrid.MAPPINGS if each != "projection"])
def test_rows_may_begin_anywhere_and_go_north_to_south(mapping):
    plain, other = regrid.LatLon(18, 36), regrid.Healpix(6)
    turned = regrid.LatLon(lat=85 - 10 * np.arange(18.0), lon=np.arange(-175.0, 180, 10))
    where = (17 - np.arange(18))[:, None] * 36 + (np.arange(36) + 18) % 36
    assert np.allclose(turned.centres(everything(turned)), plain.centres(where.ravel()))
    assert np.allclose(turned.areas(everything(turned)), plain.areas(where.ravel()))
    values = np.random.default_rng(0).random(plain.size)
    found = [
        (w := regrid.weights(grid, other, mapping)).apply(x[w.sources])
        for grid, x in ((plain, values), (turned, values[where.ravel()]))
    ]
    assert np.allclose(*found, rtol=1e-9) or mapping in (
        "nearest",
        "idw",
        "rbf",
    )  # of equally near ones others
    values = np.random.default_rng(1).random(other.size)
    a, b = ((w := regrid.weights(other, grid, mapping)).apply(values[w.sources]) for grid in (plain, turned))
    assert np.allclose(a[where.ravel()], b, rtol=1e-9)


def test_gradients_between_rows_smooth_no_more_than_they_must():
    """A wave of 7.5 columns: YAC 3.21 has an error of 2.67e-3 (benchmarks/mapping_yac.py)."""
    source, target = regrid.LatLon(60, 120), regrid.LatLon(90, 180)
    places = (np.radians(degrees(grid.centres(everything(grid)))).T for grid in (source, target))
    wave, exact = (2 + np.sin(2 * lat) ** 16 * np.cos(16 * lon) for lon, lat in places)
    area = target.areas(everything(target))
    got = regrid.weights(source, target, "conservative2").apply(wave)
    error = np.sqrt((area * (got - exact) ** 2).sum() / (area * exact**2).sum())
    assert error < 1.05 * 2.67e-3


def test_a_region_has_nothing_beside_it():
    region = regrid.LatLon(lat=np.arange(31.0, 60, 2), lon=[355.0, 357, 359, 1, 3, 5, 7])
    whole = regrid.LatLon(90, 180)
    for source, target in ((region, whole), (whole, region)):
        weights = regrid.weights(source, target, "conservative")
        assert np.count_nonzero(weights.fraction > 1e-9) == region.size
        assert np.allclose(weights.fraction[weights.rows], 1, rtol=1e-12)
    inside = regrid.PointCloud(
        [[354.0, 30.0], [0.0, 45.0], [8.0, 60.0], [9.0, 45.0], [352.0, 45.0], [0.0, 29.0]]
    )
    weights = regrid.weights(region, inside, "bilinear")
    assert weights.uncovered.tolist() == [3, 4, 5]
    latitude = degrees(region.centres(everything(region)))[:, 1]
    assert np.allclose(weights.apply(latitude[weights.sources])[:3], [30.0, 45.0, 60.0])


def test_poles_may_be_centres():
    grid = regrid.LatLon(lat=np.linspace(-90, 90, 19), lon=np.arange(0.0, 360, 10))
    assert np.degrees(grid.v_edges[[0, 1, -1]]).tolist() == pytest.approx([-90, -85, 90])
    poles = regrid.PointCloud([[77.0, 90.0], [5.0, -90.0], [33.0, 88.0]])
    weights = regrid.weights(grid, poles, "bilinear")
    values = np.repeat(np.arange(19.0), 36)
    assert np.allclose(weights.apply(values[weights.sources]), [18, 0, 17.8])


# -- HEALPix -----------------------------------------------------------------------------------------


def test_pixels_lie_where_gorski_et_al_put_them():
    for nside in (1, 2, 3, 8):
        pixels = regrid.Healpix(nside)
        z = pixels.centres(everything(pixels))[:, 2]
        rings = np.arange(1, 4 * nside)
        count = 4 * np.minimum(np.minimum(rings, 4 * nside - rings), nside)
        cap = 1 - np.minimum(rings, 4 * nside - rings) ** 2 / (3 * nside**2)
        belt = 4 / 3 - 2 * rings / (3 * nside)
        wanted = np.where(rings < nside, cap, np.where(rings > 3 * nside, -cap, belt))
        assert np.allclose(z, np.repeat(wanted, count))
        first = np.concatenate([[0], np.cumsum(count)[:-1]])
        begin = degrees(pixels.centres(first))[:, 0]
        half = (rings < nside) | (rings > 3 * nside) | ((rings - nside) % 2 == 0)
        assert np.allclose(begin, np.where(half, 180 / count, 0))
        off = np.abs(pixels.areas(everything(pixels)) * pixels.size / (4 * np.pi) - 1).max()
        assert 0.05 < off < (0.1 if nside > 1 else 0.2)  # as docs/grids.md says
    order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert np.allclose(
        regrid.Healpix(1, nest=True).centres(np.array(order)), regrid.Healpix(1).centres(np.array(order))
    )
    nested, rings = regrid.Healpix(2, nest=True), regrid.Healpix(2)
    same = [13, 5, 4, 0, 15, 7, 6, 1]  # of the first two squares, as HEALPix' nest2ring has them
    assert np.allclose(nested.centres(np.arange(8)), rings.centres(np.array(same)))
    with pytest.raises(UsageError, match="nside 6 is no power of two"):
        regrid.Healpix(6, nest=True)


# -- polygons ----------------------------------------------------------------------------------------


def ball(n):
    """Places, and triangles of an octahedron, each divided into n² whose corners are on the sphere."""
    places, cells = {}, []
    for signs in np.ndindex(2, 2, 2):
        for i, j in np.ndindex(n, n):
            for corners in (((i, j), (i + 1, j), (i, j + 1)), ((i + 1, j), (i + 1, j + 1), (i, j + 1))):
                if max(map(sum, corners)) <= n:
                    whole = [(a, b, n - a - b) * (1 - 2 * np.array(signs)) for a, b in corners]
                    cells.append([places.setdefault(tuple(each), len(places)) for each in whole])
    x = np.array([*places], float)
    return degrees(x / np.linalg.norm(x, axis=1, keepdims=True)), cells


def test_cells_that_go_clockwise_are_turned():
    vertices, cells = ball(6)  # half of them go clockwise
    polygons = regrid.Polygons(vertices, cells)
    assert polygons.areas(everything(polygons)).min() > 0
    assert polygons.areas(everything(polygons)).sum() == pytest.approx(4 * np.pi, rel=1e-13)
    for other in (regrid.LatLon(12, 24), regrid.ReducedGaussian(8), regrid.Healpix(4)):
        for source, target in ((polygons, other), (other, polygons)):
            weights = regrid.weights(source, target, "conservative")
            assert np.abs(weights.fraction - 1).max() < 1e-12
    clockwise = regrid.Cells(polygons.vertices[:, ::-1])
    assert np.allclose(clockwise.areas(everything(clockwise)), polygons.areas(everything(polygons)))


def test_polygons_of_different_lengths_are_lists_or_padded_with_negative_numbers():
    vertices = [[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [1.0, 2.0], [0.0, 1.0], [3.0, 0.0]]
    lists = regrid.Polygons(vertices, [[0, 1, 2, 3, 4], [1, 5, 2]], sphere=False)
    padded = regrid.Polygons(vertices, np.array([[0, 1, 2, 3, 4], [1, 5, 2, -1, -1]]), sphere=False)
    assert lists.areas(everything(lists)).tolist() == padded.areas(everything(padded)).tolist() == [3.0, 0.5]
    for cells, words in (
        ([[0, 1, 9]], r"cell 0 has vertices \[0, 1, 9\], and there are 6"),
        ([[0, 1, 2], [-1, 0, 1]], "cell 1"),
    ):
        with pytest.raises(LayoutError, match=words):
            regrid.Polygons(vertices, cells, sphere=False)


def test_curvilinear_grids_take_corners_in_the_forms_that_files_have():
    a, b = np.meshgrid(np.linspace(10, 50, 9), np.linspace(-20, 20, 5))
    lon, lat = a + 0.2 * b, b + 0.1 * a
    around = (
        (slice(-1), slice(-1)),
        (slice(-1), slice(1, None)),
        (slice(1, None),) * 2,
        (slice(1, None), slice(-1)),
    )
    four = [np.stack([each[part] for part in around]) for each in (lon, lat)]
    middle = [each.mean(axis=0) for each in four]
    grids = [
        regrid.Curvilinear(*middle, corners)
        for corners in ((lon, lat), four, [np.moveaxis(each, 0, -1) for each in four])
    ]
    for grid in grids:
        assert np.array_equal(grid.vertices, grids[0].vertices)
        assert np.allclose(degrees(grid.centres(everything(grid))), np.stack(middle, -1).reshape(-1, 2))
    assert np.array_equal(grids[0].part(np.arange(3, 7)).centres(None), grids[0].centres(None)[3:7])
    weights = regrid.weights(regrid.ReducedGaussian(16), grids[0], "conservative")
    assert np.allclose(weights.fraction, 1, rtol=1e-12)
    with pytest.raises(LayoutError, match=r"corners have the shape \(9, 5\), and lon \(4, 8\)"):
        regrid.Curvilinear(*middle, (lon.T, lat.T))


WRONG = {
    "no rows": (lambda: regrid.ReducedGaussian(), "a grid of None cells"),
    "odd rows": (lambda: regrid.ReducedGaussian(rows=[4, 8, 4]), "no numbers of columns"),
    "rows of half a column": (lambda: regrid.ReducedGaussian(rows=[4.5, 8]), "no numbers of columns"),
    "other rows": (lambda: regrid.ReducedGaussian(3, rows=[4, 8]), "no numbers of columns of 6 rows"),
    "no latitudes": (lambda: regrid.LatLon(nlon=4), "a grid of None x 4"),
    "one latitude": (lambda: regrid.LatLon(lat=[5.0], lon=[1.0, 2.0]), "lat has the shape"),
    "out of order": (lambda: regrid.LatLon(lat=[5.0, 7.0, 6.0], nlon=4), "3 of lat and 4 edges"),
    "edges": (lambda: regrid.LatLon(lat=[5.0, 6.0], lat_edges=[0.0, 9.0], nlon=4), "2 of lat and 2 edges"),
    "beside": (lambda: regrid.LatLon(4, lon=[1.0, 9.0], lon_edges=[0.0, 2.0, 4.0]), "lon 9 is not between"),
    "masked": (lambda: regrid.LatLon(4, lon=np.ma.masked_less([1.0, 9.0, 17.0], 5)), "the coordinates are"),
    "over the pole": (lambda: regrid.LatLon(lat_edges=[0.0, 95.0], nlon=4), "lat reaches 5 degrees too far"),
    "twice round": (lambda: regrid.LatLon(4, lon_edges=[0.0, 200.0, 370.0]), "lon reaches 10 deg"),
    "centres": (lambda: regrid.Cells([[[0, 0], [1, 0], [0, 1]]], centres=[[0, 0]] * 2), "2 centres of 1"),
}  # fmt: skip


def test_a_region_may_have_no_columns():
    assert regrid.LatLon(4, lon_edges=[0.0]).size == 0


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_grid_of_its_kind_is_refused_in_words(case):
    call, words = WRONG[case]
    with pytest.raises(UsageError, match=words):
        call()
