"""Threads behind a group: one carries out its background calls in order, one progresses its messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue

from ..core.limits import WORKER_POLL_S
from .message_work import MessageWork
from .work import NodeWork, QueuedWork


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
    """Progresses messages that are under way, so that large ones arrive while the program computes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._new: deque[MessageWork | NodeWork] = deque()  # since the last look
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def add(self, work: MessageWork | NodeWork) -> None:
        """Own work until it is complete, also when its caller lets it go."""
        self._new.append(work)
        if not self._some.is_set():
            self._some.set()
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until nothing is under way, at most seconds."""
        deadline = time.monotonic() + seconds
        while self._some.is_set() and time.monotonic() < deadline:
            time.sleep(WORKER_POLL_S)

    def _serve(self) -> None:
        under_way: list[MessageWork | NodeWork] = []
        while True:
            self._some.wait()
            time.sleep(WORKER_POLL_S)
            while self._new:
                under_way.append(self._new.popleft())
            under_way = [work for work in under_way if not work.poll()]
            if not under_way:
                self._some.clear()
                if self._new:  # added meanwhile
                    self._some.set()
