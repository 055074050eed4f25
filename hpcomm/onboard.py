"""Calls whose arrays lie on devices, and large ones of ranks that could have brought such.

A communicator of which some rank has a device has one Onboard. Up to `eager` bytes per rank a call is one
MPI call on pinned memory, so it meets ranks whose arrays are numpy's. Above that all ranks, wherever their
arrays lie, go through here: the call becomes a call for each piece of columns (staging.py), and a message
becomes a card, an answer, and pieces on a communicator of their own.
"""

from __future__ import annotations

import itertools
import os
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from . import compose
from .buffer import Buffer, DeviceBuffer, as_buffer
from .call import Call
from .device.driver import watching
from .errors import ConfigError, LayoutError, MismatchError, UsageError, where
from .transport import ipc
from .transport import mpi as transport
from .transport.progress import drive
from .transport.staging import After, DeviceSink, DeviceSource, Sink, Source, sink_of, source_of, station

if TYPE_CHECKING:
    from .communicator import Communicator
    from .device.arrays import Place
    from .request import Stages

__all__ = ["EAGER", "PIECE", "Onboard"]

EAGER = 1 << 20  # bytes of a rank's block up to which a call is one MPI call
PIECE = 1 << 20  # bytes of pinned memory a piece takes
_CARD = 1024  # bytes of what announces a large message
_MAGIC = b"\x93hpcomm device message\0"
_CUTS = ("scatter", "reduce_scatter", "all_to_all")  # x has a block for each rank,
_STACKS = ("gather", "all_gather", "all_to_all")  # the result has
_opened = ipc.Opened()
_NOT_BUILT = "direct (CUDA-aware MPI) and NCCL: refused, hpcomm has no such path yet"
PATHS = ("auto", "pipeline", "ipc")


