"""Mappings between grids: what they conserve, how fast they converge, and that constants stay constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")
from hpcomm import regrid
from hpcomm.errors import ConfigError, LayoutError, UsageError


def smooth(x):
    """On the sphere or a plane, with no symmetry."""
    z = x[:, 2] if x.shape[1] == 3 else x[:, 0] * x[:, 1]
    return 2 + np.exp(x[:, 0] - 0.3 * x[:, 1]) + z**3 - z + x[:, 0] * x[:, 1]


def rough(x):
    return np.where(np.sin(7 * x[:, 0] + 3 * x[:, 1]) > 0, 1.0, -0.7) + (x[:, 0] > 0.4)


def cube(n, sphere=True):
    """6 n² cells of a cubed sphere, by their vertices."""
    t = np.tan(np.linspace(-np.pi / 4, np.pi / 4, n + 1))
    a, b = np.meshgrid(t, t, indexing="ij")
    one = np.ones_like(a)
    faces = [(one, a, b), (-a, one, b), (-one, -a, b), (a, -one, b), (-b, a, one), (b, a, -one)]
    p = np.stack([np.stack(face, -1) for face in faces])
    p /= np.linalg.norm(p, axis=-1, keepdims=True)
    q = np.stack([p[:, :-1, :-1], p[:, 1:, :-1], p[:, 1:, 1:], p[:, :-1, 1:]], 3).reshape(-1, 4, 3)
    return regrid.Cells(np.degrees(np.stack([np.arctan2(q[..., 1], q[..., 0]), np.arcsin(q[..., 2])], -1)))


def skewed(n):
    """n x n parallelograms and triangles that fill the unit square."""
    x, y = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1), indexing="ij")
    x = x + 0.3 / n * np.sin(np.pi * x) * np.sin(2 * np.pi * y)
    p = np.stack([x, y], -1)
    a, b, c, d = p[:-1, :-1], p[1:, :-1], p[1:, 1:], p[:-1, 1:]
    lower, upper = np.stack([a, b, c, c], 2), np.stack([a, c, d, d], 2)
    return regrid.Cells(np.concatenate([lower.reshape(-1, 4, 2), upper.reshape(-1, 4, 2)]), sphere=False)


def reduced(n):
    """A reduced Gaussian grid that has half as many columns in each row if n is half as large."""
    return regrid.ReducedGaussian(n, rows=4 * np.arange(1, n + 1))


PAIRS = {
    "latlon to gaussian": lambda n: (regrid.LatLon(n, 2 * n), regrid.Gaussian(n * 3 // 4, n * 3 // 2)),
    "gaussian to latlon": lambda n: (regrid.Gaussian(n * 3 // 4, n * 3 // 2), regrid.LatLon(n, 2 * n)),
    "latlon to cube": lambda n: (regrid.LatLon(n, 2 * n), cube(n // 2)),
    "cube to latlon": lambda n: (cube(n // 2), regrid.LatLon(n, 2 * n)),
    "reduced to latlon": lambda n: (reduced(n // 2), regrid.LatLon(n, 2 * n)),
    "latlon to healpix": lambda n: (regrid.LatLon(n, 2 * n), regrid.Healpix(n // 2)),
    "healpix to reduced": lambda n: (regrid.Healpix(n // 2), reduced(n // 2)),
    "plane to plane": lambda n: (regrid.Plane(n, n + 3), regrid.Plane(n * 3 // 4, n)),
    "plane to cells": lambda n: (regrid.Plane(n, n), skewed(n * 3 // 4)),
    "cells to plane": lambda n: (skewed(n * 3 // 4), regrid.Plane(n, n)),
}
MAPPINGS = [each for each in regrid.MAPPINGS if each != "projection"]  # that need no mesh
ORDER = {"nearest": 0.8, "idw": 0.7, "bilinear": 1.7, "rbf": 1.4, "conservative": 0.8, "conservative2": 1.5}
CASES = [(pair, mapping) for pair in PAIRS for mapping in MAPPINGS if mapping != "rbf"]
CASES += [("healpix to reduced", "rbf"), ("cells to plane", "rbf")]  # which look at points alone


def everything(grid):
    return np.arange(grid.size)


def areas(grid):
    return grid.areas(everything(grid))


def error_of(pair, mapping, n, function):
    source, target = PAIRS[pair](n)
    weights = regrid.weights(source, target, mapping)
    exact = function(target.centres(everything(target)))
    got = weights.apply(function(source.centres(everything(source)))[weights.sources])
    area = np.where(weights.fraction > 0, areas(target), 0)  # without what lies beside the middles of cells
    return np.sqrt((area * (got - exact) ** 2).sum() / (area * exact**2).sum())


@pytest.mark.parametrize(("pair", "mapping"), CASES)
def test_errors_fall_as_theory_says(pair, mapping):
    coarse, fine = (error_of(pair, mapping, n, smooth) for n in (16, 64))
    order = np.log2(coarse / fine) / 2
    assert order > ORDER[mapping], (coarse, fine)
    assert fine < 0.05


@pytest.mark.parametrize("function", [smooth, rough])
@pytest.mark.parametrize("mapping", ["conservative", "conservative2"])
@pytest.mark.parametrize("pair", PAIRS)
def test_conservative_mappings_keep_the_integral(pair, mapping, function):
    source, target = PAIRS[pair](24)
    weights = regrid.weights(source, target, mapping)
    values = function(source.centres(everything(source)))
    before = (areas(source) * values).sum()
    after = (areas(target) * weights.fraction * weights.apply(values[weights.sources])).sum()
    assert abs(after - before) <= 1e-12 * np.abs(areas(source) * values).sum()
    assert np.allclose(weights.fraction, 1, atol=1e-11)


@pytest.mark.parametrize("mapping", ["conservative", "conservative2"])
@pytest.mark.parametrize("pair", ["latlon to gaussian", "cube to latlon", "plane to cells"])
def test_with_a_mask_what_is_covered_keeps_its_integral(pair, mapping):
    """A third of the source is land; target cells count as far as they are covered."""
    source, target = PAIRS[pair](24)
    centres = source.centres(everything(source))
    sea = everything(source)[np.sin(5 * centres[:, 0]) < 0.5]
    weights = regrid.weights(source, target, mapping, given=sea)
    values = smooth(centres)
    before = (areas(source) * values)[sea].sum()
    area = areas(target) * weights.fraction
    assert abs((area * weights.apply(values[weights.sources])).sum() - before) < 1e-12 * abs(before)
    assert set(weights.sources) <= set(sea)
    assert weights.fraction.min() == 0
    assert len(weights.rows) < len(area)
    ones = weights.apply(np.ones(weights.columns))
    assert np.allclose(ones[weights.rows], 1)
    whole = regrid.weights(source, target, mapping, given=sea, normalise="destarea")
    got = whole.apply(values[whole.sources])
    assert abs((areas(target) * got).sum() - before) < 1e-12 * abs(before)
    assert np.allclose(whole.apply(np.ones(whole.columns)), weights.fraction, rtol=1e-12)
    lost = values[whole.sources]
    lost[::3] = np.nan
    more, less = (each.apply(lost, "renormalise") for each in (weights, whole))
    assert np.allclose(more * weights.fraction, less, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("normalise", ["fracarea", "destarea"])
def test_integrals_with_the_models_own_areas_are_kept(normalise):
    source, target = PAIRS["cube to latlon"](24)
    own = [4e13 * areas(grid) * (1 + 0.05 * np.sin(everything(grid))) for grid in (source, target)]
    sea = everything(source)[::3]
    how = {"given": sea, "normalise": normalise}
    weights = regrid.weights(source, target, "conservative", areas=own, **how)
    values = smooth(source.centres(everything(source)))
    after = own[1] * weights.valid @ weights.apply(values[weights.sources])
    assert abs(after / (own[0] @ np.where(everything(source) % 3 == 0, values, 0)) - 1) < 1e-12
    for wrong, words in [
        ((own[0], 1.0), "the areas of the target are no numbers above 0, one for each of"),
        ((own[0], -own[1]), "the areas of the target are no numbers above 0"),
        (
            (own[0], areas(target)),
            r"areas of the source are \d.*e.13 times those of its cells, of the target 1 times",
        ),
        ((own[0],), "areas are not two arrays"),
    ]:
        with pytest.raises((ConfigError, LayoutError), match=words):
            regrid.weights(source, target, "conservative", areas=wrong)
    for ends, theirs in (((source, target), own), ((target, source), own[::-1])):  # amounts have no areas
        given, plain = (regrid.weights(*ends, "to_nearest", areas=each) for each in (theirs, None))
        assert (given.matrix != plain.matrix).nnz == 0


@pytest.mark.parametrize(("pair", "mapping"), CASES)
def test_a_constant_stays_constant(pair, mapping):
    source, target = PAIRS[pair](16)
    weights = regrid.weights(source, target, mapping)
    assert np.allclose(weights.apply(np.full(weights.columns, 3.25))[weights.rows], 3.25, rtol=1e-12)
    assert len(weights.rows) == target.size or (pair, mapping) == ("cells to plane", "bilinear")


SIZES = st.integers(1, 7)
ON_SPHERE = st.builds(
    lambda kind, n, m: kind(n, m), st.sampled_from([regrid.LatLon, regrid.Gaussian]), SIZES, SIZES
)
ON_PLANE = st.builds(regrid.Plane, SIZES, SIZES)


@settings(max_examples=60)
@given(st.one_of(st.tuples(ON_SPHERE, ON_SPHERE), st.tuples(ON_PLANE, ON_PLANE)), st.data())
def test_of_grids_of_any_size_the_covered_part_keeps_its_integral_and_constants(grids, data):
    source, target = grids
    points = data.draw(st.lists(st.integers(0, source.size - 1), min_size=1, unique=True).map(sorted))
    weights = regrid.weights(source, target, "conservative", given=np.array(points))
    values = data.draw(st.lists(st.integers(-9, 9), min_size=source.size, max_size=source.size))
    values = np.array(values, float)
    area = areas(target) * weights.fraction
    before = (areas(source) * values)[points].sum()
    scale = areas(source).sum() * 9
    assert abs((area * weights.apply(values[weights.sources])).sum() - before) < 1e-12 * scale
    assert np.allclose(weights.apply(np.full(weights.columns, 3.25))[weights.rows], 3.25, rtol=1e-12)
    assert set(weights.sources) <= set(points)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_coarsest_grids_serve_too(mapping):
    """Cells whose neighbours are themselves, or lie through the sphere; planes of one row."""
    kinds = (regrid.LatLon, regrid.Gaussian)
    spheres = [kind(nlat, nlon) for kind in kinds for nlat in (1, 2) for nlon in (1, 2, 4)]
    pairs = [(source, regrid.LatLon(5, 7)) for source in spheres]
    pairs += [(regrid.Plane(nx, ny), regrid.Plane(3, 2)) for nx in (1, 2) for ny in (1, 2)]
    for source, target in pairs:
        weights = regrid.weights(source, target, mapping, neighbours=1)
        assert np.allclose(weights.apply(np.full(weights.columns, 3.25)), 3.25, rtol=1e-12)
        if mapping.startswith("cons"):
            values = np.arange(source.size)[weights.sources]
            lost = areas(target) @ weights.apply(values) - areas(source) @ np.arange(source.size)
            assert abs(lost) < 1e-12 * areas(source).sum() * source.size


def test_between_equal_grids_all_mappings_are_the_identity():
    for grid in (regrid.LatLon(8, 16), regrid.Gaussian(8, 16), regrid.Plane(7, 5)):
        values = smooth(grid.centres(everything(grid)))
        for mapping in ("nearest", "idw", "bilinear", "conservative"):
            weights = regrid.weights(grid, grid, mapping)
            assert np.allclose(weights.apply(values[weights.sources]), values, rtol=1e-12), mapping


def test_the_cells_of_a_sphere_fill_it():
    own = regrid.LatLon(lat=np.linspace(90, -90, 13), lon_edges=[-180, -90, 3, 7, 90, 180])
    reduced = [regrid.ReducedGaussian(N) for N in (24, 32, 48, 96)]
    classical = regrid.ReducedGaussian(N=4, rows=[8, 12, 16, 20])
    pixels = [regrid.Healpix(nside, nest) for nside in (1, 2, 8, 32) for nest in (False, True)]
    latlon = regrid.LatLon(9, 14), regrid.Gaussian(10, 20), own
    for grid in (*latlon, *reduced, classical, *pixels, regrid.Healpix(5), cube(7)):
        assert grid.areas(everything(grid)).sum() == pytest.approx(4 * np.pi, rel=1e-13)


def test_nearest_takes_the_lower_index_of_equally_near_points():
    source = regrid.PointCloud([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], sphere=False)
    target = regrid.PointCloud([[0.5, 0.5], [0.9, 0.2]], sphere=False)
    weights = regrid.weights(source, target, "nearest")
    assert weights.sources[weights.matrix.indices].tolist() == [0, 1]


def test_rows_do_not_depend_on_what_else_is_mapped():
    """A rank that holds some of the points gets the same rows, bit by bit."""
    source, target = regrid.LatLon(12, 24), regrid.Gaussian(9, 18)
    values = smooth(source.centres(everything(source)))
    for mapping in MAPPINGS:
        whole = regrid.weights(source, target, mapping)
        for part in np.array_split(everything(target), 5):
            some = regrid.weights(source, target, mapping, points=part)
            assert np.array_equal(some.apply(values[some.sources]), whole.apply(values[whole.sources])[part])


def test_weights_are_kept_and_read_back(tmp_path):
    weights = regrid.weights(regrid.LatLon(6, 12), cube(3), "conservative2")
    weights.save(tmp_path / "w.npz")
    again = regrid.Weights.load(str(tmp_path / "w.npz"))
    values = np.random.default_rng(0).random((weights.columns, 2))
    assert np.array_equal(weights.apply(values), again.apply(values))
    assert np.array_equal(weights.fraction, again.fraction)
    for normalise in ("fracarea", "destarea"):  # which shows in cells that are covered in part
        half = regrid.weights(regrid.Gaussian(3, 7), SMALL, "conservative", given=[0, 1], normalise=normalise)
        half.save(tmp_path / "w.npz")
        assert regrid.Weights.load(tmp_path / "w.npz").normalise == half.normalise == normalise
    with pytest.raises(ConfigError, match="there is no normalise 'dstarea'"):
        regrid.weights(SMALL, SMALL, "conservative", normalise="dstarea")


DAMAGE = {
    "an index pointer that decreases": ({"indptr": [0, 2, 1, 3]}, "indptr does not ascend from 0"),
    "one that begins elsewhere": ({"indptr": [1, 1, 2, 3]}, "indptr does not ascend from 0"),
    "one that ends elsewhere": ({"indptr": [0, 1, 2, 9]}, "not of lengths that fit"),
    "none": ({"indptr": np.empty(0, int)}, "indptr does not ascend"),
    "an index far off": ({"indices": [0, 1, 10**9]}, r"indices from 0 to 1000000000, of 2 sources"),
    "a negative index": ({"indices": [0, -5, 1]}, "indices from -5 to 1"),
    "indices that are no integers": ({"indices": [0.0, 1.0, 1.0]}, "indices is float64"),
    "a matrix": ({"data": np.ones((3, 1))}, r"data is float64 of shape \(3, 1\)"),
    "complex weights": ({"data": np.ones(3, complex)}, "data is complex128"),
    "weights that are none": ({"data": [1.0, np.nan, 0.5]}, "weights that are not finite"),
    "sources twice": ({"sources": [4, 4]}, "sources do not ascend"),
    "negative sources": ({"sources": [-4, 4]}, "sources do not ascend"),
    "too few fractions": ({"fraction": [1.0]}, "not of lengths that fit"),
    "a fraction that is none": ({"fraction": [1.0, np.inf, 1.0]}, "not finite"),
    "a pickle": ({"data": np.array([print] * 3, object)}, "no weights in .*allow_pickle=False"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_weights_of_a_file_that_is_damaged_are_refused(tmp_path, case):
    right = {
        "data": [1.0, 0.5, 0.5], "indices": [0, 0, 1], "indptr": [0, 1, 3, 3], "sources": [4, 7],
        "fraction": [1.0, 1.0, 0.0],
    }  # fmt: skip
    changed, words = DAMAGE[case]
    path = tmp_path / "w.npz"
    np.savez(path, **right)
    weights = regrid.Weights.load(path)
    assert weights.apply(np.array([2.0, 4.0])).tolist() == [2.0, 3.0, 0.0]
    assert regrid.Weights.sizes(path) == (3, 8)
    with pytest.raises(ConfigError, match="for 3 points, and point 3 is taken"):
        weights.part(np.array([0, 3]))
    np.savez(path, **right | changed)
    for read in (regrid.Weights.load, regrid.Weights.sizes):
        with pytest.raises(ConfigError, match=words):
            read(path)


def test_complex_numbers_are_mapped_whole_and_integers_that_are_picked_stay_what_they_are():
    source, target = regrid.LatLon(6, 12), regrid.LatLon(4, 6)
    weights = regrid.weights(source, target, "conservative")
    values = smooth(source.centres(everything(source)))
    both = weights.apply(values * (2 - 3j))
    assert np.allclose(both, weights.apply(values) * (2 - 3j), rtol=1e-14, atol=0)
    picks = regrid.weights(source, target, "nearest")
    large = np.arange(72) + 2**62
    found = picks.apply(large[picks.sources])
    assert found.dtype == large.dtype
    assert np.array_equal(found, large[picks.sources][picks.matrix.indices])


def test_a_grid_whose_coordinates_only_the_program_knows_says_so():
    from hpcomm.grids.methods import GridSpec

    with pytest.raises(ConfigError, match="coordinates are the program's"):
        regrid.from_spec(GridSpec("buoys", "points", (9,)))
    assert regrid.from_spec(GridSpec("sky", "gaussian", (4, 8))).size == 32


SMALL = regrid.LatLon(4, 8)
BUOYS = regrid.PointCloud([[0.0, 0.0], [20.0, 10.0]])
HIDDEN = np.ma.masked_equal([[0.0, 0.0], [9.0, 0.0], [9.0, 9.0], [0.0, 9.0]], 9)
REFUSED = {
    "no cells": (lambda: regrid.LatLon(0, 8), "a grid of 0 x 8 cells"),
    "half a cell": (lambda: regrid.Gaussian(4, 8.5), "a grid of 4 x 8.5 cells"),
    "bounds": (lambda: regrid.Plane(2, 2, (1, 0, 0, 1)), "bounds are no x0, x1, y0, y1"),
    "points of three": (lambda: regrid.PointCloud([[0, 0, 0]]), "the shape is .1, 3."),
    "latitude first": (lambda: regrid.PointCloud([[10.0, 170.0]]), "a latitude of 170 degrees"),
    "nan": (lambda: regrid.PointCloud([[float("nan"), 0]]), "not finite"),
    "a line": (lambda: regrid.Cells([[[0, 0], [9, 0], [5, 0]]]), "1 cells have no area"),
    "a typo": (lambda: regrid.weights(SMALL, SMALL, "bilinaer"), "no mapping 'bilinaer'[^$]*did you mean"),
    "a number": (lambda: regrid.weights(5, SMALL, "idw"), "5 is no grid"),
    "a plane": (
        lambda: regrid.weights(SMALL, regrid.Plane(2, 2), "nearest"),
        "on a sphere to one on a plane",
    ),
    "from points": (
        lambda: regrid.weights(BUOYS, SMALL, "conservative"),
        "does not go from a grid of kind points",
    ),
    "to points": (
        lambda: regrid.weights(SMALL, BUOYS, "conservative"),
        "does not go to a grid of kind points",
    ),
    "a mask": (lambda: regrid.weights(SMALL, SMALL, "idw", given=np.ones(32, bool)), "flatnonzero"),
    "indices": (lambda: regrid.weights(SMALL, BUOYS, "idw", points=[2]), "the grid has 2 points"),
    "neighbours": (lambda: regrid.weights(BUOYS, SMALL, "idw", neighbours=3), "3 neighbours of 2 points"),
    "a kind of nan": (
        lambda: regrid.weights(SMALL, BUOYS, "idw").apply(np.zeros(8), "skip"),
        "there is no nan 'skip'",
    ),
    "a file": (lambda: regrid.Weights.load(__file__), "no weights in"),
    "masked points": (
        lambda: regrid.PointCloud(HIDDEN[:2, :2]),
        "the coordinates are a masked array, whose mask",
    ),
    "masked rows": (lambda: regrid.PointCloud([*HIDDEN[:2, :2]]), "the coordinates are a masked array"),
    "masked cells": (lambda: regrid.Cells(HIDDEN[None]), "the coordinates are a masked array, whose mask"),
    "masked indices": (
        lambda: regrid.weights(SMALL, BUOYS, "idw", given=np.ma.masked_equal([0, 1, 5], 1)),
        "given is a masked array, whose mask would be lost",
    ),
    "masked values": (
        lambda: regrid.weights(SMALL, BUOYS, "nearest").apply(np.ma.masked_equal([0.0, 1.0], 1)),
        "the values are a masked array, whose mask would be lost",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_grid_or_mapping_is_refused_in_words(case):
    call, words = REFUSED[case]
    with pytest.raises(UsageError, match=words):
        call()


def test_a_masked_array_that_hides_nothing_is_an_array():
    """As libraries that read files return them."""
    assert (
        regrid.PointCloud(np.ma.array(BUOYS.coordinates)).coordinates.tolist() == BUOYS.coordinates.tolist()
    )


GLOBE = regrid.LatLon(9, 18)
GLOBE = np.stack(np.meshgrid(GLOBE.u_centres, GLOBE.v_centres), -1).reshape(-1, 2)  # radians
IN_RADIANS = {
    "points": (regrid.PointCloud(GLOBE), True),
    "from -pi": (regrid.PointCloud(GLOBE - [np.pi, 0]), True),
    "cells": (regrid.Cells(GLOBE[:, None] + [[-0.01, -0.01], [0.01, -0.01], [0.01, 0.01]]), True),
    "degrees": (regrid.PointCloud(np.degrees(GLOBE)), False),
    "a region in degrees": (regrid.PointCloud(GLOBE * [0.5, 1]), False),
    "a plane": (regrid.PointCloud(GLOBE, sphere=False), False),
    "few": (regrid.PointCloud(GLOBE[::24]), False),
}


@pytest.mark.parametrize("case", IN_RADIANS)
def test_a_globe_in_radians_is_told_with_its_range(case):
    grid, is_told = IN_RADIANS[case]
    target = SMALL if grid.sphere else regrid.Plane(2, 2)
    if is_told:
        with pytest.warns(RuntimeWarning, match=r"source grid has longitudes .* look like radians"):
            regrid.weights(grid, target, "nearest")
    else:
        regrid.weights(grid, target, "nearest")  # warnings are errors here


def with_nan(source, share=0.2):
    """A smooth function of the source, which is nan at some places."""
    values = 2 + source.centres(np.arange(source.size)) @ np.arange(1.0, 4)
    return np.where(np.random.default_rng(1).random(len(values)) < share, np.nan, values)


@pytest.mark.parametrize("target", [regrid.LatLon(9, 18), regrid.Gaussian(16, 30)])
def test_renormalised_areas_are_those_of_what_is_given(target):
    source = regrid.LatLon(18, 36)
    values = with_nan(source)
    rest = np.flatnonzero(~np.isnan(values))
    made = regrid.weights(source, target, "conservative").apply(values, "renormalise")
    masked = regrid.weights(source, target, "conservative", given=rest)
    expected = np.where(masked.fraction > 0, masked.apply(values[masked.sources]), np.nan)
    assert np.allclose(made, expected, rtol=1e-13, equal_nan=True)
    assert np.isnan(made).any() == (len(masked.uncovered) > 0)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_renormalised_weights_keep_constants_and_leave_points_without_nan_alone(mapping):
    source, target = regrid.LatLon(12, 24), regrid.LatLon(17, 23)
    weights = regrid.weights(source, target, mapping)
    values = np.stack([with_nan(source), np.where(np.isnan(with_nan(source)), np.nan, 7)], 1)[weights.sources]
    spread, made = weights.apply(values), weights.apply(values, "renormalise")
    lost, kept = np.isnan(spread[:, 0]), ~np.isnan(made[:, 0])
    assert np.array_equal(spread[~lost], made[~lost])
    by_complex = weights.apply(values.astype(complex), "renormalise")
    assert np.allclose(by_complex, made, rtol=1e-13, equal_nan=True)
    assert np.allclose(made[kept, 1], 7, rtol=1e-13)
    assert np.abs(made[kept]).max() <= 3.01 * np.nanmax(np.abs(values))
    assert (kept & lost).sum() >= (mapping != "nearest") * 0.8 * lost.sum()
    for row in np.flatnonzero(kept & lost)[:5]:  # by hand
        at = slice(*weights.matrix.indptr[row : row + 2])
        w, x = weights.matrix.data[at], values[weights.matrix.indices[at], 0]
        assert made[row, 0] == pytest.approx(np.nansum(w * x) / w[~np.isnan(x)].sum(), rel=1e-12)


def test_each_level_of_a_field_has_a_mask_of_its_own():
    """As in an ocean, whose land grows with the depth: the same as a mapping of its own for each level."""
    source, target = regrid.LatLon(18, 36), regrid.LatLon(9, 18)
    values = np.stack([with_nan(source, share) for share in (0, 0.2, 0.6)], 1)
    made = regrid.weights(source, target, "conservative").apply(values, "renormalise")
    for level, mapped in zip(values.T, made.T, strict=True):
        wet = np.flatnonzero(~np.isnan(level))
        own = regrid.weights(source, target, "conservative", given=wet)
        expected = np.where(own.fraction > 0, own.apply(level[own.sources]), np.nan)
        assert np.allclose(mapped, expected, rtol=1e-13, equal_nan=True)


def test_where_nothing_is_given_nothing_arrives():
    weights = regrid.weights(SMALL, BUOYS, "nearest", given=[])
    assert (weights.columns, len(weights.rows), weights.fraction.tolist()) == (0, 0, [0, 0])
    assert weights.apply(np.zeros(0)).tolist() == [0, 0]
    assert regrid.weights(SMALL, BUOYS, "idw", points=[]).apply(np.zeros((0, 3))).shape == (0, 3)
