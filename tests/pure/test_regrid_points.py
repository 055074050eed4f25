"""Mappings between points, bilinear from cells and from bare points, and stacks of mappings."""

import numpy as np
import pytest

pytest.importorskip("scipy")
from test_regrid import cube, everything, skewed, smooth

import hpcomm
from hpcomm import regrid
from hpcomm.grids import vectors

RNG = np.random.default_rng(5)


def degrees(x):
    return np.degrees(np.stack([np.arctan2(x[:, 1], x[:, 0]), np.arctan2(x[:, 2], np.hypot(*x.T[:2]))], -1))


def scattered(n):
    return regrid.PointCloud(degrees(np.random.default_rng(n).normal(size=(n, 3))))


def lattice(n, sphere=True):
    """Points in rows, any four of which lie on a circle: their triangles are as one likes."""
    whole = regrid.LatLon(n, 2 * n) if sphere else regrid.Plane(n, n + 1)
    x = whole.centres(everything(whole))
    return regrid.PointCloud(degrees(x) if sphere else x, sphere=sphere)


PLANES = {
    "cells": skewed(9),
    "rows as cells": regrid.Cells(regrid.Plane(7, 5).corners(np.arange(35)), sphere=False),
    "points": regrid.PointCloud(RNG.random((150, 2)), sphere=False),
    "a lattice": lattice(9, sphere=False),
}


@pytest.mark.parametrize("kind", PLANES)
def test_on_a_plane_bilinear_is_exact_for_linear_functions(kind):
    source, target = PLANES[kind], regrid.PointCloud(RNG.uniform(-0.1, 1.1, (400, 2)), sphere=False)
    weights = regrid.weights(source, target, "bilinear")
    x, y = (grid.centres(everything(grid)) for grid in (source, target))
    values = np.stack([np.ones(len(x)), 2 - x @ [3.0, -5.0]], 1)
    exact = np.stack([np.ones(len(y)), 2 - y @ [3.0, -5.0]], 1)
    off = np.abs(weights.apply(values[weights.sources]) - exact)[weights.rows]
    assert off[:, 0].max() < 1e-14
    assert off[:, 1].max() < 1e-13
    assert weights.matrix.data.min() > 0  # so no new extremes
    assert 150 < len(weights.rows) < 350
    near = np.abs(y - 0.5).max(axis=1) < 0.3
    assert near[weights.rows].sum() == near.sum()  # there are no holes between


def test_points_in_rows_are_mapped_as_the_cells_around_them_are():
    inside = regrid.PointCloud(RNG.uniform(0.2, 0.8, (300, 2)), sphere=False)
    for source in (
        PLANES["a lattice"],
        regrid.Cells(regrid.Plane(9, 10).corners(np.arange(90)), sphere=False),
    ):
        values = RNG.random(90)
        plain = regrid.weights(regrid.Plane(9, 10), inside, "bilinear")
        weights = regrid.weights(source, inside, "bilinear")
        assert np.allclose(
            weights.apply(values[weights.sources]), plain.apply(values[plain.sources]), atol=1e-13
        )


def wall(n, bent=0.0):
    y = np.linspace(0, 1, n)
    return regrid.PointCloud(np.stack([0.3 + bent * np.sin(9 * y), y], axis=1), sphere=False), np.sin(
        np.pi * y
    )


def test_radial_functions_map_a_wall_that_is_a_line_or_bent():
    for bent, most in ((0.0, 5e-5), (0.05, 5e-4)):
        (source, values), (target, exact) = wall(41, bent), wall(67, bent)
        weights = regrid.weights(source, target, "rbf")
        assert np.abs(weights.apply(values[weights.sources]) - exact).max() < most


def test_projection_is_linear_along_a_wall_and_goes_no_farther():
    for bent in (0.0, 0.05):
        (source, values), (target, exact) = wall(41, bent), wall(67, bent)
        edges = np.stack([np.arange(40), np.arange(1, 41)], 1)
        mesh = regrid.Mesh(source.coordinates, edges, sphere=False)
        weights = regrid.weights(mesh, target, "projection")
        off = np.abs(weights.apply(values[weights.sources]) - exact)
        assert off.max() < (np.pi / 40) ** 2 / 8  # what is between two points of a sine
        assert weights.matrix.data.min() > 0
    with pytest.raises(hpcomm.ConfigError, match=r"not go from a grid of kind points(.|\n)*fits: mesh"):
        regrid.weights(source, target, "projection")


