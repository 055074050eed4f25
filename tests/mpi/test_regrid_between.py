"""Weights between grids whose points are spread over the ranks of two programs are those of one process."""

import numpy as np
import pytest

pytest.importorskip("scipy")
from scipy.spatial import Delaunay

from hpcomm import regrid
from hpcomm.errors import LayoutError
from hpcomm.grids import remap
from hpcomm.grids.methods import misfit
from hpcomm.mpmd.coupled_field import Field
from hpcomm.mpmd.coupling.fixer import Fixer
from hpcomm.mpmd.coupling.wire import Part


def boxes(x0, x1, nx, y0, y1, ny):
    x, y = np.linspace(x0, x1, nx + 1), np.linspace(y0, y1, ny + 1)
    around = ((0, 0), (1, 0), (1, 1), (0, 1))
    return np.array([[[x[i + a], y[j + b]] for a, b in around] for j in range(ny) for i in range(nx)])


def grids(n, points):
    """One of every kind, on the sphere and on a plane."""
    return [
        regrid.LatLon(n, 2 * n),
        regrid.Gaussian(n, 2 * n),
        regrid.ReducedGaussian(n // 2, rows=4 * np.arange(1, n // 2 + 1)),
        regrid.Healpix(n // 2),
        regrid.Cells(boxes(0, 360, 2 * n, -90, 90, n)),
        regrid.PointCloud(points * [360, 180] - [0, 90]),
        regrid.Plane(n, n + 1),
        regrid.Cells(boxes(0, 1, n, 0, 1, n), sphere=False),
        regrid.PointCloud(points, sphere=False),
        regrid.PointCloud(np.column_stack([points, np.sin(points[:, 0])]), sphere=False),
        regrid.Mesh(points, Delaunay(points).simplices, sphere=False),
    ]


def share(grid, points, rank):
    """A rank's part, whose cells have another number of vertices than those of the next rank."""
    part = grid.part(points) if grid.is_own else grid
    if rank % 2 and isinstance(part, regrid.Cells):
        return regrid.Cells(
            np.concatenate([part.vertices, part.vertices[:, -1:]], axis=1), sphere=part.sphere
        )
    return part


def smooth(grid):
    x = grid.centres(np.arange(grid.size))
    return 2 + x[:, 0] * x[:, 1] + x[:, -1]


SCATTER = np.random.default_rng(2).random((60, 2))
CASES = [
    (source, target, mapping)
    for source in grids(6, SCATTER)
    for target in grids(5, SCATTER[::-1] ** 1.1)
    for mapping in regrid.MAPPINGS
    if not misfit(mapping, (source.kind, source.surface), (target.kind, target.surface))
]


@pytest.mark.once
def test_between_programs_every_pair_of_grids_is_mapped_as_in_one_process(comm):
    """The first half of the ranks gives, the others take."""
    givers = max(1, comm.size // 2)
    gives = comm.rank < givers
    assert len(CASES) == 273
    wrong = []
    for source, target, mapping in CASES if comm.size == 3 else ():
        grid, first, count = (source, 0, givers) if gives else (target, givers, comm.size - givers)
        own = np.random.default_rng(3).permutation(grid.size)
        own = np.sort(np.array_split(own, count)[comm.rank - first])
        part = share(grid, own, comm.rank)
        found = regrid.weights_between(comm.mpi, part, own, gives, mapping, 4)
        if not gives:
            alone = regrid.weights(source, target, mapping, points=own)
            values = smooth(source)
            off = found.apply(values[found.sources]) - alone.apply(values[alone.sources])
            most = 0.0 if mapping in ("bilinear", "rbf", "projection") else 1e-12
            if not (np.abs(off).max() <= most and np.allclose(found.fraction, alone.fraction, atol=1e-12)):
                wrong.append((source.kind, target.kind, mapping, np.abs(off).max()))
    assert not wrong


@pytest.mark.once
def test_what_takers_alone_cannot_see_is_as_in_one_process(comm):
    """To which of all ranks' targets an amount goes, with ties and a radius; and neighbours that are far."""
    if comm.size < 2:
        return
    target = regrid.LatLon(12, 24)
    ocean = np.flatnonzero(target.centres(np.arange(target.size))[:, 0] < 0.5)
    coarse, fine, all_ = regrid.LatLon(6, 12), regrid.LatLon(36, 72), np.arange(6 * 12)
    few, there = np.array([0, 20, 40, 60, 31 * 72 + 10]), np.arange(240, 246)  # only one of them is near
    cases = [
        (coarse, "to_nearest", 0.0, all_, ocean),
        (coarse, "to_nearest", 20.0, all_, ocean),
        (coarse, "to_rbf", 0.0, all_, ocean),
        (fine, "idw", 0.0, few, there),
    ]
    for source, mapping, radius, given, taken in cases:
        for givers in range(1, comm.size):
            gives = comm.rank < givers
            mine = given if gives else taken
            count, nth = (givers, comm.rank) if gives else (comm.size - givers, comm.rank - givers)
            own = np.array_split(np.random.default_rng(4).permutation(mine), count)[nth]
            grid = source if gives else target
            found = regrid.weights_between(comm.mpi, grid, own, gives, mapping, 4, radius=radius)
            alone = regrid.weights(source, target, mapping, given=given, points=taken, radius=radius)
            if found is not None:
                values = smooth(source)
                got, wanted = (each.apply(values[each.sources]) for each in (found, alone))
                assert np.array_equal(got, wanted[np.searchsorted(taken, own)])


@pytest.mark.once
def test_a_rank_that_takes_nothing_does_not_make_the_others_look_farther(comm, monkeypatch):
    if comm.size != 3:
        return
    rounds, near = [], remap._nearby
    monkeypatch.setattr(remap, "_nearby", lambda *args: rounds.append(args) or near(*args))
    grid = regrid.LatLon(12, 24)
    own = np.arange(grid.size if comm.rank < 2 else 0)
    regrid.weights_between(comm.mpi, grid, own, comm.rank == 0, "nearest")
    assert len(rounds) == 1


def test_cells_over_each_other_are_refused_on_every_rank_of_both_programs(comm):
    if comm.size < 2:
        return
    gives = comm.rank == 0
    twice = boxes(0, 360, 12, -90, 90, 6)
    source = regrid.Cells(np.concatenate([twice, twice[:3]]))
    grid = source if gives else regrid.LatLon(5, 10)
    own = np.arange(grid.size) if gives else np.array_split(np.arange(50), comm.size - 1)[comm.rank - 1]
    with pytest.raises(LayoutError, match="cells 0 and 72 that are given lie over each other"):
        regrid.weights_between(comm.mpi, grid, own, gives, "conservative", 4)


@pytest.mark.once
@pytest.mark.parametrize("how", ["global", "glbpos"])
def test_a_fixer_sets_integrals_of_each_number_and_leaves_nan_alone(comm, how):
    """Of complex pairs; the second ones add up to nothing, so there glbpos adds, too."""
    area, rng = np.arange(1, 13) / 7, np.random.default_rng(6)
    given, made = (rng.random((12, 2)) + 1j * rng.random((12, 2)) for _ in range(2))
    made[5, 0] = np.nan
    made[:, 1] = 0
    here = np.array_split(np.arange(12), comm.size)[comm.rank]
    field = Field("f", made[here], here, None, "takes")
    fixer = Fixer(how, comm, Part(field, [], made.dtype), area[here], [0])
    fixer.give(given[here])
    got = fixer.fix(made[here])
    before, there = area @ given, ~np.isnan(made)
    after, counted = area @ np.where(there, made, 0), area @ there
    plus, times = made + (before - after) / counted, made * before[0] / after[0]
    expected = plus if how == "global" else np.stack([times[:, 0], plus[:, 1]], 1)
    assert np.isnan(expected).sum() == 1
    assert np.allclose(got, expected[here], rtol=1e-13, equal_nan=True)
