"""What comes at first use: modules, and attributes that few objects need.

`import hpcomm` starts nothing (numpy alone takes 0.1 s).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

__all__ = ["LazyModule", "loaded", "once"]

T = TypeVar("T")


class LazyModule:
    """Stands in for the module called name until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        self.__dict__[attribute] = value
        return value


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
