"""Exact quantiles of distributed numbers, without bringing them together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import Communicator
from ._report import Progress

Rows = NDArray[np.float64]


def quantiles(comm: Communicator, mine: Rows, probabilities: Rows) -> Rows:
    """Every column's quantiles as numpy.quantile has them, linear between two neighbours.

    mine: this rank's rows (n, columns), n may be 0. The result has shape (probabilities, columns).
    """
    place = probabilities * (int(comm.all_reduce(len(mine))) - 1)
    lower = np.floor(place).astype(np.int64)
    upper = np.ceil(place).astype(np.int64)
    below, above = np.split(order_statistics(comm, mine, np.concatenate([lower, upper])), 2)
    return below + (above - below) * (place - lower)[:, None]


def order_statistics(comm: Communicator, mine: Rows, positions: NDArray[np.int64]) -> Rows:
    """The values at these positions of every column, were it sorted as a whole: (positions, columns).

    Bisection over the 2**64 float64 numbers: everybody counts its rows up to the middle, one all_reduce
    adds up, and after 64 rounds at most one number is left. Exact, and only counts travel.
    """
    keys = np.sort(ordered((mine + 0.0).view(np.int64)), axis=0)
    whole_range = np.iinfo(np.int64)
    low = np.tile(comm.all_reduce(keys.min(axis=0, initial=whole_range.max), "min"), (len(positions), 1))
    high = np.tile(comm.all_reduce(keys.max(axis=0, initial=whole_range.min), "max"), (len(positions), 1))
    progress = Progress(comm, "rounds of bisection", 64)
    while (low < high).any():
        middle = (low & high) + ((low ^ high) >> 1)  # the mean, rounded down, without overflow
        below = [np.searchsorted(column, m, "right") for column, m in zip(keys.T, middle.T, strict=True)]
        enough = comm.all_reduce(np.stack(below, axis=1)) > positions[:, None]
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
        progress.step()
    return ordered(low).view(np.float64)


def ordered(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of float64 numbers as integers in the numbers' own order; its own inverse."""
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
