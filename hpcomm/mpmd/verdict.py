"""Verdict on a call of several programs: if one rank refuses its part, every rank of all of them raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..communicator.communicator import Communicator
from ..errors import HpcommError, PeerFailedError, where


class Refusal(NamedTuple):
    """What a rank of a program refuses, and what to try."""

    program: str
    rank: int
    what: str
    hint: str | None


def first_refusal(comm: Communicator, wrong: Exception | None) -> Refusal | None:
    """What the first rank of a program that refuses has to say; None: all agree. Collective over it.

    comm: the program's, which has its name. wrong: this rank's own error.
    """
    mine = None
    if isinstance(wrong, HpcommError):
        mine = Refusal(comm.name, comm.rank, f"{type(wrong).__name__}: {wrong.what}", wrong.hint)
    elif wrong is not None:
        mine = Refusal(comm.name, comm.rank, f"{type(wrong).__name__}: {wrong}", None)
    return comm.all_reduce_object(mine, lambda a, b: a or b)


def judge(verb: str, comm: Communicator, wrong: Exception | None, told: Iterable[Refusal | None]) -> None:
    """Raise this rank's own error, or else one of who has refused. told: first refusals of all programs."""
    if isinstance(wrong, HpcommError):
        wrong.where = where(verb, comm)  # with this program's name and rank
    if wrong is not None:
        raise wrong
    for refusal in told:
        if refusal is not None:
            whose = f"rank {refusal.rank} of program '{refusal.program}'"
            what = f"{whose} refused its part of {verb}: {refusal.what}"
            hint = f"there: {refusal.hint}" if refusal.hint else "look at that rank's own error"
            raise PeerFailedError(what, where(verb, comm), hint, (refusal.rank,))