class Onboard:
    """What a communicator has for arrays on devices."""

    def __init__(self, comm: Communicator) -> None:
        self.eager = EAGER
        self._between = comm.is_inter  # groups, which agree about nothing: calls of any size are one MPI call
        said = os.environ.get("HPCOMM_GPU")
        self.forced = "auto" if not said or said == "off" else said  # off here, and a device on another rank
        if self.forced not in PATHS:
            raise ConfigError(
                f"HPCOMM_GPU={self.forced} is no path of device arrays", hint=f"off, {', '.join(PATHS)}"
            )
        self.plain = watching(comm.mpi)
        self.channel = watching(comm.mpi.Dup())
        self._line: list[_Ticket] = []
        self._serial = itertools.count()
        self._opened = _opened
        self.paths: dict[
            tuple[str, int], tuple[str, str]
        ] = {}  # ("to" or "from", rank) -> path, why no better

    def close(self) -> None:
        self.channel.Free()

    def takes(self, *looks: Buffer | None, block: int) -> bool:
        """Whether a call on these arrays, block bytes for each rank, is carried out here."""
        return _on_device(*looks) or (block > self.eager and not self._between)

    def explain(self, call: Call) -> str:
        """Which way the bytes of a call take, and why no better one."""
        place, nbytes = call.look.place, call.count * call.look.dtype.itemsize
        where = "x in host memory" if place is None else f"x on {place.name}"
        message = call.verb in ("send", "recv")
        if message:
            nbytes = call.look.nbytes
        if self._between or nbytes <= self.eager:
            why = "between groups always" if self._between else "so that ranks with host arrays can take part"
            return f"{where}, through pinned memory in one MPI call, {why}; {_NOT_BUILT}"
        if not message:
            return (
                f"{where}, through pinned memory in pieces of {PIECE} bytes, on streams of its own; "
                f"ipc: refused, it carries messages only; {_NOT_BUILT}"
            )
        key = "to" if call.verb == "send" else "from", call.peer
        if key not in self.paths:
            return f"{where}, decided with the other rank at the first message; HPCOMM_GPU={self.forced}"
        path, why = self.paths[key]
        return f"{where}, by {path}" + (f"; ipc: refused, {why}" if why else "") + f"; {_NOT_BUILT}"

    # -- collectives ---------------------------------------------------------------------------------

    def carry(
        self, call: Call, send: Buffer | None, recv: Buffer | None, op: Any, fold: Any, blocking: bool
    ) -> Call:
        """Let call, on arrays of which some may lie on devices, be carried out here."""
        _comm, _verb = call.comm, call.verb
        if fold is not None and fold.fold is not None and _on_device(send, recv):
            raise UsageError(
                "a function as op folds arrays of the host", hint="op by name, such as 'sum'; or x.cpu()"
            )
        if send is not None and recv is not None:
            _refuse_overlap(call, send, recv)
        if recv is not None and recv.place is not None and recv.frozen:
            raise LayoutError(f"out {recv.frozen}", hint="give a contiguous array that can be written")
        large = call.count * call.look.dtype.itemsize > self.eager and not self._between
        after = call.after = After()

        def stages() -> Stages:
            after.renew()
            columns = self._columns(call, send, recv, op, large, blocking, after)
            next(columns)  # what the current stream holds now is what counts
            return self._in_turn(columns) if large else columns

        def background() -> Stages:
            coming = stages()
            yield from coming
            return call.finish(None)

        def carry() -> None:
            drive(stages())
            after.order()

        call.carry, call.stages = carry, background
        call.finish = lambda status: recv.give() if recv is not None else None
        return call

    def _columns(
        self, call: Call, send: Buffer | None, recv: Buffer | None, op: Any, large: bool,
        blocking: bool, after: After,
    ) -> Stages:  # fmt: skip
        """The stages of a collective; the first yield comes before its turn."""
        comm, verb, count = call.comm, call.verb, call.count
        p = comm.remote_size if comm.is_inter else comm.size
        here = SimpleNamespace(rank=comm.rank, size=comm.size, is_inter=comm.is_inter, name=comm.name,
                               remote_size=comm.remote_size, mpi=self.channel if large else self.plain,
                               _onboard=None)  # fmt: skip
        blocks_in = (comm.size if verb == "reduce_scatter" else p) if verb in _CUTS else 1
        blocks_out = p if verb in _STACKS else 1
        piece = count if not large else _piece(count, max(blocks_in, blocks_out), call.look.dtype.itemsize)
        source = None if send is None else source_of(send, blocks_in, count, piece, recv)
        in_place = verb == "broadcast" and send is not None and send is recv
        sink = None if recv is None or in_place else sink_of(recv, blocks_out, count, piece)
        pieces = [(low, min(low + piece, count)) for low in range(0, count, max(piece, 1))] or [(0, 0)]
        if source is not None:
            source.begin()
            source.bring(*pieces[0])
        if sink is not None:
            sink.begin()
        yield []
        if large:
            anywhere = bytearray([_on_device(send, recv)])
            yield [self.channel.Iallreduce(MPI.IN_PLACE, [anywhere, MPI.BYTE], MPI.BOR)]
            if not anywhere[0]:  # large arrays, but all of them the host's
                pieces = [(0, count)]
        for i, (low, high) in enumerate(pieces):
            waits = [*(source.landed() if source else ()), *(sink.free() if sink else ())]
            if large and waits:
                yield waits
            else:  # so that MPI's call is begun in the order in which the user makes calls
                for each in waits:
                    each.Wait()
            x = None if source is None else _part(source, low, high, call, verb in _CUTS)
            out = x if in_place else None if sink is None else _part(sink, low, high, call, verb in _STACKS)
            if source is not None and i + 1 < len(pieces):
                source.bring(*pieces[i + 1])
            part = compose.compose(here, verb, x, out, op, call.root, blocking)  # type: ignore[arg-type]
            if blocking:
                transport.run(part)
            else:
                yield from transport.background(part)
            if sink is not None:
                sink.deliver(low, high)
        if source is not None:
            source.end()
        if sink is not None:
            sink.end(after)
        return None

    def _in_turn(self, stages: Stages) -> Stages:
        """Collectives of several MPI calls: one after the other, in the order in which they were made."""
        ticket = _Ticket(self._line)
        try:
            if self._line[0] is not ticket:
                yield [ticket]
            return (yield from stages)
        finally:
            self._line.remove(ticket)

    def copy(self, look: Buffer) -> Buffer:
        """The same elements in memory of their own, made in the current stream."""
        if look.place is None:
            made = look.make(look.shape)
            made.array[...] = look.array
            return made
        if look.place.pack is None:
            raise LayoutError(
                "this message needs a copy of x, and no kernel is known to make one", hint="isend and recv"
            )
        return as_buffer(look.place.pack())

    # -- messages ------------------------------------------------------------------------------------

    def send(self, call: Call, look: Buffer, copy: bool = False) -> Call:
        """Let a message be sent from an array anywhere; copy: the array may be changed at once."""
        if copy:
            look = self.copy(look)
        count = look.size
        whole = look.nbytes <= self.eager or self._between or call.peer == MPI.PROC_NULL

        after = call.after = After()

        def stages() -> Stages:
            after.renew()
            if whole:
                source = source_of(look, 1, count, count)
                source.begin()
                yield from self._send_whole(call, look, source, count)
                source.end()
            else:
                place = look.packed() if isinstance(look, DeviceBuffer) else None
                if place is not None:  # now: what the current stream holds at this moment is what counts
                    station(place.device).follow(station(place.device).down, place)
                yield from self._send_large(call, look, place, after)
            return call.finish(None)

        def carry() -> None:
            drive(stages())
            after.order()

        call.carry, call.stages = carry, stages
        return call

    def _send_whole(self, call: Call, look: Buffer, source: Source, count: int) -> Stages:
        source.bring(0, count)
        for each in source.landed():
            each.Wait()
        array = source.columns(0, count)
        yield [self.plain.Isend(transport.spec(array, count, look.dtype), call.peer, call.tag)]

    def _send_large(self, call: Call, look: Buffer, place: Place | None, after: After) -> Stages:
        """Card, answer, data. The card goes in the order of the user's messages, and holds no data."""
        tag = 2 * (next(self._serial) % (transport.largest_tag() // 2 - 1))
        kept, offer = self._offer(look, place)
        lanes = kept.take() if isinstance(kept, ipc.Slab) else None
        if isinstance(kept, ipc.Slab) and place is not None:
            if lanes is None:
                offer = "all slots of the sender's slab are in use"
            else:
                offer = kept.offer(lanes, place, look.nbytes)
                if offer.direct is not None:
                    place.device.record(lanes[0].ready, station(place.device).down)
        card, answer = _pack((look.nbytes, tag, offer)), bytearray(_CARD)
        yield [
            self.channel.Irecv([answer, MPI.BYTE], call.peer, tag + 1),
            self.plain.Isend([card, MPI.BYTE], call.peer, call.tag),
        ]
        fits, piece, path, why = _unpack(answer)
        if not fits:
            if isinstance(kept, ipc.Slab) and lanes is not None:
                kept.free += lanes
            raise _misfit(call, look.nbytes)
        self.paths["to", call.peer] = path, why
        if path == "pipeline":
            yield from self._send_pieces(call, look, place, piece, tag)
        else:
            assert place is not None
            assert isinstance(kept, ipc.Slab)
            assert lanes is not None
            direct = path == "ipc, opened itself"
            yield from ipc.sends(self.channel, tag, call.peer, place, look.nbytes, kept, lanes, direct)
            after.leave(station(place.device), station(place.device).down, place)
        if isinstance(kept, ipc.Slab) and lanes is not None:
            kept.free += lanes

    def _offer(self, look: Buffer, place: Place | None) -> tuple[Any, Any]:
        """The slab for an array, or why there is none, which the receiver is told."""
        if place is None:
            return None, "x is in host memory"
        if self.forced == "pipeline":
            return None, "HPCOMM_GPU=pipeline forces it"
        kept = ipc.slab(place.device)
        return kept, None if isinstance(kept, ipc.Slab) else f"the sender cannot export memory: {kept}"

    def _send_pieces(self, call: Call, look: Buffer, place: Place | None, piece: int, tag: int) -> Stages:
        count = look.size
        source = Source(look, 1, None) if place is None else DeviceSource(place, 1, count, piece)
        pieces = [(low, min(low + piece, count)) for low in range(0, count, piece)]
        source.bring(*pieces[0])
        going: list[Any] = []
        for i, (low, high) in enumerate(pieces):
            if waits := source.landed():
                yield waits
            part = transport.spec(source.columns(low, high), high - low, look.dtype)
            before, going = going, [self.channel.Isend(part, call.peer, tag)]
            if before:
                yield before
            if i + 1 < len(pieces):
                source.bring(*pieces[i + 1])
        yield going
        source.end()

    def recv(self, call: Call, look: Buffer, seen: MPI.Status) -> Call:
        """Let a message be received into an array that may lie on a device; seen: filled."""
        count = look.size
        if look.place is not None and look.frozen:
            raise LayoutError(f"out {look.frozen}", hint="give a contiguous array that can be written")
        whole = look.nbytes <= self.eager or self._between or call.peer == MPI.PROC_NULL
        after = call.after = After()

        def stages() -> Stages:
            after.renew()
            if whole:
                sink = sink_of(look, 1, count, count)
                sink.begin()
                yield from self._recv_whole(call, look, sink, count, seen)
                if call.peer != MPI.PROC_NULL:
                    sink.end(after)
            else:
                if look.place is not None:  # now, as in send
                    station(look.place.device).follow(station(look.place.device).up, look.place)
                yield from self._recv_large(call, look, seen, after)
            return call.finish(seen)

        def carry() -> None:
            drive(stages())
            after.order()

        call.carry, call.stages = carry, stages
        return call

    def _recv_whole(self, call: Call, look: Buffer, sink: Sink, count: int, seen: MPI.Status) -> Stages:
        for each in sink.free():
            each.Wait()
        part = transport.spec(sink.columns(0, count), count, look.dtype)
        statuses = yield [self.plain.Irecv(part, call.peer, call.tag)]
        _copy_status(statuses[0], seen)
        if call.peer != MPI.PROC_NULL:
            transport.check_length(call.comm, "recv", seen, look.nbytes)
            sink.deliver(0, count)

    def _recv_large(self, call: Call, look: Buffer, seen: MPI.Status, after: After) -> Stages:
        card = bytearray(_CARD)
        statuses = yield [self.plain.Irecv([card, MPI.BYTE], call.peer, call.tag)]
        _copy_status(statuses[0], seen)
        if not card.startswith(_MAGIC):
            raise _misfit(call, seen.Get_elements(MPI.BYTE), look.nbytes)
        yield from self.announced(call, look, card, seen, after)

    def announced(
        self, call: Call, look: Buffer, card: bytearray, seen: MPI.Status, after: After | None
    ) -> Stages:
        """Receive the large message that a card has announced."""
        place, source = look.place, seen.Get_source()
        nbytes, tag, offer = _unpack(card)
        fits = nbytes == look.nbytes
        why, base, direct = self._judge(offer, place) if fits else ("", 0, None)
        path = "pipeline" if why else "ipc, opened itself" if direct is not None else "ipc, through the slab"
        both_hosts = place is None and offer == "x is in host memory"
        piece = look.size if both_hosts else _piece(look.size, 1, look.dtype.itemsize)
        yield [self.channel.Isend([_pack((fits, piece, path, why)), MPI.BYTE], source, tag + 1)]
        if not fits:
            raise _misfit(call, nbytes, look.nbytes)
        self.paths["from", source] = path, why
        if why or place is None:
            yield from self._recv_pieces(look, source, piece, tag, after)
        else:
            assert after is not None
            parts = self.channel, tag, source, place, nbytes, self._opened, offer, base, direct
            yield from ipc.receives(*parts)
            after.leave(station(place.device), station(place.device).up, place)
        seen.Set_elements(MPI.BYTE, nbytes)

    def length(self, card: bytearray) -> int | None:
        """Bytes of the message that a card announces; None if it is no card, but a message itself."""
        announces = len(card) == _CARD and card.startswith(_MAGIC)
        return int(_unpack(card)[0]) if announces else None

    def _judge(self, offer: Any, place: Place | None) -> tuple[str, int, int | None]:
        """Why the sender's memory is not to be opened, else "", where its slab is, and its array, if so."""
        if not isinstance(offer, ipc.Offer):
            return offer, 0, None
        if place is None:
            return "out is in host memory", 0, None
        if self.forced == "pipeline":
            return "HPCOMM_GPU=pipeline forces it", 0, None
        base = self._opened.slab(place.device, offer)
        if isinstance(base, str):
            return base, 0, None
        return "", base, self._opened.direct(place.device, offer)

    def _recv_pieces(self, look: Buffer, source: int, piece: int, tag: int, after: After | None) -> Stages:
        count = look.size
        sink = Sink(look, 1) if look.place is None else DeviceSink(look.place, 1, count, piece)
        pieces = [(low, min(low + piece, count)) for low in range(0, count, piece)]
        coming: list[Any] = []
        for i in range(len(pieces) + 1):
            before = coming
            if i < len(pieces):
                if waits := sink.free():
                    yield waits
                low, high = pieces[i]
                part = transport.spec(sink.columns(low, high), high - low, look.dtype)
                coming = [self.channel.Irecv(part, source, tag)]
            if before:
                yield before
                sink.deliver(*pieces[i - 1])
        sink.end(after or After())


class _Ticket:
    """A place in the line of collectives; its turn is waited for as an MPI request is."""

    def __init__(self, line: list[_Ticket]) -> None:
        self._line = line
        line.append(self)

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        return self._line[0] is self


def _pack(said: Any) -> bytes:
    return (_MAGIC + pickle.dumps(said)).ljust(_CARD, b"\0")


def _unpack(card: bytearray) -> Any:
    return pickle.loads(card[len(_MAGIC) :])


def _part(end: Source | Sink, low: int, high: int, call: Call, stacked: bool) -> Buffer:
    """A piece of columns as an array of a call of its own."""
    array = end.columns(low, high)
    made = Buffer(array if stacked else array[0], call.look.dtype, _no_more, lambda: made)
    return made


def _no_more(shape: Any) -> Buffer:
    raise AssertionError("a piece makes no arrays")


def _piece(count: int, blocks: int, itemsize: int) -> int:
    """Elements of a block that one piece takes, the same on all ranks."""
    return max(1, min(count, PIECE // (blocks * itemsize)))


def _on_device(*looks: Buffer | None) -> bool:
    return any(look is not None and look.place is not None for look in looks)


def _refuse_overlap(call: Call, send: Buffer, recv: Buffer) -> None:
    if send is recv or send.place is None or recv.place is None or not send.nbytes:
        return
    a, b = send.place.address, recv.place.address
    if a >= b + recv.nbytes or b >= a + send.nbytes or (a == b and send.nbytes == recv.nbytes):
        return
    mine = call.comm.rank * call.count * call.look.dtype.itemsize
    if (call.verb in ("gather", "all_gather") and a == b + mine) or (
        call.verb == "scatter" and b == a + mine
    ):
        return
    raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")


def _copy_status(status: MPI.Status, seen: MPI.Status) -> None:
    seen.Set_source(status.Get_source())
    seen.Set_tag(status.Get_tag())
    seen.Set_elements(MPI.BYTE, status.Get_elements(MPI.BYTE))


def _misfit(call: Call, sent: int, room: int | None = None) -> MismatchError:
    what = "" if room is None else f", the array that receives it {room}"
    return MismatchError(
        f"the message has {sent} bytes{what or ', the array that receives it has not'}",
        where(call.verb, call.comm),
        "give both ranks the same shape and dtype",
    )
