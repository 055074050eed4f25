"""Laws of partitions, for whatever shapes, meshes and widths Hypothesis thinks of, in one process."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcomm import LayoutError
from hpcomm.core.partition import Box, Partition, Points, cuts
from hpcomm.fields.routing import halo, halo_width, redistribute, rings


@st.composite
def partitions(draw: Any, shape: tuple[int, ...] | None = None, partial: bool = True) -> Partition:
    """Any partition: uneven cuts, several mesh axes on one array axis, copies, summands."""
    if shape is None:
        shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    mesh = {f"m{i}": draw(st.integers(1, 3)) for i in range(draw(st.integers(0, 3)))}
    split: list[list[str]] = [[] for _ in shape]
    summed = []
    for name in draw(st.permutations(list(mesh))):
        where = draw(st.integers(-2 if partial else -1, len(shape) - 1))
        if where >= 0:
            split[where].append(name)
        elif where == -2:
            summed.append(name)
    bounds = {}
    for axis, names in enumerate(split):
        parts = int(np.prod([mesh[name] for name in names], dtype=int))
        if draw(st.booleans()):
            inner = draw(st.lists(st.integers(0, shape[axis]), min_size=parts - 1, max_size=parts - 1))
            bounds[axis] = (0, *sorted(inner), shape[axis])
    return Partition(shape, mesh, [tuple(s) or None for s in split], bounds, summed)


@st.composite
def points(draw: Any, n: int, rest: tuple[int, ...] = ()) -> Points:
    ranks = draw(st.integers(1, 4))
    owner = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n)), int)
    order = np.array(draw(st.permutations(range(n))), int)
    wanted = [
        draw(st.lists(st.integers(0, n - 1), max_size=6, unique=True)) if n else [] for _ in range(ranks)
    ]
    owned = [order[owner[order] == r] for r in range(ranks)]
    ghosts = [np.array([g for g in wanted[r] if owner[g] != r], int) for r in range(ranks)]
    return Points((n, *rest), owned, ghosts)


def carried(routes: list[Any]) -> dict[tuple[int, int], list[tuple[Any, Any]]]:
    """(source, dest): pairs of regions, as messages would carry them; both ends must list as many."""
    out: dict[tuple[int, int], list[tuple[Any, Any]]] = {}
    ends = {(p.peer, d) for d, route in enumerate(routes) for p in route.receives}
    starts = {(s, p.peer) for s, route in enumerate(routes) for p in route.sends}
    assert ends == starts
    for s, d in starts:
        sent = [p.here for p in routes[s].sends if p.peer == d]
        got = [p.here for p in routes[d].receives if p.peer == s]
        assert len(sent) == len(got)
        out[s, d] = list(zip(sent, got, strict=True))
    return out


@given(st.integers(0, 50), st.integers(1, 9))
def test_cuts_are_those_of_numpys_array_split(n: int, parts: int) -> None:
    lengths = [len(x) for x in np.array_split(np.arange(n), parts)]
    assert list(np.diff(cuts(n, parts))) == lengths


@given(partitions())
def test_every_index_is_owned_once_by_each_set_of_copies(partition: Partition) -> None:
    times = np.zeros(partition.shape, int)
    first = np.zeros(partition.shape, int)
    for rank in range(partition.size):
        times[partition.box(rank).slices()] += 1
        first[partition.box(rank).slices()] += partition.is_first(rank)
        assert rank in partition.holders(partition.cell(rank), partition.summand(rank))
    copies = int(np.prod([partition.mesh[name] for name in partition.replicated], dtype=int))
    assert (times == copies * partition.summands).all()
    assert (first == 1).all()
    for index in product(*(range(n) for n in partition.shape)):
        assert index in partition.box(partition.owner(index))


@given(partitions(partial=False), st.data())
def test_a_halo_holds_what_the_whole_has_there(partition: Partition, data: Any) -> None:
    ndim = partition.ndim
    widths = tuple((data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))) for _ in range(ndim))
    rings = [a for a in range(ndim) if data.draw(st.booleans())]
    corners = data.draw(st.booleans())
    whole = np.arange(1, 1 + int(np.prod(partition.shape))).reshape(partition.shape)
    routes = [halo(partition, r, widths, rings, corners) for r in range(partition.size)]
    boxes = [partition.box(r) for r in range(partition.size)]
    local = [np.zeros(b.grown(widths).shape, int) for b in boxes]
    for (s, d), pairs in carried(routes).items():
        for sent, got in pairs:
            assert (boxes[s] & sent) == sent
            assert sent.size
            origin = boxes[d].grown(widths).start
            assert not local[d][got.slices(origin)].any(), "received twice"
            local[d][got.slices(origin)] = whole[sent.slices()]
    for r, box in enumerate(boxes):
        grown = box.grown(widths)
        for index in product(*(range(a, b) for a, b in zip(grown.start, grown.stop, strict=True))):
            aside = [not a <= i < b for i, a, b in zip(index, box.start, box.stop, strict=True)]
            inside = all(
                0 <= i < n or a in rings for a, (i, n) in enumerate(zip(index, partition.shape, strict=True))
            )
            wanted = box.size and any(aside) and inside and (corners or sum(aside) == 1)
            at = tuple(i - o for i, o in zip(index, grown.start, strict=True))
            expected = whole[tuple(np.mod(index, partition.shape))] if wanted else 0
            assert local[r][at] == expected, (r, index)


@given(st.data())
def test_redistribution_sends_every_element_once_to_each_that_is_to_hold_it(data: Any) -> None:
    source = data.draw(partitions())
    target = data.draw(partitions(source.shape))
    common = max(source.size, target.size) + data.draw(st.integers(0, 2))
    origins = data.draw(st.permutations(range(common)))[: source.size]
    tos = data.draw(st.permutations(range(common)))[: target.size]
    routes = [redistribute(source, target, r, origins, tos) for r in range(common)]
    times = [np.zeros(source.shape, int) for _ in range(common)]
    for (s, d), pairs in carried(routes).items():
        assert s in origins
        assert d in tos
        for sent, got in pairs:
            assert sent == got
            assert (source.box(origins.index(s)) & sent) == sent
            times[d][got.slices()] += 1
    for d in range(common):
        holds = d in tos and target.summand(tos.index(d)) == 0
        expected = np.zeros(source.shape, int)
        if holds:
            expected[target.box(tos.index(d)).slices()] = source.summands
        assert (times[d] == expected).all()
        if holds and d in origins and source.summands == 1:
            own = source.box(origins.index(d)) & target.box(tos.index(d))
            kept = sum(p.here.size for p in routes[d].receives if p.peer == d)
            assert kept == own.size, "what a rank has already must not travel"


@given(st.integers(0, 12), st.data())
def test_points_are_exchanged_by_global_index(n: int, data: Any) -> None:
    source = data.draw(points(n))
    target = data.draw(st.one_of(points(n), st.integers(1, 4).map(lambda p: Partition((n,), {"p": p}))))
    common = max(source.size, target.size)
    for a, b in ((source, target), (target, source)):
        got = [set() for _ in range(common)]
        for (_, d), pairs in carried([redistribute(a, b, r) for r in range(common)]).items():
            for sent, here in pairs:
                assert list(sent) == list(here)
                assert not got[d] & set(here)
                got[d] |= set(here)
        for d in range(b.size):
            mine = set(b.owned[d]) if isinstance(b, Points) else set(range(*b.box(d).slices()[0].indices(n)))
            assert got[d] == mine
    ghosts = carried([halo(source, r) for r in range(source.size)])
    for r in range(source.size):
        arrived = sorted(
            int(i) for (_, d), pairs in ghosts.items() if d == r for _, here in pairs for i in here
        )
        assert arrived == sorted(source.ghosts[r])
        assert all(
            source.owner(i) == s
            for (s, d), pairs in ghosts.items()
            if d == r
            for _, here in pairs
            for i in here
        )


def test_boxes_meet_move_and_grow() -> None:
    a, b = Box((0, 2), (4, 6)), Box((3, 0), (9, 3))
    assert a & b == Box((3, 2), (4, 3))
    assert (Box((0,), (2,)) & Box((5,), (9,))).size == 0
    assert str(a.grown(((1, 0), (0, 2)))) == "[-1:4, 2:8]"
    assert (3, 5) in a
    assert (4, 5) not in a
    assert halo_width((1, (0, 2)), 2) == ((1, 1), (0, 2))
    assert (rings(True, 2), rings(False, 2), rings([-1], 2)) == ((0, 1), (), (1,))
    assert Partition((4,), {"dp": 2}, partial="dp").partial == ("dp",)
    assert len({Points((3,), [range(3)]) for _ in range(2)}) == 2  # their arrays are not compared


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Partition((4, 4), {"p": 2}, ("p",)), "split .* has 1 entries, the shape .* 2 axes"),
        (lambda: Partition((4,), {"p": 2}, ("q",)), r"mesh axes \['q'\] do not exist"),
        (lambda: Partition((4, 4), {"p": 2}, ("p", "p")), "used twice"),
        (lambda: Partition((4,), {"p": 2}, bounds={0: (0, 3)}), r"bounds \(0, 3\) do not cut the 4 indices"),
        (lambda: halo(Partition((4,), {"p": 2}), 0, -1), "halo width -1 does not fit 1 axes"),
        (lambda: redistribute(Partition(4, {}), Partition(5, {}), 0), r"shape \(4,\), the target \(5,\)"),
        (lambda: redistribute(Partition(4, {"p": 2}), Partition(4, {}), 0, [0]), "are not the 2 ranks"),
        (lambda: Points((3,), [[0, 1], [1, 2]]), "not owned exactly once, the first is 1"),
        (lambda: Points((3,), [[0, 1, 3]]), "do not fit 3 points"),
        (lambda: Points((3,), [range(3)]).owner(-1), "index -1 is none of 3 points"),
        (lambda: Partition((4, 4), {"p": 2}).owner((3, 4)), r"index \(3, 4\) is not in the shape \(4, 4\)"),
        (lambda: Partition((4, 4), {"p": 2}).owner([3]), "is not in the shape"),
        (lambda: Partition((4, 4), {"p": 2}, 3), "split is 3"),  # type: ignore[arg-type]
        (lambda: Partition((4, 4), {"p": 2}, ("p", 3)), r"split is \('p', 3\)"),  # type: ignore[arg-type]
        (lambda: Partition((4, 4), {"p": 2}, bounds={2: (0, 4)}), r"bounds cut axes \[2\]"),
        (lambda: Partition((4, 4), {"p": 0}), r"the mesh is \{'p': 0\}"),
        (lambda: Partition((4, 4), [("p", 2)]), "mesh is of type list"),  # type: ignore[arg-type]
        (lambda: halo(Partition((4, 4), {"p": 2}), 0, 1, [True, False]), "periodic is"),
        (lambda: Points((3,), [[0, 1.5], [2]]), "global indices of dtype float64"),  # type: ignore[list-item]
        (lambda: Points(2, [np.ma.masked_equal([0, 1], 1)]), "global indices are a masked array"),
        (lambda: Points((3,), [[0], [1, 2]], [[1]]), "owned is given for 2 ranks, ghosts for 1"),
        (lambda: Partition((8, 2.5), {}), r"the shape of the whole is \(8, 2.5\)"),  # type: ignore[arg-type]
        (lambda: Partition((8, -1), {}), r"the shape of the whole is \(8, -1\)"),
        (lambda: halo(Partition((4,), {"p": 2}), 0, 1.5), "the halo is 1.5"),  # type: ignore[arg-type]
        (lambda: halo(Partition((4,), {"p": 2}), 0, 1, [1]), r"periodic is \[1\], there are 1 axes"),
        (
            lambda: redistribute(Points((4, 4), [range(4)]), Partition((4, 4), {"p": 2}, (None, "p")), 0),
            "points cannot be exchanged",
        ),
    ],
)
def test_what_does_not_fit_is_said(make: Any, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        make()


def test_a_halo_among_very_many_parts_looks_at_neighbours_only() -> None:
    """Looking at all parts for each of them would take most of an hour."""
    whole = Partition((400_000, 8), {"y": 100_000}, ("y", None))
    route = halo(whole, 0, (1, 0), periodic=[0])
    assert [piece.peer for piece in route.sends] == [1, 99_999]
    assert [piece.here.start for piece in route.receives] == [(4, 0), (-1, 0)]
