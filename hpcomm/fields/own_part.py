"""What a rank has of a field: its own elements, where they lie, and which of the whole they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from .._lazy import np
from ..core import checksum
from ..core.partition import Box, Partition, Points
from ..errors import LayoutError, UsageError, where
from ..transport.endpoints import Rows, memory
from ..transport.late import buffer, host_copy
from .routing import Region, halo, held_shape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import EllipsisType

    from numpy.typing import NDArray
    from typing_extensions import TypeVar

    from ..communicator.communicator import Communicator
    from ..core.buffer import Buffer
    from ..core.types import AnyArray

    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    A = TypeVar("A")


class Faces(NamedTuple):
    """(peer, place in memory) of what goes out and of what comes in."""

    sends: list[tuple[int, Any]]
    receives: list[tuple[int, Any]]


class OwnPart(Generic[A]):
    """A rank's part of a field. Field sets these attributes, which are described there."""

    array: A
    comm: Communicator
    look: Buffer
    partition: Partition | Points
    box: Box | None
    name: str
    halo: Any
    periodic: tuple[int, ...]
    corners: bool
    _origin: tuple[int, ...]  # of the box with its halo

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.partition.shape

    @property
    def dtype(self) -> Any:
        """Type of the elements, of the array's own library."""
        array: Any = self.array
        return array.dtype

    @property
    def inner(self) -> A:
        """View of what this rank owns."""
        array: Any = self.array
        own: A = array[self._own()]
        return own

    @property
    def indices(self) -> tuple[NDArray[np.int64], ...]:
        """Global indices of inner, one array for each axis, which broadcast against each other."""
        if isinstance(self.partition, Points):
            return (self.partition.owned[self.comm.rank],)
        assert self.box is not None
        return tuple(np.ogrid[self.box.slices()]) if self.box.start else ()

    def _place(self, region: Region) -> Any:
        """Where a region of this rank's grown box lies in memory."""
        if isinstance(region, Box):
            return memory(self.look)[region.slices(self._origin)]
        points = self.partition
        assert isinstance(points, Points)
        here = np.concatenate([points.owned[self.comm.rank], points.ghosts[self.comm.rank]])
        order = np.argsort(here, kind="stable")
        return Rows(self.look.array, order[np.searchsorted(here[order], region)])

    def _own(self) -> tuple[slice, ...] | slice | EllipsisType:
        if isinstance(self.partition, Points):
            return slice(0, len(self.partition.owned[self.comm.rank]))
        assert self.box is not None
        return self.box.slices(self._origin) or ...  # without axes () would be the number, not its place

    @property
    def owned_shape(self) -> tuple[int, ...]:
        """Shape of inner."""
        return held_shape(self.partition, self.comm.rank)

    def _owned(self) -> Any:
        """inner, as an exchange takes it."""
        buffer.as_buffer(self.array)  # refused where it came to need a gradient
        return memory(self.look)[self._own()]

    @property
    def is_first(self) -> bool:
        """Whether what this rank holds counts: copies count once."""
        return isinstance(self.partition, Points) or self.partition.is_first(self.comm.rank)

    def own_checksum(self, owned: AnyArray | None = None) -> int:
        """What this rank adds to the checksum of the whole, which does not depend on the partition.

        That is the sum of what all ranks return, modulo 2**64.

        Args:
            owned: what this rank owns, if not yet in the field.
        """
        own = (on_host(self) if owned is None else owned).view(self.look.dtype.storage)
        if not own.size or not self.is_first:
            return 0
        if isinstance(self.partition, Points):
            rows = self.partition.owned[self.comm.rank].astype(np.uint64)
            return checksum.of_rows(own, rows, 0, math.prod(self.shape[1:]))
        assert self.box is not None
        start, stop, shape = self.box.start, self.box.stop, self.shape
        if len(shape) < 2:  # one long row would make a table as long as the array; many short ones do not
            rows = np.arange(*(start or [0]), *(stop or [1]), dtype=np.uint64)
            return checksum.of_rows(own, rows, 0, 1)
        rows = np.zeros((1,) * (len(shape) - 1), np.uint64)
        for axis, index in enumerate(self.indices[:-1]):
            rows = rows * np.uint64(shape[axis]) + index[..., 0].astype(np.uint64)
        return checksum.of_rows(own, rows.reshape(-1), start[-1], stop[-1] - start[-1])

    def is_like(self, other: OwnPart[Any]) -> bool:
        """Whether every rank holds the same part of both."""
        a, b = self.partition, other.partition
        if a is b:
            return True
        if isinstance(a, Points) and isinstance(b, Points):
            return (a.shape, a.size) == (b.shape, b.size) and all(map(np.array_equal, a.owned, b.owned))
        if isinstance(a, Points) or isinstance(b, Points):
            return False
        return a == b or [a.box(r) for r in range(a.size)] == [b.box(r) for r in range(b.size)]


def faces(field: OwnPart[Any]) -> Faces:
    """What an exchange of the halo takes from this rank's array and fills in it."""
    buffer.as_buffer(field.array)  # refused where it came to need a gradient
    route = halo(field.partition, field.comm.rank, field.halo, field.periodic, field.corners)
    return Faces(*([(piece.peer, field._place(piece.here)) for piece in side] for side in route))


def on_host(field: OwnPart[Any]) -> AnyArray:
    """What this rank owns, in host memory, in the numpy dtype that the elements are stored in.

    A view; of an array on a device a copy.
    """
    own = field._owned()
    return own if field.look.place is None else host_copy.to_host(buffer.as_buffer(own))  # type: ignore[arg-type]


def from_host(field: OwnPart[Any], data: AnyArray) -> None:
    """Fill inner with an array as on_host gives them."""
    if field.look.place is None:
        field._owned().view(field.look.dtype.storage)[...] = data.view(field.look.dtype.storage)
    else:
        host_copy.from_host(data, buffer.as_buffer(field._owned()))


def check_whole(field: OwnPart[Any], verb: str) -> None:
    """Refuse a partial field, whose values are not there yet."""
    if isinstance(field.partition, Partition) and field.partition.summands > 1:
        what = f"{field!r} is partial: its values are sums yet to be made"
        raise LayoutError(what, where(verb, field.comm), "redistribute it to a partition without partial")


def shared_comm(fields: Sequence[OwnPart[Any]], verb: str, hint: str | None = None) -> Communicator:
    """The communicator of fields, all of them whole.

    Raises:
        UsageError: they are over different ones. LayoutError: one of them is partial.
    """
    comm = fields[0].comm
    if any(field.comm is not comm for field in fields):
        raise UsageError("the fields live on different communicators", where(verb, comm), hint)
    for field in fields:
        check_whole(field, verb)
    return comm
