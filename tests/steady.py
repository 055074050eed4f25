"""A clock of the time that the machine gives: for tests of what must come soon, and for limits.

A virtual machine is held now and then, for seconds or half a minute; and beside other work each process gets
a part of a core. What was to be quick is late then, through no fault of its own. The timeouts of subprocess
go by this clock too wherever this module was imported.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 0.05
_LATE_S = 0.5  # a busy machine lets a thread wait, but hardly for longer
_steady_s = _held_s = 0.0
_looked = time.monotonic()
_lock = threading.Lock()
_LOAD = Path("/proc/loadavg")


def steady_time() -> float:
    """Seconds since some moment, without those for which this process could not run.

    Of a second in which more threads want to run than there are cores, it counts the part that each one got.
    """
    _look()
    return _steady_s


def held_s() -> float:
    """The seconds for which this process could not run since it began."""
    _look()
    return _held_s


class Alarm:
    """Calls act after limit_s seconds of steady_time(), in another thread, unless it was cancelled."""

    def __init__(self, limit_s: float, act: Callable[[], None]) -> None:
        self.until, self.act = _steady_s + limit_s, act
        _alarms.add(self)

    def cancel(self) -> None:
        _alarms.discard(self)


_alarms: set[Alarm] = set()


def share() -> float:
    """Which part of a core each thread gets that wants one: 1 where there are enough."""
    try:
        running = int(_LOAD.read_text().split()[3].partition("/")[0])
    except OSError:  # not Linux
        return 1.0
    return min(1.0, max(0.1, len(os.sched_getaffinity(0)) / max(running, 1)))  # what hangs is to end


def _look() -> None:
    """Note what has passed since the last look; somebody looks all the time."""
    global _held_s, _steady_s, _looked
    part = share()
    with _lock:
        now = time.monotonic()
        passed, _looked = now - _looked, now
        if passed > _LATE_S:
            _held_s += passed - _LOOK_S
            passed = _LOOK_S
        _steady_s += passed * part


def _watch() -> None:
    while True:
        time.sleep(_LOOK_S)
        _look()
        for alarm in [*_alarms]:
            if _steady_s >= alarm.until:
                alarm.cancel()
                threading.Thread(target=alarm.act, daemon=True).start()


threading.Thread(target=_watch, daemon=True, name="steady clock").start()
subprocess._time = steady_time  # type: ignore[attr-defined]  # of run(), communicate() and wait()
