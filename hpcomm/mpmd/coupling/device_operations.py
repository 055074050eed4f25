"""Mapping, summing and interpolating of device-resident fields, by their own library's kernels.

Numbers are those of the host: every value is made in the same steps of the same precision.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from ...core.buffer import as_buffer
from ...device.libraries import LIBRARIES, library_of
from ...grids.weights import Weights
from ...transport.device.staging import station
from ..coupled_field import copied, host, index, scatter
from ..route.coupled_route import Selection


class DeviceOperations:
    """The device and library of an array, for others like it. `with` it, calls are in order on any streams.

    Memory that is kept between calls was made, and is used, in the streams that are current in these: so each
    call begins after the last one, and what is dropped is held until all who use it are through.

    Attributes:
        ways: what the library can do. like: an array of it on the device.
    """

    def __init__(self, values: object) -> None:
        self._library = library_of(values)
        self.ways = LIBRARIES[self._library]
        self.like = self.ways.empty(values, (1,), np.dtype(float))
        place = as_buffer(self.like).place
        assert place is not None
        self._place, self._event = place, place.device.event()
        self._last: int | None = None  # the stream of the last call
        self._moves = False  # whether there were calls in several

    def __enter__(self) -> DeviceOperations:
        now = self._place.stream()
        if self._last is not None:
            self._place.device.wait(now, self._event)
            self._moves |= now != self._last
        self._last = now
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.device.record(self._event, self._place.stream())

    def holds(self, values: object) -> bool:
        """Whether other values are of this library and lie on this device."""
        if isinstance(values, np.ndarray):
            return False
        place = as_buffer(values).place
        return (
            place is not None
            and library_of(values) == self._library
            and place.device.index == self._place.device.index
        )

    def cast(self, values: object, dtype: np.dtype[np.generic]) -> Any:
        return values if as_buffer(values).dtype.name == dtype.name else self.ways.cast(values, dtype)

    def drop(self, values: object) -> None:
        """Let go of an array that was kept: its library knows only of the stream that it was made on."""
        if self._moves and values is not None and self.holds(values):
            station(self._place.device).keep_array(self._place.stream(), values)


class Picked:
    """What comes for some rows of a field, as it is.

    Attributes:
        rows: which these are.
    """

    def __init__(self, there: DeviceOperations, rows: Selection) -> None:
        self.rows, self._there, self._at = rows, there, index(there.like, rows)

    def apply(self, got: Any) -> Any:
        """The values of the rows, in memory of their own."""
        return copied(got[self._at])

    def fill(self, target: object, values: object) -> None:
        """Put values of the rows where they belong, wherever that lies now."""
        look = as_buffer(target)
        if self._there.holds(target):
            self._there.ways.plain(target)[self._at] = self._there.cast(values, np.dtype(look.dtype.storage))
        else:
            scatter(target, self.rows, host(values).astype(look.dtype.storage, copy=False))


class Mapped(Picked):
    """What weights make of what comes, for the rows that something reaches.

    Jagged diagonals (Saad, SIAM J. Sci. Stat. Comput. 10, 1989): the first weights of all rows, the second
    ones of those that have so many, ...; rows in the order of their numbers of weights, so each diagonal is
    one gather, one product and one sum, and every row is summed up in the order in which it is on the host.

    Args:
        axes: of the values, with that of the points.
    """

    MOST = 64  # weights of a row; with more kernels the host should be the quicker one (a guess: docs/gpu.md)

    def __init__(self, there: DeviceOperations, weights: Weights, axes: int) -> None:
        matrix = weights.matrix
        each = np.diff(matrix.indptr)
        order = np.argsort(-each, kind="stable")
        super().__init__(there, order[: np.count_nonzero(each)])
        self._diagonals = []
        for i in range(each.max(initial=0)):
            at = matrix.indptr[order[: np.count_nonzero(each > i)]] + i
            factors = matrix.data[at].reshape(-1, *[1] * (axes - 1))
            columns = index(there.like, matrix.indices[at].astype(np.int64))
            self._diagonals.append((columns, there.ways.up(there.like, factors)))

    @classmethod
    def suits(cls, weights: Weights) -> bool:
        """Whether it is worth while."""
        return bool(0 < np.diff(weights.matrix.indptr).max(initial=0) <= cls.MOST)

    def apply(self, got: Any) -> Any:
        made = None
        for at, factors in self._diagonals:
            part = got[at] * factors  # of float64, as they are
            if made is None:
                made = part
            else:
                head = made[: len(part)]
                head += part
        return made
