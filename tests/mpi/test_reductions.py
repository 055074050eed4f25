"""Every operator on every dtype, against reduces over plain numpy values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import (
    COMPLEX,
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    dtype_of,
    make,
    plain_dtype,
    plain_of,
    plain_values,
)

import hpcomm
from hpcomm.communicator.verbs.collectives import careful
from hpcomm.core.dtypes import from_numpy
from hpcomm.core.operation import Arguments
from hpcomm.core.reduction import resolve

pytestmark = pytest.mark.few

BITS = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
TRUTH = {"land": np.logical_and, "lor": np.logical_or}
ORDER = {"min": np.minimum, "max": np.maximum}
ON_BOOL = {
    "sum": np.logical_or,
    "max": np.logical_or,
    "lor": np.logical_or,
    "bor": np.logical_or,
    "prod": np.logical_and,
    "min": np.logical_and,
    "land": np.logical_and,
    "band": np.logical_and,
    "bxor": np.logical_xor,
}


def applies(op: str, dtype: str) -> bool:
    if op in BITS:
        return dtype == "bool" or dtype in INTEGERS
    if op == "avg":
        return dtype in FLOATS or dtype in COMPLEX
    return not (op in ORDER and dtype in COMPLEX)


def fold(op: str, dtype: str, given: list[np.ndarray]) -> np.ndarray:
    """The definition, in plain types; exact, because the values are small and whole."""
    if dtype == "bool":
        return reduce(ON_BOOL[op], given)
    if op in TRUTH:
        return reduce(TRUTH[op], [x != 0 for x in given]).astype(plain_dtype(dtype))
    if op == "avg":
        total = reduce(np.add, given)
        if dtype in COMPLEX:  # part by part: a division of complex numbers rounds more than once
            return rounded(total.real / len(given) + 1j * (total.imag / len(given)), dtype)
        return rounded(total / len(given), dtype)
    functions: dict[str, Any] = {"sum": np.add, "prod": np.multiply} | ORDER | BITS
    return rounded(reduce(functions[op], given), dtype)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """values as elements of dtype hold them, in the plain type."""
    held = np.asarray(values).astype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    return held.astype(plain_dtype(dtype))


OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor")
ON = [(op, dtype) for op in OPS for dtype in DTYPES if applies(op, dtype)]
NOT_ON = [(op, dtype) for op in OPS for dtype in DTYPES if not applies(op, dtype)]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("op", OPS)
def test_an_operator_gives_its_definition_in_every_reducing_verb(comm: Any, op: str, kind: str) -> None:
    wrong = [line for on, dtype in ON if on == op for line in trial(comm, op, dtype, kind)]
    assert wrong == []


def trial(comm: Any, op: str, dtype: str, kind: str) -> list[str]:
    """Every reducing verb with one operator on one dtype; what was wrong."""
    p, rank, root = comm.size, comm.rank, comm.size - 1
    given = [plain_values(dtype, (p, 3), 31 * r + 5) for r in range(p)]
    x = make(kind, dtype, "sliced", given[rank])
    total = fold(op, dtype, given)
    expected = {"all_reduce": total, "reduce": total if rank == root else None, "reduce_scatter": total[rank]}
    results = {
        "all_reduce": comm.all_reduce(x, op),
        "reduce": comm.reduce(x, op, root=root),
        "reduce_scatter": comm.reduce_scatter(x, op),
    }
    if op != "avg":  # a prefix has none
        results["scan"] = comm.scan(x, op)
        expected["scan"] = fold(op, dtype, given[: rank + 1])
        results["exscan"] = comm.exscan(x, op)
        expected["exscan"] = fold(op, dtype, given[:rank]) if rank else identity(op, dtype, (p, 3))
    wrong = []
    for verb, wanted in expected.items():
        got = results[verb]
        if wanted is None:
            wrong += [] if got is None else [f"{verb} {dtype}: expected None, got {got}"]
        elif dtype_of(got) != dtype or not np.array_equal(plain_of(got), wanted):
            wrong.append(f"{verb} {dtype}: expected {wanted.tolist()}, got {got}")
    return wrong


def identity(op: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The value that op does not notice."""
    if dtype == "bool":
        value: Any = ON_BOOL[op] is np.logical_and
    elif op in ("min", "max") and dtype in INTEGERS:
        value = np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
    elif op in ("min", "max"):
        value = np.inf if op == "min" else -np.inf
    elif op == "band":
        value = np.iinfo(dtype).max if dtype.startswith("u") else -1
    else:
        value = {"prod": 1, "land": 1}.get(op, 0)
    return np.full(shape, value, plain_dtype(dtype))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("op", sorted({op for op, _ in NOT_ON}))
