"""After the death of a rank: give a communicator up, agree, and make one of the ranks that live.

MPI's part is ULFM's: see agree/survival.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ..._lazy import MPI
from ...agree import survival
from ...core.present import calling
from ...errors import ConfigError, HpcommError, PeerFailedError, where
from ...node import segment
from ..context import Context


def revoke(comm: Context) -> None:
    """As Communicator.revoke."""
    _check(comm, "revoke")
    for mpi in _all_of(comm):
        mpi.Revoke()
    comm.fall_out("have given it up")


def agree(comm: Context, flag: bool) -> bool:
    """As Communicator.agree."""
    if not segment.survives:
        comm.check_open("agree")
        return bool(comm.bytewise_min(bytes([bool(flag)]))[0])
    _check(comm, "agree")
    with calling(comm, "agree"):
        return _agreed(comm.carriers.plain, flag)


def shrink(comm: Context, name: str | None) -> Context:
    """As Communicator.shrink."""
    revoke(comm)
    with calling(comm, "shrink"):
        for _ in range(comm.size):  # another one may die meanwhile
            if (mpi := _shrunk(comm.carriers.plain)) is None:
                continue
            made = None
            try:
                made = Context(mpi, name or comm.name, comm.settings)
            except (MPI.Exception, HpcommError):
                mpi.Revoke()
            if _agreed(mpi, made is not None) and made is not None:
                made.is_fast = comm.is_fast
                made.limit(comm.timeout_s)
                return made
    what = "the ranks that live could not make a communicator"
    raise PeerFailedError(what, where("shrink", comm), "start the job again", survival.dead(comm))


def _check(comm: Context, verb: str) -> None:
    if not segment.survives:
        hint = "hpcomm run --survive, which needs Open MPI"
        raise ConfigError(f"{verb} is for jobs that go on when a rank is killed", where(verb, comm), hint)
    if comm.is_closed:
        comm.check_open(verb)  # which says why


def _shrunk(plain: MPI.Comm) -> MPI.Comm | None:
    """MPI's communicator of the ranks that live: on all of them, or None where it has failed on any."""
    made = None
    plain.Ack_failed()  # those that died before do not count below
    with suppress(MPI.Exception):
        made = plain.Shrink()
        made.Set_errhandler(MPI.ERRORS_RETURN)
    return made if _agreed(plain, made is not None) else None


def _agreed(mpi: MPI.Comm, flag: bool) -> bool:
    """Whether all ranks of mpi say so and live; the same on all that live, also where it is revoked."""
    try:
        return bool(mpi.Agree(int(flag)))
    except MPI.Exception:  # some have died: all are told so
        return False


def _all_of(comm: Context) -> Iterator[MPI.Comm]:
    """MPI's communicators under comm, but for the channel that it shares with what it was made of."""
    yield from comm.carriers[:2]
    if comm.life.home is None:
        yield survival.channel_of(comm)
    if comm.exchange_channel is not None:
        yield comm.exchange_channel[0]
    if comm.kept_schedules is not None:
        yield comm.kept_schedules.mpi
