"""Meshes of solvers: gmsh, Exodus, VTU and all else that meshio reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..core.types import Ints
from ..errors import ConfigError, LayoutError, MissingFileError, did_you_mean
from ..job.optional_packages import load
from .grid import Mesh

_WHERE = "regrid.open_mesh"
# Edges, and triangles, of which each cell consists; further nodes of curved cells lie between its corners.
_EDGES = {"line": [[0, 1]]}
_TRIANGLES = {"triangle": [[0, 1, 2]], "quad": [[0, 1, 2], [0, 2, 3]]}


def open_mesh(path: str | Path, name: str | None = None) -> tuple[Mesh, Ints]:
    """A wall, or a flat domain, in the file of a solver's mesh. Every rank reads the whole file.

    Args:
        path: gmsh (.msh), Exodus (.e, .exo), VTU or another form that meshio knows.
        name: a physical group of gmsh, or a set of elements or nodes. None: all triangles and quadrilaterals;
            of a file without these, all edges.

    Returns:
        The points with the triangles or edges between them, in a plane if the third coordinate is 0 for all,
        else in space: mesh.part(which) is a rank's part. And the numbers of the points in the file, from 0.

    Raises:
        MissingFileError: there is no such file. MissingError: the package meshio is needed.
        ConfigError: there is no such name, or nothing but cells that have a volume.
        LayoutError: the file is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}", _WHERE, "the path of a mesh")
    meshio = load("meshio", "meshes of solvers are read by meshio", _WHERE, "pip install 'hpcomm[meshes]'")
    try:
        found = meshio.read(path)
        blocks = [(block.type, np.asarray(block.data)) for block in found.cells]
        coordinates = np.asarray(found.points, float)
    except (Exception, SystemExit) as error:  # of many readers
        raise LayoutError(f"{path} cannot be read: {error}", _WHERE, "a file that meshio reads") from None
    if name is not None:
        chosen = zip(blocks, _rows(found, path, name), strict=True)
        blocks = [(kind, cells[rows]) for (kind, cells), rows in chosen]
    cells = _cells(blocks, _TRIANGLES, 3)
    cells = cells if len(cells) else _cells(blocks, _EDGES, 2)
    if not len(cells):
        kinds = ", ".join(sorted({kind for kind, cells in blocks if len(cells)})) or "nothing"
        what = f"{path} has no triangles and no edges{'' if name is None else f' in {name!r}'}, but {kinds}"
        raise ConfigError(what, _WHERE, "the surface as a group of the mesh, and its name")
    if cells.min() < 0 or cells.max() >= len(coordinates):
        wrong = cells[(cells < 0) | (cells >= len(coordinates))][0]
        raise LayoutError(f"{path}: a cell has point {wrong}, and there are {len(coordinates)}", _WHERE)
    nodes, numbers = np.unique(cells, return_inverse=True)
    x = coordinates[nodes]
    if not np.isfinite(x).all():
        raise LayoutError(f"{path}: point {nodes[~np.isfinite(x).all(axis=1)][0]} is no point", _WHERE)
    return Mesh(x if x[:, 2:].any() else x[:, :2], numbers.reshape(cells.shape), sphere=False), nodes


def _cells(blocks: list[tuple[str, Any]], parts: dict[str, list[list[int]]], corners: int) -> Ints:
    """(cells, corners): the parts of those kinds that have some."""
    made = [np.empty((0, corners), np.int64)]
    for kind, cells in blocks:
        made += [cells[:, part].astype(np.int64) for part in parts.get(kind.rstrip("0123456789"), ())]
    return np.concatenate(made)


def _rows(found: Any, path: Path, name: str) -> list[Any]:
    """Of each block, which cells belong to a name."""
    if name in found.cell_sets:
        return [np.asarray(rows, np.int64) for rows in found.cell_sets[name]]
    if name in found.point_sets:
        chosen = np.asarray(found.point_sets[name], np.int64)
        return [np.isin(block.data, chosen).all(axis=1) for block in found.cells]
    if name in found.field_data and "gmsh:physical" in found.cell_data:  # gmsh 2
        group, dimension = found.field_data[name][:2]
        groups = zip(found.cells, found.cell_data["gmsh:physical"], strict=True)
        return [(np.asarray(its) == group) & (block.dim == dimension) for block, its in groups]
    names = sorted({*found.cell_sets, *found.point_sets, *found.field_data} - {"gmsh:bounding_entities"})
    hint = did_you_mean(name, names, f"one of {', '.join(names)}" if names else "leave the name out")
    raise ConfigError(f"{path} has no group {name!r}", _WHERE, hint)
