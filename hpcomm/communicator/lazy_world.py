"""Lazy hpcomm.world and hpcomm.self_: the Communicator is made when it is first used.

So `from hpcomm import world` starts nothing, and a script that says so at its top can be imported by
processes that are no ranks, as multiprocessing does. Making changes the class: later looks cost nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from ..job.optional_packages import load_mpi
from .communicator import Communicator

__all__ = ["Late", "taken"]

_lock = threading.RLock()
_named: dict[str, Communicator] = {}


class Late(Communicator):
    """A communicator of one of MPI's own: "COMM_WORLD" or "COMM_SELF"."""

    def __init__(self, name: str) -> None:
        vars(self)["_late"] = name
        _named[name] = self

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # what others ask of any object, such as __array_interface__
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        _make(self)
        return getattr(self, attribute)

    def __setattr__(self, attribute: str, value: object) -> None:
        _make(self)
        setattr(self, attribute, value)

    def __del__(self) -> None:  # type: ignore[override]
        """Nothing has been begun."""


def _make(comm: Communicator) -> None:
    with _lock:
        if type(comm) is not Late:  # another thread was quicker
            return
        name = vars(comm)["_late"]
        mpi = load_mpi(f"hpcomm.{name}")
        object.__setattr__(comm, "__class__", Communicator)
        try:
            Communicator.__init__(
                comm, mpi.COMM_WORLD if name == "world" else mpi.COMM_SELF, name.rstrip("_")
            )
        except BaseException:
            vars(comm).clear()
            comm.__class__ = Late
            vars(comm)["_late"] = name
            raise


def taken(name: str) -> Communicator | None:
    """The communicator of this name, to be made of another one of MPI's, if it was named and not used."""
    comm = _named.get(name)
    if type(comm) is not Late:
        return None
    vars(comm).clear()
    object.__setattr__(comm, "__class__", Communicator)
    return comm
