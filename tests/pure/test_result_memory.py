"""Memory of large results, which is used again when nobody has the result any more."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from hpcomm.core import result_memory


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(result_memory, "RESULT_LARGE", 4096)
    monkeypatch.setattr(result_memory, "RESULT_KEPT", 16 << 20)
    result_memory._free.clear()


def address(x):
    return x.__array_interface__["data"][0]


def test_memory_is_used_again_only_when_no_view_is_left():
    first = result_memory.empty((1000, 2), np.dtype("f8"))
    first[:] = 7
    where, part = address(first), first[10:, 1].T
    del first
    gc.collect()
    second = result_memory.empty((1000, 2), np.dtype("f8"))
    second[:] = 8
    assert address(second) != where
    assert part.tolist() == [7] * 990
    del part
    gc.collect()
    third = result_memory.empty((2000,), np.dtype("f8"))
    assert address(third) == where
    assert third.flags.writeable
    assert third.flags.c_contiguous


def test_no_more_is_kept_than_the_limit():
    made = [result_memory.empty((5 << 20,), np.dtype("u1")) for _ in range(6)]
    made.clear()
    gc.collect()
    assert 0 < sum(map(len, result_memory._free)) <= 16 << 20


def test_what_is_kept_does_not_serve_a_much_smaller_result():
    large = result_memory.empty((8 << 20,), np.dtype("u1"))
    where = address(large)
    del large
    gc.collect()
    assert address(result_memory.empty((1 << 20,), np.dtype("u1"))) != where
    assert address(result_memory.empty((8 << 20,), np.dtype("u1"))) == where


def test_tensors_keep_the_memory_of_a_result_that_has_gone():
    torch = pytest.importorskip("torch")
    x = result_memory.empty((4096,), np.dtype("f4"))
    x[:] = 3
    tensor, where = torch.from_numpy(x)[5:], address(x)
    del x
    gc.collect()
    assert address(result_memory.empty((4096,), np.dtype("f4"))) != where
    assert tensor.unique().tolist() == [3]
