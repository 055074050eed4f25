"""Mappings by distance and between points."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._lazy import LazyModule
from ..core.types import Floats, Ints
from .weights import Ask, Entries

spatial: Any = LazyModule("scipy.spatial")

FAR = 8.0  # farther than anything on the unit sphere is from anything else
_DIGITS = 12  # to which distances count as equal; then the lower index wins, whatever the partition


def nearest(ask: Ask) -> Entries:
    _, which, needed = _closest(ask, 1)
    n = len(ask.points)
    return Entries(np.arange(n), which[:, 0], np.ones(n), np.ones(n), needed)


def idw(ask: Ask) -> Entries:
    distance, which, needed = _closest(ask, ask.neighbours)
    distance = distance / ask.scale
    share = 1.0 / np.maximum(distance, 1e-14) ** 2
    share = np.where(distance[:, :1] < 1e-13, np.arange(share.shape[1]) == 0, share)
    share = share / share.sum(axis=1, keepdims=True)
    row = np.repeat(np.arange(len(ask.points)), which.shape[1])
    return Entries(row, which.ravel(), share.ravel(), np.ones(len(ask.points)), needed)


def _closest(ask: Ask, k: int) -> tuple[Floats, Ints, float]:
    """(distances, sources), k of each target point: of equally near ones the lower indices; and how far
    sources were needed."""
    count = min(k + 6, len(ask.x))
    distance, which = spatial.cKDTree(ask.x).query(ask.wanted, k=count)
    distance, which = distance.reshape(-1, count), which.reshape(-1, count)
    order = np.lexsort((which, np.round(distance / ask.scale, _DIGITS)), axis=1)[:, :k]
    distance, which = (np.take_along_axis(a, order, axis=1) for a in (distance, which))
    needed = float(distance.max(initial=0.0)) if count > k or count == len(ask.x) else FAR
    return distance, which, needed


def bilinear(ask: Ask) -> Entries:
    given, n = ask.given, len(ask.points)
    index, share = ask.source.between(ask.wanted)
    row, column, value = np.repeat(np.arange(n), 4), index.ravel(), share.ravel()
    at = np.searchsorted(given, column)
    at[at == len(given)] = 0
    there = (given[at] == column) & (value != 0)
    total = np.bincount(row[there], weights=value[there], minlength=n)
    kept = there & (total[row] > 1e-12)
    return Entries(row[kept], at[kept], value[kept] / total[row[kept]], (total > 1e-12).astype(float))
