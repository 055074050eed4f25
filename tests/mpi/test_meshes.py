"""Meshes, grids and graphs: who sits where, and what neighbours hear from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm.communicator.mesh import from_torch
from hpcomm.communicator.topology import fitting_shapes, node_order


def test_a_mesh_counts_ranks_row_by_row_and_has_a_communicator_for_every_axis(comm: Any) -> None:
    mesh = comm.mesh(dp=-1, tp=2 if comm.size % 2 == 0 else 1, pp=1)
    tp = mesh.shape["tp"]
    assert mesh.coords == {"dp": comm.rank // tp, "tp": comm.rank % tp, "pp": 0}
    assert mesh["tp"].all_gather(comm.rank).tolist() == [comm.rank // tp * tp + i for i in range(tp)]
    assert mesh["dp"].all_gather(comm.rank).tolist() == list(range(comm.rank % tp, comm.size, tp))
    assert mesh["pp"].size == 1
    both = mesh["tp", "dp"]  # ordered as named: tp varies slowly
    assert both.size == comm.size
    assert both.rank == comm.rank % tp * mesh.shape["dp"] + comm.rank // tp
    assert mesh["dp", "tp", "pp"] is mesh.comm
    assert mesh.rank_at(**mesh.coords) == comm.rank
    below = mesh.neighbour("dp", -1)
    assert below == (comm.rank - tp if comm.rank >= tp else hpcomm.PROC_NULL)
    sub = mesh.sub("tp")
    assert sub.shape == {"tp": tp}
    assert sub.comm.all_reduce(comm.rank) == sum(comm.rank // tp * tp + i for i in range(tp))
    mesh.close()


def test_a_periodic_axis_closes_to_a_ring(comm: Any) -> None:
    mesh = comm.mesh({"x": -1}, periodic="x")
    assert mesh.neighbour("x") == (comm.rank + 1) % comm.size
    assert mesh.neighbour("x", -1 - comm.size) == (comm.rank - 1) % comm.size
    got = mesh.comm.sendrecv(comm.rank, mesh.neighbour("x"), mesh.neighbour("x", -1))
    assert got == (comm.rank - 1) % comm.size
    mesh.close()


def test_describe_draws_every_rank(comm: Any) -> None:
    mesh = comm.mesh(y=-1, x=1)
    text = mesh.describe()
    ranks = "1 rank" if comm.size == 1 else f"{comm.size} ranks"
    assert f"mesh y={comm.size}, x=1: {ranks} on 1 node" in text
    rows = text.splitlines()[2:]
    assert [row.split()[1].strip("[]") for row in rows] == [str(r) for r in range(comm.size)]
    assert f"[{comm.rank}]" in text
    mesh.close()
    deep = comm.mesh(a=-1, b=1, c=1)
    assert deep.describe().splitlines()[0].startswith(f"mesh a={comm.size}, b=1, c=1: ")
    assert len(deep.describe().splitlines()) == 3  # axes of one rank are not drawn
    deep.close()
    if comm.size == 4:
        for sizes, lines in (({"a": 2, "b": 1, "c": 2}, 4), ({"a": 2, "b": 2, "c": 1}, 4)):
            box = comm.mesh(sizes)
            drawn = box.describe().splitlines()
            assert len(drawn) == lines
            assert [row.replace("[", "").replace("]", "").split()[1:] for row in drawn[2:]] == [
                ["0", "1"],
                ["2", "3"],
            ]
            box.close()


def test_sizes_that_do_not_fit_are_refused_with_those_that_would(comm: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match=f"does not hold {comm.size} ranks but 35") as caught:
        comm.mesh(dp=7, tp=5)
    assert f"({comm.size}, 1)" in str(caught.value)
    assert "test_meshes.py" in str(caught.value)
    with pytest.raises(hpcomm.LayoutError, match="does not hold"):
        comm.cart((-1, comm.size + 1))
    with pytest.raises(hpcomm.LayoutError, match="the shape is"):
        comm.mesh(x=float(comm.size))
    with pytest.raises(hpcomm.UsageError, match="no axis 3"):
        mesh_of_one(comm)[3]
    with pytest.raises(hpcomm.UsageError, match="no axis 'z'"):
        mesh_of_one(comm).neighbour("z")
    with pytest.raises(hpcomm.LayoutError, match="periodic names axes"):
        comm.mesh(x=comm.size, periodic="y")
    with pytest.raises(hpcomm.UsageError, match="no order 'best'"):
        comm.mesh(x=comm.size, order="best")
    with pytest.raises(hpcomm.UsageError, match="the shape is of type tuple"):
        comm.mesh((comm.size, 1))
    with pytest.raises(hpcomm.LayoutError, match="the step is"):
        mesh_of_one(comm).neighbour("x", 0.5)
    grid = comm.cart((comm.size, 1))
    for wrong in (lambda: grid.shift(2), lambda: grid.sub([True]), lambda: grid.sub(-1)):
        with pytest.raises(hpcomm.UsageError, match="has no axes"):
            wrong()
    with pytest.raises(hpcomm.RankError, match="do not fit the grid"):
        grid.rank_at((0,))
    with pytest.raises(hpcomm.RankError, match="rank 99 does not exist"):
        comm.graph(99)
    grid.close()


def mesh_of_one(comm: Any) -> Any:
    return comm.mesh(x=comm.size)


def test_fitting_shapes_begin_with_the_nearest() -> None:
    assert fitting_shapes(12, (3, 5))[0] in [(3, 4), (2, 6)]
    assert all(a * b == 12 for a, b in fitting_shapes(12, (3, 5)))


def test_nodes_sit_together_in_rows_or_in_compact_tiles(comm: Any) -> None:
    nodes = [f"n{r % 4}" for r in range(16)]  # dealt out in turn
    rows = node_order(nodes, (4, 4))
    assert [nodes[r] for r in rows] == sorted(nodes)
    tiles = np.array([nodes[r] for r in node_order(nodes, (4, 4), tiles=True)]).reshape(4, 4)
    assert all(len(set(tiles[i : i + 2, j : j + 2].flat)) == 1 for i in (0, 2) for j in (0, 2))
    assert sorted(node_order(nodes, (4, 4), tiles=True)) == list(range(16))
    uneven = ["a", "b", "a", "a"]
    assert node_order(uneven, (2, 2), tiles=True) == [0, 2, 3, 1]
    ordered = comm.mesh(x=comm.size, order="node")  # one node: nothing moves
    assert ordered.rank == comm.rank
    ordered.close()
    reordered = comm.cart((-1, 1), reorder=True)
    assert reordered.rank == comm.rank
    reordered.close()


def test_a_mesh_by_nodes_sits_them_side_by_side_and_is_drawn_so(
    comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if ranks were dealt out to two nodes in turn."""
    monkeypatch.setattr(
        hpcomm.communicator.mesh,
        "nodes_of",
        lambda c: c.mpi_handle.allgather(f"node{hpcomm.world.rank % 2}"),
    )
    mesh = comm.mesh(y=-1, x=1, order="node")
    order = [*range(0, comm.size, 2), *range(1, comm.size, 2)]
    assert mesh.rank == order.index(comm.rank)
    assert mesh.comm.all_gather(comm.rank).tolist() == order
    if comm.size > 1:
        drawn = mesh.describe()
        assert "2 nodes" in drawn
        assert drawn.endswith("nodes: @0 node0, @1 node1")
        cells = [row.split()[1].strip("[]") for row in drawn.splitlines()[2:-1]]
        assert [cell[-1] for cell in cells] == [str(r % 2) for r in order]
    mesh.close()


