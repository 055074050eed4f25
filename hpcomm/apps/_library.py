"""Arrays on a GPU if there is one: CuPy's, else torch's, else numpy's, behind the same few functions."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..core.types import AnyArray
from ..device import driver


class Library:
    """numpy: arrays of the host, whose long products a thread works on."""

    name = "numpy"
    on_device = False

    def there(self, x: AnyArray) -> Any:
        """A copy of x where this library has its arrays."""
        return x.copy()

    def here(self, x: Any) -> AnyArray:
        """x as numpy array."""
        return np.asarray(x)

    def synchronize(self) -> None:
        """Wait for all that was put to work."""

    def start_products(self, a: Any, times: int) -> Callable[[], bool]:
        """Begin to multiply a by itself, again and again; returns what asks whether that is done."""
        out = np.empty_like(a)  # numpy lets others work meanwhile

        def work() -> None:
            for _ in range(times):
                np.matmul(a, a, out=out)

        thread = threading.Thread(target=work)
        thread.start()
        return lambda: not thread.is_alive()


class _OnDevice(Library):
    on_device = True

    def __init__(self) -> None:
        self._module: Any = importlib.import_module(self.name)

    def start_products(self, a: object, times: int) -> Callable[[], bool]:
        out, reached = self._module.empty_like(a), self._module.cuda.Event()
        for _ in range(times):
            self._module.matmul(a, a, out=out)
        reached.record()
        return lambda: bool(reached.done if self.name == "cupy" else reached.query())


class _Cupy(_OnDevice):
    name = "cupy"

    def there(self, x: AnyArray) -> Any:
        return self._module.asarray(x)

    def here(self, x: Any) -> AnyArray:
        return np.asarray(x.get())

    def synchronize(self) -> None:
        self._module.cuda.get_current_stream().synchronize()


class _Torch(_OnDevice):
    name = "torch"

    def there(self, x: AnyArray) -> Any:
        return self._module.from_numpy(x).cuda()

    def here(self, x: Any) -> AnyArray:
        return np.asarray(x.cpu().numpy())

    def synchronize(self) -> None:
        self._module.cuda.current_stream().synchronize()


def find() -> tuple[Library, list[str]]:
    """The library to use, and what is missing if it is not one of a GPU."""
    if not driver.possible():
        return Library(), ["no NVIDIA driver on this machine, or HPCOMM_GPU=off"]
    missing = []
    for kind in (_Cupy, _Torch):
        name = kind.name
        if not find_spec(name):
            missing.append(f"{name} is not installed")
            continue
        try:
            made = kind()
            made.there(np.zeros(1, np.float32))
        except Exception as error:  # each version has its own way of saying that it finds no GPU
            missing.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        else:
            return made, []
    return Library(), missing
