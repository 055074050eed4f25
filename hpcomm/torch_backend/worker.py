"""Threads behind a group: one carries out its background calls in order, one progresses its messages."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from ..core.limits import WORKER_POLL_S
from ..core.patience import until
from .message_work import MessageWork
from .work import NodeWork, QueuedWork

_RARELY_S = 10 * WORKER_POLL_S


class Worker:
    """A queue of calls and the thread that carries them out, begun at the first one.

    waiting: how many calls are queued or being carried out; while it is 0 a caller may do without.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[QueuedWork | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self.waiting = 0

    def submit(self, work: QueuedWork) -> None:
        with self._guard:
            self.waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put(work)

    def is_me(self) -> bool:
        """Whether the calling thread is the worker: a callback of an earlier call."""
        return self._thread is threading.current_thread()

    def run_until(self, work: QueuedWork) -> None:
        """On the worker: carry out what is queued, up to and with work."""
        while not work.is_completed():
            following = self._queue.get()
            if following is None:
                return
            self._perform(following)

    def stop(self, seconds: float) -> bool:
        """Let the thread end after what is queued; False if it does not within seconds."""
        if self._thread is None or self.is_me():
            return True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            self._perform(work)
            del work  # and with it the call's tensors

    def _perform(self, work: QueuedWork) -> None:
        try:
            work.perform()
        finally:
            with self._guard:
                self.waiting -= 1


class Poller:
    """Progresses calls that are under way, so that large messages arrive while the program computes.

    under_way: what it owns, also when its caller has let it go.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.under_way: set[MessageWork | NodeWork] = set()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def add(self, work: MessageWork | NodeWork) -> None:
        """Progress work until it is complete, or is taken out of under_way by who has waited for it."""
        self.under_way.add(work)
        if not self._some.is_set():
            self._some.set()
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until nothing is under way, at most seconds."""
        until(lambda: not self.under_way, seconds)

    def _serve(self) -> None:
        while True:
            self._some.wait()
            seen: set[MessageWork | NodeWork] = set()
            wait_s = WORKER_POLL_S
            while self._some.is_set():
                time.sleep(wait_s)
                left = self._look()
                # what is waited for as soon as it has begun needs no look: they become rare
                wait_s = WORKER_POLL_S if left & seen else min(2 * wait_s, _RARELY_S)
                seen = left
                if wait_s == _RARELY_S and not left:
                    self._some.clear()
                    if self.under_way:  # added meanwhile
                        self._some.set()

    def _look(self) -> set[MessageWork | NodeWork]:
        """Ask all once: those that are not complete. A waiting thread keeps none of the others."""
        going = self.under_way.copy()
        self.under_way.difference_update(ended := {work for work in going if work.poll()})
        return going - ended
