"""Link: two programs joined by an inter-communicator with all operations, and fields between owners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from .._lazy import MPI
from ..communicator.shell import watched
from ..core.present import saying
from ..errors import ConfigError, UsageError
from ..job.spec.calendar import Time
from .coupled_field import A, Field
from .coupling.coupling_clock import is_number
from .coupling.wire import TIMEOUT_S
from .link_context import LinkContext, S
from .report import link_lines


@watched
class Link:
    """The connection of this program to another one.

    Attributes:
        name, peer: names of this program and of the other one.
        comm: the inter-communicator, with all operations; ranks in send and recv are the peer's.
        recorder: what keeps or has the verdicts of an implicit coupling, if anything does.
        local: this program's own communicator.
        couples: whether fields may go over it.
        is_plain: whether the other program speaks MPI only, or is without Python.
        is_recorded: whether the other program does not run, and its record is read.
        is_first: True on one of the two sides, which begins where they take turns.
        timeout_s: seconds that implicit coupling waits for the other program, the longest timeout of the
            fields.
        deadline_s: seconds after which a blocking call of comm, or a wait without a timeout, ends the job.
            The default is 300; None: no limit.
        busy_s: seconds spent in put, get and exchange.
        gives, takes: this program's side of each field, by its name. takes[name].weights is the mapping, if
            there is one; gives[name].last are the values that were sent last.
        context: what hpcomm's own modules share of it; not for programs.
    """

    def __init__(self, context: LinkContext) -> None:
        self.context = context
        self.name, self.peer = context.name, context.peer
        self.comm, self.local = context.comm, context.local
        self.couples, self.is_plain = context.couples, context.is_plain
        self.is_first, self.is_recorded = context.is_first, context.is_recorded
        self.recorder = context.recorder
        self.gives, self.takes = context.gives, context.takes
        self.deadline_s = TIMEOUT_S
        self.busy_s = 0.0

    @property
    def timeout_s(self) -> float:
        return self.context.timeout_s

    @timeout_s.setter
    def timeout_s(self, seconds: float) -> None:
        self.context.timeout_s = seconds

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
        return self.context.wire.waited_s if self.context.wire is not None else 0.0

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
            together = [each for each in self.context.together if each is not None]
            gives, takes = self.context.one_by_one
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
        if self.is_recorded:
            return f"{self.peer} is only recorded"
        alone = alone or self.is_plain
        if not alone:
            self.context.connect()
        if self.context.wire is None:
            return f"'{self.name}' has not connected with '{self.peer}' yet"
        return "\n".join(link_lines(self.context, self.context.wire, alone=alone))

    @contextmanager
    def _moving(self, verb: str, time: Time | None, fields: object = ()) -> Iterator[float | None]:
        """A call that moves fields, of which is noted how long it takes; gives the time in seconds."""
        at = self.context.clock.seconds(time, verb)
        self.context.connect()
        began = perf_counter()
        try:
            with saying(partial(self._words, verb, fields, at)):
                yield at
        finally:
            now = perf_counter()
            self.busy_s += now - began
            if self.context.progress is not None:
                self.context.progress.note(at)

    def _words(self, verb: str, fields: object, at: float | None) -> str:
        """`get('flux', 8 s) with program 'air'`."""
        named = fields if isinstance(fields, (list, tuple)) else (fields,)
        words = [repr(field.name) for field in named if isinstance(field, Field)]
        words += [] if at is None else [self.context.clock.said(at)]
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
        others = [other for other in self.context.links.values() if name in getattr(other, which)]
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


def group(world: MPI.Intracomm, ranks: list[int], tag: int) -> MPI.Intracomm:
    """The communicator of some ranks of the world; only they call."""
    some = world.Get_group().Incl(ranks)
    made = world.Create_group(some, tag)
    some.Free()
    return made
