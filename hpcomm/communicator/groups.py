"""Communicators made of one: split, dup, groups and inter-communicators."""

from __future__ import annotations

import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload
from zlib import crc32

from .._lazy import MPI
from ..agree.agreement import refused
from ..core.limits import REFUSAL_S
from ..core.present import calling
from ..core.request import abandon
from ..core.signature import head, signature
from ..errors import ConfigError, HpcommError, MismatchError, PeerFailedError, RankError, UsageError, where
from ..job import process_role
from ..transport.device.path_choice import PATHS
from ..transport.matching import tag_number
from .block_channel import making, rank_there
from .pickling import Pickler, chosen

if TYPE_CHECKING:
    from ..node import domains
    from .communicator import Communicator
    from .mesh import Mesh
    from .pools import Workers
    from .topology import Cart, Graph
else:
    from .._lazy import LazyModule

    domains = LazyModule("hpcomm.node.domains")

T = TypeVar("T")

_BETWEEN_TWO = ("send", "isend", "recv", "irecv", "batch", "observe")  # verbs that concern no third rank
LEVELS = ("off", "light", "full")
_MOST = 2**31 - 1
_WHY = 1024  # bytes of what a refusal says to the other group
_NAMED = 16  # ranks that are named one by one


class Settings(NamedTuple):
    """What a communicator takes over from the one that makes it, where it is None: as Communicator has it."""

    check: str | None = None
    gpu: str | None = None
    pickler: Pickler | None = None


INHERITED = Settings()


@overload
def split(comm: Communicator, color: int, key: int = 0, name: str | None = None) -> Communicator: ...
@overload
def split(
    comm: Communicator, color: int | None, key: int = 0, name: str | None = None
) -> Communicator | None: ...
def split(
    comm: Communicator, color: int | None, key: int = 0, name: str | None = None
) -> Communicator | None:
    """Divide the ranks: those of one color form a communicator, ordered by key, then rank.

    Collective. Same as MPI_Comm_split.

    Args:
        color: number from 0, or a truth value; None: this rank is in no part and gets None.
    """
    with calling(comm, "split", color=color, key=key):
        return _split(comm, color, key, name)


def _split(comm: Communicator, color: int | None, key: int, name: str | None) -> Communicator | None:
    comm.check_open("split")
    if color is not None:
        color = _whole(comm, "split", "color", color, 0, "; None leaves this rank out")
    key = _whole(comm, "split", "key", key, -_MOST, ", by which a part is ordered; name=... names the part")
    with agreed(comm, "split"):
        if color is None:
            mapped(comm, "split", comm.mpi_handle.Split, MPI.UNDEFINED, key)
            return None
        return made(comm, "split", name or f"{comm.name}/{color}", comm.mpi_handle.Split, color, key)


def split_node(
    comm: Communicator, name: str | None = None, *, key: int = 0,
    by: Literal["node", "numa", "socket", "cache", "core"] = "node",
) -> Communicator:  # fmt: skip
    """The ranks that share this node's memory, or a part of the node, ordered by key, then rank.

    Collective. Same as MPI_Comm_split_type(SHARED), or by hardware.

    Args:
        by: the part: a NUMA domain, a socket, the largest cache, or a core. Ranks that are not bound to one
            are with those that may run in the same ones. Where the system does not tell: the node.
    """
    comm.check_open("split_node")
    key = _whole(comm, "split_node", "key", key, -_MOST, ", by which the part is ordered")
    if by != "node" and by not in domains.PARTS:
        hint = f"one of node, {', '.join(domains.PARTS)}"
        raise refused(comm, "split_node", UsageError(f"a node has no part {by!r}", hint=hint))
    name = name or f"{comm.name}/{by}"
    with agreed(comm, "split_node", None if by == "node" else by):
        node = made(comm, "split_node", name, comm.mpi_handle.Split_type, MPI.COMM_TYPE_SHARED, key)
    if by == "node":
        return node
    with node:
        places = node.all_gather_object(domains.place(by))
        return node.split(places.index(places[node.rank]), name=name)


def _whole(comm: Communicator, verb: str, name: str, x: Any, least: int, meaning: str) -> int:
    """x as an int that MPI takes: whole numbers and truth values of any library."""
    try:
        number = int(x) if getattr(getattr(x, "dtype", None), "kind", "") == "b" else index(x)
    except (TypeError, ValueError):
        what = f"{name} {x!r} is no whole number"
    else:
        if least <= number <= _MOST:
            return number
        what = f"{name} {x!r} is not from {least} to {_MOST}"
    raise refused(comm, verb, UsageError(what, hint=f"a whole number from {least} on{meaning}")) from None


