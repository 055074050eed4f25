"""Coupled field: values that a program gives or takes, on this rank, and which points they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from ..core.buffer import Buffer, as_buffer, refuse_masked
from ..core.checksum import of_rows
from ..device.libraries import LIBRARIES, library_of
from ..errors import DtypeError, HpcommError, LayoutError, UsageError
from ..transport.device.host_copy import from_host, to_host
from .route import coupled_route

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import TypeVar

    from ..core.types import AnyArray, Ints
    from ..grids.grid import Grid
    from .spec.spec_file import FieldSpec

    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    A = TypeVar("A")


class Field(Generic[A]):
    """A coupled field. Program.gives and Program.takes return it.

    Attributes:
        name: the field's.
        values: this rank's values, shape (points, ...), in the program's own memory. May be replaced.
        points: their global indices, shape (points,).
        kind: dtype of the elements, as hpcomm names it.
        dtype: numpy dtype of the messages; for half types an integer of as many bits.
        shape: of the values at one point.
        grid: the grid that has these points, for mappings. None: indices mean the same on both sides.
        areas: of its cells, as the program has them, shape (points,). None: as the grid's.
        bases: the directions of a vector's components, shape (points, 2, 2). None: east and north.
        wish: what the program says of a field that it takes; None: it gives it.
    """

    wish: FieldSpec | None = None

    def __init__(
        self,
        name: str,
        values: A,
        points: ArrayLike,
        grid: Grid | None,
        verb: str,
        areas: ArrayLike | None = None,
        bases: ArrayLike | None = None,
    ) -> None:
        self.name = name
        self.values = values
        self.grid = grid
        shape = tuple(getattr(values, "shape", ()))
        if not shape:
            what = f"the values of field {name!r} have no axis of points: they are a {type(values).__name__}"
            hint = "an array of shape (points, ...), as numpy.asarray(values) makes one of a list"
            raise LayoutError(what, verb, hint)
        self.points = _indices(name, points, verb)
        if len(self.points) != shape[0]:
            what = f"field {name!r} has {len(self.points)} points here, but values of shape {shape}"
            raise LayoutError(what, verb, "one row of values for each point")
        check_grid(self, verb)
        self.areas: NDArray[np.float64] | None = None
        if areas is not None:
            from ..grids.grid import checked_areas

            self.areas = checked_areas(areas, len(self.points), f"the areas of field {name!r}", verb)
        self.bases: NDArray[np.float64] | None = None
        if bases is not None:
            from ..grids.vectors import checked_bases

            self.bases = checked_bases(bases, len(self.points), f"the bases of field {name!r}", verb)
        look = _looked_at(name, values, verb)
        self.kind = look.dtype
        self.dtype = np.dtype(look.dtype.storage) if look.place is not None else look.array.dtype
        self.shape = shape[1:]
        self._verb, self._plain_dtype = verb, getattr(values, "dtype", None)

    def own_checksum(self) -> int:
        """What this rank adds to the checksum of the values of all ranks."""
        return of_rows(host(self.values), self.points.astype(np.uint64), 0, width_of(self))

    def __repr__(self) -> str:
        return f"<Field '{self.name}', {len(self.points)} points here, {self.dtype}>"


class MemberField(Field[A]):
    """One member's part of a field whose first axis behind the points is that of members: values[:, n]."""

    def __init__(self, whole: Field[A], number: int) -> None:
        vars(self).update(vars(whole), name=f"{whole.name}_{number:04}", shape=whole.shape[1:])
        del vars(self)["values"]
        self.whole, self._n = whole, number - 1
        self._parted: tuple[Any, Any] = None, None

    @property
    def values(self) -> A:  # type: ignore[override]  # they are the whole field's
        now: Any = self.whole.values
        if self._parted[0] is not now:  # the program has replaced them
            check_values(self.whole, now)
            self._parted = now, now[:, self._n]
        part: A = self._parted[1]
        return part


class Load:
    """What travels of a field in memory of its own: of another dtype, joined, or still to be mapped."""

    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values = name, values

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])


def check_values(field: Field, values: object) -> None:
    """Refuse values of another shape or kind than those that were declared, where they are set anew."""
    shape, wanted = tuple(getattr(values, "shape", ())), (len(field.points), *field.shape)
    if shape != wanted:
        what = f"the values of field {field.name!r} now have the shape {shape}"
        raise LayoutError(what, "put or get", f"shape {wanted}, as when it was declared")
    if getattr(values, "dtype", None) == field._plain_dtype:
        return
    kind = _looked_at(field.name, values, field._verb).dtype
    source, target = (kind, field.kind) if field._verb == "gives" else (field.kind, kind)
    is_numpys = not {"h", "q"} & {kind.kind, field.kind.kind}
    fits = is_numpys and np.can_cast(source.storage, target.storage, "same_kind")
    if kind != field.kind and not fits:
        what = f"the values of field {field.name!r} are now {kind}, and it was declared as {field.kind}"
        raise DtypeError(what, "put or get", f"values of {field.kind}")


