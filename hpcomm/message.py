"""Messages in the background that a lane began: one request of MPI's each, and little else to pay for."""

from __future__ import annotations

import sys
from threading import Lock
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from . import buffer
from .envelope import Status
from .request import Request, Stages, birth, rounds_under_way
from .transport import mpi as transport

if TYPE_CHECKING:
    from .communicator import Communicator

__all__ = ["Message", "receiving", "sending"]


class _Words:
    """In place of a Call, of which only this is asked of messages under way."""

    stages = None


_WORDS = _Words()


class Message(Request):
    """A message of one request, from a lane.

    Args:
        verb: "send" or "recv"; x, peer, tag: as the lane was given them.
        going: what MPI began; stages: wait for it.
    """

    __slots__ = ("_tag", "_verb", "_x")

    def __init__(
        self, comm: Communicator, verb: str, x: Any, peer: int, tag: int, going: MPI.Request, stages: Stages
    ) -> None:
        self._verb, self._x, self._tag = verb, x, tag
        self._call = _WORDS
        self._needs = comm, peer, 0
        self._born = birth(sys._getframe(3))
        self._moving = Lock()
        self._statuses = []
        self._pending = [going]
        self.result = self._error = self.status = None
        next(stages)
        self._stages = stages
        comm._unfinished.begin(stages)

    def wait(self, timeout: float | None = None) -> Any:
        if timeout is not None or self._stages is None or rounds_under_way():
            return super().wait(timeout)
        with self._moving:
            if self._pending:  # else another thread has waited meanwhile
                try:
                    self._pending[0].Wait(self._status_of(0))
                except BaseException as error:
                    self._throw(error)
                else:
                    self._pending.clear()
                    self._next_stage()
        return self._outcome()

    @property
    def call(self) -> str:
        end = "dest" if self._verb == "send" else "source"
        assert self._needs is not None
        return f"{self._verb}({buffer.as_buffer(self._x)}, {end}={self._needs[1]}, tag={self._tag})"


def sending(comm: Communicator, x: Any, dest: int, tag: int, going: MPI.Request) -> Message:
    """The request of a send that MPI has begun."""
    return Message(comm, "send", x, dest, tag, going, _sent(comm, MPI.Exception, x))


def receiving(
    comm: Communicator, out: Any, source: int, tag: int, going: MPI.Request, nbytes: int
) -> Message:
    """The request of a receive into out, of so many bytes, that MPI has begun."""
    status = Status()
    request = Message(
        comm, "recv", out, source, tag, going, _received(comm, MPI.Exception, out, nbytes, status)
    )
    request.status = status
    return request


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
    status.source, status.tag, status.nbytes = seen.source, seen.tag, nbytes
    if comm._handover is not None:
        comm._handover.came(status.source)
    return out
