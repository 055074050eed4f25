"""Modules imported at first use, so that `import hpcomm` starts nothing (numpy alone takes 0.1 s)."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["LazyModule", "loaded"]


class LazyModule:
    """Stands in for the module called name until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        self.__dict__[attribute] = value
        return value


def loaded(name: str) -> Any:
    """The module called name once it has been imported, else None; another thread may be importing it now."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
