"""CUDA-aware MPI: device memory handed to the MPI library, where a trial has shown that it works.

MPI libraries differ in this from operation to operation, and those that cannot die of it. So the library is
asked first what it says of itself, by calls that are safe; then each operation is tried with random data in a
job of its own, which may crash; what came out is kept in a file for that library and driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core.request import Pending, Stages
from ...core.types import AnyArray, Operator
from ...device.arrays import Place
from ...job.installation import loaded_library
from .device_columns import Moved
from .staging import Reached
from .workspace import Workspace

OPERATIONS = (
    "send", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "all_to_all",
    "reduce_scatter", "scan", "exscan",
)  # fmt: skip
LIMIT_S = 60.0  # of a trial
_LINE = "hpcomm-direct "
_FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL", "MPIR_")  # a child job is none of ours
_found: dict[str, str] = {}  # operation -> why it does not work, or ""; empty: not known here yet

Report = Mapping[str, str]


def says(vendor: str, description: str) -> bool | None:
    """Whether this MPI says that it reads CUDA memory; None: it does not say. Never by giving it any.

    MPICH's own query ends the process unless MPI is up and built for it: its configuration is read instead.
    """
    if vendor == "Open MPI":
        query = getattr(ctypes.CDLL(loaded_library()), "MPIX_Query_cuda_support", None)
        return bool(query()) if query else None
    if "--with-cuda" in description:
        return True
    return False if "--without-cuda" in description else None


def decide(said: bool | None, tried: Callable[[], Report]) -> dict[str, str]:
    """For each operation, why it is not to be given device memory, or "". tried is called if it may work."""
    if said is not True:
        why = "says that it does not read CUDA memory" if said is False else "does not say that it reads it"
        return dict.fromkeys(OPERATIONS, f"this MPI {why}")
    report = tried()
    return {name: report.get(name, "was not tried") for name in OPERATIONS}


def rumour(name: str) -> str:
    """Why this MPI is not even to be tried with an operation, or "". Takes no time, unlike evidence()."""
    if not _found:
        said = says(MPI.get_vendor()[0], MPI.Get_library_version())
        return decide(said, lambda: dict.fromkeys(OPERATIONS, ""))[name]
    return _found[name]


def known() -> dict[str, str]:
    """What this process knows already."""
    return _found


def evidence() -> dict[str, str]:
    """What is so here: asked, tried, or read from what an earlier job has found. Takes a minute at worst."""
    if not _found:
        _found.update(decide(says(MPI.get_vendor()[0], MPI.Get_library_version()), _kept_or_tried))
    return _found


def _kept_or_tried() -> Report:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcomm"
    driver = Path("/proc/driver/nvidia/version")
    about = (loaded_library() or "", MPI.Get_library_version(), driver.read_text() if driver.exists() else "")
    kept = base / f"direct-{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # none, or damaged: tried again
        found: Report = dict(json.loads(kept.read_text()))
        if all(isinstance(found.get(name), str) for name in OPERATIONS):
            return found
    report = try_all(_child)
    with contextlib.suppress(OSError):  # a cache that cannot be written: tried in each job
        base.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")  # other jobs may read and write it now
        fresh.write_text(json.dumps(report, indent=2))
        fresh.replace(kept)
    return report


def try_all(run: Callable[[list[str]], tuple[Report, str]]) -> dict[str, str]:
    """Try the operations; run: names -> (what each told that came to its end, how the job ended)."""
    report: dict[str, str] = {}
    while left := [name for name in OPERATIONS if name not in report]:
        told, end = run(left)
        report.update(told)
        if (first := next((name for name in left if name not in told), None)) is not None:
            report[first] = f"the trial ended: {end}"
    return report


def _child(names: list[str]) -> tuple[Report, str]:
    """A job of two ranks that tries these operations in turn."""
    code = f"from hpcomm.transport.device.cuda_aware import trial; trial({names!r})"
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "--timeout", f"{LIMIT_S:g}",
               sys.executable, "-c", code]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=2 * LIMIT_S, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_LINE)]
    told = [json.loads(line.removeprefix(_LINE)) for line in lines]
    return dict(told), f"exit status {done.returncode}"


def trial(names: list[str]) -> None:
    """Try operations in this job; rank 0 prints a line for each that came to its end."""
    from ...device.driver import driver
    from .staging import station

    world, n = MPI.COMM_WORLD, 1 << 16
    device = driver().device(0)
    stream, p, rank = station(device).side, world.size, world.rank
    there, host = device.allocate(8 * p * n), device.pinned(8 * p * n)
    at, values = int(host.__array_interface__["data"][0]), host.view(np.float32)

    def copy(to: int, source: int) -> None:
        device.copy(to, source, 8 * p * n, stream)
        event = device.event()
        device.record(event, stream)
        device.synchronize(event)
        device.destroy_event(event)

    for name in names:
        given = np.random.default_rng(7).integers(-99, 99, (p, 2 * p * n)).astype(np.float32)
        values[:] = given[rank]
        here = given[rank].copy()
        copy(there, at)
        host[:] = 0xCB
        memory = device.memory(there, 8 * p * n)
        for part in (memory, here):  # on the device, and the same on the host
            of_it = lambda low, nbytes, part=part: _part(part, low, nbytes)  # noqa: E731
            for request in begin(world, name, of_it, 4 * n, (n, MPI.FLOAT, MPI.SUM), 0):
                request.Wait()
        copy(at, there)
        right = world.allreduce(bool((values == here).all()), MPI.LAND)
        if rank == 0:
            print(_LINE + json.dumps([name, "" if right else "data came out wrong"]), flush=True)


def _part(memory: AnyArray, low: int, nbytes: int) -> AnyArray:
    """Bytes of memory, an array of the host's or what a device hands to MPI."""
    whole = memory.view(np.uint8) if isinstance(memory, np.ndarray) else memory
    return whole[low : low + nbytes]


