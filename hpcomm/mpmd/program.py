"""A program among several in one job: its name, its own world, and the links to the others."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from .. import runtime
from ..errors import ConfigError, HpcommError, UsageError
from ..installation import VENDORS
from . import connect as connecting
from . import handshake, replay
from . import report as reporting
from .field import Field
from .link import Link, adopt
from .progress import progress
from .record import recorder
from .spec import FieldSpec, JobSpec, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

    from ..communicator import Communicator

__all__ = ["Program", "join"]

NAME = "HPCOMM_PROGRAM"  # what the launcher calls this program
TIMEOUT_S = 10.0
INIT_S = 60.0  # MPI comes up within that, or the process ends: then some program never began
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # what launchers say
_FULL_TAG, _OWN_TAG, _LINK_TAG = 32110, 32111, 32200

_me: Program | None = None


class Program:
    """What join returns: this program in its job.

    Attributes:
        name: this program's.
        comm: the communicator of its own ranks; hpcomm.world is the same one from now on.
        peers: names of the other programs, sorted.
        is_connected: whether its fields are planned, and no more programs or fields can come.
        ranks: the ranks of every program, this one included, in MPI's own world.
    """

    def __init__(self, name: str, comm: Communicator, ranks: dict[str, list[int]], links: list[Link]):
        self.name = name
        self.comm = comm
        self.ranks = ranks
        self.peers: tuple[str, ...] = ()
        self.spec: JobSpec | None = _spec()
        self.is_connected = False
        self._progress = progress(os.environ)
        self._links: dict[str, Link] = {}
        if os.environ.get("HPCOMM_REPLAY") and self.spec is not None:
            links = [cast("Link", replay.Absent(name, peer)) for peer in self.spec.programs if peer != name]
        for link in links:
            self.admit(link)
        self._gives: dict[str, Field] = {}
        self._takes: dict[str, tuple[Field, FieldSpec]] = {}
        self._recorder = recorder(os.environ, name, comm.rank)
        self._began = perf_counter()

    def admit(self, link: Link) -> None:
        """Count link among those of this program."""
        link._connect = self.connect
        link.progress = self._progress
        self._links[link.peer] = link
        self.peers = tuple(sorted(self._links))

    def link(self, peer: str) -> Link:
        """The link to another program. Not collective.

        Raises:
            ConfigError: there is no such program in this job.
        """
        if peer not in self._links:
            raise handshake.missing(peer, self.name, self.ranks, self._who())
        return self._links[peer]

    def grid(self, name: str) -> Any:
        """The grid that the spec calls name, as hpcomm.regrid has it.

        Raises:
            ConfigError: there is no spec, or no such grid in it.
        """
        if self.spec is None or name not in self.spec.grids:
            known = ", ".join(self.spec.grids) if self.spec else "none, for there is no spec"
            raise ConfigError(f"there is no grid {name!r}", "grid", f"grids: {known}")
        from .. import regrid

        return regrid.from_spec(self.spec.grids[name])

    def gives(self, name: str, values: Any, points: Any = None, *, grid: Any = None) -> Field:
        """Declare a field that others may take. Collective over this program; before the first put or get.

        Args:
            values: this rank's values, shape (points, ...): numpy, torch on CPU or GPU, DLPack.
            points: their global indices, shape (points,); each point at one rank. None: the ranks' points
                are numbered one behind the other.
            grid: of which the points are points or cells, where a mapping needs it (hpcomm.regrid).
        """
        self._declare("gives", name)
        self._gives[name] = Field(self.comm, name, values, points, grid, "gives")
        return self._gives[name]

    def takes(
        self,
        name: str,
        values: Any,
        points: Any = None,
        *,
        grid: Any = None,
        mapping: str = "none",
        every: float | None = None,
        lag: float = 0.0,
        time: str = "instant",
        neighbours: int = 4,
        timeout: float = 300.0,
    ) -> Field:
        """Declare a field that another program gives. Collective over this program.

        Args:
            values: where it goes, shape (points, ...); what it holds counts until something has come.
            points: global indices, in any order, also some that other ranks take too (halos).
            mapping, every, lag, time, neighbours, timeout: as in a spec, which is heard first.
        """
        self._declare("takes", name)
        wish = FieldSpec(
            name, "", self.name, mapping, None, None, every, lag, time, None, None, neighbours, False, timeout
        )
        self._takes[name] = (Field(self.comm, name, values, points, grid, "takes"), wish)
        return self._takes[name][0]

    def _declare(self, role: str, name: str) -> None:
        if self.is_connected:
            raise UsageError(
                f"field {name!r} comes too late", role, "declare all fields before the first put or get"
            )
        if name in (self._gives if role == "gives" else self._takes):
            raise UsageError(
                f"program {self.name!r} {role} {name!r} twice", role, "a name of its own for each"
            )

    def connect(self, time: float = 0.0) -> None:
        """Plan all couplings. Collective over all programs; done by the first put, get or exchange otherwise.

        Args:
            time: of the model when it starts, for a run that goes on from an earlier one.
        """
        if self.is_connected:
            return
        self.is_connected = True
        if self._recorder is not None and self._recorder.replays:
            replay.connect(self._links, self._gives, self._takes, self.spec, self.name, self._recorder)
            return
        mine = connecting.described(self._gives, self._takes)
        listed = self.spec.fields if self.spec is not None and self.spec.fields else None
        links = [self._links[peer] for peer in self.peers if not self._links[peer].is_plain]
        theirs = {link.peer: _swapped(link, mine) for link in links}
        fields = {link.peer: connecting.agreed(link, mine, theirs[link.peer], listed) for link in links}
        self._check_takes([each for some in fields.values() for each in some], theirs)
        for link in links:
            connecting.connect(
                link, fields[link.peer], self._gives, self._takes, theirs[link.peer], self._recorder, time
            )
            link._connect = _nothing
        self._began = perf_counter()

    def _check_takes(self, fields: list[FieldSpec], theirs: dict[str, Any]) -> None:
        for name in self._takes:
            givers = [each.source for each in fields if each.name == name and each.target == self.name]
            if len(givers) != 1:
                told = "; ".join(f"{peer!r} gives {sorted(its['gives'])}" for peer, its in theirs.items())
                who = "nobody" if not givers else " and ".join(map(repr, givers))
                raise ConfigError(
                    f"{self.name!r} takes a field {name!r}, which {who} gives{'' if givers else f': {told}'}",
                    "connect",
                    "one giver for each field; names must be the same on both sides",
                )

    def put(self, field: Field, time: float | None = None) -> None:
        """link.put to everybody who takes the field."""
        self.connect()
        for link in self._links.values():
            if field.name in link.gives:
                link.put(field, time)

    def get(self, field: Field, time: float | None = None) -> Any:
        """link.get from whoever gives the field."""
        self.connect()
        for link in self._links.values():
            if field.name in link.takes:
                return link.get(field, time)
        raise UsageError(
            f"{self.name!r} has not declared that it takes {field.name!r}", "get", "me.takes(...)"
        )

    def exchange(self, time: float | None = None) -> None:
        """link.exchange on all links."""
        self.connect()
        for link in self._links.values():
            link.exchange(time)

    def report(self, picture: Path | str | None = None) -> str:
        """Where the time went since the programs connected, and what mappings kept. Collective over all.

        Args:
            picture: an SVG file that rank 0 draws the times into.
        """
        links = [self._links[peer] for peer in self.peers if not self._links[peer].is_plain]
        mine = reporting.row_of(self.name, self.comm, perf_counter() - self._began, links)
        theirs = {link.peer: reporting.Row(*_swapped(link, tuple(mine))) for link in links}
        rows = [theirs.get(name, mine) for name in sorted({self.name, *theirs})]
        lines = reporting.table(rows)
        for link in links:
            lines += reporting.link_lines(link)
        if picture is not None and self.comm.rank == 0:
            Path(picture).write_text(reporting.bars(rows), encoding="utf-8")
        return "\n".join(lines)

    def _who(self) -> str:
        rows = [f"{name!r} {handshake._ranks(ranks)}" for name, ranks in self.ranks.items()]
        return f"  came:  {', '.join(rows)}"

    def __repr__(self) -> str:
        peers = ", ".join(self.peers) or "nobody else"
        return f"<Program '{self.name}', rank {self.comm.rank} of {self.comm.size}, with {peers}>"


def join(name: str | None = None, *, peers: Sequence[str] = (), timeout: float = TIMEOUT_S) -> Program:
    """Meet the other programs of this job, by name. Collective over all of them; the first call to hpcomm.

    From here on hpcomm.world is this program's own world.

    Args:
        name: this program's; None: what the spec calls it. All its ranks give the same.
        peers: programs that this one cannot do without.
        timeout: seconds that the others may come later, once MPI is up.

    Raises:
        ConfigError: the programs do not fit together: the same on every rank, with the list of who came.
        UsageError: hpcomm or join was used before.

    Example (mpirun -n 1 python ocean.py : -n 2 python atmosphere.py):
        >>> me = hpcomm.join("ocean")
        >>> me.link("atmosphere").comm.send(sst, dest=0)
    """
    global _me
    if _me is not None and name in (None, _me.name):
        return _me
    _check_first()
    world = _start_mpi()
    try:
        _me = _join(world, _checked_name(name), peers, timeout)
    except HpcommError:
        _end_at_exit(world)
        raise
    _become_world(_me.comm)
    return _me


def _check_first() -> None:
    if _me is not None or runtime.started():
        what = f"this program has joined as {_me.name!r}" if _me else "hpcomm.world was used before join"
        raise UsageError(
            what, "join", "call hpcomm.join once, first; write hpcomm.world, not `from hpcomm import world`"
        )


def _checked_name(name: str | None) -> str:
    given = os.environ.get(NAME) if name is None else name
    if not isinstance(given, str) or not given.isprintable() or not 1 <= len(given.encode()) <= 64:
        raise ConfigError(
            f"{given!r} is no name for a program" if given else "this program has no name",
            "join",
            "hpcomm.join('ocean'): up to 64 printable characters",
        )
    if any(mark in given for mark in " ,=\t"):
        raise ConfigError(f"the name {given!r} holds a blank, a comma or '='", "join", "hpcomm.join('ocean')")
    return given


def _start_mpi() -> MPI.Intracomm:
    """Bring MPI up; it waits for every process of the job, so somebody must count the seconds."""
    import faulthandler

    watched = "mpi4py.MPI" not in sys.modules and "pytest" not in sys.modules
    if watched:  # a thread of Python's could not run meanwhile
        faulthandler.dump_traceback_later(INIT_S, exit=True)
    try:
        from mpi4py import MPI
    finally:
        if watched:
            faulthandler.cancel_dump_traceback_later()
    return MPI.COMM_WORLD


def _check_launcher(world: MPI.Intracomm) -> None:
    """A rank under another MPI's launcher believes that it is alone."""
    from mpi4py import MPI

    told = max((int(os.environ.get(each, "1") or 1) for each in _SIZES), default=1)
    if world.size == 1 and told > 1:
        mine = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
        raise ConfigError(
            f"the launcher started {told} ranks, but this program's MPI ({VENDORS[mine]}) sees only itself.\n"
            f"  came:  {handshake.own_card('?', ()).script}, alone",
            "join",
            "start it with its own MPI's launcher; all programs of a job load the same MPI",
        )