def test_a_graph_has_its_sources_in_the_order_they_were_given(comm: Any) -> None:
    p, r = comm.size, comm.rank
    graph = comm.graph([(r + 1) % p, (r + 2) % p], [(r - 2) % p, (r - 1) % p])
    assert graph.sources == ((r - 2) % p, (r - 1) % p)
    assert graph.neighbour_all_gather(r).tolist() == list(graph.sources)
    graph.close()


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("axes", [1, 2])
def test_neighbours_on_a_grid_hear_each_other(comm: Any, ring: bool, axes: int) -> None:
    grid = comm.cart((-1,) * axes, ring)
    expected = []
    for axis in range(axes):
        for step in (-1, 1):
            at = list(grid.coords)
            at[axis] += step
            expected.append(grid.rank_at(at))
    assert list(grid.sources) == expected
    assert grid.coords_of(grid.rank) == grid.coords
    hear = grid.neighbour_all_gather(np.full(3, grid.rank + 1.0))
    assert hear[:, 1].tolist() == [r + 1.0 if r >= 0 else 0.0 for r in expected]
    # what I send towards -axis arrives at its place for +axis
    mine = 100 * grid.rank + np.arange(2 * axes)
    got = grid.neighbour_all_to_all(mine)
    assert got.tolist() == [100 * r + (i ^ 1) if r >= 0 else 0 for i, r in enumerate(expected)]
    later = grid.neighbour_all_to_all(torch.from_numpy(mine), async_op=True)
    assert later.wait().tolist() == got.tolist()
    out = np.empty((2 * axes, 2))[:, ::-1]
    assert grid.neighbour_all_gather(np.ones(2), out=out) is out
    ragged = grid.neighbour_all_to_all_ragged([np.full(grid.rank, i, "i4") for i in range(2 * axes)])
    for i, (r, part) in enumerate(zip(expected, ragged, strict=True)):
        assert (part is None) if r < 0 else (part.dtype == "i4" and part.tolist() == [i ^ 1] * r)
    begun = [
        grid.neighbour_all_to_all_ragged(
            [np.full(grid.rank, 10 * k + i) for i in range(2 * axes)], async_op=True
        )
        for k in range(3)
    ]
    for k in (0, 1, 2) if grid.rank % 2 else (2, 1, 0):  # waited for in different orders
        for i, (r, part) in enumerate(zip(expected, begun[k].wait(), strict=True)):
            assert (part is None) if r < 0 else part.tolist() == [10 * k + (i ^ 1)] * r
    long = grid.neighbour_all_gather_ragged(
        torch.full((70_000 + grid.rank,), grid.rank), async_op=True
    ).wait()
    for r, part in zip(expected, long, strict=True):
        assert (part is None) if r < 0 else (len(part) == 70_000 + r and (part == r).all())
    x, out = np.zeros((2 * axes, 2)), np.empty((2 * axes, 2))
    plan = grid.plan("neighbour_all_to_all", x, out=out)
    again = grid.plan("neighbour_all_gather", torch.ones(2))
    for turn in range(3):
        x[:] = 100 * turn + 10 * grid.rank + np.arange(2 * axes)[:, None]
        plan.start()
        assert again().tolist() == [[float(r >= 0)] * 2 for r in expected]
        assert plan.wait(30) is out
        assert out.tolist() == [
            [100 * turn + 10 * r + (i ^ 1) if r >= 0 else 0] * 2 for i, r in enumerate(expected)
        ]
    assert "begun anew at each start" in plan.explain()
    plan.close()
    for axes in ([0], [axis == 0 for axis in range(len(grid.shape))]):  # the latter as MPI_Cart_sub has it
        line = grid.sub(axes)
        assert line.shape == grid.shape[:1]
        assert line.coords == grid.coords[:1]
        line.close()
    grid.close()


