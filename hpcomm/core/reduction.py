"""Reduction operators: which ones make sense on which element types, and how each is carried out.

An operator on a dtype becomes a Reduction: what is sent instead of x (`widen`), which MPI operator
reduces it, and what the reduced values become (`narrow`). Halves travel as float32 and are rounded once;
truth values as 0 and 1; an operator that MPI does not know is reduced here, in rank order, over the
gathered contributions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from numbers import Number
from typing import Any, NamedTuple

from .._lazy import MPI, np
from ..errors import DtypeError, UsageError
from . import dtypes
from .dtypes import Dtype
from .op import Op
from .types import NpArray

NAMES = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "premul_sum")
_MPI = {"sum": "SUM", "avg": "SUM", "premul_sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX",
        "band": "BAND", "bor": "BOR", "bxor": "BXOR", "land": "LAND", "lor": "LOR"}  # fmt: skip
_ON_BOOL = {"sum": "BOR", "max": "BOR", "lor": "BOR", "bor": "BOR", "prod": "BAND", "min": "BAND",
            "land": "BAND", "band": "BAND", "bxor": "BXOR"}  # fmt: skip
_OTHER_WORDS = {"mean": "avg", "average": "avg", "add": "sum", "mul": "prod", "product": "prod",
                "minimum": "min", "maximum": "max", "and": "land", "all": "land", "or": "lor", "any": "lor",
                "xor": "bxor"}  # fmt: skip
# Functions that reduce one array, of which f(a, b) means something else, or nothing: by module, and meant
_FUNCTIONS = {
    "builtins": {"sum": "sum", "min": "min", "max": "max", "any": "lor", "all": "land"},
    "math": {"prod": "prod", "fsum": "sum"},
    "statistics": {"mean": "avg", "fmean": "avg"},
    "numpy": {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "amin": "min", "amax": "max",
              "any": "lor", "all": "land", "mean": "avg", "average": "avg"},
    "torch": {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "amin": "min", "amax": "max",
              "any": "lor", "all": "land", "mean": "avg"},
}  # fmt: skip
# Functions f(a, b) of these modules that are an operator, and on elements of which kinds
_MODULES = ("numpy", "operator", "torch")
_OF_TWO = {"add": "sum", "multiply": "prod", "mul": "prod", "minimum": "min", "maximum": "max",
           "bitwise_and": "band", "and_": "band", "bitwise_or": "bor", "or_": "bor", "bitwise_xor": "bxor",
           "xor": "bxor", "logical_and": "land", "logical_or": "lor"}  # fmt: skip
_THEIR_KINDS = {"sum": "biufhc", "prod": "biufhc", "min": "biufh", "max": "biufh",
                "band": "biu", "bor": "biu", "bxor": "biu", "land": "b", "lor": "b"}  # fmt: skip
_MOST = 2**63 - 1  # of an int
_FLOATS = ("FLOAT", "DOUBLE", "LONG_DOUBLE")
_NARROW = ("INT8_T", "UINT8_T", "INT16_T", "UINT16_T")
OTHER_CODE = 31  # code of every operator that MPI does not know by name


class Reduction(NamedTuple):
    """An operator on a dtype.

    code: the same small number on all ranks that mean the same
    mpi_op, mpi_type: names of MPI's operator and of the element type that travels; mpi_op None: reduce here
    widen: storage array -> contiguous array that travels, or None: x itself can
    narrow: (travelled array, number of ranks) -> storage array; None: nothing to do
    finish: (storage array, number of ranks), changes it in place; None: nothing to do
    exact: sums of floats are exact, and rounded once
    """

    op: Op
    code: int
    mpi_op: Any
    mpi_type: str
    widen: Callable[[NpArray], NpArray] | None = None
    narrow: Callable[[NpArray, int], NpArray] | None = None
    finish: Callable[[NpArray, int], None] | None = None
    exact: bool = False

    @property
    def function(self) -> Callable[[Any, Any], Any] | None:
        return self.op.function

    def mpi(self) -> Any:
        """The operator for MPI to reduce with, on the host."""
        if self.mpi_op in ("MIN", "MAX") and self.mpi_type in _FLOATS:
            return _keeping_nan(self.mpi_op)
        if self.mpi_op == "SUM" and self.mpi_type in _NARROW and MPI.get_vendor()[0] == "Open MPI":
            return _wrapping_sum()
        return getattr(MPI, self.mpi_op) if isinstance(self.mpi_op, str) else self.mpi_op


def is_always_exact() -> bool:
    """Whether sums are exact where no argument says so: of torch's groups, and of fields."""
    return os.environ.get("HPCOMM_DETERMINISTIC") == "1"


