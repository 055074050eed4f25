"""Every mapping between every two kinds of grids, and the table of them in docs/grids.md."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy")
import hpcomm
from hpcomm import regrid
from hpcomm.grids.methods import AMOUNTS, KINDS, MAPPINGS, misfit

PAGE = Path(__file__).parents[2] / "docs/grids.md"
RNG = np.random.default_rng(7)
SURFACES = ("sphere", "plane", "space")
METHODS = (*MAPPINGS, *AMOUNTS)
_LAT = np.degrees(np.arcsin(1 / np.sqrt(3)))  # of the corners of a cube
_SIDE = [
    [[lon - 45, -_LAT], [lon + 45, -_LAT], [lon + 45, _LAT], [lon - 45, _LAT]] for lon in range(0, 360, 90)
]
_ENDS = [[[lon, lat] for lon in range(45, 360, 90)] for lat in (_LAT, -_LAT)]
_X = RNG.normal(size=(30, 3))
_SQUARE = [[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]]
_FOUR = [[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]]
_EIGHT = [[a, b, c] for a in (0, 1) for b in (2, 3) for c in (4, 5)]
_CORNERS = [[0, 0], [180, 0], [90, 0], [270, 0], [0, 90], [0, -90]]
GRIDS = {
    ("latlon", "sphere"): regrid.LatLon(6, 12),
    ("gaussian", "sphere"): regrid.Gaussian(8, 14),
    ("reduced_gaussian", "sphere"): regrid.ReducedGaussian(3),
    ("healpix", "sphere"): regrid.Healpix(2),
    ("points", "sphere"): regrid.PointCloud(
        np.degrees(
            np.stack([np.arctan2(_X[:, 1], _X[:, 0]), np.arctan2(_X[:, 2], np.hypot(_X[:, 0], _X[:, 1]))], 1)
        )
    ),
    ("mesh", "sphere"): regrid.Mesh(_CORNERS, _EIGHT),
    ("cells", "sphere"): regrid.Cells(_SIDE + _ENDS),
    ("plane", "plane"): regrid.Plane(4, 5),
    ("points", "plane"): regrid.PointCloud(RNG.random((20, 2)), sphere=False),
    ("mesh", "plane"): regrid.Mesh(_SQUARE, _FOUR, sphere=False),
    ("cells", "plane"): regrid.Cells(
        [[[x, y], [x + 0.5, y], [x + 0.5, y + 0.5], [x, y + 0.5]] for x in (0, 0.5) for y in (0, 0.5)],
        sphere=False,
    ),
    ("points", "space"): regrid.PointCloud(RNG.random((20, 3)), sphere=False),
    ("mesh", "space"): regrid.Mesh(
        [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 1, 2], [1, 2, 3]], sphere=False
    ),
}
PAIRS = [(one, other) for one in GRIDS for other in GRIDS]


@pytest.mark.parametrize("method", METHODS)
def test_constants_stay_and_amounts_are_kept_between_all_kinds(method):
    went = 0
    for one, other in PAIRS:
        source, target = GRIDS[one], GRIDS[other]
        assert (source.kind, source.surface) == one
        if misfit(method, one, other) is not None:
            with pytest.raises(hpcomm.HpcommError):
                regrid.weights(source, target, method)
            continue
        more = {"radius": 90.0} if method == "to_nearest" else {}
        weights = regrid.weights(
            source, target, [method] if method in AMOUNTS else [method, "nearest"], **more
        )
        given = np.ones(len(weights.sources))
        if method in AMOUNTS:
            assert weights.apply(given).sum() == pytest.approx(len(given), rel=1e-13), (one, other)
        else:
            assert np.allclose(weights.apply(given), 1, rtol=0, atol=1e-14), (one, other)
        went += 1
    assert went


def row(method: str) -> str:
    """What the table says of a mapping."""
    goes = [(one, other) for one in GRIDS for other in GRIDS if misfit(method, one, other) is None]
    sides = []
    for side in zip(*goes, strict=True):
        kinds = {kind for kind, _ in side}
        has = {KINDS[kind].has for kind in kinds}
        assert kinds == {kind for kind, each in KINDS.items() if each.has in has}
        sides.append("any grid" if len(has) > 1 else {"cells": "cells", "mesh": "`Mesh`"}[has.pop()])
    surfaces = [each for each in SURFACES if any(each in (one[1], other[1]) for one, other in goes)]
    return f"| `{method}` | {sides[0]} | {sides[1]} | {', '.join(surfaces)} |"


def test_the_table_of_the_docs_has_what_goes():
    text = PAGE.read_text()
    assert [row(method) for method in METHODS if row(method) not in text] == []
