"""Rendezvous: how the ranks of torch.distributed find each other, and a Store over MPI.

Arguments, an init_method or the environment may say rank and size, too. Under an MPI launcher MPI's numbers
hold, and a warning names both; without one ranks on one node need no MPI (ranks.py), and others join by them
where the MPI can, or there is an error. One
rank, of which nobody says anything, is a world of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import parse_qs, urlparse

from ..agree import runtime
from ..errors import ConfigError, MissingError, warn
from ..job import pmi_server, process_role
from ..job.optional_packages import load_mpi
from ..job.process_role import RANKS, SIZES
from ..job.torch_variables import variables
from ..node import native, segment
from . import torchrun

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

    from ..communicator.communicator import Communicator
    from .ranks import NodeWorld

OURS = ("mpi", "hpcomm")  # two names of one backend
_TOLD = "HPCOMM_TOLD"  # what of env:// is of our making, inherited by other jobs that a rank starts
_STORE_S = 300.0  # for a key of the store
_world: Communicator | NodeWorld | None = None
_is_over = False  # all that was made of it, in a job that goes on when ranks die
_kept: list[Store] = []  # whose address is in the environment
_groups = count()  # default ones, whose stores may be one


class Told(NamedTuple):
    """Which rank of how many somebody says this process is; None: nobody does. by: who."""

    rank: int | None
    size: int | None
    by: str


def given_numbers(rank: int = -1, size: int = -1, url: str | None = None) -> Told:
    """What arguments say of this process, or else an init_method, or else the environment."""
    query = parse_qs(urlparse(url or "").query)
    there = {} if _is_announced() else os.environ
    sources = (
        (rank, size, "rank= and world_size="),
        (query.get("rank", [-1])[0], query.get("world_size", [-1])[0], f"init_method={url!r}"),
        (there.get("RANK", -1), there.get("WORLD_SIZE", -1), "RANK and WORLD_SIZE"),
    )
    found = [[_number(a, by), _number(b, by)] for a, b, by in sources]
    first_rank, first_size = (next((n for n in column if n >= 0), -1) for column in zip(*found, strict=True))
    by = " or ".join(name for (*_, name), numbers in zip(sources, found, strict=True) if max(numbers) >= 0)
    return Told(first_rank if first_rank >= 0 else None, first_size if first_size >= 0 else None, by)


def _number(word: str | int, by: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{by} say {word!r}, which is no number", "init_process_group") from None


def _is_announced() -> bool:
    """Whether what env:// reads is of our making, here or in the rank that started this process."""
    names = "RANK", "WORLD_SIZE", "MASTER_PORT"
    return os.environ.get(_TOLD) == "/".join(os.environ.get(name, "") for name in names)


def _is_said() -> bool:
    """Whether env:// has a rank and a size by somebody else."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys() and not _is_announced()


def is_launched() -> bool:
    """Whether an MPI launcher started this process, and not a torchrun that it started."""
    return any(name in os.environ for name in RANKS) and "TORCHELASTIC_RUN_ID" not in os.environ


def at_hand() -> bool:
    """Whether this is a rank of a launcher's MPI job, or one that can do without a launcher."""
    size = "" if _is_announced() else os.environ.get("WORLD_SIZE", "")
    if is_launched():
        launched = next((os.environ[name] for name in SIZES if name in os.environ), "")
        return not (size and launched) or size == launched  # else another one started these ranks from a rank
    if not (size and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()):
        return False
    is_near = os.environ.get("LOCAL_WORLD_SIZE") == size and native.core() is not None
    return is_near or torchrun.can()


def by_mpi(is_for_mpi: bool, url: str, rank: int, size: int) -> bool:
    """Whether MPI is to say who is who: env:// says nothing, or mpi's ranks are not what somebody says."""
    if is_for_mpi:
        said = given_numbers(rank, size, url)
        if is_launched():
            return _is_wrong(said, world(said))[1] or url == "env://"
        _refuse_unjoined(said)
    if _is_said() or url != "env://" or not rank == size == -1:
        return False
    if _world is None:
        return is_for_mpi or is_launched()
    return _world.size == 1 or not process_role.is_without_mpi


