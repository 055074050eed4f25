"""Shared arrays of a node."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 3), (0, 4), (), 7])
def test_what_one_rank_writes_all_of_the_node_see_after_a_fence(comm: Any, shape: Any, dtype: str) -> None:
    with comm.shared_array(shape, dtype) as shared:
        assert shared.array.shape == shared.shape == np.zeros(shape).shape
        assert str(shared.dtype) == dtype
        assert not shared.array.any()
        shared.fence()
        if shared.node.rank == shared.node.size - 1:
            shared.array[...] = 1
        shared.fence()
        assert (shared.array == 1).all()


def test_a_tensor_is_the_same_memory_and_views_outlive_the_end(comm: Any) -> None:
    shared = comm.shared_array((comm.size, 1000), "float32")
    shared.tensor[shared.node.rank] = comm.rank
    shared.fence()
    kept, tensor = shared.array, shared.tensor
    assert shared.node.size == comm.size
    shared.close()
    shared.close()
    assert kept[:, 5].tolist() == tensor[:, 999].tolist() == [*range(comm.size)]
    assert isinstance(tensor, torch.Tensor)
    with pytest.raises(hpcomm.UsageError, match="this shared array is closed"):
        _ = shared.array


@pytest.mark.parametrize("shape", [-1, (2, "x"), 1.5])
def test_what_is_no_shape_is_refused(own_comm: Any, shape: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match="is no shape of an array"):
        own_comm.shared_array(shape)


def test_too_large_an_array_is_an_error_on_all_ranks(comm: Any) -> None:
    with pytest.raises(hpcomm.ConfigError, match="bytes of shared memory cannot be had"):
        comm.shared_array(1 << 50)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.mpi(min_size=2)
def test_ranks_that_ask_for_different_arrays_are_told(comm: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match=r"this rank asks for float64 .* rank \d of the node for"):
        comm.shared_array(3 + comm.rank)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "bfloat16", "bool", "complex64"])
def test_the_tensor_of_any_dtype_is_the_same_memory(comm: Any, dtype: Any) -> None:
    with comm.shared_array((comm.size, 2), dtype) as shared:
        assert (
            str(shared.tensor.dtype).removeprefix("torch.")
            == str(shared.dtype)
            == str(dtype).removeprefix("torch.")
        )
        shared.tensor[comm.rank] = 1
        shared.fence()
        assert shared.tensor.float().sum() == 2 * comm.size if dtype != "complex64" else shared.tensor.all()
        assert shared.array.astype(bool).all()
        shared.fence()


def test_a_tensor_needs_no_package_that_only_numpy_needs(comm: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.delitem(sys.modules, "ml_dtypes")
    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    with comm.shared_array(2, torch.bfloat16) as shared:
        assert shared.tensor.dtype is torch.bfloat16
        with pytest.raises(hpcomm.DtypeError, match="numpy has no bfloat16 of its own"):
            shared.array  # noqa: B018


class Without:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "ml_dtypes":
            raise ImportError(name)
