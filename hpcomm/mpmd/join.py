"""Joining: a process brings MPI up, finds the other programs, and gets its own world and links."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from itertools import chain

from .._lazy import MPI, undisturbed
from ..agree import runtime
from ..agree.deadline import within
from ..communicator.communicator import Communicator, over
from ..communicator.context import Context
from ..communicator.lazy_world import give
from ..errors import ConfigError, HpcommError, UsageError
from ..job import exit_hooks, post_mortem, process_role, startup_monitor
from ..job.optional_packages import load_mpi
from ..job.spec.programs import called
from ..watch import start_up
from . import handshake
from .coupling.coupling_clock import is_number
from .guest import GuestContext
from .link import group
from .link_context import LinkContext
from .program import Program

NAME = "HPCOMM_PROGRAM"  # what the launcher calls this program
TIMEOUT_S = 10.0
MAKING_S = 60.0  # for communicators of those who came: MPI needs far less
_FULL_TAG, _OWN_TAG, _LINK_TAG = 32110, 32111, 32200

_me: Program | None = None


def join(name: str | None = None, *, peers: Sequence[str] = (), timeout: float = TIMEOUT_S) -> Program:
    """Meet the other programs of this job, by name. The first call of hpcomm, collective over all.

    From here on hpcomm.world is this program's own world.

    Args:
        name: of this program, the same on all its ranks; None: its name in the spec. A member of an ensemble
            joins by the name of that, or None.
        peers: names of programs that this one needs.
        timeout: seconds to wait for the others, once MPI is up.

    Raises:
        ConfigError: the programs do not fit together. Every rank raises it, with the list of programs that
            came.
        UsageError: hpcomm or join was used before.

    Example (mpirun -n 1 python ocean.py : -n 2 python atmosphere.py):
        >>> me = hpcomm.join("ocean")
        >>> me.link("atmosphere").comm.send(sst, dest=0)
    """
    global _me
    if isinstance(name, str):
        name = called(name, [os.environ.get(NAME, "")], _member())
    if _me is not None and name in (None, _me.name):
        return _me
    if _me is not None or runtime.started():
        what = f"this program has joined as {_me.name!r}" if _me else "hpcomm.world was used before join"
        raise UsageError(what, "join", "call hpcomm.join once, before anything else of hpcomm is used")
    if isinstance(peers, str) or not all(isinstance(peer, str) for peer in peers):
        raise ConfigError(f"peers are a list of names, not {peers!r}", "join", "peers=['atmosphere']")
    if not is_number(timeout, above=0):
        what = f"timeout must be a number of seconds above 0, not {timeout!r}"
        raise ConfigError(what, "join", "timeout=60")
    with undisturbed():
        is_up = "mpi4py.MPI" in sys.modules  # else it waits for every process: somebody must look if all come
        with contextlib.nullcontext() if is_up else startup_monitor.watched():
            world: MPI.Intracomm = load_mpi("hpcomm.join").COMM_WORLD
        try:
            _me = _join(world, _checked_name(name), peers, timeout)
        except HpcommError:
            _end_at_exit(world)
            raise
        sys.modules["hpcomm"].__dict__["world"] = _me.comm
    return _me


def _checked_name(name: str | None) -> str:
    given = os.environ.get(NAME) if name is None else name
    if not isinstance(given, str) or not given.isprintable() or not 1 <= len(given.encode()) <= 64:
        what = f"{given!r} is no name for a program" if given else "this program has no name"
        raise ConfigError(what, "join", "hpcomm.join('ocean'): up to 64 printable characters")
    if any(mark in given for mark in " ,=\t"):
        raise ConfigError(f"the name {given!r} holds a blank, a comma or '='", "join", "hpcomm.join('ocean')")
    return given


def _member() -> int:
    """The number of this program in its ensemble; 0: it is in none."""
    return int(os.environ.get("HPCOMM_MEMBER", "0"))


def _join(world: MPI.Intracomm, name: str, wants: Sequence[str], timeout: float) -> Program:
    announced = handshake.expected(os.environ, world.size)
    process_role.check_launcher(world.size, MPI.get_vendor()[0])
    wants = [called(want, announced, _member() or 1) for want in wants]
    expected: Sequence[int] = sorted(chain(*announced.values())) or range(world.size)
    if world.rank not in expected:
        what = f"{name!r} joins, but the spec says that it does not (joins = false)"
        raise ConfigError(what, "join", "take that line out")
    members, said = handshake.gather_roster(world, expected, handshake.own_entry(name, wants), timeout)
    programs = handshake.check(members, said, announced, timeout)
    kinds = {entry.name: entry.kind for entry in said}
    full = chain(*(ranks for other, ranks in programs.items() if kinds[other] == "hpcomm"))
    mine = f"rank {programs[name].index(world.rank)} of '{name}'"
    others = " and ".join(f"'{other}'" for other in sorted(programs) if other != name)
    seconds = max(timeout, MAKING_S)
    late = f"join met {others}, but the links to them were not made within {seconds:g} s: look at the network"
    with within(seconds, late):
        everybody = group(world, sorted(full), _FULL_TAG)
        start_up.start(everybody, mine)
        if others:
            _watch_others(everybody.rank == 0, said)
        if runtime.end_notices is None:  # alone, so that nobody but `hpcomm run` hears of its end
            exit_hooks.last(runtime.say_end)
        own = Context(group(world, programs[name], _OWN_TAG), name)
        comm = give("world", own) or over(own)
        return Program(name, comm, programs, _links(world, name, comm, programs, kinds))


def _watch_others(is_first: bool, said: dict[handshake.Entry, list[int]]) -> None:
    """See that the others hear of a hasty end here, and somebody who was who."""
    if is_first and (end := post_mortem.leave(handshake.listed(said))):
        runtime.farewells.append(end)
        runtime.at_abort.append(end)
    if os.environ.get("HPCOMM_ON_FAILURE") != "continue":
        runtime.count_hasty_exits()


def _links(
    world: MPI.Intracomm,
    name: str,
    comm: Communicator,
    programs: dict[str, list[int]],
    kinds: dict[str, str],
) -> list[LinkContext]:
    """A link for every other program, made in one order by all, so that nobody waits in a circle."""
    names = sorted(programs)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    links = []
    for number, pair in enumerate(pairs):
        if name not in pair:
            continue
        peer = pair[pair[0] == name]
        inter = comm.context.mpi_handle.Create_intercomm(  # type: ignore[attr-defined]
            0, world, programs[peer][0], _LINK_TAG + number
        )
        kind = GuestContext if kinds[peer] == "fields" else LinkContext
        links.append(kind.over(name, peer, comm, inter, plain=kinds[peer] != "hpcomm"))
    return links


def _end_at_exit(world: MPI.Intracomm) -> None:
    """After a join that failed the others may wait for ever: end the job when this program ends."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(1.0)  # so that the others can say it too
        world.Abort(1)

    exit_hooks.last(end)
    sys.excepthook = runtime.in_one_piece(sys.excepthook)
