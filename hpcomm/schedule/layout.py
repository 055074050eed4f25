"""Layout of chunks in memory: blocks of count elements, each cut as evenly as can be."""

from __future__ import annotations

import numpy as np

from .._lazy import NDArray
from .stream import Schedule


def edges(schedule: Schedule, count: int) -> NDArray[np.int64]:
    """The first element of every chunk, and the end of the last.

    Args:
        count: elements in one slot; any number, also fewer than chunks: then some are empty.
    """
    c = schedule.chunks
    inner = np.arange(c) * count // c
    slots = np.arange(schedule.slots)[:, None] * count
    return np.append((slots + inner).reshape(-1), schedule.slots * count)


def pieces(chunks: NDArray[np.int64], bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Element ranges that these chunks cover, in order; neighbours joined, empty ones left out."""
    found: list[tuple[int, int]] = []
    for chunk in chunks.tolist():
        low, high = int(bounds[chunk]), int(bounds[chunk + 1])
        if low == high:
            continue
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found
