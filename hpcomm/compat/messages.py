"""Messages between two ranks, of arrays and of objects.

An object travels as with mpi4py: as the bytes that MPI.pickle makes of it, in a plain message. So Probe finds
both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from mpi4py import MPI

from ..core import patience
from ..core.patience import Pause
from ..errors import MismatchError
from .buffers import plain
from .requests import Request, background, in_turns, is_short, note
from .surface import F, Like, Surface, beside, go, named, watched

if TYPE_CHECKING:
    from mpi4py.typing import Buffer, BufSpec

    from ..core.types import NpArray

_Status = MPI.Status | None


class Messages(Surface):
    """Messages. What is contiguous goes by hpcomm; other datatypes, and modes of sending, beside it."""

    # -- arrays ----------------------------------------------------------------------------------------
    def Send(self, buf: BufSpec, dest: int, tag: int = 0) -> None:  # noqa: N802
        x = plain(buf)
        if x is None:
            return in_turns("Send", self.communicator.mpi, buf, dest, tag)
        self.communicator.send(x, dest, tag)

    def Recv(  # noqa: N802
        self, buf: BufSpec, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: _Status = None
    ) -> None:
        x = plain(buf)
        if x is None:
            return in_turns("Recv", self.communicator.mpi, buf, source, tag, status=status)
        try:
            self.communicator.recv(x, source, tag, status=status)
        except MismatchError as error:
            if not is_short(error, status):
                raise

    def Isend(self, buf: BufSpec, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802
        x = plain(buf)
        if x is None:
            return watched(self.communicator.mpi.Isend(buf, dest, tag))
        return Request.over(self.communicator.isend(x, dest, tag))

    def Irecv(  # noqa: N802
        self, buf: BufSpec, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        x = plain(buf)
        if x is None:
            return watched(self.communicator.mpi.Irecv(buf, source, tag))
        return Request.over(self.communicator.irecv(x, source, tag))

    def Sendrecv(  # noqa: N802
        self, sendbuf: BufSpec, dest: int, sendtag: int = 0, recvbuf: BufSpec | None = None,
        source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG, status: _Status = None,
    ) -> None:  # fmt: skip
        x = plain(sendbuf)
        out = x if recvbuf is sendbuf else plain(recvbuf)
        if x is None or out is None:
            given = sendbuf, dest, sendtag, recvbuf, source, recvtag
            return in_turns("Sendrecv", self.communicator.mpi, *given, status=status)
        try:
            self.communicator.sendrecv(x, dest, source, sendtag, recvtag, out=out, status=status)
        except MismatchError as error:
            if not is_short(error, status):
                raise

    def Sendrecv_replace(  # noqa: N802
        self, buf: BufSpec, dest: int, sendtag: int = 0, source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG, status: _Status = None,
    ) -> None:  # fmt: skip
        if plain(buf) is None:
            given = buf, dest, sendtag, source, recvtag
            return in_turns("Sendrecv_replace", self.communicator.mpi, *given, status=status)
        self.Sendrecv(buf, dest, sendtag, buf, source, recvtag, status)

    def Probe(  # noqa: N802
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: _Status = None
    ) -> Literal[True]:
        seen = self.communicator.probe(source, tag)
        note(status, seen.source, seen.tag, seen.nbytes)
        return True

    def Iprobe(  # noqa: N802
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: _Status = None
    ) -> bool:
        seen = self.communicator.iprobe(source, tag)
        if seen is not None:
            note(status, seen.source, seen.tag, seen.nbytes)
        return seen is not None

    # -- objects ---------------------------------------------------------------------------------------
    def send(self, obj: object, dest: int, tag: int = 0) -> None:
        self.communicator.send(_pickled(obj, dest), dest, tag)

    def recv(
        self, buf: Buffer | None = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG,
        status: _Status = None,
    ) -> Any:  # fmt: skip
        """buf: memory for what comes, which need not be given, and is not taken."""
        if source == MPI.PROC_NULL:
            return self.communicator.mpi.recv(buf, source, tag, status)
        return _unpickled(self.communicator.recv(None, source, tag, dtype="uint8", status=status))

    def isend(self, obj: object, dest: int, tag: int = 0) -> MPI.Request:
        return Request.over(self.communicator.isend(_pickled(obj, dest), dest, tag))

    def irecv(
        self, buf: Buffer | None = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        """An object of any size; buf is not taken."""
        if source == MPI.PROC_NULL:
            return self.communicator.mpi.irecv(buf, source, tag)
        return Request.over(self.communicator.irecv(None, source, tag, dtype="uint8"), _unpickled)

    def sendrecv(
        self, sendobj: object, dest: int, sendtag: int = 0, recvbuf: Buffer | None = None,
        source: int = MPI.ANY_SOURCE, recvtag: int = MPI.ANY_TAG, status: _Status = None,
    ) -> Any:  # fmt: skip
        going = self.communicator.isend(_pickled(sendobj, dest), dest, sendtag)
        got = self.recv(recvbuf, source, recvtag, status)
        going.wait()
        return got

    probe, iprobe = Probe, Iprobe


def _in_turns(function: F) -> F:
    """As beside, of a call that waits: handlers of signals run meanwhile."""

    @named(function)
    def method(self: Surface, *args: Any, **kwargs: Any) -> None:
        in_turns(function.__name__, self.communicator.mpi, *args, **kwargs)

    return method


def _probing(function: F) -> F:
    """The same of a probe."""

    @named(function)
    def method(self: Surface, *args: object, **kwargs: object) -> object:
        mpi, pause, found = self.communicator.mpi, Pause(), None
        while patience.is_signalled and found is None:
            pause.sleep()
            found = getattr(mpi, background(function.__name__))(*args, **kwargs)
        return function(mpi, *args, **kwargs) if found is None else found

    return method


go(Messages, _in_turns, "Ssend Rsend ssend")
go(Messages, _probing, "Mprobe mprobe")
go(Messages, beside, "Bsend Issend Ibsend Irsend bsend issend ibsend")
go(Messages, beside, "Isendrecv Isendrecv_replace Improbe improbe")
go(Messages, beside, "Send_init Recv_init Psend_init Precv_init Ssend_init Bsend_init Rsend_init")
go(Messages, beside, "Attach_buffer Detach_buffer Flush_buffer Iflush_buffer")


class Message(MPI.Message, metaclass=Like):
    """A message that was matched by a probe."""


def _matching(function: Callable[..., object]) -> staticmethod[..., object]:
    """A probe of mpi4py's, where the messages of a communicator are."""

    @wraps(function)
    def probe(comm: MPI.Comm, *args: object, **kwargs: object) -> object:
        mpi = comm.communicator.mpi if isinstance(comm, Surface) else comm
        return function(mpi, *args, **kwargs)

    return staticmethod(probe)


for _name in ("Probe", "Iprobe", "probe", "iprobe"):
    setattr(Message, _name, _matching(getattr(MPI.Message, _name)))


def _pickled(obj: object, dest: int) -> NpArray:
    """obj as bytes; to nobody nothing is sent, as with mpi4py."""
    return np.frombuffer(b"" if dest == MPI.PROC_NULL else MPI.pickle.dumps(obj), np.uint8)


def _unpickled(got: NpArray) -> object:
    return MPI.pickle.loads(got.data) if got.size else None
