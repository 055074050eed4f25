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
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.limits import STARTED_ALONE
from ..errors import HpcommError, LayoutError, UsageError, WaitTimeoutError, where
from ..transport.datatypes import divided, gathered, gathers, spec
from ..transport.endpoints import Rows, block, copying, count, in_one_piece, on_device, sites
from ..transport.exchange_comm import Channel, channel
from .negotiation import Capabilities, agreed

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from ..communicator.communicator import Communicator
    from ..communicator.persistent import Plan
    from ..core import buffer
    from ..core.types import AnyArray
    from ..node._native import core
    from ..transport import mpi as transport
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.core.buffer")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["Exchange"]

Act = Callable[[], Any]


class Exchange:
    """A planned exchange between fixed places in memory.

    start() begins it with what is in memory now; between start and wait what goes out must not change
    and what comes in must not be read. wait() ends it; calling the exchange does both.

    Args:
        comm: its ranks are the peers; every rank makes its exchanges in the same order.
        sends, receives: (peer, view of memory or Rows), for each pair of ranks in one order at both ends.
        add: numbers of the receives that are added to what is there.
        tag: number of the channel, if the caller has taken one for itself.
        device_side: between which (source, dest) one end or both lie on a device, if that is known from an
            earlier exchange of this route.
        verb: for messages.

    Raises:
        LayoutError: on a device, with no kernel to gather it, or where nobody expected it.

    Attributes:
        tensors: whose memory it is, where autograd would have to learn of it.
    """

    tensors: tuple[Any, ...] = ()

    def __init__(
        self,
        comm: Communicator,
        sends: Sequence[tuple[int, Any]],
        receives: Sequence[tuple[int, Any]],
        add: Sequence[int] = (),
        tag: int | None = None,
        device_side: Collection[tuple[int, int]] | None = None,
        verb: str = "exchange",
    ) -> None:
        comm.check_open(verb)
        self._comm = comm
        self._verb = verb
        lines = channel(comm, peek=tag is not None)
        number = lines.number if tag is None else tag
        me = comm.rank
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
        incoming: dict[int, list[tuple[Any, bool]]] = {}
        outgoing: dict[int, list[Any]] = {}
        for i, (peer, view) in enumerate(receives):
            if peer != me and count(view):
                incoming.setdefault(peer, []).append((view, i in add))
        for peer, view in sends:
            if peer != me and count(view):
                outgoing.setdefault(peer, []).append(view)
        try:
            terms = Capabilities(device_side=device_side or ())
            if tag is None or (lines.carrier is not None and device_side is None):
                arriving = {peer: [view for view, _ in each] for peer, each in incoming.items()}
                terms = agreed(comm, lines.mpi, number, outgoing, arriving, verb, near=tag is None)
            if tag is not None:  # the other end may plan another time, and without asking
                terms = Capabilities(device_side=terms.device_side)
            self.device_side = terms.device_side
            self._sites = sites(self._keep)
            self._plan(lines, number, sorted(outgoing.items()), sorted(incoming.items()), terms)
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm) from None
        except HpcommError as error:
            raise error.located(verb, comm) from None
        out = [view for peer, view in sends if peer == me]
        own = [(i, view) for i, (peer, view) in enumerate(receives) if peer == me]
        self._own = len(own)
        self._first([copying(to, view, i in add) for (i, to), view in zip(own, out, strict=True)])
        self._under_way = False
        self._broken: BaseException | None = None  # what has ended it half-way: some messages are out of step
        self._going: list[Plan[object]] = []
        self._is_plain = not self._plans and not self._sites  # then a call is all its acts in turn
        self._calls = [[*starts, *ends] for starts, ends in zip(self._starts, self._ends, strict=True)]
        comm.outstanding.keep_exchange(self)

    def __call__(self, timeout: float | None = None) -> None:
        """Start it and wait for it."""
        for x in self.tensors:
            buffer.refuse_gradient(x)
        if timeout is not None or self._under_way or not self._is_plain or self._comm.timeout_s is not None:
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
        for x in self.tensors:
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
        timeout = self._comm.timeout_s if timeout is None else timeout
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
        return transport.failure(error, self._verb, self._comm)

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

    def forget_mpi(self) -> None:
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
    def _plan(
        self,
        lines: Channel,
        number: int,
        outgoing: Sequence[tuple[int, list[Any]]],
        incoming: Any,
        terms: Capabilities,
    ) -> None:
        """Make the messages, and say in which order they and the copies before and after them are made."""
        # Receives are started first, so that messages find them posted. Within _starts the order is copies
        # out, requests, boxes; within _ends requests, boxes, copies in. Plans of devices add to both.
        me = self._comm.rank
        coming: list[_Message] = []
        going: list[_Message] = []
        for peer, arriving in incoming:
            if peer in terms.incoming:
                continue
            if self._goes_aboard((peer, me), [view for view, _ in arriving]):
                self._plans += [self._carried(lines, peer, number, *each) for each in arriving]
                continue
            for part in [[v] for v in arriving] if (peer, me) in terms.apart else [arriving]:
                there, copies = self._incoming(part)
                coming.append(_Message(lines.mpi.Recv_init(there, peer, number), copies))
        for peer, leaving in outgoing:
            if peer in terms.outgoing:
                continue
            if self._goes_aboard((me, peer), leaving):
                self._plans += [self._carried(lines, peer, number, each) for each in leaving]
                continue
            for parts in [[v] for v in leaving] if (me, peer) in terms.apart else [leaving]:
                there, copies = self._outgoing(parts)
                going.append(_Message(lines.mpi.Send_init(there, peer, number), copies))
        self._requests = [request for request, _ in (*coming, *going)]
        self._first([copy for _, copies in going for copy in copies])
        if len(self._requests) <= STARTED_ALONE:
            self._first([request.Start for request in self._requests])
            self._then([request.Wait for request in self._requests])
        elif self._requests:
            self._first([partial(MPI.Prequest.Startall, self._requests)])
            self._then([partial(MPI.Request.Waitall, self._requests)])
        for peer, arriving in incoming:
            if peer in terms.incoming:
                self._unpack(terms.incoming[peer], arriving)
        for peer, leaving in outgoing:
            if peer in terms.outgoing:
                self._pack(terms.outgoing[peer], leaving)
        self._then([copy for _, copies in coming for copy in copies])

    def _first(self, acts: list[Act]) -> None:
        for starts in self._starts:
            starts += acts

    def _then(self, acts: list[Act]) -> None:
        for ends in self._ends:
            ends += acts

    def _pack(self, channel: core.Channel, views: list[Any]) -> None:
        """Send views through memory of the node.

        The box of the next start() is waited for in good time, at the end of wait(): so a start never waits.
        """
        for acts, box in zip(self._starts, _boxes(channel), strict=True):
            acts += [copying(*each) for each in zip(divided(box, views), views, strict=True)]
            acts.append(channel.fill)
        self._then([partial(channel.empty_box, True)])
        self._due.append(partial(channel.empty_box, False))

    def _unpack(self, channel: core.Channel, views: list[tuple[Any, bool]]) -> None:
        """Receive views through memory of the node."""
        for acts, box in zip(self._ends, _boxes(channel), strict=True):
            parts = divided(box, [view for view, _ in views])
            acts.append(partial(channel.full_box, True))
            acts += [copying(view, part, adds) for (view, adds), part in zip(views, parts, strict=True)]
            acts.append(channel.free)
        self._due.append(partial(channel.full_box, False))

    def _outgoing(self, views: list[object]) -> tuple[Any, list[Callable[[], object]]]:
        """What MPI sends, and the copies before."""
        if not gathers(views, sending=True):
            return self._described(views), []
        whole, parts = self._gathered(views)
        return self._described([whole]), [copying(*each) for each in zip(parts, views, strict=True)]

    def _incoming(self, views: list[tuple[object, bool]]) -> tuple[Any, list[Callable[[], object]]]:
        """Where MPI receives, and the copies afterwards."""
        plain = [view for view, _ in views]
        if not (gathers(plain, sending=False) or any(adds for _, adds in views)):
            return self._described(plain), []
        whole, parts = self._gathered(plain)
        copies = [copying(view, part, adds) for (view, adds), part in zip(views, parts, strict=True)]
        return self._described([whole]), copies

    def _described(self, views: list[Any]) -> Any:
        described, made = spec(views)
        self._types += made
        return described

    def _gathered(self, views: list[Any]) -> Any:
        whole, parts = gathered(views)
        self._packed += whole.nbytes
        return whole, parts

    def _poll(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._is_due():
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"the {self._verb} was not complete after {timeout:g} s",
                    where(self._verb, self._comm),
                    "wait again, or look for the rank that did not start its exchange",
                )
            time.sleep(2e-5)

    def _is_due(self) -> bool:
        try:
            return MPI.Request.Testall(self._requests) and all(due() for due in self._due)
        except MPI.Exception as error:
            raise self._failure(error) from None

    # -- on devices -----------------------------------------------------------------------------------
    def _goes_aboard(self, pair: tuple[int, int], views: Sequence[object]) -> bool:
        if pair not in self.device_side and any(map(on_device, views)):
            raise LayoutError(
                "an array lies on a device, which the other rank does not expect",
                hint="arrays on devices from the first call on",
            )
        return pair in self.device_side

    def _carried(
        self, lines: Channel, peer: int, tag: int, view: Any, adds: bool | None = None
    ) -> Plan[object]:
        """A message of one view by the carrier; adds: for what comes in, whether it is added."""
        if lines.carrier is None:
            raise LayoutError(
                "an array lies on a device, and this communicator was made when no rank had one",
                hint="Communicator(...) after the driver is there",
            )
        look = None if isinstance(view, Rows) else buffer.as_buffer(view)
        direct = look is not None and not adds and in_one_piece(look)
        piece = view if direct else block(view, look)
        self._packed += 0 if direct else count(view) * view.dtype.itemsize
        if adds is None:
            self._first([] if direct else [copying(piece, view)])
            sending: Plan[object] = lines.carrier.plan("send", piece, dest=peer, tag=tag)
            return sending
        self._then([] if direct else [copying(view, piece, adds)])
        receiving: Plan[object] = lines.carrier.plan("recv", out=piece, source=peer, tag=tag)
        return receiving

    def _follow(self) -> None:
        """Let the current streams come after the last copies, in whichever streams these were."""
        for site in self._sites:
            site.device.wait(site.place.stream(), site.event)

    def _mark(self) -> None:
        for site in self._sites:
            site.device.record(site.event, site.place.stream())


class _Message(NamedTuple):
    """copies: before it is sent, or after it has arrived."""

    request: MPI.Prequest
    copies: list[Callable[[], Any]]


def _boxes(channel: core.Channel) -> tuple[AnyArray, AnyArray]:
    """The memory of both boxes of a channel."""
    both = np.frombuffer(memoryview(channel), np.uint8)
    return both[: both.size // 2], both[both.size // 2 :]
