"""In a rank that others have started (spawned.py): who they are, hpcomm.parent()."""

from __future__ import annotations

import pathlib
import runpy
import sys

from ..._lazy import MPI
from ...watch import start_up
from ..communicator import Communicator, over
from ..context import Context
from ..lazy_world import named
from .spawned import watch

_parent: Communicator | None = None


def parent() -> Communicator | None:
    """Inter-communicator with the ranks that started this one by comm.spawn; None if none did."""
    return _parent


def main() -> None:
    """`NAME PROGRAM...`: in a new rank, meet those who have started it, then be the program."""
    global _parent
    name, *words = sys.argv[1:]
    start_up.start(name=f"rank {MPI.COMM_WORLD.rank} of '{name}'")
    world = named("world")
    start_up.expect_foreigners()
    inter = Context(MPI.Comm.Get_parent(), "parent")
    watch(world.context, inter, "parent")
    _parent = over(inter)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(pathlib.Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
