"""Memory of large results, used again when nobody has the result any more.

A new array of 64 MiB has no memory yet: the system gives and clears each page when it is first written, which
takes as long as an all-reduce of it. So the memory of large results is kept for the next one.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from .._lazy import loaded, np
from .limits import RESULT_KEPT, RESULT_LARGE

_HUGE_PAGE = 2 << 20  # bytes
_free: deque[mmap.mmap] = deque()  # the last one was given back last; threads may do so at any time


class _Lease:
    """What the arrays in a piece of memory have in common: when it goes, all of them have gone."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "typestr": "|u1", "shape": (nbytes,),
        }  # fmt: skip


def empty(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], at: int = 16
) -> np.ndarray[Any, np.dtype[Any]]:
    """As numpy.empty. at: in which byte of a page it begins, if it is large.

    Copies are quicker between arrays that begin alike; large ones of the C library begin in byte 16.
    """
    nbytes = dtype.itemsize
    for n in shape:
        nbytes *= n
    if nbytes < RESULT_LARGE or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = _taken(nbytes + at)
    lease = _Lease(np.frombuffer(memory, np.uint8).__array_interface__["data"][0] + at, nbytes)
    weakref.finalize(lease, _give_back, memory).atexit = False
    return np.asarray(lease).view(dtype).reshape(shape)


def like(x: Any, shape: tuple[int, ...]) -> Any:
    """The same of x's library and dtype: an array of numpy's, or a tensor of torch's."""
    if isinstance(x, np.ndarray):
        return empty(shape, x.dtype)
    nbytes = math.prod(shape) * x.element_size()
    if nbytes < RESULT_LARGE:
        return x.new_empty(shape)
    torch: Any = loaded("torch")
    memory = torch.from_numpy(empty((nbytes,), np.dtype(np.uint8), at=0))
    return memory.view(x.dtype).view(shape)


def _taken(nbytes: int) -> mmap.mmap:
    """Memory of so many bytes, and not much more, that nobody uses."""
    wanted = -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE
    for _ in range(len(_free)):
        try:
            memory = _free.pop()
        except IndexError:  # another thread has it
            break
        if wanted <= len(memory) <= wanted + wanted // 4:
            return memory
        _free.appendleft(memory)
    memory = mmap.mmap(-1, wanted, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _give_back(memory: mmap.mmap) -> None:
    _free.append(memory)
    while sum(map(len, list(_free))) > RESULT_KEPT:
        with suppress(IndexError):  # another thread has it
            _free.popleft()  # unmapped when it is dropped
