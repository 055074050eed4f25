"""Cells of any shape: bent, crossing, over each other, long and graded ones; and planes of any unit."""

from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("scipy")
from hpcomm import regrid
from hpcomm.errors import ConfigError, LayoutError
from hpcomm.grids.geometry import moments
from hpcomm.grids.triangulation import convex_parts


def boxes(x, y):
    return np.array([[[a, c], [b, c], [b, d], [a, d]] for c, d in pairwise(y) for a, b in pairwise(x)])


def shaken(x, y, share, seed=0):
    """Boxes whose inner corners are moved by a share of their size."""
    places = np.stack(np.meshgrid(x, y, indexing="xy"), -1)
    size = np.stack(np.meshgrid(np.gradient(x), np.gradient(y), indexing="xy"), -1)
    move = np.random.default_rng(seed).uniform(-share, share, places.shape) * size
    places[1:-1, 1:-1] += move[1:-1, 1:-1]
    around = places[:-1, :-1], places[:-1, 1:], places[1:, 1:], places[1:, :-1]
    return np.stack(around, axis=2).reshape(-1, 4, 2)


def bent():
    """The unit square out of an L, a hook, and the box between them; each with repeated last corners."""
    hook = [[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.5], [0.1, 0.5], [0.1, 0.9], [0.9, 0.9]]
    hook += [[0.9, 0.1], [0.5, 0.1]]
    elbow = [[0.0, 0.0], [0.5, 0.0], [0.5, 0.3], [0.3, 0.3], [0.3, 0.5], [0.0, 0.5]]
    rest = [[0.5, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9], [0.1, 0.5], [0.3, 0.5], [0.3, 0.3], [0.5, 0.3]]
    return np.array([cell + [cell[-1]] * (10 - len(cell)) for cell in (hook, elbow, rest)])


PLANE = regrid.Plane(7, 9)
EVEN = np.linspace(0, 1, 6), np.linspace(0, 1, 6)
ONTO = {
    "plane": (regrid.Cells(bent(), sphere=False), PLANE),
    "cells": (regrid.Cells(bent(), sphere=False), regrid.Cells(shaken(*EVEN, 0.2), sphere=False)),
    "sphere": (regrid.Cells(bent() * [50, 40] + [10, 20]), regrid.LatLon(36, 72)),
}  # fmt: skip


@pytest.mark.parametrize("mapping", ["conservative", "conservative2"])
@pytest.mark.parametrize("onto", ONTO)
def test_bent_cells_keep_their_integral(onto, mapping):
    source, target = ONTO[onto]
    values = np.array([1.0, -2.0, 5.0])
    with pytest.warns(RuntimeWarning, match="cells 1 and 2 .* 1.03") if onto == "sphere" else nullcontext():
        weights = regrid.weights(source, target, mapping)
    area = target.areas(np.arange(target.size)) * weights.fraction
    before = moments(source.corners(np.arange(3)))[0] @ values
    assert abs(area @ weights.apply(values[weights.sources]) - before) < 1e-12
    assert onto == "sphere" or np.allclose(weights.fraction, 1, atol=1e-11)


def test_bent_cells_take_what_lies_in_them():
    source, target = PLANE, regrid.Cells(bent(), sphere=False)
    weights = regrid.weights(source, target, "conservative")
    assert np.allclose(weights.fraction, 1, atol=1e-11)
    assert (weights.matrix.data > 0).all()
    x = source.centres(np.arange(63))[weights.sources]
    area, moment = moments(target.corners(np.arange(3)))
    assert np.allclose(weights.apply(x), moment / area[:, None], atol=0.05)


def test_triangles_of_a_cell_do_not_depend_on_where_it_begins():
    for turn in range(10):
        parts, owner = convex_parts(np.roll(bent()[:1], turn, axis=1))
        area = moments(parts)[0]
        assert area.min() >= 0
        assert area.sum() == pytest.approx(moments(bent()[:1])[0][0], rel=1e-14)
        assert set(owner) == {0}
    tiny = np.array([[[1, -1e-9, -1e-9], [1, 1e-9, -1e-9], [1, 1e-9, 1e-9], [1, -1e-9, 1e-9]]])
    assert moments(tiny)[0] == pytest.approx(4e-18, rel=1e-12)  # on the sphere; small ones are as exact


