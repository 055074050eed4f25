"""Cached plans of small collectives: known tensor addresses go straight to copies and one reduction.

shared_collectives.py takes 10 to 30 us for torch's views, too much for a small call. A plan holds these
views, as numpy's, for the addresses of a call's tensors; programs communicate from the same ones over and
over. What goes through shared memory, and so what the other ranks see, is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch

from ..core.dtypes import from_torch, numpy_dtype
from ..errors import HpcommError
from .calls import OPERATORS, head_of, words
from .network_collectives import HALVES, NO_CALL, NetworkCollectives
from .profile import recording
from .shared_collectives import SharedCollectives
from .tensor_memory import fit, folding
from .torch_errors import as_torch
from .worker import Worker
from .zero_copy import ZeroCopy

__all__ = ["CachedCalls"]

_KEPT = 1000  # plans
_TINY = 64  # halves up to which numpy is quicker than torch; two of them it rounds as torch does
_FETCHED = 24 * 1024  # bytes of halves up to which they still stand in the first cache of whoever wrote them
_NO_OPERATOR = -1
_FOLDS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

Tensor = torch.Tensor
Key = tuple[Any, ...]  # verb, number of the operator, root, dtype, length and address of x and of another out
Moves = list[tuple[Tensor, Tensor]]  # where to copy, and what
Pairs = list[tuple[memoryview, memoryview]]  # the same as bytes, or one word
Run = Callable[[], Any]
# before the ranks meet, and after; what reduces; what follows another meeting; the next place; what all ranks
# agree about; the operator
Plan = tuple[Pairs, Pairs, Run | None, Run | None, int, int, str | None]
_ALL = slice(None)  # made once


class CachedCalls:
    """The cached plans of a group's calls; slots, because they are read faster than a group's attributes.

    Attributes:
        calls: how many have gone this way.
        plain: whether any may.
        seconds: that a call waits for the other ranks.
    """

    __slots__ = ("_by", "_found", "_plans", "_turn", "_worker", "calls", "plain", "seconds")

    def __init__(
        self, by: NetworkCollectives, worker: Worker, turn: Lock, seconds: float, plain: bool
    ) -> None:
        self._by, self._worker, self._turn, self.seconds = by, worker, turn, seconds
        self.plain = plain and isinstance(by, SharedCollectives)
        self.calls = 0
        self._plans: dict[Key, list[Plan]] = {}
        self._found: dict[Key, tuple[int, int, str | None]] = {}

    def make(self, verb: str, opts: Any, root: int, x: Tensor, out: Tensor, folds: bool = False) -> bool:
        """Make a blocking call on small plain tensors at once, which most are; False: look closer."""
        if not self.plain or opts.asyncOp or self._worker.waiting or recording() or not x.is_cpu:
            return False
        try:
            if not x.is_contiguous() or ((n := x.numel()) == 1 and x.is_neg()):  # longer ones cannot be both
                return False
            dtype = x.dtype
            number = hash(opts.reduceOp) if folds else _NO_OPERATOR
            if out is x:
                key: Key = (verb, number, root, dtype, n, x.data_ptr())
            else:
                if not out.is_contiguous() or ((m := out.numel()) == 1 and out.is_neg()):
                    return False
                if out.dtype is not dtype or not out.is_cpu:
                    return False
                key = (verb, number, root, dtype, n, x.data_ptr(), m, out.data_ptr())
        except RuntimeError:  # sparse tensors have no address
            return False
        plan = self._plans.get(key)
        if plan is None:
            plan = self._find(key)
        if not plan:
            return False
        by: Any = self._by
        turn = self._turn
        turn.acquire()  # with its release, half as long as `with`
        try:
            lays, takes, fold, late, following, code, op = plan[by.place]
            for there, here in lays:
                there[_ALL] = here
            by.gate.meet(code, self.seconds, words, (verb, x, op, root))
            by.place = following
            for there, here in takes:
                there[_ALL] = here
            if fold is not None:
                fold()
            if late is not None:
                by.call = code, self.seconds, words, (verb, x, op, root)
                late()
                by.call = NO_CALL
            self.calls += 1
        except HpcommError as error:
            raise as_torch(error, words(verb, x, op, root), by.gate.where) from None
        finally:
            turn.release()
        return True

    def _find(self, key: Key) -> list[Plan]:
        """The plans of a call, kept unless it is too long; none where a call cannot have one."""
        verb, number, root, dtype, n = key[:5]
        by, kind = self._by, (verb, number, root, dtype)
        assert isinstance(by, SharedCollectives)
        if kind not in self._found:
            self._found[kind] = 0, 0, None
            op = OPERATORS.get(number)
            if op is not None or number == _NO_OPERATOR:
                with suppress(HpcommError):  # the general path raises it again
                    self._found[kind] = by.most(verb, op, dtype), head_of(verb, op, dtype, root), op
        most, code, op = self._found[kind]
        if n > most:
            return []
        if len(self._plans) > _KEPT:
            self._plans.clear()
        x_at, out_at, m = key[5], key[-1], key[-2] if len(key) > 6 else n
        plan = self._plans[key] = _plan(by, verb, op, dtype, root, (x_at, out_at, n, m), code | n << 32)
        return plan


@torch.inference_mode(False)  # a plan that is made there serves elsewhere, too
def _plan(
    near: SharedCollectives,
    verb: str,
    op: Any,
    dtype: torch.dtype,
    root: int,
    ends: tuple[int, int, int, int],
    code: int,
) -> list[Plan]:
    """The plan for each place in shared memory; none where tensors do not fit or overlap.

    Args:
        ends: addresses of x and out, and their lengths.
    """
    (x_at, out_at, n, m), p, me = ends, near.size, near.rank
    blocks = verb == "all_reduce" and near.folds_blocks(n * dtype.itemsize, dtype)
    cuts = blocks or verb in ("reduce_scatter", "all_to_all")
    brings, fills = {"all_gather": (p, 1), "reduce_scatter": (1, p)}.get(verb, (1, 1))
    if not n or n * brings != m * fills or n % (p if cuts > blocks else 1):
        return []
    apart = x_at + n * dtype.itemsize <= out_at or out_at + m * dtype.itemsize <= x_at
    same = x_at == (out_at + me * n * dtype.itemsize if verb == "all_gather" else out_at)
    if not apart and (cuts > blocks or not same):
        return []
    whole, filled = _at(x_at, n, dtype), _at(out_at, m, dtype)
    if isinstance(near, ZeroCopy) and near.is_long(verb, whole.nbytes):
        # is long for all ranks: shared memory is no way out for one of them
        run = near.going(verb, op, root, whole, filled)
        steps = [] if run is None else range(near.places)
        return [([near.lending(whole)], [], None, run, place, code, op) for place in steps]
    if n > SharedCollectives.most(near, verb, op, dtype):
        return []  # what zero_copy.py publishes goes further
    block = -(-n // p) if cuts else n
    x, out = whole.split(block), filled.split(block)
    others = [q for q in range(p) if q != me]
    plans: list[Plan] = []
    for place, cells in enumerate(near.cells(x[0], block)):
        mine, first = cells[me], [cell[0] for cell in cells]
        lay: Moves = []
        take: Moves = []
        parts: list[Tensor] = []
        into, late = out[0], None
        if verb == "broadcast" and me == root:
            lay = [(mine[0], x[0])]
        elif verb == "broadcast":
            take = [(out[0], first[root])]
        elif verb == "all_gather":
            lay, take = [(mine[0], x[0])], [(out[q], first[q]) for q in others]
            take += [] if same else [(out[me], x[0])]
        elif verb == "all_reduce" and not blocks:
            lay = [(mine[0], x[0])]
            parts = first if p > 2 else [x[0], first[1 - me]]  # the sum of two is the same from both ends
        else:
            lay = [(fit(mine[q], x[q]), x[q]) for q in others]
            parts = [x[me], *(fit(cells[q][me], x[me]) for q in others)]
            if verb == "all_to_all":
                take = [(out[q], part) for q, part in zip([me, *others], parts, strict=True)]
                parts = []
            elif blocks:
                into, takes = x[me], [(x[q], fit(cells[q][q], x[q])) for q in others]
                late = partial(_pass_on, near, _bytes([(fit(mine[me], x[me]), x[me])]), _bytes(takes))
        if parts and dtype in HALVES and parts[0].nbytes <= _FETCHED:
            take, parts = _fetched(near, parts)
        fold = _folding(near, op, parts, into) if parts else None
        plans.append((_bytes(lay), _bytes(take), fold, late, (place + 1) % near.places, code, op))
    return plans


def _fetched(near: SharedCollectives, parts: list[Tensor]) -> tuple[Moves, list[Tensor]]:
    """Copies of parts, all but the first, and where they then are.

    Widening halves waits for each line of another core's first cache; copying has many come at once.
    """
    n = parts[0].numel()
    there = near.scratch(parts[0].dtype)[: n * (len(parts) - 1)].split(n)
    return list(zip(there, parts[1:], strict=True)), [parts[0], *there]


def _pass_on(near: SharedCollectives, gives: Pairs, takes: Pairs) -> None:
    """Write what this rank has folded, and take what the others have."""
    for there, here in gives:
        there[_ALL] = here
    near.together()
    for there, here in takes:
        there[_ALL] = here


def _at(address: int, n: int, dtype: torch.dtype) -> Tensor:
    from mpi4py import MPI  # here: under torchrun it must be told first where it is (pmi)

    return torch.frombuffer(MPI.buffer.fromaddress(address, n * dtype.itemsize), dtype=dtype)


def _bytes(moves: Moves) -> Pairs:
    """As views of memory, which begin to copy in a third of numpy's time."""
    return [(_view(there), _view(here)) for there, here in moves]


