"""Work objects: what a call of torch.distributed returns, to wait for, to test, or as a Future."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.futures import Future

from ..core.limits import WORK_LOOK_S
from ..core.present import saying
from ..errors import HpcommError, MismatchError, PeerFailedError, WaitTimeoutError
from .calls import flat
from .entry_barrier import pause
from .names import dist
from .torch_errors import as_torch

if TYPE_CHECKING:
    from ..core.request import Request
    from .cuda_streams import Aside
    from .process_group import ProcessGroupMPI

_guard = threading.Lock()  # for the moments in which a call ends, or is first asked for its future


class Work(dist.Work):  # type: ignore[misc]
    """A call that is complete. outputs: the tensors that it fills."""

    _over = True
    _error: BaseException | None = None
    _promise: Future[Any] | None = None  # behind the future that is given out
    _future: Future[Any]
    _aside: Aside | None = None

    def __init__(self, outputs: object = ()) -> None:
        super().__init__()
        self._outputs = outputs

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

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return flat(self._outputs)

    def get_future(self) -> torch.futures.Future[object]:
        """A Future of the list of output tensors; its callbacks run where the call ends."""
        with _guard:
            is_late = self._promise is None and self._over
            if self._promise is None:
                self._promise = Future() if self._aside is None else self._aside.future()
                # only what a callback raises is an error for C++, such as DDP's, too; set_exception() is not
                self._future = self._promise.then(self._say)
        if is_late:
            self._fill(self._promise)
        return self._future

    def _say(self, promise: object) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return flat(self._outputs)

    def _ended(self) -> Future[object] | None:
        """Be complete from now on; the promise to fill, if there is one."""
        with _guard:
            self._over = True
            return self._promise

    def _fill(self, promise: Future[object] | None) -> None:
        if promise is not None:
            promise.set_result(None)


def _over() -> str:
    return "a call that has just ended"


class QueuedWork(Work):
    """A call that the group's worker carries out; words() says it in messages.

    aside: the stream that it goes on, if its tensors are CUDA's.
    """

    _over = False

    def __init__(
        self,
        group: ProcessGroupMPI,
        run: Callable[[], None],
        outputs: object,
        words: Callable[[], str],
        aside: Aside | None = None,
    ) -> None:
        super().__init__(outputs)
        self._group, self._run, self._words, self._aside = group, run, words, aside
        self._under_way = threading.Lock()  # held until the call has ended
        self._under_way.acquire()

    def perform(self) -> None:
        """Carry the call out; called once, by the worker."""
        try:
            if self._aside is None:
                self._run()
            else:
                self._aside.run(self._run)
        except HpcommError as error:
            self._error = as_torch(error, self._words(), self._group.where)
        except BaseException as error:
            self._error = error
        del self._run
        promise = self._ended()
        self._words = _over  # and so lets go of what went in
        self._under_way.release()
        self._fill(promise)

    def _fill(self, promise: Future[object] | None) -> None:
        if self._aside is None:
            super()._fill(promise)
        else:
            self._aside.fill(partial(super()._fill, promise))

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._over:
            seconds = timeout.total_seconds() if timeout else -1
            if self._group.worker.is_me():  # a callback waits for a call that stands behind it in the queue
                self._group.worker.run_until(self)
            elif self._comes(seconds):
                self._under_way.release()
            else:
                raise as_torch(
                    WaitTimeoutError(
                        f"{self._words()} was not complete after {seconds:g} s",
                        self._group.where,
                        "wait again, or look for the rank that did not make this call",
                    )
                )
        if self._aside is not None:
            self._aside.join()
        return super().wait()

    def _comes(self, seconds: float) -> bool:
        with saying(self._words, self._group.comm.context):
            return self._under_way.acquire(timeout=seconds)

    def is_completed(self) -> bool:
        return self._over and (self._aside is None or self._aside.done())


class Message(NamedTuple):
    """A message begun. peer: None for anybody. give: what is left to do once the message is there."""

    request: Request[object]
    peer: int | None
    words: str
    give: Callable[[], object] | None


class MessageWork(Work):
    """A message under way. The group's poller progresses it while nobody waits."""

    _over = False
    _source: int | None = None  # where its request does not tell

    def __init__(
        self,
        group: ProcessGroupMPI,
        message: Message,
        outputs: object,
        close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(outputs)
        self._group, (self._request, self._peer, self._words, self._give) = group, message
        self._close = close  # ends its record in a profile
        self._turn = threading.Lock()

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
                self._end()
            except HpcommError as error:
                self._error = as_torch(error, self._words, self._group.where)
            if self._close is not None:
                self._close()
            self._fill(self._ended())
        finally:
            self._turn.release()
        return True

    def _end(self) -> None:
        try:
            self._request.synchronize()  # on this thread, whose current stream is nobody's
        except MismatchError as error:
            if error.lacks <= 0:
                error.hint = "receive into a tensor of the sender's dtype, with as many elements or more"
                raise  # a shorter message fills the beginning, as with gloo
            self._source = error.source
        if self._give is not None:
            self._give()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.poll():
            with saying(lambda: self._words, self._group.comm.context):
                self._poll_until(timeout.total_seconds() if timeout else None)
        return super().wait()

    def _poll_until(self, seconds: float | None) -> None:
        begin = time.monotonic()
        look = begin + WORK_LOOK_S
        while not self.poll():
            waited = (now := time.monotonic()) - begin
            if seconds is not None and waited > seconds:
                raise self._late(waited, "wait again, or look at what that rank does")
            if now > look:
                look = now + WORK_LOOK_S
                self._check_peer(waited)
            pause(waited)

    def _check_peer(self, waited: float) -> None:
        group = self._group
        lost = group.entry.lost(range(group.size()) if self._peer is None else [self._peer])
        if lost and not self.poll() and len(lost) == (group.size() - 1 if self._peer is None else 1):
            what = f"{self._words} on '{group.label}' needs rank {lost[0]}, which has ended"
            error = PeerFailedError(what, group.where, "look at what that rank printed", lost)
            raise as_torch(error)
        if waited > group.seconds:
            some = range(group.size()) if self._peer is None else [self._peer]
            group.entry.remember(some)
            raise self._late(
                waited, "init_process_group(timeout=...) sets the time", group.entry.doings(some)
            )

    def _late(self, waited: float, hint: str, rows: Iterable[str] = ()) -> HpcommError:
        what = f"{self._words} on '{self._group.label}' waited {waited:.3g} s"
        return as_torch(WaitTimeoutError("\n".join([what, *rows]), self._group.where, hint))

    def is_completed(self) -> bool:
        return self.poll()

    def source_rank(self) -> int:
        """Where a message that was received from anybody came from; rank of the group."""
        if self._source is not None:
            return self._source
        assert self._request.status is not None
        return self._request.status.source

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

    def get_future(self) -> torch.futures.Future[object]:
        """Complete when all of them are."""
        outputs = flat(self._outputs)

        def finish(joined: Future[list[Future[object]]]) -> list[torch.Tensor]:
            for each in joined.value():
                each.value()
            return outputs

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(finish)
