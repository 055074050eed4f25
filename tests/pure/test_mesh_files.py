"""Meshes of solvers, read by meshio: groups by their names, walls in space, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcomm import regrid
from hpcomm.errors import ConfigError, HpcommError, LayoutError, MissingFileError

meshio = pytest.importorskip("meshio")

N = 9
SIDE = np.linspace(0.0, 1.0, N)
PLATE = np.stack([*np.meshgrid(SIDE, SIDE), np.zeros((N, N))], axis=-1).reshape(-1, 3)
QUADS = np.add.outer(np.arange(N * (N - 1)).reshape(N - 1, N)[:, :-1].ravel(), [0, 1, N + 1, N])
TRIANGLES = np.concatenate([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])
BOTTOM = np.stack([np.arange(N - 1), np.arange(1, N)], axis=1)
# In the form of gmsh 4: a triangle and a half of a plate, and its edge.
GMSH_4 = """$MeshFormat
4.1 0 8
$EndMeshFormat
$PhysicalNames
2
1 1 "edge"
2 7 "wall"
$EndPhysicalNames
$Entities
0 1 1 0
1 0 0 0 1 1 0 1 1 0
1 0 0 0 1 1 0 1 7 0
$EndEntities
$Nodes
1 5 1 5
2 1 0 5
1
2
3
4
5
9 9 9
0 0 0
1 0 0
1 1 0
0 1 0
$EndNodes
$Elements
2 3 1 3
1 1 1 1
1 4 5
2 1 2 2
2 2 3 4
3 2 4 5
$EndElements
"""


def written(path: Path, cells: list[tuple[str, Any]], points: Any = PLATE, **more: Any) -> Path:
    meshio.Mesh(points, cells, **more).write(
        path, **({"file_format": "gmsh22"} if path.suffix == ".msh" else {})
    )
    return path


@pytest.mark.parametrize("file", ["plate.msh", "plate.e", "plate.vtu", "plate.vtk"])
@pytest.mark.parametrize("kind", ["triangle", "quad"])
def test_a_flat_domain_is_read_from_each_form(file: str, kind: str, tmp_path: Path) -> None:
    path = written(tmp_path / file, [(kind, TRIANGLES if kind == "triangle" else QUADS), ("line", BOTTOM)])
    mesh, nodes = regrid.open_mesh(path)
    assert np.array_equal(nodes, np.arange(N * N))
    assert np.array_equal(mesh.coordinates, PLATE[:, :2])
    assert len(mesh.cells) == 2 * (N - 1) ** 2
    target = regrid.PointCloud(np.random.default_rng(1).random((40, 2)), sphere=False)
    weights = regrid.weights(mesh, target, "projection")
    linear = PLATE[:, 0] + 3 * PLATE[:, 1]
    exact = target.coordinates @ [1.0, 3.0]
    assert np.allclose(weights.apply(linear[weights.sources]), exact, rtol=0, atol=1e-14)


def test_a_group_of_gmsh_is_found_by_its_name(tmp_path: Path) -> None:
    new = tmp_path / "new.msh"
    new.write_text(GMSH_4)
    groups = [np.full(len(TRIANGLES), 7), np.full(len(BOTTOM), 7)]
    old = written(
        tmp_path / "old.msh",
        [("triangle", TRIANGLES), ("line", BOTTOM)],
        field_data={"wall": np.array([7, 2]), "edge": np.array([7, 1])},  # numbers are those of a dimension
        cell_data={"gmsh:physical": groups, "gmsh:geometrical": groups},
    )
    for path, wall, edge in ((new, [1, 2, 3, 4], [3, 4]), (old, [*range(N * N)], [*range(N)])):
        mesh, nodes = regrid.open_mesh(path, "wall")
        assert nodes.tolist() == wall
        mesh, nodes = regrid.open_mesh(path, "edge")
        assert nodes.tolist() == edge
        assert mesh.cells[0].tolist() == [0, 1, 1]
        with pytest.raises(ConfigError, match=r"no group 'wal'\n.*\n.*did you mean 'wall'"):
            regrid.open_mesh(path, "wal")


def test_a_set_of_nodes_has_the_cells_between_them(tmp_path: Path) -> None:
    sets = {"corner": np.array([0, 1, N, N + 1])}
    path = written(tmp_path / "plate.e", [("triangle", TRIANGLES)], point_sets=sets)
    mesh, nodes = regrid.open_mesh(path, "corner")
    assert nodes.tolist() == sets["corner"].tolist()
    assert sorted(mesh.cells.tolist()) == [[0, 1, 3], [0, 3, 2]]


def test_a_wall_lies_in_space_and_each_rank_has_its_part(tmp_path: Path) -> None:
    bent = PLATE + np.outer(PLATE[:, 0] ** 2, [0, 0, 1])
    mesh, nodes = regrid.open_mesh(written(tmp_path / "wall.vtu", [("triangle", TRIANGLES)], bent))
    assert mesh.coordinates.shape == (N * N, 3)
    part = mesh.part(nodes[:30])
    assert isinstance(part, regrid.Mesh)
    assert np.array_equal(part.coordinates, bent[:30])


def test_curved_cells_are_taken_by_their_corners(tmp_path: Path) -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.5, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0]], float)
    mesh, nodes = regrid.open_mesh(
        written(tmp_path / "one.vtu", [("triangle6", [[0, 1, 2, 3, 4, 5]])], points)
    )
    assert (mesh.cells.tolist(), nodes.tolist()) == ([[0, 1, 2]], [0, 1, 2])


def test_what_has_no_surface_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "solid.vtu", [("tetra", [[0, 1, N, N + 1]])])
    with pytest.raises(ConfigError, match="no triangles and no edges, but tetra"):
        regrid.open_mesh(path)
    with pytest.raises(MissingFileError):
        regrid.open_mesh(tmp_path / "none.msh")


@pytest.mark.parametrize("file", ["plate.msh", "plate.e", "plate.vtu"])
def test_a_truncated_or_overwritten_file_is_an_error_or_read(file: str, tmp_path: Path) -> None:
    data = written(tmp_path / file, [("triangle", TRIANGLES)]).read_bytes()
    random = np.random.default_rng(2)
    for _ in range(60):
        broken = bytearray(data)
        if random.random() < 0.5:
            del broken[random.integers(len(data)) :]
        else:
            at = random.integers(len(data) - 8)
            broken[at : at + 8] = random.bytes(8)
        (tmp_path / file).write_bytes(broken)
        try:
            mesh, nodes = regrid.open_mesh(tmp_path / file)
        except HpcommError:
            continue
        assert mesh.cells.max() < len(nodes)


def test_a_cell_of_a_point_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plate.vtu"
    written(path, [("triangle", [[0, 1, 77]])], PLATE[:3])
    with pytest.raises(LayoutError, match="a cell has point 77, and there are 3"):
        regrid.open_mesh(path)