def _view(x: Tensor) -> memoryview:
    return x.view(torch.uint8).numpy().data


def _folding(near: SharedCollectives, op: str, parts: list[Tensor], out: Tensor) -> Callable[[], Any]:
    """What reduces parts into out: numpy's functions, which begin three times as fast as torch's."""
    if out.dtype in HALVES:
        if len(parts) == 2 and op in ("sum", "prod") and out.numel() <= _TINY:
            with suppress(HpcommError):  # numpy has no bfloat16 without ml_dtypes
                kind = numpy_dtype(from_torch(out.dtype))
                a, b, into = (np.frombuffer(_view(each), kind) for each in (*parts, out))
                return partial(near.calmly, _FOLDS[op], a, b, into)
        adds = op == "sum" and len(parts) == 2 and parts[0].data_ptr() == out.data_ptr()
        return partial(out.add_, parts[1]) if adds else folding(op, parts, out)
    into, function = out.numpy(), _FOLDS[op]
    arrays: Any = [part.numpy() for part in parts]
    if len(parts) == 2 and op in ("sum", "prod"):  # no keyword: it costs as much as the sum
        return partial(near.calmly, function, arrays[0], arrays[1], into)

    def fold() -> None:
        function(arrays[0], arrays[1], out=into)
        for array in arrays[2:]:
            function(into, array, out=into)
        if op == "avg":
            np.divide(into, len(arrays), out=into)

    return partial(near.calmly, fold)