def test_an_operator_that_has_no_right_result_is_refused_on_every_rank(comm: Any, op: str, kind: str) -> None:
    for dtype in [dtype for other, dtype in NOT_ON if other == op]:
        x = make(kind, dtype, "contiguous", plain_values(dtype, (2,), 1))
        with pytest.raises(hpcomm.DtypeError) as caught:
            comm.all_reduce(x, op)
        assert dtype in caught.value.what or "complex" in caught.value.what
        assert caught.value.hint


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_sums_wrap_as_numpy_wraps(comm: Any, dtype: str) -> None:
    x = np.full(3, np.iinfo(dtype).max, dtype)
    with np.errstate(over="ignore"):
        expected = reduce(np.add, [x] * comm.size)
    assert np.array_equal(comm.all_reduce(x), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_extremes_of_integers_survive_min_and_max(comm: Any, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.max, limits.min], dtype) if comm.rank == 0 else np.array([1, 1], dtype)
    assert comm.all_reduce(x, "max").tolist() == [limits.max, 1 if comm.size > 1 else limits.min]
    assert comm.all_reduce(x, "min").tolist() == [1 if comm.size > 1 else limits.max, limits.min]


# -- half types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_summed_in_float32_and_rounded_once(comm: Any, kind: str, dtype: str) -> None:
    """2048 + 1 stays 2048 in float16 (256 + 1 stays 256 in bfloat16), so a sum in halves loses every one."""
    big = 2048.0 if dtype == "float16" else 256.0
    given = [np.array([big if rank == 0 else 1.0]) for rank in range(comm.size)]
    expected = rounded(np.array([big + comm.size - 1]), dtype)
    x = make(kind, dtype, "contiguous", given[comm.rank])
    assert plain_of(comm.all_reduce(x)).tolist() == expected.tolist()
    stacked = make(kind, dtype, "contiguous", np.stack([given[comm.rank]] * comm.size))
    assert plain_of(comm.reduce_scatter(stacked)).tolist() == expected.tolist()
    reduced = comm.reduce(x, root=0)
    assert reduced is None if comm.rank else plain_of(reduced).tolist() == expected.tolist()
    if comm.size >= 3:
        in_halves = reduce(lambda a, b: rounded(a + b, dtype), given)
        assert in_halves.tolist() != expected.tolist(), "the values do not tell the two ways apart"


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_average_without_overflow(comm: Any, kind: str, dtype: str) -> None:
    top = 65504.0 if dtype == "float16" else float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) / 8
    x = make(kind, dtype, "contiguous", np.array([top, -top]))
    assert plain_of(comm.all_reduce(x, "avg")).tolist() == [top, -top]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_float16_sum_past_its_range_is_infinite(comm: Any, kind: str) -> None:
    x = make(kind, "float16", "contiguous", np.array([65504.0, -65504.0]))
    expected = [65504.0, -65504.0] if comm.size == 1 else [np.inf, -np.inf]
    assert plain_of(comm.all_reduce(x)).tolist() == expected


