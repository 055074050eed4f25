"""Overlaps of polygons in C: a program of its own under sanitizers and at each level, and beside numpy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcomm import regrid
from hpcomm.grids import geometry, triangulation

HERE = Path(__file__).parent
CLIP = HERE.parents[1] / "hpcomm/grids/_native"
FLAGS = ["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
SANITIZERS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]

pytestmark = pytest.mark.once


@pytest.mark.parametrize("level", [["-O0"], SANITIZERS, ["-O2"], ["-O3"]], ids=lambda level: level[0])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_overlaps_make_up_the_whole_and_are_the_same_either_way(
    tmp_path: Path, compiler: str, level: list[str]
) -> None:
    if not shutil.which(compiler) or (compiler == "clang" and level == SANITIZERS):
        pytest.skip(f"there is no {compiler}, or not its sanitizers")
    program = str(tmp_path / "clip")
    sources = [str(HERE / "clip.c"), str(CLIP / "clip.c")]
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


@pytest.mark.parametrize("sphere", [False, True])
def test_c_and_numpy_find_the_same_overlaps(sphere: bool) -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    chance = np.random.default_rng(7)
    ours, others = polygons(chance, 60, sphere), polygons(chance, 50, sphere)
    a, b = (each.ravel() for each in np.meshgrid(np.arange(60), np.arange(50), indexing="ij"))
    area, moment = np.empty(3000), np.empty((3000, ours.shape[2]))
    native.overlaps(ours, others, a, b, area, moment)
    wanted = geometry.moments(geometry.clipped(ours[a], others[b]))
    assert (area > 1e-3).sum() > 1000
    np.testing.assert_allclose(area, wanted[0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(moment, wanted[1], rtol=0, atol=1e-15)


def test_c_and_numpy_find_the_same_parts_in_rectangles() -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    ours, grid = polygons(np.random.default_rng(7), 60, True), regrid.LatLon(12, 24)
    bounds = grid.bounds(np.arange(grid.size))
    a, b = (each.ravel() for each in np.meshgrid(np.arange(60), np.arange(grid.size), indexing="ij"))
    area, moment = np.empty(len(a)), np.empty((len(a), 3))
    native.within(ours, bounds, a, b, area, moment)
    wanted = geometry.within_rectangles(ours[a], *bounds[b].T)
    assert (area > 1e-3).sum() > 500
    np.testing.assert_allclose(area, wanted[0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(moment, wanted[1], rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match="a rectangle has 4 bounds"):
        native.within(ours, bounds[:, :3].copy(), a, b, area, moment)
    with pytest.raises(ValueError, match="no polygon of such an index"):
        native.within(ours, bounds[:5].copy(), a, b, area, moment)


def test_weights_are_the_same_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hpcomm.grids._native.geometry")
    cells = np.array(
        [[[i, j], [i + 9, j], [i + 9, j + 9], [i, j + 9]] for i in range(0, 90, 9) for j in (0, 9)]
    )
    grids = regrid.Cells(cells), regrid.LatLon(30, 60)
    made = regrid.weights(*grids, "conservative2").matrix
    monkeypatch.setattr(triangulation, "_native", None)
    assert abs(made - regrid.weights(*grids, "conservative2").matrix).max() < 1e-10


def test_wrong_arguments_are_refused() -> None:
    native = pytest.importorskip("hpcomm.grids._native.geometry")
    ours, one = np.zeros((2, 3, 3)), np.zeros(1, np.int64)
    area, moment = np.zeros(1), np.zeros((1, 3))
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    good = (ours, ours, one, one, area, moment)
    native.overlaps(*good)
    for at, wrong, error in (
        (0, ours[:, :, ::2], (BufferError, ValueError)),
        (0, ours.astype(np.float32), TypeError),
        (0, ours[0], TypeError),
        (0, np.zeros((2, 3, 2)), ValueError),
        (1, np.zeros((2, 0, 3)), ValueError),
        (2, one + 2, ValueError),
        (3, one - 1, ValueError),
        (3, np.zeros(2, np.int64), ValueError),
        (4, np.zeros(2), ValueError),
        (4, read_only, (BufferError, ValueError)),
        (5, np.zeros((1, 2)), ValueError),
        (5, "no array", TypeError),
    ):
        with pytest.raises(error):  # type: ignore[call-overload]
            native.overlaps(*good[:at], wrong, *good[at + 1 :])
