"""Array libraries of devices: what hpcomm asks of CuPy and torch beyond the memory of their arrays.

A library is known by the name of its module, which the type of its arrays has. Tests add one of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .._lazy import NDArray, loaded, np
from ..core import dtypes
from .driver import DEFAULT_STREAM, Device
from .kernels import CuPy, Kernels, Torch

if TYPE_CHECKING:
    from ..core.dtypes import Dtype
    from ..core.types import AnyArray
    from .arrays import Place

Shape = tuple[int, ...]
Way = tuple[Callable[[], int], Callable[[Shape], Any] | None, Callable[[], Any] | None]


class Library(Protocol):
    """What is asked of one. like: an array on the device that is meant."""

    array: str  # name of the type of its arrays

    def way(self, x: Any) -> Way: ...  # the current stream there; another array of a shape; x in C order
    def kernels(self, device: Device) -> Kernels: ...
    def room(self, shape: Shape, dtype: Dtype) -> Any: ...  # on the current device; None: there is none
    def index(self, like: Any, rows: NDArray[np.int64]) -> Any: ...  # as its arrays take them in brackets
    def empty(self, like: Any, shape: Shape, dtype: np.dtype[Any]) -> Any: ...
    def up(self, like: Any, array: AnyArray) -> Any: ...  # a copy of an array in host memory
    def cast(self, values: Any, dtype: np.dtype[Any]) -> Any: ...
    def plain(self, values: Any) -> Any: ...  # the same memory, of which nobody takes derivatives


class _CuPy:
    array = "ndarray"

    def way(self, x: Any) -> Way:
        """Another device may be the thread's current one: then CuPy would name the stream there, and copy to
        there."""
        cupy = sys.modules["cupy"]

        def there(work: Callable[..., Any]) -> Callable[..., Any]:
            def done(*arguments: object) -> Any:
                with cupy.cuda.Device(x.device.id):
                    return work(*arguments)

            return done

        made = there(lambda shape: cupy.empty(shape, x.dtype))
        return there(stream_of(x)), made, there(lambda: x.copy(order="C"))

    def kernels(self, device: Device) -> Kernels:
        return CuPy(device)

    def room(self, shape: Shape, dtype: Dtype) -> Any:
        cupy = sys.modules["cupy"]
        return cupy.empty(shape, dtypes.numpy_dtype(dtype)) if cupy.cuda.is_available() else None

    def index(self, like: Any, rows: NDArray[np.int64]) -> Any:
        """For calls in any streams: CuPy only begins to bring them, in the current one."""
        cupy = sys.modules["cupy"]
        made = cupy.asarray(rows)
        cupy.cuda.get_current_stream().synchronize()
        return made

    def empty(self, like: Any, shape: Shape, dtype: np.dtype[Any]) -> Any:
        return sys.modules["cupy"].empty(shape, dtype)

    def up(self, like: Any, array: AnyArray) -> Any:
        return sys.modules["cupy"].asarray(array)

    def cast(self, values: Any, dtype: np.dtype[Any]) -> Any:
        return values.astype(dtype)

    def plain(self, values: Any) -> Any:
        return values


class _Torch:
    array = "Tensor"

    def way(self, x: Any) -> Way:
        torch, device = sys.modules["torch"], x.device
        return (
            lambda: torch.cuda.current_stream(device).cuda_stream or DEFAULT_STREAM,
            lambda shape: torch.empty(shape, dtype=x.dtype, device=device),
            lambda: x.clone(memory_format=torch.contiguous_format),
        )

    def kernels(self, device: Device) -> Kernels:
        return Torch(device)

    def room(self, shape: Shape, dtype: Dtype) -> Any:
        torch = sys.modules["torch"]
        where = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.empty(shape, dtype=dtypes.torch_dtype(dtype), device=where)

    def index(self, like: Any, rows: NDArray[np.int64]) -> Any:
        return self.up(like, rows)

    def empty(self, like: Any, shape: Shape, dtype: np.dtype[Any]) -> Any:
        kind = dtypes.torch_dtype(dtypes.parse(dtype)[0])
        return sys.modules["torch"].empty(shape, dtype=kind, device=like.device)

    def up(self, like: Any, array: AnyArray) -> Any:
        return sys.modules["torch"].from_numpy(array).to(like.device)

    def cast(self, values: Any, dtype: np.dtype[Any]) -> Any:
        return values.to(dtypes.torch_dtype(dtypes.parse(dtype)[0]))

    def plain(self, values: Any) -> Any:
        return values.detach()


LIBRARIES: dict[str, Library] = {"cupy": _CuPy(), "torch": _Torch()}


def library_of(array: object) -> str:
    """The module by which a receiver may make such an array."""
    return type(array).__module__.partition(".")[0]


def stream_of(x: Any) -> Callable[[], int]:
    """The stream that an array itself names."""
    return lambda: x.__cuda_array_interface__.get("stream") or DEFAULT_STREAM


def kernels(place: Place) -> Kernels | str:
    """The kernels for an array: of its own library, else of one that is loaded; or why there are none."""
    array, torch = place.array, loaded("torch")
    name = library_of(array)
    if name not in LIBRARIES:
        is_tensor = torch is not None and isinstance(array, torch.Tensor)
        name = "cupy" if loaded("cupy") and not is_tensor else "torch"
        if not is_tensor and name == "torch" and not (torch is not None and torch.cuda.is_available()):
            what = type(array).__name__
            return f"neither CuPy nor torch is loaded, whose kernels could work on a {what}"
    return LIBRARIES[name].kernels(place.device)
