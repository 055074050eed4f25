"""Exit status of a program that raises SystemExit, told when Python itself asks for it.

Python calls no hook for SystemExit, and the exception is gone when exit handlers run. But before, it reads
the exception's `code`, from C, with no frame of Python's below. So `SystemExit.code` becomes a property that
gives the same as ever, and tells if nobody in Python has asked. CPython only; elsewhere nothing is told.

`sys.exit` raises an exception that has no `code` yet before Python 3.12: there it becomes a function which
does the same in Python.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI


__all__ = ["notice", "status_of"]

_HAS_CODE = sys.version_info >= (3, 12)


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


def status_of(code: object) -> int:
    """The status by which Python ends for a SystemExit of this code; it prints what is no number."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1
