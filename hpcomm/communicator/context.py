"""Context: what the layers of hpcomm share of a communicator.

In MPI a context keeps the messages of one communicator apart from those of all others. Here it also has all
that verbs, checks and transports need: the ranks, what MPI and the node have for them, how they agree, what
is under way. Programs hold a Communicator, whose methods work on its context. The layers below know it by
the protocol core.comm.Comm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from .._lazy import MPI, once
from ..agree import agreement, runtime, survival
from ..agree.message_kinds import Kinds
from ..agree.one_thread import CallGuard
from ..agree.present_calls import verb_now
from ..agree.values import Values
from ..core import patience
from ..core.closing import ClosedByAll
from ..core.outstanding import Outstanding, free
from ..errors import MismatchError, UsageError, where
from ..job import process_role
from ..node import segment
from .making.block_channel import channel
from .making.carriers import Carriers
from .making.dropped import DUP, NONE_KEPT, Kept, Life
from .making.meeting import Met, Near, least, meet
from .payloads.dissemination import inside
from .payloads.pickling import chosen, encode
from .settings import INHERITED, Settings, is_fast_by_default, require_known
from .verbs.direct import NO_DIRECT, BetweenGroups, ByLibrary, InBackground, OnNode
from .verbs.known_messages import KnownMessages

if TYPE_CHECKING:
    from ..agree.partners import Partners
    from ..core.operation import Observer
    from ..core.request import Request
    from ..node._native import core
    from .payloads.payload import Payload

# With these a verb begins that concerns no third rank:
_BETWEEN_TWO = ("send", "isend", "recv", "irecv", "batch", "observe")


class Context(ClosedByAll):
    """What one communicator shares. To make one is collective.

    Attributes:
        rank, size, is_inter, remote_size, name: as Communicator has them.
        settings: what was asked for, and is again of communicators made of this one.
        carriers: MPI's communicators under it.
        near: the ranks of this node, and what they share of its memory (making/meeting.py).
        compared: the level of agreement on which the ranks have settled; "off" for one rank, "full" where
            values are compared, too.
        values: results that all ranks should hold, where those are compared (agree/values.py).
        agreement: what compares their calls. check: its level; "off" where nothing of others is seen.
        known: messages whose checks have been made (verbs/known_messages.py).
        life: what has made it, and what it has made (making/dropped.py).
        node: the native core's collectives; None unless all ranks are on one node, none compares in full and
            there was room.
        direct, background: what verbs try first (verbs/direct.py).
        block_channel: for what follows the headers of objects and ragged arrays (making/block_channel.py).
        inner_comm: for what ranks of a large group pass on to each other.
        devices: for arrays on devices, if some rank may have one (transport/device/dispatch.py).
        timeout_s: Communicator.timeout.
        patience_s: on a link, how long a call may wait for the other program.
        disagreed: how the sentence "the ranks of ..." ends; empty: they are in step.
    """

    __slots__ = ("background", "direct", "known")  # which Python finds quicker than in a dictionary

    carriers: Carriers  # null communicators once it is closed
    rank: int
    size: int
    is_inter: bool
    values: Values | None = None
    has_foreigners = False  # ranks of another job
    remote_size = 0
    tag_base = 0  # a number by chance, the same on all ranks, that tells communicators apart
    observers: tuple[Observer, ...] = ()
    disagreed = ""
    timeout_s: float | None = None
    begun: int = 0  # how many collective calls two groups have begun together
    both: MPI.Intracomm | None = None  # of both groups, where they compare their calls
    node: core.Node | None = None
    devices: Any = None
    exchange_channel: list[Any] | None = None  # for planned exchanges, once there is one (making/groups.py)
    kept_schedules: Any = None  # comm_cache.Own of transport/scheduled/, once a schedule has run
    ranks_by_node: Any = None  # what reductions in their order go by (transport/rank_order.py)
    partners: Partners | None = None  # on a link: who of the other program has ended
    patience_s: float | None = None

    # What not every communicator needs:
    call_numbers = once(lambda comm: count())  # of all_gathers of objects in large groups
    outstanding = once(lambda comm: Outstanding())  # calls in the background, and plans
    call_guard = once(CallGuard)  # which thread of this rank makes a collective call

    def __init__(
        self, mpi: MPI.Comm | None, name: str | None, settings: Settings = INHERITED, *,
        plain: bool = False, parent: Context | None = None, kept: Kept = NONE_KEPT,
    ) -> None:  # fmt: skip
        """Take over mpi, which nobody else uses; None: what is kept, or a duplicate of what parent has,
        whose ranks are all on one node.

        Args:
            plain: the other group is a program without hpcomm. It makes the same duplicates of mpi, and tells
                nothing else.
            parent: one that has all ranks of mpi.
            kept: as made has it.
        """
        like, spare = kept
        self.direct: Any = NO_DIRECT
        self.background: Any = NO_DIRECT
        patience.look()
        if parent is None:
            level, pickler = require_known(settings.check, settings.gpu), settings.pickler or chosen(None)
            self.settings = Settings(level, settings.gpu, pickler)
            self.is_fast = is_fast_by_default()
        else:  # as derive has put them together
            self.settings, self.is_fast = settings, parent.is_fast
        self.name: str = name or "comm"
        if spare is not None:
            self.carriers = Carriers(spare.carriers.plain, spare.carriers.objects, self.name)
        twin = parent if mpi is None else None
        kin = spare or twin
        if mpi is not None:
            self._take_over(mpi)
        elif kin is not None:
            self.rank, self.size, self.is_inter = kin.rank, kin.size, False
        level = self.settings.check or "off"
        if level == "light" and self.has_foreigners:
            level = "full"  # ranks of two jobs see no records of each other's
        self.life = Life(like)
        self.compared = "off"
        self.known = KnownMessages()
        self.to_itself: list[Request[object]] = []  # messages to this rank itself that nobody waits for
        self.near = Near([self.rank])
        met = None if plain else meet(self, level, twin, kin)
        if met is not None:
            self._know(met, twin)
        carrier = self.carriers.plain
        may_have_devices = met is not None and met.devices
        # What follows the headers of objects and ragged arrays, apart from both:
        self.block_channel = channel(carrier, parent, may_have_devices, like == DUP)
        # For what ranks pass on:
        self.inner_comm = self.block_channel if plain else inside(carrier, self.block_channel)
        if may_have_devices:
            self._have_devices()
        if level == "strict":
            from .strict import look_on

            look_on(self)
        self.go_direct()
        runtime.note(self)
        runtime.look_at_kept(self)

    def _take_over(self, mpi: MPI.Comm) -> None:
        """Have its ranks, and MPI's communicators for arrays and for headers of objects."""
        mpi.Set_errhandler(MPI.ERRORS_RETURN)
        self.carriers = Carriers(mpi, mpi.Dup(), self.name)
        self.rank, self.size, self.is_inter = mpi.Get_rank(), mpi.Get_size(), mpi.Is_inter()
        if self.is_inter:
            self.remote_size = mpi.remote_size  # type: ignore[attr-defined]
        else:
            self.has_foreigners = segment.has_foreigners(mpi)

    def _know(self, met: Met, twin: Context | None) -> None:
        """Have what the ranks have found out; a duplicate of twin has its own communicators of MPI's now."""
        self.near, self.node, self.compared, self.both = met.near, met.node, met.compared, met.both
        self.tag_base = met.mark
        if twin is not None and "carriers" not in vars(self):
            self.carriers = twin.carriers.duplicate(self.name)
        can_compare = not (self.is_inter or met.devices or met.compared == "off")
        if self.settings.check in ("values", "strict") and can_compare:
            self.values = Values()

    def _have_devices(self) -> None:
        from ..transport.device.dispatch import DeviceDispatch

        self.devices = DeviceDispatch(self, self.settings.gpu)
        if self.node is not None:
            self.node.most = self.devices.eager  # above that, ranks first tell where their arrays lie

    def derive(
        self, mpi: MPI.Comm | None, name: str, settings: Settings = INHERITED, kept: Kept = NONE_KEPT
    ) -> Context:
        """A context for mpi, whose ranks are some of these; None: for what is kept, or all, on one node."""
        own, (check, gpu, pickler) = self.settings, settings
        if settings is INHERITED:
            settings = own
        else:
            settings = Settings(check or own.check, gpu or own.gpu, pickler or own.pickler)
        made = Context(mpi, name, settings, parent=self, kept=kept)
        if self.timeout_s is not None:
            made.limit(self.timeout_s)
        return made

    @once
    def encode(self) -> Callable[[Any], Payload]:
        """What pickles an object."""
        pickler = self.settings.pickler
        return partial(encode, pickler=pickler) if pickler else encode

    @property
    def check(self) -> str:
        return self.agreement.level

    bytewise_min = least

    @once
    def mpi_handle(self) -> MPI.Comm:
        """MPI's, for messages of one array. Who looks may send there: then close() keeps no carriers."""
        return self.carriers.plain

    @once
    def object_comm(self) -> MPI.Comm:
        """MPI's, for headers of objects and ragged arrays; the same."""
        return self.carriers.objects

    # -- how its calls go ----------------------------------------------------------------------------
    def check_open(self, verb: str) -> None:
        """Refuse a verb on a communicator that is closed, or whose ranks are out of step.

        Raises:
            UsageError: it is closed, or MPI is finalized.
            MismatchError: its ranks disagreed before.
        """
        if not self.carriers.plain:
            at = where(verb, self)
            if MPI.Is_finalized():
                raise UsageError("MPI has been finalized", at, "MPI.Finalize() after the last use of hpcomm")
            process_role.check_process(at)
            raise UsageError(f"communicator '{self.name}' is closed", at, "use it before close()")
        if self.disagreed and not verb.startswith(_BETWEEN_TWO):
            survival.check(self, verb)
            raise MismatchError(
                f"the ranks of '{self.name}' {self.disagreed}",
                where(verb, self),
                "make a new communicator of its parent, or HPCOMM_CHECK=full, which tells all ranks in time",
            )

    def check_one_group(self, verb: str) -> None:
        self.check_open(verb)
        if self.is_inter:
            hint = "comm.merge() makes one of two"
            raise UsageError(f"{verb} needs one group of ranks", where(verb, self), hint)

    def fall_out(self, why: str = "are out of step since they disagreed about a call") -> None:
        """Make no collective call any more: it could meet another one of the other ranks."""
        if not self.disagreed:
            self.disagreed = why
            self.agreement.depart()
        self.leave_direct()

    def leave_direct(self) -> None:
        """Let all calls take the general path from now on."""
        self.direct = self.background = NO_DIRECT
        self.known.forget()

    def go_direct(self) -> None:
        """Let calls take the direct path again, if nothing speaks against it."""
        if self.observers or self.is_closed or self.disagreed:
            return
        by_library = BetweenGroups if self.is_inter else ByLibrary
        self.direct = self.node or (by_library(self) if self.timeout_s is None else NO_DIRECT)
        if self.background_node is not None:
            self.background = OnNode(self)
        else:
            self.background = NO_DIRECT if self.is_inter or self.devices else InBackground(self)

    @property
    def background_node(self) -> core.Node | None:
        """What carries out calls in the background: node, if a thread may move them on, without devices."""
        return self.node if self.devices is None and runtime.has_threads() else None

    def limit(self, seconds: float | None) -> None:
        """Let calls take so many seconds; None: any time."""
        self.timeout_s = seconds
        if self.node is not None:
            self.node.timeout = seconds or 0
        if seconds is not None:
            self.leave_direct()
            self.ask_again()
        self.go_direct()

    def ask_again(self) -> None:
        """Let messages and plans that were found right be asked again and again from now on."""
        self.known.forget()
        for plan, look_again in tuple(self.outstanding.plans.items()):
            look_again(plan)

    def reduce_fast(self, is_fast: bool) -> None:
        """Let MPI reduce floats in whatever order, or in that of ranks."""
        self.is_fast = is_fast
        self.leave_direct()
        self.go_direct()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """As Communicator has it."""
        self.observers = (*self.observers, observer)
        self.leave_direct()

        def stop() -> None:
            self.observers = tuple(o for o in self.observers if o is not observer)
            self.go_direct()

        return stop

    def move_on(self) -> None:
        """Let MPI work on what is under way; nothing once another thread has closed this communicator."""
        from ..transport import mpi as transport

        if mpi := self.carriers.plain:  # not mpi_handle: nothing is sent, so a duplicate stays unused
            try:
                transport.move_on(mpi)
            except MPI.Exception as error:  # where a rank has died, or one has given this communicator up
                raise transport.failure(error, verb_now(), self) from None

    def keep_request(self, request: Request[object]) -> None:
        """Own a request that nobody waits for: a message to this rank itself."""
        self.to_itself = [kept for kept in self.to_itself if not kept.done()]
        self.to_itself.append(request)

    # -- how the ranks agree -------------------------------------------------------------------------
    def last_call(self) -> int:
        """The number of the last call that this rank has come to, where others see it."""
        assert self.near.watched is not None
        return self.near.watched[0].last_call()

    @once
    def message_kinds(self) -> Kinds | None:
        """Of elements in messages within the node."""
        if self.near.watched is None or self.devices is not None:
            return None
        own, peers = self.near.watched
        return Kinds(self, own.kinds, {rank: log.kinds for rank, _, log in peers})

    @once
    def agreement(self) -> agreement.Agreement:
        """How the ranks find out that they make the same call."""
        if self.is_inter:
            made = agreement.between(self, self.both) if self.both else agreement.counted(self)
        elif self.compared == "full":
            made = agreement.full(self, self.object_comm, self.near.watched[0] if self.near.watched else None)
        elif self.near.watched is None or segment.current is None:
            made = agreement.off()
        else:
            made = agreement.light(self, *self.near.watched)
        is_seen = self.compared == "off" or self.has_foreigners or len(self.near.ranks) == self.size
        return made if runtime.end_notices is None else runtime.end_notices.count(self, made, is_seen)

    # -- the end -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Give all back to MPI. Collective. A second close does nothing."""
        if self.is_closed:
            return
        for request in self.to_itself:
            request.wait()
        self.to_itself.clear()
        self.leave_direct()
        self.node = self.near.watched = self.message_kinds = None  # their memory may be another one's soon
        if runtime.end_notices is not None:
            runtime.end_notices.forget(self)
        self._close_all_but_carriers()
        is_unused = not self.disagreed and not vars(self).keys() & {"mpi_handle", "object_comm"}
        carriers = self.carriers
        self.lose_mpi()
        left = [self.block_channel, self.life.end(self, carriers, is_unused)]
        left += [each for each in (self.inner_comm, self.both) if each not in (None, self.block_channel)]
        if self.disagreed or self.kept_schedules is not None or "outstanding" in vars(self):
            self.outstanding.close(left, self.kept_schedules, bool(self.disagreed))
        else:
            free(left)

    def _close_all_but_carriers(self) -> None:
        self.near.leave()
        if self.exchange_channel is not None:
            self.exchange_channel[0].Free()
            if self.exchange_channel[2] is not None:
                self.exchange_channel[2].close()
        if self.devices is not None:
            self.devices.close()
        if self.partners is not None:
            self.partners.part()

    def lose_mpi(self) -> None:
        """Have no carriers any more."""
        self.mpi_handle = self.object_comm = nothing = type(self.carriers.plain)()
        self.carriers = Carriers(nothing, nothing, self.name)

    def forget_mpi(self) -> None:
        """Be as after close(): MPI is finalized."""
        self.lose_mpi()
        self.leave_direct()
        self.outstanding.forget_mpi(self.to_itself)

    @property
    def is_closed(self) -> bool:
        return not self.carriers.plain

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Messages to this rank itself have nobody else to take note of their end. Its parent keeps what was
        dropped, to close it later."""
        if not is_finalizing():  # an argument, because globals may have gone by now
            for request in getattr(self, "to_itself", ()):
                if runtime.may_call_mpi():  # Python collects garbage in any thread
                    request.done()
            home = self.life.home if "life" in vars(self) else None
            if home is not None and not self.is_closed:
                home[0].drop(home[1], self)