def premul_sum(factor: object) -> Op:
    """The operator that multiplies this rank's x by factor, a number, and sums (NCCL's premul_sum).

    Raises:
        UsageError: factor is not a number.
    """
    if hasattr(factor, "item") and getattr(factor, "ndim", 1) == 0:
        factor = factor.item()
    if not isinstance(factor, Number):
        raise UsageError(f"premul_sum by {factor!r}, which is no number", hint="hpcomm.premul_sum(0.5)")
    return Op("premul_sum", factor=factor)


def resolve(op: Any, dtype: Dtype) -> Reduction:
    """The Reduction for op on dtype.

    Args:
        op: a name of NAMES, premul_sum(factor), torch ReduceOp, MPI.Op, a function f(a, b) -> c, or one such
            as numpy.add, or Python's sum, max and any, which means the operator by which it reduces.

    Raises:
        UsageError: op is none of these.
        DtypeError: op has no right result on dtype.
    """
    found = named(op)
    word = word_of(found)
    is_known = word != found.name and dtype.kind in _THEIR_KINDS.get(word, ())
    return _on(Op(word) if is_known else found, dtype)


def word_of(op: Op) -> str:
    """What it is called; of a function such as numpy.add the operator that it is on most elements."""
    word = _OF_TWO.get(op.name)
    return word if word and any(_is_of(op.function, each) for each in _MODULES) else str(op)


