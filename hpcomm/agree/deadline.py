"""Deadlines for MPI calls that have none: planning, making communicators, joining jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from . import runtime


@contextlib.contextmanager
def within(seconds: float, otherwise: str) -> Iterator[None]:
    """Within, the job is ended, with otherwise as its last word, when that takes longer.

    A blocking call of MPI cannot be called back, so no exception could be raised out of it.
    """
    watch = threading.Timer(seconds, runtime.abort, [otherwise])
    watch.daemon, watch.name = True, "hpcomm deadline"
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
