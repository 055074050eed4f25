"""Watchdog of calls inside MPI: ends the job if such a call cannot end.

A rank inside MPI cannot be called back by an exception. So where a rank that it needs has ended, or the
group's time is over, all that is left is to say so and to end the job. Otherwise a launcher that lets the
others live, or a rank that is stopped, would keep them there for ever.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from ..agree import runtime
from ..core.limits import NETWORK_PATIENCE_S, NETWORK_TICK_S

if TYPE_CHECKING:
    from .network_collectives import NetworkCollectives

_watched: weakref.WeakSet[NetworkCollectives] = weakref.WeakSet()
_adding = threading.Lock()
_threads: list[threading.Thread] = []  # the one that looks


def watch(carrier: NetworkCollectives) -> None:
    """Look after the calls of carrier from now on."""
    with _adding:
        if not _threads:
            _threads.append(threading.Thread(target=_look, name="hpcomm-watch", daemon=True))
            _threads[0].start()
        _watched.add(carrier)


def _look() -> None:
    hopeless: dict[float, float] = {}  # when a call, told by its begin, was first seen to lack a rank
    while True:
        time.sleep(NETWORK_TICK_S)
        with _adding:
            carriers = list(_watched)
        for carrier in carriers:
            now, begin = time.monotonic(), carrier.inside
            if begin is None:
                continue
            if lost := carrier.entry.lost(carrier.needs):
                is_over = now - hopeless.setdefault(begin, now) > NETWORK_PATIENCE_S
            else:
                is_over = now - begin > carrier.call[1] + NETWORK_PATIENCE_S
            if is_over:
                error = carrier.entry.stuck(lost, carrier.needs, *carrier.call[1:])
                if carrier.inside == begin:  # it has not ended meanwhile
                    runtime.abort(f"{type(error).__name__}: {error}")
        carriers.clear()
        now = time.monotonic()
        hopeless = {begin: since for begin, since in hopeless.items() if now - since < 2 * NETWORK_PATIENCE_S}