@pytest.mark.parametrize("dtype", HALVES)
def test_a_single_column_read_backwards_is_a_half_like_any_other(comm: Any, dtype: str) -> None:
    """numpy calls it contiguous in spite of its negative stride, torch refuses it."""
    x = make("numpy", dtype, "contiguous", np.array([[1.0], [2.0]]))[:, ::-1]
    assert plain_of(comm.all_reduce(x)).tolist() == [[comm.size], [2.0 * comm.size]]


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_round_to_nearest_even_as_their_own_conversion_does(comm: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    singles = rng.standard_normal((comm.size, 5000)).astype(np.float32) * np.float32(100)
    halves = singles.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    y = comm.all_reduce(halves[comm.rank])
    exact = halves.astype(np.float64).sum(axis=0)
    # folding p values in float32 leaves at most one unit in the last place once rounded to a half
    spacing = (
        np.spacing(np.abs(exact).astype(np.float16)).astype(float) if dtype == "float16" else abs(exact) / 128
    )
    assert np.all(np.abs(y.astype(np.float64) - exact) <= spacing)
    alone = hpcomm.self_.all_reduce(halves[0])
    assert alone.tobytes() == halves[0].tobytes()


def test_not_a_number_is_kept_by_sums_of_halves(comm: Any) -> None:
    x = torch.tensor([float("nan"), 1.0]).to(torch.bfloat16)
    y = comm.all_reduce(x)
    assert torch.isnan(y[0])
    assert y[1].item() == comm.size


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "longdouble"])
def test_minima_and_maxima_keep_not_a_number_whichever_rank_has_it(comm: Any, dtype: str, op: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    for length, source in product((1, 3, 20_000), range(comm.size)):  # short, by MPI, halves by blocks
        x = np.full((comm.size, length), comm.rank, kind)
        x[:, -1] = np.nan if comm.rank == source else 1
        with np.errstate(all="raise"):
            ways = [
                comm.all_reduce(x, op),
                comm.all_reduce(x, op, async_op=True).wait(),
                comm.all_reduce(x, op, algorithm="double_tree"),
                comm.plan("all_reduce", x, op=op)(),
                comm.reduce(x, op, root=source),
                comm.reduce_scatter(x, op),
            ]
            below = [comm.scan(x, op), comm.exscan(x, op)]
        ways += [y for i, y in enumerate(below) if comm.rank >= source + i]
        for y in ways:
            if y is not None:
                assert np.isnan(y[..., -1]).all()
                assert not np.isnan(y[..., :-1]).any()
    assert comm.all_reduce(np.empty(0, kind), op).size == 0


# -- truth values -------------------------------------------------------------------------------


def test_minus_zero_is_false_and_not_a_number_is_true(comm: Any) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64"):
        x = make("numpy", dtype, "contiguous", np.array([-0.0, np.nan, 2.5]))
        assert plain_of(comm.all_reduce(x, "land")).tolist() == [0.0, 1.0, 1.0], dtype


def test_truth_of_one_rank_alone_decides_land_and_lor(comm: Any) -> None:
    mine = np.array([comm.rank == 0, comm.rank != 0])
    assert comm.all_reduce(mine, "lor").tolist() == [True, comm.size > 1]
    assert comm.all_reduce(mine, "land").tolist() == [comm.size == 1, False]


# -- premul_sum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_premul_sum_multiplies_each_ranks_x_by_its_own_factor(comm: Any, kind: str, dtype: str) -> None:
    given = [plain_values(dtype, (comm.size, 2), rank) for rank in range(comm.size)]
    expected = reduce(np.add, [x * x.dtype.type(rank + 1) for rank, x in enumerate(given)])
    x = make(kind, dtype, "sliced", given[comm.rank])
    op = hpcomm.premul_sum(comm.rank + 1)
    assert np.array_equal(plain_of(comm.all_reduce(x, op)), expected)
    assert np.array_equal(plain_of(comm.reduce_scatter(x, op)), expected[comm.rank])
    assert np.array_equal(plain_of(x), given[comm.rank])


def test_premul_sum_of_halves_scales_in_float32(comm: Any) -> None:
    x = torch.full((3,), 3.0, dtype=torch.float16)
    assert comm.all_reduce(x, hpcomm.premul_sum(1 / 3)).tolist() == pytest.approx([comm.size] * 3, rel=1e-3)
    huge = torch.full((1,), 60000.0, dtype=torch.float16)
    assert comm.all_reduce(huge, hpcomm.premul_sum(0.25 / comm.size)).tolist() == pytest.approx([15000.0])


@pytest.mark.parametrize(
    ("dtype", "factor"), [("int32", 0.5), ("uint8", 1.5), ("float32", 2j), ("bool", 1)], ids=str
)
def test_premul_sum_by_a_factor_that_changes_the_dtype_is_refused(comm: Any, dtype: str, factor: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="premul_sum") as caught:
        comm.all_reduce(np.ones(2, dtype), hpcomm.premul_sum(factor))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "factor"), [("uint8", -1), ("int8", 1000), ("uint64", -3), ("int8", np.int64(300)),
     ("float32", 1e300), ("float32", -1e-60), ("float16", 1e39), ("complex64", 1e300j), ("float64", 10**400)],
    ids=lambda x: f"{x!s:.12}",
)  # fmt: skip
def test_premul_sum_by_a_factor_out_of_range_is_refused(comm: Any, dtype: str, factor: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match=re.escape(str(factor))):
        comm.all_reduce(np.ones(2, dtype), hpcomm.premul_sum(factor))


