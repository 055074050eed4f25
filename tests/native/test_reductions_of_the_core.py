"""The core's operators on its element types, held against numpy and against whole numbers."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pytest

core = pytest.importorskip("hpcomm.node._native.core")

from ranks import memory  # noqa: E402

core.know_numpy(np)
pytestmark = pytest.mark.once

WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
OPS = ["sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"]
BFLOAT16 = 11
LENGTHS = [1, 7, 33, 2048, 5003]
ON_WHOLE = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "min": min,
    "max": max,
    "band": lambda a, b: a & b,
    "bor": lambda a, b: a | b,
    "bxor": lambda a, b: a ^ b,
    "land": lambda a, b: int(bool(a) and bool(b)),
    "lor": lambda a, b: int(bool(a) or bool(b)),
}
ON_REAL = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
}
ON_BOOL = dict.fromkeys(("sum", "max", "lor", "bor"), np.logical_or)
ON_BOOL |= dict.fromkeys(("prod", "min", "land", "band"), np.logical_and) | {"bxor": np.logical_xor}


def drawn(dtype, length, inputs, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (inputs, length, np.dtype(dtype).itemsize), np.uint8)
    bits[:, ::5] = 0  # zeros are special to land and lor
    return list(bits.view(dtype).reshape(inputs, length))


@lru_cache
def nodes(ranks):
    """Of ranks that are threads of this process."""
    segment = memory(16 << 20)
    place = segment.reserve(ranks)
    return [core.Node(segment, place, rank, spins=0) for rank in range(ranks)]


threads = ThreadPoolExecutor(8)


def reduced(op, xs, dtype=0, outs=None):
    outs = outs or [x.copy() for x in xs]
    alike = [op] * len(xs), outs, [dtype] * len(xs)
    found = list(threads.map(core.Node.all_reduce, nodes(len(xs)), xs, *alike))
    assert all(
        got is out and got.tobytes() == found[0].tobytes() for got, out in zip(found, outs, strict=True)
    )
    return outs[0]


def takes(op, x, dtype=0):
    return nodes(1)[0].all_reduce(x, op, x.copy(), dtype) is not NotImplemented


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_fold_exactly_and_wrap_around(dtype):
    bits = np.dtype(dtype).itemsize * 8
    for (op, by), inputs in itertools.product(ON_WHOLE.items(), (1, 2, 3, 5)):
        xs = drawn(dtype, 101, inputs)
        want = (
            [int(x) for x in xs[0]]
            if inputs > 1 or op not in ("land", "lor")
            else [int(bool(x)) for x in xs[0]]
        )
        for other in xs[1:]:
            want = [by(a, int(b)) for a, b in zip(want, other, strict=True)]
        want = np.array([w & ((1 << bits) - 1) for w in want], f"u{bits // 8}").view(dtype)
        np.testing.assert_array_equal(reduced(op, xs), want, err_msg=f"{op} of {inputs}")
    assert not takes("avg", xs[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_fold_from_the_left_and_keep_what_is_not_a_number(dtype):
    for (op, by), inputs, length in itertools.product(ON_REAL.items(), (2, 3, 5), LENGTHS):
        xs = drawn(dtype, length, inputs)
        with np.errstate(all="ignore"):
            want = xs[0]
            for x in xs[1:]:
                want = by(want, x).astype(dtype)
            want = want / np.dtype(dtype).type(inputs) if op == "avg" else want
        np.testing.assert_array_equal(reduced(op, xs), want, err_msg=f"{op} of {inputs} x {length}")
    assert not takes("band", xs[0])


def as_singles(halves, kind):
    if kind == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def as_halves(singles, kind):
    if kind == "float16":
        return singles.astype(np.float16).view(np.uint16)
    bits = singles.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(singles), np.uint16(0x7FC0), rounded)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_types_fold_in_float32_and_are_rounded_once(kind):
    every = np.arange(1 << 16, dtype=np.uint16)  # each half there is
    rng = np.random.default_rng(1)
    code = {"float16": 10, "bfloat16": BFLOAT16}[kind]
    for (op, by), inputs in itertools.product(ON_REAL.items(), (1, 2, 3, 8)):
        xs = [every, *(rng.permutation(every) for _ in range(inputs - 1))]
        with np.errstate(all="ignore"):
            want = as_singles(xs[0], kind)
            if inputs == 1 and op in ("land", "lor"):
                want = (want != 0).astype(np.float32)
            for x in xs[1:]:
                want = by(want, as_singles(x, kind)).astype(np.float32)
            want = as_halves(want / np.float32(inputs) if op == "avg" else want, kind)
            got = reduced(op, xs, dtype=code)
            is_nan = np.isnan(as_singles(want, kind))
            np.testing.assert_array_equal(
                np.isnan(as_singles(got, kind)), is_nan, err_msg=f"{op} of {inputs}"
            )
        np.testing.assert_array_equal(got[~is_nan], want[~is_nan], err_msg=f"{op} of {inputs}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_fold_as_numpys(dtype):
    rng = np.random.default_rng(2)
    for op, inputs in itertools.product(("sum", "avg", "prod", "land", "lor"), (2, 3)):
        xs = list((rng.normal(size=(inputs, 999)) + 1j * rng.normal(size=(inputs, 999))).astype(dtype))
        for x in xs:
            x[::3] = 0
        want = xs[0]
        for x in xs[1:]:
            want = ON_REAL[op](want, x).astype(dtype)
        np.testing.assert_allclose(
            reduced(op, xs), want / inputs if op == "avg" else want, rtol=10 * np.finfo(dtype).eps
        )
    assert not takes("min", xs[0])


def test_bools_fold_as_truth_values():
    for (op, by), inputs in itertools.product(ON_BOOL.items(), (2, 3, 4)):
        xs = list(np.random.default_rng(3).integers(0, 2, (inputs, 500)).astype(bool))
        want = xs[0]
        for x in xs[1:]:
            want = by(want, x)
        np.testing.assert_array_equal(reduced(op, xs), want, err_msg=op)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "float16"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_result_may_be_a_ranks_own_input(dtype, which):
    xs = [np.full(10_007, i + 1, dtype) for i in range(3)]
    reduced("sum", xs, outs=[x if rank == which else x.copy() for rank, x in enumerate(xs)])
    assert (xs[which] == 6).all()


def test_the_core_has_the_operators_that_the_package_has_on_each_element_type():
    from hpcomm.core import dtypes, reduction
    from hpcomm.errors import DtypeError

    for dtype, op in itertools.product(dtypes.BY_NAME.values(), OPS):
        try:
            known = reduction.resolve(op, dtype).code
        except DtypeError:
            known = None
        x = np.ones(2, "u1" if dtype.itemsize == 1 else f"u{min(dtype.itemsize, 8)}")
        x = np.ones(2 * dtype.itemsize // x.itemsize, x.dtype)
        assert takes(op, x, dtype.code) == (known is not None and "long" not in dtype.name), (
            f"{op} of {dtype}"
        )


def test_the_first_rank_of_an_exscan_gets_what_the_operator_does_not_notice():
    from hpcomm.core import dtypes, reduction

    core.know_numpy(np)
    segment = memory()
    node = core.Node(segment, segment.reserve(1), 0)
    tried = 0
    for dtype, op in itertools.product(dtypes.BY_NAME.values(), OPS):
        x = np.full(3, 7).astype(dtype.storage)
        out = node.exscan(x, op, None, dtype.code)
        if out is not NotImplemented:
            np.testing.assert_array_equal(
                out, reduction.identity(reduction.named(op), dtype), err_msg=f"{op} of {dtype}"
            )
            tried += 1
    assert tried == 8 * 9 + 9 + 4 * 6 + 2 * 4


def test_torch_and_numpy_fold_alike():
    torch = pytest.importorskip("torch")
    core.know_torch(torch)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int16, torch.uint8, torch.complex64):
        xs = [torch.full((3, 50), i + 1, dtype=dtype) for i in range(3)]
        found = list(threads.map(core.Node.all_reduce, nodes(3), xs, ["prod"] * 3))
        assert all((out == 6).all() for out in found)
