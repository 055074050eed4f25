"""Deadlines for MPI calls that have none: planning, making communicators, joining jobs; torch's collectives.

A blocking call of MPI cannot be called back, so no exception can be raised out of it. All that is left is to
say why it does not end, and to end the job. Otherwise a launcher that lets the others live, or a rank that is
stopped, would keep them there for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator

from ..core.comm import Comm
from ..core.limits import NETWORK_PATIENCE_S
from ..errors import HpcommError, WaitTimeoutError, has_ended
from . import runtime
from .doing import doings
from .last_calls import lines


@contextlib.contextmanager
def within(seconds: float, otherwise: str, say: Callable[[str], object] = runtime.abort) -> Iterator[None]:
    """Within, the job is ended, with otherwise as its last word, when that takes longer; or that is said."""
    watch = threading.Timer(seconds, say, [otherwise])
    watch.daemon, watch.name = True, "hpcomm deadline"
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


class Stay:
    """A stay inside MPI: the job ends if a rank that it needs has ended, or if it takes too long.

    Args:
        where: for the error that is the last word.
        needs: the ranks without which it cannot end.

    Attributes:
        since: when it began; None: this rank is not there.
        seconds: how long it may take.
        words: what the call is.
    """

    since: float | None = None
    seconds = 0.0

    def __init__(self, comm: Comm, where: str, needs: Container[int]) -> None:
        self._comm, self._where, self._needs = comm, where, needs
        self.words: Callable[[], str] = str
        self._hopeless = 0.0, 0.0  # begin of the stay that was seen to lack a rank, and when it first was
        if not _stays:
            runtime.looks.append(_look)
        _stays.add(self)

    def look(self) -> None:
        """End the job if it cannot end."""
        now, begin = time.monotonic(), self.since
        if begin is None:
            return
        gone = lost(self._comm, self._needs)
        if gone and self._hopeless[0] != begin:
            self._hopeless = begin, now
        late_s = now - self._hopeless[1] if gone else now - begin - self.seconds
        if late_s > NETWORK_PATIENCE_S:
            error = self._error(gone)
            if self.since == begin:  # it has not ended meanwhile
                runtime.abort(f"{type(error).__name__}: {error}")

    def _error(self, gone: list[int]) -> HpcommError:
        what = f"{self.words()} on '{self._comm.name}' stands in MPI"
        if gone:
            return has_ended(f"{what} and", self._where, gone, lines(self._comm, gone))
        what = "\n".join([f"{what} for more than {self.seconds:g} s.", *doings(self._comm, self._needs)])
        return WaitTimeoutError(what, self._where, "look at the ranks that do something else, or nothing")


def lost(comm: Comm, needed: Container[int]) -> list[int]:
    """Those of the needed ranks that have ended, are about to end by failure, or were killed."""
    regions, notices = comm.near.regions, runtime.end_notices
    gone = {rank for rank in regions if rank in needed and (regions[rank].gone or regions[rank].failed)}
    far = [] if notices is None else notices.lost(comm, True)
    return sorted(gone.union(rank for rank in far if rank in needed))


def unanswered(comm: Comm, peer: int | None, call: str, where: str) -> None:
    """Raise if no message can come: its rank has ended, or all others have where it may be anybody's."""
    others = [rank for rank in range(comm.size) if rank != comm.rank] if peer is None else [peer]
    if others and lost(comm, others) == others:
        raise has_ended(f"{call} on '{comm.name}'", where, others, lines(comm, others))


_stays: weakref.WeakSet[Stay] = weakref.WeakSet()


def _look() -> None:
    for stay in [*_stays]:
        stay.look()
