"""How the ranks of torch.distributed find each other: MPI knows, and a Store is made over it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..needs import load_mpi

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["by_launcher_alone", "over_mpi", "store", "world"]

_LAUNCHED = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT")
_STORE_S = 300.0  # for a key of the store
_world: Communicator | None = None
_announced = False  # whether what env:// reads is of our making


def by_launcher_alone() -> bool:
    """Whether an MPI launcher started this process, and nobody has set what env:// reads."""
    told = "RANK" in os.environ and "WORLD_SIZE" in os.environ and not _announced
    return not told and any(name in os.environ for name in _LAUNCHED)


def world() -> Communicator:
    """The ranks of the job, a communicator that all process groups descend from. Collective at first use.

    Raises:
        ConfigError: the environment promises more ranks than MPI has, or MPI cannot be loaded.
    """
    global _world
    if _world is None or _world._closed:
        _join_without_launcher()
        from ..communicator import Communicator

        MPI = load_mpi("init_process_group")  # noqa: N806
        _check_size(MPI.COMM_WORLD.size)
        _world = Communicator(MPI.COMM_WORLD, "torch", check="off")
    return _world


def _join_without_launcher() -> None:
    """Under torchrun there is no MPI launcher: its part is played here, where the MPI allows it."""
    if any(name in os.environ for name in _LAUNCHED) or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return
    if "mpi4py.MPI" not in sys.modules:
        from . import pmi

        pmi.join()


def _check_size(size: int) -> None:
    promised = os.environ.get("WORLD_SIZE")
    if promised is not None and size == 1 and int(promised) != 1:
        raise ConfigError(
            f"the environment says WORLD_SIZE={promised}, but MPI was started for one rank",
            "init_process_group",
            f"mpirun -n {promised} python ..., or hpcomm run -n {promised} python ...",
        )


def store(comm: Communicator, timeout: timedelta | None = None) -> Any:
    """A TCPStore of the ranks of comm: rank 0 serves, its address goes round over MPI. Collective."""
    from .names import dist

    timeout = timeout or timedelta(seconds=_STORE_S)
    node = comm.split_node()
    one_node = node.size == comm.size
    node.close()
    served = None
    if comm.rank == 0:
        host = "127.0.0.1" if one_node else os.environ.get("MASTER_ADDR") or _own_address()
        served = dist.TCPStore(host, 0, comm.size, True, timeout, False)
    address = comm.broadcast_object((served.host, served.port) if served is not None else None)
    _announce(comm, *address)
    return served or dist.TCPStore(*address, comm.size, False, timeout, False)


def _own_address() -> str:
    """An address that other nodes reach: the one from which this host would speak to the outside."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; TEST-NET-1 (RFC 5737)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def over_mpi() -> Iterator[tuple[Any, int, int]]:
    """torch's rendezvous: (store, rank, world_size), from MPI alone."""
    comm = world()
    yield store(comm), comm.rank, comm.size


def _announce(comm: Communicator, host: str, port: int) -> None:
    """Set what libraries above torch.distributed read from the environment, where nobody has."""
    global _announced
    if "RANK" in os.environ and not _announced:
        return
    node = comm.split_node()
    found = {
        "RANK": comm.rank,
        "WORLD_SIZE": comm.size,
        "LOCAL_RANK": node.rank,
        "LOCAL_WORLD_SIZE": node.size,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    node.close()
    os.environ.update({name: str(value) for name, value in found.items()})
    _announced = True
