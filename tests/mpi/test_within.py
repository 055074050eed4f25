"""Collectives of ranks of a node that go by memory that they share instead of by messages."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm
from hpcomm.core import verbs
from hpcomm.core.dtypes import BY_NAME
from hpcomm.core.signature import head
from hpcomm.node import arrival_flags, cells, node_collectives, segment
from hpcomm.node.arrival_flags import is_wanted
from hpcomm.node.segment import NodeSegment, _cores

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size == 1 or not is_wanted(), reason="one rank, or a processor without this way"
)
MOVES = ("broadcast", "gather", "all_gather", "scatter", "all_to_all")
VERBS = (*MOVES, "all_reduce", "reduce", "reduce_scatter")


@pytest.fixture
def comm(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[hpcomm.Communicator]:
    """One without places for small calls, for which see test_small.py."""
    monkeypatch.setattr(NodeSegment, "take_places", lambda _: -1)
    with hpcomm.Communicator(MPI.COMM_WORLD, name="near", check=getattr(request, "param", "light")) as made:
        yield made


BOTH = pytest.mark.parametrize("comm", ["light", "off"], indirect=True)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs that went this way, once for every kind of call."""
    seen: list[str] = []
    make = node_collectives.NodeCollectives._make

    def noted(self: Any, tables: Any, code: int, *others: Any) -> Any:
        seen.append(node_collectives.VERBS[code & node_collectives.VERB])
        return make(self, tables, code, *others)

    monkeypatch.setattr(node_collectives.NodeCollectives, "_make", noted)
    return seen


def given(comm: Any, verb: str, rank: int, n: int, dtype: Any = np.float32) -> Any:
    """What a rank brings: n elements, or n for each rank."""
    shape = (comm.size, n) if verb in verbs.INPUT_BLOCKS else (n,)
    return ((np.arange(np.prod(shape)) * 7 + 3 * rank) % 11).astype(dtype).reshape(shape)


def due(comm: Any, verb: str, n: int, root: int, dtype: Any = np.float32) -> Any:
    """What this rank should get, by the definition; None: nothing."""
    brought = [given(comm, verb, rank, n, dtype) for rank in range(comm.size)]
    if verb in ("gather", "reduce") and comm.rank != root:
        return None
    if verb in verbs.REDUCTIONS:
        total = sum(brought)
        return total[comm.rank] if verb == "reduce_scatter" else total
    if verb == "broadcast":
        return brought[root]
    if verb == "scatter":
        return brought[root][comm.rank]
    return np.stack([each[comm.rank] for each in brought] if verb == "all_to_all" else brought)


def called(comm: Any, verb: str, x: Any, root: int, **more: Any) -> Any:
    rooted = verb in ("broadcast", "gather", "scatter", "reduce")
    return getattr(comm, verb)(x, **({"root": root} if rooted else {}), **more)


def same(found: Any, expected: Any) -> bool:
    return found is None if expected is None else np.array_equal(np.asarray(found), expected)


FORMS: list[Callable[[Any], Any]] = [
    np.copy,
    lambda x: torch.from_numpy(x.copy()),
    lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    lambda x: torch.from_numpy(x.copy()).flip(-1).flip(-1),
]


@pytest.mark.parametrize("verb", VERBS)
def test_all_lengths_and_forms_give_the_definition(comm: Any, gone: list[str], verb: str) -> None:
    """Ranks bring different forms of array, so fast paths and the careful way meet."""
    pieces = node_collectives._piece(verb, comm.size) // 4
    for turn, n in enumerate((1023, 1024, 4099, 20_000, pieces, pieces + 1, 2 * pieces + 77)):
        root = turn % comm.size
        for once in range(3):
            x = FORMS[(turn + once * comm.rank) % len(FORMS)](given(comm, verb, comm.rank, n))
            assert same(called(comm, verb, x, root), due(comm, verb, n, root)), (n, once)
            assert same(x, given(comm, verb, comm.rank, n))
    assert set(gone) == {verb}


