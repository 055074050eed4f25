"""Who is in this job: the programs meet by name, before anything else is agreed.

    rank 1 ─ card ─┐                 ┌─ all cards ─> rank 1
    rank 2 ─ card ─┼─> first rank ───┼─ all cards ─> rank 2
    rank 3 ─ card ─┘   (till the     └─ all cards ─> rank 3
                        deadline)

A card is 512 bytes of text, one field a line, filled up with zeros. The cards of ranks that did not come
in time stay empty, so the answer tells everybody who came. Plain messages on MPI_COMM_WORLD only: a
program without hpcomm, in C for instance, can do the same (docs/mpmd.md).

With n ranks the first one receives and sends 512 n bytes n times: 10 ms for 1000 ranks.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpi4py import MPI

__all__ = ["Card", "check", "expected", "listed", "meet", "own_card"]

FORMAT = "hpcomm 1"
NBYTES = 512
TO_FIRST, FROM_FIRST, TO_ALL = 32101, 32102, 32103  # tags
PROGRAMS = "HPCOMM_PROGRAMS"  # "ocean=0-1 atmosphere=2-2": who takes part, with which ranks of the world
_LISTENING_S = 1.0  # for cards of other ranks that nobody answered either


class Card(NamedTuple):
    """What a rank says of itself. kind: "hpcomm", or "plain" for a program that only speaks MPI."""

    name: str
    kind: str
    script: str
    host: str
    pid: str
    wants: str  # names of programs that it cannot do without, separated by commas

    def packed(self) -> bytes:
        text = "\n".join([FORMAT, *self]).encode()[: NBYTES - 1]
        return text.ljust(NBYTES, b"\0")


def own_card(name: str, wants: Sequence[str]) -> Card:
    """This process's card.

    Raises:
        ConfigError: the names of wants are too long for it.
    """
    given = sys.argv[0] if sys.argv else ""
    path = given if given in ("", "-c", "-") else str(Path(given).resolve())
    script = os.fsencode(path)[-160:].decode(errors="replace").replace("\n", " ")
    card = Card(name, "hpcomm", script, os.uname().nodename[:64], str(os.getpid()), ",".join(wants))
    if wants and len("\n".join([FORMAT, *card]).encode()) >= NBYTES:
        raise _error(
            f"the names of {len(wants)} peers are too long for a card", "shorter names, or fewer peers"
        )
    return card


def unpacked(data: bytes) -> Card | None:
    """The card in data; None if it is empty."""
    lines = data.rstrip(b"\0").decode(errors="replace").split("\n")
    if lines[0] != FORMAT:
        return None
    return Card(*(lines[1:] + [""] * 6)[:6])


def expected(environ: Mapping[str, str], size: int) -> dict[str, range]:
    """The programs that the launcher announced, with their ranks of the world; {} if it did not.

    Raises:
        ConfigError: it announced something else than what was started.
    """
    found = {}
    for word in environ.get(PROGRAMS, "").split():
        name, _, ranks = word.partition("=")
        first, _, last = ranks.partition("-")
        found[name] = range(int(first), int(last) + 1)
    if found and max(ranks.stop for ranks in found.values()) > size:
        told = ", ".join(f"{name}: {_ranks(ranks)}" for name, ranks in found.items())
        raise ConfigError(
            f"{PROGRAMS} announces {told}, but this job has {size} rank{'s' * (size > 1)}.",
            "join",
            "start the job as `hpcomm run --dry-run` shows, or unset that variable",
        )
    return found


def meet(world: MPI.Intracomm, members: Sequence[int], card: Card, timeout_s: float) -> list[Card | None]:
    """The cards of all members (ranks of world), in their order; None for those who did not come.

    Every rank gets the same answer, at the latest some seconds after timeout_s.
    """
    from mpi4py import MPI

    cards = bytearray(NBYTES * len(members))
    deadline = time.monotonic() + timeout_s
    if world.rank == members[0]:
        _collect(world, members, card, cards, deadline)
        going = [world.Isend([cards, MPI.BYTE], rank, FROM_FIRST) for rank in members[1:]]
        _finish(going, time.monotonic() + 0.3)  # to a rank that did not come it may never end
    else:
        sending = world.Isend([card.packed(), MPI.BYTE], members[0], TO_FIRST)
        coming = world.Irecv([cards, MPI.BYTE], members[0], FROM_FIRST)
        if not _finish([sending, coming], deadline + _LISTENING_S):
            return _ask_around(world, members, card)
    return [unpacked(bytes(cards[i : i + NBYTES])) for i in range(0, len(cards), NBYTES)]


def _collect(
    world: MPI.Intracomm, members: Sequence[int], card: Card, cards: bytearray, deadline: float
) -> None:
    """Fill cards with what comes before the deadline."""
    from mpi4py import MPI

    view = memoryview(cards)
    view[:NBYTES] = card.packed()
    inboxes = [bytearray(NBYTES) for _ in members[1:]]
    coming = [
        world.Irecv([inbox, MPI.BYTE], rank, TO_FIRST)
        for inbox, rank in zip(inboxes, members[1:], strict=True)
    ]
    _finish(list(coming), deadline)
    for i, (inbox, request) in enumerate(zip(inboxes, coming, strict=True), start=1):
        if not request:  # complete, and so MPI has given it back
            view[i * NBYTES : (i + 1) * NBYTES] = inbox


def _finish(requests: list[MPI.Request], deadline: float) -> bool:
    """Wait for requests until the deadline; whether all are complete."""
    from mpi4py import MPI

    pause = 1e-5
    while not MPI.Request.Testall(requests):
        if time.monotonic() > deadline:
            for request in requests:
                if request:
                    request.Test()
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    return True


def _ask_around(world: MPI.Intracomm, members: Sequence[int], card: Card) -> list[Card | None]:
    """The first rank did not answer: those who came tell one another."""
    from mpi4py import MPI

    mine = card.packed()
    others = [rank for rank in members if rank != world.rank]
    going = [world.Isend([mine, MPI.BYTE], rank, TO_ALL) for rank in others]
    found = {world.rank: card}
    deadline = time.monotonic() + _LISTENING_S
    inbox = bytearray(NBYTES)
    while time.monotonic() < deadline:
        status = MPI.Status()
        if world.Iprobe(MPI.ANY_SOURCE, TO_ALL, status):
            world.Recv([inbox, MPI.BYTE], status.source, TO_ALL)
            came = unpacked(bytes(inbox))
            if came:
                found[status.source] = came
        time.sleep(0.002)
    for request in going:
        request.Test()
    return [found.get(rank) for rank in members]


# -- what the cards say ------------------------------------------------------------------------------


def check(
    members: Sequence[int], cards: Sequence[Card | None], announced: Mapping[str, range], timeout_s: float
) -> dict[str, list[int]]:
    """Programs and their ranks of the world, from cards that fit together.

    Raises:
        ConfigError: somebody did not come, two programs share a name, a name is not announced, or a
            program that another one cannot do without is not there. The same on every rank.
    """
    came = listed(members, cards)
    absent = [rank for rank, card in zip(members, cards, strict=True) if card is None]
    if absent:
        names = [name for name, ranks in announced.items() if set(ranks) & set(absent)]
        who = f"program {' and '.join(map(repr, names))} ({_ranks(absent)})" if names else _ranks(absent)
        raise _error(
            f"{who} of the world did not join within {timeout_s:g} s.\n{came}",
            "let every program of the job call hpcomm.join; say joins = false in the spec for one that"
            " does not, join(timeout=) for one that comes late",
        )
    programs: dict[str, list[int]] = {}
    first: dict[str, Card] = {}
    for rank, card in zip(members, cards, strict=True):
        assert card is not None
        other = first.setdefault(card.name, card)
        if not _is_same_script(card, other):
            raise _error(
                f"two programs are called {card.name!r}: {other.script} and {card.script}.\n{came}",
                "give each program a name of its own: hpcomm.join(NAME)",
            )
        programs.setdefault(card.name, []).append(rank)
    for name, ranks in programs.items():
        _check_announced(name, ranks, announced, came)
    for card in cards:
        assert card is not None
        for wanted in card.wants.split(",") if card.wants else ():
            if wanted not in programs:
                raise missing(wanted, card.name, programs, came)
    return programs


def _is_same_script(a: Card, b: Card) -> bool:
    """Another host may keep it in another folder."""
    if a.host == b.host:
        return a.script == b.script
    return Path(a.script).name == Path(b.script).name


def _check_announced(name: str, ranks: list[int], announced: Mapping[str, range], came: str) -> None:
    if announced and list(announced.get(name, ())) != ranks:
        at_ranks = [other for other, theirs in announced.items() if set(theirs) & set(ranks)]
        raise _error(
            f"{_ranks(ranks)} of the world joined as {name!r}, but the spec says {' and '.join(at_ranks)}"
            f" there.\n{came}",
            f"hpcomm.join() takes the name from the spec; or write hpcomm.join({at_ranks[0]!r})",
        )


def missing(wanted: str, by: str, programs: Mapping[str, Sequence[int]], came: str) -> ConfigError:
    """The error for a program that is not in the job."""
    from difflib import get_close_matches

    close = get_close_matches(str(wanted), [name for name in programs if name != by], 1)
    hint = f"did you mean {close[0]!r}?" if close else f"start {wanted!r} in the same job: mpirun a : b"
    return _error(f"{by!r} asks for a program {wanted!r}, which is not in this job.\n{came}", hint)


def listed(members: Sequence[int], cards: Sequence[Any]) -> str:
    """`  who came: ocean, ranks 0-1 (ocean.py on node1); ...`, a line for each program."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for rank, card in zip(members, cards, strict=True):
        if card is not None:
            groups.setdefault((card.name, card.script, card.host), []).append(rank)
    rows = [
        f"{name!r} {_ranks(ranks)} ({script} on {host})" for (name, script, host), ranks in groups.items()
    ]
    return "\n".join(f"  {'came: ' if i == 0 else '      '} {row}" for i, row in enumerate(rows))


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2`, `ranks 0, 5`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _error(what: str, hint: str) -> ConfigError:
    return ConfigError(what, "join", hint)
