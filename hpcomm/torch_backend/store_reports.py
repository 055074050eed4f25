"""What ranks tell by the store when something is wrong: what each has called, and who waits in a call.

Who waits counts itself alone and in ever larger blocks of ranks. Only blocks that are not whole are looked
into, so few questions find few ranks among many that have not come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_BLOCK = 32  # ranks, or blocks of them, that are counted together
_STORE_S = 5.0  # for the store to answer
_LOOK_S = 0.05  # at most between two looks


def say_called(store: Callable[[], Store], call: int, rank: int, words: str) -> None:
    """Say what this rank has called."""
    _ask(lambda: store().set(_called(call, rank), words))


def all_called(store: Callable[[], Store], call: int, size: int, seconds: float) -> dict[int, str]:
    """What each rank says that it has called; nothing, if not all say it in time."""
    found = dict[int, str]()
    keys = [_called(call, rank) for rank in range(size)]

    def look() -> None:
        there = store()
        if come(there, keys, seconds):
            found.update({rank: there.get(key).decode() for rank, key in enumerate(keys)})

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


def say_here(store: Callable[[], Store], call: int, rank: int, size: int) -> None:
    """Count this rank among those that have come to a call."""
    blocks, width = [], 1
    while width < _BLOCK * size:
        blocks.append(_block(call, rank, width))
        width *= _BLOCK
    _ask(lambda: [store().add(block, 1) for block in blocks])


def silent(store: Callable[[], Store], call: int, size: int, most: int) -> list[int] | None:
    """The first ranks that have not; None: the store does not answer."""
    there = store()

    def absent(first: int, width: int) -> Iterator[int]:
        if there.add(_block(call, first, width), 0) == min(width, size - first):
            return
        if width == 1:
            yield first
            return
        for at in range(first, min(first + width, size), width // _BLOCK):
            yield from absent(at, width // _BLOCK)

    width = 1
    while width < size:
        width *= _BLOCK
    found: list[list[int]] = []
    _ask(lambda: found.append(list(islice(absent(0, width), most)))).join(_STORE_S)
    return found[0] if found else None


def _called(call: int, rank: int) -> str:
    return f"called/{call}/{rank}"


def _block(call: int, rank: int, width: int) -> str:
    return f"entry/{call}/{width}/{rank // width}"


def _ask(store: Callable[[], object]) -> threading.Thread:
    """Ask the store in a thread of its own: where its host does not answer, it waits for many minutes."""

    def ask() -> None:
        with suppress(RuntimeError):
            store()

    asking = threading.Thread(target=ask, daemon=True, name="hpcomm-store")
    asking.start()
    return asking
