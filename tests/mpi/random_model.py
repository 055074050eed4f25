"""What random programs compute with, and what must come of it: plain numpy that knows every rank's data.

Data follow from (seed, step, rank), so each rank knows what all have given. Sums are of small whole numbers
or of integers that wrap around, so that they are the same in any order; what is only moved is random bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from arrays import COMPLEX, DTYPES, FLOATS, HALVES, INTEGERS, bits, make, numpy_dtype

Array = np.ndarray
RECORD = "i1,f8"
MOVED = (*DTYPES, "longdouble", "clongdouble", "S3", "M8[s]", RECORD)
REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter", "scan", "exscan")
STACKED = ("scatter", "reduce_scatter", "all_to_all")


def twice_plus(a: Any, b: Any) -> Any:
    """Neither commutes nor associates: folded in rank order."""
    with np.errstate(over="ignore"):  # of a single integer
        return a + a + b


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "first": lambda a, b: a,
    "last": lambda a, b: b,
    "twice_plus": twice_plus,
}
OPS = {
    "bool": ("sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"),
    "int": ("sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "premul_sum"),
    "float": ("sum", "avg", "prod", "min", "max", "land", "lor", "premul_sum"),
    "complex": ("sum", "avg", "prod", "land", "lor", "premul_sum"),
}


def sort_of(dtype: str) -> str:
    """Which operators dtype has: a key of OPS, or "moved"."""
    known = (("bool", ("bool",)), ("int", INTEGERS), ("float", FLOATS), ("complex", COMPLEX))
    return next((sort for sort, names in known if dtype in names), "moved")


def rng_of(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], style: str) -> Array:
    """Elements of dtype; style: "bits" for what is moved, "fold" for operators, "special" with NaN."""
    record = numpy_dtype(dtype)
    sort = sort_of(dtype)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if record.char in "gG":  # whose padding nobody need carry
        return np.asarray(rng.integers(-9, 10, shape)).astype(record) / 4
    if sort in ("int", "moved") or style == "bits":
        count = int(np.prod(shape))
        return np.frombuffer(rng.bytes(count * record.itemsize), record).reshape(shape).copy()
    small = np.asarray(rng.integers(-3, 4, shape), float)
    if sort == "complex":
        small = small + 1j * rng.integers(-3, 4, shape)
    elif style == "special" and small.size:
        flat = small.reshape(-1)
        flat[rng.integers(0, flat.size, 1 + flat.size // 9)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        small = flat.reshape(shape)
    return np.asarray(small).astype(record)


def as_laid(plain: Array, layout: str) -> Array:
    """plain, as an array of that layout can hold it."""
    return (
        np.broadcast_to(plain[..., :1], plain.shape).copy() if layout == "repeated" and plain.size else plain
    )


def value_of(x: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    """The elements of any array as numpy's."""
    return np.frombuffer(bits(x), numpy_dtype(dtype)).reshape(shape)


def folded(op: str, dtype: str, given: Sequence[Array], factor: Any = None) -> Array:
    """The fold of what ranks gave, in their order."""
    shape, record = given[0].shape, numpy_dtype(dtype)
    flat = [x.reshape(-1) for x in given]
    if op in FUNCTIONS:
        return np.asarray(reduce(FUNCTIONS[op], flat)).astype(record).reshape(shape)
    with np.errstate(all="ignore"):
        return np.asarray(_known(op, dtype, flat, factor)).astype(record).reshape(shape)