def group(comm: Communicator, ranks: Sequence[int], name: str | None = None, tag: int = 0) -> Communicator:
    """A communicator of some ranks, in the order given; called by those ranks only.

    Same as MPI_Comm_create_group. Members that make several groups at once tell them apart by tag.

    Raises:
        RankError: a rank does not exist, is named twice, or this rank is not among them.
    """
    comm.check_one_group("group")
    try:
        members = [index(r) for r in ranks]
    except TypeError:
        raise RankError(
            f"{ranks!r} are no ranks", hint=f"numbers from 0 to {comm.size - 1}, such as [0, 1]"
        ).located("group", comm) from None
    wrong = sorted(r for r, times in Counter(members).items() if not 0 <= r < comm.size or times > 1)
    if wrong or comm.rank not in members:
        what = f"rank {comm.rank} is not in {short_list(members)}"
        if wrong:
            what = f"ranks {short_list(wrong)} are no ranks of '{comm.name}', or named twice"
        hint = f"different ranks from 0 to {comm.size - 1}; only members call group"
        raise RankError(what, hint=hint).located("group", comm)
    mpi, number = making(comm, _tag(comm, "group", tag))
    everybody = comm.mpi_handle.Get_group()
    some = everybody.Incl(members)
    everybody.Free()
    try:
        with calling(comm, "group"):
            name = name or f"{comm.name}{short_list(members)}"
            new = made(comm, "group", name, mpi.Create_group, some, number)
    finally:
        some.Free()
    comm.grouped.note(new, (tag, array("i", members).tobytes()))
    return new


def short_list(ranks: list[int]) -> str:
    """`[0, 1]`, or the first and the last of many."""
    return str(ranks) if len(ranks) <= _NAMED else f"[{ranks[0]}, {ranks[1]}, ... {ranks[-1]}]"


