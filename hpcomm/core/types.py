"""Words for type checkers: what the verbs take and give. docs/types.md shows what a program sees of them.

Nothing here does anything at run time, and nothing here imports an array library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from .._lazy import MPI, NDArray, np

if TYPE_CHECKING:
    from typing_extensions import Buffer as HasBuffer  # every type checker brings it along

    from .op import Op
    from .status import Status

AnyArray: TypeAlias = "NDArray[np.generic]"  # numpy's arrays of whatever elements
NpArray: TypeAlias = "NDArray[Any]"  # the same, whose elements go anywhere
Spec: TypeAlias = "tuple[NDArray[Any], int, MPI.Datatype]"  # memory, elements, type: what mpi4py takes
Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"
Scalar = TypeVar("Scalar", bound="np.generic")
AnyStatus: TypeAlias = "Status | MPI.Status"  # ours, or mpi4py's


class HasShape(Protocol):
    """Arrays of numpy, torch, CuPy, jax and their kin."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


class HasDlpack(Protocol):
    def __dlpack__(self) -> object: ...


class HasCudaInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> object: ...


class HasInterface(Protocol):
    @property
    def __array_interface__(self) -> object: ...


class ReduceOp(Protocol):
    """torch.distributed.ReduceOp's SUM and its kin."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...


class FactorOp(Protocol):
    """A torch.distributed.ReduceOp that was made: premul_sum's."""

    @property
    def factor(self) -> object: ...


# What `as_buffer` takes: arrays, and numbers
ArrayLike: TypeAlias = (
    "HasShape | HasDlpack | HasCudaInterface | HasInterface | HasBuffer | np.generic | complex"
)
Bytes: TypeAlias = bytes | bytearray | memoryview
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Array = TypeVar("Array", bound=ArrayLike)  # what goes in, and so what comes out

OPERATORS: TypeAlias = Literal["sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"]
Operator: TypeAlias = "OPERATORS | Op | ReduceOp | FactorOp | MPI.Op | Callable[..., object]"

# hpcomm's own schedules, all of them; which there are for a verb is in docs/algorithms.md
ALGORITHMS: TypeAlias = Literal[
    "bine", "bruck", "circulant", "double_tree", "hierarchical", "ordered_tree", "pairwise", "pat",
    "rabenseifner", "recursive_doubling", "ring", "ring_gather", "scatter_ring", "swing", "tree", "tuned",
]  # fmt: skip


class Algorithm(str):
    """Any other name of an algorithm: with parameters, of the MPI library, or registered by the program."""

    __slots__ = ()


AlgorithmName: TypeAlias = "ALGORITHMS | Algorithm"

# What async_op is: the result comes now, or a Request
Now: TypeAlias = Literal[False]
Later: TypeAlias = Literal[True]

# Verbs, by what their plan gives: a block of x or several, the same as x, or that on one rank
OfBlocks: TypeAlias = Literal["all_gather", "scatter", "reduce_scatter"]
ToAll: TypeAlias = Literal[
    "broadcast",
    "all_reduce",
    "all_to_all",
    "scan",
    "exscan",
    "all_gather",
    "scatter",
    "reduce_scatter",
    "neighbour_all_gather",
    "neighbour_all_to_all",
    "neighbor_all_gather",
    "neighbor_all_to_all",
]
FromRoot: TypeAlias = Literal["broadcast", "scatter"]
ToRoot: TypeAlias = Literal["reduce", "gather"]


class Prepared(Protocol):
    """A persistent request of MPI's, or of an own schedule."""

    def Start(self) -> object: ...  # noqa: N802
    def Test(self, status: MPI.Status | None = None, /) -> bool: ...  # noqa: N802
    def Wait(self, status: MPI.Status | None = None, /) -> object: ...  # noqa: N802
    def Free(self) -> object: ...  # noqa: N802


class Waiting(Protocol[T_co]):
    def __call__(self, timeout: float | None = None) -> T_co: ...
