"""Overlaps of polygons in C: a program of its own under sanitizers and at each level, and beside numpy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcomm import regrid
from hpcomm.grids import geometry, interpolate, overlap
from hpcomm.grids.overlap import Parts

HERE = Path(__file__).parent
CLIP = HERE.parents[1] / "hpcomm/grids/_native"
FLAGS = ["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
SANITIZERS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("compiler", "level"),
    [("gcc", ["-O0"]), ("gcc", SANITIZERS), ("gcc", ["-O3"]), ("clang", ["-O3"])],
    ids=["gcc -O0", "sanitizers", "gcc -O3", "clang -O3"],
)
def test_overlaps_make_up_the_whole_and_are_the_same_either_way(
    tmp_path: Path, compiler: str, level: list[str]
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    program = str(tmp_path / "clip")
    sources = [str(HERE / "clip.c"), *(str(CLIP / name) for name in ("clip.c", "search.c"))]
    subprocess.run([compiler, *FLAGS, *level, f"-I{CLIP}", "-o", program, *sources, "-lm"], check=True)
    for seed in ("1", "2"):
        done = subprocess.run([program, seed], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def polygons(chance: np.random.Generator, n: int, sphere: bool) -> Any:
    """(n, 5, 2 or 3) of convex polygons near one place, the last corners of some the same."""
    way = np.sort(chance.random((n, 5)), axis=1) * 2 * np.pi
    way[::3, 4] = way[::3, 3]
    flat = 0.3 * np.stack([np.cos(way), np.sin(way)], axis=2) + 0.3 * chance.random((n, 1, 2))
    if not sphere:
        return flat
    raised = np.concatenate([flat, np.ones((n, 5, 1))], axis=2)
    return raised / np.linalg.norm(raised, axis=2, keepdims=True)


@pytest.mark.parametrize("kind", ["plane", "sphere", "in rectangles", "over polygons"])
def test_c_and_numpy_find_the_same_overlaps(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pytest.importorskip("hpcomm.grids._native.geometry")
    chance = np.random.default_rng(7)
    sphere, grid = kind != "plane", regrid.LatLon(24, 48)
    pair = [Parts(polygons(chance, n, sphere)) for n in (60, 50)]
    cells = np.arange(grid.size)
    if kind in ("in rectangles", "over polygons"):
        pair[1] = Parts.of(grid, cells, grid.corners(cells))
        pair = pair[:: 1 if kind == "in rectangles" else -1]
    found = overlap.overlaps(*pair, True)
    for mine, theirs in zip(overlap.overlaps(*pair)[:3], found, strict=False):
        assert mine.tolist() == theirs.tolist()  # with or without moments
    monkeypatch.setattr(geometry, "native", None)
    wanted = overlap.overlaps(*pair, True)
    assert len(found[0]) > 1000
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-15)


@pytest.mark.parametrize("mapping", ["bilinear", "conservative", "conservative2"])
def test_weights_are_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch, mapping: str) -> None:
    pytest.importorskip("hpcomm.grids._native.geometry")
    cells = np.array(
        [[[i, j], [i + 9, j], [i + 9, j + 9], [i, j + 9]] for i in range(0, 90, 9) for j in (0, 9)]
    )
    bent = np.array([[[0, 30], [20, 30], [20, 50], [10, 35], [0, 50]]])
    cells = regrid.Cells(np.concatenate([np.concatenate([cells, cells[:, -1:]], axis=1), bent]))
    for grids in ((cells, regrid.LatLon(30, 60)), (regrid.LatLon(30, 60), cells)):
        made = regrid.weights(*grids, mapping).matrix
        with monkeypatch.context() as without:
            without.setattr(geometry, "native", None)
            assert abs(made - regrid.weights(*grids, mapping).matrix).max() < 1e-10


@pytest.mark.parametrize("sphere", [False, True])
def test_c_and_numpy_find_the_first_polygon_of_each_point(
    monkeypatch: pytest.MonkeyPatch, sphere: bool
) -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    chance = np.random.default_rng(7)
    corners = polygons(chance, 200, sphere)
    if not sphere:
        corners = np.pad(corners, ((0, 0), (0, 0), (0, 1)), constant_values=4.0)
    inner = np.einsum("kn,mnd->mkd", chance.dirichlet(np.ones(5), 3), corners[::2])
    x = np.concatenate([corners[::3, 0], inner.reshape(-1, 3), np.add(corners[:20, 0], [0.5, 0, 0])])
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if sphere else x
    found = interpolate._located(x, corners, sphere)
    assert 300 < len(found[0]) < len(x)
    assert len(np.frombuffer(native.locate(x[:, None].copy(), corners[:0]), np.int64)) == len(x)
    monkeypatch.setattr(geometry, "native", None)
    for mine, theirs in zip(found, interpolate._located(x, corners, sphere), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_nothing_and_what_is_no_number_overlap_with_nothing() -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    some = polygons(np.random.default_rng(7), 40, True)
    some[::3, 1] = np.nan
    real = np.isfinite(some).all(axis=(1, 2))
    for others in (some[:0], some[~real], np.full((9, 4), np.nan), np.empty((0, 4))):
        assert len(native.overlaps(some, others, True)) == len(native.overlaps(others, some, True)) == 0
    found = np.frombuffer(native.overlaps(some, some, True), np.int64).reshape(-1, 6)
    there = np.flatnonzero(real)
    wanted = np.frombuffer(native.overlaps(some[real], some[real], True), np.int64).reshape(-1, 6)
    assert (found[:, :2] == there[wanted[:, :2]]).all()
    assert (found[:, 2:] == wanted[:, 2:]).all()


def test_wrong_arguments_are_refused() -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    ours, bounds = np.zeros((2, 3, 3)), np.zeros((2, 4))
    native.overlaps(ours, bounds, False)
    for both in (
        (ours, ours[:, :, ::2]),
        (ours.astype(np.float32), ours),
        (ours[0, 0], ours),
        (ours, np.zeros((2, 3, 2))),
        (ours, np.zeros((2, 0, 3))),
        (np.zeros((2, 3, 2)), bounds),
        (ours, bounds[:, :3].copy()),
        (bounds, bounds),
    ):
        with pytest.raises((BufferError, ValueError)):
            native.overlaps(*both, True)
    with pytest.raises(TypeError):
        native.overlaps(ours, "no array", True)
    with pytest.raises(ValueError, match="3 axes"):
        native.moments(bounds)
    for points in (ours, bounds, np.zeros((2, 1, 2))):
        with pytest.raises(ValueError, match="of one corner"):
            native.locate(points, ours)
