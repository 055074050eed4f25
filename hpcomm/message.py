"""Messages in the background that a lane began: one request of MPI's each, and little else to pay for."""

from __future__ import annotations

import sys
from threading import Lock
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from . import buffer
from .envelope import Status, fill
from .request import Request, Stages, birth, rounds_under_way
from .transport import mpi as transport

if TYPE_CHECKING:
    from .communicator import Communicator

__all__ = ["Message"]


class _Words:
    """In place of a Call, of which only this is asked of messages under way."""

    stages = None


class _Later:
    """In place of stages that were not needed yet: a wait for the end does without."""


_LATER: Any = _Later()


class Message(Request):
    """A message of one request, from a lane.

    Args:
        verb: "send" or "recv"; x, peer, tag: as the lane was given them.
        going: what MPI began; nbytes: of a receive.
    """

    __slots__ = ("_nbytes", "_status", "_tag", "_verb", "_x")
    _call = _Words()

    def __init__(
        self, comm: Communicator, verb: str, x: Any, peer: int, tag: int, going: MPI.Request, nbytes: int
    ) -> None:
        self._verb, self._x, self._tag, self._nbytes = verb, x, tag, nbytes
        self._needs = comm, peer, 0
        self._born = birth(sys._getframe(2))
        self._moving = Lock()
        self._statuses = []
        self._pending = [going]
        self.result = self._error = None
        self._status: Status | None = None
        self._stages = _LATER
        comm._unfinished.begin(going)

    def wait(self, timeout: float | None = None) -> Any:
        if timeout is not None or self._stages is not _LATER or rounds_under_way:
            return super().wait(timeout)
        with self._moving:
            if self._pending:  # else another thread has waited meanwhile
                seen = None
                if self._verb == "recv":
                    self._statuses = [seen := MPI.Status()]
                try:
                    self._pending[0].Wait(seen)
                except BaseException as error:
                    self._throw(error)
                else:
                    self._pending.clear()
                    if self._stages is not _LATER or (seen is not None and seen.count != self._nbytes):
                        self._next_stage()
                    elif seen is None:
                        self._stages = None
                    else:
                        hand = self._needs[0]._handover  # type: ignore[index]
                        if hand is not None:
                            hand.came(seen.source)
                        if self._status is not None:
                            fill(self._status, seen)
                        self.result, self._stages = self._x, None
        if self._error is not None:
            raise self._error
        return self.result

    @property
    def call(self) -> str:
        end = "dest" if self._verb == "send" else "source"
        assert self._needs is not None
        return f"{self._verb}({buffer.as_buffer(self._x)}, {end}={self._needs[1]}, tag={self._tag})"

    @property  # made for those who look
    def status(self) -> Any:
        if self._status is None and self._verb == "recv":
            self._status = Status()
            if self._statuses and self._stages is None and self._error is None:
                fill(self._status, self._statuses[0])
        return self._status

    @status.setter
    def status(self, value: Any) -> None:
        self._status = value

    def _begin(self) -> None:
        """Let there be stages, for all but a plain wait."""
        if self._stages is not _LATER:
            return
        assert self._needs is not None
        comm = self._needs[0]
        if self._verb == "send":
            stages = _sent(comm, MPI.Exception, self._x)
        else:
            stages = _received(comm, MPI.Exception, self._x, self._nbytes, self.status)
        next(stages)
        self._stages = stages

    def _move_on(self) -> bool:
        self._begin()
        return super()._move_on()

    def _wait_for_ever(self) -> None:
        self._begin()
        super()._wait_for_ever()

    def _next_stage(self) -> None:
        self._begin()
        super()._next_stage()

    def _throw(self, error: BaseException) -> None:
        self._begin()
        super()._throw(error)

    @property
    def _memory(self) -> Any:
        return self._x


# Arguments are the kind of MPI's errors, since globals go first when the interpreter ends, and the array:
# where MPI was told its address only, nothing else keeps it.
def _sent(comm: Communicator, mpi_error: type[MPI.Exception], x: Any) -> Stages:
    try:
        yield []
    except mpi_error as error:
        raise transport.failure(error, "send", comm) from None


def _received(
    comm: Communicator, mpi_error: type[MPI.Exception], out: Any, nbytes: int, status: Status
) -> Stages:
    try:
        (seen,) = yield []
    except mpi_error as error:
        raise transport.failure(error, "recv", comm) from None
    if seen.count != nbytes:
        transport.check_length(comm, "recv", seen, nbytes)
    fill(status, seen)
    if comm._handover is not None:
        comm._handover.came(status.source)
    return out
