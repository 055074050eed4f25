"""The life of a process in a job: MPI comes up at first use, and a failing rank takes the job down.

MPI leaves the others waiting for ever when one rank dies of an exception. So, from the first use of
MPI through hpcomm on, a rank that ends by an uncaught exception or `sys.exit` with a failure says so
first, waits a moment whether all others end too (then everybody's own exit status counts), and
otherwise aborts the job.
"""

from __future__ import annotations

import atexit
import builtins
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

    from .observe.board import Board

__all__ = ["board", "start"]

GRACE = 1.0  # s in which the other ranks may end too

board: Board | None = None  # of this node, once start() has run; None if ranks share no memory
_farewell: MPI.Intracomm | None = None  # its own communicator: whoever ends by failure meets the others here
_exit_code: Any = None  # what sys.exit was last called with
_main_frame: FrameType | None = None


def start() -> None:
    """Bring MPI up once (collective over the world): hooks, board, sentinel."""
    global board, _farewell, _main_frame
    if _farewell is not None:
        return
    from mpi4py import MPI

    from .observe.board import open_board

    _farewell = MPI.COMM_WORLD.Dup()
    if MPI.COMM_WORLD.size > 1:
        _install_hooks()
        board = open_board(MPI.COMM_WORLD)
        if board is not None and len(board.regions) > 1:
            from .observe import sentinel

            sentinel.start(board, abort)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        _main_frame, frame = frame, frame.f_back


def abort(text: str, status: int = 1) -> None:
    """Say text on stderr and end the job, from whichever thread."""
    from mpi4py import MPI

    print(f"\nhpcomm: rank {MPI.COMM_WORLD.rank}: {text}", file=sys.stderr, flush=True)
    _abort(status)


def _abort(status: int) -> None:
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    last_resort = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGKILL))
    last_resort.daemon = True
    last_resort.start()  # MPI_Abort itself can hang when the library is in a bad state
    MPI.COMM_WORLD.Abort(status)


def _install_hooks() -> None:
    previous_hook, exit_ = sys.excepthook, sys.exit

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous_hook(kind, error, trace)
        if not (sys.flags.interactive or hasattr(sys, "ps1")):
            _leave(1)

    def exit_noted(status: Any = None, /) -> Any:
        global _exit_code
        _exit_code = status
        exit_(status)

    sys.excepthook = excepthook
    sys.exit = exit_noted
    for name in ("exit", "quit"):
        if hasattr(builtins, name) and not sys.flags.interactive:
            setattr(builtins, name, exit_noted)
    atexit.register(_at_exit)


def _at_exit() -> None:
    if _exit_code not in (None, 0) and _left_by_exception():
        _leave(_exit_code if isinstance(_exit_code, int) else 1)
    elif board is not None:
        board.mine.end()


def _left_by_exception() -> bool:
    """Whether the program's outermost frame ended by an exception, not by reaching its end.

    A sys.exit that somebody caught must not count. Python tells exit handlers nothing about the way
    out, but the frame's last instruction does.
    """
    frame = _main_frame
    if frame is None or frame.f_lasti < 0:
        return True
    import dis

    return not dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")


def _leave(status: int) -> None:
    """End this rank by failure: together with all others if they end too, else by ending the job."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    if MPI.Is_finalized() or _farewell is None:
        return
    meeting = _farewell.Ibarrier()
    deadline = time.monotonic() + GRACE
    while not meeting.Test():
        if time.monotonic() > deadline:
            _abort(status)
        time.sleep(0.01)
