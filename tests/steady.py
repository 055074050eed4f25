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
_looked = time.monotonic()
_lock = threading.Lock()


def steady_time() -> float:
    """time.monotonic(), without the time for which this process could not run since it began."""
    now = _look()
    return now - _held_s


def held_s() -> float:
    """The seconds for which this process could not run since it began."""
    _look()
    return _held_s


def _look() -> float:
    """Note what has passed since the last look; somebody looks all the time."""
    global _held_s, _looked
    with _lock:
        now = time.monotonic()
        if now - _looked > _LATE_S:
            _held_s += now - _looked - _LOOK_S
        _looked = now
        return now


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        _look()


threading.Thread(target=_watch, daemon=True, name="steady clock").start()
