"""Cache per communicator for own schedules: a duplicate, tags, executors by call, memory."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core.comm import Comm
from ...core.types import NpArray
from .. import mpi_control_variables
from ..mpi import largest_tag
from . import tuned
from .executor import Channel, Executor
from .schedule_channels import LARGEST, Lasting, advance, release, wait_all

_TAGS = 32_000  # for calls; those above are for plans, and executors that are kept
_KEPT = 16  # executors with their memory, per communicator
_ROOM = 64 << 20  # bytes up to which the memory is kept for what arrives to be reduced
# How ranks are when one has left a call: its next one would meet messages of that, and use its memory.
MIDWAY = "are out of step since an error ended a call of this one midway"


class Own:
    """What a communicator keeps for its own schedules: a duplicate, a counter of tags, executors by call."""

    def __init__(self, comm: Comm) -> None:
        self.mpi, self._made = comm.mpi_handle.Idup()
        self._making = Lock()  # one thread at a time may ask for it
        self._tag = self._plans = 0
        self._kept: dict[Any, Executor] = {}
        self._limit: int | None = None
        self._near = comm.near.regions
        self._table: dict[str, tuned.Choices] | None = None
        self._library: dict[tuple[str, str], MPI.Comm] = {}
        self._room = np.empty(0, np.uint8)

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        """Whether the duplicate is there."""
        with self._making:
            if self._made != MPI.REQUEST_NULL and self._made.Test():
                self.mpi.Set_errhandler(MPI.ERRORS_RETURN)
            return self._made == MPI.REQUEST_NULL

    @property
    def is_settled(self) -> bool:
        return self._limit is not None

    def Wait(self, status: object = None) -> None:  # noqa: N802
        while not self.Test():
            advance()

    def settle(self) -> None:
        """See that it is there, and what messages there may have; collective at first."""
        if self._limit is None:
            self.Wait()
            self._limit = _limit(self.mpi)

    def choices(self, verb: str) -> tuned.Choices:
        """What `hpcomm tune` found for this many ranks; read at its first use, which is collective."""
        if self._table is None:
            self._table = tuned.read(self.mpi)
        return self._table.get(verb) or tuned.Choices.of([])

    def library(self, verb: str, name: str) -> MPI.Comm:
        """A communicator on which the library uses its algorithm name (Open MPI: a duplicate keeps it)."""
        if mpi_control_variables.vendor() != "openmpi":
            return self.mpi
        if (verb, name) not in self._library:
            with mpi_control_variables.forced(verb, name):
                self._library[verb, name] = self.mpi.Dup()
            self._library[verb, name].Set_errhandler(MPI.ERRORS_RETURN)
        return self._library[verb, name]

    def tag(self) -> int:
        """A number that all ranks come to alike, since they make the same calls in the same order."""
        self._tag = (self._tag + 1) % _TAGS
        return self._tag

    def plan_tag(self) -> int:
        """As tag(), of numbers that no call has: those of plans and kept executors stay in use."""
        self._plans += 1
        return _TAGS + self._plans % (largest_tag() - _TAGS + 1)

    def most(self, peer: int) -> int:
        """Bytes that one message to or from a peer may have."""
        return self._limit if self._limit and peer not in self._near else LARGEST

    def executor(self, key: object, make: Callable[[Channel], Executor]) -> Executor:
        """The executor for key, made at its first use; the oldest one gives way.

        The oldest, not the one that was not used for longest: so that ranks of which some come here by a
        quick way and others by the general path keep the same ones.
        """
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make(Lasting(self.mpi, self.plan_tag(), self.most))
            if len(self._kept) > _KEPT:
                release(self._kept.pop(next(iter(self._kept))))
        return found

    def room(self, nbytes: int) -> NpArray | None:
        """Memory for one long call at a time: fresh pages would cost more than they carry. None: too much."""
        if nbytes > self._room.nbytes and nbytes <= _ROOM:
            self._room = np.empty(nbytes, np.uint8)
        return self._room if nbytes <= self._room.nbytes else None

    def close(self) -> None:
        for executor in self._kept.values():
            release(executor)
        self._kept.clear()
        for each in self._library.values():
            each.Free()
        self.mpi.Free()


def _limit(mpi: MPI.Comm) -> int:
    """Bytes that travel to another node without being announced; 0 where such a limit does not matter.

    Open MPI announces longer messages over TCP and waits for the answer, which waits behind all that the
    peer sends at that moment. Pieces below that limit do not wait.
    """
    if mpi.size == 1 or mpi_control_variables.vendor() != "openmpi":
        return 0
    least = np.empty(1, np.int64)
    mine = np.array([mpi_control_variables.unannounced_bytes()], np.int64)
    wait_all([mpi.Iallreduce(mine, least, MPI.MIN)])
    return int(least[0])


def own(comm: Comm) -> Own:
    """What comm keeps for its schedules; made at the first call with algorithm=, which is collective."""
    mine = begun(comm)
    mine.settle()
    return mine


def begun(comm: Comm) -> Own:
    """The same, without waiting for the others: see Own.Test."""
    if comm.kept_schedules is None:
        comm.kept_schedules = Own(comm)
    return comm.kept_schedules  # type: ignore[no-any-return]