@pytest.mark.parametrize("factor", [None, "2", np.ones(3), torch.ones(3), [2]], ids=str)
def test_premul_sum_needs_a_number(factor: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="no number"):
        hpcomm.premul_sum(factor)


# -- other libraries' operators -----------------------------------------------------------------

TORCH_OPS = [
    ("SUM", "sum"),
    ("AVG", "avg"),
    ("PRODUCT", "prod"),
    ("MIN", "min"),
    ("MAX", "max"),
    ("BAND", "band"),
    ("BOR", "bor"),
    ("BXOR", "bxor"),
]


@pytest.mark.parametrize(("torchs", "ours"), TORCH_OPS)
def test_a_reduce_op_of_torch_means_the_operator_of_its_name(comm: Any, torchs: str, ours: str) -> None:
    op = getattr(torch.distributed.ReduceOp, torchs)
    dtype = "float32" if ours == "avg" else "int32"
    given = [plain_values(dtype, (4,), rank) for rank in range(comm.size)]
    expected = fold(ours, dtype, given)
    x = make("torch", dtype, "contiguous", given[comm.rank])
    assert np.array_equal(plain_of(comm.all_reduce(x, op)), expected)
    assert np.array_equal(plain_of(comm.all_reduce(x, torch.distributed.ReduceOp(op))), expected)


def test_premul_sum_of_torch_brings_its_factor(comm: Any) -> None:
    op = torch.distributed._make_nccl_premul_sum(0.5)
    assert comm.all_reduce(torch.ones(2), op).tolist() == [comm.size / 2] * 2


MPI_OPS = [
    ("SUM", "sum"),
    ("PROD", "prod"),
    ("MIN", "min"),
    ("MAX", "max"),
    ("BAND", "band"),
    ("BOR", "bor"),
    ("BXOR", "bxor"),
    ("LAND", "land"),
    ("LOR", "lor"),
]


@pytest.mark.parametrize(("mpis", "ours"), MPI_OPS)
def test_an_operator_of_mpi_means_the_operator_of_its_name(comm: Any, mpis: str, ours: str) -> None:
    from mpi4py import MPI

    given = [plain_values("int16", (4,), rank) for rank in range(comm.size)]
    assert np.array_equal(
        comm.all_reduce(given[comm.rank].astype(np.int16), getattr(MPI, mpis)), fold(ours, "int16", given)
    )


def test_a_sum_of_bfloat16_by_mpis_own_operator_is_right_too(comm: Any) -> None:
    from mpi4py import MPI

    assert comm.all_reduce(torch.ones(3, dtype=torch.bfloat16), MPI.SUM).tolist() == [comm.size] * 3


def test_a_users_own_mpi_operator_serves(comm: Any) -> None:
    from mpi4py import MPI

    def larger_magnitude(a: MPI.buffer, b: MPI.buffer, datatype: MPI.Datatype) -> None:
        x, y = np.frombuffer(a, np.float64), np.frombuffer(b, np.float64)
        y[:] = np.where(np.abs(x) > np.abs(y), x, y)

    op = MPI.Op.Create(larger_magnitude, commute=True)
    try:
        x = np.array([-comm.rank - 1.0, 0.5])
        assert comm.all_reduce(x, op).tolist() == [-float(comm.size), 0.5]
        with pytest.raises(hpcomm.DtypeError, match="float16"):
            comm.all_reduce(x.astype(np.float16), op)
    finally:
        op.Free()


@pytest.mark.parametrize("name", ["MINLOC", "REPLACE", "NO_OP", "OP_NULL"])
def test_operators_of_mpi_that_are_no_reduction_are_refused(comm: Any, name: str) -> None:
    from mpi4py import MPI

    with pytest.raises(hpcomm.UsageError):
        comm.all_reduce(np.ones(2), getattr(MPI, name))


