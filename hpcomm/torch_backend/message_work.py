"""Work objects of messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import torch

from ..agree import doing, job_ends
from ..agree.deadline import unanswered
from ..core.limits import WORK_LOOK_S
from ..core.patience import Pause, note_interrupted, until
from ..core.present import MESSAGE, looking, looking_for_a_time
from ..core.turn import Turn
from ..core.untaken import untaken
from ..errors import HpcommError, MismatchError, PeerFailedError, WaitTimeoutError
from .calls import array
from .names import c10d
from .torch_errors import as_torch
from .work import Work

if TYPE_CHECKING:
    from types import FrameType

    from ..core.request import Needs
    from .process_group import ProcessGroupMPI

_DONE, _LONGER, _LOST = 1, 2, 3  # states of a core.Message that is complete
_BRIEF_S = 1.0  # in which a message that is being copied has come
_FITTING = "receive into a tensor of the sender's dtype, with as many elements or more"


class MessageWork(Work):
    """A message under way. The group's poller progresses it while nobody waits.

    Args:
        verb: "send" or "recv".
        peer: the other rank; None for anybody.
        request: of a Communicator.

    Attributes:
        give: what is left to do once the message is there.
        close: ends its record in a profile.
    """

    give: Callable[[], object] | None = None
    close: Callable[[], None] | None = None
    _over = _is_back = False
    _source: int | None = None  # where its request does not tell

    def __init__(
        self,
        group: ProcessGroupMPI,
        verb: str,
        x: torch.Tensor,
        peer: int | None,
        tag: int,
        request: Any,
    ) -> None:
        super().__init__([x] if verb == "recv" else ())
        self._group, self._verb, self._x, self._peer, self._tag = group, verb, x, peer, tag
        self._request = request
        self._turn = Turn()

    @property
    def _words(self) -> str:
        return message_words(self._verb, self._x, self._peer)

    def poll(self) -> bool:
        """Move the message on; True once it is complete."""
        return self._over or bool(self._request.done() and self._turn.take(self._finish))

    def _finish(self) -> bool:
        if self._over:
            return True
        try:
            self._end()
            if self.give is not None:
                self.give()
        except HpcommError as error:
            self._error = as_torch(error, self._words, self._group.where)
        except Exception as error:  # of a device
            self._error = error
        if self.close is not None:
            self.close()
        self._fill(self._ended())
        return True

    def _end(self) -> None:
        """Raise what went wrong with a message that is complete."""
        try:
            self._request.synchronize()  # on this thread, whose current stream is nobody's
        except MismatchError as error:
            if error.lacks <= 0:
                error.hint = _FITTING
                raise  # a shorter message fills the beginning, as with gloo
            self._source = error.source

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if not self.poll():
                self._poll_until(timeout.total_seconds() if timeout else None)
        except BaseException as raised:
            if not self._has_come(raised, sys._getframe(1)):
                raise
        return super().wait()

    def _has_come(self, raised: BaseException, caller: FrameType) -> bool:
        """Whether a wait of dist.recv that ends with this error has its message all the same.

        Nobody else has its Work, so it takes the receive back: or the next message would come there.
        """
        if caller.f_code is not unwrap(c10d.recv).__code__:
            return False
        until(lambda: self._over or self._turn.take(self._take_back) is not None, _BRIEF_S)
        if self._is_back:
            return False
        is_complete = until(self.poll, _BRIEF_S)
        if is_complete and isinstance(raised, HpcommError):
            return True
        note_interrupted(raised, self._words, is_complete)
        return False

    def _take_back(self) -> bool:
        if self._over or not self._request.cancel():
            return False
        self._over = self._is_back = True
        self._group.under_way.discard(self)
        if self.close is not None:
            self.close()
        return True

    def _poll_until(self, seconds: float | None) -> None:
        begin, pause = time.monotonic(), Pause()
        look = begin + WORK_LOOK_S
        with self._waiting(seconds):
            while not self.poll():
                waited = (now := time.monotonic()) - begin
                if waited > self._most(seconds):
                    raise self._late(waited, seconds)
                if now > look:
                    look = now + WORK_LOOK_S
                    self._check_peer()
                pause.sleep()

    def _waiting(self, seconds: float | None) -> looking:
        comm = self._group.comm.context
        kind = looking if seconds is None else looking_for_a_time
        return kind(comm, self._verb, self._x, self._peer, self._tag)

    def _most(self, seconds: float | None) -> float:
        """How long to wait, where one may wait so long."""
        return self._group.seconds if seconds is None else min(seconds, self._group.seconds)

    def _check_peer(self) -> None:
        try:
            unanswered(self._group.comm.context, self._peer, self._words, self._group.where)
        except PeerFailedError as error:
            if not self.poll():  # what it has sent before
                raise as_torch(error) from None

    def _late(self, waited: float, seconds: float | None) -> HpcommError:
        group, rows, hint = self._group, [], "wait again, or look at what that rank does"
        if seconds is None or seconds > group.seconds:
            some = range(group.size()) if self._peer is None else [self._peer]
            job_ends.remember(group.comm.context, some)
            rows, hint = (
                doing.doings(group.comm.context, some),
                "init_process_group(timeout=...) sets the time",
            )
        what = f"{self._words} on '{group.label}' waited {waited:.3g} s"
        there = untaken(group.comm.context, False, self._peer) if self._verb == "recv" else ""
        return as_torch(WaitTimeoutError("\n".join([what, *rows]), group.where, there or hint))

    def is_completed(self) -> bool:
        return self.poll()

    def source_rank(self) -> int:
        """Where a message that was received from anybody came from; rank of the group."""
        if self._source is not None:
            return self._source
        assert self._request.status is not None
        source: int = self._request.status.source
        return source

    def _source_rank(self) -> int:
        return self.source_rank()


class NodeMessageWork(MessageWork):
    """The same of a message that the node core carries: its request is a core.Message, which waits in C."""

    @property
    def is_under_way(self) -> bool:
        return not (self._over or self._request.state)

    @property
    def waits_for(self) -> Needs | None:  # type: ignore[override]
        if self._promise is not None:
            return None
        return self._group.comm.context, self._peer, MESSAGE, self._verb, self._tag

    def _end(self) -> None:
        request = self._request
        if request.state == _LONGER:
            what = f"the message has {request.came} bytes, and is longer than the tensor, of {request.nbytes}"
            raise MismatchError(what, hint=_FITTING)
        if request.state == _LOST:
            what = f"rank {request.source} ended, or its group was destroyed, before the message was there"
            raise PeerFailedError(what, hint="look at what that rank printed", ranks=[request.source])

    def _is_all(self) -> bool:
        """Whether it has come, and nothing is left to do."""
        is_bare = self.give is None and self.close is None and self._promise is None
        return is_bare and self._request.state == _DONE

    def poll(self) -> bool:
        return self._is_all() or super().poll()

    def get_future(self) -> torch.futures.Future[object]:
        future = super().get_future()
        self.poll()  # perhaps nobody does any more
        return future

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if not self._request.state:
                self._wait_in_core(timeout.total_seconds() if timeout else None)
        except BaseException as raised:
            if not self._has_come(raised, sys._getframe(1)):
                raise
        if self._is_all():
            self._group.under_way.discard(self)
            return True
        until(self.poll)  # another thread ends it
        return super().wait()

    def _wait_in_core(self, seconds: float | None) -> None:
        begin = time.monotonic()
        try:
            # what is in C tells that it waits, but not that it ends by itself
            with nullcontext() if seconds is None else self._waiting(seconds):
                came = self._request.wait(self._most(seconds))
        except HpcommError as error:
            if self.poll():  # what the rank that has ended sent before
                return
            raise as_torch(error, self._words, self._group.where) from None
        if not came:
            with self._waiting(seconds):  # as others are told that ask
                raise self._late(time.monotonic() - begin, seconds)

    def source_rank(self) -> int:
        source: int = self._request.source
        return source


def message_words(verb: str, x: torch.Tensor, peer: int | None) -> str:
    return f"{verb}({array(x)}, {'to' if verb == 'send' else 'from'} {'anybody' if peer is None else peer})"
