"""mpi4py communicator for the modelled driver: it notes which pinned memory MPI uses, and until when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcomm.errors import TransportError

from .order import Moment, Order, site

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mpi4py import MPI

    from hpcomm.core.types import AnyArray

__all__ = ["Watched"]

_NAMES = 64  # of requests: one that ended long ago lends its own, or the table of clocks would be wide
_WRITES = {"send": (False,), "recv": (True,), "bcast": (True,), "alltoallv": (False, True)}


class Watched:
    """Stands in for mpi: functions in capitals are looked at, all else is handed through.

    at: (address, bytes) -> the bytes, what they are part of, and where in it they begin
    """

    def __init__(
        self,
        mpi: object,
        order: Order,
        lock: AbstractContextManager[object],
        at: Callable[[int, int], tuple[AnyArray, str, int]],
    ) -> None:
        self._mpi, self._order, self._lock, self._at = mpi, order, lock, at
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mpi, name)
        return found if name.islower() else lambda *arguments: self._call(name, found, arguments)

    def _call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        order = self._order
        background = name.startswith("I")
        with self._lock:
            number = next(self._numbers) % _NAMES
            actor = order.actor(f"request {number}") if background else order.host
            moment = order.step(actor)
            writes = _WRITES.get(name.removeprefix("I").lower(), (False, True))
            seen = [self._note(moment, each, way) for each, way in zip(arguments, writes, strict=False)]
        result = function(*arguments)
        return _Request(order, self._lock, result, moment, site()) if background and any(seen) else result

    def _note(self, moment: Moment, argument: object, writes: bool) -> bool:
        """Note MPI's access to an argument, if that is pinned memory."""
        array = argument[0] if isinstance(argument, (tuple, list)) else argument
        if not isinstance(array, np.ndarray):
            return False
        try:
            _, memory, low = self._at(array.__array_interface__["data"][0], array.nbytes)
        except TransportError:  # memory of the host's own, which no stream sees
            return False
        self._order.access(moment, memory, low, low + array.nbytes, writes)
        return True


class _Request:
    """A request of MPI's; its end is known to the host once it was waited for or tested."""

    def __init__(
        self,
        order: Order,
        lock: AbstractContextManager[object],
        request: MPI.Request,
        moment: Moment,
        at: str,
    ) -> None:
        self._order, self._lock, self._request, self._moment, self._at = order, lock, request, moment, at

    def Wait(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        self._request.Wait(status)
        return self._ended()

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        return bool(self._request.Test(status)) and self._ended()

    def _ended(self) -> bool:
        with self._lock:
            self._order.learn(self._order.host, self._moment, f"request at {self._at}")
        return True
