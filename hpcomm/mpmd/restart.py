"""Restart of the coupler's own state: what was put and is not taken yet, means under way, values of fields.

Each program writes a checkpoint of its own. Its arrays are the rows of all ranks, one rank behind the other,
beside the points of these rows. So any number of ranks reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from .._lazy import MPI, NDArray
from ..communicator.communicator import Communicator
from ..core.partition import Partition
from ..core.types import AnyArray
from ..errors import ConfigError, HpcommError
from ..fields.field import Field
from ..fields.files import checkpoints
from ..job.spec.calendar import Time
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_clock import Clock
from .link import Link
from .route import scattered_points
from .verdict import first_refusal, judge


def _sides(links: Mapping[str, Link]) -> Iterator[tuple[str, Outgoing | Incoming]]:
    """What a program gives and takes, in the same order on all ranks, with names for people."""
    for peer, link in sorted(links.items()):
        for name, giving in sorted(link.gives.items()):
            yield f"{name} to {peer}", giving
        for name, taking in sorted(link.takes.items()):
            yield f"{name} from {peer}", taking


def _coupled(links: Mapping[str, Link]) -> list[Link]:
    """Those over which fields go, to programs that keep their state, too."""
    return [link for _, link in sorted(links.items()) if (link.gives or link.takes) and not link.is_plain]


def _told(links: Mapping[str, Link], at: float, clock: Clock, verb: str) -> dict[str, dict[str, int]]:
    """By program, the last version of each field that it has put. Collective over all programs.

    Raises:
        ConfigError: it is at another time, or a program in C or Fortran.
    """
    told = {}
    for link in _coupled(links):
        mine = at, clock.said(at), {name: giving.version for name, giving in link.gives.items()}
        told[link.peer] = link.swapped(mine, verb)
    for peer, link in links.items():
        if link.is_plain and link.couples and (link.gives or link.takes):  # one that is recorded couples none
            what = f"{peer!r} is a program in C or Fortran, whose state is not kept"
            raise ConfigError(what, verb, "start anew, from what the models have kept")
        if peer in told and told[peer][0] != at:
            times = sorted([(link.name, clock.said(at)), (peer, told[peer][1])])
            both = " and ".join(f"{name!r} {verb}s at {said}" for name, said in times)
            raise ConfigError(both, verb, "one time for all programs")
    return {peer: versions for peer, (_, _, versions) in told.items()}


def _agree(verb: str, comm: Communicator, links: Mapping[str, Link], wrong: Exception | None) -> None:
    """Go on if no rank of any program refuses; else raise on all. Collective over all programs."""
    mine = first_refusal(comm, wrong)
    judge(verb, comm, wrong, [mine, *(link.swapped(mine, verb) for link in _coupled(links))])


def save(path: Path, comm: Communicator, links: Mapping[str, Link], at: float, clock: Clock) -> None:
    """Write the state of all fields, at a time of the model. Collective over all programs."""
    wrong = None
    try:
        for peer, versions in _told(links, at, clock, "save").items():
            for name, taking in sorted(links[peer].takes.items()):
                taking.drain(versions[name])
        for link in _coupled(links):
            for giving in link.gives.values():
                giving.settle()
    except HpcommError as error:  # the others wait to hear of it
        wrong = error
    _agree("save", comm, links, wrong)
    fields: list[Field] = []
    entries: dict[str, Any] = {}
    for number, (name, side) in enumerate(_sides(links)):
        numbers, arrays = side.state()
        numbers = comm.all_reduce_object(numbers, lambda a, b: {key: max(a[key], b[key]) for key in a})
        entries[name] = {"size": _size(comm, side.field.points), "numbers": numbers, "arrays": {}}
        counts = comm.all_gather(np.array(len(side.field.points)))
        bounds = (0, *np.cumsum(counts).tolist())
        for key, array in {"points": side.field.points, **arrays}.items() if bounds[-1] else ():
            whole = Partition((bounds[-1], *array.shape[1:]), {"rank": comm.size}, bounds={0: bounds})
            fields.append(Field(comm, whole, array=np.ascontiguousarray(array), name=f"f{number}.{key}"))
            entries[name]["arrays"][key] = [array.dtype.str, list(array.shape[1:]), bounds[-1]]
    stamp = {"seconds": at, "dates": clock.dates, "fields": entries}
    checkpoints.save(path, fields, round(at), stamp)


def stamp_of(path: Path, comm: Communicator, clock: Clock, time: Time | None) -> dict[str, Any]:
    """What was saved last, or for a time; without a spec, clock gets its dates. Collective over comm."""
    at = clock.seconds(time, "restore")
    stamp: dict[str, Any] = checkpoints.newest(path, comm, None if at is None else round(at)).metadata
    clock.resume(stamp["dates"], path)
    return stamp


def restore(
    path: Path, comm: Communicator, links: Mapping[str, Link], stamp: Mapping[str, Any], clock: Clock
) -> None:
    """Set the state of all fields to what was saved. Collective over all programs.

    Raises:
        ConfigError: the time, the fields or their grids are not those that were saved.
    """
    wrong = None
    try:
        _told(links, stamp["seconds"], clock, "restore")
        _restore(path, comm, dict(_sides(links)), stamp)
    except HpcommError as error:  # the others wait to hear of it
        wrong = error
    _agree("restore", comm, links, wrong)


def _restore(
    path: Path, comm: Communicator, found: dict[str, Outgoing | Incoming], stamp: Mapping[str, Any]
) -> None:
    entries = stamp["fields"]
    if sorted(entries) != sorted(found):
        what = f"{path} has the fields {sorted(entries)}, and this run {sorted(found)}"
        raise ConfigError(what, "restore", "the programs and fields that saved it")
    for number, (name, side) in enumerate(found.items()):
        entry, size = entries[name], _size(comm, side.field.points)
        if entry["size"] != size:
            what = f"field {name} has {entry['size']} points in {path}, and {size} here"
            raise ConfigError(what, "restore", "the grids of the run that saved it")
        blocks = {
            key: Field(comm, Partition((n, *shape), {"rank": comm.size}), dtype=kind, name=f"f{number}.{key}")
            for key, (kind, shape, n) in entry["arrays"].items()
        }
        if blocks:  # else nobody has a point
            checkpoints.load(path, [*blocks.values()], round(stamp["seconds"]))
            arrays = {key: np.asarray(each.inner) for key, each in blocks.items()}
            moved = _moved(comm, arrays.pop("points"), side.field.points, arrays, name)
            side.resume(entry["numbers"], moved)


def _size(comm: Communicator, points: NDArray[np.int64]) -> int:
    """How many points the grid has, as far as the field shows."""
    return 1 + int(comm.all_reduce(np.array(points.max(initial=-1)), "max"))


def _moved(
    comm: Communicator,
    points: NDArray[np.int64],
    wanted: NDArray[np.int64],
    arrays: dict[str, AnyArray],
    name: str,
) -> dict[str, AnyArray]:
    """The rows of arrays for the points that are wanted here, from whichever rank has them."""
    chunk = -(-max(_size(comm, points), _size(comm, wanted), 1) // comm.size)
    mpi = cast("MPI.Intracomm", comm.context.mpi_handle)
    route = scattered_points.plan(mpi, points, wanted, chunk)  # of points that were taken twice, one is sent
    sent, at = (_listed(comm, some) for some in (route.gives, route.takes))
    if comm.all_reduce(len(wanted) - int(at[1].sum())):
        raise ConfigError(
            f"points of field {name} were not saved", "restore", "the grids of the run that saved it"
        )
    made = {}
    for key, array in arrays.items():
        got = scattered_points.exchange(mpi, array[sent[0]], sent[1], at[1])
        made[key] = np.empty((len(wanted), *array.shape[1:]), array.dtype)
        made[key][at[0]] = got
    return made


def _listed(
    comm: Communicator, some: list[tuple[int, scattered_points.Selection]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions one behind the other, and how many there are for each rank."""
    lists, counts = [np.arange(0)], np.zeros(comm.size, np.int64)
    for rank, where in some:
        lists.append(np.arange(where.start, where.stop) if isinstance(where, slice) else where)
        counts[rank] = len(lists[-1])
    return np.concatenate(lists), counts
