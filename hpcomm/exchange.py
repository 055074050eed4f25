"""Messages from memory to memory, planned once: one persistent message for each pair of ranks.

Halos, redistribution and their reverses are all this: places in memory that are sent and places that are
filled. Several to the same rank, of one array or of many, travel as one message.

Arrays on devices travel as messages of a Communicator, one for each view. Kernels of the array's own
library gather what is strided into memory of the exchange there, and scatter what has arrived. So they are
in order on the streams that are current at start() and at wait().
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from .errors import HpcommError, LayoutError, UsageError, WaitTimeoutError, where
from .places import Rows, block, copying, count, in_one_piece, on_device, sites
from .views import alone, gathered, gathers, spec

if TYPE_CHECKING:
    from types import CodeType

    import numpy as np
    from mpi4py import MPI

    from . import buffer
    from .communicator import Communicator
    from .plan import Plan
    from .transport import mpi as transport
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.buffer")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["Exchange", "channel"]

_ONE_BY_ONE = 8  # requests up to which mpi4py is quicker in starting each than all from a list
_IN_TURN = 64  # acts that are worth a function of their own


class Exchange:
    """A planned exchange between fixed places in memory.

    start() begins it with what is in memory now; between start and wait what goes out must not change
    and what comes in must not be read. wait() ends it; calling the exchange does both.

    Args:
        comm: its ranks are the peers; every rank makes its exchanges in the same order.
        sends, receives: (peer, view of memory or Rows), for each pair of ranks in one order at both ends.
        add: numbers of the receives that are added to what is there.
        tag: number of the channel, if the caller has taken one for itself.
        aboard: between which (source, dest) one end or both lie on a device, if that is known from an
            earlier exchange of this route.
        verb: for messages.

    Raises:
        LayoutError: on a device, with no kernel to gather it, or where nobody expected it.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    # exchange(timeout=None): start() and wait(). A slot, in which a function stands: a method that looks at
    # its exchange first costs 0.1 us, a fifteenth of a small exchange.
    __call__: Callable[..., None]

    def __init__(
        self,
        comm: Communicator,
        sends: Sequence[tuple[int, Any]],
        receives: Sequence[tuple[int, Any]],
        add: Sequence[int] = (),
        tag: int | None = None,
        aboard: Collection[tuple[int, int]] | None = None,
        verb: str = "exchange",
    ) -> None:
        self._comm = comm
        self._verb = verb
        lines = channel(comm, peek=tag is not None)
        number = lines.number if tag is None else tag
        me = comm.rank
        self._keep: list[Any] | None = [view for _, view in (*sends, *receives)]
        self._types: list[MPI.Datatype] = []
        self._requests: list[MPI.Prequest] = []
        self._plans: list[Plan] = []
        self._starts: list[Callable[[], Any]] = []  # what start() does in turn, before the plans begin
        self._ends: list[Callable[[], Any]] = []  # what wait() does in turn, after the plans have ended
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
            apart: Collection[tuple[int, int]] = ()
            if tag is None or (lines.carrier is not None and aboard is None):
                apart, aboard = self._ask(lines.mpi, number, outgoing, incoming)
            if tag is not None:
                apart = ()
            self.aboard = aboard or ()
            self._sites = sites(self._keep)
            self._plan(lines, number, sorted(outgoing.items()), sorted(incoming.items()), apart)
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm) from None
        except HpcommError as error:
            raise error.located(verb, comm) from None
        out = [view for peer, view in sends if peer == me]
        own = [(i, view) for i, (peer, view) in enumerate(receives) if peer == me]
        self._own = len(own)
        self._starts += [copying(to, view, i in add) for (i, to), view in zip(own, out, strict=True)]
        self._under_way = False
        self._going: list[Plan] = []
        self._round: Callable[..., None] | None = None  # all that a call does, once it has been called
        self._is_plain = (
            not self._plans and not self._sites and len(self._starts) + len(self._ends) <= _IN_TURN
        )
        self._careful = partial(_call, ref(self))  # no circle of references: arrays go when their users do
        self.__call__ = self._careful

    def start(self) -> None:
        """Begin.

        Raises:
            UsageError: the last start was not waited for, or the exchange is closed.
        """
        if self._under_way or self._keep is None:
            what = "has been started and not waited for" if self._under_way else "is closed"
            raise UsageError(
                f"the {self._verb} {what}", where(self._verb, self._comm), "wait() after each start()"
            )
        self._under_way = True
        self.__call__ = self._careful
        self._follow()
        try:
            for act in self._starts:
                act()
        except MPI.Exception as error:
            raise transport.failure(error, self._verb, self._comm) from None
        for plan in self._plans:
            plan.start()
            self._going.append(plan)
        self._mark()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the end.

        Raises:
            UsageError: not started.
            WaitTimeoutError: timeout seconds are over; the exchange is still under way.
        """
        if not self._under_way:
            raise UsageError(
                f"the {self._verb} was not started", where(self._verb, self._comm), "start() before wait()"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if timeout is not None:
                self._poll(timeout)
            while self._going:
                self._going[0].wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                del self._going[0]
            self._follow()
            for act in self._ends:
                act()
        except MPI.Exception as error:
            self._under_way = False
            raise transport.failure(error, self._verb, self._comm) from None
        self._under_way = False
        self._mark()

    def close(self) -> None:
        """Give MPI's requests and types back; waits for an exchange under way."""
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
        self._requests, self._types, self._plans, self._sites = [], [], [], []
        self._starts, self._ends, self._round, self._keep = [], [], None, None
        self.__call__ = self._careful

    @property
    def messages(self) -> int:
        """How many messages this rank sends and receives."""
        return len(self._requests) + len(self._plans)

    def explain(self) -> str:
        """Which way the bytes take."""
        told = (
            f"{self._verb}: {len(self._requests)} persistent messages, {len(self._types)} of them by derived "
            f"datatype, {self._packed} bytes gathered before or scattered after, "
            f"{self._own} copies within this rank"
        )
        return "\n".join([told, *(f"  {plan.explain()}" for plan in self._plans)])

    # -- how ------------------------------------------------------------------------------------------
    def _ask(
        self, mpi: MPI.Comm, number: int, outgoing: Any, incoming: Any
    ) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Two sets of (source, dest).

        Those whose views go as messages of their own, because both ends would have it so; and those of
        which one end or both lie on a device.
        """
        me = self._comm.rank
        mine = {(me, p): np.array([_wish(views, sending=True)]) for p, views in outgoing.items()}
        for p, views in incoming.items():
            mine[p, me] = np.array([_wish([view for view, _ in views], sending=False)])
        theirs = {pair: np.empty_like(wish) for pair, wish in mine.items()}
        # two kinds of answers, about each direction; a pair's are told apart by their order
        going = [mpi.Irecv(theirs[me, p], p, number) for p in outgoing]
        going += [mpi.Irecv(theirs[p, me], p, number) for p in incoming]
        going += [mpi.Isend(mine[p, me], p, number) for p in incoming]
        going += [mpi.Isend(mine[me, p], p, number) for p in outgoing]
        MPI.Request.Waitall(going)
        return (
            {pair for pair in mine if mine[pair][0] & theirs[pair][0] & _ALONE},
            {pair for pair in mine if (mine[pair][0] | theirs[pair][0]) & _ABOARD},
        )

    def _plan(
        self, lines: _Channel, number: int, outgoing: Any, incoming: Any, apart: Collection[tuple[int, int]]
    ) -> None:
        """Make the messages, and say in which order they and the copies before and after them are made."""
        me = self._comm.rank
        coming: list[_Message] = []
        going: list[_Message] = []
        for peer, arriving in incoming:
            if self._goes_aboard((peer, me), [view for view, _ in arriving]):
                self._plans += [self._carried(lines, peer, number, *each) for each in arriving]
                continue
            for part in [[v] for v in arriving] if (peer, me) in apart else [arriving]:
                there, copies = self._incoming(part)
                coming.append(_Message(lines.mpi.Recv_init(there, peer, number), copies))
        for peer, leaving in outgoing:
            if self._goes_aboard((me, peer), leaving):
                self._plans += [self._carried(lines, peer, number, each) for each in leaving]
                continue
            for parts in [[v] for v in leaving] if (me, peer) in apart else [leaving]:
                there, copies = self._outgoing(parts)
                going.append(_Message(lines.mpi.Send_init(there, peer, number), copies))
        self._requests = [request for request, _ in (*coming, *going)]
        self._starts += [copy for _, copies in going for copy in copies]
        if len(self._requests) <= _ONE_BY_ONE:
            self._starts += [request.Start for request in self._requests]
            self._ends += [request.Wait for request in self._requests]
        elif self._requests:
            self._starts.append(partial(MPI.Prequest.Startall, self._requests))
            self._ends.append(partial(MPI.Request.Waitall, self._requests))
        self._ends += [copy for _, copies in coming for copy in copies]

    def _outgoing(self, views: list[Any]) -> tuple[Any, list[Callable[[], Any]]]:
        """What MPI sends, and the copies before."""
        if not gathers(views, sending=True):
            return self._described(views), []
        whole, parts = self._gathered(views)
        return self._described([whole]), [copying(*each) for each in zip(parts, views, strict=True)]

    def _incoming(self, views: list[tuple[Any, bool]]) -> tuple[Any, list[Callable[[], Any]]]:
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
        while not MPI.Request.Testall(self._requests):
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"the {self._verb} was not complete after {timeout:g} s",
                    where(self._verb, self._comm),
                    "wait again, or look for the rank that did not start its exchange",
                )
            time.sleep(2e-5)

    # -- on devices -----------------------------------------------------------------------------------
    def _goes_aboard(self, pair: tuple[int, int], views: Sequence[Any]) -> bool:
        if pair not in self.aboard and any(map(on_device, views)):
            raise LayoutError(
                "an array lies on a device, which the other rank does not expect",
                hint="arrays on devices from the first call on",
            )
        return pair in self.aboard

    def _carried(self, lines: _Channel, peer: int, tag: int, view: Any, adds: bool | None = None) -> Plan:
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
            self._starts += [] if direct else [copying(piece, view)]
            return lines.carrier.plan("send", piece, dest=peer, tag=tag)
        self._ends += [] if direct else [copying(view, piece, adds)]
        return lines.carrier.plan("recv", out=piece, source=peer, tag=tag)

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


_ALONE, _ABOARD = 1, 2


def _wish(views: Sequence[Any], sending: bool) -> int:
    """How this end would have views sent, or gets them."""
    if any(map(on_device, views)):
        return _ABOARD
    return _ALONE if alone(views, sending) else 0


def _call(exchange: ref[Exchange], timeout: float | None = None) -> None:
    """Start it and wait for it, and see to it that the next call is quick."""
    own = exchange()
    assert own is not None
    own.start()
    own.wait(timeout)
    if own._is_plain:  # and called: it will be called again
        if own._round is None:
            own._round = _in_turn(own)
        own.__call__ = own._round


def _in_turn(exchange: Exchange) -> Callable[..., None]:
    """One function that does all acts of an exchange: a loop costs 12 ns more for each of them."""
    acts = [*exchange._starts, *exchange._ends]
    scope: dict[str, Any] = {f"act{i}": act for i, act in enumerate(acts)}
    scope |= {
        "careful": exchange._careful,
        "Failure": MPI.Exception,
        "told": partial(transport.failure, verb=exchange._verb, comm=exchange._comm),
    }
    exec(_text(len(acts)), scope)
    made: Callable[..., None] = scope.pop("acts")  # left there, function and arrays would keep each other
    return made


@cache
def _text(n: int) -> CodeType:
    lines = [
        "def acts(timeout=None):",
        "    if timeout is not None:",
        "        return careful(timeout)",
        "    try:",
        *(f"        act{i}()" for i in range(n)),
        "        return None",
        "    except Failure as error:",
        "        raise told(error) from None",
    ]
    return compile("\n".join(lines), f"{__file__}:acts", "exec")


# -- channels ---------------------------------------------------------------------------------------------
class _Channel(NamedTuple):
    """mpi: for exchanges alone; carrier: for those of arrays on devices, if a rank may have such."""

    mpi: MPI.Comm
    number: int
    carrier: Communicator | None


def channel(comm: Communicator, peek: bool = False) -> _Channel:
    """Duplicates of comm for exchanges alone, and a number that tells this exchange from the others.

    The first use of a communicator is collective; closing it closes the duplicates. With peek no number is
    taken.
    """
    if comm._channel is None:
        made = comm.mpi.Dup()
        made.Set_errhandler(MPI.ERRORS_RETURN)
        carrier = None if comm._onboard is None else comm.dup(name=f"{comm.name}.exchange", check="off")
        comm._channel = [made, 0, carrier]
    if not peek:
        comm._channel[1] += 1
    return _Channel(comm._channel[0], comm._channel[1] % 32768, comm._channel[2])