def _join(world: MPI.Intracomm, name: str, wants: Sequence[str], timeout: float) -> Program:
    announced = handshake.expected(os.environ, world.size)
    _check_launcher(world)
    members = [rank for ranks in announced.values() for rank in ranks] or list(range(world.size))
    members.sort()
    if world.rank not in members:
        raise ConfigError(
            f"{name!r} joins, but the spec says that it does not (joins = false)",
            "join",
            "take that line out",
        )
    cards = handshake.meet(world, members, handshake.own_card(name, wants), timeout)
    programs = handshake.check(members, cards, announced, timeout)
    kinds = {card.name: card.kind for card in cards if card is not None}
    full = [rank for other, ranks in programs.items() if kinds[other] == "hpcomm" for rank in ranks]
    everybody = _group(world, sorted(full), _FULL_TAG)
    mine = f"rank {programs[name].index(world.rank)} of '{name}'"
    runtime.start(everybody, mine, has_partners=len(programs) > 1)
    comm = adopt(_group(world, programs[name], _OWN_TAG), name)
    return Program(name, comm, programs, _links(world, name, comm, programs, kinds))


def _group(world: MPI.Intracomm, ranks: list[int], tag: int) -> MPI.Intracomm:
    """The communicator of some ranks of the world; only they call."""
    some = world.Get_group().Incl(ranks)
    made = world.Create_group(some, tag)
    some.Free()
    return made


