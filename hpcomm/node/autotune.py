"""Online autotuner: whether long collectives go by shared memory or by MPI, measured at run time.

Which way is quicker depends on where the ranks' cores are, which may be on other dies or sockets, and on how
MPI was built. So a few calls of one kind and about one size go one way, then a few the other, and are timed.
Then all ranks compare what took longest on any of them, and stay with the quicker way for a while (an epoch).
Only time may depend on it, so calls whose results could differ in their bits are not tried.

The calls of one way come in a row (a trial batch), because one way leaves arrays in other caches than the
other does. The first of a batch does not count. Programs may call from two roots in turn, so the best of
every other call are added up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")

__all__ = ["LEAST", "Autotuner"]

LEAST = 1 << 20  # bytes of a call; of shorter ones trials, which take the general path, would be a good part
OURS, THEIRS, TRIAL = 0, 1, 2
_ROW = 5  # calls one way, then as many the other, at the beginning of a period
_PERIOD = range(32, 1024)  # calls of one: fewest after a change of ways, else twice as many as before,
_STEADY = 128  # but no more than these, so that trials cost little,
_PERIOD_S = 0.5  # and than take so long: a virtual machine's cores may be moved at any time
_CLEARLY = 1.02  # times as quick MPI has to be


class Autotuner:
    """Of calls of one kind and about one size, which all ranks make alike.

    Args:
        mpi: in which the ranks compare.
    """

    def __init__(self, mpi: MPI.Comm) -> None:
        self._mpi = mpi
        self._winner, self._period = OURS, _PERIOD.start
        self._at = 0  # calls of this period so far,
        self._seconds: list[float] = []  # and what its trials took

    def turn(self) -> int:
        """The next call's way: OURS or THEIRS, and it is counted; or it is a TRIAL, which carry() counts."""
        if self._at >= self._period:
            self._at = 0
        if self._at < 2 * _ROW:
            return TRIAL
        self._at += 1
        return self._winner

    def carry(self, ours: Callable[[], None], theirs: Callable[[], None]) -> None:
        """Carry out the next call, one way or the other."""
        which = self.turn()
        if which != TRIAL:
            (ours, theirs)[which]()
            return
        begin = time.perf_counter()
        (ours, theirs)[self._winner ^ (self._at >= _ROW)]()
        self._seconds.append(time.perf_counter() - begin)
        self._at += 1
        if self._at == 2 * _ROW:
            self._compare()

    def _compare(self) -> None:
        slowest = np.array(self._seconds)  # a rank that others wait for is at it the whole time
        self._mpi.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        rows = slowest.reshape(2, _ROW)
        best = [sum(row[first::2].min() for first in (1, 2)) / 2 for row in rows]
        ours, theirs = best if self._winner == OURS else best[::-1]
        winner = THEIRS if theirs * _CLEARLY < ours else OURS
        most = min(max(int(_PERIOD_S / max((ours, theirs)[winner], 1e-9)), _STEADY), _PERIOD.stop)
        self._period = min(2 * self._period, most) if winner == self._winner else _PERIOD.start
        self._winner = winner
        self._seconds.clear()
