"""How long a wait lasts, and how it asks whether it is over.

Python runs a handler of a signal between two of its own steps. A blocking function of MPI's is one step,
however long it lasts. So where the program has set a handler, messages and requests are asked again and
again, as where their time is limited. That is this rank's own matter. Collectives are not, since MPI demands
the same function of all ranks: those by MPI wait as before.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from importlib import import_module

from .comm import Comm
from .limits import PAUSE_YIELDS

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM)
_numbers = tuple(map(int, _SIGNALS))
_handler_of: Callable[[int], object] = import_module("_signal").getsignal  # without making enums: 1 us each
is_signalled = False  # whether the program has handlers: as of the last look


def look() -> bool:
    """Look whether the program has a handler, other than Python's own for Ctrl-C."""
    global is_signalled
    found = [*map(_handler_of, _numbers)]
    is_signalled = any(callable(each) and each is not signal.default_int_handler for each in found)
    return is_signalled


def is_interrupt(error: BaseException) -> bool:
    """Whether a handler of a signal has raised error, and not what was waited for."""
    handlers = [handler for handler in map(_handler_of, _numbers) if callable(handler)]
    codes = [getattr(each, "__code__", getattr(type(each).__call__, "__code__", None)) for each in handlers]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None or not isinstance(error, Exception)


def patience(comm: Comm | None, closely: bool = False) -> float | None:
    """Seconds that a wait for a message or a request may last: comm.timeout, or None for as long as it takes.

    Infinity stands for None where the wait has to ask again and again.

    Args:
        closely: look for handlers first. The watchdog does so, too.
    """
    if comm is not None and comm.timeout_s is not None:
        return comm.timeout_s
    return math.inf if is_signalled or (closely and look()) else None


def note_interrupted(raised: BaseException, call: str, is_complete: bool) -> None:
    """Say in what a handler of a signal raised what became of the call in which it did."""
    how = "is complete" if is_complete else "goes on, and its memory must stay as it is"
    raised.add_note(f"hpcomm: {call} was interrupted, but {how}")


class Pause:
    """Between two looks at the same requests: none at first, then longer each time, to half a millisecond."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = 0

    def sleep(self) -> None:
        self._turns += 1
        if self._turns < PAUSE_YIELDS:
            os.sched_yield()  # time.sleep(0) takes 60 us since Python 3.11
        else:
            time.sleep(min(2e-6 * (self._turns - PAUSE_YIELDS), 5e-4))


def until(is_so: Callable[[], object], seconds: float = math.inf) -> bool:
    """Ask again and again until it is so; False: it was not within seconds."""
    end, pause = time.monotonic() + seconds, Pause()
    while not is_so():
        if time.monotonic() >= end:
            return False
        pause.sleep()
    return True
