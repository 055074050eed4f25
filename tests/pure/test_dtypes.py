"""Element types: every library's spelling meets in one record, and halves convert as hardware does."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hpcomm
from hpcomm.core import dtypes

NUMPY = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "longdouble",
    "clongdouble",
]
TORCH = [*NUMPY[:-2], "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
SMALL += [
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
]
SMALL += ["int4", "int2", "uint4", "uint2"]


@pytest.fixture(params=["with torch", "without torch"])
def conversions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both ways of converting halves: torch's when it is loaded, numpy's own when not."""
    if request.param == "without torch":
        monkeypatch.delitem(sys.modules, "torch")
    return


@pytest.mark.parametrize("name", NUMPY)
def test_a_numpy_dtype_has_a_record_of_its_name_and_size(name: str) -> None:
    record = dtypes.from_numpy(np.dtype(name))
    assert record.name == name
    assert record.itemsize == np.dtype(name).itemsize
    assert str(record) == name


@pytest.mark.parametrize("name", TORCH)
def test_a_torch_dtype_has_the_same_record_as_numpys_of_its_name(name: str) -> None:
    record = dtypes.from_torch(getattr(torch, name))
    assert record.name == name
    assert record.itemsize == getattr(torch, name).itemsize
    if name in NUMPY:
        assert record == dtypes.from_numpy(np.dtype(name))
    assert dtypes.torch_dtype(record) is getattr(torch, name)


@pytest.mark.parametrize("name", SMALL)
def test_a_dtype_of_ml_dtypes_has_the_record_of_its_name(name: str) -> None:
    record = dtypes.from_numpy(np.dtype(getattr(ml_dtypes, name)))
    assert record.name == name
    assert dtypes.numpy_dtype(record) == np.dtype(getattr(ml_dtypes, name))


def test_records_have_distinct_codes_that_fit_a_byte() -> None:
    codes = [record.code for record in dtypes.BY_NAME.values()]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 256 for code in codes)


@pytest.mark.parametrize("name", NUMPY)
def test_a_dtype_may_be_said_in_words_as_dtype_or_as_type(name: str) -> None:
    wanted = dtypes.from_numpy(np.dtype(name)), False
    assert dtypes.parse(name) == wanted
    assert dtypes.parse(np.dtype(name)) == wanted
    assert dtypes.parse(np.dtype(name).type) == wanted


def test_a_torch_dtype_says_that_a_tensor_is_meant() -> None:
    assert dtypes.parse(torch.bfloat16) == (dtypes.BY_NAME["bfloat16"], True)
    assert dtypes.parse("bfloat16") == (dtypes.BY_NAME["bfloat16"], False)
    assert dtypes.parse("S8") == (dtypes.from_numpy(np.dtype("S8")), False)


def test_python_types_are_numpys() -> None:
    assert dtypes.parse(float)[0].name == "float64"
    assert dtypes.parse(bool)[0].name == "bool"
    assert dtypes.parse(complex)[0].name == "complex128"


@pytest.mark.parametrize("dtype", ["S5", "U3", "datetime64[s]", "timedelta64[ms]", "i4,f8", "V6"])
def test_elements_without_arithmetic_are_opaque_and_keep_their_size(dtype: str) -> None:
    record = dtypes.from_numpy(np.dtype(dtype))
    assert record.kind == "o"
    assert record.mpi is None
    assert record.itemsize == np.dtype(dtype).itemsize


def test_times_of_different_units_have_different_checksums() -> None:
    units = ("Y", "M", "W", "D", "h", "m", "s", "5s", "1000ms", "ms", "us", "ns", "ps", "fs", "as")
    times = [np.dtype(f"{kind}[{unit}]") for kind in ("datetime64", "timedelta64") for unit in units]
    records = {dtypes.from_numpy(dtype) for dtype in times}
    assert len({record.checksum for record in records}) == len(times)
    assert {record.code for record in records} == {128}


def test_foreign_byte_order_is_refused_with_a_way_out() -> None:
    foreign = np.dtype(np.float64).newbyteorder()
    with pytest.raises(hpcomm.DtypeError, match="byte order") as caught:
        dtypes.from_numpy(foreign)
    x = np.ones(2, foreign)
    assert caught.value.hint is not None
    repaired = eval(caught.value.hint, {"x": x})  # the advice is a line to copy: it must work
    assert dtypes.from_numpy(repaired.dtype).name == "float64"
    assert repaired.tolist() == [1.0, 1.0]


def test_a_record_with_a_foreign_field_is_refused_too() -> None:
    with pytest.raises(hpcomm.DtypeError, match="byte order"):
        dtypes.from_numpy(np.dtype([("a", np.dtype(np.int32).newbyteorder())]))


@pytest.mark.parametrize("dtype", [object, [("a", object)]], ids=["object", "field"])
def test_python_objects_are_sent_to_the_object_verbs(dtype: object) -> None:
    with pytest.raises(hpcomm.DtypeError, match="objects") as caught:
        dtypes.from_numpy(np.dtype(dtype))  # type: ignore[call-overload]
    assert "_object" in str(caught.value.hint)