@pytest.mark.parametrize("dtype", ["S3", "U2", "V6", "M8[s]", "i1,f8"])
def test_of_nobody_comes_zero_in_every_dtype(comm: Any, dtype: str) -> None:
    """Not the character 0."""
    with comm.cart((comm.size,)) as line:
        x = np.frombuffer(b"a\0\0\0" * 18, dtype)[:2]
        below = line.neighbour_all_gather(x)[0]
        assert below.tobytes() == (x.tobytes() if comm.rank else bytes(x.nbytes))


def test_neighbours_on_a_graph_hear_each_other(comm: Any) -> None:
    p, r = comm.size, comm.rank
    destinations = sorted({(r + 1) % p, (2 * r) % p})  # some hear themselves, some several, some nobody
    graph = comm.graph(destinations)
    assert list(graph.sources) == [s for s in range(p) if r in {(s + 1) % p, (2 * s) % p}]
    assert graph.neighbour_all_gather(r).tolist() == list(graph.sources)
    blocks = np.array([[r, d] for d in destinations], float).reshape(-1, 2)
    assert graph.neighbour_all_to_all(blocks).tolist() == [[s, r] for s in graph.sources]
    names = [np.full((s, 2), 1 + s, np.float32) for s in graph.sources]
    got = graph.neighbour_all_gather_ragged(np.full((r, 2), 1 + r, np.float32))
    assert all(a.shape == b.shape and (a == b).all() for a, b in zip(got, names, strict=True))
    mixed = graph.neighbour_all_to_all_ragged(
        [torch.full((d,), r, dtype=torch.bfloat16) for d in destinations]
    )
    assert [(x.tolist(), x.dtype) for x in mixed] == [([s] * r, torch.bfloat16) for s in graph.sources]
    with pytest.raises(hpcomm.LayoutError, match="must be the"):
        graph.neighbour_all_to_all(np.ones(99))
    with pytest.raises(hpcomm.UsageError, match="wants a list of"):
        graph.neighbour_all_to_all_ragged([])
    both = np.ones((max(len(destinations), len(graph.sources)), 2))
    if len(destinations) == len(graph.sources):
        with pytest.raises(hpcomm.LayoutError, match="overlap"):
            graph.neighbour_all_to_all(both, out=both)
    with pytest.raises(hpcomm.LayoutError, match="must be the"):
        graph.plan("neighbour_all_to_all", np.ones(99))
    with pytest.raises(hpcomm.UsageError, match="has no neighbours") as caught:
        comm.plan("neighbour_all_gather", np.ones(2))
    assert "comm.cart(...) or comm.graph(...)" in str(caught.value)
    with pytest.raises(hpcomm.RankError, match="does not exist"):
        comm.graph([comm.size])
    graph.close()


