"""Long calls go by memory of the node or by MPI, whichever is the quicker, on all ranks alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from test_within import FORMS, VERBS, called, due, given, same

import hpcomm
from hpcomm.core.dtypes import BY_NAME
from hpcomm.core.reduction import NAMES
from hpcomm.core.signature import head
from hpcomm.node import autotune, node_collectives
from hpcomm.node.arrival_flags import is_wanted

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size == 1 or not is_wanted(), reason="one rank, or a processor without this way"
)
N = 20_000  # elements


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that went by memory of the node; contests are of shorter calls, and come sooner."""
    monkeypatch.setattr(autotune, "LEAST", 32 << 10)
    monkeypatch.setattr(autotune, "_ROW", 3)
    monkeypatch.setattr(autotune, "_PERIOD", range(16, 32))
    monkeypatch.setattr(autotune, "_STEADY", 16)
    seen: list[int] = []
    make = node_collectives.NodeCollectives._make

    def noted(self: Any, *what: Any) -> Any:
        way = make(self, *what)

        def call(*arguments: Any) -> None:
            seen.append(1)
            way(*arguments)

        return call

    monkeypatch.setattr(node_collectives.NodeCollectives, "_make", noted)
    return seen


@pytest.fixture
def comm(ours: list[int]) -> Iterator[hpcomm.Communicator]:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="contested") as made:
        yield made


def tell(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
    """Let trials take so long, one after the other."""
    clock, steps = SimpleNamespace(now=0.0), cycle(step for each in seconds for step in (0.0, each))

    def perf_counter() -> float:
        clock.now += next(steps)
        return clock.now

    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=perf_counter))


@pytest.mark.parametrize("quicker", ["ours", "theirs"])
@pytest.mark.parametrize("verb", VERBS)
def test_calls_go_the_quicker_way_and_are_right_either_way(
    comm: Any, ours: list[int], monkeypatch: pytest.MonkeyPatch, verb: str, quicker: str
) -> None:
    monkeypatch.setattr(autotune, "_CLEARLY", {"ours": np.inf, "theirs": 0.0}[quicker])
    for turn in range(16 + 32 + 1):
        form, root = FORMS[(turn + comm.rank) % len(FORMS)], turn % comm.size
        x = form(given(comm, verb, comm.rank, N, np.int32))
        assert same(called(comm, verb, x, root), due(comm, verb, N, root, np.int32)), turn
    # Periods begin with 3 calls the known way, and 3 the other. There were one of 16 and one of 32 calls, or
    # one of 32, and the next one.
    assert len(ours) == {"ours": 49 - 3 - 3, "theirs": 3 + 3}[quicker]


def test_all_ranks_stay_with_the_same_way_whatever_each_measures(
    comm: Any, ours: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By MPI rank 0 takes longest, 3 s; the other way it takes 1 s, and the last rank 5 s or more."""
    ways = [1.0 + 4 * comm.rank, 3.0 / (1 + comm.rank)]
    tell(monkeypatch, [ways[0]] * 3 + [ways[1]] * 3)
    x = np.ones(N, np.int64)
    for _ in range(16):
        assert comm.all_reduce(x, out=x.copy())[0] == comm.size
    assert len(ours) == 3


@pytest.mark.parametrize(
    ("of_mpi", "way"), [((1.0, 9.0), "ours"), ((1.0, 5.0), "theirs"), ((9.0, 1.0), "ours")]
)
def test_calls_from_two_roots_in_turn_count_as_pairs(
    comm: Any, ours: list[int], monkeypatch: pytest.MonkeyPatch, of_mpi: tuple[float, float], way: str
) -> None:
    """By memory each takes 4 s. Neither the first call of a row counts, nor one that is disturbed."""
    monkeypatch.setattr(autotune, "_ROW", 5)
    tell(monkeypatch, [0.0, 4.0, 4.0, 99.0, 4.0, 0.0, *of_mpi, *of_mpi])
    x = np.ones(N)
    for turn in range(16):
        comm.broadcast(x, turn % 2, out=x)
    assert len(ours) == {"ours": 16 - 5, "theirs": 5}[way]


@pytest.mark.parametrize(
    ("seconds", "steady", "trials"), [(1.0, 16, 6 + 6 + 6), (1.0, 32, 6 + 6), (1e-3, 16, 6 + 6)]
)
def test_calls_that_take_long_are_tried_again_sooner(
    comm: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, steady: int, trials: int
) -> None:
    """Periods grow from 16 calls to 32 where these are steady, or take less than half a second."""
    monkeypatch.setattr(autotune, "_STEADY", steady)
    monkeypatch.setattr(autotune, "_CLEARLY", np.inf)
    clock = SimpleNamespace(now=0.0, asked=0)

    def perf_counter() -> float:
        clock.asked += 1
        clock.now += seconds
        return clock.now

    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=perf_counter))
    x = np.ones(N, np.int64)
    for _ in range(16 + 16 + 8):
        comm.all_reduce(x, out=x.copy())
    assert clock.asked == 2 * trials


def test_short_calls_are_not_tried(comm: Any, ours: list[int]) -> None:
    x = np.ones((32 << 10) // 8 // 2 - 1)
    for _ in range(8):
        comm.broadcast(x, out=x)
    assert len(ours) == 8


@pytest.mark.parametrize("verb", ["all_reduce", "reduce", "reduce_scatter"])
def test_sums_of_three_that_could_differ_in_their_bits_are_not_tried(verb: str) -> None:
    def is_exact(op: str, dtype: str, size: int) -> bool:
        return node_collectives._is_exact(head(verb, NAMES.index(op), BY_NAME[dtype].code, 3), size)

    assert is_exact("sum", "int64", 3)
    assert is_exact("max", "uint8", 3)
    assert is_exact("sum", "float64", 2)
    assert is_exact("prod", "complex64", 2)
    assert not is_exact("sum", "float64", 3)
    assert not is_exact("sum", "complex64", 3)
    assert not is_exact("max", "float32", 2)  # of a NaN and a number MPI may take either


def test_what_is_only_moved_may_always_be_tried() -> None:
    for verb in ("broadcast", "gather", "all_gather", "scatter", "all_to_all"):
        assert node_collectives._is_exact(head(verb, 0, BY_NAME["float64"].code, 1), 9)
