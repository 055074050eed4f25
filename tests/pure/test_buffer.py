"""The door: one look at any array, and arrays of the same kind made from it."""

from __future__ import annotations

import array as stdlib_array
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import hpcomm
from hpcomm import as_buffer
from hpcomm.core import dtypes
from hpcomm.core.buffer import empty, overlap, same_memory

VALUES = [[1, 2, 3], [4, 5, 6]]
ARRAYS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.array(VALUES, np.float32),
    "numpy half": lambda: np.array(VALUES, np.float16),
    "numpy bfloat16": lambda: np.array(VALUES, ml_dtypes.bfloat16),
    "numpy bool": lambda: np.array(VALUES) > 2,
    "numpy complex": lambda: np.array(VALUES, np.complex64),
    "Fortran": lambda: np.array(VALUES, np.int32, order="F"),
    "torch": lambda: torch.tensor(VALUES, dtype=torch.float32),
    "torch bfloat16": lambda: torch.tensor(VALUES, dtype=torch.bfloat16),
    "torch half": lambda: torch.tensor(VALUES, dtype=torch.float16),
    "torch bool": lambda: torch.tensor(VALUES) > 2,
    "torch uint64": lambda: torch.tensor(VALUES, dtype=torch.uint64),
    "torch float8": lambda: torch.tensor(VALUES, dtype=torch.float32).to(torch.float8_e5m2),
    "torch transposed": lambda: torch.tensor(VALUES).T,
    "memoryview": lambda: memoryview(np.array(VALUES, np.int16)),
    "memoryview half": lambda: memoryview(np.array(VALUES, np.float16)),
    "array api": lambda: array_api_strict.asarray(VALUES, dtype=array_api_strict.float64),
}
ONE_AXIS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray([1, 2, 3]),
    "array": lambda: stdlib_array.array("d", [1, 2, 3]),
}


def bits(x: Any) -> np.ndarray:
    """The bytes of x's elements in C order, by x's own library."""
    if isinstance(x, torch.Tensor):
        return x.detach().contiguous().view(torch.uint8).numpy().reshape(-1)
    plain = (
        np.from_dlpack(x)
        if hasattr(x, "__array_namespace__") and not isinstance(x, np.ndarray)
        else np.asarray(x)
    )
    return np.frombuffer(plain.tobytes(), np.uint8)


@pytest.mark.parametrize("kind", [*ARRAYS, *ONE_AXIS])
def test_a_look_is_a_view_of_the_very_memory(kind: str) -> None:
    x = (ARRAYS | ONE_AXIS)[kind]()
    look = as_buffer(x)
    assert np.array_equal(bits(look.array), bits(x))
    assert look.shape == (tuple(x.shape) if kind in ARRAYS else (3,))
    assert look.array.dtype == np.dtype(look.dtype.storage)
    assert look.nbytes == bits(x).size
    assert look.device == "cpu"
    assert look.frozen is None
    look.array[...] = 0
    assert not bits(x).any()
    assert look.give() is x


@pytest.mark.parametrize("kind", [*ARRAYS, *ONE_AXIS])
def test_an_array_made_from_a_look_is_of_the_same_kind_and_dtype_and_fresh(kind: str) -> None:
    x = (ARRAYS | ONE_AXIS)[kind]()
    look = as_buffer(x)
    made = look.make(look.shape)
    assert made.dtype == look.dtype
    assert made.array.flags.c_contiguous
    assert made.frozen is None
    made.array[...] = look.array
    y = made.give()
    assert type(y) is type(x)
    assert y is not x
    assert np.array_equal(bits(y), bits(x))
    assert str(getattr(y, "dtype", "")) == str(getattr(x, "dtype", ""))


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("shape", [(), (0, 2), (5,), (2, 1, 3)])
def test_an_array_may_be_made_in_any_shape(kind: str, shape: tuple[int, ...]) -> None:
    made = as_buffer(ARRAYS[kind]()).make(shape)
    assert made.shape == shape
    assert tuple(made.give().shape) == shape


def test_blocks_of_a_kind_with_one_axis_lie_one_after_the_other() -> None:
    made = as_buffer(bytearray(2)).make((3, 2))
    made.array[...] = [[1, 2], [3, 4], [5, 6]]
    assert made.give() == bytearray([1, 2, 3, 4, 5, 6])
    made = as_buffer(stdlib_array.array("h", [0])).make((2, 2))
    made.array[...] = [[1, 2], [3, 4]]
    assert made.give() == stdlib_array.array("h", [1, 2, 3, 4])


