"""Parts of coupled fields that lie on a device at either end, sent as messages of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...core.buffer import as_buffer
from ...core.request import Request
from ..coupled_field import chooses, copied, gather, index, length, scatter
from ..route.coupled_route import Selection
from .wire import Lane, Part


class Share:
    """Rows of a field on their way to a rank of the other program, or from there.

    Args:
        rank: the other one, in its program.
        part: whose dtype is what travels, of half types the bits.

    Attributes:
        lends: whether they are, and must not change meanwhile.
    """

    def __init__(self, lane: Lane, rank: int, part: Part, rows: Selection, *, sends: bool) -> None:
        assert lane.wire.carrier is not None
        field, dtype = part.field, part.dtype
        self._carrier, self._peer = lane.wire.carrier, rank + lane.wire.shift
        self._tag, self._sends = lane.tag, sends
        self._request: Request[object] | None = None
        self._scatter: Callable[[], None] = lambda: None
        self.lends = False
        values, is_range = field.values, isinstance(rows, slice)
        shape = length(rows), *field.shape
        if not chooses(values) or np.dtype(as_buffer(values).dtype.storage) != dtype:
            self._received: Any = np.empty(shape, dtype)
            self._given: Callable[[], Any] = partial(_gathered, values, rows, self._received)
            self._scatter = partial(scatter, values, rows, self._received)
            return
        at = index(values, rows)
        lies = is_range and as_buffer(values[at]).place.strides is None  # type: ignore[union-attr]
        stays = lies and (lane.direct or not sends)
        self.lends = sends and stays
        if stays:
            self._received = values[at]
            self._given = lambda: self._received
        elif sends:
            self._given = (lambda: copied(values[at])) if is_range else partial(values.__getitem__, at)
        else:
            self._received = as_buffer(values).make(shape).give()
            self._scatter = partial(values.__setitem__, at, self._received)

    def start(self) -> None:
        if self._sends:
            self._request = self._carrier.isend(self._given(), self._peer, self._tag)
        else:
            self._request = self._carrier.irecv(self._received, self._peer, self._tag)

    def done(self) -> bool:
        """Whether the message has been taken, or has come, on the device, too."""
        return self._request is None or self._request.done()

    def finish(self) -> None:
        """Put what has come to its place; let the current streams be in order with it."""
        if self._request is not None:
            self._request.wait()
            self._request = None
            if not self._sends:
                self._scatter()


def _gathered(values: Any, rows: Selection, out: Any) -> Any:
    gather(values, rows, out)
    return out