def test_projection_onto_triangles_takes_the_nearest_place_of_them():
    """On a square in space, beside and above it; without the points of a corner of it."""
    n = 8
    u, v = (each.ravel() for each in np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n)))
    first = (np.arange(n - 1)[:, None] * n + np.arange(n - 1)).ravel()
    cells = np.concatenate(
        [np.stack(first + np.array(way)[:, None], 1) for way in ((0, 1, n), (n + 1, n, 1))]
    )
    mesh = regrid.Mesh(np.stack([u, v, 0 * u], 1), cells, sphere=False)
    places = RNG.uniform(-0.3, 1.3, (500, 3))
    values, exact = 2 + 3 * u - 5 * v, 2 + np.clip(places[:, :2], 0, 1) @ [3.0, -5.0]
    target = regrid.PointCloud(places, sphere=False)
    weights = regrid.weights(mesh, target, "projection")
    assert np.abs(weights.apply(values[weights.sources]) - exact).max() < 1e-13
    some = regrid.weights(mesh, target, "projection", given=np.flatnonzero((u < 0.5) | (v < 0.5)))
    seen = (places[:, 0] < 0.3) | (places[:, 1] < 0.3)
    assert np.abs(some.apply(values[some.sources]) - exact)[seen].max() < 1e-13
    assert regrid.weights(mesh, target, "projection", given=[]).matrix.nnz == 0
    with pytest.raises(hpcomm.LayoutError, match="cells are float64 of shape"):
        regrid.Mesh(mesh.coordinates, cells * 1.0, sphere=False)


def test_points_in_space_are_mapped_along_the_surface_that_they_lie_on():
    """On a bent sheet; the other mesh of it lies a little beside it."""

    def sheet(n, off):
        u, v = (each.ravel() for each in np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n + 1)))
        up = off * np.sin(40 * u) * np.cos(30 * v)
        return regrid.PointCloud(np.stack([u, v, 0.3 * np.sin(2 * u) + up], 1), sphere=False), np.sin(
            3 * u
        ) * np.cos(v)

    (source, values), (target, exact) = sheet(30, 0.0), sheet(41, 1e-3)
    for mapping, most in (("nearest", 0.07), ("idw", 0.05), ("rbf", 2e-3)):
        weights = regrid.weights(source, target, mapping)
        assert np.abs(weights.apply(values[weights.sources]) - exact).max() < most
        assert not len(weights.uncovered)
    forces = regrid.weights(target, source, "to_nearest")
    assert forces.sums.sum() == target.size
    assert regrid.PointCloud(np.empty((0, 3)), sphere=False).surface == "space"
    with pytest.raises(hpcomm.ConfigError, match="'bilinear' does not go between points in space"):
        regrid.weights(source, target, "bilinear")
    with pytest.raises(hpcomm.ConfigError, match="from a grid in space to one on a plane"):
        regrid.weights(source, regrid.Plane(2, 2), "rbf")


def test_the_transpose_of_radial_functions_keeps_the_sum_of_forces_and_on_a_flat_wall_their_moment():
    (fluid, _), (solid, _) = wall(67), wall(41)
    far = regrid.PointCloud(np.concatenate([fluid.coordinates, [[9.0, 9.0]]]), sphere=False)
    force = RNG.random((68, 2))
    weights = regrid.weights(far, solid, "to_rbf")
    y = [each.coordinates[:, 1] for each in (far, solid)]
    got = weights.apply(force[weights.sources])
    assert np.allclose(got.sum(axis=0), force.sum(axis=0), rtol=1e-13)
    beside = (9.0 - y[1].max()) * force[67]  # what is far outside goes to the nearest
    assert np.allclose(y[1] @ got, y[0] @ force - beside, rtol=1e-12)


