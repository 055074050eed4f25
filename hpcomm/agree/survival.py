"""Survival: where a job goes on when a rank dies (`hpcomm run --survive`), the calls that need it fail.

    a rank dies
      ├─ waits of the core     arrivals.py looks at its lock  ─┐
      ├─ waits of MPI          ULFM ends them by an error     ─┼─> failure(): PeerFailedError, and no more
      └─ another rank revokes  so do all calls there          ─┘   collective calls on that communicator

A communicator of those that live is made by shrink (communicator/making/shrunk.py). The watchdog ends no job
for a rank that was killed: it judges only by what ranks have said themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from .._lazy import MPI
from ..core import present
from ..core.comm import Comm
from ..core.patience import until
from ..errors import PeerFailedError, named, where
from ..node import segment
from .last_calls import lines

_Found = TypeVar("_Found")

# Whether MPI says who has died; a job of several programs may be started so, too, and end all the same.
tells = segment.survives or "OMPI_MCA_mpi_ft_enable" in os.environ
DETECTED_S = 1.0  # from the first error that a dead rank causes until it is known to be dead


def dead(comm: Comm) -> list[int]:
    """The ranks of comm, or of the other group, that have died, as far as the locks here and MPI know."""
    near = {rank for rank, region in comm.near.regions.items() if region.died}
    return sorted(near | failed(comm.mpi_handle))


def failed(mpi: MPI.Comm) -> set[int]:
    """The ranks of mpi, or of its other group, that MPI knows to have died; where jobs end then, none."""
    if not tells:
        return set()
    is_inter = isinstance(mpi, MPI.Intercomm)  # whose other group Open MPI does not tell of
    group = mpi.Get_remote_group() if is_inter else mpi.Get_group()  # type: ignore[attr-defined]
    gone = (MPI.COMM_WORLD if is_inter else mpi).Get_failed()
    ranks = gone.Translate_ranks(None, group)
    gone.Free()
    group.Free()
    return {rank for rank in ranks if rank != MPI.UNDEFINED}


def looked(
    mpi: MPI.Comm, look: Callable[[int, int, MPI.Status], _Found], tag: int, status: MPI.Status
) -> _Found | None:
    """What look, mpi's Iprobe or Improbe, finds of anybody; after a death MPI is told that we know of it.

    Open MPI's Recv refuses what a dead rank has sent, and so never takes it: what Improbe finds can be taken.
    """
    try:
        return look(MPI.ANY_SOURCE, tag, status)
    except MPI.Exception:
        if not tells:
            raise
        mpi.Ack_failed()
        return None


def channel_of(comm: Comm) -> MPI.Comm:
    """MPI's communicator for blocks of objects, which those that are made of one another share."""
    channel: MPI.Comm = getattr(comm.block_channel, "mpi", comm.block_channel)
    return channel


def failure(comm: Comm | None, verb: str, within_s: float = 0.0) -> PeerFailedError | None:
    """Why a call of comm has failed: ranks have died, or one has revoked comm. None: for another reason.

    Args:
        within_s: how long to wait until that is known.
    """
    if not tells or comm is None or comm.is_closed:
        return None
    carriers = comm.mpi_handle, channel_of(comm)
    if not until(lambda: dead(comm) or any(mpi.Is_revoked() for mpi in carriers), within_s):
        return None
    ranks = dead(comm)
    comm.fall_out()
    what = f"{verb} on '{comm.name}' failed: another rank has given this communicator up"
    if ranks:
        whose = f"'{comm.name}'" if comm.partners is None else f"program '{comm.partners.name}'"
        died = f"{named(ranks)} of {whose} {'have' if len(ranks) > 1 else 'has'} died"
        what = "\n".join([died, *lines(comm, ranks)])
    hint = "comm.shrink() makes one of the ranks that live" if segment.survives else "go on without it"
    return PeerFailedError(what, where(verb, comm), hint, ranks)


def check(comm: Comm | None, verb: str, within_s: float = 0.0) -> None:
    """Raise it."""
    if (error := failure(comm, verb, within_s)) is not None:
        raise error


def meet_at_end(everybody: MPI.Intracomm) -> None:
    """Wait for the end of all that live, as MPI_Finalize does elsewhere."""
    with suppress(MPI.Exception):  # some have died
        everybody.Agree(1)


def _translate(call: present.calling, error: BaseException) -> None:
    """Raise it in place of an error of MPI's that no layer has put into our words."""
    if isinstance(error, MPI.Exception):
        check(call.comm, call.verb, DETECTED_S)


if tells:
    present.at_error = _translate
