"""Meshes: named axes over ranks, comm.mesh(dp=2, tp=4).

      tp=0 tp=1 tp=2 tp=3
dp=0    0    1    2    3       mesh["tp"]: the 4 ranks of this rank's row
dp=1    4    5    6    7       mesh["dp"]: the 2 ranks of its column
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, count
from typing import Any

from .._lazy import MPI, loaded
from ..agree.agreement import refusing
from ..core.html import grid, sheet
from ..core.partition import integers
from ..errors import ConfigError, LayoutError, RankError, UsageError, counted, demand, where
from .communicator import Communicator, over
from .context import Context
from .making.groups import agreed, made
from .topology import Cart, fill_in, node_order, nodes_of

MOST_DRAWN = 1024  # ranks, in a notebook


class Mesh:
    """Ranks on named axes, row by row: the last axis varies fastest.

    Attributes:
        comm: all ranks of the mesh, numbered by their place.
        shape: {name: size}.
        periodic: names of the axes that close to rings.
        coords: {name: coordinate} of this rank.
    """

    def __init__(self, comm: Communicator, shape: Mapping[str, int], periodic: Iterable[str] = ()) -> None:
        self.comm = comm
        self.shape = dict(shape)
        self.periodic = tuple(periodic)
        self._strides: dict[str, int] = {}
        step = 1
        for name, size in reversed(self.shape.items()):
            self._strides[name] = step
            step *= size
        self.coords = self.coords_of(comm.rank)
        self._nodes = nodes_of(comm.context)
        self._comms: dict[tuple[str, ...], Communicator] = {}
        for name in self.shape:
            self._group((name,))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(self.shape)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.comm.size

    @property
    def rank(self) -> int:
        """Rank of this process in mesh.comm."""
        return self.comm.rank

    def __getitem__(self, names: str | tuple[str, ...]) -> Communicator:
        """The ranks that differ from this one on these axes only, ordered by them.

        Those of single axes are there from the start; the first use of several is collective over their
        ranks, and over no others.
        """
        wanted = tuple(names) if isinstance(names, (tuple, list)) else (names,)
        self._check(wanted)
        if wanted == self.names:
            return self.comm
        if wanted not in self._comms:
            self._group(wanted)
        return self._comms[wanted]

    def sub(self, *names: str) -> Mesh:
        """The mesh over these axes that this rank is on. Collective over its ranks. Same as MPI_Cart_sub."""
        return Mesh(self[names], {n: self.shape[n] for n in names}, [n for n in names if n in self.periodic])

    def coords_of(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank."""
        (rank,) = integers([rank], "the rank")
        if not 0 <= rank < self.comm.size:
            raise RankError(f"rank {rank} is not on the mesh", hint=f"0 to {self.comm.size - 1}")
        return {name: rank // self._strides[name] % size for name, size in self.shape.items()}

    def rank_at(self, **coords: int) -> int:
        """The rank of mesh.comm at these coordinates. For axes left out, this rank's coordinate counts.

        Periodic axes wrap. Beyond the end of another axis it is hpcomm.PROC_NULL.
        """
        self._check(tuple(coords))
        rank = 0
        for name, at in zip(
            self.names, integers({**self.coords, **coords}.values(), "a coordinate"), strict=True
        ):
            if name in self.periodic:
                at %= self.shape[name]
            if not 0 <= at < self.shape[name]:
                return MPI.PROC_NULL
            rank += at * self._strides[name]
        return rank

    def neighbour(self, axis: str, step: int = 1) -> int:
        """The rank of mesh.comm that is `step` further along axis, or hpcomm.PROC_NULL."""
        self._check((axis,))
        (by,) = integers([step], "the step")
        return self.rank_at(**{axis: self.coords[axis] + by})

    neighbor = neighbour  # as MPI spells it

    def describe(self) -> str:
        """A table of the ranks, with their nodes if there are several; this rank is in brackets."""
        names = self.names
        if len(names) > 2:  # axes of one rank stand in the title
            names = (*(n for n in names if self.shape[n] > 1),) or names[-1:]
        nodes = dict(zip(dict.fromkeys(self._nodes), count(), strict=False))
        title = ", ".join(f"{n}={s}{' (ring)' * (n in self.periodic)}" for n, s in self.shape.items())
        lines = [f"mesh {title}: {counted(self.size, 'rank')} on {counted(len(nodes), 'node')}"]
        labels, heads = self._labels(names[-2:-1]), self._labels(names[-1:])
        for base in range(0, self.size, len(labels) * len(heads)):
            if names[:-2]:
                at = self.coords_of(base)
                lines.append(", ".join(f"{n}={at[n]}" for n in names[:-2]))
            lines += self._table(base, labels, heads, nodes)
        if len(nodes) > 1:
            lines.append("nodes: " + ", ".join(f"{'@'}{i} {node}" for node, i in nodes.items()))
        return "\n".join(lines)

    def close(self) -> None:
        """Give back the communicators of all axes, and mesh.comm. Collective."""
        for comm in self._comms.values():
            comm.close()
        self.comm.close()

    def to_torch(self, device_type: str = "cpu") -> Any:
        """The same mesh as torch.distributed.DeviceMesh; torch.distributed must be initialised.

        Raises:
            ConfigError: it is not, or has another number of ranks.
        """
        torch = loaded("torch")
        dist = torch.distributed if torch is not None else None
        if dist is None or not dist.is_initialized() or dist.get_world_size() != self.size:
            raise ConfigError(
                f"there is no process group of torch.distributed with {self.size} ranks",
                "mesh.to_torch",
                "torch.distributed.init_process_group(...) on all ranks first",
            )
        ranks = self.comm.context.mpi_handle.allgather(dist.get_rank())
        grid = torch.tensor(ranks).reshape(tuple(self.shape.values()))
        return dist.device_mesh.DeviceMesh(device_type, grid, mesh_dim_names=self.names)

    def _labels(self, names: Sequence[str]) -> list[str]:
        """What stands at each place of an axis; without one there is a single place."""
        return [f"{name}={i}" for name in names for i in range(self.shape[name])] or [""]

    def _table(
        self, base: int, labels: list[str], heads: list[str], nodes: Mapping[str, int]
    ) -> Iterator[str]:
        wide = len(heads)
        starts = range(base, base + len(labels) * wide, wide)
        cells = [[self._seat(rank, nodes) for rank in range(first, first + wide)] for first in starts]
        left = max(map(len, labels))
        width = max(len(text) for line in [heads, *cells] for text in line)
        for label, line in zip(["", *labels], [heads, *cells], strict=True):
            yield (f"{label:{left}}" + "".join(f"  {text:>{width}}" for text in line)).rstrip()

    def _seat(self, rank: int, nodes: Mapping[str, int]) -> str:
        text = f"[{rank}]" if rank == self.comm.rank else f"{rank}"
        return f"{text}@{nodes[self._nodes[rank]]}" if len(nodes) > 1 else text

    def _group(self, names: tuple[str, ...]) -> None:
        ranks = [0]
        for name in names:
            ranks = [r + i * self._strides[name] for r in ranks for i in range(self.shape[name])]
        base = self.comm.rank - sum(self.coords[n] * self._strides[n] for n in names)
        label = "+".join(names)
        self._comms[names] = self.comm.group([base + r for r in ranks], name=label)

    def _check(self, names: tuple[str, ...]) -> None:
        wrong = [n for n in names if not isinstance(n, str) or n not in self.shape or names.count(n) > 1]
        if wrong:
            raise UsageError(
                f"the mesh has no axis {wrong[0]!r}, or it is named twice",
                "mesh",
                f"one of {', '.join(self.names)}",
            )

    def __repr__(self) -> str:
        return f"<Mesh {self.shape}, rank {self.comm.rank} at {self.coords}>"

    def _repr_html_(self) -> str:
        wide = [*self.shape.values()][-1]
        ranks = [range(first, first + wide) for first in range(0, self.size, wide)]
        size, at = (
            ", ".join(f"{name}={n}" for name, n in each.items()) for each in (self.shape, self.coords)
        )
        rows = [("axes", size), ("this rank", f"{self.comm.rank}, at {at}")]
        here = divmod(self.comm.rank, wide)
        drawing = grid(ranks, here) if self.size <= MOST_DRAWN else ""
        return sheet(f"Mesh of {counted(self.size, 'rank')}", rows, drawing)


def ranks_of(ranks: Mesh | Communicator, verb: str) -> Communicator:
    """The communicator of a Mesh or Communicator.

    Raises:
        UsageError: it is neither.
    """
    demand(ranks, (Mesh, Communicator), "what is to hold the field", verb, "a Mesh or a Communicator")
    made: Communicator = ranks.comm if isinstance(ranks, Mesh) else ranks
    return made


def axes_of(ranks: Mesh | Communicator) -> tuple[dict[str, int], Sequence[str]]:
    """The axes of a mesh, of a grid or of plain ranks, and which of them close to rings."""
    if isinstance(ranks, Mesh):
        return ranks.shape, ranks.periodic
    if isinstance(ranks, Cart):
        names = [f"axis{i}" for i in range(len(ranks.shape))]
        return dict(zip(names, ranks.shape, strict=True)), list(compress(names, ranks.periodic))
    return {"rank": ranks.size}, ()


def mesh(
    comm: Context, shape: Mapping[str, int] | None, sizes: dict[str, int], periodic: Iterable[str], order: str
) -> Mesh:
    """As Communicator.mesh."""
    comm.check_one_group("mesh")
    with refusing("mesh", comm):
        demand(shape or {}, Mapping, "the shape", "mesh", "names for the axes: comm.mesh(y=2, x=-1)")
        wanted = dict(shape or {}) | sizes
        demand(periodic, Iterable, "periodic", "mesh", "names of axes that close to rings: periodic=['x']")
        rings = (periodic,) if isinstance(periodic, str) else tuple(periodic)
        if order not in ("rank", "node"):
            raise UsageError(f"there is no order {order!r}", hint="'rank' or 'node'")
        nameless = [name for name in wanted if not isinstance(name, str)]
        if nameless:
            raise UsageError(f"{nameless[0]!r} is no name of an axis", hint="a string: comm.mesh({'x': -1})")
        strange = [name for name in rings if name not in wanted]
        if strange:
            raise LayoutError(f"periodic names axes {strange} that the mesh {wanted} does not have")
        found = dict(zip(wanted, fill_in(comm.size, tuple(wanted.values())), strict=True))
    name = f"mesh({', '.join(found)})"
    what = found, sorted(set(rings)), order
    with agreed(comm, "mesh", what, shape=shape, sizes=sizes, periodic=rings, order=order):
        if order == "rank":
            return Mesh(over(made(comm, "mesh", name, comm.carriers.plain.Dup)), found, rings)
        place = node_order(nodes_of(comm), tuple(found.values())).index(comm.rank)
        return Mesh(over(made(comm, "mesh", name, comm.carriers.plain.Split, 0, place)), found, rings)


def from_torch(comm: Communicator, device_mesh: Any) -> Mesh:
    """The mesh of a torch DeviceMesh over the ranks of comm. Collective.

    Raises:
        LayoutError: it is over other ranks than comm's.
    """
    grid = getattr(device_mesh, "mesh", None)
    if grid is None:
        what = f"what from_torch was given is of type {type(device_mesh).__name__}"
        raise UsageError(what, where("from_torch", comm), "a torch.distributed.device_mesh.DeviceMesh")
    ranks = [int(r) for r in grid.flatten().tolist()]
    names = device_mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(grid.ndim))
    if sorted(ranks) != list(range(comm.size)):
        raise LayoutError(
            f"the DeviceMesh is over ranks {ranks}, the communicator has {comm.size}",
            where("mesh", comm),
            "a communicator of the same ranks",
        )
    own = comm.split(0, ranks.index(comm.rank), name=f"mesh({', '.join(names)})")
    return Mesh(own, dict(zip(names, grid.shape, strict=True)))
