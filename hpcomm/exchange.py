"""Messages from memory to memory, planned once: one persistent message for each pair of ranks.

Halos, redistribution and their reverses are all this: views of arrays that go out and views that come
in. Several views to the same rank, of one array or of many, travel as one message. The MPI library
walks over strided memory itself, by a derived datatype, or numpy gathers it into memory of the exchange,
whichever is quicker; rows at any positions, and what is to be added on arrival, always go that way.

Views of arrays on devices travel as messages of a Communicator, one for each view. Kernels of the array's own
library gather what is strided into memory of the exchange there, and scatter what has arrived. So they are
in order on the streams that are current at start() and at wait().
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import HpcommError, LayoutError, UsageError, WaitTimeoutError, where

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from . import buffer
    from .communicator import Communicator
    from .device.arrays import Place
    from .plan import Plan
    from .transport import mpi as transport

    View = NDArray[Any]
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.buffer")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["Exchange", "Rows", "channel", "datatype", "meet", "memory", "set_zero", "strided"]

_ONE_BY_ONE = 8  # requests up to which mpi4py is quicker in starting each than all from a list
_LONG = 32 << 10  # bytes of a view in one piece that is worth a message of its own
_FEW = 4  # messages that cost less than the handshake before a longer one


class Rows:
    """Rows of an array at any positions, each there once: what a view cannot be."""

    def __init__(self, array: View, at: View) -> None:
        self.array, self.at = array, at
        self.shape = (len(at), *array.shape[1:])
        self.dtype, self.itemsize = array.dtype, array.itemsize
        self.size: int = len(at) * array[:1].size
        self.nbytes: int = self.size * array.itemsize


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
        mpi, number = lines.mpi, lines.number if tag is None else tag
        me = comm.rank
        self._keep = [view for _, view in (*sends, *receives)]
        self._types: list[MPI.Datatype] = []
        self._before: list[tuple[Any, Any]] = []  # (to, from)
        self._after: list[tuple[Any, Any, bool]] = []
        out = [view for peer, view in sends if peer == me]
        own = [(i, view) for i, (peer, view) in enumerate(receives) if peer == me]
        self._here = [(to, source, i in add) for (i, to), source in zip(own, out, strict=True)]
        self._requests: list[MPI.Prequest] = []
        self._plans: list[Plan] = []
        incoming: dict[int, list[tuple[Any, bool]]] = {}
        outgoing: dict[int, list[Any]] = {}
        for i, (peer, view) in enumerate(receives):
            if peer != me and _count(view):
                incoming.setdefault(peer, []).append((view, i in add))
        for peer, view in sends:
            if peer != me and _count(view):
                outgoing.setdefault(peer, []).append(view)
        try:
            apart: Collection[tuple[int, int]] = ()
            if tag is None or (lines.carrier is not None and aboard is None):
                apart, aboard = self._ask(mpi, number, outgoing, incoming)
            self.aboard = aboard or ()
            self._sites = self._find_sites()
            for peer, arriving in sorted(incoming.items()):
                if self._goes_aboard((peer, me), [view for view, _ in arriving]):
                    self._plans += [self._carried(lines, peer, number, *each) for each in arriving]
                    continue
                for views in [[v] for v in arriving] if tag is None and (peer, me) in apart else [arriving]:
                    self._requests.append(mpi.Recv_init(self._incoming(views), peer, number))
            for peer, leaving in sorted(outgoing.items()):
                if self._goes_aboard((me, peer), leaving):
                    self._plans += [self._carried(lines, peer, number, each) for each in leaving]
                    continue
                for parts in [[v] for v in leaving] if tag is None and (me, peer) in apart else [leaving]:
                    self._requests.append(mpi.Send_init(self._outgoing(parts), peer, number))
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm) from None
        except HpcommError as error:
            raise error.located(verb, comm) from None
        self._under_way = False
        self._going: list[Plan] = []
        self._starts: list[Any] = []
        self._waits: list[Any] = []
        if len(self._requests) <= _ONE_BY_ONE:
            self._starts = [request.Start for request in self._requests]
            self._waits = [request.Wait for request in self._requests]
        else:
            self._starts = [partial(MPI.Prequest.Startall, self._requests)]
            self._waits = [partial(MPI.Request.Waitall, self._requests)]
        more = self._before or self._after or self._here or self._plans
        self._round = () if more else (*self._starts, *self._waits)  # nothing but messages: no detour

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
        self._follow()
        for to, source in self._before:
            to[...] = source.array[source.at] if isinstance(source, Rows) else source
        for begin in self._starts:
            begin()
        for plan in self._plans:
            plan.start()
            self._going.append(plan)
        for to, source, adds in self._here:
            _land(to, source, adds)
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
            for end in self._waits:
                end()
            while self._going:
                self._going[0].wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                del self._going[0]
        except MPI.Exception as error:
            self._under_way = False
            raise transport.failure(error, self._verb, self._comm) from None
        self._under_way = False
        self._follow()
        for to, source, adds in self._after:
            _land(to, source, adds)
        self._mark()

    def __call__(self, timeout: float | None = None) -> None:
        if self._round and timeout is None and not self._under_way:
            try:
                for act in self._round:
                    act()
            except MPI.Exception as error:
                raise transport.failure(error, self._verb, self._comm) from None
            return
        self.start()
        self.wait(timeout)

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
        self._requests, self._types, self._before, self._after, self._here = [], [], [], [], []
        self._plans, self._sites, self._starts, self._waits, self._round = [], [], [], [], ()
        self._keep = None  # type: ignore[assignment]

    @property
    def messages(self) -> int:
        """How many messages this rank sends and receives."""
        return len(self._requests) + len(self._plans)

    def explain(self) -> str:
        """Which way the bytes take."""
        copies = [to for to, _ in self._before] + [source for _, source, _ in self._after]
        packed = sum(_count(each) * each.dtype.itemsize for each in copies)
        told = (
            f"{self._verb}: {len(self._requests)} persistent messages, {len(self._types)} of them by derived "
            f"datatype, {packed} bytes gathered before or scattered after, "
            f"{len(self._here)} copies within this rank"
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
        mine = {(me, p): np.array([_wish(views)]) for p, views in outgoing.items()}
        mine |= {(p, me): np.array([_wish([v for v, _ in views])]) for p, views in incoming.items()}
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

    def _goes_aboard(self, pair: tuple[int, int], views: Sequence[Any]) -> bool:
        if pair not in self.aboard and any(map(_on_device, views)):
            raise LayoutError(
                "an array lies on a device, which the other rank does not expect",
                hint="arrays on devices from the first call on",
            )
        return pair in self.aboard

    def _follow(self) -> None:
        """Let the current streams come after the last copies, in whichever streams these were."""
        for site in self._sites:
            site.device.wait(site.place.stream(), site.event)

    def _mark(self) -> None:
        for site in self._sites:
            site.device.record(site.event, site.place.stream())

    def _find_sites(self) -> list[_Site]:
        """One for each library and device whose arrays are copied here."""
        found: dict[Any, _Site] = {}
        for view in self._keep:
            if _on_device(view):
                place = _place(view)
                key = type(view), place.device.index
                if key not in found:
                    found[key] = _Site(place.device, place, place.device.event())
        return list(found.values())

    def _carried(self, lines: _Channel, peer: int, tag: int, view: Any, adds: bool | None = None) -> Plan:
        """A message of one view by the carrier; adds: for what comes in, whether it is added."""
        if lines.carrier is None:
            raise LayoutError(
                "an array lies on a device, and this communicator was made when no rank had one",
                hint="Communicator(...) after the driver is there",
            )
        look = None if isinstance(view, Rows) else buffer.as_buffer(view)
        direct = look is not None and not adds and _in_one_piece(look)
        block = view if direct else _block(view, look)
        if adds is None:
            if not direct:
                self._before.append((block, view))
            return lines.carrier.plan("send", block, dest=peer, tag=tag)
        if not direct:
            self._after.append((view, block, adds))
        return lines.carrier.plan("recv", out=block, source=peer, tag=tag)

    def _outgoing(self, views: list[Any]) -> Any:
        if not _gathers(views):
            return self._spec(views)
        whole, parts = _gathered(views)
        self._before += zip(parts, views, strict=True)
        return [whole, MPI.BYTE]

    def _incoming(self, views: list[tuple[Any, bool]]) -> Any:
        plain = [view for view, _ in views]
        if not (_gathers(plain) or any(adds for _, adds in views)):
            return self._spec(plain)
        whole, parts = _gathered(plain)
        self._after += [(view, part, adds) for (view, adds), part in zip(views, parts, strict=True)]
        return [whole, MPI.BYTE]

    def _spec(self, views: list[View]) -> Any:
        if len(views) == 1 and views[0].flags.c_contiguous and views[0].nbytes < _LARGEST:
            return [views[0].reshape(-1).view(np.uint8), MPI.BYTE]
        if len(views) == 1:
            kind = strided(views[0].shape, views[0].strides, views[0].itemsize).Commit()
            start: Any = MPI.buffer.fromaddress(views[0].__array_interface__["data"][0], views[0].itemsize)
        else:
            kind, start = datatype(views), MPI.BOTTOM
        self._types.append(kind)
        return [start, 1, kind]

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


def _land(to: Any, source: Any, adds: bool) -> None:
    if isinstance(source, Rows):
        source = source.array[source.at]
    if isinstance(to, Rows) and adds:
        to.array[to.at] += source
    elif isinstance(to, Rows):
        to.array[to.at] = source
    elif adds:
        to += source
    else:
        to[...] = source


def set_zero(place: Any) -> None:
    """Fill a view or Rows with zeros."""
    if isinstance(place, Rows):
        place.array[place.at] = np.zeros((), place.dtype)
    elif isinstance(place, np.ndarray):
        place[...] = np.zeros((), place.dtype)
    elif hasattr(place, "zero_"):
        place.zero_()
    else:
        place.fill(0)


# -- arrays on devices --------------------------------------------------------------------------------------
class _Site(NamedTuple):
    """A device where an exchange copies. event: after the last copy, whichever stream was current then."""

    device: Any
    place: Place
    event: int


def memory(look: buffer.Buffer) -> Any:
    """What an exchange takes views of: a numpy view of host memory, or the array of a device's library."""
    return look.array if look.place is None else look.place.array


