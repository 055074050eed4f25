"""Silent ranks: who has not come to a call on several nodes, as the store tells.

Who waits there counts itself alone and in ever larger blocks of ranks. Only blocks that are not whole are
looked into, so few questions find few ranks among many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_BLOCK = 32  # ranks, or blocks of them, that are counted together
_STORE_S = 5.0  # for the store to answer


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
