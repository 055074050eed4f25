"""What a call of torch.distributed returns: a Work that is waited for, asked, or turned into a Future."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ..errors import HpcommError, PeerFailedError, WaitTimeoutError
from .errors import as_torch
from .gate import pause
from .names import dist

if TYPE_CHECKING:
    from ..request import Request
    from .group import ProcessGroupMPI

__all__ = ["JointWork", "MessageWork", "QueuedWork", "Work"]

_LOOK_S = 0.05  # between looks whether a peer still lives


class Work(dist.Work):  # type: ignore[misc]
    """A call that is complete. outputs: the tensors that it fills."""

    def __init__(self, outputs: Any = ()) -> None:
        super().__init__()
        self._outputs = outputs
        self._error: BaseException | None = None
        self._future: Future[Any] | None = None
        self._guard = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end.

        Args:
            timeout: None or 0 waits as long as the group's own timeout allows.

        Raises:
            WaitTimeoutError: the time is over; the call is still under way and may be waited for again.
            HpcommError: what went wrong in the call.
        """
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        self.wait()
        return _flat(self._outputs)

    def get_future(self) -> Future[Any]:
        """A Future of the list of output tensors; its callbacks run where the call ends."""
        with self._guard:
            if self._future is None:
                self._future = Future()
                done = self.is_completed()
            else:
                done = False
        if done:
            self._fill()
        return self._future

    def _fill(self) -> None:
        """Give the future its value, once."""
        future = self._future
        if future is None or future.done():
            return
        if self._error is None:
            future.set_result(_flat(self._outputs))
        else:
            future.set_exception(self._error)


def _flat(outputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for each in outputs:
        found += [each] if isinstance(each, torch.Tensor) else _flat(each)
    return found


class QueuedWork(Work):
    """A call that the group's worker carries out."""

    def __init__(self, group: ProcessGroupMPI, run: Callable[[], None], outputs: Any, words: str) -> None:
        super().__init__(outputs)
        self._group, self._run, self._words = group, run, words
        self._ended = threading.Event()

    def perform(self) -> None:
        """Carry the call out; called once, by the worker."""
        try:
            self._run()
        except HpcommError as error:
            self._error = as_torch(error)
        except BaseException as error:
            self._error = error
        del self._run
        with self._guard:
            self._ended.set()
        self._fill()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._ended.is_set():
            seconds = timeout.total_seconds() if timeout else None
            if self._group.worker.is_me():  # a callback waits for a call that stands behind it in the queue
                self._group.worker.run_until(self)
            elif not self._ended.wait(seconds):
                raise as_torch(
                    WaitTimeoutError(
                        f"{self._words} was not complete after {seconds:g} s",
                        self._group.where,
                        "wait again, or look for the rank that did not make this call",
                    )
                )
        return super().wait()

    def is_completed(self) -> bool:
        return self._ended.is_set()


class MessageWork(Work):
    """A message under way. The group's poller moves it on while nobody waits."""

    def __init__(
        self,
        group: ProcessGroupMPI,
        request: Request,
        outputs: Any,
        peer: int | None,
        words: str,
        give: Callable[[], Any] | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(outputs)
        self._group, self._request, self._peer, self._words = group, request, peer, words
        self._give = give  # what is left to do once the message is there
        self._end = end  # of its record in a profile
        self._turn = threading.Lock()
        self._over = False

    def poll(self) -> bool:
        """Move the message on; True once it is complete."""
        if self._over:
            return True
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._over:
                return True
            if not self._request.done():
                return False
            try:
                self._request.wait()
                if self._give is not None:
                    self._give()
            except HpcommError as error:
                self._error = as_torch(error)
            if self._end is not None:
                self._end()
        finally:
            self._turn.release()
        with self._guard:
            self._over = True
        self._fill()
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.poll():
            seconds = timeout.total_seconds() if timeout else None
            begin = time.monotonic()
            look = begin + _LOOK_S
            while not self.poll():
                waited = (now := time.monotonic()) - begin
                if seconds is not None and waited > seconds:
                    raise self._late(waited, "wait again, or look at what that rank does")
                if now > look:
                    look = now + _LOOK_S
                    self._check_peer(waited)
                pause(waited)
        return super().wait()

    def _check_peer(self, waited: float) -> None:
        group = self._group
        others = [r for r in range(group.size()) if r != group.rank()]
        lost = group.gate.lost(others if self._peer is None else [self._peer])
        if lost and not self.poll() and len(lost) == (len(others) if self._peer is None else 1):
            what = f"{self._words} on '{group.label}' needs rank {lost[0]}, which has ended"
            error = PeerFailedError(what, group.where, "look at what that rank printed", lost)
            raise as_torch(error)
        if waited > group.seconds:
            raise self._late(waited, "init_process_group(timeout=...) sets the time")

    def _late(self, waited: float, hint: str) -> HpcommError:
        what = f"{self._words} on '{self._group.label}' waited {waited:.3g} s"
        return as_torch(WaitTimeoutError(what, self._group.where, hint))

    def is_completed(self) -> bool:
        return self.poll()

    def source_rank(self) -> int:
        """Where a message that was received from anybody came from; rank of the group."""
        source: int = self._request.status.source
        return source

    _source_rank = source_rank


class JointWork(Work):
    """Several calls that end together."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__([work._outputs for work in works])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> Future[Any]:
        """Complete when all of them are."""
        outputs = _flat(self._outputs)

        def finish(joined: Future[Any]) -> Any:
            for each in joined.value():
                each.value()
            return outputs

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(finish)
