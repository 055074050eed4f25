"""Where the places of a window lie in the memory of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from operator import index
from typing import Any, SupportsIndex, TypeGuard

from .._lazy import NDArray, np
from ..core.types import AnyArray
from ..errors import LayoutError, RankError

# Bytes before a rank's array, as long as a line of the cache: they begin with the word of its lock.
HEAD = 64
_KEPT = 512  # places that are known without looking again


class Places:
    """Places of arrays on all ranks.

    Args:
        array: that on this rank.
        shapes: those on all ranks, if they differ.
        size: how many ranks there are.
    """

    def __init__(self, array: AnyArray, shapes: NDArray[Any] | None, size: int) -> None:
        self._look = partial(_block, array, shapes, size)
        self._known: Callable[..., tuple[int, AnyArray]] = lru_cache(_KEPT, typed=True)(self._look)

    def find(self, rank: object, at: object) -> tuple[int, AnyArray]:
        """At which byte of a rank's memory a place begins, and the same block of an array that is never read.

        Raises:
            RankError: there is no such rank.
            LayoutError: at is no place, or not contiguous.
        """
        parts = at if isinstance(at, tuple) else (at,)
        if isinstance(at, slice):
            parts = at.start, at.stop, at.step
        try:
            return self._known(rank, type(at), *parts)
        except TypeError:  # they have no hash
            return self._look(rank, type(at), *parts)


def _block(
    array: AnyArray, shapes: NDArray[Any] | None, size: int, rank: object, kind: type, *parts: Any
) -> tuple[int, AnyArray]:
    """kind: of what names the place; parts: what that has, or itself."""
    number = rank_of(rank, size)
    if shapes is not None:
        array = _like(array.dtype, tuple(shapes[number].tolist()))
    at = slice(*parts) if kind is slice else parts if issubclass(kind, tuple) else parts[0]
    index = (at,) if kind is slice else () if at is None else parts
    if not all(isinstance(part, slice) or is_number(part) for part in index):
        hint = "an index such as 3, (3, 0) or slice(2, 5)"
        raise LayoutError(f"at={at!r} is no place of a window", hint=hint)
    try:
        block: NDArray[Any] = array[(*index, ...)]
    except (IndexError, TypeError) as error:
        what = f"at={at!r} is not in an array of shape {array.shape}: {error}"
        raise LayoutError(what, hint="an index from 0 on, within that") from None
    if not block.flags.c_contiguous:
        what, hint = f"at={at!r} of {array.shape} is not contiguous", "several calls, one for each block"
        raise LayoutError(what, hint=hint)
    begins = block.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return HEAD + (begins if block.size else 0), block


def _like(dtype: np.dtype[Any], shape: tuple[int, ...]) -> AnyArray:
    """An array of this shape, which shows where its elements lie and is never read."""
    made = np.ndarray((0,), dtype)
    strides = [made.itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    like: AnyArray = np.lib.stride_tricks.as_strided(made, shape, strides)
    return like


def rank_of(rank: object, size: int) -> int:
    """A rank of so many as an int, or a RankError."""
    if not is_number(rank) or not 0 <= index(rank) < size:
        raise RankError(f"there is no rank {rank!r}", hint=f"0 to {size - 1}")
    return index(rank)


def is_number(part: object) -> TypeGuard[SupportsIndex]:
    return hasattr(part, "__index__") and not isinstance(part, bool)
