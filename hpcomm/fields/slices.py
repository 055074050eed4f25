"""Slices by global index: what a key means, and which part of it a rank holds. Pure."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .._lazy import NDArray, np
from ..core.partition import Partition, Points
from ..errors import LayoutError

Step = tuple[int, int, int]
Places = tuple["slice | NDArray[np.int64]", ...]  # along each axis


def parse(key: object, shape: Sequence[int]) -> tuple[list[Step], set[int]]:
    """(start, stop, step) for every axis, and the axes that were single numbers."""
    parts = list(key) if isinstance(key, tuple) else [key]
    for i in [i for i, part in enumerate(parts) if part is Ellipsis][:1]:
        parts[i : i + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    if len(parts) > len(shape):
        raise LayoutError(
            f"{len(parts)} indices for {len(shape)} axes", hint=f"at most {len(shape)}: shape {tuple(shape)}"
        )
    steps = [_step(axis, part, n) for axis, (part, n) in enumerate(zip(parts, shape, strict=True))]
    return steps, {axis for axis, part in enumerate(parts) if not isinstance(part, slice)}


def _step(axis: int, part: object, n: int) -> Step:
    """A slice of an axis of n elements, or a single one of them."""
    try:
        if isinstance(part, (bool, np.bool_)):
            raise TypeError
        at = part.indices(n) if isinstance(part, slice) else operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        what = f"an index of axis {axis} is of type {type(part).__name__}"
        raise LayoutError(what, hint="integers, slices of them, and one ...") from None
    if isinstance(at, tuple):
        start, stop, step = at
        if step < 1:
            raise LayoutError(f"slice step {step} of axis {axis} is not positive", hint="a step of 1 or more")
        return start, max(start, stop), step
    if not -n <= at < n:
        raise LayoutError(f"index {at} is not on axis {axis}, which has {n}", hint=f"{-n} to {n - 1}")
    return at % n, at % n + 1, 1


def meeting(partition: Partition | Points, steps: Sequence[Step], rank: int) -> tuple[Places, Places]:
    """Where in what rank owns, and where in the slice of the whole, lies what is in both."""
    if isinstance(partition, Points):
        (start, stop, step), rest = steps[0], steps[1:]
        held = partition.owned[rank]
        rows = np.flatnonzero((held >= start) & (held < stop) & ((held - start) % step == 0))
        whole = [slice(None)] * len(rest)
        return (rows, *(slice(*s) for s in rest)), ((held[rows] - start) // step, *whole)
    box = partition.box(rank)
    mine, there = [], []
    for (start, stop, step), low, high in zip(steps, box.start, box.stop, strict=True):
        first = max(0, -(-(low - start) // step))
        last = max(first, -(-(min(high, stop) - start) // step))
        begin = start + first * step - low
        mine.append(slice(begin, begin + (last - first) * step, step) if last > first else slice(0, 0))
        there.append(slice(first, last))
    return tuple(mine), tuple(there)
