"""Grids of real models, from a folder of theirs: areas, integrals, constants through conservative mappings.

    python tests/outside/model_grids.py FOLDER

Reads every file below FOLDER whose form hpcomm.regrid.open knows, and each grid in it of which cells count.
A grid without a mask must cover the sphere. To a grid of 2 degrees, an integral stays the same, and a
constant a constant. Prints a row for each grid; exits with 1 if one is wrong.

    cells     how many count
    sphere    their share of it
    model     the largest relative difference between an area of the file's and the cell's
    integral  the relative change
    constant  the largest difference from 1 there
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpcomm import regrid
from hpcomm.errors import ConfigError, HpcommError

SPHERE = 1e-8  # of single precision, as GEOS writes its corners
ROUNDING = 1e-12


def grids(folder: Path) -> Any:
    """Of all files, and of each name in them."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        if path.suffix == ".out" and path.name != "elem2d.out":
            continue
        try:
            yield regrid.open(path)
        except ConfigError as error:
            names = str(error).partition(" has the grids ")[2].splitlines()
            yield from (regrid.open(path, name) for name in (names[0].split(", ") if names else []))
        except HpcommError:
            continue  # no grid


def row(grid: regrid.GridFile) -> tuple[str, bool]:
    """What is found, and whether it is right."""
    cells, ours = grid.cells(), grid.areas()
    areas = cells.areas(np.arange(0))
    share = areas.sum() / (4 * np.pi)
    off = 0.0 if ours is None else float(np.abs(ours / areas - 1).max())
    other = regrid.LatLon(90, 180)
    there = regrid.weights(cells, other, "conservative")
    x = 2 + np.sin(3 * cells.centres(np.arange(0))[:, 0])
    on_other = other.areas(np.arange(other.size)) * there.fraction
    lost = abs((there.matrix @ x[there.sources] * on_other).sum() / (x * areas).sum() - 1)
    covered = there.fraction > 1e-9
    uneven = float(np.abs(there.matrix @ np.ones(len(there.sources)) - 1)[covered].max())
    is_right = lost < ROUNDING and uneven < ROUNDING and share < 1 + SPHERE
    is_right = is_right and (len(areas) < grid.size or abs(share - 1) < SPHERE or grid.form == "FESOM")
    name = f"{grid.path.name} {grid.name}"
    return (
        f"{name:36s} {grid.form:10s} {len(areas):7d} {share:.10f} {off:.1e} {lost:.1e} {uneven:.1e}",
        is_right,
    )


def main(folder: str) -> int:
    print(f"{'file':36s} {'form':10s} {'cells':>7s} {'sphere':12s} {'model':7s} {'integral':8s} constant")
    found = [row(grid) for grid in grids(Path(folder)) if len(grid.points())]
    for text, is_right in found:
        print(text if is_right else f"{text}  WRONG")
    return int(not found or not all(is_right for _, is_right in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
