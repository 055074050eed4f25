"""What one thread at a time does, while the others go on with something else."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class Turn:
    """Lets one caller at a time in. An error of a signal's handler never leaves it taken.

    Such an error comes between any two of Python's steps: also after `lock.acquire()`, before the `try` that
    follows it. `with lock` is one step, and so is each of the lines inside it.
    """

    __slots__ = ("_guard", "_is_taken")

    def __init__(self) -> None:
        self._guard = Lock()
        self._is_taken = False

    def take(self, act: Callable[[], T]) -> T | None:
        """What act returns; None: another thread is at it, or this one further up, and act was not called."""
        is_mine = False
        try:
            with self._guard:
                if not self._is_taken:
                    self._is_taken = is_mine = True
            return act() if is_mine else None
        finally:
            if is_mine:
                self._is_taken = False
