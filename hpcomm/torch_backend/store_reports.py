"""What ranks tell by the store when something is wrong: what each has called, and who waits in a call.

Who has said nothing is looked for in halves, then only in those in which somebody is missing: so few
questions find few ranks among many.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from torch._C._distributed_c10d import Store

from ..errors import NAMED

_STORE_S = 5.0  # for the store to answer
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
