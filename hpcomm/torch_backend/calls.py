"""Arguments of torch.distributed's calls in hpcomm's terms: options, operator, signature, text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from ..core import dtypes, reduction
from ..core.signature import head
from ..core.types import Operator
from ..core.verbs import ROOTED
from ..errors import LayoutError
from .names import dist, options


class Call(NamedTuple):
    """A collective call as torch asks for it.

    str(): `broadcast(float32 (3, 5), root=1)`, `all_gather(float32 (2,), list of 2, 2 x 3 elements)`.

    Attributes:
        like: tensor that tells dtype, and number of elements where elements does not.
        elements: how many all ranks compare, or those of each tensor of a list. all_to_all's differ.
        opts: torch's options: whether the caller waits, and the call's own timeout.
    """

    verb: str
    like: torch.Tensor | None = None
    op: Any = None
    root: int = 0
    elements: int | list[int] | None = None
    opts: Any = None

    def __str__(self) -> str:
        parts = [] if self.like is None else [array(self.like)]
        if isinstance(self.elements, list) and len(self.elements) > 1:
            parts.append(listed(self.elements))
        parts += [f"op='{self.op}'"] * (self.op is not None) + [f"root={self.root}"] * (self.verb in ROOTED)
        return f"{self.verb}({', '.join(parts)})"


Run = Callable[[], None]
SAYS_LATER = hasattr(options.AllreduceOptions(), "asyncOp")  # torch 2.6 does not

UNSET = timedelta(0)  # or below: a call's options give it no timeout
_OPERATOR = dist.ReduceOp, dist.ReduceOp.RedOpType

_MISFIT = -1  # before the lengths of a list that does not fit its rank's own tensor

# whose average is cut to a whole number, as nccl does
WHOLE = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)

# by their hash, which is their number: comparing two of them takes pybind 1 us
OPERATORS = {
    hash(options.ReduceOp(getattr(options.ReduceOp.RedOpType, name.upper()))): word
    for name, word in {
        "sum": "sum", "avg": "avg", "product": "prod", "min": "min", "max": "max",
        "band": "band", "bor": "bor", "bxor": "bxor",
    }.items()
}  # fmt: skip


def operator(given: Any) -> Any:
    """torch's ReduceOp in our words; premul_sum keeps its factor, which only its pickled state tells."""
    known = OPERATORS.get(hash(given))
    if known is not None:
        return known
    factor = given.__getstate__()[1]
    return reduction.premul_sum(factor.item() if isinstance(factor, torch.Tensor) else factor)


@lru_cache(maxsize=4096)
def head_of(verb: str, op: Operator | None, dtype: object, root: int) -> int:
    """The head of a call's signature; refuses what the operator cannot do before any rank commits."""
    record = dtypes.from_torch(dtype)
    if op == "avg" and dtype in WHOLE:  # a Communicator has no such average
        reduce = reduction.resolve(op, dtypes.from_torch(torch.float64)).code
    else:
        reduce = reduction.resolve(op, record).code if op is not None else 0
    return head(verb, reduce, record.code, root)


def array(x: torch.Tensor) -> str:
    where = "" if x.is_cpu else f" on {x.device}"
    layout = "" if x.layout is torch.strided else f"{str(x.layout).removeprefix('torch.')} "
    return f"{layout}{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}{where}"


def later(opts: Any) -> bool:
    """Whether the caller goes on at once. Who does not say waits later, as C++ and torch 2.6 do."""
    return not SAYS_LATER or opts is None or bool(opts.asyncOp)


def own_seconds(opts: Any) -> float:
    """The timeout that options give their call; 0.0: none, so the group's holds."""
    given = getattr(opts, "timeout", UNSET)
    return given.total_seconds() if given > UNSET else 0.0


def by_name(named: dict[str, object], *given: object, **places: int) -> list[Any]:
    """What is given, and what is named as another overload of torch's does, in its place.

    Raises:
        TypeError: no overload has such a name.
    """
    filled = list(given)
    for name, value in named.items():
        if name in places:
            filled[places[name]] = value
        elif name != "timeout":  # for made_options
            raise TypeError(f"no such argument: {name!r}; there are {', '.join([*places, 'timeout'])}")
    return filled


def made_options(opts: object, kind: Any, *more: object) -> Any:
    """Options as c10d makes them of what a user calls the group itself with.

    Args:
        opts, more: options, or in place of them an operator, a root or a timeout each.
    """
    made: Any = kind() if opts is None or isinstance(opts, (timedelta, int, *_OPERATOR)) else opts
    if made is opts:
        return opts
    for each in (opts, *more):
        if isinstance(each, timedelta):
            made.timeout = each
        elif isinstance(each, _OPERATOR):
            made.reduceOp = dist.ReduceOp(each)
        elif isinstance(each, int):
            made.rootRank = each
    return made


def is_misfit(x: torch.Tensor, tensors: Sequence[Tensor], place: int | None = None) -> bool:
    """Whether a list holds other lengths than that of x.

    Args:
        place: of unequal tensors only this one has to have it.
    """
    there = tensors if place is None or is_even(tensors) else tensors[place : place + 1]
    return any(each.numel() != x.numel() for each in there)


def fitting(
    by: Any, x: torch.Tensor, tensors: Sequence[Tensor], look: Callable[[], Run], place: int | None = None
) -> tuple[Run, list[int] | None]:
    """What look() finds to run, and None; for a list that is_misfit(), what raises and what all compare:
    they meet for it, and so are told.
    """
    if not is_misfit(x, tensors, place):
        return look(), None

    def run() -> None:
        by.arrive()
        raise unfit(x, tensors)

    return run, [_MISFIT, *lengths(tensors)]


def unfit(x: torch.Tensor, tensors: Sequence[Tensor]) -> LayoutError:
    return LayoutError(f"{array(x)} does not fit its {listed(lengths(tensors))}", hint="the same length")


def listed(each: Iterable[int]) -> str:
    """`list of 3, 2 x 5 elements`: lengths that follow each other are counted."""
    runs = [(n, sum(1 for _ in run)) for n, run in groupby(each) if n != _MISFIT]
    return f"list of {', '.join(f'{k} x {n}' if k > 1 else f'{n}' for n, k in runs)} elements"


def flat(outputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for each in outputs:
        found += flat(each) if isinstance(each, (list, tuple)) else [each]
    return found


def is_even(tensors: Iterable[Tensor]) -> bool:
    """Whether all have as many elements."""
    return len({x.numel() for x in tensors}) <= 1


def lengths(tensors: Iterable[Tensor]) -> list[int]:
    """What ranks compare of a list of tensors: their numbers of elements, and of sparse ones the shapes."""
    return [
        crc32(repr((tuple(x.shape), x.sparse_dim())).encode()) if x.is_sparse else x.numel() for x in tensors
    ]


def in_turn(by: object, runs: list[Callable[[], None]]) -> Callable[[], None]:
    """One after the other, once all ranks have come to all of them."""
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        getattr(by, "arrive", nothing)()  # a Communicator's ranks need not
        for one in runs:
            one()

    return run


def nothing() -> None:
    pass
