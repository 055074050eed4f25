"""Requests of what was known before it began, and is one request of MPI or of the node core.

What is known of messages stands in communicator/verbs/known_messages.py, of collectives in verbs/direct.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, SimpleNamespace
from typing import Any

from mpi4py import MPI

from ..core import buffer, patience
from ..core.comm import Comm
from ..core.limits import REQUEST_PAUSE_S
from ..core.patience import until
from ..core.present import NONE
from ..core.request import BRIEF_S, Needs, Request, birth, note_collective, rounds_under_way
from ..core.status import Status
from ..errors import HpcommError, TransportError, passing
from ..node.native import native_core as core
from ..node.present import enter, leave
from . import mpi as transport
from . import progress
from .matching import add_tag, fill

_WORDS = SimpleNamespace(stages=None)  # in place of a Call, of which only this is asked
_UNDER_WAY: Any = object()  # in place of stages: there is one only


def _place(frame: FrameType) -> Any:
    """Where a request was made, by the cheapest words."""
    code = frame.f_code
    return birth(frame) if passing.get(code.co_filename, True) else (code, frame.f_lasti)


class Message(Request[Any]):
    """A message of one request.

    Args:
        needs: communicator, peer, 0, "send" or "recv", and tag of the message, of x.
        going: what MPI began; tags: of a receive: those of which its element type has matched.
    """

    __slots__ = ("_going", "_seen", "_status", "_tags", "_x")
    _call = _WORDS
    waits_for: Needs

    def __init__(self, needs: Needs, x: Any, going: MPI.Request, tags: set[int] | None = None) -> None:
        self.waits_for, self._x, self._tags = needs, x, tags
        self._born = _place(sys._getframe(2))
        self._going = going
        # The thread that takes it out asks MPI, which does not let two at once. A lock takes longer.
        self._pending = [going]
        self.result = self._error = None
        self._status: Status | None = None
        self._seen: MPI.Status | None = None
        self._stages = _UNDER_WAY
        outstanding = needs[0].outstanding
        outstanding.requests.append(going)
        if len(outstanding.requests) > outstanding.room:
            outstanding.sweep()

    def wait(self, timeout: float | None = None) -> object:
        if timeout is not None or patience.is_signalled or self.waits_for[0].timeout_s is not None:
            return super().wait(timeout)
        if rounds_under_way:
            self._wait_beside_others()
        while self._stages is not None:
            seen = MPI.Status() if self._tags is not None else None
            try:
                enter(self, "wait", None, None, None)
                self._pending.pop().Wait(seen)
                self._arrived(seen)
                self._stages = None
            except IndexError:  # another thread waits
                time.sleep(REQUEST_PAUSE_S)
            except BaseException as error:
                self._failed(error, seen)
            finally:
                leave()
        if self._error is not None:
            raise self._error
        return self.result

    def _ask(self) -> bool:
        if self._stages is None:
            return True
        seen = MPI.Status() if self._tags is not None else None
        try:
            going = self._pending.pop()
            if not going.Test(seen):
                self._pending.append(going)
                return False
            self._arrived(seen)
            self._stages = None
        except IndexError:  # another thread waits
            return False
        except BaseException as error:
            self._failed(error, seen)
        return True

    def cancel(self) -> bool:
        taken: list[MPI.Request] = []

        def take() -> bool:
            with suppress(IndexError):  # another thread asks, or waits
                taken.append(self._pending.pop())
            return self._stages is None or bool(taken)

        if self._tags is None or not until(take, BRIEF_S) or not taken:
            return False
        (going,) = taken
        seen = MPI.Status()
        try:
            going.Cancel()
            going.Wait(seen)
            if not seen.Is_cancelled():
                self._arrived(seen)
            self._stages = None
        except BaseException as error:
            self._failed(error, seen)
        return seen.Is_cancelled()

    def _arrived(self, seen: MPI.Status | None) -> None:
        """Give what was received, unless it is of another length."""
        if self._tags is None or seen is None:  # a send
            return
        if seen.Get_count() != self._x.nbytes or seen.tag not in self._tags:
            transport.check_arrived(self.waits_for[0], "recv", self._x, seen)
            add_tag(self._tags, seen.tag)
        self._seen, self.result = seen, self._x
        if self._status is not None:
            fill(self._status, seen)

    def _failed(self, error: BaseException, seen: MPI.Status | None) -> None:
        """End by an error of MPI's or ours. Ctrl-C and its like leave the message to the next wait."""
        if patience.is_interrupt(error):
            if not self._going:  # it is there
                try:
                    self._arrived(seen)
                except HpcommError as wrong:
                    self._error = wrong
                self._stages = None
            elif not self._pending:
                self._pending.append(self._going)
            raise error
        if isinstance(error, MPI.Exception):
            nbytes = getattr(self._x, "nbytes", 0)
            error = transport.failure(error, self.waits_for[3], self.waits_for[0], seen, nbytes)
        self._error, self._stages = self._located(error), None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._stages is not None:
            super().__del__(is_finalizing)

    @property
    def call(self) -> str:
        _, peer, _, verb, tag = self.waits_for
        end = "dest" if verb == "send" else "source"
        look = buffer.as_buffer(buffer.detached(self._x))
        return f"{verb}({look}, {end}={peer}, tag={tag})"

    @property  # made for those who look
    def status(self) -> Status | None:
        if self._status is None and self._tags is not None:
            self._status = Status()
            if self._seen is not None:
                fill(self._status, self._seen)
        return self._status

    @status.setter
    def status(self, value: Status | None) -> None:
        self._status = value

    @property
    def _memory(self) -> object:  # type: ignore[override]  # where MPI was told its address only, nothing else keeps it
        return self._x


