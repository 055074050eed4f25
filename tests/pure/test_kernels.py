"""The kernels of torch and CuPy, called for real: torch's own, on its CPU, and numpy's in place of CuPy's.

Only where memory is and which stream works differ from a GPU; what is computed goes through the same lines.
"""

from __future__ import annotations

import ctypes
import itertools
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.core import dtypes, reduction
from hpcomm.core.dtypes import BY_NAME, Dtype
from hpcomm.device import kernels
from hpcomm.transport.device import device_columns

RANKS, N = 3, 37
OPS = [*(name for name in reduction.NAMES if name != "premul_sum"), hpcomm.premul_sum(0.375),
       hpcomm.premul_sum(3), hpcomm.premul_sum(np.int16(-2)), hpcomm.premul_sum(1j),
       hpcomm.premul_sum(200)]  # fmt: skip
DTYPES = [each for each in BY_NAME.values() if each.kind not in "q" and "long" not in each.name]


class TorchHere(kernels.Torch):
    """torch's kernels on the host's memory."""

    def __init__(self) -> None:
        self.library = pytest.importorskip("torch")

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def raw(self, address: int, nbytes: int) -> Any:
        return self.library.frombuffer(
            (ctypes.c_ubyte * nbytes).from_address(address), dtype=self.library.uint8
        )


class CuPyHere(kernels.CuPy):
    """CuPy's kernels as numpy has them, by the same names."""

    def __init__(self) -> None:
        self.library = np

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def view(self, address: int, count: int, dtype: Dtype) -> Any:
        kind = dtypes.numpy_dtype(dtype)
        raw = (ctypes.c_ubyte * (count * kind.itemsize)).from_address(address)
        return np.frombuffer(raw, kind)


def at(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def given(dtype: Dtype, rank: int) -> Any:
    """Random elements, zeros of both signs among them, as they are stored."""
    random = np.random.default_rng(rank)
    x = np.round(random.standard_normal(N) * 8, 2)
    x[::5], x[1::7] = 0.0, -0.0
    if dtype.kind == "h":
        return dtypes.narrow(x.astype(np.float32), dtype)
    if dtype.kind == "c":
        return (x + 1j * x[::-1]).astype(dtype.storage)
    return np.abs(x).astype(dtype.storage) if dtype.kind in "ub" else x.astype(dtype.storage)


def on_host(fold: Any, parts: list[Any]) -> Any:
    """As transport/mpi.py has it done: convert, fold, convert."""
    wide = [np.array(part) if fold.widen is None else fold.widen(part) for part in parts]
    folded = wide[0].copy()
    for each in wide[1:]:
        getattr(np, kernels.FUNCTIONS[fold.mpi_op])(folded, each, out=folded)
    if fold.narrow is not None:
        return fold.narrow(folded, len(parts))
    if fold.finish is not None:
        fold.finish(folded, len(parts))
    return folded


def by_kernels(made: Any, fold: Any, dtype: Dtype, parts: list[Any]) -> Any:
    """As rounds.py has it done, in a workspace that is memory of the host."""
    wide = device_columns.travels(fold, dtype)
    slots = np.full(len(parts) * N * wide.itemsize, 0xCB, np.uint8)
    memory = SimpleNamespace(copy=lambda to, source, nbytes, stream: ctypes.memmove(to, source, nbytes))
    space: Any = SimpleNamespace(device=memory, work=at(slots), stream=0, size=len(parts))
    way = device_columns._Way(space, fold, made, dtype)
    for rank, part in enumerate(parts):
        way.bring(at(part), 0, rank * N, N)
    views = [made.view(at(slots) + rank * N * wide.itemsize, N, wide) for rank in range(len(parts))]
    for each in views[1:]:
        made.reduce(fold.mpi_op, views[0], each, out=views[0])
    out = np.full_like(parts[0], 7)
    way.take(at(out), 0, 0, N)
    return out


@pytest.mark.parametrize("library", [TorchHere, CuPyHere], ids=["torch", "cupy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_give_what_hosts_give(library: Any, dtype: Dtype) -> None:
    made = library()
    folded, refused = [], []
    for op in OPS:
        try:
            fold = reduction.resolve(op, dtype)
        except hpcomm.DtypeError:
            continue
        if any(device_columns.lacks(fold, dtype, made)):
            refused.append(str(fold.op))
            continue
        parts = [given(dtype, rank) for rank in range(RANKS)]
        got, expected = by_kernels(made, fold, dtype, parts), on_host(fold, parts)
        if dtype.kind == "c":  # multiplied in another order
            np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=str(fold.op))
        else:
            np.testing.assert_array_equal(got, expected, err_msg=str(fold.op))
        folded.append(str(fold.op))
    if library is CuPyHere and dtype.name == "bfloat16":
        assert not [op for op in folded if op not in ("land", "lor")]
    elif library is TorchHere and dtype.name in ("uint16", "uint32", "uint64"):
        assert refused == ["min", "max"]
    else:
        assert not refused
    assert folded or dtype.name == "bfloat16"


@pytest.mark.parametrize("library", [TorchHere, CuPyHere], ids=["torch", "cupy"])
def test_what_exscan_leaves_on_the_first_rank_is_what_the_operator_does_not_notice(library: Any) -> None:
    made = library()
    for dtype, op in itertools.product(DTYPES, OPS):
        try:
            fold = reduction.resolve(op, dtype)
        except hpcomm.DtypeError:
            continue
        if any(device_columns.lacks(fold, dtype, made)):
            continue
        out = np.full(N, 7, dtype.storage)
        device_columns._Way(SimpleNamespace(stream=0), fold, made, dtype).fill(at(out), 0, N)  # type: ignore[arg-type]
        expected = np.full(N, reduction.identity(fold.op, dtype), dtype.storage)
        np.testing.assert_array_equal(out, expected, err_msg=f"{fold.op} of {dtype}")
