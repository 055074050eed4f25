"""LinkContext: what the modules of several programs share of a link; programs hold a Link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from .._lazy import MPI
from ..agree import runtime
from ..agree.partners import Partners
from ..communicator.communicator import Communicator, over
from ..communicator.context import Context
from ..errors import HpcommError, UsageError, WaitTimeoutError, where
from .coupled_field import Field
from .coupling.components import Sides
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_channel import Channel, Turns
from .coupling.coupling_clock import Clock
from .coupling.wire import TIMEOUT_S, Wire
from .record import Recorder
from .route.coupled_route import Selection
from .verdict import Refusal

if TYPE_CHECKING:
    from ..job.progress import Progress
    from .spec.spec_file import FieldSpec, JobSpec

# A field, its weights, the rows that go to or come from each rank there, and which of these by a device.
Planned: TypeAlias = tuple[Field, Any, list[tuple[int, Selection]], frozenset[int]]
Plan: TypeAlias = Callable[[Any, "FieldSpec", Field, bool], Planned]
S = TypeVar("S", Outgoing, Incoming)


class LinkContext:
    """What one link shares. In code from here down, `link` is this.

    Attributes:
        name, peer, comm, local, recorder, couples, is_plain, is_recorded, is_first: as Link has them.
        timeout_s, gives, takes: the same.
        clock, progress, links: of this program: its times, what it reports, all its links by their peers.
        connect: of the program, which plans all its links; nothing, once that is done.
        wire: what fields travel on, once connected.
        together: what exchange() moves in one message, in and out; one_by_one: the rest, out and in.
    """

    def __init__(self, name: str, peer: str, local: Communicator, comm: Communicator, *, plain: bool) -> None:
        self.name, self.peer, self.is_first = name, peer, name < peer
        self.local, self.comm = local, comm
        self.recorder: Recorder | None = None
        self.is_plain, self.couples, self.is_recorded = plain, not plain, False
        self.timeout_s = TIMEOUT_S
        self.wire: Wire | None = None
        self.gives: Sides[Outgoing] = Sides()
        self.takes: Sides[Incoming] = Sides()
        self.progress: Progress | None = None
        self.clock = Clock()
        self.links: Mapping[str, LinkContext] = {}
        self.connect: Callable[[], None] = lambda: None
        self.together: tuple[Channel | None, Turns | None] = (None, None)
        self.one_by_one: tuple[list[Outgoing], list[Incoming]] = ([], [])

    @classmethod
    def over(
        cls, name: str, peer: str, local: Communicator, inter: MPI.Intercomm, *, plain: bool = False
    ) -> LinkContext:
        """That of a link that owns inter. Collective over both programs."""
        between = Context(inter, f"{name}<->{peer}", plain=plain)
        between.is_fast = between.is_fast or plain
        between.partners = Partners(between, peer, local.context, plain=plain)
        if not plain:
            runtime.farewells.append(between.partners.say_farewell)
        comm = over(between, PlainCommunicator if plain else Communicator)
        return cls(name, peer, local, comm, plain=plain)

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
        except HpcommError as error:
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
        steps: Mapping[str, float | None],
    ) -> list[Planned]:
        """Plans of these fields, as plan makes each. Collective over both programs; errors are on every rank.

        todo: with this program's side of a field, and whether that gives. steps: of programs, where known.
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