def meet(a: buffer.Buffer, b: buffer.Buffer) -> bool:
    """Whether two looks share an element; on a device, whether their ranges of memory meet."""
    if a.place is None or b.place is None:
        return a.place is b.place and buffer.overlap(a.array, b.array)
    (low, high), (first, last) = _range(a), _range(b)
    return low < last and first < high


def _range(look: buffer.Buffer) -> tuple[int, int]:
    place, itemsize = look.place, look.dtype.itemsize
    assert place is not None
    if place.strides is None:
        return place.address, place.address + look.nbytes
    steps = [(n - 1) * stride for n, stride in zip(place.shape, place.strides, strict=True)]
    low = place.address + sum(min(0, step) for step in steps)
    return low, place.address + sum(max(0, step) for step in steps) + itemsize


def _on_device(view: Any) -> bool:
    return not isinstance(view, (np.ndarray, Rows))


def _place(view: Any) -> Place:
    place = buffer.as_buffer(view).place
    assert place is not None
    return place


def _in_one_piece(look: buffer.Buffer) -> bool:
    return bool(look.array.flags.c_contiguous) if look.place is None else look.place.strides is None


def _block(view: Any, look: buffer.Buffer | None) -> Any:
    """Memory in one piece for a view, where that lies."""
    if look is None or look.place is None:
        return np.empty(view.shape, view.dtype)
    return memory(look.make(look.shape))


