"""What ranks tell by the store when something is wrong: what each has called, and who waits in a call.

Who has said nothing is looked for in halves, then only in those in which somebody is missing: so few
questions find few ranks among many. monitored_barrier goes by the store alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any

from torch._C._distributed_c10d import Store

from ..agree import job_ends
from ..errors import NAMED, WaitTimeoutError
from .torch_errors import as_torch

_STORE_S = 5.0  # for the store to answer
_GRACE_S = 5.0  # that the others give rank 0 to judge beyond the time they were told
_LOOK_S = 0.05  # at most between two looks


def say(store: Store, key: str, rank: int, words: str) -> None:
    _ask(lambda: store.set(f"{key}/{rank}", words))


def heard(store: Store, key: str, size: int, seconds: float) -> list[str]:
    """What each rank says; nothing, if not all say it in time."""
    found, keys = list[str](), [f"{key}/{rank}" for rank in range(size)]

    def look() -> None:
        if come(store, keys, seconds):
            found.extend([store.get(key).decode() for key in keys])

    _ask(look).join(seconds + _STORE_S)
    return found


def come(store: Store, keys: list[str], seconds: float) -> bool:
    """Whether all keys are there in time."""
    begin = time.monotonic()
    while not store.check(keys):
        if (waited := time.monotonic() - begin) > seconds:
            return False
        time.sleep(min(waited / 16, _LOOK_S))
    return True


def silent(store: Store, key: str, size: int, otherwise: list[int]) -> list[int]:
    """The first ranks that have said nothing, a few more than are named; otherwise: it does not answer."""
    keys = [f"{key}/{rank}" for rank in range(size)]

    def absent(first: int, end: int) -> Iterator[int]:
        if store.check(keys[first:end]):
            return
        if end - first == 1:
            yield first
            return
        half = (first + end) // 2
        yield from absent(first, half)
        yield from absent(half, end)

    found = [otherwise]
    _ask(lambda: found.append([*islice(absent(0, size), NAMED + 2)])).join(_STORE_S)
    return found[-1]


def _ask(store: Callable[[], object]) -> threading.Thread:
    """Ask the store in a thread of its own: where its host does not answer, it waits for many minutes."""

    def ask() -> None:
        with suppress(RuntimeError):
            store()

    asking = threading.Thread(target=ask, daemon=True, name="hpcomm-store")
    asking.start()
    return asking


def monitored_barrier(group: Any, timeout: timedelta | float | None, wait_all_ranks: bool) -> None:
    """Rank 0 waits for every rank, then says who came; all ranks raise if one did not.

    Args:
        group: a CommProcessGroup.
        timeout: default: the group's own.
        wait_all_ranks: name all missing ranks, not only the first.

    Raises:
        WaitTimeoutError: with the ranks that did not come.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout or group.seconds
    group.barriers += 1
    store = group.get_group_store()
    prefix = f"monitored_barrier/{group.barriers}"
    keys, verdict = [f"{prefix}/{rank}" for rank in range(group.size())], f"{prefix}/verdict"
    store.set(keys[group.rank()], "here")
    if group.rank():
        missing = json.loads(store.get(verdict)) if come(store, [verdict], seconds + _GRACE_S) else [0]
    else:
        come(store, keys, seconds)
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        missing = missing if wait_all_ranks else missing[:1]
        store.set(verdict, json.dumps(missing))
    if missing:
        job_ends.remember(group.comm.context, missing)
        raise as_torch(_failed(group, missing, seconds))


def _failed(group: Any, missing: list[int], seconds: float) -> WaitTimeoutError:
    """Programs, and torch's own tests, look for these words."""
    me, who = group.rank(), f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    begin = "timed out in monitoredBarrier" if seconds <= 0 else "waited in monitoredBarrier"
    if me:
        begin = "successfully reached monitoredBarrier, but received errors while waiting for send/recv"
        begin += " from rank 0"
    what = f"Rank {me} {begin}: {who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms"
    return WaitTimeoutError(what, group.where, "look at what those ranks do")
