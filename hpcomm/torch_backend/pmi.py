"""The part of an MPI launcher, where torchrun started the ranks, or a user did: PMI-1, which MPICH speaks.

A small server process (this module, run by rank 0) tells each rank its number and keeps the keys that the
ranks exchange while MPI comes up. torch's own store, which env:// tells of, carries its address round.
Open MPI speaks PMIx only and needs its own launcher.

    client                              server
    cmd=init pmi_version=1 ...          cmd=response_to_init rc=0 ...
    cmd=put kvsname=k key=a value=b     cmd=put_result rc=0 msg=success
    cmd=barrier_in                      cmd=barrier_out, once all ranks are in
    cmd=get kvsname=k key=a             cmd=get_result rc=0 msg=success value=b
    cmd=finalize                        cmd=finalize_ack

Source: MPICH's PMI-1 (Balaji et al., "PMI: a scalable parallel process-management interface", 2010).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

from ..errors import ConfigError

__all__ = ["join", "serve"]

_ACCEPT_S = 120.0  # for all ranks to connect
_kept: list[Any] = []  # the store: without torchrun it ends with rank 0's half of it


def join() -> None:
    """Set the environment from which MPI learns this rank's number. All ranks call it.

    Raises:
        ConfigError: the MPI at hand needs its own launcher.
    """
    size = int(os.environ["WORLD_SIZE"])
    if not _is_mpich():
        raise ConfigError(
            f"no MPI launcher started these {size} ranks (WORLD_SIZE), and this MPI needs its own launcher",
            "init_process_group",
            f"mpirun -n {size} python ..., or hpcomm run -n {size} python ..., or pip install mpich",
        )
    rank = int(os.environ["RANK"])
    store = _store()
    _kept.append(store)
    if rank == 0:
        store.set("hpcomm/pmi", _start_server(size, int(os.environ.get("LOCAL_WORLD_SIZE", size))))
    address = store.get("hpcomm/pmi").decode()
    os.environ.update(PMI_PORT=address, PMI_ID=str(rank), PMI_RANK=str(rank), PMI_SIZE=str(size))


def _is_mpich() -> bool:
    """Which MPI mpi4py will load, asked of a process of its own, since asking brings MPI up."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "MPICH" in done.stdout


def _store() -> Any:
    """The store that torchrun's agent serves, or rank 0 at MASTER_PORT."""
    from .names import dist

    return next(dist.rendezvous("env://"))[0]


def _start_server(size: int, per_node: int) -> str:
    """Begin the server in a process of its own: MPI comes up without letting threads run. Its address."""
    host = "127.0.0.1" if per_node == size else socket.gethostname()
    code = f"from hpcomm.torch_backend.pmi import serve; serve({size}, {per_node})"
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert server.stdout is not None
    return f"{host}:{int(server.stdout.readline())}"


class _Space:
    """What the ranks put and get, and where they wait for each other."""

    def __init__(self, size: int, per_node: int) -> None:
        nodes = -(-size // per_node)
        self.size = size
        self.keys = {"PMI_process_mapping": f"(vector,(0,{nodes},{per_node}))"}
        self.barrier = threading.Barrier(size)


def serve(size: int, per_node: int) -> None:
    """Print a port and serve the ranks until all of them have gone."""
    with socket.create_server(("", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        listening.settimeout(_ACCEPT_S)
        space = _Space(size, per_node)
        threads = [
            threading.Thread(target=_serve_rank, args=(listening.accept()[0], space), daemon=True)
            for _ in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _serve_rank(connection: socket.socket, space: _Space) -> None:
    with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as file:
        try:
            for line in file:
                words = dict(word.partition("=")[::2] for word in line.split())
                for answer in _answers(words, space):
                    file.write(answer + "\n")
                file.flush()
                if words.get("cmd") == "finalize":
                    return
        except (OSError, threading.BrokenBarrierError):
            pass
        finally:
            if space.barrier.n_waiting:
                space.barrier.abort()


def _answers(words: dict[str, str], space: _Space) -> list[str]:
    command = words.get("cmd", "")
    if command == "initack":
        rank = words["pmiid"]
        return ["cmd=initack", f"cmd=set size={space.size}", f"cmd=set rank={rank}", "cmd=set debug=0"]
    if command == "barrier_in":
        space.barrier.wait()
        return ["cmd=barrier_out"]
    if command == "put":
        space.keys[words["key"]] = words["value"]
        return ["cmd=put_result rc=0 msg=success"]
    if command == "get":
        value = space.keys.get(words["key"])
        if value is None:
            return ["cmd=get_result rc=-1 msg=key_not_found value=unknown"]
        return [f"cmd=get_result rc=0 msg=success value={value}"]
    return _FIXED.get(command, "").format(size=space.size).splitlines()


_FIXED = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
    "get_appnum": "cmd=appnum appnum=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname=hpcomm",
    "get_universe_size": "cmd=universe_size size={size}",
    "finalize": "cmd=finalize_ack",
}