def _count(view: Any) -> int:
    return math.prod(view.shape)


# -- views of the host's memory -----------------------------------------------------------------------------
_ALONE, _ABOARD = 1, 2


def _wish(views: Sequence[Any]) -> int:
    """How this end would have views sent, or gets them."""
    if any(map(_on_device, views)):
        return _ABOARD
    return _ALONE if _alone(views) else 0


# What the libraries do best, measured in shared memory (benchmarks/halo.py): bytes up to which they send a
# message off at once; whether strided ones that short are quick; mean length of a contiguous run, in bytes,
# below which numpy copies a longer message quicker than the library's engine for datatypes (0: never), which
# takes longer still over several views in one type.
_HABITS = {"openmpi": (4000, False, 0), "mpich": (8000, True, 1024)}


def _habits() -> tuple[int, bool, int]:
    return _HABITS["mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"]


def _alone(views: Sequence[Any]) -> bool:
    """Whether these views travel quicker as messages of their own.

    They do if each is short enough to be sent off at once and all together would not be; and if they are
    long and in one piece, so that one is under way while the next begins.
    """
    if len(views) < 2 or any(isinstance(view, Rows) for view in views):
        return False
    at_once, strided_too, _ = _habits()
    solid = all(view.flags.c_contiguous for view in views)
    if (solid or strided_too) and len(views) <= _FEW and max(view.nbytes for view in views) <= at_once:
        return bool(sum(view.nbytes for view in views) > at_once)
    return solid and all(view.nbytes >= _LONG for view in views)


