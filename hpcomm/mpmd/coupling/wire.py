"""Communicator of both programs' ranks on which a link's messages travel, waiting on it, and what travels."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._lazy import MPI, np
from ...communicator.communicator import Communicator
from ...core.buffer import as_buffer
from ...core.present import EXCHANGE, calling
from ...device import driver
from ..coupled_field import Field, Load
from ..route.coupled_route import Selection

TIMEOUT_S = 300.0
FIRST_TAG = 10  # of fields
_SPINS = 3  # tests before others may have this core, where ranks are more than cores
_LOOK_S = 0.2  # between looks at whether the partners still live


class _Exchange(calling):
    """The present call: a wait for the other program, which looks itself whether that lives."""

    __slots__ = ()
    looks = True

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire.comm.context, EXCHANGE)


class Wire:
    """Made collectively by both programs.

    Not their inter-communicator: MPICH 5 sends on one as if to another host, 4 to 9 times as slowly.

    Attributes:
        comm: that inter-communicator.
        peer: the other program's name.
        mpi: the ranks of both; the peer's rank r is r + shift here.
        carrier: the same ranks for arrays, if some of them may have a device.
        waited_s: seconds spent waiting for the other program.
    """

    def __init__(self, comm: Communicator, peer: str, *, is_first: bool, plain: bool = False) -> None:
        self.comm = comm
        self.peer = peer
        self.mpi: MPI.Intracomm = comm.context.mpi_handle.Merge(high=not is_first)  # type: ignore[attr-defined]
        self.shift = comm.size if is_first else 0
        self.carrier: Communicator | None = None
        if not plain and any(self.mpi.allgather(driver.possible())):
            self.carrier = Communicator(self.mpi, f"{comm.name}.fields", check="off")
        self.waited_s = 0.0

    def device_side(self, values: object) -> frozenset[int]:
        """The ranks of the other program between which and this one an end of a field lies on a device.

        Collective over both programs, if there is a carrier; values: the field's here.
        """
        if self.carrier is None:
            return frozenset()
        said = self.mpi.allgather(as_buffer(values).place is not None)
        theirs = said[self.shift :] if self.shift else said[: self.comm.remote_size]
        here = said[self.mpi.rank]
        return frozenset(rank for rank, there in enumerate(theirs) if here or there)

    def gone(self) -> set[int]:
        """Ranks of the other program that have ended."""
        return self.comm.context.partners.gone() if self.comm.context.partners is not None else set()

    def lost(self) -> set[int]:
        """Ranks of the other program that have ended, and whose last messages have come."""
        return self.comm.context.partners.lost() if self.comm.context.partners is not None else set()

    def wait(self, test: Callable[[], bool], judge: Callable[[float], None]) -> None:
        """Wait until test() is true; judge(seconds) is asked now and then, and raises if that is in vain."""
        for _ in range(_SPINS):
            if test():
                return
        with _Exchange(self):
            self._wait(test, judge)

    def _wait(self, test: Callable[[], bool], judge: Callable[[float], None]) -> None:
        started = looked = time.monotonic()
        while not test():
            os.sched_yield()  # no sleep: large messages move by these very calls
            for _ in range(_SPINS):
                if test():
                    break
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                judge(now - started)
        self.waited_s += time.monotonic() - started


class Lane(NamedTuple):
    """Where a channel's messages go: a wire, under a tag of their own.

    timeout_s: seconds that one waits for the other program.
    direct: whether values may travel from, or into, their own memory; small ones are copied first.
    """

    wire: Wire
    tag: int
    timeout_s: float = TIMEOUT_S
    direct: bool = True


class Part(NamedTuple):
    """A field's share in a channel: its rows for each partner rank, and the dtype that travels.

    device_side: the partner ranks between which and this one an end of it lies on a device
    """

    field: Field | Load
    rows: list[tuple[int, Selection]]
    dtype: np.dtype[Any]
    device_side: frozenset[int] = frozenset()