class Collective(Message):
    """A collective of one request.

    Args:
        left: looks whether the other ranks have made the same call.
        finish: makes the result, and keeps what MPI reads and writes: mpi4py does not.
    """

    __slots__ = ("_finish", "_left")
    _finish: Callable[[], Any] | None

    def __init__(
        self, comm: Comm, verb: str, x: Any, going: MPI.Request, left: Callable[[], None],
        finish: Callable[[], Any],
    ) -> None:  # fmt: skip
        super().__init__((comm, None, 0, verb, None), x, going)
        self._left, self._finish = left, finish
        note_collective(self, comm, verb)

    def _arrived(self, seen: MPI.Status | None) -> None:
        self._left()
        finish, self._finish = self._finish, _interrupted  # as it reduces in place, it runs once
        if finish is not None:
            self.result = finish()
        self._finish = None

    @property
    def call(self) -> str:
        return f"{self.waits_for[3]}({'' if self._x is None else buffer.as_buffer(self._x)})"

    @property
    def _memory(self) -> object:  # type: ignore[override]
        return self._finish


def _interrupted() -> Any:
    what = "a signal's handler raised while the result was being made"
    raise TransportError(what, hint="make the call again, on all ranks")


class OfNode(Message):
    """A collective that the node core carries out, with what others need of it there.

    Args:
        going: a core.Request, which keeps its arrays, and checks in waits who lives.
    """

    __slots__ = ()
    _pending = ()  # type: ignore[assignment]
    _tags = _status = _seen = None
    _going: core.Request  # type: ignore[assignment]

    def __init__(self, comm: Comm, verb: str, x: Any, going: core.Request) -> None:
        self.waits_for, self._x, self._going = (comm, None, NONE, verb, None), x, going
        self._born = _place(sys._getframe(3))
        self.result = self._error = None
        self._stages = _UNDER_WAY
        if going.moves:
            keep_moving(going)

    def wait(self, timeout: float | None = None) -> object:
        if timeout is not None or self.waits_for[0].timeout_s is not None:
            return Request.wait(self, timeout)
        if rounds_under_way:
            self._wait_beside_others()
        if self._stages is not None:
            try:
                enter(self, "wait", None, None, None)
                self._going.Wait()
                self.result, self._stages = self._going.result, None
                has_ended(self._going)
            except BaseException as error:
                self._raised(error)
            finally:
                leave()
        if self._error is not None:
            raise self._error
        return self.result

    def _ask(self) -> bool:
        if self._stages is not None:
            try:
                if not self._going.Test():
                    return False
                self.result, self._stages = self._going.result, None
                has_ended(self._going)
            except BaseException as error:
                self._raised(error)
        return True

    def _raised(self, error: BaseException) -> None:
        """It has failed, unless a signal's handler has raised: then it goes on."""
        if not self._going.over or patience.is_interrupt(error):
            raise error
        self._error, self._stages = self._located(error), None

    def cancel(self) -> bool:
        return False

    @property
    def call(self) -> str:
        return f"{self.waits_for[3]}({'' if self._x is None else buffer.as_buffer(self._x)})"

    _memory = None


_moving: set[core.Request] = set()  # which others need, though nobody waits for them here
has_ended = _moving.discard  # once it was waited for: the thread may look much later, and keeps its arrays


def keep_moving(going: core.Request) -> None:
    """Have the thread move on a call of the core, too."""
    _moving.add(going)
    progress.wake()


def _move() -> None:
    for each in tuple(_moving):
        try:
            is_over = each.Test()
        except Exception:  # which whoever waits for it hears
            is_over = True
        if is_over:
            _moving.discard(each)


progress.beside(_moving, _move)
