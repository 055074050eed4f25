"""Endpoints of exchanges: views of host memory, rows at any positions, and arrays on devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import LazyModule, np
from ..core.limits import COPIED_BY_PYTHON

if TYPE_CHECKING:
    from ..core import buffer
    from ..core.types import HasShape, NpArray
    from ..device.arrays import Place

else:
    buffer = LazyModule("hpcomm.core.buffer")


class Rows:
    """Rows of an array at any positions, each there once: what a view cannot be."""

    def __init__(self, array: NpArray, at: NpArray) -> None:
        self.array, self.at = array, at
        self.shape = (len(at), *array.shape[1:])
        self.dtype, self.itemsize = array.dtype, array.itemsize
        self.size: int = len(at) * array[:1].size
        self.nbytes: int = self.size * array.itemsize


def count(place: HasShape) -> int:
    """How many elements it has."""
    return math.prod(place.shape)


def copying(to: object, source: object, adds: bool = False) -> Callable[[], object]:
    """What copies source to a place, or adds it there, each time it is called."""
    if adds or not (isinstance(to, np.ndarray) and isinstance(source, np.ndarray)):
        return partial(_land, to, source, adds)
    if (
        to.nbytes <= COPIED_BY_PYTHON
        and to.flags.c_contiguous
        and source.flags.c_contiguous
        and to.flags.writeable
    ):
        return partial(
            _bytes_of(to).__setitem__, slice(None), _bytes_of(source)
        )  # a quarter of what numpy takes
    return partial(to.__setitem__, Ellipsis, source)  # two thirds of copyto


def _bytes_of(view: NpArray) -> memoryview:
    return memoryview(view.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _land(to: Any, source: Any, adds: bool) -> None:
    if isinstance(source, Rows):
        source = source.array[source.at]
    if isinstance(to, Rows) and adds:
        to.array[to.at] += source
    elif isinstance(to, Rows):
        to.array[to.at] = source
    elif adds:
        to += source
    else:
        to[...] = source


def set_zero(place: Any) -> None:
    """Fill a view or Rows with zeros."""
    if isinstance(place, Rows):
        place.array[place.at] = np.zeros((), place.dtype)
    elif isinstance(place, np.ndarray):
        place[...] = np.zeros((), place.dtype)
    elif hasattr(place, "zero_"):
        place.zero_()
    else:
        place.fill(0)


def memory(look: buffer.Buffer) -> Any:
    """What an exchange takes views of: a numpy view of host memory, or the array of a device's library."""
    return look.array if look.place is None else look.place.array


def share_memory(a: buffer.Buffer, b: buffer.Buffer) -> bool:
    """Whether two looks share an element; on a device, whether their ranges of memory meet."""
    if a.place is None or b.place is None:
        return a.place is b.place and buffer.overlap(a.array, b.array)
    (low, high), (first, last) = _range(a), _range(b)
    return low < last and first < high


def _range(look: buffer.Buffer) -> tuple[int, int]:
    place, itemsize = look.place, look.dtype.itemsize
    assert place is not None
    if place.strides is None:
        return place.address, place.address + look.nbytes
    steps = [(n - 1) * stride for n, stride in zip(place.shape, place.strides, strict=True)]
    low = place.address + sum(min(0, step) for step in steps)
    return low, place.address + sum(max(0, step) for step in steps) + itemsize


# -- on devices ---------------------------------------------------------------------------------------------
class Site(NamedTuple):
    """A device where an exchange copies. event: after the last copy, whichever stream was current then."""

    device: Any
    place: Place
    event: int


def on_device(view: object) -> bool:
    """Whether it lies on one."""
    return not isinstance(view, (np.ndarray, Rows))


def sites(views: list[object]) -> list[Site]:
    """One for each library and device whose arrays are among views."""
    found: dict[Any, Site] = {}
    for view in views:
        if on_device(view):
            place = buffer.as_buffer(buffer.detached(view)).place
            assert place is not None
            key = type(view), place.device.index
            if key not in found:
                found[key] = Site(place.device, place, place.device.event())
    return list(found.values())


def in_one_piece(look: buffer.Buffer) -> bool:
    """Whether the elements lie one behind the other."""
    return bool(look.array.flags.c_contiguous) if look.place is None else look.place.strides is None


def block(view: Any, look: buffer.Buffer | None) -> Any:
    """Memory in one piece for a view, where that lies. look: at the view; None for Rows."""
    if look is None or look.place is None:
        return np.empty(view.shape, view.dtype)
    return memory(look.make(look.shape))