def test_radial_functions_keep_linear_functions_beside_twins_and_leave_out_what_is_far():
    x = np.random.default_rng(8).random((300, 2))
    source = regrid.PointCloud(np.concatenate([x, x[:60]]), sphere=False)  # 60 of them twice
    target = regrid.PointCloud(
        np.concatenate([RNG.uniform(-0.05, 1.05, (200, 2)), x[:9], [[9, 9]]]), sphere=False
    )
    weights = regrid.weights(source, target, "rbf")
    assert weights.uncovered.tolist() == [209]
    assert weights.sources.max() < 300  # the second of two in one place has no part
    slope = np.array([[1.0, 0.0], [3.0, -5.0]]).T
    values, exact = (2 - grid.centres(everything(grid)) @ slope for grid in (source, target))
    off = np.abs(weights.apply(values[weights.sources]) - exact)[weights.rows]
    assert off.max() < 1e-12
    assert np.diff(weights.matrix.indptr)[200:209].tolist() == [1] * 9  # there the values themselves
    for n in (1, 2, 3):  # few points serve, too
        few = regrid.weights(source, target, "rbf", given=np.arange(n))
        assert np.allclose(few.sums[few.rows], 1, rtol=1e-12)
        assert set(range(200, 200 + n)) <= set(few.rows)


