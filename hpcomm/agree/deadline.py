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

from ..core.limits import NETWORK_PATIENCE_S
from . import runtime


@contextlib.contextmanager
def within(seconds: float, otherwise: str) -> Iterator[None]:
    """Within, the job is ended, with otherwise as its last word, when that takes longer."""
    watch = threading.Timer(seconds, runtime.abort, [otherwise])
    watch.daemon, watch.name = True, "hpcomm deadline"
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


class Stay:
    """A stay inside MPI: the job ends if a rank that it needs has ended, or if it takes too long.

    Args:
        needs: the ranks without which it cannot end.
        lost(needs): which of them have ended.
        why(stay, lost): the error to end the job with.

    Attributes:
        since: when it began; None: this rank is not there.
        seconds: how long it may take.
        words: what the call is.
    """

    since: float | None = None
    seconds = 0.0

    def __init__(
        self,
        needs: Container[int],
        lost: Callable[[Container[int]], list[int]],
        why: Callable[[Stay, list[int]], Exception],
    ) -> None:
        self.needs, self._lost, self._why = needs, lost, why
        self.words: Callable[[], str] = str
        self._hopeless = 0.0, 0.0  # begin of the stay that was seen to lack a rank, and when it first was
        if not _stays:
            runtime.looks.append(_look)
        _stays.append(weakref.ref(self, _stays.remove))

    def look(self) -> None:
        """End the job if it cannot end."""
        now, begin = time.monotonic(), self.since
        if begin is None:
            return
        if lost := self._lost(self.needs):
            if self._hopeless[0] != begin:
                self._hopeless = begin, now
            is_over = now - self._hopeless[1] > NETWORK_PATIENCE_S
        else:
            is_over = now - begin > self.seconds + NETWORK_PATIENCE_S
        if is_over:
            error = self._why(self, lost)
            if self.since == begin:  # it has not ended meanwhile
                runtime.abort(f"{type(error).__name__}: {error}")


_stays: list[weakref.ref[Stay]] = []


def _look() -> None:
    for reference in _stays:
        if (stay := reference()) is not None:
            stay.look()
