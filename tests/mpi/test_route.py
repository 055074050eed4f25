"""M x N: whatever two distributions of the same points, each value arrives where it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcomm.mpmd.route import coupled_route


def block(total: int, size: int, rank: int) -> np.ndarray:
    """The points of a rank where total points are dealt out in blocks as even as possible."""
    return np.arange(total * rank // size, total * (rank + 1) // size, dtype=np.int64)


def carry_out(comm: Any, made: coupled_route.Route, source: np.ndarray, out: np.ndarray) -> None:
    """Move values along a route by plain messages."""
    sends = [comm.isend(np.ascontiguousarray(source[where]), rank, 1) for rank, where in made.gives]
    for rank, where in made.takes:
        out[where] = comm.recv(np.empty_like(out[where]), rank, 1)
    for request in sends:
        request.wait(20)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    total=st.integers(1, 60),
    kind=st.sampled_from(["blocks", "random", "runs"]),
    apart=st.sampled_from([1, 7, 2**34]),
)
def _exact(seed: int, total: int, kind: str, apart: int, comm: Any, together: Callable[..., None]) -> None:
    def body() -> None:
        rng = np.random.default_rng(seed)
        half = max(1, comm.size // 2)
        givers, takers = list(range(half)), list(range(half if comm.size > 1 else 0, comm.size))
        owner = rng.choice(givers, total)
        if kind != "random":
            owner.sort()
        points = [rng.permutation(np.flatnonzero(owner == r)) for r in range(comm.size)]
        if kind != "random":
            points = [np.sort(p) for p in points]
        wanted = [np.empty(0, np.int64)] * comm.size
        for r in takers:  # with points that several want, or one wants twice
            wanted[r] = (
                rng.integers(0, total, rng.integers(0, 2 * total)) if kind != "runs" else np.arange(total)
            )
        made = coupled_route.plan(comm.mpi, points[comm.rank] * apart, wanted[comm.rank] * apart)
        assert made.lack == (0, -1, 0, -1)
        value = np.sin(np.arange(total))
        out = np.full(len(wanted[comm.rank]), np.nan)
        carry_out(comm, made, value[points[comm.rank]], out)
        assert np.array_equal(out, value[wanted[comm.rank]])

    together((seed, total, kind, apart), body)


def test_any_permutation_of_any_partition_arrives_exactly(comm: Any, together: Callable[..., None]) -> None:
    _exact(comm=comm, together=together)


def test_blocks_meet_in_the_fewest_messages_and_need_no_index_lists(comm: Any) -> None:
    """Block to block over p ranks each: consecutive pieces, and only from those who overlap."""
    total = 12 * comm.size + 5
    there = block(total, comm.size, comm.size - 1 - comm.rank)
    made = coupled_route.plan(comm.mpi, block(total, comm.size, comm.rank), there)
    assert all(isinstance(where, slice) for _, where in made.gives + made.takes)
    assert len(made.gives) <= 2
    assert sum(where.stop - where.start for _, where in made.takes) == len(there)


@pytest.mark.parametrize(("long", "apart"), [(4, 1), (4, 10**10), (40, 1)])
def test_points_that_nobody_gives_or_two_give_are_counted_on_every_rank(
    comm: Any, long: int, apart: int
) -> None:
    """Whichever way the directory goes: by table, by a sorted list, by runs."""

    def lack(gives: np.ndarray, takes: np.ndarray) -> coupled_route.Lack:
        return coupled_route.plan(comm.mpi, gives * apart, takes * apart).lack

    p = comm.size
    mine, all_ = np.arange(long) + long * comm.rank, np.arange(long * p)
    lost = lack(mine, np.append(all_, [long * p + 7, long * p + 8]))
    assert lost == (2 * p, (long * p + 7) * apart, 0, -1)
    assert lack(mine[mine != 2], np.arange(long)) == (p, 2 * apart, 0, -1)
    assert lack(np.append(mine, 3), mine)[2:] == (p, 3 * apart)


@pytest.mark.parametrize("each", [100, 40_000])  # of a giver beyond one byte, and beyond one piece
def test_scattered_points_that_lie_consecutively_need_no_index_lists(comm: Any, each: int) -> None:
    """The only giver has them at random, the takers in blocks."""
    total = each * comm.size
    everything = np.random.default_rng(0).permutation(total) if comm.rank == 0 else np.arange(0)
    made = coupled_route.plan(comm.mpi, everything, block(total, comm.size, comm.rank))
    assert [(rank, where) for rank, where in made.takes] == [(0, slice(0, each))]
    out = np.empty(each)
    carry_out(comm, made, everything * 1.0, out)
    assert np.array_equal(out, block(total, comm.size, comm.rank))


def test_a_route_of_no_points_is_empty(comm: Any) -> None:
    made = coupled_route.plan(comm.mpi, None, None)
    assert made == ([], [], (0, -1, 0, -1))
