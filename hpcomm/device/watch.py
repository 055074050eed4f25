"""A communicator of mpi4py as the model sees it: which pinned memory MPI reads and writes, and until when.

Between ranks, knowledge travels beside each message, on a duplicate, under the same tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .order import site

if TYPE_CHECKING:
    from .model import Model

__all__ = ["Watched"]

_SENDS = ("Send", "Isend")
_RECVS = ("Recv", "Irecv")


class Watched:
    """Stands in for mpi. between_ranks: messages (not collectives) order the hosts they join."""

    def __init__(self, mpi: Any, model: Model, between_ranks: bool) -> None:
        self._mpi = mpi
        self._model = model
        self._beside = mpi.Dup() if between_ranks else None
        self._going: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mpi, name)
        if not name[:1].isupper() or name in ("Dup", "Get_rank", "Get_size"):
            return found

        def call(*arguments: Any) -> Any:
            return self._call(name, found, arguments)

        return call

    def Free(self) -> None:  # noqa: N802
        if self._beside is not None:
            self._beside.Free()
        self._mpi.Free()

    def _call(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        order = self._model.order
        background = name.startswith("I") and name != "Improbe"
        actor = order.actor(f"request {self._model.number()}") if background else order.host
        clock = order.step(actor)
        plain = name.removeprefix("I").lower()
        ways = {"send": (False,), "recv": (True,), "bcast": (True,), "alltoallv": (False, True)}
        for argument, writes in zip(arguments, ways.get(plain, (False, True)), strict=False):
            self._note(actor, clock, argument, writes)
        if self._beside is not None and name in _SENDS:
            self._going = [each for each in self._going if not each.Test()]
            self._going.append(self._beside.isend(dict(order.clocks[order.host]), arguments[1], arguments[2]))
        result = function(*arguments)
        sender = arguments[1:3] if self._beside is not None and name in _RECVS else None
        if not background:
            if sender is not None:
                self._heard(sender, site())
            return result
        return _Request(self, result, actor, clock, site(), sender)

    def _note(self, actor: Any, clock: Any, argument: Any, writes: bool) -> None:
        array = argument[0] if isinstance(argument, (tuple, list)) else argument
        if not isinstance(array, np.ndarray):
            return
        address = array.__array_interface__["data"][0]
        try:
            _, memory, low = self._model.at(address, array.nbytes)
        except Exception:  # memory of the host's own, which no stream sees
            return
        self._model.order.access(actor, clock, memory, low, low + array.nbytes, writes)

    def _heard(self, sender: tuple[int, int], at: str) -> None:
        assert self._beside is not None
        clock = self._beside.recv(source=sender[0], tag=sender[1])
        self._model.order.learn(self._model.order.host, clock, f"message at {at}")


class _Request:
    """A request of MPI's; its end is known to the host once it was waited for or tested."""

    def __init__(self, comm: Watched, request: Any, actor: Any, clock: Any, at: str, sender: Any) -> None:
        self._comm, self._request, self._sender = comm, request, sender
        self._actor, self._clock, self._at = actor, clock, at

    def Wait(self, status: Any = None) -> bool:  # noqa: N802
        self._request.Wait(status)
        return self._ended()

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        return bool(self._request.Test(status)) and self._ended()

    def _ended(self) -> bool:
        order = self._comm._model.order
        if self._actor is not None:
            order.learn(order.host, self._clock, f"request at {self._at}")
            if self._sender is not None:
                self._comm._heard(self._sender, self._at)
            self._actor = None
        return True
