"""Elementwise extremes and whose they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from arrays import make, plain_of

import hpcomm

pytestmark = pytest.mark.few


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("numpy", "float64"), ("numpy", "bfloat16"), ("torch", "float32"), ("torch", "bfloat16"),
     ("numpy", "uint8"), ("torch", "int64"), ("numpy", "float16")],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["contiguous", "sliced"])
def test_every_element_comes_with_the_lowest_rank_that_has_it(
    comm: Any, kind: str, dtype: str, layout: str, op: str
) -> None:
    everything = np.random.default_rng(3).integers(0, 4, (comm.size, 6, 5))
    x = make(kind, dtype, layout, everything[comm.rank].astype(np.float64))
    values, ranks = comm.all_reduce_loc(x, op)
    assert type(values) is type(ranks) is type(x)
    assert np.array_equal(plain_of(values), getattr(everything, op)(0))
    assert np.array_equal(np.asarray(ranks), getattr(everything, f"arg{op}")(0))
    assert str(ranks.dtype).endswith("int64")


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_is_beyond_all_numbers_and_has_a_place(comm: Any, op: str) -> None:
    x = np.array([np.nan if comm.rank else 0.0, np.nan, float(comm.rank)])
    for given in (x, torch.from_numpy(x)):
        values, ranks = comm.all_reduce_loc(given, op)
        extreme = comm.size - 1 if op == "max" else 0
        first = 1 if comm.size > 1 else 0
        np.testing.assert_array_equal(values, [np.nan if comm.size > 1 else 0.0, np.nan, extreme])
        assert ranks.tolist() == [first, 0, extreme]


def test_numbers_and_nothing_have_extremes_too(comm: Any) -> None:
    assert comm.all_reduce_loc(comm.rank, "max") == (comm.size - 1, comm.size - 1)
    assert comm.all_reduce_loc(float(-comm.rank), "max") == (0.0, 0)
    values, ranks = comm.all_reduce_loc(np.zeros((0, 3)))
    assert values.shape == ranks.shape == (0, 3)
    values, ranks = comm.all_reduce_loc(np.array(comm.rank), "min")
    assert (int(values), int(ranks)) == (0, 0)


def test_other_operators_and_what_has_no_order_are_refused(own_comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="all_reduce_loc has no operator 'sum'"):
        own_comm.all_reduce_loc(np.zeros(1), "sum")
    with pytest.raises(hpcomm.DtypeError):
        own_comm.all_reduce_loc(np.zeros(1, complex))