def check_whole(x: int, op: Op, ranks: int) -> None:
    """Refuse an int of Python's, which knows no bounds, where the result might not fit into 64 bits."""
    if op.name not in ("sum", "prod", "premul_sum"):
        return
    own = abs(x * (1 if op.factor is None else int(op.factor)))
    if own > (_MOST ** (1 / ranks) if op.name == "prod" else _MOST // ranks):
        raise DtypeError(
            f"{op} of ints such as {x} on {ranks} ranks might not fit into 64 bits",
            hint=f"all_reduce_object({'factor * ' if own != abs(x) else ''}x, "
            f"{op.name.removeprefix('premul_')!r}), which is exact, or float(x)",
        )


def named(op: Op) -> Op:
    """op in our words, whichever library spelt it."""
    if isinstance(op, str):
        return _from_name(op)
    if isinstance(op, Op):
        return op
    module = type(op).__module__
    if module.startswith("mpi4py") and isinstance(op, MPI.Op):
        return _from_mpi(op)
    if module.startswith("torch") and isinstance(getattr(getattr(op, "op", op), "name", None), str):
        return _from_torch(op)
    if callable(op):
        known = name_of_function(op)
        return Op(known) if known else Op(getattr(op, "__name__", "function"), function=op)
    hint = "a name such as 'sum', or a function f(a, b); an array that receives goes by its name, out="
    raise UsageError(f"op is a {type(op).__name__}", hint=hint)


def _from_name(name: str) -> Op:
    if name not in NAMES:
        word = name.lower()
        meant = _OTHER_WORDS.get(word, word)
        hint = f"op={meant!r}" if meant in NAMES else f"one of {', '.join(NAMES)}, or a function f(a, b)"
        raise UsageError(f"there is no operator {name!r}", hint=hint)
    if name == "premul_sum":
        raise UsageError("premul_sum needs its factor", hint="op=hpcomm.premul_sum(0.5)")
    return Op(name)


def name_of_function(op: Callable[..., object]) -> str | None:
    """The name of the operator that a function such as Python's sum reduces by; None: it may take a and b."""
    for module, names in _FUNCTIONS.items():
        word = names.get(getattr(op, "__name__", ""))
        if word is not None and _is_of(op, module):
            return word
    return None


def _is_of(op: Any, module: str) -> bool:
    """Whether a module, if it is loaded, has this function by its own name."""
    return op is not None and op is getattr(sys.modules.get(module), op.__name__, None)


def counted(x: object, op: Op) -> Any:
    """x, or a bool of Python's as the number that it is, where Python's own + and * count."""
    return int(x) if type(x) is bool and named(op).name in ("sum", "prod", "premul_sum") else x


def _from_mpi(op: MPI.Op) -> Op:
    for name in ("sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"):
        if op == getattr(MPI, _MPI[name]):
            return Op(name)
    if op == MPI.OP_NULL or op.is_predefined:
        hint = 'all_reduce_object((x, place), "maxloc") or "minloc", or comm.mpi, which has all of MPI'
        raise UsageError("this MPI operator has no meaning on arrays of one element type", hint=hint)
    return Op("MPI.Op", mpi=op)


def _from_torch(op: Op) -> Op:
    kind = getattr(op, "op", op)  # ReduceOp holds a RedOpType, ReduceOp.SUM is one
    name = {"PRODUCT": "prod"}.get(kind.name, kind.name.lower())
    if name == "premul_sum":
        factor = op.factor
        return premul_sum(factor.item() if hasattr(factor, "item") else factor)
    return Op(name)


def _on(op: Op, dtype: Dtype) -> Reduction:
    if op.function is not None:
        return Reduction(op, OTHER_CODE, None, "")
    if op.mpi is not None:
        if dtype.mpi is None:
            what = f"MPI has no type for {dtype}, so an MPI.Op cannot reduce it"
            raise DtypeError(what, hint="a function f(a, b) as op")
        return Reduction(op, OTHER_CODE, op.mpi, dtype.mpi)
    if op.factor is not None:
        return _premultiplied(op, dtype)
    return _known(op.name, dtype)


def _refuse_wrong(name: str, kind: str, dtype: Dtype) -> None:
    """Raise a DtypeError for an operator that has no right result on dtype."""
    if kind in "qo":
        raise DtypeError(f"{dtype} can be moved but not reduced", hint=_instead(dtype))
    if name in ("band", "bor", "bxor") and kind not in "biu":
        what = f"{name} works on bits, {dtype} is no integer"
        raise DtypeError(what, hint="'land' or 'lor' for truth values")
    if name == "avg" and kind in "biu":
        what = f"the average of {dtype} values need not be a value of {dtype}"
        raise DtypeError(what, hint="convert to float64 first, or op='sum' and divide")
    if name in ("min", "max") and kind == "c":
        raise DtypeError(f"complex numbers have no {name}", hint="reduce abs(x), or x.real and x.imag apart")


@lru_cache(maxsize=512)
def _known(name: str, dtype: Dtype) -> Reduction:
    op, code, kind = Op(name), NAMES.index(name), dtype.kind
    _refuse_wrong(name, kind, dtype)
    if kind == "b":
        return Reduction(
            op, code, _ON_BOOL[name], "UINT8_T", _bytes_of, lambda got, ranks: got.view(np.bool_)
        )
    if name in ("land", "lor"):
        back = _truth_to(dtype)
        return Reduction(op, code, _ON_BOOL[name], "UINT8_T", _truth_of(dtype), back)
    if kind == "h":
        return Reduction(
            op, code, _MPI[name], "FLOAT", lambda x: dtypes.widen(x, dtype), _narrow(dtype, name == "avg")
        )
    assert dtype.mpi is not None
    return Reduction(op, code, _MPI[name], dtype.mpi, finish=_divide if name == "avg" else None)


def _instead(dtype: Dtype) -> str:
    """What to reduce in place of elements that have no operators."""
    if dtype.given is None:
        return "convert first, for example to float32"
    if dtype.given.kind in "mM":
        return "x.view('int64') for times"
    if dtype.given.names:
        return f"one field at a time: numpy.ascontiguousarray(x[{dtype.given.names[0]!r}])"
    return "all_gather(x), which brings every rank's; only numbers have operators"


@lru_cache(maxsize=2)
def _keeping_nan(name: str) -> MPI.Op:
    """MIN or MAX of floats as numpy and torch have them: what is not a number stays so.

    MPI's own compare, so that the last rank's value counts, or the first's, and each rank may get another.
    """
    return _by_numpy({"MIN": np.minimum, "MAX": np.maximum}[name], "gdf")


@lru_cache(maxsize=1)
def _wrapping_sum() -> MPI.Op:
    """SUM of integers of 8 and 16 bits, which wrap around as they do in numpy, torch and C.

    Open MPI 5.0 on processors with AVX stops most elements of long enough arrays at the dtype's ends.
    """
    return _by_numpy(np.add, "BH")  # signed ones have the same bits


def _by_numpy(reduce: Callable[..., object], codes: str) -> MPI.Op:
    """An operator for MPI that reduces as numpy does. codes: of dtypes, which their sizes tell apart."""
    dtypes_by_size = {np.dtype(code).itemsize: np.dtype(code) for code in codes}

    def call(given: Any, reduced: Any, kind: MPI.Datatype) -> None:
        dtype = dtypes_by_size[kind.size]
        out = np.frombuffer(reduced, dtype)
        reduce(np.frombuffer(given, dtype), out, out=out)

    return MPI.Op.Create(call, commute=True)


def _premultiplied(op: Op, dtype: Dtype) -> Reduction:
    plain = _known("sum", dtype)
    if dtype.kind in "biu" and not isinstance(op.factor, (int, np.integer)):
        what = f"premul_sum by {op.factor!r} of {dtype} would not stay {dtype}"
        raise DtypeError(what, hint="convert x to float first")
    if dtype.kind == "b":
        raise DtypeError("premul_sum has no meaning on bool", hint="convert x first")
    if isinstance(op.factor, complex) and dtype.kind != "c":
        what = f"premul_sum by a complex factor of {dtype} would not stay {dtype}"
        raise DtypeError(what, hint="convert x to complex")
    if not _holds(np.dtype(np.float32 if dtype.kind == "h" else dtype.storage), op.factor):
        what = f"the factor {op.factor} of premul_sum is no {dtype}"
        raise DtypeError(what, hint="convert x to a wider dtype")
    widen = plain.widen

    def scaled(x: NpArray) -> NpArray:
        wide = np.ascontiguousarray(x) if widen is None else widen(x)
        with np.errstate(all="ignore"):
            return np.asarray(wide * wide.dtype.type(op.factor))

    return Reduction(
        op, NAMES.index("premul_sum"), plain.mpi_op, plain.mpi_type, scaled, plain.narrow, plain.finish
    )


def _holds(dtype: np.dtype[np.generic], factor: complex) -> bool:
    """Whether factor stays a number, and another one than 0, as an element of dtype."""
    try:
        with np.errstate(over="ignore", under="ignore"):
            held = dtype.type(factor)
        finite = factor - factor == 0
    except (ArithmeticError, TypeError):
        return False
    return bool(np.isfinite(held) or not finite) and bool(held) == bool(factor)


def _bytes_of(x: NpArray) -> NpArray:
    return np.ascontiguousarray(x).view(np.uint8)


def _truth_of(dtype: Dtype) -> Callable[[NpArray], NpArray]:
    if dtype.kind != "h":
        return lambda x: np.ascontiguousarray(x != 0).view(np.uint8)
    return lambda x: np.ascontiguousarray((x & np.uint16(0x7FFF)) != 0).view(np.uint8)  # -0.0 is false too


def _truth_to(dtype: Dtype) -> Callable[[NpArray, int], NpArray]:
    one = 1 if dtype.kind != "h" else {"float16": 0x3C00, "bfloat16": 0x3F80}[dtype.name]
    return lambda reduced, ranks: reduced.astype(dtype.storage) * np.dtype(dtype.storage).type(one)


def _narrow(dtype: Dtype, average: bool) -> Callable[[NpArray, int], NpArray]:
    def averaged(reduced: NpArray, ranks: int) -> NpArray:
        with np.errstate(all="ignore"):
            return dtypes.narrow(np.divide(reduced, np.float32(ranks)), dtype)

    return averaged if average else lambda reduced, ranks: dtypes.narrow(reduced, dtype)


def _divide(reduced: NpArray, ranks: int) -> None:
    with np.errstate(all="ignore"):  # who raised here would leave the others waiting
        if reduced.dtype.kind == "c":  # dividing by a complex number rounds more often
            reduced.real /= ranks
            reduced.imag /= ranks
        else:
            np.divide(reduced, ranks, out=reduced)


def identity(op: Op, dtype: Dtype) -> Any:
    """What exscan leaves on rank 0, as a storage value: the value that op does not notice.

    None: a user's own operator has none that is known here.
    """
    if op.function is not None or op.mpi is not None:
        return None
    name, kind = op.name, dtype.kind
    if name in ("land", "lor") or kind == "b":
        value: Any = int(_ON_BOOL[name] == "BAND")
    elif name in ("min", "max"):
        ends = np.iinfo(dtype.storage) if kind in "iu" else None
        low, high = (ends.min, ends.max) if ends is not None else (-np.inf, np.inf)
        value = high if name == "min" else low
    else:
        value = {"prod": 1, "band": -1}.get(name, 0)
    if kind == "h":
        return dtypes.narrow(np.full(1, value, np.float32), dtype)[0]
    return np.array(value).astype(dtype.storage)[()]  # -1 becomes all bits
