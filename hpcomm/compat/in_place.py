"""hpcomm.compat in mpi4py's place: for a program and all that it imports, with no line of them changed.

Only import statements in Python are answered otherwise. Modules of hpcomm and mpi4py, and those in C, such as
h5py and petsc4py, get mpi4py's own MPI.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

_OWN = ("hpcomm", "mpi4py")


class _Package(ModuleType):
    """The package mpi4py, but for its MPI, which comes at first use: a program may set mpi4py.rc before."""

    def __getattr__(self, name: str) -> Any:
        if name == "MPI":
            from . import MPI

            return MPI
        return getattr(sys.modules["mpi4py"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(sys.modules["mpi4py"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(sys.modules["mpi4py"], name)


def put_in_place() -> None:
    """Answer imports of mpi4py from now on."""
    before, package = builtins.__import__, _Package("mpi4py")

    def ours(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        found = before(name, globals, locals, fromlist, level)
        asks = str((globals or {}).get("__name__")).partition(".")[0]
        what = getattr(found, "__name__", "")  # which what stands in for a module may lack
        if level or asks in _OWN or what not in ("mpi4py", "mpi4py.MPI"):
            return found
        its: ModuleType = package if what == "mpi4py" else package.MPI
        return its

    builtins.__import__ = ours