@pytest.mark.parametrize(
    ("word", "meant"),
    [("mean", "op='avg'"), ("SUM", "op='sum'"), ("all", "op='land'"), ("summ", "one of sum, ")],
)
def test_another_word_for_an_operator_is_told_ours(comm: Any, word: str, meant: str) -> None:
    with pytest.raises(hpcomm.UsageError, match=f"no operator '{word}'") as caught:
        comm.all_reduce(np.ones(2), word)
    assert caught.value.hint.startswith(meant)


# -- functions ----------------------------------------------------------------------------------

REDUCING: dict[str, Callable[[list[np.ndarray], int, int, Any], np.ndarray | None]] = {
    "all_reduce": lambda given, rank, root, f: reduce(f, given),
    "reduce": lambda given, rank, root, f: reduce(f, given) if rank == root else None,
    "reduce_scatter": lambda given, rank, root, f: reduce(f, [x[rank] for x in given]),
    "scan": lambda given, rank, root, f: reduce(f, given[: rank + 1]),
}


def products(a: Any, b: Any) -> Any:
    """2x2 matrix products over a stack: associative, not commutative."""
    return a @ b


@pytest.mark.parametrize("time", ["blocking", "async"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("verb", REDUCING)
def test_a_function_is_folded_in_rank_order(comm: Any, verb: str, kind: str, time: str) -> None:
    p, root = comm.size, comm.size - 1
    given = [plain_values("float64", (p, 5, 2, 2), 7 + rank) for rank in range(p)]
    expected = REDUCING[verb](given, comm.rank, root, products)
    keywords: dict[str, Any] = {"root": root} if verb == "reduce" else {}
    x = make(kind, "float64", "transposed", given[comm.rank])
    result = getattr(comm, verb)(x, products, async_op=time == "async", **keywords)
    y = result.wait(timeout=60) if time == "async" else result
    if expected is None:
        assert y is None
    else:
        assert np.array_equal(plain_of(y), expected)
    assert np.array_equal(plain_of(x), given[comm.rank])


@pytest.mark.parametrize("dtype", ["bool", "float64", "int8"])
def test_a_function_is_given_arrays_also_of_no_dimensions(comm: Any, dtype: str) -> None:
    x, last = np.array(comm.rank == comm.size - 1, dtype), comm.size - 1

    def later(a: Any, b: Any) -> Any:
        assert type(a) is type(b) is np.ndarray
        assert a.shape == b.shape == ()
        return b

    assert comm.all_reduce(x, later) == 1
    assert (comm.reduce(x, later, root=last) == 1) == (comm.rank == last)
    assert comm.scan(x, later) == x
    assert comm.reduce_scatter(np.full(comm.size, x), later) == 1
    assert comm.all_reduce(x, later, async_op=True).wait() == 1


def test_the_last_ranks_value_is_what_a_function_that_keeps_the_right_gives(comm: Any) -> None:
    x = np.array([comm.rank, 10 * comm.rank])
    last = comm.size - 1
    assert comm.all_reduce(x, lambda a, b: b).tolist() == [last, 10 * last]
    assert comm.all_reduce(x, lambda a, b: a).tolist() == [0, 0]
    assert comm.scan(x, lambda a, b: b).tolist() == x.tolist()


def test_a_function_sees_arrays_of_xs_own_kind_and_dtype(comm: Any) -> None:
    seen: list[Any] = []

    def add(a: Any, b: Any) -> Any:
        seen.extend([a, b])
        return a + b

    x = torch.ones(3, dtype=torch.bfloat16)
    assert comm.all_reduce(x, add).tolist() == [comm.size] * 3
    assert all(type(a) is torch.Tensor and a.dtype is torch.bfloat16 for a in seen)
    seen.clear()
    assert comm.all_reduce(np.ones(3, np.float16), add).tolist() == [comm.size] * 3
    assert all(type(a) is np.ndarray and a.dtype == np.float16 for a in seen)


def test_a_function_reduces_what_no_named_operator_can(comm: Any) -> None:
    x = np.array([3 + 4j, comm.rank])
    y = comm.all_reduce(x, lambda a, b: np.where(abs(a) >= abs(b), a, b))
    assert y.tolist() == [3 + 4j, comm.size - 1]


def test_a_function_may_fold_into_a_given_out_and_in_place(comm: Any) -> None:
    x = np.array([comm.rank + 1.0])
    out = np.zeros(1)
    assert comm.all_reduce(x, lambda a, b: a * 10 + b, out=out) is out
    expected = reduce(lambda a, b: a * 10 + b, range(1, comm.size + 1))
    assert out.tolist() == [expected]
    assert comm.all_reduce(x, lambda a, b: a * 10 + b, out=x) is x
    assert x.tolist() == [expected]


def test_a_function_that_changes_its_arguments_cannot_change_x(comm: Any) -> None:
    def add_in_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a += b
        return a

    x = np.ones(4)
    assert comm.all_reduce(x, add_in_place).tolist() == [comm.size] * 4
    assert x.tolist() == [1.0] * 4
    assert comm.scan(x, add_in_place).tolist() == [comm.rank + 1.0] * 4


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("function", "made"),
    [
        (lambda a, b: np.concatenate([a, b]), r"float64 \(8,\)"),
        (lambda a, b: (a + b).astype(np.float32), r"float32 \(4,\)"),
        (lambda a, b: None, "a NoneType"),
        (lambda a, b: [*(a + b)], "a list"),
    ],
    ids=["shape", "dtype", "None", "list"],
)
def test_a_function_whose_result_is_no_such_array_is_a_usage_error(
    comm: Any, function: Any, made: str
) -> None:
    with pytest.raises(hpcomm.UsageError, match=rf"made {made} of float64 \(4,\)\n  where: all_reduce on"):
        comm.all_reduce(np.ones(4), function)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.mpi(min_size=2)
def test_an_exception_in_a_function_reaches_its_caller(comm: Any) -> None:
    def fail(a: Any, b: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        comm.all_reduce(np.ones(2), fail)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "complex64"])
