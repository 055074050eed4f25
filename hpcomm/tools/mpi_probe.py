"""MPI's own facts, asked from inside a rank, in a process that the doctor can afford to lose."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from .._lazy import MPI
from ..job import process_role
from ..job.cores import THREADS, core_names
from ..job.installation import loaded_library

ANSWER = "hpcomm-probe "  # begins the line that holds the answer
_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
Mpi = dict[str, Any]  # what probe() tells


def probe() -> None:
    """Bring MPI up, look around together with all ranks, and print it as a line of JSON on rank 0."""
    process_role.check_library("hpcomm doctor")
    from mpi4py import MPI

    from ..transport.device.cuda_aware import says

    world = MPI.COMM_WORLD
    threads = re.match(r"\d+", os.environ.get(THREADS, ""))
    mine = {"cores": sorted(core_names()), "threads": threads and int(threads[0])}
    everyone = world.allgather({"host": MPI.Get_processor_name(), **mine})
    paths, gpus = _devices(world, [each["host"] for each in everyone])
    lacks, readable = zip(*_meet(world), strict=True)
    if world.rank == 0:
        vendor, version = MPI.get_vendor()
        about = {
            "vendor": vendor,
            "version": ".".join(map(str, version)),
            "standard": ".".join(map(str, MPI.Get_version())),
            "library": loaded_library(),
            "threads": _THREAD_LEVELS[MPI.Query_thread()],
            "size": world.size,
            "reads_memory_of_peers": None if set(readable) == {None} else False not in readable,
            "reads_cuda_memory": says(vendor, MPI.Get_library_version()),
            "device_paths": paths,
            "gpus": gpus,  # which one a rank takes for itself; None: it has none, or MPS shares it
            "core_lacks": lacks,  # why a rank has no node core, and what to do
            "ranks": everyone,
        }
        print(ANSWER + json.dumps(about), flush=True)


def _meet(world: MPI.Intracomm) -> list[tuple[tuple[str, str] | None, bool | None]]:
    """Let all ranks talk through hpcomm: its settings and its own shared memory are tried, too.

    For each rank, why its node has no core and what to do; None: it has, or this rank is alone there. And
    whether ranks there read one another's memory; None: that was not tried.
    """
    from ..communicator.communicator import Communicator
    from ..node import native, segment

    with Communicator(world, name="doctor") as comm, comm.split_node() as node:
        total = comm.all_reduce(1)
        if total != comm.size:
            raise RuntimeError(f"error: all_reduce of ones gives {total} on {comm.size} ranks")
        lack: native.Lack | None = None
        if node.context.node is None and node.size > 1:
            lack = native.lack(segment.current, node.size)
        if {*node.all_gather_object(lack)} != {lack} and lack == native.refused:
            lack = None  # there is none because another rank has none, and that one says why
        there = segment.current if node.size > 1 else None
        return world.allgather((lack, there and there.direct))


def _devices(world: MPI.Intracomm, hosts: list[str]) -> tuple[list[str] | None, list[str | None]]:
    """For each rank, which path a large broadcast on devices takes and why no better one (None: no device);
    and which GPU it takes where it is dealt the next one of its host, if MPS does not share that.
    """
    from ..device import driver

    if not world.allreduce(driver.possible()):
        return None, []
    from ..communicator.communicator import Communicator
    from ..device.kernels import Bytes
    from ..errors import HpcommError

    gpu = None
    try:
        known = driver.driver()
        device = known.device(hosts[: world.rank].count(hosts[world.rank]) % max(known.count(), 1))
        # NVIDIA's Multi-Process Service runs here if its daemon listens at a pipe of this name.
        has_mps = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
        gpu = None if has_mps else device.identity().hex()
        block, why = Bytes(device.allocate(_TRIED), _TRIED), ""
    except HpcommError as error:
        block, why = None, error.what
    gpus: list[str | None] = world.allgather(gpu)
    whys: list[str] = world.allgather(why)
    if any(whys) or block is None:
        return whys, gpus
    with Communicator(world, name="doctor") as comm, comm.plan("broadcast", block, out=block) as step:
        return [str(each) for each in world.allgather(step.explain().partition(": ")[2])], gpus


_TRIED = 4 << 20  # bytes