def check_grid(field: Field, verb: str) -> None:
    """That the grid has these points: of points and cells it is this rank's own part."""
    if field.grid is None:
        return
    from ..grids.grid import Grid

    if not isinstance(field.grid, Grid):
        hint = "me.grid(NAME), or hpcomm.regrid.LatLon(...)"
        raise UsageError(f"the grid of field {field.name!r} is {field.grid!r:.60}", verb, hint)
    size = field.grid.size
    if not field.grid.is_own:
        highest = int(field.points.max(initial=-1))
        if highest >= size:
            what = f"field {field.name!r} has a point {highest}, but its grid has {size} points"
            raise LayoutError(what, verb, "indices from 0, row by row: j * nlon + i")
    elif size != len(field.points):
        what = f"field {field.name!r} has {len(field.points)} points here, but its grid has {size}"
        raise LayoutError(what, verb, "coordinates of this rank's own points, in their order")


def _looked_at(name: str, values: object, verb: str) -> Buffer:
    """as_buffer(values), whose errors name the field; what is to be filled must not be read-only."""
    try:
        look = as_buffer(values)
    except HpcommError as error:
        error.what, error.where = f"field {name!r}: {error.what}", verb
        raise
    if verb == "takes" and look.frozen:
        what = f"field {name!r} cannot be filled: its memory {look.frozen}"
        raise LayoutError(what, verb, "an array that can be written")
    return look


def _indices(name: str, points: ArrayLike, verb: str) -> NDArray[np.int64]:
    refuse_masked(points, f"the points of field {name!r} are", verb)
    try:
        found = np.asarray(points)
    except ValueError:  # lists of different lengths
        found = np.empty((0, 0))
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
        what = f"the points of field {name!r} are no list of indices from 0"
        raise DtypeError(what, verb, "points=np.arange(first, last)")
    return np.ascontiguousarray(found, np.int64)


def width_of(field: Field | Load) -> int:
    """Numbers per point."""
    return int(np.prod(field.shape, dtype=np.int64))


def host(values: object) -> AnyArray:
    """values in host memory, half types as their bits: a view, or a copy of what lies on a device."""
    look = as_buffer(values)
    return look.array if look.place is None else to_host(look)  # type: ignore[arg-type]  # a DeviceBuffer


def gather(values: Any, where: coupled_route.Selection, out: AnyArray) -> None:
    """Put the chosen rows of values, which may live on a device, into out, shape (rows, ...)."""
    if isinstance(where, slice) or chooses(values):
        out[...] = host(values[index(values, where)])
    else:
        np.take(host(values), where, axis=0, out=out, mode="clip")


def scatter(values: Any, where: coupled_route.Selection, rows: AnyArray) -> None:
    """Put rows at the chosen places of values, which may live on a device."""
    look = as_buffer(values)
    if look.place is None:
        look.array[where] = rows
    elif isinstance(where, slice):
        from_host(rows, as_buffer(values[where]))
    elif chooses(values):
        there = look.make(rows.shape)
        from_host(rows, there)
        values[index(values, where)] = there.give()
    else:  # a library whose way to choose rows is not known here
        whole = host(values)
        whole[where] = rows
        from_host(whole, look)


def chooses(values: object) -> bool:
    """Whether values lie on a device, in a library that is known to choose rows there."""
    return as_buffer(values).place is not None and library_of(values) in LIBRARIES


def index(values: object, where: coupled_route.Selection) -> Any:
    """Rows as an array takes them in brackets: a range, or indices where the array lies."""
    return where if isinstance(where, slice) else LIBRARIES[library_of(values)].index(values, where)


def length(where: coupled_route.Selection) -> int:
    """How many rows these are."""
    return where.stop - where.start if isinstance(where, slice) else len(where)


def indices(where: coupled_route.Selection) -> Ints:
    """The rows one by one."""
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def copied(values: object) -> object:
    """The same elements in memory of their own on their device, of a library that chooses rows."""
    there = as_buffer(values).place
    assert there is not None
    assert there.pack is not None  # of every such library
    return there.pack()
