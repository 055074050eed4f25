"""Small all-reduces among ranks of a node, which go by memory that they share instead of by messages."""

from __future__ import annotations

import os
import time
import warnings
from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm
from hpcomm import short
from hpcomm.dtypes import BY_NAME
from hpcomm.reduction import resolve
from hpcomm.signature import head

DTYPES = ("float64", "float32", "int8", "uint16", "int64", "complex64")
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "bxor": np.bitwise_xor}


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> Iterator[hpcomm.Communicator]:
    """A communicator that goes the way, whether or not it pays."""
    monkeypatch.setattr(short.Short, "pays", lambda size: size > 1)
    with hpcomm.Communicator(MPI.COMM_WORLD, name="short") as made:
        yield made


@pytest.fixture
def calls(comm: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths that were laid out, each once for a lane."""
    if comm.size == 1:
        pytest.skip("one rank goes no way at all")
    seen: list[int] = []
    places = short.Short.places

    def noted(self: Any, code: int, count: int) -> Any:
        seen.append(count)
        return places(self, code, count)

    monkeypatch.setattr(short.Short, "places", noted)
    return seen


def parts(comm: Any, n: int, dtype: str) -> list[Any]:
    return [((np.arange(n) * 7 + 3 * rank) % 11 + 1).astype(dtype) for rank in range(comm.size)]


def folded(op: str, given: list[Any]) -> Any:
    result = given[0]
    for each in given[1:]:
        result = OPS[op](result, each)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_lengths_around_the_limit_give_the_definition(
    comm: Any, calls: list[int], op: str, dtype: str
) -> None:
    kind = np.dtype(dtype).kind
    if op not in {"f": ("sum", "prod", "min", "max"), "c": ("sum",)}.get(kind, tuple(OPS)):
        return
    most = short.MOST // np.dtype(dtype).itemsize
    for n in (1, 2, most - 1, most, most + 1):
        given = parts(comm, n, dtype)
        expected = folded(op, given)
        for _ in range(3):
            x = given[comm.rank].copy()
            np.testing.assert_array_equal(comm.all_reduce(x, op), expected)
            np.testing.assert_array_equal(x, given[comm.rank])
            assert comm.all_reduce(x, op, out=x) is x
            np.testing.assert_array_equal(x, expected)
    assert set(calls) == {1, 2, most - 1, most}


def test_ranks_bring_the_same_elements_in_any_form(comm: Any, calls: list[int]) -> None:
    """Strided, of another library, of several axes, from Python, with an observer: all meet on one way."""
    given = parts(comm, 6, "float64")
    expected = sum(given)
    mine = given[comm.rank]
    strided = np.zeros((6, 2))[:, 0]
    strided[:] = mine
    forms = [mine, strided, torch.from_numpy(mine.copy()), torch.from_numpy(mine.copy()).flip(0).flip(0)]
    for turn in range(2 * len(forms)):
        x = forms[(turn + comm.rank) % len(forms)]
        np.testing.assert_array_equal(np.asarray(comm.all_reduce(x)), expected)
    x = mine.reshape(2, 3)
    np.testing.assert_array_equal(comm.all_reduce(x, out=np.empty((2, 3))), expected.reshape(2, 3))
    np.testing.assert_array_equal(comm.all_reduce(np.array(2.5)), 2.5 * comm.size)
    assert comm.all_reduce(comm.rank + 0.5) == sum(rank + 0.5 for rank in range(comm.size))
    assert set(calls) == {1, 6}


def test_lengths_whose_signature_looks_short_are_none(comm: Any) -> None:
    if comm.size > 1:
        code = head("all_reduce", resolve("sum", BY_NAME["int8"]).code, BY_NAME["int8"].code)
        assert [comm._short.takes(code, n) for n in (0, 3, short.MOST, short.MOST + 1, (1 << 31) + 3)] == [
            False, True, True, False, False,
        ]  # fmt: skip


def test_averages_go_it_with_care(comm: Any, calls: list[int]) -> None:
    expected = [i + (comm.size - 1) / 2 for i in range(3)]
    assert comm.all_reduce(np.arange(3.0) + comm.rank, "avg").tolist() == expected
    assert calls == [3]


def test_factors_and_calls_in_the_background_stay_with_mpi(comm: Any, calls: list[int]) -> None:
    comm.all_reduce(np.ones(3), hpcomm.premul_sum(0.5))
    comm.all_reduce(np.ones(3), async_op=True).wait()
    assert calls == []


def test_sums_past_the_largest_number_warn_nobody(comm: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.array([1.7e308, np.inf if comm.rank else -np.inf, np.nan])
        y = comm.all_reduce(x)
    if comm.size > 1:
        assert np.isinf(y[0])
        assert np.isnan(y[1:]).all()
    assert np.geterr()["over"] == "warn"


def test_a_rank_may_run_ahead_and_others_come_late(comm: Any) -> None:
    """Calls that wait for nobody lie between, more than the ring remembers; so do long waits."""
    for turn in range(6):
        for i in range(150):
            comm.broadcast(np.array([float(i)]), root=turn % comm.size)
        if comm.rank == turn % comm.size:
            time.sleep(0.03)
        for i in range(5):
            x = np.array([float(turn), i * (comm.rank + 1.0)])
            ranks = comm.size
            assert comm.all_reduce(x).tolist() == [turn * ranks, i * ranks * (ranks + 1) / 2]


def test_mpi_moves_on_while_a_rank_waits(comm: Any) -> None:
    """A large message needs its sender's MPI until it is received; then only its receiver comes along."""
    if comm.size == 1:
        return
    n, right, left = 700_000, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    going = comm.isend(np.full(n, comm.rank + 1.0), right) if comm.rank % 2 == 0 else None
    if left % 2 == 0:
        np.testing.assert_array_equal(comm.recv(np.empty(n), left), np.full(n, left + 1.0))
    assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]
    if going is not None:
        going.wait()


