"""Ranks of several nodes that torchrun or a user has started: a PMI server plays the MPI launcher's part.

torch's store tells the ranks where the server is. Where all share a node (and have no core), the proof that
they belong to the job does not go that way: any user of the host can read that store, but not a file of ours.
Over several nodes it has to, and HPCOMM_SECRET, a word in the ranks' environment, makes up for that. Open MPI
speaks PMIx only and needs its own launcher.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from ..agree import job_ends, runtime
from ..agree.end_notices import EndNotices
from ..errors import ConfigError, HpcommError
from ..job import installation, own_files, pmi_server, room

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

GLOO = "or init_process_group('gloo'), which needs no MPI; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps hpcomm out"
_AGAIN_S = 0.1  # between attempts to reach a server
_MAY = ("PMI_", "PMIX_")  # variables of a launcher, which has started torchrun and not these ranks
_TOLD = 4096  # bytes from the server that are looked at
_LOOPBACK = ("localhost", "::1")
_kept: list[Any] = []  # the store: without torchrun it ends with rank 0's half of it


def can() -> bool:
    """Whether ranks find each other without a launcher by the MPI at hand; False where that is unknown."""
    library = installation.library_folder()
    return library is not None and installation.vendor_in(library) == "mpich"


def refuse_others(size: int, by: str, why: str) -> None:
    """See that the MPI at hand can join ranks without its launcher.

    Args:
        by: who says that there are so many ranks. why: they need MPI.

    Raises:
        ConfigError: it needs its own launcher.
    """
    if not (can() or _is_mpich()):
        raise ConfigError(
            f"no MPI launcher started these {size} ranks ({by}). They need MPI, as {why}, and this MPI needs "
            "its own launcher",
            "init_process_group",
            f"mpirun -n {size} python ..., or hpcomm run -n {size} python ..., or pip install mpich; {GLOO}",
        )


def join(store: Store, rank: int, size: int, seconds: float) -> None:
    """Set the environment from which MPI learns this rank's number. All ranks call it.

    Args:
        store: torch's, that all ranks have.
        seconds: for all ranks to come.

    Raises:
        ConfigError: not all ranks have come.
    """
    _kept.append(store)
    key = f"hpcomm/pmi/{os.environ.get('TORCHELASTIC_RUN_ID')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}"
    if rank == 0:
        store.set(key, _start_server(store, size, seconds))
    connection, is_near = _connect(store, key, rank, size, seconds)
    forget()
    if is_near:  # by tcp, ranks listen on all interfaces; by posix, UCX crashes where /dev/shm is short
        os.environ.setdefault("UCX_TLS", "^tcp,posix" if room.is_short(size, room.free()) else "^tcp")
    _kept.append(server := connection.dup())
    runtime.looks.append(look := partial(_look_at, server))
    EndNotices.all_hear = True
    runtime.farewells[:0] = [partial(runtime.looks.remove, look), job_ends.await_all]  # as the last of them
    os.environ.update(PMI_FD=str(connection.detach()), PMI_RANK=str(rank), PMI_SIZE=str(size))


def _look_at(server: socket.socket) -> None:
    """End the job if the server has told that a rank of another node has ended before its time."""
    hangs_up = select.poll()
    hangs_up.register(server, getattr(select, "POLLRDHUP", select.POLLHUP))  # not on macOS
    if not hangs_up.poll(0) or runtime.ending is not None:
        return
    who = "a rank"
    with suppress(OSError):
        told = server.recv(_TOLD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        if found := re.search(rb"cmd=lost rank=(\d+)", told):
            who = f"rank {int(found[1])}"
    runtime.abort(f"{who}, on another node, has failed: look at what it printed; so the job ends")


def forget() -> None:
    """Remove what only MPI_Init reads: processes that this one starts are no ranks of the job."""
    for name in [name for name in os.environ if name.startswith(_MAY)]:
        del os.environ[name]


def _is_mpich() -> bool:
    """Which MPI mpi4py will load, asked of a process of its own, since asking brings MPI up."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "MPICH" in done.stdout


def _start_server(store: object, size: int, seconds: float) -> str:
    """What the others need to know of the server, once it is there."""
    secret, file, host = os.urandom(32), None, _address_of(store)
    is_near = _is_loopback(host) or os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    if is_near:
        host = "127.0.0.1"
        made, file = tempfile.mkstemp(prefix="hpcomm-", dir="/dev/shm")
        with os.fdopen(made, "wb") as open_file:
            open_file.write(secret)
    else:
        host = own_address(host)
    space = f"hpcomm_{os.urandom(16).hex()}"
    told = {"host": host, "size": size, "seconds": seconds, "space": space, "file": file}
    port = pmi_server.start({**told, "secret": _with_word(secret).hex()})
    return json.dumps({"host": host, "port": port, "file": file, "secret": None if file else secret.hex()})


def _connect(store: Store, key: str, rank: int, size: int, seconds: float) -> tuple[socket.socket, bool]:
    """A connection to the server that the store tells of, and whether all ranks share a node.

    The store may tell of a server that has ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 1.0)))
            told = json.loads(store.get(key))
            secret = own_files.read(told["file"], 0o077) if told["file"] else bytes.fromhex(told["secret"])
            left = max(deadline - time.monotonic(), 1.0)
            host, port, is_near = str(told["host"]), int(told["port"]), bool(told["file"])
            return pmi_server.connect(host, port, _with_word(secret), rank, size, left), is_near
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # torch's are the last
            if isinstance(error, HpcommError):
                raise
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"rank {rank} of {size} cannot join the others by what the store says: {error}",
                    "init_process_group",
                    "has rank 0 ended? are the ranks the same user's, with the same HPCOMM_SECRET?",
                ) from error
        time.sleep(_AGAIN_S)


def _with_word(secret: bytes) -> bytes:
    return hashlib.sha256(os.environ.get("HPCOMM_SECRET", "").encode() + secret).digest()


def _address_of(store: object) -> str:
    """Where the store is served, "" if it is no server's."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def _is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def own_address(towards: str = "") -> str:
    """An address of this host that other nodes reach: the one from which it would speak to them."""
    for target in (towards, "192.0.2.1"):  # TEST-NET-1 (RFC 5737); nothing is sent
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            if not _is_loopback(found := str(probe.getsockname()[0])):
                return found
    return socket.gethostname()
