"""How far a program is: its first rank says so to its supervisor, at most once a second."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PIPE", "Progress", "progress"]

PIPE = "HPCOMM_PROGRESS"  # the file descriptor to say it to
_PERIOD_S = 1.0


class Progress:
    """Counts exchanges, and keeps the model's time of the last one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._count = 0
        self._time: float | None = None
        self._due = 0.0
        atexit.register(self._say)

    def note(self, now: float, time: float | None) -> None:
        """A put, get or exchange for this time of the model is done; now: of perf_counter."""
        self._count += 1
        if time is not None:
            self._time = time
        if now >= self._due:
            self._due = now + _PERIOD_S
            self._say()

    def _say(self) -> None:
        words = f"{self._count}\n" if self._time is None else f"{self._count} {self._time!r}\n"
        with contextlib.suppress(OSError):  # the supervisor is gone, and so will we be
            os.write(self._fd, words.encode())


def progress(environ: Mapping[str, str], rank: int) -> Progress | None:
    """What notes the progress of the program of this rank, if somebody wants to hear of it."""
    return Progress(int(environ[PIPE])) if rank == 0 and environ.get(PIPE) else None
