"""Progress reports: ranks tell their supervisors how far they are, at most once a second."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

PIPE = "HPCOMM_PROGRESS"  # the file descriptor to say it to
JOINED = "joined"
AT = "at"  # so many exchanges, at this time of the model
DONE = "done"  # with this status: nothing is left but to finalize MPI
_PERIOD_S = 1.0


class Progress:
    """Counts exchanges, and keeps the model's time of the last one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._count = self._said = 0
        self._time: float | None = None
        self._due = 0.0
        self._say(JOINED)

    def note(self, at: float | None) -> None:
        """A put, get or exchange for this time of the model is done."""
        self._count += 1
        if at is not None:
            self._time = at
        self.look()

    def look(self) -> None:
        """Say what is new; the watchdog calls it, too, so that it is said while this rank waits."""
        if self._count != self._said and time.monotonic() >= self._due:
            self._due = time.monotonic() + _PERIOD_S
            self._said = self._count
            self._say_count()

    def end(self, status: int) -> None:
        """Nothing is left but to finalize MPI."""
        self._say_count()
        self._say(f"{DONE} {status}")

    def _say_count(self) -> None:
        if self._count:
            self._say(f"{AT} {self._count}" + (f" {self._time!r}" if self._time is not None else ""))

    def _say(self, words: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, and so will we be
            os.write(self._fd, f"{words}\n".encode())


def progress_of(environ: Mapping[str, str]) -> Progress | None:
    """What notes the progress of this rank, if its supervisor wants to hear of it."""
    return Progress(int(environ[PIPE])) if environ.get(PIPE) else None