def world(
    said: Told | None = None, meeting: Callable[[], Store] | None = None, seconds: float = _STORE_S
) -> Communicator | NodeWorld:
    """The ranks of the job, which all process groups descend from. Collective at first use.

    Args:
        said: what all ranks have been told, to be held against MPI; default: the environment, at first use.
        meeting: makes a store of torch's, by which ranks without a launcher find each other.

    Raises:
        ConfigError: MPI has another rank or size than somebody says, or cannot be loaded.
    """
    global _is_over, _world
    if _is_over:  # a launcher has started the job, so that its ranks have MPI
        _world, _is_over = cast("Communicator", _world).shrink(), False
    if _world is None or _world.is_closed:
        said = said or given_numbers()
        if is_launched() or runtime.started():
            _world = _by_mpi()
        elif said.size in (None, 1):
            _world = _alone()
        else:
            refuse_unsaid(said)
            _world = _by_store(said, (meeting or _env_store)(), seconds)
    if said is not None:
        _hold(said, _world)
    return _world


def end() -> None:
    """The default group is destroyed: the next one is of the ranks that live then."""
    global _is_over
    _is_over = segment.survives


def is_up() -> bool:
    """Whether the ranks of the job have found each other."""
    return _world is not None and not _world.is_closed


def _by_mpi() -> Communicator:
    from ..communicator.communicator import Communicator

    mpi = load_mpi("init_process_group")
    runtime.need_threads("torch.distributed")
    return Communicator(mpi.COMM_WORLD, "torch", check="off")


def _alone() -> Communicator | NodeWorld:
    """One rank of which nobody else knows."""
    from .names import dist
    from .ranks import on_one_node

    try:
        return _by_mpi()
    except MissingError:
        found = on_one_node(dist.HashStore(), 0, 1, _STORE_S)
        if isinstance(found, str):
            raise
        return found


def _by_store(said: Told, store: Store, seconds: float) -> Communicator | NodeWorld:
    """Ranks that find each other: on one node without MPI, on several by one that needs no launcher."""
    from .ranks import on_one_node

    process_role.check_process("init_process_group")
    rank, size = said.rank or 0, said.size or 1
    found = on_one_node(store, rank, size, seconds)
    if not isinstance(found, str):
        return found
    if sys.modules.get("mpi4py.MPI"):  # it is up, for one rank
        return _by_mpi()
    torchrun.refuse_others(size, said.by, found)
    torchrun.join(store, rank, size, seconds)
    comm = _by_mpi()
    torchrun.forget()
    comm.barrier()
    return comm


def _refuse_unjoined(said: Told) -> None:
    """See that ranks that no launcher started can join here, before they wait for each other in a store."""
    lack = native.missing()
    if lack is not None and _world is None and not runtime.started() and (said.size or 1) > 1:
        torchrun.refuse_others(said.size or 1, said.by, f"they have no node core: {lack.why}")


def refuse_unsaid(said: Told, url: str | None = None) -> None:
    """See that where no launcher tells the ranks apart, whoever says half of it says all."""
    is_half = (said.rank is None) != (said.size is None) and said.size != 1
    is_place = said.size is None and url not in (None, "env://")
    if not (is_half or is_place) or is_launched() or _world is not None:
        return
    what = f"{said.by} say which rank this is or how many there are, but not both"
    if is_place:
        what = f"init_method={url!r} says where ranks meet, but not which ranks there are"
    raise ConfigError(
        what,
        "init_process_group",
        f"give rank= and world_size=, or start the ranks with mpirun or hpcomm run; {torchrun.GLOO}",
    )


def _env_store() -> Store:
    """The store that torchrun's agent serves, or rank 0 at MASTER_PORT."""
    from .names import dist

    return next(dist.rendezvous("env://"))[0]


def _is_wrong(said: Told, comm: Communicator | NodeWorld) -> tuple[bool, bool]:
    """Whether this rank, and whether any rank is told another rank or size than MPI says. Collective."""
    is_wrong = said.rank not in (None, comm.rank) or said.size not in (None, comm.size)
    return is_wrong, bool(comm.all_reduce(int(is_wrong), "max"))


