"""Cartesian and graph topologies: who is whose neighbour, and which rank sits where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import compress
from sys import intern
from typing import Any

from .._lazy import MPI, np, once
from ..agree.agreement import refusing
from ..core.checksum import mixed
from ..core.partition import integers
from ..core.request import Pending
from ..core.types import Spec
from ..errors import LayoutError, MismatchError, RankError, UsageError, where
from ..transport.late import transport
from .communicator import Communicator, over
from .context import Context
from .making.groups import agreed, channel, made, mapped
from .verbs.neighbour_collectives import NeighbourCollectives


class Topology(NeighbourCollectives, Communicator):
    """A communicator whose ranks have neighbours.

    Attributes:
        sources: the ranks that this one hears from in a neighbour operation; hpcomm.PROC_NULL: nobody there.
        destinations: the ranks that it speaks to.
    """


class Cart(Topology):
    """Ranks on a grid, row by row.

    Attributes:
        shape: ranks along each axis.
        periodic: whether each axis closes to a ring.
        coords: coordinates of this rank.
    """

    shape: tuple[int, ...]
    periodic: tuple[bool, ...]

    @once
    def coords(self) -> tuple[int, ...]:
        return self.coords_of(self.rank)

    @once
    def sources(self) -> tuple[int, ...]:
        return tuple(rank for axis in range(len(self.shape)) for rank in self.shift(axis))

    @once
    def destinations(self) -> tuple[int, ...]:
        return self.sources

    def coords_of(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a rank."""
        (rank,) = integers([rank], "the rank")
        if not 0 <= rank < self.size:
            raise RankError(f"rank {rank} is not on the grid", hint=f"0 to {self.size - 1}")
        return tuple(int(i) for i in np.unravel_index(rank, self.shape))

    def rank_at(self, coords: Sequence[int]) -> int:
        """The rank at coords; periodic axes wrap; hpcomm.PROC_NULL beyond the end of another."""
        coords = integers(coords, "coords")
        if len(coords) != len(self.shape):
            raise RankError(f"coords {coords} do not fit the grid {self.shape}", hint="one for each axis")
        wrapped = [c % n if ring else c for c, n, ring in zip(coords, self.shape, self.periodic, strict=True)]
        if any(not 0 <= c < n for c, n in zip(wrapped, self.shape, strict=True)):
            return MPI.PROC_NULL
        rank = 0
        for c, n in zip(wrapped, self.shape, strict=True):
            rank = rank * n + c
        return rank

    def shift(self, axis: int, step: int = 1) -> tuple[int, int]:
        """(source, dest) for sending step ranks along axis. Same as MPI_Cart_shift."""
        (axis,), (step,) = self._axes([axis], "shift"), integers([step], "the step")
        below, above = list(self.coords), list(self.coords)
        below[axis] -= step
        above[axis] += step
        return self.rank_at(below), self.rank_at(above)

    def sub(self, axes: Sequence[int] | Sequence[bool], name: str | None = None) -> Cart:
        """The grid over some axes that this rank is on. Collective. As MPI_Cart_sub.

        Args:
            axes: their numbers; or a bool for each axis, as MPI's remain_dims (where [1, 0] means the first).
        """
        comm = self.context
        comm.check_open("sub")
        flags = list(axes) if hasattr(axes, "__iter__") else []
        if len(flags) == len(self.shape) and all(isinstance(flag, (bool, np.bool_)) for flag in flags):
            axes = [axis for axis, keep in enumerate(flags) if keep]
        kept = self._axes(axes, "sub")
        keep = [axis in kept for axis in range(len(self.shape))]
        like, cut = ("sub", *kept), comm.carriers.plain.Sub  # type: ignore[attr-defined]
        with agreed(comm, "sub", keep, like, axes=axes) as spare:
            name = name or f"{self.name}{list(axes)}"
            new = made(comm, "sub", name, cut, keep, kept=spare)
        shape, rings = compress(self.shape, keep), compress(self.periodic, keep)
        return _as_cart(new, tuple(shape), tuple(rings))

    def _axes(self, axes: Sequence[int], verb: str) -> tuple[int, ...]:
        hint = f"numbers of axes: 0 to {len(self.shape) - 1}"
        named = integers(axes, "the list of axes")
        if any(isinstance(axis, bool) for axis in (axes if hasattr(axes, "__iter__") else [axes])) or not all(
            0 <= axis < len(self.shape) for axis in named
        ):
            raise UsageError(f"the grid {self.shape} has no axes {axes!r}", where(verb, self), hint)
        return named

    def _outward(self) -> Sequence[int]:
        return [i ^ 1 for i in range(len(self.destinations))]  # what goes up comes from below

    def _begun(self, name: str, ends: tuple[Spec, Spec]) -> list[Pending]:
        """On rings of one or two ranks both neighbours are one, and Open MPI 5.0 mixes up their blocks."""
        if not any(ring and n < 3 for ring, n in zip(self.periodic, self.shape, strict=True)):
            return super()._begun(name, ends)
        (out, count, kind), (received, _, _) = ends
        mpi, number, _ = channel(self.context)
        places = range(len(self.sources))
        ours = out.reshape(len(places), -1) if name.endswith("alltoall") else [out] * len(places)
        theirs = received.reshape(len(places), -1)
        # what goes out at place i comes in at the place of the other direction, in the order of places
        return [
            *(mpi.Irecv([theirs[i], count, kind], self.sources[i], number) for i in places),
            *(mpi.Isend([ours[i ^ 1], count, kind], self.destinations[i ^ 1], number) for i in places),
        ]


