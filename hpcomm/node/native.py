"""Native core: the module in C that moves, reduces and waits, or why there is none."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from .._lazy import loaded
from ..core.limits import NODE_SPINS
from ..errors import ConfigError

if TYPE_CHECKING:
    from ._native import core as _core
    from .segment import NodeSegment

    native_core = _core  # which others import from here
else:
    native_core = None  # for annotations, which nobody evaluates

VERSION = 15  # NODE_VERSION of _native/node.h
MOST_RANKS = 256  # of a node: NODE_RANKS of _native/node.h
_AGAIN = (
    "pip install --force-reinstall --no-deps --no-cache-dir hpcomm, as it was installed, "
    "with a C compiler (Debian: gcc libc6-dev); in a clone: pip install -e ."
)
_ROOM = "some hundred MiB of /dev/shm (docker run --shm-size=1g ...), the same one for all ranks of a node"


class Lack(NamedTuple):
    """Why ranks of a node do without the core, and what to do."""

    why: str
    hint: str


OFF = Lack("HPCOMM_NODE=off", "unset HPCOMM_NODE")
LINUX = Lack("it needs Linux", "Linux in a container or a virtual machine")
NO_ROOM = Lack("there is no room in /dev/shm", _ROOM)
REFUSED = {  # by what the system says
    errno.ENOMEM: Lack("there is no address space left for it (ulimit -v)", "ulimit -v unlimited"),
    errno.EFBIG: Lack("no file may be as large as it is (ulimit -f)", "ulimit -f unlimited"),
}
refused = NO_ROOM  # why there is no memory, if there is none
ELSEWHERE = Lack("another rank of the node has none", "python -m hpcomm doctor in the same job says which")


@lru_cache(maxsize=1)
def _found() -> tuple[ModuleType | None, Lack | None]:
    """The module, or why there is none."""
    said = os.environ.get("HPCOMM_NODE") or "on"
    if said not in ("on", "off"):
        raise ConfigError(f"HPCOMM_NODE is {said!r}", hint="on, or off to leave all to MPI")
    if said == "off":
        return None, OFF
    try:
        found = import_module(f"{__package__}._native.core")
    except ModuleNotFoundError:
        if sys.platform != "linux":
            return None, LINUX
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            return None, Lack("it needs the global lock, which this Python lacks", "another build of Python")
        return None, Lack("this installation was built without it", _AGAIN)
    except ImportError as error:
        return None, Lack(f"it cannot be loaded: {error}", _AGAIN)
    if getattr(found, "VERSION", 0) != VERSION:
        return None, Lack("it was built from the sources of another version", _AGAIN)
    return found, None


def core() -> ModuleType | None:
    """hpcomm.node._native.core; None: all goes by MPI."""
    return _found()[0]


def missing() -> Lack | None:
    """Why core() is None; None: it is there."""
    return _found()[1]


def lack(there: NodeSegment | None, ranks: int) -> Lack:
    """Why a communicator within this node has no core.Node.

    Args:
        there: memory of the node; None: there is none.
        ranks: of the communicator.
    """
    if why := missing():
        return why
    if there is not None and ranks > MOST_RANKS:
        return Lack(f"{ranks} ranks of one node, of at most {MOST_RANKS}", "fewer ranks, with threads each")
    return refused


def warn(why: Lack) -> None:
    """Say, on one rank of a job, that the core could be there."""
    what = "no node core: between ranks of a node all goes by MPI, which takes several times as long"
    print(f"hpcomm: {what}; {why.why}\n  try: {why.hint}; HPCOMM_NODE=off: as it is, unsaid", file=sys.stderr)


def node(there: NodeSegment, place: int, rank: int, hook: native_core.Hook, checks: bool) -> native_core.Node:
    """This rank's part of a place that was reserved for the ranks of a communicator on this node.

    Args:
        hook: see agree/arrivals.py.
        checks: whether this rank compares calls.
    """
    module = core()
    assert module is not None
    know_arrays()
    spins = 0 if there.is_crowded else NODE_SPINS
    made: native_core.Node = module.Node(there.shared, place, rank, hook, spins, checks, direct=there.direct)
    return made


@lru_cache(maxsize=4)
def _know(name: str) -> bool:
    module = core()
    return module is not None and getattr(module, f"know_{name}")(loaded(name)) is not False


def know_arrays() -> None:
    """Let the core take arrays of numpy and torch, and ml_dtypes' bfloat16, as far as these are loaded."""
    for name in ("numpy", "ml_dtypes", "torch"):
        if loaded(name) is not None:
            _know(name)


def takes_tensors() -> bool:
    """Whether the core takes tensors, not only numpy's arrays in their memory: from torch 2.10 on."""
    return loaded("torch") is not None and _know("torch")
