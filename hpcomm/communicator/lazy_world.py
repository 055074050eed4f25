"""Lazy hpcomm.world and hpcomm.self_: what they are made of is there when they are first used.

So `from hpcomm import world` starts nothing, and a script that says so at its top can be imported by
processes that are no ranks, as multiprocessing does. After that, looks at them cost nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .._lazy import undisturbed
from ..job.optional_packages import load_mpi
from .communicator import Communicator
from .context import Context

_lock = threading.RLock()
_named: dict[str, Communicator] = {}


class Late(Communicator):
    """A communicator of one of MPI's own, "COMM_WORLD" or "COMM_SELF", which gets its context when asked."""

    def __init__(self, name: str) -> None:
        self._late = name

    def __getattr__(self, attribute: str) -> Any:
        """Python asks here for what is not there yet."""
        if attribute.startswith("__"):  # what others ask of any object, such as __array_interface__
            raise AttributeError(f"'Communicator' object has no attribute {attribute!r}")
        with _lock, undisturbed():
            if type(self) is Late:  # no other thread, nor a signal handler, was quicker
                mpi = load_mpi(f"hpcomm.{self._late}")
                one = mpi.COMM_WORLD if self._late == "world" else mpi.COMM_SELF
                Communicator.__init__(self, one, self._late.rstrip("_"))
                _settle(self)
        return getattr(self, attribute)


def _settle(comm: Communicator) -> None:
    """Be a Communicator: CPython finds methods slowly in a class with a __getattr__."""
    del vars(comm)["_late"]
    object.__setattr__(comm, "__class__", Communicator)


def named(name: str) -> Communicator:
    """The communicator of this name: "world" or "self_"."""
    with _lock:
        return _named.setdefault(name, Late(name))


def give(name: str, context: Context) -> Communicator | None:
    """The communicator of this name, now with another context than MPI's, if it was named and not used."""
    with _lock:
        comm = _named.get(name)
        if type(comm) is not Late:
            return None
        comm.context = context
        _settle(comm)
        return comm
