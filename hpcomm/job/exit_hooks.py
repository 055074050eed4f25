"""What Python has no hooks for at its end: the status of SystemExit, and what comes after all exit handlers.

Python calls no hook for SystemExit, and the exception is gone when exit handlers run. But before, it reads
the exception's `code`, from C, with no frame of Python's below. So `SystemExit.code` becomes a property that
gives the same as ever, and tells if nobody in Python has asked. CPython only; elsewhere nothing is told.

`sys.exit` raises an exception that has no `code` yet before Python 3.12: there it becomes a function which
does the same in Python.

Exit handlers run in the reverse order, so that those which were registered before ours would come after MPI's
other ranks were told that this one makes no more calls. `__del__` of a program's globals comes later still.
Python calls threading._shutdown just before its exit handlers, and looks that name up. So it becomes a
function which runs them, and then lets go of the program's modules while all the rest is still in order.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from .._lazy import MPI

_HAS_CODE = sys.version_info >= (3, 12)
_last: list[Callable[[], None]] = []
keepers: list[Callable[[], None]] = []  # to call first, so that threads of ours keep no globals


def notice(tell: Callable[[object], None]) -> None:
    """Have tell(code) called when Python ends by a SystemExit with this code, before its exit handlers."""
    member, frame_of = vars(SystemExit)["code"], sys._getframe

    def read(error: SystemExit) -> object:
        code = member.__get__(error)
        if frame_of().f_back is None:
            tell(code)
        return code

    if sys.implementation.name != "cpython" or isinstance(member, property):
        return
    import ctypes

    names = gc.get_referents(vars(SystemExit))[0]  # the dictionary itself: types of C's refuse to be changed
    names["code"] = property(read, member.__set__, member.__delete__, member.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    if not _HAS_CODE:
        _replace_exit()


def _replace_exit() -> None:
    exit_ = sys.exit

    def raise_exit(status: MPI.Status | None = None, /) -> NoReturn:
        if isinstance(status, SystemExit):
            raise status
        raise SystemExit(*(status if isinstance(status, tuple) else () if status is None else (status,)))

    for module in list(sys.modules.values()):  # from sys import exit
        names = getattr(module, "__dict__", {})
        for name in list(names) if module is sys.modules.get("__main__") else ["exit"]:
            if names.get(name) is exit_:
                names[name] = raise_exit


def last(end: Callable[[], None]) -> None:
    """Have end() called when all of the program has run: its exit handlers, and `__del__` of its globals.

    What is given last is called first. Forked children call it as an exit handler in the usual order.
    """
    if not _last:
        names, process = vars(threading), os.getpid()
        shutdown = names["_shutdown"]

        def then_ours() -> None:
            shutdown()
            if os.getpid() != process:
                return
            for each in _last:
                atexit.unregister(each)
            atexit._run_exitfuncs()
            for each in keepers:
                each()
            _drop_program()
            for each in _last:
                atexit.register(each)

        names["_shutdown"] = then_ours
    atexit.register(end)
    _last.append(end)


def _drop_program() -> None:
    """Let go of the program's own modules, and so of its globals."""
    for name in [name for name, module in list(sys.modules.items()) if _is_program(name, module)]:
        del sys.modules[name]
    gc.collect()


def _is_program(name: str, module: object) -> bool:
    """Whether a module is the program's: neither Python's, nor installed, nor ours."""
    root, file = name.partition(".")[0], getattr(module, "__file__", None) or ""
    is_library = root in sys.stdlib_module_names or root == "hpcomm" or "-packages" + os.sep in file
    return name == "__main__" or bool(file and not is_library)


def status_of(code: object) -> int:
    """The status by which Python ends for a SystemExit of this code; it prints what is no number."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1