def dup(
    comm: Communicator, name: str | None = None, check: str | None = None, *, gpu: str | None = None,
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
    comm.check_open("dup")
    try:
        require_known(check or comm.asked_check, gpu)
        by = chosen(pickler) if pickler is not None else None
    except ConfigError as error:
        raise refused(comm, "dup", error) from None
    with agreed(comm, "dup"):
        make = comm.mpi_handle.Dup if comm.node is None else None
        return made(comm, "dup", name or f"{comm.name}.dup", make, settings=Settings(check, gpu, by))


def create_intercomm(
    comm: Communicator,
    local_leader: int,
    peer: Communicator,
    remote_leader: int,
    tag: int = 0,
    name: str | None = None,
) -> Communicator:
    """Join this group with another one. Collective over both. Same as MPI_Intercomm_create.

    Args:
        local_leader: rank of this communicator that speaks for it.
        peer: communicator in which both leaders are ranks.
        remote_leader: the other group's leader, as rank of peer.

    Raises:
        RankError: there is no such leader.
        UsageError: peer is no Communicator.
    """
    comm.check_one_group("create_intercomm")
    carrier, there = None, MPI.ANY_SOURCE
    try:
        if not isinstance(getattr(peer, "mpi_handle", None), MPI.Comm):
            what, hint = f"peer is {peer!r}, no Communicator", "hpcomm.world, if both groups are parts of it"
            raise UsageError(what, hint=hint)
        peer.check_open("create_intercomm")
        carrier = making(peer, tag_number(peer, tag, sending=True))
        _check_leader(remote_leader, peer)
        there = rank_there(peer, index(remote_leader))
        _check_leader(local_leader, comm)
        with agreed(comm, "create_intercomm", local_leader=local_leader, remote_leader=remote_leader):
            why = _swapped(*carrier, there) if comm.rank == local_leader else None
            why = comm.broadcast_object(why, local_leader)
            if why:
                carrier = None
                what = f"rank {remote_leader} of '{peer.name}' refused its part of create_intercomm: {why}"
                hint = "look at that rank's own error"
                raise PeerFailedError(what, where("create_intercomm", comm), hint, [index(remote_leader)])
            create = comm.mpi_handle.Create_intercomm  # type: ignore[attr-defined]
            name = name or f"{comm.name}<->"
            new = made(comm, "create_intercomm", name, create, local_leader, carrier[0], there, carrier[1])
    except UsageError as error:
        error = refused(comm, "create_intercomm", error)
        if carrier is not None and comm.rank == (local_leader if _is_rank(local_leader, comm) else 0):
            _tell(*carrier, there, error.what)
        raise error from None
    except HpcommError as error:
        if carrier is not None and comm.rank == local_leader:
            _tell(*carrier, there, error.what)
        raise
    theirs = bytearray(8)  # the mark of what the other group has made it of
    own = comm.tag_base.to_bytes(8, "little")
    new.mpi_handle.Allreduce([own, MPI.UINT8_T], [theirs, MPI.UINT8_T], MPI.MIN)
    comm.grouped.note(new, (-1, bytes(theirs)))
    return new


def _is_rank(leader: object, its: Communicator) -> bool:
    return hasattr(leader, "__index__") and 0 <= index(leader) < its.size


def _check_leader(leader: object, its: Communicator) -> None:
    if not _is_rank(leader, its):
        what = f"leader {leader!r} is no rank of '{its.name}'"
        raise RankError(what, hint=f"a rank from 0 to {its.size - 1}")


def _swapped(mpi: MPI.Comm, number: int, there: int) -> str:
    """Why the other group refuses to be joined; "": it does not. Its leader hears that this one comes."""
    said = bytearray(_WHY)
    mpi.Isend([b"", MPI.BYTE], there, number).Free()
    mpi.Recv([said, MPI.BYTE], there, number)
    return said.rstrip(b"\0").decode(errors="ignore")


def _tell(mpi: MPI.Comm, number: int, there: int, why: str) -> None:
    """Tell the other group's leader why this one refuses: the one that is meant, or that comes soon."""
    end, seen = time.monotonic() + REFUSAL_S, MPI.Status()
    while there == MPI.ANY_SOURCE and time.monotonic() < end:
        if mpi.Iprobe(there, number, seen):
            there = seen.source
        time.sleep(1e-3)
    if there != MPI.ANY_SOURCE:
        text, taken = why.encode()[:_WHY], bytearray(_WHY)
        abandon(text, mpi.Isend([text, MPI.BYTE], there, number), mpi.Irecv([taken, MPI.BYTE], there, number))


def merge(comm: Communicator, high: bool = False, name: str | None = None) -> Communicator:
    """Make one group of an inter-communicator's two; the group that gives high=True comes second."""
    comm.check_open("merge")
    if not comm.is_inter:
        raise UsageError("merge needs an inter-communicator", hint="create_intercomm makes one").located(
            "merge", comm
        )
    merge = comm.mpi_handle.Merge  # type: ignore[attr-defined]
    with agreed(comm, "merge", high=high):
        return made(comm, "merge", name or f"{comm.name}+", merge, high)


@contextmanager
def agreed(comm: Communicator, verb: str, what: object = None, **words: object) -> Iterator[None]:
    """While all ranks of comm make something by verb, and name the same what.

    Where the native core has them all, it begins when all have come: then none is inside MPI yet when
    another one refuses its part.

    Args:
        words: arguments of verb, for messages.

    Raises:
        MismatchError: another rank makes another call, or names something else. PeerFailedError: refuses it.
    """
    code, mark, agreement = head(verb), crc32(repr(what).encode()), comm.agreement
    with calling(comm, verb, **words), comm.call_guard:
        if comm.node is not None:
            comm.node.arrive_and_wait(signature(code, mark))
        agreement.enter(code, mark)  # who has left meanwhile stands in the call log
        comm.children.begin(comm)
        yield
        agreement.leave()


def made(
    comm: Communicator,
    verb: str,
    name: str,
    make: Callable[..., MPI.Comm] | None,
    *arguments: object,
    settings: Settings = INHERITED,
    kind: type[Communicator] | None = None,
) -> Communicator:
    """One that MPI makes by make(*arguments), or a duplicate within a node (None).

    kind: its class; None: Communicator.
    """
    mpi = None if make is None else mapped(comm, verb, make, *arguments)
    new = mapped(comm, verb, comm.derive, mpi, name, settings, kind)
    if verb not in ("group", "create_intercomm"):  # not all of its ranks are comm's, or the reverse
        comm.children.add(new)
    return new


def mapped(comm: Communicator | None, verb: str, make: Callable[..., T], *arguments: object) -> T:
    """make(*arguments); MPI has room for so many communicators only."""
    try:
        return make(*arguments)
    except MPI.Exception as error:
        from ..transport.mpi import failure

        raise failure(error, verb, comm) from None


def _tag(comm: Communicator, verb: str, tag: int) -> int:
    try:
        return tag_number(comm, tag, sending=True)
    except UsageError as error:
        raise error.located(verb, comm) from None


def require_known(check: str | None, gpu: str | None) -> str:
    """The level of agreement, from check= or the environment; before anything is made that others wait for.

    Raises:
        ConfigError: there is no such level, or no such path for device arrays.
    """
    level = check or os.environ.get("HPCOMM_CHECK") or "light"
    if level not in LEVELS:
        hint = f"one of {', '.join(LEVELS)} (HPCOMM_CHECK, check=)"
        raise ConfigError(f"there is no check level {level!r}", hint=hint)
    if gpu is not None and gpu not in PATHS:
        raise ConfigError(f"there is no path {gpu!r} for device arrays (gpu=)", hint=f"{', '.join(PATHS)}")
    return level


def check_open(comm: Communicator, verb: str) -> None:
    """Refuse a verb on a communicator that is closed, or whose ranks are out of step.

    Raises:
        UsageError: it is closed, or MPI is finalized.
        MismatchError: its ranks disagreed before.
    """
    if comm.is_closed:
        at = where(verb, comm)
        if MPI.Is_finalized():
            raise UsageError("MPI has been finalized", at, "MPI.Finalize() after the last use of hpcomm")
        process_role.check_process(at)
        raise UsageError(f"communicator '{comm.name}' is closed", at, "use it before close()")
    if comm.disagreed and not verb.startswith(_BETWEEN_TWO):
        raise MismatchError(
            f"the ranks of '{comm.name}' {comm.disagreed}",
            where(verb, comm),
            "make a new communicator of its parent, or HPCOMM_CHECK=full, which tells all ranks in time",
        )


def pool(
    comm: Communicator, root: int = 0, *, progress: bool = False,
    initializer: Callable[..., object] | None = None, initargs: Iterable[object] = (),
) -> Workers:  # fmt: skip
    """Let all ranks but root work for root: `with comm.pool() as pool: if pool: pool.map(f, items)`.

    Collective. Root gets a Pool; the others work until the block of root ends, and get None. One rank alone
    works for itself, in a thread.

    Args:
        root: the rank that submits.
        progress: let map say on stderr how many tasks are done.
        initializer, initargs: each worker calls root's initializer(*initargs) before its first task. If that
            fails, the pool is broken, as an Executor of Python's.

    Raises:
        RankError: root is no rank. UsageError: initializer cannot be called or pickled.
        An exception of a task is root's, with the traceback on its rank.
    """
    from .pools import Workers

    return Workers(comm, root, progress=progress, begin=(initializer, initargs))


def mesh(
    comm: Communicator,
    axes: Mapping[str, int] | None = None,
    /,
    *,
    periodic: Iterable[str] = (),
    order: Literal["rank", "node"] = "rank",
    **sizes: int,
) -> Mesh:
    """The ranks on named axes: comm.mesh(dp=2, tp=2). Collective. See hpcomm.communicator.mesh.mesh."""
    from . import mesh

    comm.check_one_group("mesh")
    return mesh.mesh(comm, axes, periodic=periodic, order=order, **sizes)


def cart(
    comm: Communicator, shape: Sequence[int], periodic: bool | Sequence[bool] = False, *,
    reorder: bool = False, name: str | None = None,
) -> Cart:  # fmt: skip
    """The ranks on a grid, with neighbour verbs. Collective. See hpcomm.communicator.topology.cart."""
    from . import topology

    comm.check_one_group("cart")
    return topology.cart(comm, shape, periodic, reorder=reorder, name=name)


def graph(
    comm: Communicator, destinations: Sequence[int], sources: Sequence[int] | None = None, *,
    name: str | None = None,
) -> Graph:  # fmt: skip
    """The ranks as a directed graph, with neighbour verbs. Collective. See communicator/topology.py."""
    from . import topology

    comm.check_one_group("graph")
    return topology.graph(comm, destinations, sources, name=name)


def as_process_group(comm: Communicator) -> Any:
    """A process group of torch.distributed with these ranks. The first call is collective.

    hpcomm.from_torch is the way back.
    """
    from importlib import import_module

    comm.check_one_group("as_process_group")
    return import_module("hpcomm.torch_backend.bridge").as_process_group(comm)
