"""Communicator: ranks that can talk.

Its verbs stand in its base classes: collectives.py, reductions.py, p2p.py, objects.py, ragged.py and so on.
Here is what makes other communicators of one. What all of them work on is its context (context.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from .._lazy import MPI
from ..agree import runtime
from ..core.closing import ClosedByAll
from ..core.html import sheet
from ..errors import UsageError, where
from ..watch import start_up
from .context import Context
from .making import groups, shrunk, spawned
from .mpi4py_names import Mpi4pyNames, fill_names, spelt
from .payloads import pickling
from .payloads.objects import Objects
from .payloads.ragged import Ragged
from .settings import Settings, require_known
from .shared_array import SharedArrays
from .verbs.collectives import Collectives
from .verbs.extremes import Extremes
from .verbs.p2p import Messages
from .verbs.persistent import Plans
from .verbs.probes import Probes
from .verbs.reductions import Reductions
from .verbs.same import Same
from .verbs.sendrecv import SendRecv
from .windows import Windows

if TYPE_CHECKING:
    import os

    from ..core.operation import Observer
    from .mesh import Mesh
    from .pools import Workers
    from .topology import Cart, Graph


class Communicator(
    Mpi4pyNames, Same, Collectives, Extremes, Messages, SendRecv, Probes, Objects, Ragged, Plans, Windows,
    SharedArrays, ClosedByAll,
):  # fmt: skip
    """A group of ranks that can send messages to each other.

    Made from an mpi4py communicator. That one is duplicated, so that messages of hpcomm never meet the
    program's own. Collective over its ranks.

    Attributes:
        rank, size: this rank's number among the ranks of this communicator, and how many there are.
        name: shown in errors.
        mpi: the mpi4py communicator that this one uses, for what only MPI can do.
        is_inter, remote_size: whether it joins two groups, and how many ranks the other one has.
        check: level of agreement checking: "off", "light", "full", "values" or "strict" (see docs/errors.md).
        order: of reductions of floats, "rank" or "fast" (see docs/reproducible.md).
        timeout: seconds after which a blocking call or a wait raises WaitTimeoutError; None: for ever.
        is_closed: whether it was given back to MPI.
        context: what hpcomm's own layers share of it; not for programs.

    gpu= forces a path for device arrays, here and on all communicators made of this one: see docs/gpu.md.

    On an inter-communicator the operations mean what MPI says. all_reduce gives each group the other group's
    result. If a call has a root, the root itself passes root=hpcomm.ROOT, and the other ranks of its group
    pass hpcomm.PROC_NULL. The ranks of the other group pass the root's rank.
    """

    def __init__(
        self, mpi: MPI.Comm, name: str | None = None, check: str | None = None, *, gpu: str | None = None,
        pickler: object = None,
    ) -> None:  # fmt: skip
        if not isinstance(mpi, MPI.Comm) or mpi == MPI.COMM_NULL:
            what = f"{mpi!r} is no communicator of mpi4py"
            hint = "its dup() makes another one" if isinstance(mpi, Communicator) else "MPI.COMM_WORLD, say"
            raise UsageError(what, where("Communicator", None), hint)
        require_known(check, gpu)
        settings = Settings(check, gpu, pickling.chosen(pickler))
        start_up.start()
        self.context = groups.mapped(None, "Communicator", lambda: Context(mpi.Dup(), name, settings))
        fill_names(self)

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def size(self) -> int:
        return self.context.size

    @property
    def name(self) -> str:
        return self.context.name

    @name.setter
    def name(self, name: str) -> None:
        self.context.name = name

    @property
    def is_inter(self) -> bool:
        return self.context.is_inter

    @property
    def remote_size(self) -> int:
        return self.context.remote_size

    @property
    def check(self) -> str:
        return self.context.check

    @property
    def is_closed(self) -> bool:
        return self.context.is_closed

    @property
    def mpi(self) -> MPI.Comm:
        """The mpi4py communicator underneath.

        Whoever has it may send on it, unseen by hpcomm: so from the first look at it on, messages of this
        rank may have elements of any type.
        """
        if self.context.message_kinds is not None:
            self.context.message_kinds.open()
        return self.context.mpi_handle

    @property
    def timeout(self) -> float | None:
        """Seconds that a blocking call, or a wait without a timeout of its own, may take; None: for ever.

        Then it raises WaitTimeoutError. A receive is taken back; what else was begun stays under way, so
        other ranks may still come to it. Within a node that holds for four collectives of up to 4 KiB. A
        fifth, or a longer one, that is given up before they came is withdrawn, and they get PeerFailedError
        there. Communicators made of this one take it over. Set it on all ranks alike: ranks that differ raise
        MismatchError, unless check is "off".
        """
        return self.context.timeout_s

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self.context.check_open("timeout")
        is_time = isinstance(seconds, Real) and not isinstance(seconds, bool) and seconds > 0
        if seconds is not None and not is_time:
            what = f"timeout must be a number of seconds above 0, not {seconds!r}"
            raise UsageError(what, where("timeout", self), "None: for ever")
        self.context.limit(seconds)

    @property
    def order(self) -> str:
        """In which order floats are reduced where MPI does it: "rank", or "fast".

        "rank" is the order of ranks, within nodes and then between them: the same bits whatever way a call
        takes. "fast" is what the MPI library takes for quickest. Communicators made of this one take it over.
        Set it on all ranks alike: ranks that differ raise MismatchError, unless check is "off".
        """
        return "fast" if self.context.is_fast else "rank"

    @order.setter
    def order(self, order: str) -> None:
        self.context.check_open("order")
        if order not in ("rank", "fast"):
            raise UsageError(f"there is no order {order!r}", where("order", self), '"rank" or "fast"')
        self.context.reduce_fast(order == "fast")

    # -- mpi4py's spellings ------------------------------------------------------------------------
    bcast = spelt("bcast", Collectives.broadcast)
    allreduce = spelt("allreduce", Reductions.all_reduce)
    allgather = spelt("allgather", Collectives.all_gather)
    alltoall = spelt("alltoall", Collectives.all_to_all)
    reduce_scatter_block = Reductions.reduce_scatter
    Barrier = Collectives.barrier

    def Get_rank(self) -> int:  # noqa: N802  the spelling is the point
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Get_name(self) -> str:  # noqa: N802
        return self.name

    def Split(self, color: int = 0, key: int = 0) -> Communicator | MPI.Comm:  # noqa: N802
        """As split, but who is in no part (MPI.UNDEFINED) gets MPI.COMM_NULL, as of mpi4py."""
        return self.split(None if color == MPI.UNDEFINED else color, key) or MPI.COMM_NULL

    def Dup(self) -> Communicator:  # noqa: N802
        return self.dup()

    def Free(self) -> None:  # noqa: N802
        self.close()

    def Abort(self, errorcode: int = 1) -> None:  # noqa: N802
        """End the whole job at once with this exit status."""
        runtime.abort("Abort was called", errorcode)

    # -- more communicators ------------------------------------------------------------------------
    @overload
    def split(self, color: int, key: int = 0, name: str | None = None) -> Communicator: ...
    @overload
    def split(self, color: int | None, key: int = 0, name: str | None = None) -> Communicator | None: ...
    @overload
    def split(self, *, colour: int, key: int = 0, name: str | None = None) -> Communicator: ...
    @overload
    def split(self, *, colour: int | None, key: int = 0, name: str | None = None) -> Communicator | None: ...
    def split(
        self, color: Any = ..., key: int = 0, name: str | None = None, *, colour: Any = ...
    ) -> Communicator | None:
        """Divide the ranks: those of one color form a communicator, ordered by key, then rank.

        Collective. Same as MPI_Comm_split.

        Args:
            color: number from 0, or a truth value; None: this rank is in no part and gets None. colour is
                the same.
        """
        if (color is ...) is (colour is ...):
            raise TypeError("split() takes one color")
        made = groups.split(self.context, colour if color is ... else color, key, name)
        return None if made is None else over(made)

    def split_node(
        self, name: str | None = None, *, key: int = 0,
        by: Literal["node", "numa", "socket", "cache", "core"] = "node",
    ) -> Communicator:  # fmt: skip
        """The ranks that share this node's memory, or a part of the node, ordered by key, then rank.

        Collective. Same as MPI_Comm_split_type(SHARED), or by hardware.

        Args:
            by: the part: a NUMA domain, a socket, the largest cache, or a core. Ranks that are not bound to
                one are with those that may run in the same ones. Where the system does not tell: the node.
        """
        return over(groups.split_node(self.context, name, key, by))

    def group(self, ranks: Sequence[int], name: str | None = None, tag: int = 0) -> Communicator:
        """A communicator of some ranks, in the order given; called by those ranks only.

        Same as MPI_Comm_create_group. Members that make several groups at once tell them apart by tag.

        Raises:
            RankError: a rank does not exist, is named twice, or this rank is not among them.
        """
        return over(groups.group(self.context, ranks, name, tag))

    def dup(
        self, name: str | None = None, check: str | None = None, *, gpu: str | None = None,
        pickler: object = None,
    ) -> Communicator:  # fmt: skip
        """A second communicator of the same ranks, whose messages never meet those of this one. Collective.

        Args:
            name: of the new one, shown in errors.
            check: its level of agreement (docs/errors.md); None: this one's.
            gpu: the path of device arrays there: "auto", or one of docs/gpu.md, which is forced.
            pickler: a module, or its name, that pickles objects there and on communicators made of it.
                cloudpickle takes lambdas and classes of __main__. None: as here.

        Raises:
            ConfigError: there is no such path, or pickler.
            MismatchError: the ranks name different ones.
        """
        return over(groups.dup(self.context, name, check, gpu=gpu, pickler=pickler))

    def shrink(self, name: str | None = None) -> Communicator:
        """A communicator of the ranks that live, in their order; called by all of them.

        For jobs that go on when a rank is killed (`hpcomm run --survive`). It begins with revoke(). Same as
        MPIX_Comm_shrink.

        Raises:
            ConfigError: the job does not go on when a rank is killed.

        Example:
            >>> try:
            ...     comm.all_reduce(x, out=x)
            ... except hpcomm.PeerFailedError:
            ...     comm = comm.shrink()
        """
        return over(shrunk.shrink(self.context, name))

    def agree(self, flag: bool) -> bool:
        """Whether all ranks say so and live. All that live get the same answer, also after revoke().

        Collective. Same as MPIX_Comm_agree; where the job does not survive, as MPI_Allreduce.
        """
        return shrunk.agree(self.context, flag)

    def revoke(self) -> None:
        """Give this communicator up: calls of other ranks on it end with PeerFailedError, now and later.

        Called by any rank. Same as MPIX_Comm_revoke. agree and shrink still work.

        Raises:
            ConfigError: the job does not go on when a rank is killed.
        """
        shrunk.revoke(self.context)

    def create_intercomm(
        self, local_leader: int, peer: Communicator, remote_leader: int, tag: int = 0,
        name: str | None = None,
    ) -> Communicator:  # fmt: skip
        """Join this group with another one. Collective over both. Same as MPI_Intercomm_create.

        Args:
            local_leader: rank of this communicator that speaks for it.
            peer: communicator in which both leaders are ranks.
            remote_leader: the other group's leader, as rank of peer.

        Raises:
            RankError: there is no such leader.
            UsageError: peer is no Communicator.
        """
        there: Any = getattr(peer, "context", peer)
        return over(groups.create_intercomm(self.context, local_leader, there, remote_leader, tag, name))

    def merge(self, high: bool = False, name: str | None = None) -> Communicator:
        """Make one group of an inter-communicator's two; the group that gives high=True comes second."""
        return over(groups.merge(self.context, high, name))

    def spawn(
        self, program: str | os.PathLike[str] | Sequence[str], ranks: int, *, name: str = "spawned",
        timeout: float = 60.0,
    ) -> Communicator:  # fmt: skip
        """Start a program of Python on new ranks, and return an inter-communicator with them.

        Collective. Same as MPI_Comm_spawn. On the new ranks hpcomm.parent() is that inter-communicator. The
        new ranks have a world of their own, the launcher's environment and rank 0's working directory. After
        close() either side may end before the other.

        Args:
            program: a file, or a file and its arguments, or "-m", a module and its arguments.
            name: of the new ranks, shown in errors.
            timeout: seconds until all must be there. After that the job ends, because MPI's call cannot be
                interrupted.

        Raises:
            ConfigError: there is no such file, or the launcher of this job cannot start more ranks.
            UsageError: program or ranks has another type.
            MismatchError: the ranks name different ones.
            TransportError: MPI could not start them.

        Example:
            >>> with comm.spawn("worker.py", 2) as workers:
            ...     done = workers.all_gather_object(comm.rank)
        """
        return over(spawned.spawn(self.context, program, ranks, name, timeout))

    def pool(
        self, root: int = 0, *, progress: bool = False, initializer: Callable[..., object] | None = None,
        initargs: Iterable[object] = (),
    ) -> Workers:  # fmt: skip
        """Let all ranks but root work for root: `with comm.pool() as pool: if pool: pool.map(f, items)`.

        Collective. Root gets a Pool; the others work until the block of root ends, and get None. One rank
        alone works for itself, in a thread.

        Args:
            root: the rank that submits.
            progress: let map say on stderr how many tasks are done.
            initializer, initargs: each worker calls root's initializer(*initargs) before its first task. If
                that fails, the pool is broken, as an Executor of Python's.

        Raises:
            RankError: root is no rank. UsageError: initializer cannot be called or pickled.
            An exception of a task is root's, with the traceback on its rank.
        """
        from .pools import Workers

        return Workers(self, root, progress=progress, begin=(initializer, initargs))

    def mesh(
        self, axes: Mapping[str, int] | None = None, /, *, periodic: Iterable[str] = (),
        order: Literal["rank", "node"] = "rank", **sizes: int,
    ) -> Mesh:  # fmt: skip
        """The ranks on named axes: comm.mesh(dp=2, tp=2). Collective.

        Args:
            axes: {name: size} instead of keywords; -1 as size: as many ranks as are left, evenly.
            periodic: names of axes that close to rings.
            order: "rank": row by row as comm numbers them; "node": renumbered so that the ranks of a node
                sit side by side along the last axes.

        Raises:
            LayoutError: the sizes do not hold all ranks; the message has sizes that would.
        """
        from .mesh import mesh

        return mesh(self.context, axes, sizes, periodic, order)

    def cart(
        self, shape: Sequence[int], periodic: bool | Sequence[bool] = False, *, reorder: bool = False,
        name: str | None = None,
    ) -> Cart:  # fmt: skip
        """The ranks on a grid, with neighbour operations. Collective. Same as MPI_Cart_create.

        Args:
            shape: ranks along each axis; -1: as many as there are left, evenly.
            periodic: whether the axes close to rings: one answer, or one per axis.
            reorder: ranks may be numbered anew, so that those of a node form a compact tile.

        Raises:
            LayoutError: the shape does not hold all ranks; the message has shapes that would.
        """
        from .topology import cart

        return cart(self.context, shape, periodic, reorder=reorder, name=name)

    def graph(
        self, destinations: Sequence[int], sources: Sequence[int] | None = None, *, name: str | None = None
    ) -> Graph:
        """The ranks as nodes of a directed graph, with neighbour operations. Collective.

        Same as MPI_Dist_graph_create_adjacent.

        Args:
            destinations: the ranks that this one speaks to; one may stand there several times.
            sources: the ranks that this one hears from; None: found by asking everybody, then ascending.

        Raises:
            RankError: a rank that does not exist.
            MismatchError: an edge that one of its two ranks names more often than the other. All ranks raise.
        """
        from .topology import graph

        return graph(self.context, destinations, sources, name=name)

    def as_process_group(self) -> Any:
        """A process group of torch.distributed with these ranks. The first call is collective.

        hpcomm.from_torch is the way back.
        """
        import hpcomm

        self.context.check_one_group("as_process_group")
        return hpcomm.as_process_group(self)  # the door of a layer above this one

    # -- looking on, and the end ---------------------------------------------------------------------
    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call observer.before(call) and observer.after(call) at every call. Returns a function to stop.

        While there is an observer, calls take the general path, which costs some microseconds.
        """
        self.context.check_open("observe")
        if not all(callable(getattr(observer, name, None)) for name in ("before", "after")):
            raise UsageError(
                f"{observer!r} is no observer", where("observe", self), "before(call), after(call)"
            )
        return self.context.observe(observer)

    def close(self) -> None:
        """Give the communicator back to MPI. Collective. A second close does nothing.

        Calls that are under way on it may still be waited for; its plans can no longer be started.
        """
        self.context.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"communicator '{self.name}' cannot be pickled or copied: it is one of this process only",
            hint="dup() makes another one on all ranks; leave it out of what is sent (__getstate__)",
        )

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<Communicator '{self.name}', closed>"
        return f"<Communicator '{self.name}', rank {self.rank} of {self.size}>"

    def _repr_html_(self) -> str:
        if self.is_closed:
            return sheet(f"Communicator '{self.name}'", [("state", "closed")])
        other = [("other group", f"{self.remote_size} ranks")] if self.is_inter else []
        ranks = [("this rank", f"{self.rank} of {self.size}"), *other]
        return sheet(f"Communicator '{self.name}'", [*ranks, ("compared", self.check)])


C = TypeVar("C", bound=Communicator)


@overload
def over(context: Context) -> Communicator: ...
@overload
def over(context: Context, kind: type[C]) -> C: ...
def over(context: Context, kind: type[Communicator] = Communicator) -> Communicator:
    """A communicator of this kind, for users to hold."""
    made = object.__new__(kind)
    made.context = context
    fill_names(made)
    return made
