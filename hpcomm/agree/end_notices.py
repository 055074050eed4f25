"""End notices: a rank tells others by MPI that it ends, and what it had begun, where they share no memory.

MPI keeps a rank that has ended in MPI_Finalize, and leaves those that need it waiting. Ranks of one node with
the core see in shared memory who has ended, and before which call. Over several nodes, or without the core,
each counts its collective calls, on each communicator, and says the numbers at its end. Who has begun one
more than that waits in vain.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import runtime
from .ended_ranks import FEW

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..core.comm import Comm
    from ..core.operation import Call
    from .agreement import Agreement

__all__ = ["EndNotices", "awaited", "exchanged"]

_ENTRY = struct.Struct("2I")  # a communicator's number by chance, and how many calls on it were begun
_MOST = 400  # communicators: so many entries MPI sends without waiting for the receiver
_MUTUAL = ("all_reduce", "all_gather", "all_to_all", "barrier", "reduce_scatter")
_LAST_WORDS_S = 0.2  # for what is said at the same moment, which nobody else would receive


def exchanged(everybody: MPI.Intracomm) -> EndNotices | None:
    """Those of this rank; None where they would be too many, or no thread can receive them."""
    return EndNotices(everybody) if everybody.size <= FEW and runtime.has_threads() else None


def awaited(call: Call) -> tuple[int | None, int]:
    """Of whom a plan waits for an end is told, as Request.waits_for has it: the rank, and -1, or 0 for one.

    Where nobody gets through before all have begun, or starts are counted, who has ended is missing. Else it
    may have done its part.
    """
    comm = call.comm
    if call.verb in ("send", "recv"):
        return call.peer, 0
    if call.verb in _MUTUAL or comm.is_inter or comm.agreement.again is not None:
        return None, -1
    return call.root if call.verb in ("broadcast", "scatter") and call.root != comm.rank else None, 0


class EndNotices:
    """What this rank says at its end, and hears of others; mpi: for this alone, of all ranks.

    Attributes:
        all_hear: whether all ranks hear until the last one has ended. Else those that have ended finalize
            MPI, and are told nothing: UCX complains of messages that nobody received.
    """

    all_hear = False

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self._mpi, self._lock, self._is_over = mpi, threading.Lock(), False
        self._begun: dict[int, int] = {}  # calls, by the communicator's tag_base
        self._members: dict[int, list[int]] = {}  # of communicators: who they are in mpi
        self._ended: dict[int, dict[int, int]] = {}  # by rank: what it had begun
        self._going: list[MPI.Request] = []

    def know(self, comm: Comm) -> None:
        """Note whose ranks those of comm are, while that can be asked."""
        everybody, group = self._mpi.Get_group(), comm.mpi_handle.Get_group()
        self._members[comm.tag_base] = group.Translate_ranks(None, everybody)
        self._begun[comm.tag_base] = 0
        everybody.Free()
        group.Free()

    def count(self, comm: Comm, made: Agreement) -> Agreement:
        """made, which counts the calls on comm from now on."""
        begun, mark = self._begun, comm.tag_base

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*call: Any) -> Any:
                begun[mark] = begun.get(mark, 0) + 1
                return function(*call)

            return counted

        made.enter, made.late = counting(made.enter), counting(made.late)
        made.refuse, made.again = counting(made.refuse), counting(lambda: None)
        return made

    def forget(self, comm: Comm) -> None:
        """comm is closed: who ends after that is not missing in it."""
        self._members.pop(comm.tag_base, None)
        self._begun.pop(comm.tag_base, None)

    def hear(self) -> bool:
        """Whether some have ended. Never blocks."""
        from mpi4py import MPI

        status = MPI.Status()
        with self._lock:
            while not self._is_over and self._mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                said = bytearray(status.Get_count(MPI.BYTE))
                self._mpi.Recv([said, MPI.BYTE], status.source)
                self._ended[status.source] = dict(_ENTRY.iter_unpack(said))
        return bool(self._ended)

    def ended(self) -> set[int]:
        """The ranks that have said so."""
        self.hear()
        return {*self._ended}

    def lost(self, comm: Comm, is_message: bool) -> list[int]:
        """The ranks of comm that have ended; for a collective call, who did before this rank's last one."""
        mark, ended = comm.tag_base, self._ended
        begun = self._begun.get(mark, 0)
        gone = [(rank, its) for rank, its in enumerate(self._members.get(mark, ())) if its in ended]
        return [rank for rank, its in gone if is_message or ended[its].get(mark, begun) < begun]

    def say(self) -> None:
        """Tell all others that this rank makes no more calls."""
        from mpi4py import MPI

        entries = [_ENTRY.pack(*entry) for entry in self._begun.items()]
        said = b"".join(entries if len(entries) <= _MOST else [])
        gone = set() if self.all_hear else self.ended()
        others = [rank for rank in range(self._mpi.size) if rank != self._mpi.rank and rank not in gone]
        self._going = [self._mpi.Isend([said, MPI.BYTE], rank) for rank in others]
        end = time.monotonic() + _LAST_WORDS_S
        while not self.ended().issuperset(others) and time.monotonic() < end:
            time.sleep(1e-3)

    def stop(self) -> None:
        """Hear no more: MPI is about to be finalized."""
        from mpi4py import MPI

        MPI.Request.Testall(self._going)
        with self._lock:
            self._is_over = True