def begin(
    mpi: Any, verb: str, part: Any, block: int, reduced: tuple[int, MPI.Datatype | None, Operator | None],
    root: int,
) -> list[Pending]:  # fmt: skip
    """The requests of a verb, in place on slots of block bytes.

    part: (first byte, bytes) -> that part of the memory; slots as in schedule.stream.Schedule, but
    reduce_scatter leaves its result in the first one. reduced: a slot's elements, their type, and operator.
    """
    p, rank, here = mpi.Get_size(), mpi.Get_rank(), MPI.IN_PLACE
    count, kind, op = reduced

    def slots(first: int, many: int) -> list[object]:
        return [part(first * block, many * block), block, MPI.BYTE]

    whole, own, one = slots(0, p), slots(rank, 1), [part(0, block), count, kind]
    if verb == "send":  # around the ring
        return [mpi.Irecv(slots(p, 1), (rank - 1) % p, 0), mpi.Isend(own, (rank + 1) % p, 0)]
    if verb == "all_to_all":
        return [mpi.Ialltoall(whole, slots(p, p))]
    is_root = rank == root
    arguments = {
        "broadcast": (slots(0, 1), root),
        "all_gather": (here, whole),
        "gather": (here, whole, root) if is_root else (own, None, root),
        "scatter": (whole, here, root) if is_root else (None, own, root),
        "reduce": (here, one, op, root) if is_root else (one, None, op, root),
        "reduce_scatter": (here, [part(0, p * block), count, kind], op),
    }.get(verb, (here, one, op))
    names = {"broadcast": "Ibcast", "reduce_scatter": "Ireduce_scatter_block"}
    return [getattr(mpi, names.get(verb) or f"I{verb.replace('_', '')}")(*arguments)]


def passes(begin: Callable[[list[object]], object], place: Place, event: int) -> Stages:
    """A message by the MPI library from or to the array at place; begin: Isend or Irecv of its memory."""
    yield [Reached(place.device, event)]  # MPI knows no streams
    yield [begin([place.device.memory(place.address, place.nbytes), MPI.BYTE])]


class Direct:
    """How a collective goes on in a workspace by the MPI library on device memory."""

    def __init__(self, space: Workspace, channel: object, moved: Moved) -> None:
        self.workspace, self.channel, self.moved = space, channel, moved
        self.capacity = moved.capacity(space.nbytes)

    def move(self, count: int) -> Stages:
        space, (verb, root, _, reduce, dtype) = self.workspace, self.moved
        block = count * dtype.itemsize
        yield [
            Reached(space.device, event := space.station.record_event(space.stream))
        ]  # MPI knows no streams
        space.station.return_event(event)
        # By name, or a user's: those that reduce on the host must not see a device's memory.
        kind = getattr(MPI, reduce.mpi_type) if reduce else None
        op = getattr(MPI, reduce.mpi_op) if reduce else None

        def part(low: int, nbytes: int) -> object:
            return space.device.memory(space.work + low, nbytes)

        yield begin(self.channel, verb, part, block, (count, kind, op), root)
        if verb == "reduce_scatter" and space.rank:
            space.device.copy(space.work + space.rank * block, space.work, block, space.stream)
