"""Work objects: what a call of torch.distributed returns, to wait for, to test, or as a Future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.futures import Future

from ..agree import doing
from ..core.patience import until
from ..core.present import NEXT, saying
from ..core.verbs import ROOTED
from ..errors import HpcommError, incomplete
from ..node.present import enter, leave
from .calls import Call, flat
from .names import dist
from .torch_errors import as_torch

if TYPE_CHECKING:
    from ..core.request import Needs
    from .cuda_streams import Aside
    from .process_group import ProcessGroupMPI
    from .process_group_base import CommProcessGroup

_guard = threading.Lock()  # for the moments in which a call ends, or is first asked for its future


class Work(dist.Work):  # type: ignore[misc]
    """A call that is complete.

    Args:
        outputs: the tensors that it fills.
        error: why it has failed.

    waits_for: of a message under way, see core.request.Request.
    """

    waits_for: Needs | None = None
    _over = True
    _error: BaseException | None
    _promise: Future[Any] | None = None  # behind the future that is given out
    _future: Future[Any]
    _aside: Aside | None = None

    def __init__(self, outputs: Any = (), error: BaseException | None = None) -> None:
        super().__init__()
        self._outputs, self._error = outputs, error

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

    @property
    def is_under_way(self) -> bool:
        """Whether it may do more than its own call, by callbacks of its future; asks nobody."""
        return not self._over and self._promise is not None

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
        """Be complete from now on; the promise to fill, if there is one and nobody else has filled it."""
        with _guard:
            was_over, self._over = self._over, True
            return None if was_over else self._promise

    def _fill(self, promise: Future[object] | None) -> None:
        if promise is not None:
            promise.set_result(None)


doing.kinds.append(Work)


def _late(call: str, seconds: float, place: str) -> HpcommError:
    return as_torch(incomplete(call, seconds, place, "make this call"))


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
        self._words = lambda: "a call that has just ended"  # and so lets go of what went in
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
                raise _late(self._words(), seconds, self._group.where)
        if self._aside is not None:
            self._aside.join()
        return super().wait()

    def _comes(self, seconds: float) -> bool:
        with saying(self._words, self._group.comm.context):
            return self._under_way.acquire(timeout=seconds)

    def is_completed(self) -> bool:
        return self._over and (self._aside is None or self._aside.done())


class NodeWork(Work):
    """A collective that the node core carries out: whoever waits for it or asks moves it on.

    So does the group's poller, if other ranks need that; and its worker, once a future of it is asked for.

    Args:
        told: the verb, what goes in, and the operator or the root.
        going: a core.Request, which keeps the tensors.
    """

    _over = False

    def __init__(
        self,
        group: CommProcessGroup,
        told: tuple[str, torch.Tensor | None, Any],
        out: torch.Tensor,
        going: Any,
    ) -> None:
        super().__init__([out])
        self._group, self._told, self._going = group, told, going

    @property
    def call(self) -> str:
        verb, x, how = self._told
        return str(Call(verb, x, root=how or 0) if verb in ROOTED else Call(verb, x, how))

    @property
    def waits_for(self) -> Needs:  # type: ignore[override]
        return self._group.comm.context, None, NEXT, self._told[0], None

    def poll(self) -> bool:
        """Move it on; True once it is complete."""
        return self._asked(self._going.Test)

    def _asked(self, ask: Callable[[], bool]) -> bool:
        try:
            enter(self, "wait", None, None, None)
            if not (self._over or ask()):
                return False
        except HpcommError as error:
            self._error = as_torch(error, self.call, self._group.where)
        except Exception as error:
            if not self._going.over:  # a handler of a signal has raised
                raise
            self._error = error
        finally:
            leave()
        self._fill(self._ended())
        self._told = self._told[0], None, None  # and so lets go of what went in
        self._group.under_way.discard(self)
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._over:
            if not timeout:
                self._wait_for_it()
            elif not until(self.poll, seconds := timeout.total_seconds()):
                raise _late(self.call, seconds, self._group.where)
        return super().wait()

    def _wait_for_it(self) -> None:
        self._asked(self._going.Wait)

    def is_completed(self) -> bool:
        return self._over or self.poll()

    def get_future(self) -> torch.futures.Future[object]:
        is_first = self._promise is None and not self.is_completed()
        future = super().get_future()
        if is_first:  # who waits for it asks nobody
            self._group.worker.submit(QueuedWork(self._group, self._wait_for_it, (), lambda: self.call))
        return future


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