def test_communicators_that_follow_each_other_do_not_see_old_flags(comm: Any) -> None:
    for turn in range(140):  # more than there are rings
        with comm.dup() as other:
            x = np.array([turn + comm.rank])
            assert other.all_reduce(x).tolist() == [turn * comm.size + sum(range(comm.size))]


def test_a_flag_of_long_ago_is_not_taken_for_todays(comm: Any) -> None:
    """So many calls that go another way lie between that the place in the ring comes again."""
    for turn in range(1, 5):
        if comm.rank == turn % comm.size:
            time.sleep(0.02)
        assert comm.all_reduce(np.array([turn])).tolist() == [turn * comm.size]
        for _ in range(63):
            comm.barrier()


def test_the_way_is_gone_where_it_pays(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (comm._short is not None) == (comm.size > 1)
    monkeypatch.undo()
    with hpcomm.Communicator(comm.mpi) as other:
        known = MPI.get_vendor()[0] == "MPICH" and os.uname().machine == "x86_64"
        assert (other._short is not None) == (other.size > 1 and known)
        np.testing.assert_array_equal(other.all_reduce(np.ones(2)), [comm.size] * 2)
    one = comm.rank != 0  # and only if all ranks say so
    monkeypatch.setattr(short.Short, "pays", lambda size: one)
    with hpcomm.Communicator(comm.mpi) as other:
        assert other._short is None
        np.testing.assert_array_equal(other.all_reduce(np.ones(2)), [comm.size] * 2)
    monkeypatch.undo()
    with hpcomm.Communicator(comm.mpi, check="off") as plain:
        assert plain._short is None
        np.testing.assert_array_equal(plain.all_reduce(np.ones(2)), [comm.size] * 2)


@pytest.mark.parametrize("kind", ["numpy", "buffer", "torch"])
def test_tuned_goes_it_where_the_default_is_best(
    comm: Any, calls: list[int], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HPCOMM_TUNED", str(tmp_path / "none.json"))
    x = [1.5, comm.rank]
    given = {"numpy": np.array, "buffer": partial(array, "d"), "torch": torch.tensor}[kind](x)
    total = np.array([1.5 * comm.size, sum(range(comm.size))])
    for _ in range(3):
        assert np.array_equal(np.asarray(comm.all_reduce(given, algorithm="tuned")), total)
    assert calls, "it went another way"
    one = calls.copy()
    found = comm.all_reduce(given, algorithm="ring")
    assert np.array_equal(np.asarray(found), total)
    assert calls == one