SPHERES = {
    "cube": lambda n: cube(n // 2),
    "healpix": lambda n: regrid.Healpix(n // 2),
    "latlon as cells": lambda n: regrid.Cells(
        degrees(regrid.LatLon(n, 2 * n).corners(np.arange(2 * n * n)).reshape(-1, 3)).reshape(-1, 4, 2)
    ),
    "scattered": lambda n: scattered(2 * n * n),
    "a lattice": lattice,
}


@pytest.mark.parametrize("kind", SPHERES)
def test_over_the_poles_and_the_date_line_bilinear_has_order_2_as_elsewhere(kind):
    special = [[0.0, 90.0], [7.0, -90.0], [180.0, 3.0], [-180.0, 3.0], [180.0, -61.0], [33.0, 89.9]]
    target = regrid.PointCloud(np.concatenate([special, degrees(RNG.normal(size=(500, 3)))]))
    worst = []
    for n in (12, 48):
        source = SPHERES[kind](n)
        weights = regrid.weights(source, target, "bilinear")
        assert not len(weights.uncovered)
        assert np.abs(weights.apply(np.ones(weights.columns)) - 1).max() < 1e-14
        off = weights.apply(smooth(source.centres(everything(source)))[weights.sources])
        off = np.abs(off - smooth(target.centres(everything(target))))
        worst.append((off[:6].max(), off[6:].max(), np.sqrt((off**2).mean())))
    coarse, fine = worst
    assert fine[0] < 1.5 * fine[1]  # no imprint
    assert np.log2(coarse[2] / fine[2]) / 2 > 1.7


def test_a_point_of_the_source_keeps_its_value():
    for source in (cube(5), scattered(300), lattice(6), PLANES["cells"], PLANES["points"]):
        target = source.centres(everything(source))
        target = regrid.PointCloud(degrees(target) if source.sphere else target, sphere=source.sphere)
        weights = regrid.weights(source, target, "bilinear")
        assert np.array_equal(weights.matrix.toarray(), np.eye(len(weights.sources))[: source.size])


def test_where_sources_are_masked_the_rest_around_a_corner_counts():
    source = regrid.Cells(regrid.Plane(3, 3).corners(np.arange(9)), sphere=False)
    target = regrid.PointCloud([[0.3, 0.3], [0.45, 0.45], [0.7, 0.7], [0.1, 0.5]], sphere=False)
    weights = regrid.weights(source, target, "bilinear", given=np.arange(8))
    assert weights.uncovered.tolist() == [2, 3]  # beyond the line between two of three, and their middles
    assert regrid.weights(source, target, "bilinear", given=[0, 1]).columns == 0


@pytest.mark.parametrize("sphere", [True, False])
def test_few_points_or_points_on_a_line_cover_what_they_can(sphere):
    target = regrid.PointCloud([[5.0, 5.0], [40.0, 40.0]], sphere=sphere)
    for some, count in (
        ([[0, 0]], 0),
        ([[0, 0], [9, 0], [18, 0], [27, 0]], 0),
        ([[0, 0], [20, 0], [0, 20]], 1),
    ):
        weights = regrid.weights(regrid.PointCloud(some, sphere=sphere), target, "bilinear")
        assert len(weights.rows) == count


def without(source, low, high):
    """Indices of the points of source beside a strip, as if the strip were land."""
    x = source.centres(everything(source))[:, 0]
    return np.flatnonzero((x < low) | (x > high))


@pytest.mark.parametrize(
    "target", [regrid.LatLon(9, 18), regrid.ReducedGaussian(8), regrid.Healpix(4), cube(5)]
)
def test_what_one_mapping_leaves_uncovered_the_next_one_takes(target):
    source = regrid.LatLon(16, 32)
    sea = without(source, -0.3, 2)
    x = smooth(source.centres(everything(source)))
    first = regrid.weights(source, target, "bilinear", given=sea)
    assert 0 < len(first.uncovered) < target.size
    plain = first.apply(x[first.sources])
    for then in ("nearest", "creep"):
        weights = regrid.weights(source, target, ["bilinear", then], given=sea)
        made = weights.apply(x[weights.sources])
        assert np.array_equal(made[first.rows], plain[first.rows])
        assert not len(weights.uncovered)
        assert np.abs(weights.apply(np.ones(weights.columns)) - 1).max() < 1e-14
        assert x[sea].min() <= made.min() <= made.max() <= x[sea].max()
        part = np.arange(0, target.size, 3)
        some = regrid.weights(source, target, ["bilinear", then], given=sea, points=part)
        assert np.array_equal(some.apply(x[some.sources]), made[part])
    near = regrid.weights(source, target, "nearest", given=sea)
    second = regrid.weights(source, target, ["bilinear", "nearest"], given=sea)
    assert np.array_equal(
        second.apply(x[second.sources])[first.uncovered], near.apply(x[near.sources])[first.uncovered]
    )
    filled = regrid.weights(source, target, ["bilinear", -7.0], given=sea).apply(x[first.sources])
    assert np.array_equal(filled, np.where(first.fraction > 0, plain, -7.0))


def test_creeping_takes_the_mean_of_neighbours_step_by_step():
    source, target = regrid.Plane(2, 1, (0, 2, 0, 1)), regrid.Plane(5, 1, (0, 5, 0, 1))
    weights = regrid.weights(source, target, ["conservative", "creep"])
    assert weights.apply(np.array([1.0, 3.0])[weights.sources]).tolist() == [1.0, 3.0, 3.0, 3.0, 3.0]
    rows = regrid.Plane(5, 1, (0, 5, 0, 1))
    middle = regrid.weights(rows, target, ["conservative", "creep"], given=[0, 4])
    assert middle.apply(np.array([1.0, 4.0])).tolist() == [1.0, 1.0, 2.5, 4.0, 4.0]
    alone = regrid.weights(rows, regrid.Plane(2, 1, (7, 9, 0, 1)), ["conservative", "creep", 5])
    assert alone.apply(np.zeros(alone.columns)).tolist() == [5.0, 5.0]  # nobody has a value


@pytest.mark.parametrize("radius", [0.0, 15.0])
def test_amounts_go_to_the_nearest_target_whole(radius):
    """Of rivers: land gets nothing, and the sums are the same."""
    rivers, sea = regrid.LatLon(9, 18), regrid.Gaussian(16, 32)
    x, y = (grid.centres(np.arange(grid.size)) for grid in (rivers, sea))
    ocean = np.flatnonzero(y[:, 0] + y[:, 2] < 0.2)
    weights = regrid.weights(rivers, sea, "to_nearest", points=ocean, radius=radius)
    amounts = np.random.default_rng(1).random(rivers.size)
    got = weights.apply(amounts[weights.sources])
    apart = np.round(np.linalg.norm(x[:, None] - y[None, ocean], axis=2), 12)
    near = y[ocean][apart.argmin(axis=1)]
    within = np.linalg.norm(near[:, None] - y[None, ocean], axis=2) <= 2 * np.sin(np.radians(radius) / 2)
    assert within.sum(axis=1).max() > 1 or not radius
    np.testing.assert_allclose(got, (within / within.sum(axis=1, keepdims=True)).T @ amounts, rtol=1e-14)
    assert abs(got.sum() / amounts.sum() - 1) < 1e-15
    assert list(weights.uncovered) == list(np.flatnonzero(~within.any(axis=0)))


def test_of_many_that_are_equally_near_the_first_one_is_taken():
    """Around a pole: more than a search for the nearest few can hold."""
    poles, rows = regrid.PointCloud([[0, 90], [0, -90]]), regrid.LatLon(18, 72)
    assert list(regrid.weights(rows, poles, "nearest").sources) == [0, 17 * 72]
    assert list(regrid.weights(rows, poles, "idw").sources[:4]) == [0, 1, 2, 3]
    assert list(regrid.weights(poles, rows, "to_nearest").rows) == [0, 17 * 72]


@pytest.mark.parametrize("radius", [-1.0, np.nan, "1", True])
def test_a_radius_that_is_none_is_refused(radius):
    with pytest.raises(hpcomm.ConfigError, match="and no number from 0"):
        regrid.weights(regrid.LatLon(2, 4), regrid.LatLon(2, 4), "to_nearest", radius=radius)


def wind(x):
    """To the east and to the north: it blows over both poles, as strongly as elsewhere."""
    blows = np.cross([1.0, 0.3, 0.2], x) * (1 + x[:, [0]] * x[:, [2]])
    return vectors.on_sphere(blows, x)


@pytest.mark.parametrize("source", [regrid.LatLon, lambda n, m: regrid.Healpix(n // 4)])
def test_vectors_are_mapped_over_a_pole_as_elsewhere(source):
    """Where components one by one are off fifty times as much."""
    worst = []
    for n in (44, 88):
        grid, target = source(n, 2 * n), regrid.LatLon(n + 7, 2 * n + 14)
        weights, y = regrid.weights(grid, target, "bilinear"), target.centres(everything(target))
        x = grid.centres(weights.sources)
        got = vectors.on_sphere(weights.apply(vectors.in_space(wind(x), x)), y)
        off, at_pole = np.abs(got - wind(y)).max(axis=1), np.abs(y[:, 2]) > np.cos(np.radians(6))
        worst.append(off.max())
        assert off[at_pole].max() < off[~at_pole].max()
        assert np.abs(weights.apply(wind(x)) - wind(y))[at_pole].max() > 50 * off[at_pole].max()
    assert worst[1] < 0.28 * worst[0] < 0.003


@pytest.mark.parametrize("shape", [(), (3,)])
def test_components_have_the_directions_that_bases_say(shape):
    x = RNG.normal(size=(40, 3))
    x /= np.sqrt((x * x).sum(axis=1))[:, None]
    angles, blows = RNG.uniform(-400, 400, 40), RNG.normal(size=(40, 2, *shape))
    axes = vectors.checked_bases(angles, 40, "bases", "gives")
    assert np.allclose(axes[:, 0], np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], 1))
    assert np.allclose(axes[:, 1], np.stack([-axes[:, 0, 1], axes[:, 0, 0]], axis=1))
    oblique = np.stack([axes[:, 0], (axes[:, 0] + axes[:, 1]) / np.sqrt(2)], axis=1)
    for each in (axes, vectors.checked_bases(oblique, 40, "bases", "gives")):
        space = sum(
            blows[:, [i]] * vectors.in_space(each[:, i].reshape(40, 2, *[1] * len(shape)), x) for i in (0, 1)
        )
        assert np.allclose(vectors.in_space(blows, x, each), space, atol=1e-14)
        assert np.allclose(vectors.on_sphere(space, x, each), blows, atol=1e-13)


@pytest.mark.parametrize(
    ("bases", "words"),
    {
        "length": (np.zeros(3), "no angles or vectors for 2 points"),
        "nan": ([0.0, np.nan], "no angles or vectors"),
        "words": (["east", "north"], "no angles or vectors"),
        "not unit": ([[[2.0, 0.0], [0.0, 1.0]]] * 2, "not two unit vectors at each point"),
        "one line": (
            [[[1.0, 0.0], [-1.0, 0.0]]] * 2,
            "not two unit vectors at each point, in two directions",
        ),
        "masked": (np.ma.array([0.0, 1.0], mask=[False, True]), "a masked array"),
    }.values(),
)
def test_bases_that_are_none_are_refused(bases, words):
    with pytest.raises(hpcomm.HpcommError, match=words):
        vectors.checked_bases(bases, 2, "the bases of field 'wind'", "gives")
