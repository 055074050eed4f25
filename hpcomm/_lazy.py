"""What comes at first use: modules, and attributes that few objects need.

`import hpcomm` starts nothing (numpy alone takes 0.1 s).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

__all__ = ["MPI", "ArrayLike", "DTypeLike", "LazyModule", "NDArray", "loaded", "np", "once", "undisturbed"]

T = TypeVar("T")


class LazyModule:
    """Stands in for the module called name until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__name__":  # another thread has come upon it before __init__ is done
            raise AttributeError("a module that has no name yet")
        value = getattr(import_module(self.__name__), attribute)
        self.__dict__[attribute] = value
        return value


if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import ArrayLike, DTypeLike, NDArray
else:
    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    ArrayLike = DTypeLike = NDArray = Any  # for annotations, which nobody evaluates


class once(Generic[T]):  # noqa: N801  a decorator
    """A property that is asked for once, and an attribute from then on: the same one for all threads.

    As functools.cached_property, which two threads may ask for at once from Python 3.12 on.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, kind: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> once[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object, kind: type) -> once[T] | T:
        if owner is None:
            return self
        made: T = vars(owner).setdefault(self._name, self._make(owner))
        return made


def loaded(name: str) -> Any:
    """The module called name once it has been imported, else None; another thread may be importing it now."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold the program's signal handlers back while something is made: they might ask for it.

    Ctrl-C still interrupts.
    """
    import signal

    if threading.current_thread() is not threading.main_thread():  # handlers run in that one, and may wait
        yield
        return
    came: list[tuple[int, Any]] = []
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    ctrl_c = signal.default_int_handler
    held: dict[int, Any] = {n: h for n, h in handlers.items() if callable(h) and h is not ctrl_c}

    def note(number: int, frame: object) -> None:
        came.append((number, frame))

    try:
        for number in held:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in held.items():
            if signal.getsignal(number) is note:  # and nobody has set another
                signal.signal(number, handler)
        for number, frame in came:
            held[number](number, frame)
