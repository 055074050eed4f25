"""Lazy hpcomm.world and hpcomm.self_: the Communicator is made when it is first used.

So `from hpcomm import world` starts nothing, and a script that says so at its top can be imported by
processes that are no ranks, as multiprocessing does. Making changes the class: later looks cost nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .._lazy import undisturbed
from ..core.present import is_own
from ..job.optional_packages import load_mpi
from .communicator import Communicator

_lock = threading.RLock()
_named: dict[str, Communicator] = {}


class Late(Communicator):
    """A communicator of one of MPI's own: "COMM_WORLD" or "COMM_SELF".

    The thread that makes it sees as much of it as there is. Others wait for all of it, but the watchdog.
    """

    def __init__(self, name: str) -> None:
        vars(self)["_late"] = name

    def __getattribute__(self, attribute: str) -> Any:
        if not attribute.startswith("__"):  # what others ask of any object, such as __array_interface__
            _make(self)
        return object.__getattribute__(self, attribute)

    def __getattr__(self, attribute: str) -> Any:
        if type(self) is not Late:
            return getattr(self, attribute)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")

    def __setattr__(self, attribute: str, value: object) -> None:
        _make(self)
        object.__setattr__(self, attribute, value)

    def __del__(self) -> None:  # type: ignore[override]
        """Nothing has been begun."""


def _make(comm: Communicator) -> None:
    thread = threading.current_thread()
    if vars(comm).get("_maker") == thread.ident or is_own(thread):
        return
    with _lock, undisturbed():
        if type(comm) is not Late:  # another thread, or a signal handler, was quicker
            return
        name = vars(comm)["_late"]
        mpi = load_mpi(f"hpcomm.{name}")
        vars(comm)["_maker"] = thread.ident
        try:
            Communicator.__init__(
                comm, mpi.COMM_WORLD if name == "world" else mpi.COMM_SELF, name.rstrip("_")
            )
            object.__setattr__(comm, "__class__", Communicator)
        except BaseException:
            vars(comm).clear()
            vars(comm)["_late"] = name
            raise
        del vars(comm)["_late"], vars(comm)["_maker"]


def named(name: str) -> Communicator:
    """The communicator of this name: "world" or "self_"."""
    with _lock:
        return _named.setdefault(name, Late(name))


def taken(name: str) -> Communicator | None:
    """The communicator of this name, to be made of another one of MPI's, if it was named and not used."""
    with _lock:
        comm = _named.get(name)
        if type(comm) is not Late:
            return None
        vars(comm).clear()
        object.__setattr__(comm, "__class__", Communicator)
        return comm