class Graph(Topology):
    """Ranks joined by directed edges; sources and destinations are in the order they were given."""


def cart(
    comm: Context,
    shape: Sequence[int],
    periodic: bool | Sequence[bool] = False,
    *,
    reorder: bool = False,
    name: str | None = None,
) -> Cart:
    """As Communicator.cart."""
    comm.check_one_group("cart")
    with refusing("cart", comm):
        sizes = fill_in(comm.size, shape)
        given: Any = periodic
        answers = list(given) if hasattr(given, "__iter__") else [given] * len(sizes)
        plain = [each.item() if isinstance(each, np.generic) else each for each in answers]
        rings = tuple(map(bool, integers(plain, "periodic")))
        if len(rings) != len(sizes):
            raise LayoutError(
                f"periodic {rings} does not fit the {len(sizes)} axes of {sizes}",
                hint="True, False, or one of them for each axis",
            )
    what = sizes, rings, bool(reorder)
    like = ("cart", *what)
    with agreed(comm, "cart", what, like, shape=shape, periodic=periodic) as kept:
        order = node_order(nodes_of(comm), sizes, tiles=True) if reorder and kept.spare is None else None
        place = order.index(comm.rank) if order is not None else None
        create = partial(_made, comm, "cart", "Create_cart", place)
        name = name or f"{comm.name}.cart"
        new = made(comm, "cart", name, create, list(sizes), list(rings), False, kept=kept)
    return _as_cart(new, sizes, rings)


def _made(comm: Context, verb: str, create: str, place: int | None, *arguments: object) -> MPI.Comm:
    """A topology that MPI makes of comm's ranks; place: of this rank there, None: all keep theirs.

    Of a communicator that has a topology Open MPI 5.0 makes one with both, and mixes up their neighbours.
    """
    base: Any = comm.carriers.plain
    is_plain = place is None and base.Get_topology() == MPI.UNDEFINED
    bare = base if is_plain else mapped(comm, verb, base.Split, 0, comm.rank if place is None else place)
    made: MPI.Comm = mapped(comm, verb, getattr(bare, create), *arguments)
    if not is_plain:
        bare.Free()
    return made


def graph(
    comm: Context,
    destinations: Sequence[int],
    sources: Sequence[int] | None = None,
    *,
    name: str | None = None,
) -> Graph:
    """As Communicator.graph."""
    comm.check_one_group("graph")
    with refusing("graph", comm):
        destinations = integers(destinations, "the list of destinations")
        sources = None if sources is None else integers(sources, "the list of sources")
        for rank in (*destinations, *(sources or ())):
            if not 0 <= rank < comm.size:
                raise RankError(f"rank {rank} does not exist", hint=f"a rank from 0 to {comm.size - 1}")
        if comm.size == 1 and sources is not None and len(sources) != len(destinations):
            raise UsageError(
                f"{len(destinations)} edges of the only rank go out, and {len(sources)} come in",
                hint="sources that are as often 0 as destinations are, or None",
            )
    with agreed(comm, "graph", sources is None, destinations=destinations, sources=sources):
        if sources is None:
            times = np.bincount(np.asarray(destinations, int), minlength=comm.size).astype(np.int32)
            heard = np.empty(comm.size, np.int32)
            getattr(comm.mpi_handle, transport.function_of(comm, "all_to_all"))(times, heard)
            sources = tuple(int(r) for r in np.repeat(np.arange(comm.size), heard))
        else:
            _check_edges(comm, destinations, sources)
        create = partial(_made, comm, "graph", "Create_dist_graph_adjacent", None)
        ends = list(sources), list(destinations)
        new = over(made(comm, "graph", name or f"{comm.name}.graph", create, *ends), Graph)
        new.sources, new.destinations = sources, destinations
        return new


def _check_edges(comm: Context, destinations: Sequence[int], sources: Sequence[int]) -> None:
    """Compare the edges that go out with those that come in, by the sums of a hash of each.

    Only where they differ all ranks tell all, so that the error can name an edge.
    """
    left = np.array([_hashed(comm.rank, destinations) - _hashed(sources, comm.rank) & 2**64 - 1], np.uint64)
    comm.mpi_handle.Allreduce(MPI.IN_PLACE, left)
    if not left[0]:
        return
    named, theirs = (
        np.bincount(np.asarray(ranks, int), minlength=comm.size) for ranks in (destinations, sources)
    )
    sent = np.empty_like(named)
    comm.mpi_handle.Alltoall(named, sent)
    wrong = [(int(r), comm.rank, int(sent[r]), int(theirs[r])) for r in np.flatnonzero(sent != theirs)[:1]]
    source, dest, out, back = comm.mpi_handle.allreduce(min(wrong, default=(comm.size, 0, 0, 0)), MPI.MIN)
    raise MismatchError(
        f"the lists of a graph contradict each other: rank {source} names rank {dest} {_times(out)} as a "
        f"destination, and rank {dest} names rank {source} {_times(back)} as a source",
        where("graph", comm),
        "comm.graph(destinations) alone finds the sources",
    )


