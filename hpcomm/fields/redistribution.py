"""Redistribution of arrays from one partition to another: rows to columns, other meshes, other ranks.

Every element goes straight from a rank that holds it to those that are to; nothing meets on a root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._lazy import np
from ..communicator.communicator import Communicator
from ..communicator.making.groups import channel
from ..communicator.shell import watched
from ..core.partition import Box, Partition, Points, integers
from ..errors import DtypeError, LayoutError, RankError, demand, located
from ..transport.endpoints import Rows, memory, set_zero, share_memory
from ..transport.late import buffer, dtypes
from . import routing
from .exchange import Exchange, Moves

_NOTHING_YET: tuple[Any, Any, Any] = (object(), None, None)  # an x that nobody gives


@watched
class Redistribution:
    """A plan that moves arrays from one partition to another; made once, used many times.

    Collective over comm, also for ranks that are in neither. Strided blocks that are copied before they are
    sent need buffers of their size, until close().

    Args:
        source, target: partitions of the same whole.
        source_ranks, target_ranks: the ranks of comm that are the ranks of the partitions; default 0, 1, ...

    Raises:
        LayoutError: the shapes differ.
        RankError: a partition has more ranks than comm.

    Example (a transposition of distribution, 4 ranks):
        >>> rows, columns = Partition((8, 8), {"p": 4}, ("p", None)), Partition((8, 8), {"p": 4}, (None, "p"))
        >>> turn = Redistribution(comm, rows, columns)
        >>> turn(np.ones((2, 8))).shape
        (8, 2)
    """

    def __init__(
        self,
        comm: Communicator,
        source: Partition | Points,
        target: Partition | Points,
        source_ranks: Sequence[int] | None = None,
        target_ranks: Sequence[int] | None = None,
    ) -> None:
        given = "Redistribution(comm, source, target), between two partitions"
        demand(comm, Communicator, "what carries it", "redistribution", given)
        for partition in (source, target):
            demand(partition, (Partition, Points), "a partition", "redistribution", given)
        self.comm, self.source, self.target = comm, source, target
        with located("redistribution", comm):
            comm.context.check_open("redistribution")
            self.source_ranks = list(
                integers(range(source.size) if source_ranks is None else source_ranks, "ranks")
            )
            self.target_ranks = list(
                integers(range(target.size) if target_ranks is None else target_ranks, "ranks")
            )
            used = (*self.source_ranks, *self.target_ranks)
            if not 0 <= min(used) <= max(used) < comm.size:
                raise RankError(
                    f"the partitions use ranks {min(used)} to {max(used)}, the communicator has {comm.size}",
                    hint="a communicator that holds the ranks of both",
                )
            self._route = routing.redistribute(
                source, target, comm.rank, self.source_ranks, self.target_ranks
            )
        self._tag = channel(comm.context).number
        self._device_side: Any = None  # known from the first call on
        self._last: tuple[Any, Any, Exchange] | None = None  # looks at x and out
        self._repeated = _NOTHING_YET  # the user's own x and out of the last call

    @property
    def source_shape(self) -> tuple[int, ...] | None:
        """Shape of x on this rank; None if it is not a rank of the source."""
        ranks, rank = self.source_ranks, self.comm.rank
        return routing.held_shape(self.source, ranks.index(rank)) if rank in ranks else None

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """Shape of the result on this rank; None if it is not a rank of the target."""
        ranks, rank = self.target_ranks, self.comm.rank
        return routing.held_shape(self.target, ranks.index(rank)) if rank in ranks else None

    def __call__(self, x: object = None, *, out: object = None, dtype: object = None) -> Any:
        """Carry it out: give what this rank holds of the source, get what it holds of the target.

        Calls with the same arrays again are quick: their messages are planned already.

        Args:
            x: array of source_shape; None on ranks that are not in the source.
            out: array of target_shape; made if absent.
            dtype: of what arrives, on ranks that have neither x nor out.

        Returns:
            out, None on ranks that are not in the target.

        Raises:
            LayoutError, DtypeError: an array does not have the shape and dtype that are due.
        """
        # The very same arrays as last time: all below was checked then.
        last_x, last_out, exchange = self._repeated
        if x is last_x and out is last_out:
            exchange()
            return out
        with located("redistribution", self.comm):
            look = self._look(x, self.source_shape, "x")
            made = self._made(look, out, dtype)
            self._check(look, made)
        has_gaps = self._sums or self._is_padding  # what arrives is added, or not for all elements
        if made is not None and has_gaps:
            set_zero(memory(made))
        exchange = self._planned(look, made)
        exchange()
        if made is None:
            return None
        if out is not None and not has_gaps:
            self._repeated = (x, out, exchange)
        return made.give()

    def reversed(self) -> Redistribution:
        """The adjoint: from target to source, where copies in the target are added up. Collective."""
        target = self.target
        if isinstance(target, Partition) and target.replicated:
            target = Partition(target.shape, target.mesh, target.split, target.bounds, target.replicated)
        return Redistribution(self.comm, target, self.source, self.target_ranks, self.source_ranks)

    def close(self) -> None:
        """Free the messages and buffers that the last call has prepared."""
        self._repeated = _NOTHING_YET
        if self._last is not None:
            self._last[2].close()
            self._last = None

    @property
    def elements_sent(self) -> int:
        """Elements that leave this rank for another one."""
        inner = int(np.prod(self.source.shape[1:])) if isinstance(self.source, Points) else 1
        return sum(
            (p.here.size if isinstance(p.here, Box) else len(p.here) * inner)
            for p in self._route.sends
            if p.peer != self.comm.rank
        )

    # -- how ------------------------------------------------------------------------------------------
    @property
    def _sums(self) -> bool:
        return isinstance(self.source, Partition) and self.source.summands > 1

    @property
    def _is_padding(self) -> bool:
        """Whether this rank holds a summand that is zero."""
        if not isinstance(self.target, Partition) or self.comm.rank not in self.target_ranks:
            return False
        return self.target.summand(self.target_ranks.index(self.comm.rank)) > 0

    def _look(self, x: object, shape: tuple[int, ...] | None, name: str) -> Any:
        if shape is None:
            return None
        if x is None:
            raise LayoutError(f"this rank holds {shape} of the whole, and gave no {name}")
        look = buffer.as_buffer(x)
        if look.shape != shape:
            raise LayoutError(
                f"{name} has shape {look.shape}, this rank holds {shape}", hint="without the halo"
            )
        return look

    def _made(self, look: Any, out: Any, dtype: object) -> Any:
        shape = self.target_shape
        if shape is None:
            return None
        if out is not None:
            made = self._look(out, shape, "out")
            if made.frozen if made.place is None else made.place.readonly:
                raise LayoutError(f"out {made.frozen}", hint="give an array that can be written")
            return made
        if look is not None:
            return look.make(shape)
        if dtype is None:
            raise DtypeError("this rank brings no array that tells the dtype", hint="dtype=, or out=")
        return buffer.empty(shape, *dtypes.parse(dtype))

    def _check(self, look: Any, made: Any) -> None:
        """Refuse x and out that do not fit together, and an out that cannot hold the sums."""
        if look is not None and made is not None:
            if look.dtype != made.dtype:
                raise DtypeError(f"x holds {look.dtype}, out {made.dtype}", hint="the same for both")
            if (look.place is None) != (made.place is None):
                raise LayoutError(f"x lies on {look.device}, out on {made.device}", hint="both in one place")
            if share_memory(look, made):
                raise LayoutError("x and out overlap in memory", hint="an out of its own")
        if made is not None and self._sums and made.dtype.kind in "hqo":
            raise DtypeError(
                f"partial sums of {made.dtype} cannot be added without loss", hint="float32, and round after"
            )

    def _planned(self, look: object, made: object) -> Exchange:
        if self._last is not None:
            if _same(self._last[0], look) and _same(self._last[1], made):
                return self._last[2]
            self.close()
        sends = [
            (p.peer, _place(self.source, self.source_ranks.index(self.comm.rank), look, p.here))
            for p in self._route.sends
        ]
        receives = [
            (p.peer, _place(self.target, self.target_ranks.index(self.comm.rank), made, p.here))
            for p in self._route.receives
        ]
        add = [i for i, p in enumerate(self._route.receives) if p.sum]
        moves = Moves(sends, receives, add)
        exchange = Exchange(self.comm, moves, self._tag, self._device_side, "redistribution")
        self._device_side = exchange.device_side
        self._last = (look, made, exchange)
        return exchange


def _same(a: Any, b: Any) -> bool:
    """Whether two looks, or Nones, are at the same elements in the same order."""
    if a is None or b is None or a.place is None or b.place is None:
        return a is b or (None not in (a, b) and a.place is b.place and buffer.same_memory(a.array, b.array))
    here, there = a.place, b.place
    return (here.address, here.shape, here.strides, here.dtype) == (
        there.address, there.shape, there.strides, there.dtype
    )  # fmt: skip


def _place(partition: Partition | Points, rank: int, look: Any, region: routing.Region) -> Any:
    """Where region lies in what rank holds."""
    array = memory(look)
    if look.place is not None and not isinstance(region, Box):
        raise LayoutError(
            "points cannot be gathered on a device yet", hint="host arrays, or partitions of boxes"
        )
    if isinstance(partition, Partition):
        box = partition.box(rank)
        if isinstance(region, Box):
            return array[region.slices(box.start) or ...]  # without axes () would be the number
        return Rows(array, region - box.start[0])
    assert not isinstance(region, Box)
    held = partition.owned[rank]
    order = np.argsort(held, kind="stable")
    return Rows(array, order[np.searchsorted(held[order], region)])
