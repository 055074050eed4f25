"""Which message is there while a receive waits for another one."""

from __future__ import annotations

from .._lazy import MPI
from ..job import process_role
from .comm import Comm


def untaken(comm: Comm, of_objects: bool, source: int | None) -> str:
    """A message that has come and that no receive under way takes, in words; "": there is none."""
    there = None if comm.node is None else comm.node.untaken(source)  # of torch's groups
    if there is None and not process_role.is_without_mpi:
        there = _probed(comm, of_objects, source)
    return (
        ""
        if there is None
        else "a message of tag {1} from rank {0} is there, which it does not take".format(*there)
    )


def _probed(comm: Comm, of_objects: bool, source: int | None) -> tuple[int, int] | None:
    if comm.devices is not None and not of_objects:
        return None  # what is there may only say that an array is to come
    mpi, seen = comm.object_comm if of_objects else comm.mpi_handle, MPI.Status()
    wanted = MPI.ANY_SOURCE if source is None else source
    try:
        is_there = mpi.Iprobe(wanted, MPI.ANY_TAG, seen) or mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, seen)
    except MPI.Exception:  # it is closed
        return None
    return (seen.source, seen.tag) if is_there and seen.source != MPI.PROC_NULL else None
