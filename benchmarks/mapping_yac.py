"""hpcomm.regrid beside YAC: CPU seconds that weights take, and errors of what they map.

    pip install yac==3.21    # into an environment with hpcomm and Open MPI
    hpcomm run -n 1 python benchmarks/mapping_yac.py [--save] [--only hexagons]
    hpcomm run -n 4 python benchmarks/mapping_yac.py    # 2 ranks that give, 2 that take, without YAC

Without YAC its columns say nan. CPU seconds are the least of several rounds that take turns, of the rank
that takes most; of several ranks only those that take count, since the others wait. On one rank both grids
are on it. Errors are root mean squares at the centres of the target's cells, relative to those of the
function. YAC: https://dkrz-sw.gitlab-pages.dkrz.de/yac/
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mapping import on
from measure import save
from mpi4py import MPI

from hpcomm import regrid
from hpcomm.grids.methods import misfit

try:
    from yac import core as yac
except ImportError:
    yac = None

ROUNDS = 3
WORLD = MPI.COMM_WORLD
MAPPINGS = ("nearest", "bilinear", "conservative", "conservative2")


@dataclass
class Mesh:
    """A grid of both. rows: longitudes and latitudes of the edges, if it has such."""

    grid: Any
    vertices: Any  # longitude and latitude, in radians
    cells: list[Any]  # numbers of vertices
    rows: tuple[Any, Any] | None = None
    has_parallels: bool = False

    def yac(self, name: str) -> Any:
        """A new field of YAC on its cells."""
        if self.rows is not None:
            made = yac.BasicGrid.reg_2d_new(name, self.rows[0][:-1], self.rows[1], cyclic=[True, False])
        else:
            lon, lat = np.ascontiguousarray(self.vertices.T)
            counts, numbers = [len(cell) for cell in self.cells], np.concatenate(self.cells)
            made = yac.BasicGrid.unstruct_new(name, counts, lon, lat, numbers, self.has_parallels)
        x = self.grid.centres(np.arange(self.grid.size))
        places = np.arctan2(x[:, 1], x[:, 0]), np.arcsin(np.clip(x[:, 2], -1, 1))
        return yac.InterpField(made.add_coordinates(yac.yac_location.YAC_LOC_CELL, *places))


def latlon(nlat: int) -> Mesh:
    edges = np.linspace(0, 2 * np.pi, 2 * nlat + 1), np.linspace(-np.pi / 2, np.pi / 2, nlat + 1)
    return Mesh(regrid.LatLon(nlat, 2 * nlat), np.empty((0, 2)), [], edges)


def octahedral(number: int) -> Mesh:
    grid = regrid.ReducedGaussian(number)
    u0, u1, h0, h1 = grid.bounds(np.arange(grid.size)).T
    v0, v1 = np.arcsin(np.clip([h0, h1], -1, 1))
    around = np.stack([(u0, v0), (u1, v0), (u1, v1), (u0, v1)], axis=1).T.reshape(-1, 2)
    return Mesh(grid, around, [*np.arange(4 * grid.size).reshape(-1, 4)], has_parallels=True)


def icosahedron(n: int) -> tuple[Any, Any]:
    """(points of the unit sphere, triangles): its 20 sides divided into n² each."""
    golden = (1 + 5**0.5) / 2
    base = [np.roll((0, a, b * golden), turn) for turn in range(3) for a in (-1, 1) for b in (-1, 1)]
    sides = [s for s in itertools.combinations(base, 3) if abs(np.linalg.det(s)) > 0 and is_side(s)]
    inner = [(i, j) for i in range(n + 1) for j in range(n + 1 - i)]
    number = {ij: k for k, ij in enumerate(inner)}
    up = [[(i, j), (i + 1, j), (i, j + 1)] for i, j in inner if i + j < n]
    down = [[(i + 1, j), (i + 1, j + 1), (i, j + 1)] for i, j in inner if i + j < n - 1]
    local = np.array([[number[ij] for ij in cell] for cell in up + down])
    share = np.array([(i, j, n - i - j) for i, j in inner]) / n
    x = np.concatenate([share @ np.array(side) for side in sides])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    _, first, same = np.unique(np.round(x, 9) + 0.0, axis=0, return_index=True, return_inverse=True)
    return x[first], same.ravel()[np.concatenate([local + k * len(inner) for k in range(20)])]


def is_side(corners: Any) -> bool:
    return all(abs(np.linalg.norm(a - b) - 2) < 1e-9 for a, b in itertools.combinations(corners, 2))


def polygons(x: Any, cells: list[Any]) -> Mesh:
    places = np.stack([np.arctan2(x[:, 1], x[:, 0]), np.arcsin(np.clip(x[:, 2], -1, 1))], axis=1)
    return Mesh(regrid.Polygons(np.degrees(places), cells), places, cells)


def triangles(n: int) -> Mesh:
    x, cells = icosahedron(n)
    return polygons(x, [*cells])


def hexagons(n: int) -> Mesh:
    from scipy.spatial import SphericalVoronoi

    found = SphericalVoronoi(icosahedron(n)[0], threshold=1e-9)
    found.sort_vertices_of_regions()
    return polygons(found.vertices, [np.array(region) for region in found.regions])


PAIRS: dict[str, tuple[Callable[[], Mesh], Callable[[], Mesh]]] = {
    "hexagons 60 to 1 degree": (lambda: hexagons(60), lambda: latlon(180)),
    "1 degree to hexagons 60": (lambda: latlon(180), lambda: hexagons(60)),
    "hexagons 60 to 39": (lambda: hexagons(60), lambda: hexagons(39)),
    "triangles 40 to 2 degrees": (lambda: triangles(40), lambda: latlon(90)),
    "O64 to 2 degrees": (lambda: octahedral(64), lambda: latlon(90)),
    "2 degrees to 3": (lambda: latlon(90), lambda: latlon(60)),
    "3 degrees to 2": (lambda: latlon(60), lambda: latlon(90)),
}


def sinusoid(x: Any) -> Any:
    """Of one wave (Valcke et al., Benchmarking regridding libraries, 2022), as the other two."""
    return 2 - np.cos(np.pi * np.arccos(np.clip(np.cos(lat(x)) * np.cos(lon(x)), -1, 1)) / (1.2 * np.pi))


def harmonic(x: Any) -> Any:
    return 2 + np.sin(2 * lat(x)) ** 16 * np.cos(16 * lon(x))


def vortex(x: Any) -> Any:
    """Two of them, rolled up (Nair & Machenhauer 2002)."""
    u, v = 5.5, 0.2  # the middle of one
    dlon = lon(x) - u
    below = np.sin(lat(x)) * np.cos(v) - np.cos(lat(x)) * np.cos(dlon) * np.sin(v)
    turned = np.arctan2(np.cos(lat(x)) * np.sin(dlon), below)
    high = np.arcsin(np.clip(np.sin(lat(x)) * np.sin(v) + np.cos(lat(x)) * np.cos(v) * np.cos(dlon), -1, 1))
    r = 3 * np.cos(high)
    speed = 1.5 * np.sqrt(3) * np.tanh(r) / np.cosh(r) ** 2
    omega = np.divide(speed, r, out=np.zeros_like(r), where=r > 1e-9)
    return 2 * (1 + np.tanh(r / 5 * np.sin(turned - 3 * omega)))


def lon(x: Any) -> Any:
    return np.arctan2(x[:, 1], x[:, 0])


def lat(x: Any) -> Any:
    return np.arcsin(np.clip(x[:, 2], -1, 1))


FUNCTIONS = (sinusoid, harmonic, vortex)


def yac_stack(mapping: str) -> Any:
    stack = yac.InterpolationStack()
    if mapping == "nearest":
        stack.add_nnn(n=1)
    elif mapping == "bilinear":
        stack.add_average(yac.yac_interp_avg_weight_type.YAC_INTERP_AVG_BARY)
        stack.add_nnn(n=1)
    else:
        how = yac.yac_interp_method_conserv_normalisation.YAC_INTERP_CONSERV_FRACAREA
        stack.add_conservative(1 + mapping.endswith("2"), partial_coverage=True, normalisation=how)
    return stack


def least(makers: dict[str, Callable[[], Any]], counts: bool) -> dict[str, tuple[float, Any]]:
    """(CPU seconds, what was made) by each, the slowest of the ranks that count."""
    took: dict[str, list[float]] = {name: [] for name in makers}
    made: dict[str, Any] = {}
    for _ in range(ROUNDS):
        for name, make in makers.items():
            WORLD.Barrier()
            start = time.process_time()
            made[name] = make()
            spent = time.process_time() - start
            took[name].append(WORLD.allreduce(spent if counts else 0.0, MPI.MAX))
    return {name: (min(each), made[name]) for name, each in took.items()}


def measured(source: Mesh, target: Mesh, mapping: str) -> dict[str, Any]:
    """Seconds, and on one rank errors."""
    half = WORLD.size // 2
    gives = WORLD.rank < half
    makers = {}
    if WORLD.size == 1:
        makers["hpcomm"] = lambda: regrid.weights(source.grid, target.grid, mapping)
        if yac:
            fields = source.yac("source"), target.yac("target")
            makers["YAC"] = lambda: yac.compute_weights(yac_stack(mapping), *fields)
    else:
        grid = source.grid if gives else target.grid
        points = np.array_split(np.arange(grid.size), half)[WORLD.rank % half]
        part = grid.part(points) if grid.is_own else grid
        makers["hpcomm"] = lambda: regrid.weights_between(WORLD, part, points, gives, mapping, 4)
    kinds = ((each.grid.kind, each.grid.sphere) for each in (source, target))
    if misfit(mapping, *kinds):
        return {}
    found = least(makers, not gives)
    row = {f"{name}_cpu_s": took for name, (took, _) in found.items()}
    if WORLD.size == 1:
        row |= errors(source, target, {name: made for name, (_, made) in found.items()})
    return row


def errors(source: Mesh, target: Mesh, made: dict[str, Any]) -> dict[str, float]:
    (x, _), (y, area) = on(source.grid), on(target.grid)
    row = {}
    for function in FUNCTIONS:
        values, exact = function(x), function(y)
        got = {"hpcomm": made["hpcomm"].apply(values[made["hpcomm"].sources])}
        if yac:
            got["YAC"] = np.asarray(made["YAC"].get_interpolation(collection_size=1)(values)).ravel()
        for name, each in got.items():
            error = np.sqrt((area * (each - exact) ** 2).sum() / (area * exact**2).sum())
            row[f"{name}_{function.__name__}"] = float(error)
    return row


def line(row: dict[str, Any]) -> str:
    """Of each: hpcomm, YAC and the first divided by the second."""
    text = f"{row['pair']:26}{row['mapping']:14}"
    names = ["cpu_s", *(each.__name__ for each in FUNCTIONS)] if WORLD.size == 1 else ["cpu_s"]
    for name in names:
        ours, theirs = (row.get(f"{who}_{name}", np.nan) for who in ("hpcomm", "YAC"))
        form = "7.2f" if name == "cpu_s" else "9.2e"
        text += f"  {ours:{form}}{theirs:{form}}{ours / theirs:5.2f}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--only", default="", help="pairs with this in their name")
    options = parser.parse_args()
    head = "CPU seconds, then errors of " + ", ".join(each.__name__ for each in FUNCTIONS)
    text = [f"{head if WORLD.size == 1 else 'CPU seconds'}: hpcomm, YAC, hpcomm / YAC"]
    text += [] if yac else ["YAC is not installed: pip install yac==3.21 (it needs Open MPI)"]
    rows = []
    for pair, (source, target) in PAIRS.items():
        if options.only in pair:
            meshes = source(), target()
            for mapping in MAPPINGS:
                rows.append({"pair": pair, "mapping": mapping} | measured(*meshes, mapping))
                text.append(line(rows[-1]))
    if WORLD.rank == 0:
        print("\n".join(text))
        if options.save:
            save(f"mapping_yac_{WORLD.size}", "\n".join(text), rows)


if __name__ == "__main__":
    main()
