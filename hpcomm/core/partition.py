"""Partitions: who owns which part of an index space, boxes over a mesh or arbitrary points. Pure.

    Partition((6, 8), {"p": 3}, ("p", None))        Partition((6, 8), {"y": 2, "x": 2}, ("y", "x"))

    +--------+                                      +----+----+
    |   0    |                                      | 0  | 1  |
    +--------+                                      |    |    |
    |   1    |                                      +----+----+
    +--------+                                      | 2  | 3  |
    |   2    |                                      |    |    |
    +--------+                                      +----+----+

A Partition cuts an n-dimensional index space into boxes over the axes of a mesh. Mesh axes that cut no
array axis hold copies ("replicated"), or partial sums ("partial"): the value is the sum over those ranks.
Points own arbitrary global indices of the first array axis, as unstructured grids do.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any

from .._lazy import NDArray, np
from ..errors import LayoutError, RankError
from .buffer import refuse_masked
from .types import AnyArray

Shape = tuple[int, ...]
Split = str | Sequence[str] | None
Widths = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Box:
    """A box of indices: from start up to, but without, stop along every axis."""

    start: Shape
    stop: Shape

    @property
    def shape(self) -> Shape:
        """Number of indices along every axis."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of indices."""
        return math.prod(self.shape)

    def __and__(self, other: Box) -> Box:
        """The indices in both."""
        start = tuple(map(max, self.start, other.start))
        return Box(start, tuple(map(max, start, map(min, self.stop, other.stop))))

    def __contains__(self, index: Sequence[int]) -> bool:
        return all(a <= i < b for a, i, b in zip(self.start, index, self.stop, strict=True))

    def slices(self, origin: Sequence[int] | None = None) -> tuple[slice, ...]:
        """Slices of the box in an array whose element [0, 0, ...] has the global index `origin`."""
        base = origin or (0,) * len(self.start)
        return tuple(slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, base, strict=True))

    def moved(self, by: Sequence[int]) -> Box:
        """The box, moved by so many indices along each axis."""
        return Box(
            tuple(a + d for a, d in zip(self.start, by, strict=True)),
            tuple(b + d for b, d in zip(self.stop, by, strict=True)),
        )

    def grown(self, widths: Widths) -> Box:
        """The box, larger by (before, after) indices along each axis."""
        return Box(
            tuple(a - w for a, (w, _) in zip(self.start, widths, strict=True)),
            tuple(b + w for b, (_, w) in zip(self.stop, widths, strict=True)),
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


def integers(values: Any, what: str) -> Shape:
    """One integer, or several, as a tuple of them.

    Raises:
        LayoutError: anything else; a float is not cut to one.
    """
    try:
        is_one = hasattr(values, "__index__") and not getattr(values, "ndim", 0)
        return tuple(int(operator.index(n)) for n in ((values,) if is_one else values))
    except TypeError:
        raise LayoutError(f"{what} is {values!r}", hint="integers") from None


def _whole(shape: object) -> Shape:
    sizes = integers(shape, "the shape of the whole")
    if min(sizes, default=0) < 0:
        raise LayoutError(f"the shape of the whole is {sizes}", hint="no size below 0")
    return sizes


def _whole_mesh(given: object) -> dict[str, int]:
    """Sizes of mesh axes by name, checked."""
    if not isinstance(given, Mapping):
        raise LayoutError(f"mesh is of type {type(given).__name__}", hint="{name: size}: mesh.shape")
    sizes = integers(given.values(), f"the mesh {dict(given)}")
    if min(sizes, default=1) < 1:
        raise LayoutError(f"the mesh is {dict(given)}", hint="sizes of 1 and more")
    return dict(zip(map(str, given), sizes, strict=True))


def _names_of_axes(name: str, given: Any) -> Any:
    """What names mesh axes, one of them or several: a sequence, or None for split."""
    if isinstance(given, str):
        return (given,)
    is_sequence = isinstance(given, Sequence) and all(
        each is None or hasattr(each, "__iter__") for each in given
    )
    if not (is_sequence or (given is None and name == "split")):
        raise LayoutError(f"{name} is {given!r}", hint="a list of names of mesh axes")
    return given


def cuts(n: int, parts: int) -> Shape:
    """Where to cut n indices into parts of almost equal length, the longer ones first: (0, ..., n).

    Same as numpy.array_split and PETSc's DMDA.
    """
    short, longer = divmod(n, parts)
    return tuple(i * short + min(i, longer) for i in range(parts + 1))


@dataclass(frozen=True, init=False)
class Partition:
    """How an array is cut into boxes, one for each rank of a mesh.

    Ranks count row by row: the last axis varies fastest.

    Args:
        shape: of the whole array.
        mesh: sizes of the mesh axes by name; {} is one rank.
        split: for each array axis the mesh axis that cuts it, several of them (the first varies slowest),
            or None. Default: mesh axis i cuts array axis i.
        bounds: {array axis: (0, ..., n)} where the cuts are not `cuts(n, parts)`.
        partial: mesh axes over which the value is the sum of what the ranks hold.

    Raises:
        LayoutError: the mesh has no such axis, an axis cuts twice, or bounds do not fit.
    """

    shape: Shape
    mesh: Mapping[str, int]
    split: Sequence[Split]
    bounds: Mapping[int, Sequence[int]]
    partial: Sequence[str]

    def __init__(
        self,
        shape: int | Sequence[int],
        mesh: Mapping[str, int],
        split: Sequence[Split] | None = None,
        bounds: Mapping[int, Sequence[int]] = MappingProxyType({}),
        partial: Sequence[str] = (),
    ) -> None:
        # In the order in which one thing needs the other: shape, mesh, split (which mesh axes cut which array
        # axis), bounds (where they cut). Frozen, hence vars.
        vars(self).update(shape=_whole(shape), mesh=_whole_mesh(mesh))
        split = _names_of_axes("split", split)
        vars(self).update(partial=tuple(_names_of_axes("partial", partial)))
        vars(self).update(split=self._chosen_split(split))
        if not isinstance(bounds, Mapping):
            raise LayoutError(f"bounds is {bounds!r}", hint="{axis: cuts}")
        self._check_axes(bounds)
        for axis in range(len(self.shape)):
            self._check_bounds(axis, bounds)
        vars(self).update(bounds={int(a): tuple(b) for a, b in bounds.items()})

    def _chosen_split(self, split: Sequence[Split] | None) -> tuple[Split, ...]:
        """split as given, or: mesh axis i cuts array axis i."""
        axes = len(self.shape)
        if split is None:
            free = [name for name in self.mesh if name not in self.partial]
            return (*free[:axes], *([None] * (axes - len(free))))
        if len(split) != axes:
            what = f"split {tuple(split)} has {len(split)} entries, the shape {self.shape} {axes} axes"
            raise LayoutError(what, hint="one entry per array axis: a mesh axis, several, or None")
        return tuple(split)

    def _check_axes(self, bounds: Mapping[int, Sequence[int]]) -> None:
        """A mesh axis cuts one array axis, or is partial, or (if it is in neither) holds copies."""
        used = [name for axes in self.axes for name in axes] + list(self.partial)
        wrong = sorted({name for name in used if name not in self.mesh or used.count(name) > 1})
        if wrong:
            what = f"mesh axes {wrong} do not exist or are used twice; the mesh has {dict(self.mesh)}"
            raise LayoutError(what, hint="each mesh axis cuts one array axis at most, or is partial")
        strange = [axis for axis in bounds if axis not in range(len(self.shape))]
        if strange:
            what = f"bounds cut axes {strange}, the shape {self.shape} has {len(self.shape)}"
            raise LayoutError(what, hint="{axis: cuts}")

    def _check_bounds(self, axis: int, bounds: Mapping[int, Sequence[int]]) -> None:
        n, parts = self.shape[axis], self.grid[axis]
        given = integers(bounds.get(axis, cuts(n, parts)), f"bounds of axis {axis}")
        if len(given) != parts + 1 or given[0] != 0 or given[-1] != n or list(given) != sorted(given):
            what = f"bounds {given} do not cut the {n} indices of axis {axis} into {parts} parts"
            hint = f"{parts + 1} ascending numbers from 0 to {n}, such as {cuts(n, parts)}"
            raise LayoutError(what, hint=hint)

    # -- shape of the thing -------------------------------------------------------------------------
    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.mesh.values())

    @property
    def ndim(self) -> int:
        """The number of array axes."""
        return len(self.shape)

    @cached_property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each array axis the mesh axes that cut it."""
        return tuple(() if s is None else (s,) if isinstance(s, str) else tuple(s) for s in self.split)

    @cached_property
    def grid(self) -> Shape:
        """The number of parts along each array axis."""
        return tuple(math.prod(self.mesh[name] for name in axes) for axes in self.axes)

    @cached_property
    def replicated(self) -> tuple[str, ...]:
        """Mesh axes along which the ranks hold the same."""
        used = {name for axes in self.axes for name in axes} | set(self.partial)
        return tuple(name for name in self.mesh if name not in used)

    @cached_property
    def edges(self) -> tuple[Shape, ...]:
        """The cuts along each array axis."""
        return tuple(
            tuple(self.bounds.get(a, cuts(n, p)))
            for a, (n, p) in enumerate(zip(self.shape, self.grid, strict=True))
        )

    @cached_property
    def _axis_strides(self) -> dict[str, int]:
        strides, step = {}, 1
        for name, size in reversed(list(self.mesh.items())):
            strides[name] = step
            step *= size
        return strides

    # -- who owns what ------------------------------------------------------------------------------
    def coords(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank on the mesh."""
        self._check(rank)
        return {name: rank // self._axis_strides[name] % size for name, size in self.mesh.items()}

    def cell(self, rank: int) -> Shape:
        """Number of the part that rank holds, along each array axis."""
        at = self.coords(rank)
        return tuple(self._combination(axes, at) for axes in self.axes)

    def box(self, rank: int) -> Box:
        """The indices that rank holds."""
        return self.cell_box(self.cell(rank))

    def cell_box(self, cell: Shape) -> Box:
        """The indices of one part along each axis."""
        return Box(
            tuple(e[i] for e, i in zip(self.edges, cell, strict=True)),
            tuple(e[i + 1] for e, i in zip(self.edges, cell, strict=True)),
        )

    def summand(self, rank: int) -> int:
        """Which of the partial sums rank holds: 0 if nothing is partial."""
        return self._combination(self.partial, self.coords(rank))

    def _combination(self, axes: Sequence[str], at: Mapping[str, int]) -> int:
        """Which combination of coordinates on these mesh axes at is, the first axis varying slowest."""
        i = 0
        for name in axes:
            i = i * self.mesh[name] + at[name]
        return i

    @property
    def summands(self) -> int:
        """Of how many partial sums a value is made: 1 if nothing is partial."""
        return math.prod(self.mesh[name] for name in self.partial)

    def holders(self, cell: Shape, summand: int = 0) -> list[int]:
        """The ranks that hold a copy of cell (of one partial sum of it), ascending."""
        base = self._axis_offset(self.partial, summand) + sum(
            self._axis_offset(axes, i) for axes, i in zip(self.axes, cell, strict=True)
        )
        copies = range(math.prod(self.mesh[name] for name in self.replicated))
        return [base + self._axis_offset(self.replicated, i) for i in copies]

    def owner(self, index: Sequence[int]) -> int:
        """The first rank that holds index."""
        index = integers(index, "an index")
        if len(index) != self.ndim or not all(0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            what = f"index {index} is not in the shape {self.shape}"
            raise LayoutError(what, hint="one number for each axis")
        return self.holders(tuple(bisect_right(e, i) - 1 for e, i in zip(self.edges, index, strict=True)))[0]

    def is_first(self, rank: int) -> bool:
        """Whether rank is the first holder of its box: each element has exactly one."""
        return self.holders(self.cell(rank))[0] == rank

    def meeting(self, box: Box) -> Iterator[tuple[Shape, Box]]:
        """The cells that share indices with box, in ascending order, and what they share."""
        ranges = []
        for e, a, b in zip(self.edges, box.start, box.stop, strict=True):
            if a >= b:
                return
            ranges.append(range(bisect_right(e, a) - 1, bisect_right(e, b - 1)))
        for cell in product(*ranges):
            common = self.cell_box(cell) & box
            if common.size:
                yield cell, common

    def _axis_offset(self, axes: Sequence[str], i: int) -> int:
        """What the i-th combination of coordinates on these mesh axes adds to a rank."""
        offset = 0
        for name in reversed(axes):
            i, at = divmod(i, self.mesh[name])
            offset += at * self._axis_strides[name]
        return offset

    def _check(self, rank: int) -> None:
        (rank,) = integers([rank], "the rank")
        if not 0 <= rank < self.size:
            raise RankError(f"rank {rank} is not on the mesh {dict(self.mesh)}", hint=f"0 to {self.size - 1}")

    def __str__(self) -> str:
        how = ", ".join("+".join(a) if a else "-" for a in self.axes)
        more = f", partial over {', '.join(self.partial)}" if self.partial else ""
        return f"{self.shape} over {dict(self.mesh)} as ({how}){more}"


@dataclass(frozen=True, eq=False, init=False)
class Points:
    """Arbitrary global indices of the first array axis, each owned by one rank.

    Args:
        shape: of the whole: (number of points, *shape at each point).
        owned: for every rank its global indices, in the order in which it keeps them.
        ghosts: for every rank the indices of points of others that it needs; their values are kept behind
            its own.

    Every rank holds all of these lists: 8 bytes for each point of the whole.

    Raises:
        LayoutError: an index does not exist, or is owned by two ranks or by none.
    """

    shape: Shape
    owned: Sequence[Any]
    ghosts: Sequence[Any]

    def __init__(
        self, shape: int | Sequence[int], owned: Sequence[Any], ghosts: Sequence[Any] | None = None
    ) -> None:
        shape, owned = _whole(shape), _lists(owned)
        ghosts = _lists([[]] * len(owned) if ghosts is None else ghosts)
        vars(self).update(shape=shape, owned=owned, ghosts=ghosts)
        if len(ghosts) != len(owned):
            what = f"owned is given for {len(owned)} ranks, ghosts for {len(ghosts)}"
            raise LayoutError(what, hint="a list of ghosts for every rank, which may be empty")
        times = np.zeros(shape[0], np.int64)
        for indices in (*owned, *ghosts):
            if indices.size and (indices.min() < 0 or indices.max() >= shape[0]):
                what = f"indices from {indices.min()} to {indices.max()} do not fit {shape[0]} points"
                raise LayoutError(what, hint=f"global indices from 0 to {shape[0] - 1}")
        for indices in owned:
            np.add.at(times, indices, 1)
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            raise LayoutError(
                f"{wrong.size} points are not owned exactly once, the first is {wrong[0]} "
                f"({times[wrong[0]]} times)",
                hint="every global index on one rank; what a rank wants of others belongs into ghosts",
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.owned)

    @cached_property
    def _owner(self) -> NDArray[np.int32]:
        owner = np.empty(self.shape[0], np.int32)
        for rank, indices in enumerate(self.owned):
            owner[indices] = rank
        return owner

    def owner(self, index: int) -> int:
        """The rank that owns a global index."""
        (at,) = integers([index], "an index")
        if not 0 <= at < self.shape[0]:
            raise LayoutError(f"index {at} is none of {self.shape[0]} points")
        return int(self._owner[at])

    def owners(self, indices: AnyArray) -> NDArray[np.int32]:
        """The rank that owns each of the global indices."""
        found: NDArray[np.int32] = self._owner[indices]
        return found

    def __str__(self) -> str:
        return f"{self.shape}, points over {self.size} ranks"


def _lists(given: Sequence[Any]) -> tuple[NDArray[np.int64], ...]:
    """The indices of every rank."""
    if not hasattr(given, "__iter__"):
        raise LayoutError(f"indices are {given!r}", hint="for every rank a list of global indices")
    return tuple(map(_numbers, given))


def _numbers(indices: object) -> NDArray[np.int64]:
    refuse_masked(indices, "global indices are")
    given = np.asarray(indices).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise LayoutError(f"global indices of dtype {given.dtype}", hint="integers")
    return given.astype(np.int64, copy=False)