@pytest.mark.parametrize("sphere", [True, False])
def test_cells_whose_edges_cross_are_refused_by_number(sphere):
    box = boxes([0, 1], [0, 1])[0]
    bow = np.array([[0, 0], [3, 0], [1, 2], [1, -1.0]])
    with pytest.raises(LayoutError, match="edges of 1 cells cross each other; the first is 1"):
        regrid.Cells([box, bow], sphere=sphere)


DOUBLED = boxes(np.arange(0, 370, 10.0), np.arange(-90, 100, 10.0)).reshape(18, 36, 4, 2)
DOUBLED = np.concatenate([DOUBLED, DOUBLED[:, :2] + [360, 0]], axis=1)  # two columns once more: a halo


@pytest.mark.parametrize("mapping", ["conservative", "conservative2"])
@pytest.mark.parametrize("points", [(9, 18), (36, 72), (2, 4)])
def test_cells_over_each_other_are_refused_unless_masked(points, mapping):
    source, target = regrid.Cells(DOUBLED.reshape(-1, 4, 2)), regrid.LatLon(*points)
    words = r"cells 0 and 36 that are given lie over each other, the first of 72\n.*\n.*halo columns"
    with pytest.raises(LayoutError, match=words):
        regrid.weights(source, target, mapping)
    with pytest.raises(LayoutError, match=r"cells 0 and 1 .* the first of 2"):
        regrid.weights(regrid.Cells(DOUBLED[0, [0, 36]]), target, mapping)
    once = np.flatnonzero(np.arange(18 * 38) % 38 < 36)
    weights = regrid.weights(source, target, mapping, given=once)
    assert np.allclose(weights.fraction, 1, atol=0.01)


@pytest.mark.parametrize("sphere", [True, False])
def test_cells_that_overlap_a_little_are_told_with_the_point_that_most_of_it_is_in(sphere):
    """A row of ten cells, of which the fifth goes 3 % of its width into the sixth."""
    row = boxes(np.arange(11.0), [-0.5, 0.5])
    row[4, 1:3, 0] += 0.03
    target = regrid.Cells(boxes(np.arange(0.0, 12.0, 2), [-0.5, 0.5]), sphere=sphere)
    words = r"cells 4 and 5 that are given lie over each other: point 2 is covered 1.01"
    with pytest.warns(RuntimeWarning, match=words) as told:
        weights = regrid.weights(regrid.Cells(row, sphere=sphere), target, "conservative")
    assert told[0].filename == __file__
    assert weights.overlap
    assert weights.fraction[2] == pytest.approx(1.015, rel=1e-4)
    row[4, 1:3, 0] += 0.2
    with pytest.raises(LayoutError, match=r"cells 4 and 5 .* point 2 is covered 1.11"):
        regrid.weights(regrid.Cells(row, sphere=sphere), target, "conservative")


def test_halo_columns_and_the_fold_of_a_tripolar_grid_are_found():
    """As ORCA has them: the first columns are the last ones again, and the last row is another one turned."""
    ny, nx = 12, 20
    lon, lat = np.meshgrid(np.arange(nx + 1) * 360 / nx, np.linspace(-90, 90, ny + 1))
    around = [(j, i) for j, i in ((0, 0), (0, 1), (1, 1), (1, 0))]
    cells = np.stack([np.stack([x[j : ny + j, i : nx + i] for x in (lon, lat)], -1) for j, i in around], 2)
    wide = np.concatenate([cells[:, -2:] - [360, 0], cells], axis=1)
    wide = np.concatenate([wide, wide[-1:, ::-1]])
    number = np.arange(wide[..., 0, 0].size).reshape(wide.shape[:2])
    grid = regrid.Cells(wide.reshape(-1, 4, 2))
    copied = grid.copies()
    assert np.array_equal(copied, np.sort([*number[:-1, -2:].ravel(), *number[-1]]))
    own = np.setdiff1d(number.ravel(), copied)
    rest = grid.part(own)
    assert not len(rest.copies())
    assert rest.areas(own).sum() == pytest.approx(4 * np.pi, rel=1e-13)
    assert not len(regrid.Cells(np.empty((0, 4, 2))).copies())


