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


class _Cupy(Library):
    name, on_device = "cupy", True

    def __init__(self) -> None:
        self._cupy: Any = importlib.import_module("cupy")

    def there(self, x: AnyArray) -> Any:
        return self._cupy.asarray(x)

    def here(self, x: Any) -> AnyArray:
        return np.asarray(x.get())

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def start_products(self, a: object, times: int) -> Callable[[], bool]:
        out, reached = self._cupy.empty_like(a), self._cupy.cuda.Event()
        for _ in range(times):
            self._cupy.matmul(a, a, out=out)
        reached.record()
        return lambda: bool(reached.done)


class _Torch(Library):
    name, on_device = "torch", True

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")

    def there(self, x: AnyArray) -> Any:
        return self._torch.from_numpy(x).cuda()

    def here(self, x: Any) -> AnyArray:
        return np.asarray(x.cpu().numpy())

    def synchronize(self) -> None:
        self._torch.cuda.current_stream().synchronize()

    def start_products(self, a: object, times: int) -> Callable[[], bool]:
        out, reached = self._torch.empty_like(a), self._torch.cuda.Event()
        for _ in range(times):
            self._torch.matmul(a, a, out=out)
        reached.record()
        return lambda: bool(reached.query())


def find() -> tuple[Library, list[str]]:
    """The library to use, and what is missing if it is not one of a GPU."""
    if not driver.possible():
        return Library(), ["no NVIDIA driver on this machine, or HPCOMM_GPU=off"]
    missing = []
    for name, kind in (("cupy", _Cupy), ("torch", _Torch)):
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