def _links(
    world: MPI.Intracomm,
    name: str,
    comm: Communicator,
    programs: dict[str, list[int]],
    kinds: dict[str, str],
) -> list[Link]:
    """A link for every other program, made in one order by all, so that nobody waits in a circle."""
    names = sorted(programs)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    links = []
    for number, pair in enumerate(pairs):
        if name not in pair:
            continue
        peer = pair[pair[0] == name]
        inter = comm.mpi.Create_intercomm(  # type: ignore[attr-defined]
            0, world, programs[peer][0], _LINK_TAG + number
        )
        plain = "plain" in (kinds[name], kinds[peer])
        links.append(Link.over(name, peer, comm, inter, plain=plain))
    return links


def _become_world(comm: Communicator) -> None:
    import hpcomm

    hpcomm.__dict__["world"] = comm


def _end_at_exit(world: MPI.Intracomm) -> None:
    """After a join that failed the others may wait for ever: end the job when this program ends."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(1.0)  # so that the others can say it too
        world.Abort(1)

    atexit.register(end)


def _spec() -> JobSpec | None:
    """The spec that this job was started from."""
    path = os.environ.get("HPCOMM_SPEC")
    return read(Path(path), here=False) if path else None


def _swapped(link: Link, mine: Any) -> Any:
    """What the other program says, for what this one does."""
    theirs = link.comm.sendrecv_object(mine, 0, 0) if link.local.rank == 0 else None
    return link.local.broadcast_object(theirs)


def _nothing() -> None:
    pass


def current() -> Any:
    """The program that has joined; None before."""
    return _me