@pytest.mark.parametrize("form", FORMS[:2])
def test_results_land_where_the_user_wants_them(comm: Any, gone: list[str], form: Any) -> None:
    p, n = comm.size, 70_001
    total = due(comm, "all_reduce", n, 0)
    for root in range(p):
        x = form(given(comm, "all_reduce", comm.rank, n))
        assert comm.all_reduce(x, out=x) is x
        assert same(x, total)
        x = form(given(comm, "broadcast", comm.rank, n))
        assert comm.broadcast(x, root, out=x) is x
        assert same(x, due(comm, "broadcast", n, root))
        x = form(given(comm, "reduce", comm.rank, n))
        comm.reduce(x, root=root, out=x)
        assert same(x, total if comm.rank == root else given(comm, "reduce", comm.rank, n))
        whole = form(np.zeros((p, n), np.float32))
        whole[comm.rank] = form(given(comm, "all_gather", comm.rank, n))
        comm.all_gather(whole[comm.rank], out=whole)
        assert same(whole, due(comm, "all_gather", n, root))
        whole = form(np.zeros((p, n), np.float32))
        whole[comm.rank] = form(given(comm, "gather", comm.rank, n))
        comm.gather(whole[comm.rank], out=whole, root=root)
        assert comm.rank != root or same(whole, due(comm, "gather", n, root))
        whole = form(given(comm, "scatter", comm.rank, n // p))
        mine = whole[comm.rank]
        comm.scatter(whole, out=mine, root=root)
        assert same(mine, due(comm, "scatter", n // p, root))
    assert set(gone) == {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"}


@BOTH
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "complex128", "longdouble"])
def test_elements_of_all_types(comm: Any, gone: list[str], dtype: str) -> None:
    for verb in VERBS:
        if verb in verbs.REDUCTIONS and dtype in ("bool", "longdouble"):
            continue
        n = 20_001
        for _ in range(2):
            found = called(comm, verb, given(comm, verb, comm.rank, n, dtype), 0)
            assert same(found, due(comm, verb, n, 0, dtype)), verb
    assert set(gone) >= set(MOVES)


def test_halves_are_moved_as_they_are(comm: Any, gone: list[str]) -> None:
    x = torch.arange(9000).to(torch.bfloat16)
    y = comm.broadcast(x + comm.rank, root=1)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, x + 1)
    assert torch.equal(comm.all_gather(x)[-1], x)
    z = comm.all_reduce(torch.ones(9000, dtype=torch.bfloat16))  # folded in float32, by MPI
    assert bool((z == comm.size).all())
    assert gone == ["broadcast", "all_gather"]


def test_averages(comm: Any, gone: list[str]) -> None:
    x = np.arange(5000.0) + comm.rank
    expected = np.arange(5000.0) + (comm.size - 1) / 2
    np.testing.assert_allclose(comm.all_reduce(x, "avg"), expected)
    np.testing.assert_allclose(comm.all_reduce(x * 1j, "avg"), expected * 1j)
    cut = np.broadcast_to(x, (comm.size, 5000))
    np.testing.assert_allclose(comm.reduce_scatter(cut, "avg"), expected)
    assert comm.all_reduce(x, "avg", out=x) is x
    np.testing.assert_allclose(x, expected)
    assert set(gone) == {"all_reduce", "reduce_scatter"}


def test_sums_have_the_same_bits_on_all_ranks_and_in_every_form(comm: Any) -> None:
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal(200_001).astype(np.float32)
    sums = [comm.all_reduce(x), comm.all_reduce(torch.from_numpy(x)).numpy(), comm.all_reduce(x[::-1])[::-1]]
    everyone = comm.all_gather_object([each.tobytes() for each in sums])
    assert len({each for theirs in everyone for each in theirs}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = comm.all_reduce(np.full(60_000, 1.7e308))
    assert np.isinf(y).all()


@BOTH
def test_any_verbs_follow_each_other_while_ranks_come_late(comm: Any) -> None:
    """A random program, the same on all ranks, whose ranks sleep at other times: old data would be seen."""
    same_for_all, own = random.Random(5), random.Random(comm.rank)
    for turn in range(100):
        verb = same_for_all.choice(VERBS)
        n, root = same_for_all.choice((10, 5_000, 9_000, 150_000)), same_for_all.randrange(comm.size)
        if own.random() < 0.1:
            time.sleep(own.random() * 3e-3)
        base = np.float32(turn)
        found = called(comm, verb, given(comm, verb, comm.rank, n) + base, root)
        expected = due(comm, verb, n, root)
        if expected is not None:
            expected += base * (comm.size if verb in verbs.REDUCTIONS else 1)
        assert same(found, expected), (turn, verb, n)


@BOTH
def test_a_place_is_not_laid_on_while_somebody_reads_from_it(comm: Any) -> None:
    """The root runs ahead as far as it may, and more often than flags have numbers."""
    for turn in range(2 * arrival_flags.NUMBERS + 5):
        x = np.full(4000, float(turn if comm.rank == 0 else -1))
        if comm.rank and turn % 40 == 7:
            time.sleep(2e-3)
        comm.broadcast(x, root=0, out=x)
        assert (x == turn).all(), turn


def test_a_flag_of_long_ago_is_not_taken_for_todays(comm: Any) -> None:
    """Long all-reduces have a second flag; so many others lie between that its number comes again."""
    x, few = np.ones(100_000, np.float32), np.ones(2000, np.float32)
    steps_of_one = -(-x.nbytes // node_collectives.NODE_PIECE)
    for turn in range(1, 4):
        if comm.rank == turn % comm.size:
            time.sleep(0.02)
        found = comm.all_reduce(x * turn)
        assert (found == turn * comm.size).all()
        for _ in range(arrival_flags.NUMBERS - steps_of_one):
            comm.all_reduce(few)


def test_background_calls_plans_and_named_algorithms_stay_with_others(comm: Any, gone: list[str]) -> None:
    x = np.ones(5000)
    comm.all_reduce(x, async_op=True).wait()
    comm.all_reduce(x, algorithm="ring")
    comm.all_reduce(x, deterministic=True)
    comm.all_reduce(x, hpcomm.premul_sum(0.5))
    comm.all_reduce(x, lambda a, b: a + b)
    with comm.plan("all_reduce", x) as plan:
        plan()
    with hpcomm.Communicator(MPI.COMM_WORLD, check="full") as full:
        full.all_reduce(x)
    assert gone == []


def test_ranks_that_disagree_are_told(gone: list[str]) -> None:
    for n in (5000, 100_000):  # longer ones MPI may carry, and such a job is ended
        with hpcomm.Communicator(MPI.COMM_WORLD, name="near") as comm:
            comm.all_reduce(np.ones(n))
            with pytest.raises(hpcomm.MismatchError, match=r"disagree about call|out of step"):
                comm.all_reduce(np.ones(n, np.float32 if comm.rank == 0 else np.float64))
    assert "all_reduce" in gone


@BOTH
def test_where_memory_is_short_mpi_carries_the_calls(
    comm: Any, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 0:  # on one rank, so on all
        monkeypatch.setattr(node_collectives, "NODE_MEMORY", node_collectives._taken + 300_000)
    x = np.ones(5000)
    assert comm.all_reduce(x)[0] == comm.size
    assert gone == ["all_reduce"]
    for _ in range(3):
        assert comm.all_reduce(np.ones(100_000))[-1] == comm.size  # needs more than there is
        assert comm.all_reduce(x)[0] == comm.size
    assert gone == ["all_reduce"]
    assert comm.node_collectives is None


def test_where_memory_is_short_small_calls_stay(gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_collectives, "NODE_MEMORY", 0)
    with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
        for _ in range(3):
            assert comm.all_reduce(np.ones(5000))[-1] == comm.size
            assert comm.all_reduce(np.ones(700))[-1] == comm.size
            x = np.ones(2000) if comm.rank == 0 else np.zeros(2000)
            assert comm.broadcast(x, out=x)[-1] == 1
        assert comm.node_collectives is not None
        small = comm.node_collectives.small
        assert small is not None
        assert comm.node_collectives.takes(head("broadcast", dtype=BY_NAME["float64"].code), small.room // 8)
        assert not comm.node_collectives.takes(
            head("broadcast", dtype=BY_NAME["float64"].code), small.room // 8 + 1
        )


def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = node_collectives._taken
    for _ in range(3):
        with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
            comm.all_reduce(np.ones(5000))
            comm.all_reduce(np.ones(100_000))
            assert node_collectives._taken == before + cells.table_bytes(node_collectives.NODE_PIECE)
        assert node_collectives._taken == before


def test_the_user_can_leave_it_to_mpi(gone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if MPI.COMM_WORLD.rank == 0:  # one rank is enough
        monkeypatch.setenv("HPCOMM_SHARED_MEMORY", "off")
    with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
        assert comm.all_reduce(np.ones(5000))[0] == comm.size
        assert comm.node_collectives is None
    assert gone == []


def test_ranks_that_check_at_different_levels_go_the_same_way(gone: list[str]) -> None:
    level = "off" if MPI.COMM_WORLD.rank == 0 else "light"
    with hpcomm.Communicator(MPI.COMM_WORLD, check=level) as comm:
        assert comm.all_reduce(np.ones(5000))[0] == comm.size
    assert gone == ["all_reduce"]


def test_a_wrong_word_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_SHARED_MEMORY", "no")
    with pytest.raises(hpcomm.ConfigError, match="HPCOMM_SHARED_MEMORY is 'no'"):
        hpcomm.Communicator(MPI.COMM_WORLD)


@pytest.mark.parametrize("verb", ["barrier", "all_reduce", "update_halo"])
def test_a_rank_that_waits_moves_mpi_on_while_a_message_that_has_come_waits(own_comm: Any, verb: str) -> None:
    """Another rank may need that before it can come. Asked for what is there, MPI does nothing else."""
    field, n = hpcomm.Field(own_comm.mesh(y=-1), (4 * own_comm.size, 8), halo=1), 1 << 17
    comm = field.comm  # whose messages a halo looks at
    meet = {"barrier": comm.barrier, "all_reduce": lambda: comm.all_reduce(np.ones(9))}.get(
        verb, lambda: field.update_halo()
    )
    meet()
    coming = [comm.irecv(np.empty(n), 1, 2) for _ in range(3)] if comm.rank == 0 else []
    in_time = True
    if comm.rank == 1:
        comm.send(np.ones(1), 0, 1)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.05)  # for rank 0 to wait already
        going = [comm.isend(np.ones(n), 0, 2) for _ in range(3)]
        with suppress(hpcomm.WaitTimeoutError):
            in_time = False
            for request in going:
                request.wait(timeout=5)
            in_time = True
    meet()
    for request in coming or (going if comm.rank == 1 and not in_time else ()):
        request.wait()
    if comm.rank == 0:
        comm.recv(np.empty(1), 1, 1)
    assert in_time, "rank 0 did not take what was sent to it while it waited"


def test_cores_are_counted_for_all_ranks_together(comm: Any) -> None:
    """Each alone may be bound to one, which does not make the node crowded."""
    node_segment, own = segment.current, os.sched_getaffinity(0)
    assert node_segment is not None
    everyone = set().union(*comm.all_gather_object(own))
    assert node_segment.is_crowded == (comm.size > len(everyone))
    os.sched_setaffinity(0, {sorted(everyone)[comm.rank % len(everyone)]})
    try:
        assert _cores(MPI.COMM_WORLD) == min(comm.size, len(everyone))
    finally:
        os.sched_setaffinity(0, own)