def _known(op: str, dtype: str, flat: list[Array], factor: Any) -> Array:
    if op in ("land", "lor") or dtype == "bool":
        truth = [x != 0 for x in flat]
        how = {"bxor": np.logical_xor} | dict.fromkeys(("prod", "min", "land", "band"), np.logical_and)
        return np.asarray(reduce(how.get(op, np.logical_or), truth))
    if dtype in HALVES:
        flat = [x.astype(np.float32) for x in flat]
    if op == "premul_sum":
        flat = [x * x.dtype.type(factor) for x in flat]
    ways: dict[str, Any] = {"prod": np.multiply, "min": np.minimum, "max": np.maximum,
                            "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip
    total = np.asarray(reduce(ways.get(op, np.add), flat))
    if op != "avg":
        return total
    if total.dtype.kind == "c":
        total.real /= len(flat)
        total.imag /= len(flat)
        return total
    return np.asarray(total / total.dtype.type(len(flat)))


def neutral(op: str, dtype: str, like: Array) -> Array | None:
    """What exscan leaves on rank 0; None where op is a function."""
    if op in FUNCTIONS:
        return None
    record = numpy_dtype(dtype)
    if dtype == "bool" or op in ("land", "lor"):
        return np.full(like.shape, op in ("prod", "min", "land", "band")).astype(record)
    if op == "band":
        return ~np.zeros(like.shape, record)
    if op in ("min", "max"):
        if record.kind in "iu":
            return np.full(like.shape, getattr(np.iinfo(record), {"min": "max", "max": "min"}[op]), record)
        return np.full(like.shape, np.inf if op == "min" else -np.inf).astype(record)
    return np.full(like.shape, 1 if op == "prod" else 0).astype(record)


def collective(
    verb: str, given: list[Array], rank: int, root: int, op: str, dtype: str, factor: Any = None
) -> Array | None:
    """What rank gets of a collective verb to which rank r gives given[r]; stacked verbs' are (p, *block)."""
    fold = {"op": op, "dtype": dtype, "factor": factor}
    if verb == "broadcast":
        return given[root]
    if verb == "reduce":
        return folded(given=given, **fold) if rank == root else None
    if verb == "all_reduce":
        return folded(given=given, **fold)
    if verb == "gather":
        return np.stack(given) if rank == root else None
    if verb == "all_gather":
        return np.stack(given)
    if verb == "scatter":
        return given[root][rank, ...]
    if verb == "reduce_scatter":
        return folded(given=[x[rank, ...] for x in given], **fold)
    if verb == "all_to_all":
        return np.stack([x[rank, ...] for x in given])
    if verb == "scan":
        return folded(given=given[: rank + 1], **fold)
    assert verb == "exscan", verb
    return folded(given=given[:rank], **fold) if rank else neutral(op, dtype, given[0])


def difference(got: Any, wanted: Array, dtype: str, exact: bool) -> str:
    """Why an array is not the one that was wanted, or ''. exact: bit for bit."""
    have = value_of(got, dtype, wanted.shape)
    if exact and wanted.dtype.char not in "gG":
        return "" if have.tobytes() == wanted.tobytes() else _first(have, wanted)
    plain = [x.astype("float32") if x.dtype.kind == "V" or dtype in HALVES else x for x in (have, wanted)]
    nan = plain[0].dtype.kind in "fc"
    return "" if np.array_equal(*plain, equal_nan=nan) else _first(have, wanted)


def _first(have: Array, wanted: Array) -> str:
    a, b = have.reshape(-1), wanted.reshape(-1)
    wrong = [i for i in range(a.size) if a[i : i + 1].tobytes() != b[i : i + 1].tobytes()]
    return f"{len(wrong)} of {a.size} elements, first at {wrong[0]}: {a[wrong[0]]!r} for {b[wrong[0]]!r}"


# -- objects and ragged arrays -----------------------------------------------------------------------------
LARGE = 3000  # elements: more than a entry holds


def an_array(rng: np.random.Generator, large: bool = False) -> Any:
    """Any array: what a rank gives to a ragged verb."""
    dtype = str(rng.choice(MOVED[:-1]))  # numpy arrays of records do not compare by ==
    kind = "torch" if dtype in DTYPES and rng.random() < 0.4 else "numpy"
    shape = [(), (0,), (3,), (2, 3), (2, 0, 3), (5, 1, 2), (LARGE * 30 if large else LARGE,)][
        rng.integers(0, 7)
    ]
    layouts = ["contiguous"]
    if shape and 0 not in shape:
        layouts += (
            ["sliced", "fortran"] + ["transposed"] * (len(shape) > 1) + ["negative"] * (kind == "numpy")
        )
    return make(kind, dtype, str(rng.choice(layouts)), values(rng, dtype, shape, "bits"))


def an_object(rng: np.random.Generator, depth: int = 0, large: bool = False) -> Any:
    """Any object that can be pickled and compared by `same`."""
    kind = rng.integers(0, 10 if depth < 3 else 7)
    if kind < 4:
        plain = [None, 7, -1.5, "word", True, 2**70, 3j, b"\0bytes", "", b"x" * 20_000]
        return plain[rng.integers(0, len(plain))]
    if kind < 7:
        return an_array(rng, large)
    inner = [an_object(rng, depth + 1, large) for _ in range(rng.integers(0, 4))]
    return {7: inner, 8: tuple(inner), 9: {f"key{i}": x for i, x in enumerate(inner)}}[int(kind)]


def same(a: Any, b: Any) -> bool:
    """Whether two objects are alike, arrays bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (torch.Tensor, np.ndarray)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        padded = isinstance(a, np.ndarray) and a.dtype.char in "gG"
        return bool(np.array_equal(a, b)) if padded else bits(a) == bits(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def foldable(rng: np.random.Generator, sort: str) -> Any:
    """An object for reduce_object."""
    if sort == "list":
        return list(map(int, rng.integers(0, 9, rng.integers(0, 3))))
    if sort == "str":
        return "abc"[: rng.integers(0, 4)]
    return int(rng.integers(0, 100)) if sort == "int" else 2**80 + int(rng.integers(0, 9))


def shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 400 else f"{text[:400]}..."
