"""Another module than pickle takes objects apart: what it takes, arrays in it, and agreement about it."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.communicator.communicator import Communicator

cloudpickle = pytest.importorskip("cloudpickle")


def test_lambdas_and_local_classes_travel_on_a_duplicate_that_takes_them(comm: Any) -> None:
    class Local:
        def __init__(self, x: Any) -> None:
            self.x = x

    with comm.dup(pickler=cloudpickle) as mine, mine.split(0) as part:
        for each in (mine, part):  # it is handed on
            functions = each.all_gather_object(lambda y, rank=comm.rank: y + rank)
            assert [f(1) for f in functions] == list(range(1, comm.size + 1))
        big = np.arange(100_000.0)
        got = mine.sendrecv_object(Local(big), mine.rank, mine.rank)
        assert np.array_equal(got.x, big)
        found = mine.broadcast_object(Local(big[::2]) if mine.rank == 0 else None)
        assert np.array_equal(found.x, big[::2])
        rank = comm.rank
        added = mine.all_reduce_object(lambda: rank, lambda a, b: lambda: a() + b())
        assert added() == sum(range(comm.size))
        with mine.dup(pickler=pickle) as plain, pytest.raises(hpcomm.UsageError, match="cannot be pickled"):
            plain.all_gather_object(lambda: 0)


def test_arrays_stay_out_of_the_pickle_and_no_gradient_is_lost_as_ever() -> None:
    from hpcomm.communicator.payloads.pickling import decode, encode

    x = np.arange(100_000.0)
    made = encode({"f": len, "x": x}, cloudpickle)
    assert len(made) == 2
    assert np.array_equal(decode(made)["x"], x)
    torch = pytest.importorskip("torch")
    leaf = torch.arange(100_000.0, requires_grad=True)
    made = encode({"f": lambda: 3, "x": leaf}, cloudpickle)
    assert len(made) == 2
    assert decode(made)["x"].requires_grad
    assert torch.equal(decode(made)["x"], leaf)
    with pytest.raises(hpcomm.UsageError, match="x needs a gradient"):
        encode({"f": lambda: 3, "x": leaf * 2}, cloudpickle)


def test_a_pickler_that_is_none_is_refused_on_all_ranks(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, message in (("no_such_pickler", "cannot be imported"), (len, "is no pickler")):
        with pytest.raises(hpcomm.ConfigError, match=message):
            comm.dup(pickler=wrong)
    monkeypatch.setenv("HPCOMM_PICKLER", "cloudpickle")
    with Communicator(comm.mpi) as mine:
        assert mine.context.settings.pickler is cloudpickle
        assert mine.all_gather_object(partial(lambda a, b: a + b, 1))[0](2) == 3


def test_ranks_that_pickle_otherwise_are_told_so(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hpcomm.MismatchError, match=r"pickled by (cloud)?pickle on rank \d"):
        comm.dup(pickler=cloudpickle if comm.rank == 0 else None)
    assert comm.all_reduce(1) == comm.size