def test_the_same_mesh_in_torch(comm: Any, tmp_path: Any) -> None:
    import torch.distributed as dist

    path = comm.broadcast_object(str(tmp_path / "rendezvous"))
    with pytest.raises(hpcomm.ConfigError, match="no process group"):
        comm.mesh(x=comm.size).to_torch()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=comm.rank, world_size=comm.size)
    try:
        mesh = comm.mesh(dp=-1, tp=1)
        theirs = mesh.to_torch()
        assert theirs.mesh_dim_names == ("dp", "tp")
        assert theirs.mesh.tolist() == [[r] for r in range(comm.size)]
        back = from_torch(comm, theirs)
        assert back.shape == mesh.shape
        assert back.coords == mesh.coords
        assert back["dp"].all_reduce(1) == comm.size
    finally:
        comm.barrier()
        dist.destroy_process_group()


@pytest.mark.mpi(min_size=2)
def test_neighbour_verbs_are_compared_and_seen_like_all_collectives(comm: Any) -> None:
    with comm.dup(check="full") as strict:
        grid = strict.cart((-1,), periodic=True, name="ring")
        x = np.ones(2)
        pairs = {
            ("all_gather", "all_to_all"): (grid.neighbour_all_gather, grid.neighbour_all_to_all),
            ("float64", "float32"): (
                lambda x: grid.neighbour_all_gather(x),
                lambda x: grid.neighbour_all_gather(x.astype("f4")),
            ),
            ("(2,)", "(1,)"): (
                lambda x: grid.neighbour_all_gather(x),
                lambda x: grid.neighbour_all_gather(x[:1]),
            ),
            ("ragged", "async"): (
                grid.neighbour_all_gather_ragged,
                lambda x: grid.neighbour_all_gather(x, async_op=True),
            ),
        }
        for (mine, theirs), (one, other) in pairs.items():
            with pytest.raises(hpcomm.MismatchError, match=r"disagree about call #\d+ on 'ring'") as caught:
                (other if grid.rank == grid.size - 1 else one)(x)
            assert mine in str(caught.value)
            assert theirs in str(caught.value)
        seen: list[str] = []

        class Observer:
            def before(self, call: Any) -> None:
                seen.append(f"before {call}")

            def after(self, call: Any) -> None:
                seen.append(f"after {call.verb}")

        stop = grid.observe(Observer())
        grid.neighbour_all_gather(x)
        grid.neighbour_all_to_all(x, async_op=True).wait()
        grid.neighbour_all_to_all_ragged([x, x])
        stop()
        assert [line.split("(")[0] for line in seen] == [
            f"{when} neighbour_{verb}"
            for verb in ("all_gather", "all_to_all", "all_to_all_ragged")
            for when in ("before", "after")
        ]
        assert "float64" in seen[0]
        grid.close()