def test_edges_half_round_the_sphere_are_refused():
    for pair in (
        (regrid.LatLon(4, 2), regrid.Cells(DOUBLED[:, 0])),
        (regrid.Cells(DOUBLED[:, 0]), regrid.LatLon(4, 1)),
    ):
        with pytest.raises(ConfigError, match="one or two columns"):
            regrid.weights(*pair, "conservative")


def test_points_that_nothing_reaches_are_named():
    some = np.arange(18 * 36)[100:]
    source = regrid.LatLon(18, 36)
    assert regrid.weights(source, source, "conservative", given=some).uncovered.tolist() == list(range(100))
    assert not len(regrid.weights(source, source, "nearest", given=some).uncovered)


def test_bilinear_goes_no_farther_than_the_plane():
    target = regrid.PointCloud([[0.5, 0.5], [0.0, 1.0], [1.1, 0.5], [0.5, -3.0]], sphere=False)
    assert regrid.weights(PLANE, target, "bilinear").uncovered.tolist() == [2, 3]


def growing(n, ratio):
    steps = ratio ** np.arange(n)
    return np.concatenate([[0], np.cumsum(steps)]) / steps.sum()


def even(n):
    return np.linspace(0, 1, n + 1)


HARD = {
    "long": shaken(even(6), even(60), 0.3),
    "very long": shaken(even(4), even(160), 0.2),
    "graded": shaken(growing(10, 2.0), growing(20, 1.3), 0.1),
    "long triangles": shaken(even(6), even(60), 0.2)[:, [0, 1, 2, 2, 3, 0]].reshape(-1, 3, 2),
    "one column": boxes(even(1), even(40)),
}


def on_sphere(cells):
    """Some degrees of it."""
    return regrid.Cells(cells * [6, 5] + [10, 20])


@pytest.mark.parametrize("kind", HARD)
def test_gradients_of_long_and_graded_cells_are_limited_and_better_than_none(kind):
    for source, target in (
        (regrid.Cells(HARD[kind], sphere=False), regrid.Plane(23, 17)),
        (on_sphere(HARD[kind]), on_sphere(boxes(even(23), even(17)))),
    ):
        first, second = (regrid.weights(source, target, m) for m in ("conservative", "conservative2"))
        assert abs(second.matrix).sum(axis=1).max() <= 3 + 1e-9
        covered = first.fraction > 0.99
        x, where = source.centres(np.arange(source.size)), target.centres(np.arange(target.size))
        smooth = [
            lambda x: 2 + np.exp(x[:, 0] - 0.3 * x[:, 1]) + np.sin(3 * x[:, 1]) * x[:, 0],
            lambda x: x[:, 1],
        ]
        for function in smooth:
            off = [(w.apply(function(x)[w.sources]) - function(where))[covered] for w in (first, second)]
            assert np.linalg.norm(off[1]) <= np.linalg.norm(off[0]) * (1 + 1e-3)


def test_gradients_do_not_depend_on_the_shape_of_cells():
    """What is stretched and sheared has the weights of what is not."""
    cells = shaken(even(8), even(8), 0.2)
    shear = np.array([[40.0, 3.0], [0.0, 0.5]])
    made = [
        regrid.weights(regrid.Cells(a, sphere=False), regrid.Cells(b, sphere=False), "conservative2").matrix
        for a, b in ((cells, boxes(even(5), even(5))), (cells @ shear, boxes(even(5), even(5)) @ shear))
    ]
    assert abs(made[0] - made[1]).max() < 1e-11
    cell, neighbour = regrid.Plane(5, 5).around(np.arange(25))
    assert neighbour[cell == 12].tolist() == [7, 11, 13, 17]
    assert neighbour[cell == 4].tolist() == [3, 8, 9]


@pytest.mark.parametrize("unit", [1e-9, 1e6])
@pytest.mark.parametrize("mapping", [each for each in regrid.MAPPINGS if each != "projection"])
def test_planes_may_be_in_any_unit(mapping, unit):
    target = shaken(even(6), even(5), 0.2)
    for make in (
        lambda u: regrid.Cells(target * u, sphere=False),
        lambda u: regrid.Plane(6, 5, (0, u, 0, u)),
    ):
        made = [regrid.weights(regrid.Plane(4, 5, (0, u, 0, u)), make(u), mapping) for u in (1.0, unit)]
        assert abs(made[0].matrix - made[1].matrix).max() < 1e-9
        assert np.allclose(made[0].fraction, made[1].fraction, rtol=1e-9)