def test_exscan_goes_the_quick_way_and_gives_what_the_careful_one_gives(comm: Any, dtype: str) -> None:
    given = np.arange(1, 7).astype(dtype).reshape(2, 3) + comm.rank
    arrays = [given, torch.from_numpy(given)] if dtype not in ("uint16", "complex64") else [given]
    ops = {"c": ["sum", "prod"], "f": ["sum", "min", "max"]}.get(given.dtype.kind, ["prod", "min", "band"])
    for x in arrays:
        for op in ops:
            expected = careful(comm.context, Arguments("exscan", x, None, op), False)
            for out in (None, x + 1):
                np.testing.assert_array_equal(comm.exscan(x, op, out=out), expected)


def test_exscan_with_a_function_gives_the_ranks_before_and_says_what_rank_0_gets(comm: Any) -> None:
    """No value is known that a function does not notice: rank 0 gets None, as from mpi4py's exscan."""
    x = np.array([comm.rank + 1])
    y = comm.exscan(x, lambda a, b: a * 10 + b)
    if comm.rank == 0:
        assert y is None
    else:
        assert y.tolist() == [reduce(lambda a, b: a * 10 + b, range(1, comm.rank + 1))]


@pytest.mark.parametrize("op", ["plus", "SUM", "", None, 3, "premul_sum"], ids=repr)
def test_an_unknown_operator_is_refused_with_the_list_of_those_there_are(comm: Any, op: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        comm.all_reduce(np.ones(2), op)
    assert caught.value.hint
    assert "sum" in str(caught.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint64"])
@pytest.mark.parametrize("n", [3, 64, 5000])
def test_sums_of_integers_wrap_around_on_every_way(comm: Any, dtype: str, n: int) -> None:
    """As numpy's, torch's and C's do. Open MPI stops most elements of narrow ones at the dtype's ends."""
    ends = np.iinfo(dtype)
    draw = np.random.default_rng(n).integers
    given = draw(ends.min, ends.max, (comm.size, n), dtype, endpoint=True)
    x, p, rank = given[comm.rank].copy(), comm.size, comm.rank
    upto = np.add.accumulate(given, dtype=dtype)
    blocks = np.tile(x, (p, 1))
    with comm.plan("all_reduce", x) as step:
        got = {
            "all_reduce": (comm.all_reduce(x), upto[-1]),
            "a tensor's": (comm.all_reduce(torch.from_numpy(x)).numpy(), upto[-1]),
            "in the background": (comm.all_reduce(x, async_op=True).wait(), upto[-1]),
            "a plan": (step(), upto[-1]),
            "scan": (comm.scan(x), upto[rank]),
            "exscan": (comm.exscan(x), upto[rank - 1] if rank else np.zeros(n, dtype)),
            "reduce_scatter": (comm.reduce_scatter(blocks), upto[-1]),
            "premul_sum": (comm.all_reduce(x, hpcomm.premul_sum(3)), upto[-1] * np.array(3, dtype)),
            "ring": (comm.all_reduce(x, algorithm="ring"), upto[-1]),
        }
    reduced = comm.reduce(x, root=p - 1)
    assert rank != p - 1 or reduced.tolist() == upto[-1].tolist()
    assert [name for name, (have, want) in got.items() if have.dtype != dtype or (have != want).any()] == []


@pytest.mark.parametrize(
    ("op", "meant"),
    [
        (sum, "sum"), (min, "min"), (max, "max"), (any, "lor"), (all, "land"), (math.prod, "prod"),
        (np.sum, "sum"), (np.max, "max"), (np.amin, "min"), (np.mean, "avg"), (torch.sum, "sum"),
    ],
)  # fmt: skip
def test_functions_that_fold_one_array_mean_their_operator(comm: Any, op: Any, meant: str) -> None:
    x = np.arange(3.0) + comm.rank
    assert np.array_equal(comm.all_reduce(x, op), comm.all_reduce(x, meant))
    assert comm.all_reduce(x[:1], op).tolist() == comm.all_reduce(x[:1], meant).tolist()
    assert comm.scan(2.5 + comm.rank, "sum" if meant == "avg" else op) == comm.scan(
        2.5 + comm.rank, "sum" if meant == "avg" else meant
    )
    if meant != "avg":
        assert comm.all_reduce_object(comm.rank + 1.5, op) == comm.all_reduce_object(comm.rank + 1.5, meant)


def test_bools_of_python_are_counted_and_stay_bools_where_python_keeps_them(comm: Any) -> None:
    mine = comm.rank > 0
    count = comm.size - 1
    for got in (
        comm.all_reduce(mine),
        comm.allreduce(mine, op=sum),
        comm.all_reduce(mine, async_op=True).wait(),
        comm.scan(comm.rank >= 1) - comm.rank + count,
        comm.all_reduce(mine if comm.rank else 0),
    ):
        assert (type(got), got) == (int, count)
    assert comm.all_reduce(True, "prod") == 1
    for op, expected in (
        ("max", count > 0),
        ("lor", count > 0),
        ("min", False),
        (all, False),
        (any, count > 0),
    ):
        assert comm.all_reduce(mine, op) is expected
    assert comm.all_reduce(np.bool_(mine)) == (count > 0)
    assert comm.broadcast(mine) is False


@pytest.mark.parametrize("algorithm", [None, "tree"])
@pytest.mark.parametrize("n", [1, 40_000])
def test_what_is_folded_raises_nothing_where_numpy_should_raise(
    comm: Any, n: int, algorithm: str | None
) -> None:
    """MPI does not warn of infinity; a rank that raised in a call would leave the others waiting."""
    both = (np.inf, -np.inf) if comm.size > 1 else (np.nan, np.nan)
    with np.errstate(all="raise"):
        for dtype in ("f2", "f4", "c8"):
            for op in ("sum", "avg", "prod", hpcomm.premul_sum(2)):
                for pair in (both, (np.finfo(dtype).max,) * 2):
                    x = np.full(n, pair[comm.rank % 2], dtype)
                    y = comm.all_reduce(x, op, algorithm=algorithm)
                    z = comm.all_reduce(x, op, algorithm=algorithm, async_op=True).wait()
                    assert np.array_equal(y, z, equal_nan=True)


@pytest.mark.parametrize("kind", ["float64", "int8", "bfloat16", "bool", "strided", "numbers"])
@pytest.mark.parametrize("op", ["sum", "max", "function"])
def test_reduce_scatter_ragged_gives_rank_j_array_j_of_all(comm: Any, kind: str, op: str) -> None:
    def array(j: int, rank: int) -> Any:
        if kind == "numbers":
            return float(j + rank)
        if kind == "strided":
            return (np.arange(2.0 * (j + 1)) + rank)[::2]
        made = torch.arange(j * 3).reshape(j, 3) + rank  # none for rank 0
        return (made > 2) if kind == "bool" else made.to(getattr(torch, kind))

    by: Any = (lambda a, b: a * b) if op == "function" else op
    xs = [array(j, comm.rank) for j in range(comm.size)]
    reduced = comm.reduce_scatter_ragged(xs, by)
    later = comm.reduce_scatter_ragged(tuple(xs), by, async_op=True).wait()
    expected = comm.all_reduce(xs[0], by)
    for j in range(comm.size):
        each = comm.all_reduce(xs[j], by)
        expected = each if j == comm.rank else expected
    assert type(reduced) is type(expected)
    assert np.array_equal(
        np.asarray(torch.as_tensor(reduced).float()), np.asarray(torch.as_tensor(expected).float())
    )
    assert np.array_equal(
        np.asarray(torch.as_tensor(later).float()), np.asarray(torch.as_tensor(expected).float())
    )


@pytest.mark.parametrize(
    ("given", "op", "error", "what"),
    [
        ([1.0], "sum", hpcomm.UsageError, "needs a list with one item for each of . ranks, not 1 items"),
        (None, "sum", hpcomm.UsageError, "needs a list with one item"),
        ("object", "sum", hpcomm.UsageError, "x "),
        ("complex", "max", hpcomm.DtypeError, "complex numbers have no max"),
        ("float", "mean", hpcomm.UsageError, "there is no operator 'mean'"),
    ],
)
def test_reduce_scatter_ragged_refuses_before_others_commit(
    own_comm: Any, given: Any, op: str, error: Any, what: str
) -> None:
    if own_comm.size == 1:
        given = given if isinstance(given, str) else None
    items = {"object": object(), "complex": 1j, "float": 1.0}
    xs = [items[given]] * own_comm.size if isinstance(given, str) else given
    if own_comm.rank == 0:
        with pytest.raises(error) as caught:
            own_comm.reduce_scatter_ragged(xs, op)
        assert "where: reduce_scatter_ragged on communicator" in str(caught.value)
    elif own_comm.check == "light":
        with pytest.raises(hpcomm.HpcommError):
            own_comm.reduce_scatter_ragged([1.0] * own_comm.size)


@pytest.mark.core
@pytest.mark.mpi(min_size=2)
def test_reduce_scatter_ragged_of_blocks_that_differ_is_a_mismatch(own_comm: Any) -> None:
    with pytest.raises(hpcomm.HpcommError, match="reduce"):
        own_comm.reduce_scatter_ragged([np.ones(2 + (own_comm.rank == 1))] * own_comm.size)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "complex64", "bool"])
