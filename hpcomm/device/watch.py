"""A communicator of mpi4py as the model sees it: which pinned memory MPI reads and writes, and until when."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TransportError
from .order import site

if TYPE_CHECKING:
    from .model import Model

__all__ = ["Watched"]

_NAMES = 64  # of requests: one that ended long ago lends its own, or clocks would grow without end
_WRITES = {"send": (False,), "recv": (True,), "bcast": (True,), "alltoallv": (False, True)}


class Watched:
    """Stands in for mpi: functions in capitals are looked at, all else is handed through."""

    def __init__(self, mpi: Any, model: Model) -> None:
        self._mpi = mpi
        self._model = model
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mpi, name)
        return found if name.islower() else lambda *arguments: self._call(name, found, arguments)

    def _call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        order = self._model.order
        background = name.startswith("I")
        with self._model.lock:
            number = next(self._numbers) % _NAMES
            actor = order.actor(f"request {number}") if background else order.host
            clock = order.step(actor)
            writes = _WRITES.get(name.removeprefix("I").lower(), (False, True))
            seen = [self._note(actor, clock, each, way) for each, way in zip(arguments, writes, strict=False)]
        result = function(*arguments)
        return _Request(self._model, result, clock, site()) if background and any(seen) else result

    def _note(self, actor: Any, clock: Any, argument: Any, writes: bool) -> bool:
        """Note MPI's access to an argument, if that is pinned memory."""
        array = argument[0] if isinstance(argument, (tuple, list)) else argument
        if not isinstance(array, np.ndarray):
            return False
        try:
            _, memory, low = self._model.at(array.__array_interface__["data"][0], array.nbytes)
        except TransportError:  # memory of the host's own, which no stream sees
            return False
        self._model.order.access(actor, clock, memory, low, low + array.nbytes, writes)
        return True


class _Request:
    """A request of MPI's; its end is known to the host once it was waited for or tested."""

    def __init__(self, model: Model, request: Any, clock: Any, at: str) -> None:
        self._model, self._request, self._clock, self._at = model, request, clock, at

    def Wait(self, status: Any = None) -> bool:  # noqa: N802
        self._request.Wait(status)
        return self._ended()

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        return bool(self._request.Test(status)) and self._ended()

    def _ended(self) -> bool:
        order = self._model.order
        with self._model.lock:
            order.learn(order.host, self._clock, f"request at {self._at}")
        return True
