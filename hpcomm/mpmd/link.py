"""Link: two programs joined by an inter-communicator with all operations, and fields between owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NoReturn, TypeAlias, TypeVar

from .._lazy import MPI, np
from ..agree import runtime
from ..agree.partners import Partners
from ..communicator.communicator import Communicator, over
from ..communicator.context import Context
from ..communicator.shell import watched
from ..core.present import saying
from ..errors import ConfigError, HpcommError, UsageError, WaitTimeoutError, where
from ..job.progress import Progress
from ..job.spec.calendar import Time
from ..job.spec.programs import ProgramSpec, numbered
from .coupled_field import A, Field
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_channel import Channel, Turns
from .coupling.coupling_clock import Clock, is_number
from .coupling.wire import TIMEOUT_S, Wire
from .record import VERDICTS, Recorder
from .report import link_lines
from .route.coupled_route import Selection
from .spec.spec_file import FieldSpec, JobSpec
from .verdict import Refusal

# A field, its weights, the rows that go to or come from each rank there, and which of these by a device.
Planned: TypeAlias = tuple[Field, Any, list[tuple[int, Selection]], frozenset[int]]
Plan: TypeAlias = Callable[[Any, FieldSpec, Field, bool], Planned]
S = TypeVar("S", Outgoing, Incoming)
_TOGETHER_TAG, _ENSEMBLE_TAG = 32112, 32113


@watched
class Link:
    """The connection of this program to another one.

    Attributes:
        name, peer: names of this program and of the other one.
        comm: the inter-communicator, with all operations; ranks in send and recv are the peer's.
        recorder: what keeps or has the verdicts of an implicit coupling, if anything does.
        local: this program's own communicator.
        couples: whether fields may go over it.
        is_recorded: whether the other program does not run, and its record is read.
        is_first: True on one of the two sides, which begins where they take turns.
        timeout_s: seconds that implicit coupling waits for the other program, the longest timeout of the
            fields.
        deadline_s: seconds after which a blocking call of comm, or a wait without a timeout, ends the job.
            The default is 300; None: no limit.
        busy_s: seconds spent in put, get and exchange.
    """

    is_recorded = False

    def __init__(self, name: str, peer: str, local: Communicator, comm: Communicator, *, plain: bool) -> None:
        self.name = name
        self.peer = peer
        self.local = local
        self.comm = comm
        self.recorder: Recorder | None = None
        self.is_first = name < peer
        self.is_plain = plain
        self.couples = not plain
        self.timeout_s = TIMEOUT_S
        self.deadline_s = TIMEOUT_S
        self.busy_s = 0.0
        self.wire: Wire | None = None  # once connected
        self.gives: dict[str, Outgoing] = {}
        self.takes: dict[str, Incoming] = {}
        self.progress: Progress | None = None
        self.clock = Clock()  # the program's
        self.all_links: Mapping[str, Link] = {}  # of the program
        self.connect: Callable[[], None] = lambda: None  # of the program, until it is done
        self.together: tuple[Channel | None, Turns | None] = (None, None)  # in and out, of exchange()
        self.one_by_one: tuple[list[Outgoing], list[Incoming]] = ([], [])  # what exchange() moves one by one

    @classmethod
    def over(
        cls, name: str, peer: str, local: Communicator, inter: MPI.Intercomm, *, plain: bool = False
    ) -> Link:
        """A link that owns inter. Collective over both programs.

        Args:
            plain: whether the peer speaks MPI only.
        """
        between = Context(inter, f"{name}<->{peer}", plain=plain)
        between.is_fast = between.is_fast or plain
        between.partners = Partners(between, peer, local.context, plain=plain)
        if not plain:
            runtime.farewells.append(between.partners.say_farewell)
        comm = over(between, PlainCommunicator if plain else Communicator)
        return cls(name, peer, local, comm, plain=plain)

    @property
    def deadline_s(self) -> float | None:
        return self.comm.context.patience_s

    @deadline_s.setter
    def deadline_s(self, seconds: float | None) -> None:
        if seconds is not None and not is_number(seconds, above=0):
            what = f"deadline_s must be above 0, not {seconds!r}"
            raise UsageError(what, f"link to '{self.peer}'", "None: for ever")
        self.comm.context.patience_s = seconds

    @property
    def size(self) -> int:
        """How many ranks the other program has."""
        return self.comm.remote_size

    @property
    def waited_s(self) -> float:
        """Seconds of busy_s spent waiting for the other program."""
        return self.wire.waited_s if self.wire is not None else 0.0

    def ended(self) -> set[int]:
        """Ranks of the other program that have ended."""
        partners = self.comm.context.partners
        return set() if partners is None else partners.gone()

    def put(self, fields: Field | Iterable[Field], time: Time | None = None) -> None:
        """Send the values of the fields, each point to the ranks that take it.

        Collective over the ranks that own points. The values are copied, so they may be changed at once. It
        waits only until the last put but one has been taken. For a field with a lag, or whose taker has a
        longer step, more puts may be pending. When this program ends, it waits until its last put has been
        taken.

        Args:
            fields: a field, or several.
            time: of the model, in seconds; or a date, if the job has a calendar: of cftime or datetime, or a
                text. Needed if the field has a coupling period.

        Raises:
            ConfigError: the other program does not take the field.
            WaitTimeoutError: an earlier put was not taken within timeout_s.
            PeerFailedError: an earlier put was not taken, and the other program has ended.
        """
        with self._moving("put", time, fields) as at:
            for field in _each(fields, "put"):
                self._side("put", field, self.gives).put(at)

    def get(self, fields: Field[A] | Iterable[Field[A]], time: Time | None = None) -> A:
        """Receive the values of the fields for this time. Returns those of the (last) field.

        Raises:
            ConfigError: the other program does not give the field.
            WaitTimeoutError: it did not put within timeout_s.
            PeerFailedError: it has ended.
        """
        values: Any = None
        with self._moving("get", time, fields) as at:
            for field in _each(fields, "get"):
                values = self._side("get", field, self.takes).get(at)
        last: A = values
        return last

    def exchange(self, time: Time | None = None) -> None:
        """Put all that this program gives over this link, and get all that it takes, at once.

        Fields without a mapping or conversion go in one message per pair of ranks. Large fields in
        consecutive memory are sent and received without a copy. What this program gives may be changed at
        once.
        """
        with self._moving("exchange", time) as at:
            together = [each for each in self.together if each is not None]
            gives, takes = self.one_by_one
            for side in (*gives, *takes):
                side.check(at)
            for each in together:
                each.start()
            for giving in gives:
                giving.put(at)
            for taking in takes:
                taking.get(at)
            for each in together:
                each.finish()

    def tell(self, verdict: int) -> None:
        """Tell all ranks of the other program, which hear it, a number. Collective over both."""
        root = MPI.ROOT if self.local.rank == 0 else MPI.PROC_NULL
        self.comm.broadcast(np.array([verdict]), root=root, async_op=True).wait(timeout=self.timeout_s)

    def hear(self) -> int:
        """The number that the other program tells this one. Collective over both."""
        later = self.comm.broadcast(np.zeros(1, int), root=0, async_op=True)
        return self.note(int(later.wait(timeout=self.timeout_s)[0]))

    def note(self, verdict: int) -> int:
        """Keep what has become of an iteration, for a replay."""
        if self.recorder is not None:
            self.recorder.keep(VERDICTS, verdict)
        return verdict

    def settle(self) -> None:
        """At the end of this program: wait until what was put last has been taken, or its taker has ended.

        Ends the job if it is not taken in time: MPI_Finalize would wait for ever.
        """
        if runtime.status:  # it has failed
            return
        try:
            for sending in (*self.gives.values(), self.together[1]):
                if sending is not None:
                    sending.settle()
        except WaitTimeoutError as error:
            runtime.abort(f"at its end: {error}")

    def declare(self, mine: dict[str, Any], wrong: Refusal | None, spec: JobSpec | None) -> tuple[Any, Any]:
        """What the other program gives and takes, and what it refuses. Collective over both."""
        said: tuple[Any, Any] = self.swapped((mine, wrong), "connect")
        return said

    def hear_points(self, fields: Sequence[FieldSpec], spec: JobSpec | None) -> None:
        """Hear of the points there, where this side plans the fields for both."""

    def planned(
        self,
        wire: Wire,
        todo: Sequence[tuple[FieldSpec, Field, bool]],
        plan: Plan,
        start_s: float,
        steps: Mapping[str, float | None],
    ) -> list[Planned]:
        """Plans of these fields, as plan makes each. Collective over both programs; errors are on every rank.

        Args:
            todo: with this program's side of a field, and whether that gives.
            steps: of the programs, as far as they are known.
        """
        return [plan(wire, *one) for one in todo]

    def swapped(self, mine: object, verb: str) -> Any:
        """What the other program says, for what this one does. Collective over both.

        Raises:
            WaitTimeoutError: it has not come to the same call within timeout_s. On all ranks here.
            PeerFailedError: it has ended.
        """
        said: tuple[HpcommError | None, Any] = None, None
        if self.local.rank == 0:
            try:
                said = None, self._swapped(mine, verb)
            except HpcommError as error:  # the others here wait to hear of it
                said = error, None
        wrong, theirs = self.local.broadcast_object(said)
        if wrong is not None:
            wrong.where = where(verb, self.comm)
            raise wrong
        return theirs

    def _swapped(self, mine: object, verb: str) -> Any:
        """swapped, by the first ranks of both programs."""
        going = self.comm.isend_object(mine, 0)
        try:
            theirs = self.comm.irecv_object(0).wait(timeout=self.timeout_s)
            going.wait(timeout=self.timeout_s)
        except WaitTimeoutError:
            what = f"{verb} waited {self.timeout_s:.0f} s for program '{self.peer}'"
            hint = f"{verb} needs all programs (the first put, get or exchange connects); look at what"
            hint += " the other one does, or at the network; timeout of the field if it is slow"
            raise WaitTimeoutError(what, None, hint) from None
        return theirs

    def report(self, *, alone: bool = False) -> str:
        """What each field moves, and how exact its mapping is. Collective over both programs.

        The error of a mapping is measured by a known smooth function, relative to its range. So the report
        may be asked for at any time.

        Args:
            alone: only what this program knows, which waits for no other one. Collective over this program.

        Raises:
            WaitTimeoutError: the other program has not come to its report within timeout_s.
            PeerFailedError: it has ended.
        """
        alone = alone or self.is_plain
        if not alone:
            self.connect()
        ends = self.name, self.peer
        if self.wire is None:
            return f"'{self.name}' has not connected with '{self.peer}' yet"
        swapped = None if alone else self.swapped
        return "\n".join(link_lines(ends, self.local, self.wire, self.gives, self.takes, swapped))

    @contextmanager
    def _moving(self, verb: str, time: Time | None, fields: object = ()) -> Iterator[float | None]:
        """A call that moves fields, of which is noted how long it takes; gives the time in seconds."""
        at = self.clock.seconds(time, verb)
        self.connect()
        began = perf_counter()
        try:
            with saying(partial(self._words, verb, fields, at)):
                yield at
        finally:
            now = perf_counter()
            self.busy_s += now - began
            if self.progress is not None:
                self.progress.note(at)

    def _words(self, verb: str, fields: object, at: float | None) -> str:
        """`get('flux', 8 s) with program 'air'`."""
        named = fields if isinstance(fields, (list, tuple)) else (fields,)
        words = [repr(field.name) for field in named if isinstance(field, Field)]
        words += [] if at is None else [self.clock.said(at)]
        return f"{verb}({', '.join(words)}) with program '{self.peer}'"

    def _side(self, verb: str, field: Field, sides: dict[str, S]) -> S:
        found = sides.get(field.name)
        if found is None or getattr(found.field, "whole", found.field) is not field:
            raise self._unknown(verb, field.name, list(sides))
        return found

    def _unknown(self, verb: str, name: str, known: list[str]) -> ConfigError:
        which, does = ("gives", "takes") if verb == "put" else ("takes", "gives")
        what = f"program '{self.peer}' {does} no field {name!r}"
        hint = f"it {does} {', '.join(map(repr, known)) or 'nothing'}; declare fields before the first put"
        others = [other for other in self.all_links.values() if name in getattr(other, which)]
        if others:
            who = " and ".join(f"{other.peer!r} {does}" for other in others)
            hint = f"{who} it: me.{verb}(field) takes the link to {others[0].peer!r}"
        if name in known:  # two fields of one name, one each way, and this is the other one
            what = f"this is not the field {name!r} that {self.name!r} {which}"
            hint = f"what me.{which}({name!r}, ...) returned"
        return ConfigError(what, f"{verb} on link '{self.name}' <-> '{self.peer}'", hint)

    def __repr__(self) -> str:
        return f"<Link '{self.name}' <-> '{self.peer}', {self.local.size} and {self.size} ranks>"


def _each(fields: Field[A] | Iterable[Field[A]], verb: str) -> Iterable[Field[A]]:
    if isinstance(fields, Field):
        return (fields,)
    if isinstance(fields, (list, tuple)) and all(isinstance(field, Field) for field in fields):
        return fields
    raise no_field(fields, verb)


def no_field(given: object, verb: str) -> UsageError:
    """The error for something else than a field."""
    hint = f"link.{verb}(field), as me.gives or me.takes returned it"
    return UsageError(f"{verb} takes a field, not {given!r:.60}", verb, hint)


def together(comm: Communicator, ranks: Mapping[str, list[int]], links: Sequence[Link]) -> Communicator:
    """As Program.together. comm: of this program, which it gets where the others are only recorded."""
    if any(link.is_recorded for link in links):
        return comm
    for plain in (link.peer for link in links if link.is_plain):
        what = f"program {plain!r} speaks plain MPI, and cannot make a communicator with others"
        raise UsageError(what, "together", "programs that call hpcomm.join in Python")
    names = sorted({comm.name, *(link.peer for link in links)})
    world = sorted(rank for name in names for rank in ranks[name])
    return over(Context(group(MPI.COMM_WORLD, world, _TOGETHER_TAG), "+".join(names)))


def across(
    about: ProgramSpec | None, comm: Communicator, ranks: Mapping[str, list[int]], links: Iterable[Link]
) -> Communicator:
    """As Program.ensemble. about, comm: of this program."""
    if about is None or not about.member or any(link.is_recorded for link in links):
        what = f"program {comm.name!r} is no member of an ensemble, or the others are only recorded"
        raise ConfigError(what, "ensemble", "members = 20 in its table of the spec")
    names = [numbered(about.ensemble, n) for n in range(1, about.members + 1)]
    same = [ranks[name][comm.rank] for name in names]
    return over(Context(group(MPI.COMM_WORLD, same, _ENSEMBLE_TAG), about.ensemble))


def group(world: MPI.Intracomm, ranks: list[int], tag: int) -> MPI.Intracomm:
    """The communicator of some ranks of the world; only they call."""
    some = world.Get_group().Incl(ranks)
    made = world.Create_group(some, tag)
    some.Free()
    return made


class PlainCommunicator(Communicator):
    """To a program without hpcomm, which does not know the verbs of objects and ragged arrays: refused."""

    @property
    def order(self) -> str:
        """That of the MPI library, whose calls the other program makes."""
        return "fast"

    @order.setter
    def order(self, order: str) -> None:
        if order != "fast":
            what = f"the program at the other end of '{self.name}' speaks plain MPI, whose order is its own"
            raise UsageError(what, where("order", self), "all_gather, and add up what has come")


def _refusal(verb: str) -> Callable[..., NoReturn]:
    def refuse(comm: Communicator, *args: object, **options: object) -> NoReturn:
        raise UsageError(
            f"the program at the other end of '{comm.name}' speaks plain MPI, and {verb} hpcomm's own way",
            where(verb, comm),
            "send arrays: send, recv, all_reduce and their kin are MPI's own calls",
        )

    return refuse


for _name in dir(Communicator):
    if _name.endswith(("_object", "_ragged")):
        setattr(PlainCommunicator, _name, _refusal(_name))
