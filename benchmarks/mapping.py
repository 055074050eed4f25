"""How good the mappings of hpcomm.regrid are: errors, orders of convergence, and what they conserve.

    python benchmarks/mapping.py [--save] [--quick]

Values at the centres of one grid are mapped to another and compared with the function there, at four
resolutions. The error is the root mean square over the area, relative to that of the function. The integral
lost is relative to that of the function's absolute value; overshoot is how far results lie outside the
range of what was given. The smooth function is analytic; the rough one jumps between 0 and 1, so that
only order 1/2 can be expected of any mapping.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import RESULTS, save

from hpcomm import regrid

MAPPINGS = [each for each in regrid.MAPPINGS if each != "projection"]  # that need no mesh
SIZES = [16, 32, 64, 128]
KEPT = 1e-12  # what of an integral conservative mappings may lose


def smooth(x: Any) -> Any:
    """On the sphere, (points, 3), or a plane, (points, 2)."""
    z = x[:, 2] if x.shape[1] == 3 else 0.0
    return 2 + np.sin(3 * x[:, 0] + 1) * np.cos(2 * x[:, 1]) + z * np.exp(x[:, 1])


def rough(x: Any) -> Any:
    return np.where(np.sin(5 * x[:, 0] + 4 * x[:, 1]) > 0.2, 1.0, 0.0)


def cubed_sphere(n: int) -> regrid.Cells:
    """6 n² cells with equal angles along the edges of a cube, by their vertices."""
    t = np.tan(np.linspace(-np.pi / 4, np.pi / 4, n + 1))
    a, b = np.meshgrid(t, t, indexing="ij")
    faces = []
    for axis in range(3):
        for side in (1.0, -1.0):
            p = np.empty((n + 1, n + 1, 3))
            p[..., axis], p[..., (axis + 1) % 3], p[..., (axis + 2) % 3] = side, side * a, b
            faces.append(corners(p))
    x = np.concatenate(faces)
    longitude = np.arctan2(x[..., 1], x[..., 0])
    latitude = np.arctan2(x[..., 2], np.hypot(x[..., 0], x[..., 1]))
    return regrid.Cells(np.degrees(np.stack([longitude, latitude], axis=-1)))


def triangles(n: int) -> regrid.Cells:
    """2 n² triangles that fill the unit square, their inner points moved."""
    x, y = np.meshgrid(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1), indexing="ij")
    moved = 0.06 * np.sin(2 * np.pi * x) * np.sin(2 * np.pi * y)
    squares = corners(np.stack([x + moved, y - moved], axis=-1))
    return regrid.Cells(np.concatenate([squares[:, :3], squares[:, [0, 2, 3]]]), sphere=False)


def corners(p: Any) -> Any:
    """(cells, 4, ...) of a net of points (n + 1, n + 1, ...), anticlockwise."""
    around = [p[:-1, :-1], p[1:, :-1], p[1:, 1:], p[:-1, 1:]]
    return np.stack(around, axis=2).reshape(-1, 4, p.shape[-1])


GRIDS: dict[str, Callable[[int], Any]] = {
    "latlon": lambda n: regrid.LatLon(n, 2 * n),
    "gaussian": lambda n: regrid.Gaussian(3 * n // 4, 3 * n // 2),
    "cubed sphere": lambda n: cubed_sphere(n // 2),
    "reduced": lambda n: regrid.ReducedGaussian(n // 2, rows=4 * np.arange(1, n // 2 + 1)),
    "healpix": lambda n: regrid.Healpix(3 * n // 8),
    "plane": lambda n: regrid.Plane(n, n),
    "other plane": lambda n: regrid.Plane(3 * n // 4, 5 * n // 4),
    "triangles": lambda n: triangles(5 * n // 8),
}
PAIRS = [
    ("latlon", "gaussian"),
    ("gaussian", "latlon"),
    ("latlon", "cubed sphere"),
    ("cubed sphere", "latlon"),
    ("reduced", "latlon"),
    ("latlon", "reduced"),
    ("healpix", "reduced"),
    ("plane", "other plane"),
    ("plane", "triangles"),
    ("triangles", "plane"),
]
FUNCTIONS = {"smooth": smooth, "rough": rough}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep table and plot under benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="fewer resolutions")
    options = parser.parse_args()
    rows = measured(SIZES[:2] if options.quick else SIZES)
    text = "\n".join([*overview(rows), *tables(rows)])
    print(text)
    if options.save:
        save("mapping", text, rows)
        plot(rows)
    lost = max(row["lost"] for row in rows if row["mapping"].startswith("conservative"))
    if lost > KEPT:
        sys.exit(f"a conservative mapping lost {lost:.1e} of an integral")


def measured(sizes: list[int]) -> list[dict[str, Any]]:
    """A row for each pair, mapping, function and resolution; order: since the resolution before."""
    rows = []
    for names in PAIRS:
        for mapping in MAPPINGS:
            if mapping == "bilinear" and names[0] == "triangles":
                continue  # it does not reach the edge of the square
            before: dict[str, float] = {}
            for n in sizes:
                source, target = (GRIDS[name](n) for name in names)
                weights = regrid.weights(source, target, mapping)
                for name, function in FUNCTIONS.items():
                    row: dict[str, Any] = {"source": names[0], "target": names[1], "mapping": mapping}
                    row |= {"function": name, "n": n, **judged(source, target, weights, function)}
                    if name in before:
                        row["order"] = float(np.log2(before[name] / row["error"]))
                    before[name] = row["error"]
                    rows.append(row)
    return rows


def judged(source: Any, target: Any, weights: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
    """What one mapping of one function is worth: see the top of this file."""
    (x, given), (y, there) = on(source), on(target)
    values, exact = function(x), function(y)
    got = weights.apply(values[weights.sources])
    lost = (there * weights.fraction * got).sum() - (given * values).sum()
    return {
        "sources": len(x),
        "targets": len(y),
        "error": float(np.sqrt((there * (got - exact) ** 2).sum() / (there * exact**2).sum())),
        "largest": float(np.abs(got - exact).max() / np.abs(exact).max()),
        "lost": float(abs(lost) / (given * np.abs(values)).sum()),
        "overshoot": float(max(got.max() - values.max(), values.min() - got.min(), 0.0)),
    }


def on(grid: Any) -> tuple[Any, Any]:
    """(centres, areas) of all cells."""
    points = np.arange(grid.size)
    return grid.centres(points), grid.areas(points)


def overview(rows: list[dict[str, Any]]) -> list[str]:
    """Of each mapping: the orders at the finest grids, and the worst of all."""
    finest = max(row["n"] for row in rows)
    lines = [
        f"all pairs: orders between n = {finest // 2} and {finest}, the worst of the rest at any n",
        f"{'':14}{'order, smooth':>18}{'order, rough':>18}{'integral lost':>16}{'overshoot, rough':>19}",
    ]
    for mapping in MAPPINGS:
        mine = [row for row in rows if row["mapping"] == mapping]
        cells = []
        for function in FUNCTIONS:
            found = [row["order"] for row in mine if row["function"] == function and row["n"] == finest]
            cells.append(f"{min(found):.2f} to {max(found):.2f}")
        lost = max(row["lost"] for row in mine)
        overshoot = max(row["overshoot"] for row in mine if row["function"] == "rough")
        lines.append(f"{mapping:14}{cells[0]:>18}{cells[1]:>18}{lost:16.1e}{overshoot:19.3f}")
    return lines


def tables(rows: list[dict[str, Any]]) -> list[str]:
    sizes = sorted({row["n"] for row in rows})
    lines = []
    for source, target in PAIRS:
        pair = [row for row in rows if (row["source"], row["target"]) == (source, target)]
        points = [next((row["sources"], row["targets"]) for row in pair if row["n"] == n) for n in sizes]
        for function in FUNCTIONS:
            lines += ["", f"{source} to {target}, {function}: error (order)"]
            lines.append(
                f"{'points':14}"
                + "".join(f"{f'{a} to {b}':>18}" for a, b in points)
                + f"{'integral lost':>16}{'overshoot':>12}"
            )
            for mapping in MAPPINGS:
                mine = [row for row in pair if (row["mapping"], row["function"]) == (mapping, function)]
                if mine:
                    cells = [
                        f"{row['error']:.2e}" + (f" ({row['order']:5.2f})" if "order" in row else " " * 8)
                        for row in mine
                    ]
                    lost, overshoot = (max(row[key] for row in mine) for key in ("lost", "overshoot"))
                    lines.append(
                        f"{mapping:14}{''.join(f'{cell:>18}' for cell in cells)}{lost:16.1e}{overshoot:12.3f}"
                    )
    return lines


def plot(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(FUNCTIONS), len(PAIRS), figsize=(25, 6), sharex=True, sharey="row")
    for line, function in zip(panels, FUNCTIONS, strict=True):
        for axis, (source, target) in zip(line, PAIRS, strict=True):
            case = (source, target, function)
            mine = [row for row in rows if (row["source"], row["target"], row["function"]) == case]
            for i, mapping in enumerate(MAPPINGS):
                points = [(row["n"], row["error"]) for row in mine if row["mapping"] == mapping]
                if points:
                    axis.loglog(*zip(*points, strict=True), "o-", color=f"C{i}", label=mapping, markersize=4)
            sizes = np.array(sorted({row["n"] for row in mine}), float)
            for order in (1, 2) if function == "smooth" else (0.5,):
                worst = max(row["error"] for row in mine if row["n"] == sizes[0])
                axis.loglog(sizes, worst * (sizes[0] / sizes) ** order, "k:", linewidth=1)
            axis.set_title(f"{source} to {target}", fontsize=9)
            axis.grid(alpha=0.3)
        line[0].set_ylabel(f"error, {function}")
    for axis in panels[-1]:
        axis.set_xlabel("n")
        axis.set_xticks(SIZES, [str(n) for n in SIZES])
        axis.minorticks_off()
    panels[0][0].legend(fontsize=8)
    figure.suptitle("Errors of the mappings; dotted: orders 1 and 2 above, 1/2 below", fontsize=10)
    figure.tight_layout()
    figure.savefig(RESULTS / "mapping.png", dpi=90)


if __name__ == "__main__":
    main()
