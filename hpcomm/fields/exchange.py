"""Planned exchanges between fixed places in memory: one persistent message per pair of ranks.

Halos, redistribution and their reverses are all this: places in memory that are sent and places that are
filled. Several to the same rank, of one array or of many, travel as one message. How a message travels is
decided when the exchange is planned (_plan):

    to a rank of the node, small, both ends agree   copy into a box of shared memory (node/channels.py)
    an end on a device                              one plan of a Communicator per view
    else                                            one persistent message of MPI: a derived datatype, or
                                                    packed before and unpacked after (transport/datatypes.py)

    planned ── start() ──> under way ── wait() ──> planned          exchange() is start() and wait()
               copy out,                wait for requests,
               start requests           plans and boxes, copy in

_starts and _ends list what start() and wait() do, once for each of the two boxes of every channel (turn 0 and
1).

Arrays on devices travel as messages of a Communicator, one for each view. Kernels of the array's own library
pack what is strided into memory of the exchange there, and unpack what has arrived. So they are in order on
the streams that are current at start() and at wait().
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from .._lazy import MPI, np
from ..communicator.communicator import Communicator
from ..communicator.making.groups import Channel, channel
from ..communicator.verbs.persistent import Plan, Plans
from ..core.limits import STARTED_ALONE
from ..core.patience import patience, until
from ..core.present import calling
from ..core.types import AnyArray
from ..errors import HpcommError, LayoutError, UsageError, incomplete, located, where
from ..node.native import native_core as core
from ..node.present import enter, leave
from ..transport.datatypes import divided, gathered, gathers, spec
from ..transport.endpoints import Rows, block, copying, count, in_one_piece, on_device, sites
from ..transport.late import buffer, transport
from .negotiation import Capabilities, agreed

Act = Callable[[], Any]
Place = tuple[Any, "bool | None"]  # a view, and whether what arrives is added to it; None: it is sent


class Moves(NamedTuple):
    """What goes from and to this rank: (peer, view of memory or Rows), for each pair of ranks in one order at
    both ends. add: numbers of the receives that are added to what is there."""

    sends: Sequence[tuple[int, Any]]
    receives: Sequence[tuple[int, Any]]
    add: Collection[int] = ()


class Exchange:
    """A planned exchange between fixed places in memory.

    start() begins it with what is in memory now; between start and wait what goes out must not change
    and what comes in must not be read. wait() ends it; calling the exchange does both.

    Args:
        comm: its ranks are the peers; every rank makes its exchanges in the same order.
        tag: number of the channel, if the caller has taken one for itself.
        device_side: between which (source, dest) one end or both lie on a device, if that is known from an
            earlier exchange of this route.
        verb: for messages.

    Raises:
        LayoutError: on a device, with no kernel to gather it, or where nobody expected it.

    Attributes:
        sources, sends: other ranks of which it gets something; bytes that go to each.
    """

    _tensors: tuple[Any, ...] = ()  # whose memory it is, where autograd would have to learn of it

    def __init__(
        self,
        comm: Communicator,
        moves: Moves,
        tag: int | None = None,
        device_side: Collection[tuple[int, int]] | None = None,
        verb: str = "exchange",
    ) -> None:
        comm.context.check_open(verb)
        self._comm = comm
        self._verb = verb
        lines = channel(comm.context, peek=tag is not None)
        if tag is not None:
            lines = lines._replace(number=tag)
        sends, receives, add = moves
        self._keep: list[Any] | None = [view for _, view in (*sends, *receives)]
        self._types: list[MPI.Datatype] = []
        self._requests: list[MPI.Prequest] = []
        self._plans: list[Plan[object]] = []
        # what start() does in turn before the plans begin, and wait() after they have ended; of calls that
        # go through the first and the second of the boxes of each channel
        self._starts: tuple[list[Act], list[Act]] = ([], [])
        self._ends: tuple[list[Act], list[Act]] = ([], [])
        self._due: list[Callable[[], bool]] = []  # whether a channel is ready for what wait() does with it
        self._next = cycle((0, 1)).__next__
        self._turn = 0  # which of the two it is
        self._packed = 0  # bytes
        incoming = _by_peer(receives, [i in add for i in range(len(receives))])
        outgoing = _by_peer(sends, [None] * len(sends))
        own = zip(incoming.pop(comm.rank, []), outgoing.pop(comm.rank, []), strict=True)
        self.sources = [*incoming]
        self.sends = {
            peer: sum(count(x) * x.dtype.itemsize for x, _ in places) for peer, places in outgoing.items()
        }
        try:
            with located(verb, comm), calling(comm.context, verb):
                terms = self._terms(lines, outgoing, incoming, tag, device_side)
                self.device_side = terms.device_side
                self._sites = sites(self._keep)
                self._plan(lines, outgoing, incoming, terms)
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm.context) from None
        within = [copying(to, view, bool(adds)) for (to, adds), (view, _) in own]
        self._own = len(within)
        self._first(within)
        self._under_way = False
        self._broken: BaseException | None = None  # what has ended it half-way: some messages are out of step
        self._going: list[Plan[object]] = []
        self._is_plain = not self._plans and not self._sites  # then a call is all its acts in turn
        self._calls = [[*starts, *ends] for starts, ends in zip(self._starts, self._ends, strict=True)]
        comm.context.outstanding.keep_exchange(self, Exchange._forget_mpi)

    def __call__(self, timeout: float | None = None) -> None:
        """Start it and wait for it."""
        for x in self._tensors:
            buffer.refuse_gradient(x)
        is_timed = timeout is not None or self._comm.timeout is not None
        if is_timed or self._under_way or not self._is_plain:
            self.start()
            self.wait(timeout)
        else:
            self._act(self._calls[self._next()])

    def start(self) -> None:
        """Begin.

        Raises:
            UsageError: the last start was not waited for, the exchange is closed, or an error has ended it.
                Or a tensor has come to need a gradient.
        """
        for x in self._tensors:
            buffer.refuse_gradient(x)
        if self._under_way or self._keep is None:
            raise self._misuse("is closed" if self._keep is None else "has been started and not waited for")
        self._under_way = True
        self._follow()
        self._turn = self._next()
        self._act(self._starts[self._turn])
        for plan in self._plans:
            plan.start()
            self._going.append(plan)
        self._mark()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises:
            UsageError: not started, or an error has ended it.
            WaitTimeoutError: timeout seconds are over; the exchange is still under way.
            PeerFailedError: a rank of this node that it needs has ended.
        """
        if not self._under_way or self._broken:
            raise self._misuse("was not started")
        timeout = patience(self._comm.context) if timeout is None else timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        if timeout is not None:
            self._poll(timeout)
        while self._going:
            self._going[0].wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            del self._going[0]
        self._follow()
        self._act(self._ends[self._turn])
        self._under_way = False
        self._mark()

    def _act(self, acts: Iterable[Act]) -> None:
        try:
            for act in acts:
                act()
        except MPI.Exception as error:
            raise self._failure(error) from None
        except BaseException as error:
            self._under_way, self._broken = True, error
            raise

    def _failure(self, error: MPI.Exception) -> HpcommError:
        self._under_way, self._broken = True, error
        return transport.failure(error, self._verb, self._comm.context)

    def _misuse(self, what: str) -> UsageError:
        if self._broken is not None:
            what = f"was broken off ({type(self._broken).__name__}: {self._broken})"
        hint = "start(), then wait(), in turn; what was broken off or closed is to be made anew, on all ranks"
        return UsageError(f"the {self._verb} {what}", where(self._verb, self._comm), hint)

    def close(self) -> None:
        """Give MPI's requests and types back; waits for an exchange under way."""
        if self._broken is not None:
            return  # MPI may be at work on it still
        if self._under_way:
            self.wait()
        for request in self._requests:
            request.Free()
        for kind in self._types:
            kind.Free()
        for plan in self._plans:
            plan.close()
        for site in self._sites:
            site.device.destroy_event(site.event)
        self._forget()

    def _forget_mpi(self) -> None:
        """Be as after close(): MPI is finalized."""
        self._under_way = False
        self._forget()

    def _forget(self) -> None:
        self._requests, self._types, self._plans, self._sites, self._due = [], [], [], [], []
        self._starts, self._ends, self._calls, self._is_plain = ([], []), ([], []), [], False  # and channels
        self._keep = None

    @property
    def messages(self) -> int:
        """How many messages this rank sends and receives."""
        return len(self._requests) + len(self._plans) + len(self._due)

    def explain(self) -> str:
        """Which way the bytes take."""
        told = (
            f"{self._verb}: {len(self._due)} messages through memory of this node, {len(self._requests)} "
            f"persistent ones of MPI, {len(self._types)} of them by derived datatype, "
            f"{self._packed} bytes gathered before or scattered after, "
            f"{self._own} copies within this rank"
        )
        return "\n".join([told, *(f"  {plan.explain()}" for plan in self._plans)])

    # -- how ------------------------------------------------------------------------------------------
    def _terms(
        self,
        lines: Channel,
        outgoing: Mapping[int, list[Place]],
        incoming: Mapping[int, list[Place]],
        tag: int | None,
        device_side: Collection[tuple[int, int]] | None,
    ) -> Capabilities:
        """What is agreed with the other ends. With a tag they may plan another time, and without asking."""
        if tag is not None and (lines.carrier is None or device_side is not None):
            return Capabilities(device_side=device_side or ())
        leaving, arriving = (
            {peer: [view for view, _ in places] for peer, places in each.items()}
            for each in (outgoing, incoming)
        )
        terms = agreed(self._comm, lines, leaving, arriving, self._verb, near=tag is None)
        return terms if tag is None else Capabilities(device_side=terms.device_side)

    def _plan(
        self,
        lines: Channel,
        outgoing: Mapping[int, list[Place]],
        incoming: Mapping[int, list[Place]],
        terms: Capabilities,
    ) -> None:
        """Make the messages, and say in which order they and the copies before and after them are made."""
        # Receives are started first, so that messages find them posted. Within _starts the order is copies
        # out, requests, boxes; within _ends requests, boxes, copies in. Plans of devices add to both.
        coming, copies_in = self._messages(lines, incoming, terms, sending=False)
        going, copies_out = self._messages(lines, outgoing, terms, sending=True)
        self._requests = [*coming, *going]
        self._first(copies_out)
        if len(self._requests) <= STARTED_ALONE:
            self._first([request.Start for request in self._requests])
            self._then([partial(_waited, self._comm, self._verb, each.Wait) for each in self._requests])
        else:
            self._first([partial(MPI.Prequest.Startall, self._requests)])
            wait_all = partial(MPI.Request.Waitall, self._requests)
            self._then([partial(_waited, self._comm, self._verb, wait_all)])
        me = self._comm.rank
        for source, dest in terms.channels:
            if dest == me:
                self._unpack(terms.channels[source, me], incoming[source])
        for source, dest in terms.channels:
            if source == me:
                self._pack(terms.channels[me, dest], outgoing[dest])
        self._then(copies_in)

    def _messages(
        self,
        lines: Channel,
        by_peer: Mapping[int, list[Place]],
        terms: Capabilities,
        sending: bool,
    ) -> tuple[list[MPI.Prequest], list[Act]]:
        """MPI's messages of one direction, and the copies before or after them; by device, they are plans."""
        requests, copies, me = [], [], self._comm.rank
        init: Callable[..., MPI.Prequest] = lines.mpi.Send_init if sending else lines.mpi.Recv_init
        for peer, places in by_peer.items():
            pair = (me, peer) if sending else (peer, me)
            if pair in terms.channels:
                continue
            if self._goes_aboard(pair, places):
                self._plans += [self._carried(lines, peer, *place) for place in places]
                continue
            for part in [[place] for place in places] if pair in terms.apart else [places]:
                there, its = self._described(part, sending)
                requests.append(init(there, peer, lines.number))
                copies += its
        return requests, copies

    def _first(self, acts: list[Act]) -> None:
        for starts in self._starts:
            starts += acts

    def _then(self, acts: list[Act]) -> None:
        for ends in self._ends:
            ends += acts

    def _pack(self, channel: core.Channel, places: list[Place]) -> None:
        """Send views through memory of the node.

        The box of the next start() is waited for in good time, at the end of wait(): so a start never waits.
        """
        for acts, box in zip(self._starts, _boxes(channel), strict=True):
            acts += [*_copies(places, divided(box, [view for view, _ in places])), channel.fill]
        self._then([partial(channel.empty_box, True)])
        self._due.append(partial(channel.empty_box, False))

    def _unpack(self, channel: core.Channel, places: list[Place]) -> None:
        """Receive views through memory of the node."""
        for acts, box in zip(self._ends, _boxes(channel), strict=True):
            copies = _copies(places, divided(box, [view for view, _ in places]))
            acts += [partial(channel.full_box, True), *copies, channel.free]
        self._due.append(partial(channel.full_box, False))

    def _described(self, places: list[Place], sending: bool) -> tuple[Any, list[Act]]:
        """What MPI sends or fills, and the copies before or afterwards."""
        views, copies = [view for view, _ in places], []
        if gathers(views, sending=sending) or any(adds for _, adds in places):
            whole, parts = gathered(views)
            self._packed += whole.nbytes
            views, copies = [whole], _copies(places, parts)
        described, made = spec(views)
        self._types += made
        return described, copies

    def _poll(self, timeout: float) -> None:
        if not until(self._is_due, timeout):
            place = where(self._verb, self._comm)
            raise incomplete(f"the {self._verb}", timeout, place, "start its exchange")

    def _is_due(self) -> bool:
        try:
            return MPI.Request.Testall(self._requests) and all(due() for due in self._due)
        except MPI.Exception as error:
            raise self._failure(error) from None

    # -- on devices -----------------------------------------------------------------------------------
    def _goes_aboard(self, pair: tuple[int, int], places: Sequence[Place]) -> bool:
        if pair not in self.device_side and any(on_device(view) for view, _ in places):
            raise LayoutError(
                "an array lies on a device, which the other rank does not expect",
                hint="arrays on devices from the first call on",
            )
        return pair in self.device_side

    def _carried(self, lines: Channel, peer: int, view: Any, adds: bool | None) -> Plan[object]:
        """A message of one view by the carrier; adds: see Place."""
        if lines.carrier is None:
            raise LayoutError(
                "an array lies on a device, and this communicator was made when no rank had one",
                hint="Communicator(...) after the driver is there",
            )
        look, tag = None if isinstance(view, Rows) else buffer.as_buffer(view), lines.number
        direct = look is not None and not adds and in_one_piece(look)
        piece = view if direct else block(view, look)
        self._packed += 0 if direct else count(view) * view.dtype.itemsize
        copies = [] if direct else _copies([(view, adds)], [piece])
        if adds is None:
            self._first(copies)
            sending: Plan[object] = Plans(lines.carrier).plan("send", piece, dest=peer, tag=tag)
            return sending
        self._then(copies)
        receiving: Plan[object] = Plans(lines.carrier).plan("recv", out=piece, source=peer, tag=tag)
        return receiving

    def _follow(self) -> None:
        """Let the current streams come after the last copies, in whichever streams these were."""
        for site in self._sites:
            site.device.wait(site.place.stream(), site.event)

    def _mark(self) -> None:
        for site in self._sites:
            site.device.record(site.event, site.place.stream())


def _by_peer(views: Sequence[tuple[int, Any]], added: Sequence[bool | None]) -> dict[int, list[Place]]:
    """The places that are not empty, by the rank at the other end, in order."""
    found: dict[int, list[Place]] = {}
    for (peer, view), adds in zip(views, added, strict=True):
        if count(view):
            found.setdefault(peer, []).append((view, adds))
    return dict(sorted(found.items()))


def _copies(places: Sequence[Place], parts: Sequence[Any]) -> list[Act]:
    """The copies into parts of what is sent, or out of them of what has arrived."""
    return [
        copying(part, view) if adds is None else copying(view, part, adds)
        for (view, adds), part in zip(places, parts, strict=True)
    ]


def _boxes(channel: core.Channel) -> tuple[AnyArray, AnyArray]:
    """The memory of both boxes of a channel."""
    both = np.frombuffer(memoryview(channel), np.uint8)
    return both[: both.size // 2], both[both.size // 2 :]


def _waited(comm: Communicator, verb: str, wait: Act) -> None:
    try:
        enter(comm.context, verb, None, None, None)
        wait()
    finally:
        leave()
