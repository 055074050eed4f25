"""Sums and products of small integers that wrap around: a warning where check is "full".

They wrap as in numpy, torch and C. The ranks find it together: if the largest of each might be too much, they
reduce once more, in float64.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from .._lazy import MPI, np
from ..core.dtypes import Dtype
from ..core.operation import Call
from ..core.reduction import Reduction
from ..core.types import AnyArray
from ..core.verbs import PREFIXES
from ..errors import calling_frame

_PIECE = 1 << 18  # elements that are looked at together


def can_wrap(dtype: Dtype, reduce: Reduction) -> bool:
    """Whether results of reduce may have more bits than dtype, and float64 holds what is one bit too long."""
    return dtype.kind in "iu" and dtype.itemsize < 8 and reduce.op.name in ("sum", "prod")


def see_to(call: Call, x: Any, reduce: Reduction) -> None:
    """Have the ranks look at it when they have agreed about call, of x, a Buffer."""
    if can_wrap(x.dtype, reduce) and not call.comm.is_inter:
        call.beside = partial(_look, x.array, reduce)


def _look(x: AnyArray, reduce: Reduction, call: Call) -> None:
    """Let call warn when it is complete if its result, of all x, is too large for their dtype. Collective."""
    ranks: Any = call.comm.object_comm
    flat, bounds, op = x.reshape(-1), np.iinfo(x.dtype.char), getattr(MPI, reduce.mpi_op)
    most = np.array([float(max(flat.max(initial=0), -int(flat.min(initial=0))))])
    ranks.Allreduce(MPI.IN_PLACE, most, op)
    if most.item() <= bounds.max:
        return
    wraps = False
    reduced_by = {"scan": ranks.Scan, "exscan": ranks.Exscan}.get(call.verb, ranks.Allreduce)
    for first in range(0, flat.size, _PIECE):
        part = flat[first : first + _PIECE].astype(np.float64)
        whole = np.zeros_like(part)
        reduced_by(part, whole, op)
        wraps |= bool(((whole < bounds.min) | (whole > bounds.max)).any())
    if wraps and (call.comm.rank == call.root or call.verb in PREFIXES):  # who has it, or the first who has
        what = f"a {reduce.op} of {x.dtype} in {call.verb} on '{call.comm.name}' wraps around"
        _warn_at_end(call, f"{what}: {bounds.min} to {bounds.max} fit; x.astype('int64') has room")


def _warn_at_end(call: Call, text: str) -> None:
    """Warnings can be errors, which would leave the other ranks waiting before the end."""
    frame, finish = calling_frame(), call.finish

    def warn_and_finish(status: MPI.Status | None) -> object:
        result = finish(status)
        if frame is not None:
            seen = frame.f_globals.setdefault("__warningregistry__", {})  # once per place
            warnings.warn_explicit(text, RuntimeWarning, frame.f_code.co_filename, line, registry=seen)
        return result

    line = 0 if frame is None else frame.f_lineno
    call.finish, call.give = warn_and_finish, None