def test_functions_of_numpy_are_the_operators_that_they_mean(comm: Any, dtype: str) -> None:
    """In one call of the core or of MPI: all arrays to all ranks would take many times as long."""
    x = (np.arange(600) * (comm.rank + 0.37)).astype(dtype)
    pairs: list[tuple[Any, str]] = [(np.add, "sum"), (operator.mul, "prod")]
    pairs += [] if dtype == "complex64" else [(np.minimum, "min"), (np.maximum, "max")]
    pairs += [(np.bitwise_xor, "bxor"), (operator.and_, "band")] if dtype in ("int8", "bool") else []
    pairs += [(np.logical_or, "lor")] if dtype == "bool" else []
    for function, name in pairs:
        assert resolve(function, from_numpy(x.dtype)) == resolve(name, from_numpy(x.dtype))
        assert comm.all_reduce(x, function).tobytes() == comm.all_reduce(x, name).tobytes()


def test_functions_of_numpy_reduce_what_has_no_operator(comm: Any) -> None:
    days = np.array(["2026-01-01"], "M8[D]") + np.timedelta64(comm.rank, "D")
    assert comm.all_reduce(days, np.maximum) == np.array("2026-01-01", "M8[D]") + comm.size - 1
    ordered = np.array([comm.rank + 1j])
    assert comm.all_reduce(ordered, np.maximum) == comm.size - 1 + 1j
