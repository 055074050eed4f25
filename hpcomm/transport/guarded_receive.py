"""Guarded receives: Open MPI cannot write past their end.

Between ranks of a node Open MPI 5.0 takes a message of more than 4 KiB out of its sender's memory in one
copy, as long as the message is, and says MPI_ERR_TRUNCATE after it, when what lay behind a shorter array is
gone. Where the elements of a receive do not lie one after the other, it copies through memory that both
share, and no further than to their end. So the datatype of a receive has an element more, which lies on its
first one: a message that fits never comes to it. MPI's text forbids such a datatype; Open MPI takes it, and
no other library is given one.

At 8 bytes this takes 0.03 us, and from 4 KiB on less time than the one copy where the kernel is slow to reach
another process (benchmarks/guard.py). Where it is quick, long messages would lose by it: between cores far
apart copying twice takes 2.6 to 5 times as long as the one copy of an array that was sent before as it is,
and as long as that of one just written. So those of 8 KiB and more are looked at before
they are received, where the call waits for them anyhow; and receives of 64 KiB and more in the background,
planned ones, and those of a communicator with devices are left, but for check="full".
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any, TypeAlias

from .._lazy import MPI
from ..core.comm import Comm
from ..core.limits import GUARD_LEFT, GUARD_PROBED

Part: TypeAlias = "tuple[Any, int, MPI.Datatype]"

_KEPT = 1 << 16  # datatypes of one kind, of 0.9 KB each: all lengths below 64 KiB

_LARGEST = 2**31 - 1  # elements that MPI counts in one block

_known: dict[int, Guards] = {}
_received = bytearray(64)  # of messages to arrays without elements


@lru_cache(maxsize=1)
def is_needed() -> bool:
    """Whether it is Open MPI, and moves messages itself: not by UCX, or another library."""
    if MPI.get_vendor()[0] != "Open MPI":
        return False
    try:
        component = ctypes.CDLL(MPI.__file__)
        # a struct of C, whose length differs from version to version, and in which its name stands
        chosen = (ctypes.c_char * 128).in_dll(component, "mca_pml_base_selected_component").raw
    except (OSError, ValueError):
        return True  # not told
    return b"\0ucx\0" not in chosen and b"\0cm\0" not in chosen


def most(comm: Comm, waits: bool) -> int:
    """Bytes from which receives on comm are not guarded: none where it checks all calls.

    waits: whether the call that begins them waits for the message.
    """
    return sys.maxsize if comm.settings.compares_all else GUARD_PROBED if waits else GUARD_LEFT


class Guards(dict[int, "MPI.Datatype"]):
    """Datatypes of one kind of elements that guard arrays of so many."""

    def __init__(self, kind: MPI.Datatype) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, n: int) -> MPI.Datatype:
        made = _one_more(n, self._kind)
        if len(self) < _KEPT:
            self[n] = made
        return made


def guards(kind: MPI.Datatype) -> Guards:
    return _known.setdefault(kind.py2f(), Guards(kind))


def guarded(part: Part, most: int) -> Part:
    """An array (contiguous, elements, kind) as one to receive into that nothing is written behind.

    most: bytes from which it stays as it is.
    """
    array, n, kind = part
    if not is_needed() or n * kind.Get_size() >= most or n >= _LARGEST:
        return part
    if not n:
        array, n = _received, 1
    return array, 1, guards(kind)[n]


def receive(mpi: MPI.Comm, part: Part, source: int, tag: int, status: MPI.Status | None) -> None:
    """As mpi.Recv, but nothing is written behind part, even if it is too long to be guarded always.

    A message is matched before it is looked at, or the one that is received might be another.
    """
    array, n, kind = part
    nbytes = n * kind.Get_size()
    if nbytes < GUARD_PROBED or not is_needed():
        mpi.Recv(part, source, tag, status)
        return
    seen = MPI.Status()
    message = mpi.Mprobe(source, tag, seen)
    if seen.Get_elements(MPI.BYTE) > nbytes:  # Get_count knows no more than 2 GiB
        part = array, 1, _one_more(n, kind)
    message.Recv(part, status)


def _one_more(n: int, kind: MPI.Datatype) -> MPI.Datatype:
    return kind.Create_indexed([n, 1], [0, 0]).Commit()
