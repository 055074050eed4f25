"""A clock that stands still when the machine does: for tests of what must come soon.

A virtual machine is held now and then, for seconds or half a minute; what was to be quick is late then,
through no fault of its own.
"""

from __future__ import annotations

import threading
import time

_LOOK_S = 0.05
_LATE_S = 0.5  # a busy machine lets a thread wait, but hardly for longer
_held_s = 0.0


def steady_time() -> float:
    """time.monotonic(), without the time for which this process could not run since it began."""
    return time.monotonic() - _held_s


def held_s() -> float:
    """The seconds for which this process could not run since it began."""
    return _held_s


def _watch() -> None:
    global _held_s
    last = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        now = time.monotonic()
        if now - last > _LATE_S:
            _held_s += now - last - _LOOK_S
        last = now


threading.Thread(target=_watch, daemon=True, name="steady clock").start()