@pytest.mark.parametrize("kind", ARRAYS)
def test_wrap_makes_a_users_array_of_storage(kind: str) -> None:
    x = ARRAYS[kind]()
    look = as_buffer(x)
    wrapped = look.wrap(look.array)
    assert type(wrapped) is type(x)
    assert np.array_equal(bits(wrapped), bits(x))


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.sampled_from([-2, -1, 1, 3]), min_size=4, max_size=4),
    st.integers(0, 20),
    st.sampled_from(["f4", "f2", "i8", "?", "c16", ml_dtypes.bfloat16]),
)
def test_any_view_is_looked_at_with_its_own_strides(
    shape: list[int], steps: list[int], order: int, dtype: Any
) -> None:
    axes = np.random.default_rng(order).permutation(len(shape))
    base = np.zeros([n * abs(step) for n, step in zip(shape, steps, strict=False)], dtype)
    x = base[(*(slice(None, None, step) for step in steps[: len(shape)]), ...)].transpose(axes)
    look = as_buffer(x)
    assert look.array.shape == x.shape
    assert look.array.strides == x.strides
    assert look.array.ctypes.data == x.ctypes.data
    assert look.frozen is None


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        3,
        2.5,
        1 + 2j,
        True,
        np.float32(2),
        np.float64(2),
        np.int8(3),
        np.bool_(True),
        np.complex64(1j),
        np.complex128(1j),
    ],
)
def test_a_number_is_an_array_without_axes_that_comes_back_as_a_number(number: Any) -> None:
    look = as_buffer(number)
    assert look.shape == ()
    assert look.array[()] == number
    made = look.make(())
    made.array[...] = look.array
    back = made.give()
    assert type(back) is type(number)
    assert back == number


@pytest.mark.parametrize("number", [np.float16(2.5), ml_dtypes.bfloat16(2.5)])
def test_a_half_is_a_number_too(number: Any) -> None:
    look = as_buffer(number)
    made = look.make(())
    made.array[...] = look.array
    assert type(made.give()) is type(number)
    assert made.give() == number


def test_several_numbers_come_back_as_an_array() -> None:
    made = as_buffer(3).make((2,))
    made.array[...] = [4, 5]
    assert made.give().tolist() == [4, 5]


def test_a_number_is_no_place_to_receive_in() -> None:
    assert "number" in str(as_buffer(1).frozen)


def test_an_integer_past_64_bits_is_refused() -> None:
    with pytest.raises(hpcomm.DtypeError, match="64 bits"):
        as_buffer(2**64)


# -- what cannot receive ---------------------------------------------------------------------------


def read_only() -> np.ndarray:
    x = np.zeros(3)
    x.flags.writeable = False
    return x


FROZEN: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only numpy": (read_only, "read-only"),
    "bytes": (lambda: b"abc", "read-only"),
    "broadcast": (lambda: np.broadcast_arrays(np.zeros(2), np.zeros((2, 2)))[0], "overlaps itself"),
    "read-only memoryview": (lambda: memoryview(bytearray(3)).toreadonly(), "read-only"),
    "broadcast numpy": (lambda: as_strided(np.zeros(1), (4,), (0,)), "share a place"),
    "expanded tensor": (lambda: torch.zeros(1).expand(4), "share a place"),
    "windows of numpy": (lambda: as_strided(np.zeros(3), (2, 2), (8, 8)), "share a place"),
    "windows of a tensor": (lambda: torch.zeros(3).as_strided((2, 2), (1, 1)), "share a place"),
    "half an element apart": (lambda: as_strided(np.zeros(2), (3,), (4,)), "share a place"),
    "lazy conjugate": (lambda: torch.zeros(2, dtype=torch.complex64).conj(), "conjugate"),
    "lazy negative": (lambda: torch.zeros(2, dtype=torch.complex64).conj().imag, "negative"),
}


@pytest.mark.parametrize("kind", FROZEN)
def test_what_cannot_receive_says_why_but_may_be_sent(kind: str) -> None:
    make, why = FROZEN[kind]
    look = as_buffer(make())
    assert why in str(look.frozen)
    assert look.array.size in (2, 3, 4)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 0, 3)),
        np.zeros((1, 4))[:, :1],
        np.zeros((0,)),
        torch.zeros(0, 3),
        torch.zeros(1).expand(1),
        np.zeros((3, 4))[::2][:0],
        np.zeros((3, 4, 5))[::-2, 1:3, ::2].transpose(1, 2, 0),
        as_strided(np.zeros(8), (3, 2), (16, 24)),
    ],
    ids=[
        "empty",
        "one column",
        "nothing",
        "empty tensor",
        "expanded to one",
        "empty view",
        "view",
        "interlaced",
    ],
)
def test_strides_that_do_not_matter_freeze_nothing(x: Any) -> None:
    assert as_buffer(x).frozen is None


def test_a_lazy_conjugate_is_read_as_the_user_sees_it() -> None:
    look = as_buffer(torch.tensor([1 + 2j]).conj())
    assert look.array.tolist() == [1 - 2j]
    assert as_buffer(torch.tensor([1 + 2j]).conj().imag).array.tolist() == [-2.0]