def _hold(said: Told, comm: Communicator | NodeWorld) -> None:
    """Where a rank is told other numbers than MPI's: a warning under a launcher, else all ranks raise."""
    is_wrong, is_any = _is_wrong(said, comm)
    if not is_any:
        return
    mine = f"{said.size} ranks" if said.rank is None else f"rank {said.rank}"
    if None not in (said.rank, said.size):
        mine += f" of {said.size}"
    others = "the job began as" if process_role.is_without_mpi else "MPI says"
    what = f"{said.by} say {mine}, {others} rank {comm.rank} of {comm.size}"
    if is_launched() or said.size == 0:  # as torch's own recipe for MPI has it
        if is_wrong:
            warn(f"{what}: MPI's numbers hold", UserWarning)
        return
    if not is_wrong:
        raise ConfigError(
            "other ranks were told another rank or size than MPI says",
            "init_process_group",
            "see what they say",
        )
    size = said.size or comm.size
    raise ConfigError(
        what + ": it was started for one rank" * (comm.size == 1),
        "init_process_group",
        f"leave rank and size to MPI: mpirun -n {size} python ..., or hpcomm run -n {size} python ...; "
        f"{torchrun.GLOO}",
    )


def store_of(comm: Communicator | NodeWorld, meeting: Callable[[], Store]) -> Store:
    """A store of all ranks: what they have met by, or one over MPI."""
    from .names import dist

    if not process_role.is_without_mpi:
        return store(comm)  # type: ignore[arg-type]
    mark = f"{comm.mark}/{next(_groups)}"  # type: ignore[union-attr]
    return dist.PrefixStore(mark, meeting()) if comm.size > 1 else dist.HashStore()


def store(comm: Communicator) -> TCPStore:
    """A TCPStore of the ranks of comm: rank 0 serves, its address goes round over MPI. Collective.

    It listens where the ranks are, and nowhere else: on the loopback address if all share a node.
    """
    from .names import dist

    timeout = timedelta(seconds=_STORE_S)
    node = comm.split_node()
    one_node = node.size == comm.size
    node.close()
    served = None
    if comm.rank == 0:
        host = "127.0.0.1" if one_node else os.environ.get("MASTER_ADDR") or torchrun.own_address()
        served = _serve(host, comm.size, timeout)
    address = comm.broadcast_object((served.host, served.port) if served is not None else None)
    _announce(comm, *address)
    return served or dist.TCPStore(*address, comm.size, False, timeout, False)


def _serve(host: str, size: int, timeout: timedelta) -> TCPStore:
    """A TCPStore that listens on host only, where torch's own would on all addresses."""
    from .names import dist
    from .torch_errors import is_since

    listening = pmi_server.listen(host)
    port, number = listening.getsockname()[1], listening.detach()
    # for several tenants, as torch's: RPC's rank 0 serves at MASTER_PORT, too
    serve = partial(dist.TCPStore, host, port, size, True, timeout, False, True, number)
    try:
        return serve(use_libuv=is_since(2, 8))
    except NotImplementedError:  # its newer server could not at first, which torch 2.6 says on stderr, too
        return serve(use_libuv=False)


def over_mpi() -> Iterator[tuple[Store, int, int]]:
    """torch's rendezvous: (store, rank, world_size), from MPI alone."""
    comm = world()
    yield store_of(comm, _env_store), comm.rank, comm.size


def announce() -> None:
    """Set what torchrun sets, from MPI alone, before there is a process group. Collective."""
    _kept.append(store_of(world(), _env_store))


def _announce(comm: Communicator, host: str, port: int) -> None:
    """Set what libraries above torch.distributed read from the environment, where nobody has."""
    if "RANK" in os.environ and not _is_announced():
        return
    node = comm.split_node()
    nodes = comm.scan(int(node.rank == 0))
    at = node.broadcast_object(nodes - 1), comm.broadcast_object(nodes, comm.size - 1)
    near = node.rank, node.size
    node.close()
    os.environ.update(variables(comm.rank, comm.size, near, at, (host, port)))