def test_neighbours_are_called_in_both_spellings(comm: Any, monkeypatch: Any) -> None:
    grid, mesh = comm.cart((-1,), periodic=True), comm.mesh(x=-1)
    x = np.full((2, 3), comm.rank)
    for name in ("all_gather", "all_to_all"):
        wanted = getattr(grid, f"neighbour_{name}")(x)
        np.testing.assert_array_equal(getattr(grid, f"neighbor_{name}")(x), wanted)
        with grid.plan(f"neighbor_{name}", x) as plan:
            np.testing.assert_array_equal(plan(), wanted)
        given = [*x] if name == "all_to_all" else x
        ragged = getattr(grid, f"neighbor_{name}_ragged")(given)
        np.testing.assert_array_equal(ragged, getattr(grid, f"neighbour_{name}_ragged")(given))
    assert mesh.neighbor("x", -1) == mesh.neighbour("x", -1)
    assert not [name for name in dir(grid) if name.startswith("neighbor_")]
    with monkeypatch.context() as traced:  # which wraps the method of the own name
        traced.setattr(type(grid), "neighbour_all_gather", lambda self, x: "seen")
        assert grid.neighbor_all_gather(x) == "seen"
    grid.close()


def test_light_agreement_of_neighbours_cries_no_wolf(comm: Any) -> None:
    """Ranks that are no neighbours may be several calls apart."""
    grid = comm.cart((-1,))
    for i in range(100):
        assert grid.neighbour_all_gather(i).tolist() == [i if s >= 0 else 0 for s in grid.sources]
    requests = [grid.neighbour_all_gather(i, async_op=True) for i in range(5)]
    for i, request in enumerate(requests):
        assert request.wait().tolist() == [i if s >= 0 else 0 for s in grid.sources]
    grid.close()


def test_axes_without_a_name_are_refused(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="0 is no name of an axis"):
        comm.mesh({0: comm.size})


def test_lists_of_ranks_and_sizes_may_be_arrays(comm: Any) -> None:
    everybody = np.arange(comm.size)
    graph = comm.graph(everybody)
    assert graph.sources == graph.destinations == tuple(range(comm.size))
    cart = comm.cart(np.array([comm.size, 1]), np.array([True, False]))
    assert cart.shape == (comm.size, 1)
    assert cart.sub(np.array([0])).shape == (comm.size,)
    with pytest.raises(hpcomm.LayoutError):
        comm.cart(np.array([[comm.size, 1]]))


def test_a_graph_of_a_grid_has_its_own_neighbours_alone(comm: Any) -> None:
    """Open MPI 5.0 makes a communicator with both topologies of it."""
    goes = [[0, 1, 1], [2], [], [3, 0]][: comm.size]
    goes = [[r for r in each if r < comm.size] for each in goes]
    came = [(r, i) for r, each in enumerate(goes) for i, to in enumerate(each) if to == comm.rank]
    with comm.cart((comm.size,), periodic=True) as grid, grid.graph(goes[comm.rank]) as graph:
        got = graph.neighbour_all_to_all_ragged(
            [np.full(comm.rank + 1, 10 * comm.rank + i) for i in range(len(goes[comm.rank]))]
        )
        assert [a.tolist() for a in got] == [[10 * r + i] * (r + 1) for r, i in came]
        assert graph.neighbour_all_gather(float(comm.rank)).tolist() == [r for r, _ in came]
