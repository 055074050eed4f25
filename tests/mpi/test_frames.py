"""How many of hpcomm's Python functions a call enters once it is warm: what each call costs beside its bytes.

Work is counted, not the clock. The least of several calls counts: others may collect garbage, or see that a
rank is late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hpcomm

_HERE = str(Path(hpcomm.__file__).parent)
_SMALL, _LARGE = np.zeros(1), np.zeros(1 << 18)  # 8 B; 2 MiB, whose result is large and new
_BFLOAT16 = np.zeros(4, ml_dtypes.bfloat16)
_RECORDS = np.zeros(4, [("at", "f8"), ("count", "i4")])
_OBJECT = b"x" * (1 << 20)


def _there_and_back(comm: Any) -> None:
    if comm.rank == 0:
        comm.send_object(_OBJECT, 1)
        comm.recv_object(1)
    else:
        comm.recv_object(0)
        comm.send_object(_OBJECT, 0)


# call: frames at most, with the core
CALLS: dict[str, tuple[Callable[[Any], object], int]] = {
    "all_reduce 8 B": (lambda comm: comm.all_reduce(_SMALL), 1),
    "all_reduce 8 B, out=": (lambda comm: comm.all_reduce(_SMALL, out=_SMALL), 1),
    "all_reduce bfloat16": (lambda comm: comm.all_reduce(_BFLOAT16), 1),
    "broadcast of records": (lambda comm: comm.broadcast(_RECORDS), 20),
    "broadcast 8 B": (lambda comm: comm.broadcast(_SMALL), 1),
    "all_gather 8 B": (lambda comm: comm.all_gather(_SMALL), 1),
    "barrier": (lambda comm: comm.barrier(), 1),
    "all_reduce 2 MiB, new": (lambda comm: comm.all_reduce(_LARGE), 1),
    "all_reduce 8 B in the background": (lambda comm: comm.all_reduce(_SMALL, async_op=True).wait(), 9),
    "broadcast_object 1 MiB": (lambda comm: comm.broadcast_object(_OBJECT), 15),
    "send_object 1 MiB, and recv_object": (_there_and_back, 27),
    "all_gather_object 8 B": (lambda comm: comm.all_gather_object(1), 16),
}


def frames(call: Callable[[], object]) -> int:
    counts: list[int] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        counts[-1] += event == "call" and frame.f_code.co_filename.startswith(_HERE)

    traced = sys.getprofile()
    for _ in range(25):
        counts.append(0)
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(traced)
    return min(counts)


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_enters_few_functions(own_comm: Any, name: str) -> None:
    if own_comm.context.node is None:
        pytest.skip("the ranks meet in MPI")
    if own_comm.size != 2:
        pytest.skip("for two ranks")
    call, most = CALLS[name]
    got = frames(lambda: call(own_comm))
    print(name, got)
    assert got <= most
