"""Program: one among several in a job, with its name, its own world, and links to the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from .._lazy import MPI, ArrayLike, np
from ..agree import runtime
from ..agree.deadline import within
from ..communicator.communicator import Communicator, over
from ..communicator.context import Context
from ..communicator.shell import watched
from ..errors import ConfigError, HpcommError, UsageError, did_you_mean, named, warn
from ..grids.grid import Grid
from ..job.progress import progress_of
from ..job.spec.calendar import Time
from ..job.spec.programs import called, numbered
from ..job.spec.schema import LONGEST_S
from . import connect as connecting
from . import handshake, replay, restart
from . import report as reporting
from .coupled_field import A, Field
from .coupling.coupling_clock import Clock, Schedule, is_number
from .coupling.wire import TIMEOUT_S
from .link import Link, group, no_field
from .link_context import LinkContext
from .record import recorder_of
from .spec.spec_file import FieldSpec, JobSpec, wished
from .spec.spec_reader import started_from
from .verdict import Refusal, first_refusal, judge

_TOGETHER_TAG, _ENSEMBLE_TAG = 32112, 32113
_LEAST_S = 10.0  # that programs may come apart by, as in join, however short their exchanges are


@watched
class Program:
    """This program, as hpcomm.join returns it.

    Attributes:
        name: this program's.
        comm: the communicator of its own ranks; hpcomm.world is the same one from now on.
        peers: names of the other programs, sorted.
        is_connected: whether its fields are planned. After that no more programs or fields can be added.
        ranks: of every program, this one included, in MPI's own world; with records, as in the spec.
        member: its number in its ensemble, from 1; 0: it is in none.
        members: how many members each ensemble of the spec has, by its name.
    """

    def __init__(self, name: str, comm: Communicator, ranks: dict[str, list[int]], links: list[LinkContext]):
        self.name = name
        self.comm = comm
        self.ranks = ranks
        self.peers: tuple[str, ...] = ()
        self._spec: JobSpec | None = started_from()
        self._programs = {} if self._spec is None else self._spec.programs
        self._about = self._programs.get(name)
        self.member = self._about.member if self._about is not None else 0
        self.members = {each.ensemble: each.members for each in self._programs.values() if each.member}
        self._clock = Clock(self._spec.calendar if self._spec is not None else None)
        self.is_connected, self._start_s = False, 0.0
        self._progress = progress = progress_of(os.environ)
        if progress is not None:
            runtime.looks.append(progress.look)
            runtime.farewells.append(lambda: progress.end(runtime.status))
        self._links: dict[str, Link] = {}
        self._shared: dict[str, LinkContext] = {}  # of these links
        self._declared: dict[tuple[str, str], Field] = {}  # by ("gives" or "takes", name)
        self._recorder = recorder_of(os.environ, name, comm.rank)
        self._replays = self._recorder is not None and self._recorder.replays
        if self._replays and self._spec is not None:
            links = replay.links(self._spec, name, comm)
            self.ranks = {each: [*where] for each, where in self._spec.world_ranks().items()}
        for link in links:
            admit(self, link)
        self._began = perf_counter()

    def link(self, peer: str) -> Link:
        """The link to another program, or to the member of an ensemble with the same number. Not collective.

        Raises:
            ConfigError: there is no such program in this job.
        """
        own = called(peer, self._links, self.member) if isinstance(peer, str) else ""
        if own not in self._links:
            rows = [f"{name!r} {named(ranks)}" for name, ranks in self.ranks.items()]
            raise handshake.missing(peer, self.name, self.ranks, f"  came:  {', '.join(rows)}")
        return self._links[own]

    @cached_property
    def ensemble(self) -> Communicator:
        """One rank of each member, in their order. Collective over these ranks when it is first used.

        Raises:
            ConfigError: this program is no member, or runs alone (--only).
        """
        about = self._about
        if about is None or not about.member or any(link.is_recorded for link in self._links.values()):
            what = f"program {self.name!r} is no member of an ensemble, or the others are only recorded"
            raise ConfigError(what, "ensemble", "members = 20 in its table of the spec")
        names = [numbered(about.ensemble, n) for n in range(1, about.members + 1)]
        same = [self.ranks[name][self.comm.rank] for name in names]
        return over(Context(group(MPI.COMM_WORLD, same, _ENSEMBLE_TAG), about.ensemble))

    def together(self, *peers: str) -> Communicator:
        """A communicator of this program's ranks and those of others, as they follow in MPI's own world.
        Collective over these programs.

        Raises:
            ConfigError: there is no such program in this job.
            UsageError: it speaks plain MPI.
        """
        links = [self.link(peer) for peer in peers]
        if any(link.is_recorded for link in links):
            return self.comm
        for plain in (link.peer for link in links if link.is_plain):
            what = f"program {plain!r} speaks plain MPI, and cannot make a communicator with others"
            raise UsageError(what, "together", "programs that call hpcomm.join in Python")
        names = sorted({self.name, *(link.peer for link in links)})
        world = sorted(rank for name in names for rank in self.ranks[name])
        return over(Context(group(MPI.COMM_WORLD, world, _TOGETHER_TAG), "+".join(names)))

    def grid(self, name: str) -> Grid:
        """The grid that the spec calls name, as hpcomm.regrid has it.

        Raises:
            ConfigError: there is no spec, or no such grid in it.
        """
        if self._spec is None:
            hint = "hpcomm run SPEC.toml starts a job with one; or hpcomm.regrid.LatLon(nlat, nlon)"
            raise ConfigError(f"there is no grid {name!r}, for there is no spec", "grid", hint)
        if name not in self._spec.grids:
            hint = did_you_mean(name, self._spec.grids, f"grids: {', '.join(self._spec.grids) or 'none'}")
            raise ConfigError(f"there is no grid {name!r} in {self._spec.path.name}", "grid", hint)
        from ..regrid import from_spec

        return from_spec(self._spec.grids[name])

    def gives(
        self,
        name: str,
        values: A,
        points: ArrayLike | None = None,
        *,
        grid: Grid | None = None,
        areas: ArrayLike | None = None,
        bases: ArrayLike | None = None,
    ) -> Field[A]:
        """Declare a field that others may take. Collective over this program; before the first put or get.

        Args:
            values: this rank's values, shape (points, ...): numpy, torch on CPU or GPU, DLPack.
            points: their global indices, shape (points,). Each point is given by one rank. None: points are
                numbered one rank after the other.
            grid: the grid (of hpcomm.regrid) that has these points, if a mapping needs it.
            areas: of the cells, as this program has them, shape (points,): a conservative mapping keeps the
                integral with these. Whoever takes it gives areas, too, in the same unit.
            bases: directions of a vector's two components, if they are not east and north. Degrees from east
                to the first one, counterclockwise, shape (points,). Or both as unit vectors, each to the east
                and to the north, shape (points, 2, 2).
        """
        numbers = self._admit("gives", name, values, points)
        made = self._declared["gives", name] = Field(name, values, numbers, grid, "gives", areas, bases)
        return made

    def takes(
        self,
        name: str,
        values: A,
        points: ArrayLike | None = None,
        *,
        grid: Grid | None = None,
        areas: ArrayLike | None = None,
        bases: ArrayLike | None = None,
        mapping: str | Sequence[str | float] = "none",
        every: float | str | None = None,
        lag: float | str = 0.0,
        time: str = "instant",
        neighbours: int = 4,
        timeout: float = 300.0,
        uncovered: str | float = "error",
        nan: str = "spread",
        radius: float = 0.0,
        normalise: str = "fracarea",
        conserve: str = "none",
        vector: bool | Sequence[str] = False,
        implicit: bool = False,
    ) -> Field[A]:
        """Declare a field that another program gives. Collective over this program.

        Args:
            values: array to be filled, shape (points, ...). It keeps its values until the first ones
                arrive.
            points: global indices in any order. Other ranks may take the same ones, as in halos.
            mapping, every, lag, time, neighbours, timeout, nan, radius, normalise, conserve, vector: as in
                a spec, whose values take precedence; implicit, too.
            areas, bases: as of gives.
            uncovered: what the end of a list as mapping says; goes with the next release.

        Raises:
            ConfigError: an argument such as mapping or every is not valid.
            LayoutError, DtypeError: values or points are not valid.
        """
        times = {"every": every, "lag": lag, "time": time, "timeout": timeout}
        how = {"nan": nan, "radius": radius, "normalise": normalise, "conserve": conserve, "vector": vector}
        ways = {"mapping": mapping, "uncovered": uncovered, "neighbours": neighbours, "implicit": implicit}
        wish = wished(name, self.name, times | how | ways)
        numbers = self._admit("takes", name, values, points)
        made = self._declared["takes", name] = Field(name, values, numbers, grid, "takes", areas, bases)
        made.wish = wish
        return made

    def _admit(self, role: str, name: str, values: object, points: ArrayLike | None) -> ArrayLike:
        """The points of a field that may be declared now, under this name."""
        if self.is_connected:
            hint = "declare all fields before the first put or get"
            raise UsageError(f"field {name!r} comes too late", role, hint)
        if not isinstance(name, str) or not name.isprintable() or not name.strip(" .") or "/" in name:
            raise UsageError(f"{name!r} is no name for a field", role, f"me.{role}('heat', values)")
        if (role, name) in self._declared:
            what = f"program {self.name!r} {role} {name!r} twice"
            raise UsageError(what, role, "a name of its own for each")
        if points is None:
            count = (getattr(values, "shape", ()) or (0,))[0]
            first = int(self.comm.exscan(count))  # on rank 0: nothing
            points = np.arange(first, first + count)
        return points

    def connect(self, time: Time | None = None, *, timeout: float | None = None) -> None:
        """Plan all couplings, as else the first put, get or exchange does. Collective over all programs.

        Waits for the others as long as the longest timeout of the fields, at least 10 s. If the planning
        that follows takes longer than that, and than 300 s, the job ends, because MPI's calls cannot be
        interrupted.

        Args:
            time: of the model at the start, for a run that continues an earlier one: seconds, or a date. The
                same in all programs between which fields with a period go. Without a spec, a date of cftime
                gives the job its calendar, and is 0 s.
            timeout: seconds, in place of both limits.

        Raises:
            ConfigError: what the programs give and take does not fit together.
            LayoutError, DtypeError: the values of a field here are not those that were declared.
            PeerFailedError: another rank, of any program, has refused its part. All ranks of all programs
                get an error then, and may connect again.
            WaitTimeoutError: another program has not connected in time.
        """
        if timeout is not None and not is_number(timeout, above=0, most=LONGEST_S):
            raise UsageError(f"timeout must be above 0, not {timeout!r}", "connect", "me.connect(timeout=60)")
        if self.is_connected:
            return
        if time is not None:
            self._start_s = self._clock.begin(time)
        self.is_connected = True
        if self._replays:
            connecting.check_fields(self._spec, self.name, self._declared)
            replay.connect(self._shared.values(), self._declared, self._listed, self._start_s)
            return
        links = self._coupled
        for link in links:
            link.timeout_s = timeout or self._patience(link.peer)
        fields, theirs = self._agree(links)
        wrong = self._plan(links, fields, theirs, timeout)
        self._settle(links, wrong, [])
        for link in links:
            known = [each.timeout_s for each in fields[link.peer]]
            link.timeout_s = max(known, default=timeout or self._patience(link.peer))
            link.connect = lambda: None
            runtime.farewells.append(link.settle)
        self._began = perf_counter()
        for doubt in reporting.doubts(self.name, self._names("gives"), self._shared.values(), self.comm.rank):
            warn(doubt)

    @property
    def _coupled(self) -> list[LinkContext]:
        """Of the links over which fields may go."""
        return [self._shared[peer] for peer in self.peers if self._shared[peer].couples]

    @property
    def _listed(self) -> tuple[FieldSpec, ...] | None:
        """The fields of the spec; None: the programs say what they give and take."""
        return self._spec.fields if self._spec is not None and (self._spec.fields or self.members) else None

    def _plan(
        self,
        links: list[LinkContext],
        fields: dict[str, list[FieldSpec]],
        theirs: dict[str, Any],
        timeout: float | None,
    ) -> HpcommError | None:
        """Plan the fields with each other program in turn; returns the first error of any."""
        wrong: HpcommError | None = None
        steps = {name: its.step.seconds for name, its in self._programs.items() if its.step is not None}
        for link in links:  # planning, and waiting for others who do, takes longer than an exchange may wait
            peer, known = link.peer, [each.timeout_s for each in fields[link.peer]]
            seconds = link.timeout_s = timeout or max(link.timeout_s, TIMEOUT_S, *known)
            late = f"connect has not planned the fields with '{peer}' within {seconds:g} s: look at what it"
            late += " prints, or at the network; me.connect(timeout=) if it is only slow"
            declared = self._declared, theirs[peer]
            with within(seconds, late):
                try:
                    connecting.connect(link, fields[peer], declared, self._start_s, steps)
                except HpcommError as error:  # on all ranks of both, or after all that needs others
                    wrong = wrong or error
        return wrong

    def _own_refusal(self) -> Exception | None:
        """What is wrong with the fields here; the others wait to hear of it. Collective over comm."""
        unlike = connecting.unlike_first(self.comm, self._declared, self._clock.said(self._start_s))
        doubts = connecting.in_radians(self.comm, self._declared, self._listed or ())
        try:
            if unlike is not None:
                raise unlike
            connecting.check_fields(self._spec, self.name, self._declared)
            for doubt in doubts if self.comm.rank == 0 else ():
                warn(doubt)
        except Exception as error:
            return error
        return None

    def _names(self, role: str) -> list[str]:
        return [name for each, name in self._declared if each == role]

    def _agree(self, links: list[LinkContext]) -> tuple[dict[str, list[FieldSpec]], dict[str, Any]]:
        """The fields with each other program, and what it says of its own. Collective over all programs.

        Nothing is planned yet: where a rank of any program refuses something, all may connect again.
        """
        wrong = self._own_refusal()
        mine = connecting.described(self._declared, self._start_s, self._clock)
        refused = first_refusal(self.comm, wrong)
        said = {link.peer: link.declare(mine, refused, self._spec) for link in links}
        theirs = {peer: its for peer, (its, _) in said.items()}
        refusals, fields = [refused, *(refusal for _, refusal in said.values())], {}
        if not any(refusals):
            try:
                for link in links:
                    sides = {self.name: mine, link.peer: theirs[link.peer]}
                    fields[link.peer] = connecting.agreed(self.name, sides, self._clock, self._listed)
                    link.hear_points(fields[link.peer], self._spec)
                every = [*chain(*fields.values())]
                connecting.check_vectors(self.name, self._declared, every)
                connecting.check_givers(self.name, self._names("takes"), every, theirs, self._listed)
            except Exception as error:
                wrong = error
        self._settle(links, wrong, refusals)
        return fields, theirs

    def _settle(self, links: list[LinkContext], wrong: Exception | None, known: list[Refusal | None]) -> None:
        """Go on if no rank of any program has refused. known: what has been told before."""
        mine = next(filter(None, [first_refusal(self.comm, wrong), *known]), None)
        told = [mine, *(link.swapped(mine, "connect") for link in links)]
        self.is_connected = not any(told)
        judge("connect", self.comm, wrong, told)

    def _patience(self, peer: str) -> float:
        """How long to wait for another program to connect: its fields may not be known yet."""
        wishes = [field.wish for field in self._declared.values() if field.wish is not None]
        listed = self._listed
        known = wishes if listed is None else [each for each in listed if peer in (each.source, each.target)]
        return max(_LEAST_S, max((each.timeout_s for each in known), default=TIMEOUT_S))

    @property
    def start(self) -> Any:
        """The time at which this run begins: a date, if the job has a calendar, or seconds."""
        return self._clock.time(self._start_s)

    def steps(self) -> Iterator[tuple[Any, Any]]:
        """Begin and end of each step of this program, of the spec, until the job stops; dates, or seconds.

        Example:
            >>> for now, then in me.steps():
            ...     ocean.advance(me.get(heat, now), then - now)
            ...     me.put(sst, then)
        """
        own = None if self._about is None else self._about.step
        if self._spec is None or own is None or self._spec.until_s is None:
            hint = f'[program.{self.name}] step = "PT1H" and [job] stop, in the spec'
            raise ConfigError("it is not known how long a step is, or when the job stops", "steps", hint)
        return Schedule(own, start_s=self._start_s, clock=self._clock).steps(self._spec.until_s)

    def put(self, field: Field, time: Time | None = None) -> None:
        """link.put to every program that takes the field."""
        self._check_declared("put", "gives", field)
        self.connect()
        for link in self._links.values():
            if field.name in link.gives:
                link.put(field, time)

    def get(self, field: Field[A], time: Time | None = None) -> A:
        """link.get from the program that gives the field, or from all its members."""
        self._check_declared("get", "takes", field)
        self.connect()
        if not (links := [link for link in self._links.values() if field.name in link.takes]):
            what = f"nobody gives {field.name!r}"
            raise UsageError(what, "get", "a program that is only recorded gave none")
        for link in links:
            link.get(field, time)
        return field.values

    def _check_declared(self, verb: str, role: str, field: object) -> None:
        if not isinstance(field, Field):
            raise no_field(field, verb)
        if self._declared.get((role, field.name)) is not field:
            what = f"{self.name!r} has not declared that it {role} {field.name!r}"
            raise UsageError(what, verb, f"me.{role}(...)")

    def exchange(self, time: Time | None = None) -> None:
        """link.exchange on all links."""
        self.connect()
        for link in self._links.values():
            link.exchange(time)

    def save(self, path: Path | str, time: Time) -> None:
        """Write the state of the coupling: a checkpoint in path/NAME. Collective over all programs.

        That is what was put and is not taken yet, means and their like under way, and values of taken fields.

        Args:
            path: a folder, the same for all programs.
            time: of the model, the same in all programs; behind all puts of that time.

        Raises:
            ConfigError: another program saves at another time; or of a field without a period something was
                put and not taken.
            TransportError: it cannot be written.
        """
        self.connect()
        if not self._replays:
            at = self._clock.seconds(time, "save")
            self._state().save(Path(path) / self.name, at or 0.0)

    def restore(self, path: Path | str, time: Time | None = None) -> Any:
        """Go on from what save has written, on any number of ranks; in place of connect.

        Args:
            time: that of the save; None: the last one.

        Returns:
            The time, a date or seconds: start, from which steps goes on.

        Raises:
            UsageError: nothing was saved, or not for that time; or fields are connected already.
            ConfigError: its time, dates, fields or grids are not those of the other programs, or of this run.
        """
        if self.is_connected:
            what = "fields are connected already"
            raise UsageError(what, "restore", "before the first put, get or connect")
        folder = Path(path) / self.name
        stamp = restart.stamp_of(folder, self.comm, self._clock, time)
        self._start_s = stamp.seconds
        self.connect()
        self._state().restore(folder, stamp)
        return self.start

    def _state(self) -> restart.Restart:
        return restart.Restart(self.comm, self._shared, self._clock)

    def report(self, picture: Path | str | None = None, *, alone: bool = False) -> str:
        """How long each program has computed and waited, and how exact mappings are. Collective over all.

        Each program waits for the others to call it, too, as long as link.report does.

        Args:
            picture: name of an SVG file, in which rank 0 draws the times.
            alone: only what this program knows, which waits for no other one. Collective over this program.
        """
        links, own = self._coupled, [self._links[link.peer] for link in self._coupled]
        spent = {link.peer: (link.busy_s, link.waited_s) for link in own}
        mine = reporting.row_of(self.name, self.comm, perf_counter() - self._began, spent)
        asked = [link for link in links if not (alone or link.is_plain)]
        theirs = {link.peer: reporting.Row(*link.swapped(tuple(mine), "report")) for link in asked}
        rows = [theirs.get(name, mine) for name in sorted({self.name, *theirs})]
        lines = reporting.table(rows, {each.name: each.ensemble for each in self._programs.values()})
        lines += [link.report(alone=alone) for link in own if link.gives or link.takes]
        if picture is not None and self.comm.rank == 0:
            reporting.draw(rows, Path(picture))
        return "\n".join(lines)

    def __repr__(self) -> str:
        peers = ", ".join(self.peers) or "nobody else"
        return f"<Program '{self.name}', rank {self.comm.rank} of {self.comm.size}, with {peers}>"


def admit(me: Program, context: LinkContext) -> Link:
    """A link of a program, which counts among its own from now on."""
    context.connect, context.links = me.connect, me._shared
    context.progress, context.clock = me._progress, me._clock
    context.recorder = me._recorder
    me._shared[context.peer] = context
    me._links[context.peer] = made = Link(context)
    me.peers = tuple(sorted(me._links))
    return made