def _gathers(views: Sequence[Any]) -> bool:
    """Whether what these views hold is copied by numpy into one piece, and not described to MPI."""
    if any(isinstance(view, Rows) for view in views):
        return True
    at_once, _, run = _habits()
    nbytes = sum(view.nbytes for view in views)
    if nbytes <= at_once or (len(views) == 1 and views[0].flags.c_contiguous):
        return False
    return bool(nbytes < run * min(len(views), 2) * sum(_runs(view) for view in views))


def _runs(view: View) -> int:
    """How many contiguous pieces of memory a view has."""
    run = view.itemsize
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n > 1 and stride != run:
            break
        run *= n
    return view.nbytes // run


def _gathered(views: Sequence[Any]) -> tuple[View, list[View]]:
    """Memory for all views one behind the other, and the part of each in its shape and dtype."""
    whole = np.empty(sum(view.nbytes for view in views), np.uint8)
    parts, at = [], 0
    for view in views:
        parts.append(whole[at : at + view.nbytes].view(view.dtype).reshape(view.shape))
        at += view.nbytes
    return whole, parts


_UNITS = {1: "BYTE", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T"}
_LARGEST = 1 << 30  # count of one type constructor: C ints, whatever the library could do beyond


def datatype(views: Sequence[View]) -> MPI.Datatype:
    """A committed datatype that stands for all views, by their addresses (to be used with MPI.BOTTOM)."""
    parts = [strided(view.shape, view.strides, view.itemsize) for view in views]
    addresses = [view.__array_interface__["data"][0] for view in views]
    made = MPI.Datatype.Create_struct([1] * len(parts), addresses, parts).Commit()
    for part in parts:
        part.Free()
    return made


def strided(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> MPI.Datatype:
    """Elements relative to the first, of any strides (in bytes); not committed."""
    unit = getattr(MPI, _UNITS.get(itemsize, "BYTE"))
    count = 1 if itemsize in _UNITS else itemsize
    run = itemsize
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    while axes and axes[-1][1] == run:
        n, _ = axes.pop()
        count *= n
        run *= n
    if axes and count <= _LARGEST:  # one vector for the two innermost levels, which libraries know best
        n, stride = axes.pop()
        made: MPI.Datatype = unit.Create_hvector(n, count, stride)
    else:
        made = _contiguous(unit, count)
    for n, stride in reversed(axes):
        inner, made = made, made.Create_hvector(n, 1, stride)
        inner.Free()
    return made


def _contiguous(unit: MPI.Datatype, count: int) -> MPI.Datatype:
    if count <= _LARGEST:
        return unit.Create_contiguous(count)
    whole, rest = divmod(count, _LARGEST)
    block = unit.Create_contiguous(_LARGEST)
    made = MPI.Datatype.Create_struct([whole, rest], [0, whole * _LARGEST * unit.Get_size()], [block, unit])
    block.Free()
    return made


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