# -- refusals --------------------------------------------------------------------------------------


def freed() -> torch.Tensor:
    x = torch.zeros(3)
    x.untyped_storage().resize_(0)
    return x


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "foreign byte order": (
        lambda: np.zeros(2, ">f8" if sys.byteorder == "little" else "<f8"),
        hpcomm.DtypeError,
        "byte order",
    ),
    "objects": (lambda: np.array([None]), hpcomm.DtypeError, "objects"),
    "mask": (lambda: np.ma.masked_array([1.0], [True]), hpcomm.LayoutError, "mask"),
    "sparse": (lambda: torch.eye(2).to_sparse(), hpcomm.LayoutError, "sparse"),
    "no memory": (lambda: torch.ones(2, device="meta"), hpcomm.LayoutError, "meta"),
    "freed memory": (freed, hpcomm.LayoutError, "freed"),
    "int past int64": (lambda: 2**63, hpcomm.DtypeError, "64 bits"),
    "list": (lambda: [1, 2], hpcomm.UsageError, "list is not an array"),
    "dict": (dict, hpcomm.UsageError, "dict is not an array"),
    "text": (lambda: "abc", hpcomm.UsageError, "str is not an array"),
    "none": (lambda: None, hpcomm.UsageError, "NoneType is not an array"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_sent_rightly_is_refused_with_a_way_out(what: str) -> None:
    make, error, words = REFUSED[what]
    with pytest.raises(error, match=words) as caught:
        as_buffer(make())
    assert isinstance(caught.value, hpcomm.UsageError)
    assert caught.value.hint


class OnADevice:
    """Says of itself what an array on a GPU says."""

    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012


class OverThere:
    """A DLPack array on CUDA device 1."""

    def __dlpack__(self, **keywords: Any) -> Any:
        raise AssertionError("memory on a device must not be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


@pytest.mark.parametrize("x", [OnADevice(), OverThere()], ids=["cuda array interface", "dlpack"])
def test_memory_on_a_device_is_refused_before_it_is_touched_where_devices_are_switched_off(
    x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCOMM_GPU", "off")
    with pytest.raises(hpcomm.ConfigError, match="HPCOMM_GPU=off"):
        as_buffer(x)


# -- places ----------------------------------------------------------------------------------------


def test_views_that_share_an_element_overlap_and_interleaved_ones_do_not(monkeypatch: Any) -> None:
    x = np.zeros(10)
    assert overlap(x[:6], x[5:])
    assert overlap(x, x[::-1])
    assert not overlap(x[:5], x[5:])
    assert not overlap(x[::2], x[1::2])
    assert not overlap(x, np.zeros(10))
    assert not overlap(x[:0], x)
    monkeypatch.setattr("hpcomm.core.buffer._WORK", 1)  # too hard to tell
    y = np.zeros((4, 5, 6), np.int8)
    assert overlap(y[:, ::2, ::3], y[:, ::3, ::2])


def test_the_same_elements_in_another_order_are_not_the_same_memory() -> None:
    x = np.zeros((3, 3))
    assert same_memory(x, x)
    assert same_memory(x, x[:])
    assert not same_memory(x, x.T)
    assert not same_memory(x, x[::-1])
    assert not same_memory(x, x.reshape(9))
    assert not same_memory(x, x.view(np.int64))
    assert not same_memory(x, x.copy())


def test_an_empty_place_may_be_a_tensor() -> None:
    assert type(empty((2,), dtypes.BY_NAME["bfloat16"], torch=True).give()) is torch.Tensor
    made = empty((2,), dtypes.BY_NAME["bfloat16"])
    assert made.give().dtype == ml_dtypes.bfloat16


def test_looking_at_an_array_needs_no_torch() -> None:
    code = (
        "import sys, numpy as np; from hpcomm import as_buffer; "
        "assert as_buffer(np.ones(3, np.float16)).dtype.name == 'float16'; "
        "assert not {'torch', 'cupy', 'ml_dtypes', 'mpi4py.MPI'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_narrow_floats_that_dlpack_cannot_bring_are_taken_as_numpy_has_them() -> None:
    """As jax's bfloat16, of which numpy's own DLPack knows nothing."""

    class Array:
        dtype = np.dtype(ml_dtypes.bfloat16)

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("bfloat16")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __array__(self, *options: Any, **more: Any) -> Any:
            return self.array

        def __array_namespace__(self) -> Any:
            return SimpleNamespace(asarray=Array)

    look = as_buffer(Array(np.ones(3, ml_dtypes.bfloat16)))
    assert (look.dtype.name, look.array.dtype) == ("bfloat16", np.uint16)
    assert type(look.make((2,)).give()) is Array
    Array.dtype = np.dtype(np.float32)
    with pytest.raises(hpcomm.DtypeError, match="does not hand over its memory"):
        as_buffer(Array(np.ones(3)))
