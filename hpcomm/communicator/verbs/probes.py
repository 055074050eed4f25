"""Probes: who has sent something, and how much, without receiving it.

Objects and ragged arrays travel on a communicator of their own, so they have probes of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from ..._lazy import MPI
from ...core.patience import patience, until
from ...core.present import messaging
from ...core.request import Stages
from ...core.status import Status
from ...errors import WaitTimeoutError, where
from ...transport.matching import fill, is_awaited, is_there, source_and_tag
from ...transport.progress import Until, drive
from ..context import Context
from ..shell import Shell


class Probes(Shell):
    """Verbs that look at messages."""

    def probe(self, source: int | None = None, tag: int | None = None) -> Status:
        """Wait for a message and say where it comes from, without receiving it. Same as MPI_Probe.

        It sees arrays of send and isend. probe_object sees objects and ragged arrays.
        """
        return _waited(self.context, "probe", False, source, tag)

    def iprobe(self, source: int | None = None, tag: int | None = None) -> Status | None:
        """As probe, but None at once if no message is there. Same as MPI_Iprobe."""
        return _asked(self.context, "iprobe", False, source, tag)

    def probe_object(self, source: int | None = None, tag: int | None = None) -> Status:
        """Wait for an object or a ragged array and say where it comes from, without receiving it.

        Same as mpi4py's probe. recv_object(status.source, status.tag), or recv_ragged, takes what was seen.

        Returns:
            Its source, its tag, and the bytes of its first message: larger arrays follow in others.

        Example (2 ranks):
            >>> if comm.rank == 0:
            ...     comm.send_object({"step": 1}, dest=1, tag=7)
            ... else:
            ...     status = comm.probe_object()
            ...     comm.recv_object(status.source, status.tag)
            {'step': 1}
        """
        return _waited(self.context, "probe_object", True, source, tag)

    def iprobe_object(self, source: int | None = None, tag: int | None = None) -> Status | None:
        """As probe_object, but None at once if nothing is there. Same as mpi4py's iprobe."""
        return _asked(self.context, "iprobe_object", True, source, tag)


def _waited(comm: Context, verb: str, of_objects: bool, source: int | None, tag: int | None) -> Status:
    wanted, seen = source_and_tag(comm, verb, source, tag), MPI.Status()
    mpi = comm.object_comm if of_objects else comm.mpi_handle
    with messaging(comm, verb, None, *wanted):
        if (limit := patience(comm, True)) is not None:
            if not until(lambda: _is_there(comm, of_objects, *wanted, seen), limit):
                hint = "look for the rank that did not send; comm.timeout sets the time"
                raise WaitTimeoutError(f"no message came in {limit:g} s", where(verb, comm), hint)
        elif (of_objects or comm.devices is None) and not is_awaited(mpi, *wanted):
            mpi.Probe(*wanted, seen)
        else:
            drive(_until(lambda: _is_there(comm, of_objects, *wanted, seen)))
    return fill(Status(), seen)  # type: ignore[no-any-return]


def _until(test: Callable[[], bool]) -> Stages:
    yield [Until(test)]


def _asked(comm: Context, verb: str, of_objects: bool, source: int | None, tag: int | None) -> Status | None:
    wanted, seen = source_and_tag(comm, verb, source, tag), MPI.Status()
    return fill(Status(), seen) if _is_there(comm, of_objects, *wanted, seen) else None


def _is_there(comm: Context, of_objects: bool, source: int, tag: int, seen: MPI.Status) -> bool:
    if of_objects or comm.devices is None:
        return is_there(comm.object_comm if of_objects else comm.mpi_handle, source, tag, seen)
    comm.known.receives.clear()  # what is held must be looked for first
    return bool(comm.devices.look(source, tag, seen))