def _times(n: int) -> str:
    return {0: "not at all", 1: "once"}.get(n, f"{n} times")


def _hashed(source: int | Sequence[int], dest: int | Sequence[int]) -> int:
    """The sum of hashes of edges, modulo 2**64."""
    x = np.atleast_1d(np.asarray(source, np.uint64) << np.uint64(32) | np.asarray(dest, np.uint64))
    return int(mixed(x + np.uint64(0x9E3779B97F4A7C15)).sum())


def _as_cart(made: Context, shape: tuple[int, ...], periodic: tuple[bool, ...]) -> Cart:
    grid = over(made, Cart)
    grid.shape, grid.periodic = shape, periodic
    return grid


def fill_in(size: int, shape: Sequence[int]) -> tuple[int, ...]:
    """shape with its -1 replaced so that it holds size ranks.

    Raises:
        LayoutError: impossible.
    """
    shape = integers(shape, "the shape")
    known, is_open = math.prod(n for n in shape if n != -1), -1 in shape
    valid = all(n == -1 or n > 0 for n in shape)
    if not valid or (size % known if is_open else size != known):
        would = " ".join(map(str, fitting_shapes(size, shape)))
        raise LayoutError(
            f"the shape {shape} does not hold {size} ranks" + f" but {known}" * (not is_open),
            hint=f"{would}; -1 stands for as many as are left" if shape else f"an axis: ({size},)",
        )
    return tuple(MPI.Compute_dims(size, [max(n, 0) for n in shape])) if is_open else shape


def fitting_shapes(size: int, shape: Sequence[int], most: int = 6) -> list[tuple[int, ...]]:
    """Shapes of as many axes that hold size ranks, those next to shape first."""

    def factors(n: int, axes: int) -> list[tuple[int, ...]]:
        if axes <= 1:
            return [(n,) * axes] if axes or n == 1 else []
        return [(d, *rest) for d in range(1, n + 1) if n % d == 0 for rest in factors(n // d, axes - 1)]

    def distance(candidate: tuple[int, ...]) -> float:
        pairs = zip(candidate, shape, strict=True)
        return sum(abs(math.log(c / n)) if n > 0 else 0.0 for c, n in pairs)

    return sorted(factors(size, len(shape)), key=distance)[:most]


def nodes_of(comm: Context) -> list[str]:
    """The name of every rank's node; one string for all ranks of a node."""
    own = MPI.Get_processor_name().encode()
    width = 255 - comm.bytewise_min(bytes([255 - len(own)]))[0]
    everyone = bytearray(width * comm.size)
    comm.mpi_handle.Allgather([own.ljust(width, b"\0"), MPI.BYTE], [everyone, MPI.BYTE])
    names = (everyone[at : at + width].rstrip(b"\0").decode() for at in range(0, len(everyone), width))
    return [intern(name) for name in names]


def node_order(nodes: Sequence[str], shape: Sequence[int], tiles: bool = False) -> list[int]:
    """Which rank sits at each place of a grid, row by row, so that those of a node sit together.

    Args:
        nodes: the node of every rank.
        tiles: nodes take compact tiles, which have the least surface, if all have as many ranks and a
            tile fits; otherwise, and without tiles, they follow each other along the last axes.
    """
    first = {node: i for i, node in reversed(list(enumerate(nodes)))}
    by_node = sorted(range(len(nodes)), key=lambda r: (first[nodes[r]], r))
    counts = {*Counter(nodes).values()}
    if not tiles or len(first) < 2 or len(counts) > 1:
        return by_node
    tile = _tile(counts.pop(), shape)
    if tile is None:
        return by_node
    places = np.arange(len(nodes)).reshape([k for n, t in zip(shape, tile, strict=True) for k in (n // t, t)])
    outer, inner = range(0, 2 * len(tile), 2), range(1, 2 * len(tile), 2)
    order = [0] * len(nodes)
    for place, rank in zip(places.transpose(*outer, *inner).reshape(-1), by_node, strict=True):
        order[int(place)] = rank
    return order


def _tile(n: int, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The tile of n places that divides shape and has the least surface."""
    fit = [
        tile
        for tile in fitting_shapes(n, [1] * len(shape), most=n**3)
        if all(s % t == 0 for s, t in zip(shape, tile, strict=True))
    ]
    # an axis that the tile spans whole has no surface to another node
    return min(
        fit,
        key=lambda t: (sum(n / a for a, s in zip(t, shape, strict=True) if a != s), max(t)),
        default=None,
    )