@pytest.mark.filterwarnings("ignore")
def test_a_torch_dtype_that_cannot_be_sent_says_so() -> None:
    with pytest.raises(hpcomm.DtypeError, match="qint8"):
        dtypes.from_torch(torch.qint8)


def test_a_dtype_that_torch_lacks_says_so() -> None:
    with pytest.raises(hpcomm.DtypeError, match="longdouble"):
        dtypes.torch_dtype(dtypes.BY_NAME["longdouble"])


# -- halves ----------------------------------------------------------------------------------------


def storage(values: np.ndarray, name: str) -> np.ndarray:
    """The bits of values as halves, by ml_dtypes or numpy, not by us."""
    half = np.float16 if name == "float16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        return values.astype(half).view(np.uint16)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_widen_gives_every_one_of_the_65536_halves_its_value(conversions: None, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    half = np.float16 if name == "float16" else ml_dtypes.bfloat16
    expected = bits.view(half).astype(np.float32)
    got = dtypes.widen(bits, dtypes.BY_NAME[name])
    assert got.dtype == np.float32
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_undoes_widen(conversions: None, name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    wide = dtypes.widen(bits, dtypes.BY_NAME[name])
    back = dtypes.narrow(wide, dtypes.BY_NAME[name])
    assert back.dtype == np.uint16
    numbers = ~np.isnan(wide)
    assert np.array_equal(back[numbers], bits[numbers])
    assert np.isnan(dtypes.widen(back[~numbers], dtypes.BY_NAME[name])).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_narrow_rounds_to_nearest_even(name: str, values: list[float]) -> None:
    singles = np.array(values, np.float32)
    expected = storage(singles, name)
    assert np.array_equal(dtypes.narrow(singles, dtypes.BY_NAME[name]), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        assert np.array_equal(dtypes.narrow(singles, dtypes.BY_NAME[name]), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_narrow_rounds_ties_to_even_and_overflow_to_infinity(conversions: None, name: str) -> None:
    one, step = np.float32(1), np.float32(2**-10 if name == "float16" else 2**-7)
    ties = np.array([one + step / 2, one + 3 * step / 2, -one - step / 2], np.float32)
    huge = np.array([3.4e38, -3.4e38, np.inf, -np.inf, np.nan, -0.0, 0.0], np.float32)
    for singles in (ties, huge):
        got = dtypes.widen(dtypes.narrow(singles, dtypes.BY_NAME[name]), dtypes.BY_NAME[name])
        expected = dtypes.widen(storage(singles, name), dtypes.BY_NAME[name])
        assert np.array_equal(got, expected, equal_nan=True)
        signed = ~np.isnan(expected)  # the sign of a NaN means nothing
        assert np.array_equal(np.signbit(got[signed]), np.signbit(expected[signed]))


LAYOUTS = {
    "contiguous": lambda a: a,
    "Fortran": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "one column backwards": lambda a: np.ascontiguousarray(a[:, :1])[:, ::-1],
    "one place": lambda a: np.broadcast_to(a[0, 0], a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_give_c_order_whatever_order_they_get(conversions: None, name: str, layout: str) -> None:
    """What is widened travels as it lies, so its memory must be in C order, not only its values right."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    halves = LAYOUTS[layout](storage(values, name))
    expected = {"one place": np.zeros((3, 4)), "one column backwards": values[:, :1]}.get(layout, values)
    wide = dtypes.widen(halves, dtypes.BY_NAME[name])
    assert wide.flags.c_contiguous
    assert np.array_equal(wide, expected)
    back = dtypes.narrow(wide, dtypes.BY_NAME[name])
    assert back.flags.c_contiguous
    assert np.array_equal(back, halves)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_keep_any_shape(conversions: None, name: str, shape: tuple[int, ...]) -> None:
    record = dtypes.BY_NAME[name]
    wide = dtypes.widen(np.zeros(shape, np.uint16), record)
    assert wide.shape == shape
    assert np.asarray(dtypes.narrow(wide, record)).shape == shape
    assert np.asarray(dtypes.narrow(wide / np.float32(2), record)).shape == shape


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_leave_their_argument_alone(conversions: None, name: str) -> None:
    record = dtypes.BY_NAME[name]
    bits = storage(np.array([1.5, -2.0], np.float32), name)
    bits.flags.writeable = False
    wide = dtypes.widen(bits, record)
    wide += 1
    assert dtypes.widen(bits, record).tolist() == [1.5, -2.0]
    before = wide.copy()
    narrow = dtypes.narrow(wide, record)
    narrow[:] = 0
    assert np.array_equal(wide, before)


def test_a_complex_type_that_cannot_be_sent_names_one_that_keeps_the_imaginary_part() -> None:
    with pytest.raises(hpcomm.DtypeError) as caught:
        dtypes.from_torch(torch.complex32)
    assert caught.value.hint == "x.to(torch.complex64)"
