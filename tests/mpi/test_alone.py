"""A communicator of one rank: its collectives are copies, which no receive that is waiting can take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcomm

pytestmark = pytest.mark.few


@pytest.fixture
def alone(comm: Any) -> Iterator[Any]:
    """This rank by itself, with receives of any tag under way."""
    with comm.split(comm.rank) as own:
        yield own


def of_any_tag(comm: Any) -> tuple[Any, Any]:
    """A message and an object that comm waits for."""
    return comm.irecv(np.empty(1000), source=None, tag=None), comm.irecv_object(None, None)


def let_come(comm: Any, requests: tuple[Any, Any]) -> None:
    """Send both what they wait for: nothing else has come."""
    assert not any(request.done() for request in requests)
    comm.send(np.arange(1000.0), 0, 7)
    comm.send_object("seven", 0, 7)
    assert requests[0].wait()[999] == 999
    assert requests[1].wait() == "seven"


@pytest.mark.parametrize("how", ["blocking", "background", "plan"])
@pytest.mark.parametrize("layout", ["contiguous", "sliced"])
@pytest.mark.parametrize("n", [5, 30_000])
def test_collectives_of_one_rank_are_copies_beside_a_receive_of_any_tag(
    alone: Any, how: str, layout: str, n: int
) -> None:
    waiting = of_any_tag(alone)
    x = np.arange(2.0 * n).reshape(1, 2 * n)[:, :: 2 if layout == "sliced" else 1]
    first = lambda a, b: a  # noqa: E731
    for verb, given, wanted, words in (
        ("broadcast", x, x, {}), ("reduce", x, x, {}), ("all_reduce", x, x, {}), ("gather", x, x[None], {}),
        ("all_gather", x, x[None], {}), ("scatter", x, x[0], {}), ("reduce_scatter", x, x[0], {}),
        ("reduce_scatter", x, x[0], {"op": first}), ("all_to_all", x, x, {}), ("scan", x, x, {}),
        ("exscan", x, 0 * x, {}),
    ):  # fmt: skip
        if how == "plan":
            with alone.plan(verb, given, **words) as plan:
                got = [np.array(plan()), np.array(plan())][1]
        else:
            got = getattr(alone, verb)(given, async_op=how == "background", **words)
            got = got.wait() if how == "background" else got
        assert np.array_equal(got, wanted), verb
    let_come(alone, waiting)


@pytest.mark.parametrize("async_op", [False, True])
def test_objects_of_one_rank_are_not_taken_by_a_receive_of_any_tag(alone: Any, async_op: bool) -> None:
    waiting = of_any_tag(alone)
    for form, one in (("object", {"a": 1}), ("ragged", np.arange(5000))):
        for verb, given, is_list in (
            ("broadcast", one, False), ("gather", one, True), ("all_gather", one, True),
            ("scatter", [one], False), ("all_to_all", [one], True),
        ):  # fmt: skip
            got = getattr(alone, f"{verb}_{form}")(given, async_op=async_op)
            got = got.wait() if async_op else got
            assert np.array_equal(got[0] if is_list else got, one), verb
    let_come(alone, waiting)


@pytest.mark.parametrize("periodic", [True, False])
def test_a_grid_of_one_rank_is_its_own_neighbour(alone: Any, periodic: bool) -> None:
    grid = alone.cart((1, 1), periodic=[periodic, True])
    assert len(grid.sources) == 4
    waiting = of_any_tag(grid)
    x = np.arange(12.0).reshape(4, 3)
    wanted = x[[1, 0, 3, 2]]
    everywhere = np.stack([x] * 4)
    if not periodic:
        wanted[:2] = 0
        everywhere[:2] = 0
    for async_op in (False, True):
        for verb, right in (("neighbour_all_to_all", wanted), ("neighbour_all_gather", everywhere)):
            for given in (x, np.asfortranarray(x)):
                got = getattr(grid, verb)(given, async_op=async_op)
                assert np.array_equal(got.wait() if async_op else got, right), verb
    scalars = grid.neighbour_all_to_all(x[:, 0])
    assert np.array_equal(scalars, wanted[:, 0])
    got = grid.neighbour_all_to_all_ragged([np.full(i, i) for i in range(4)])
    assert [None if a is None else a.size for a in got] == ([1, 0] if periodic else [None, None]) + [3, 2]
    let_come(grid, waiting)
    grid.close()


def test_a_graph_of_one_rank_has_as_many_ways_out_as_in(alone: Any) -> None:
    waiting = of_any_tag(alone)
    with alone.graph([0, 0]) as made:
        assert np.array_equal(made.neighbour_all_to_all(np.array([[1.0], [2.0]])), [[1], [2]])
    with pytest.raises(hpcomm.UsageError, match="2 edges of the only rank go out, and 1 come in"):
        alone.graph([0, 0], [0])
    let_come(alone, waiting)
