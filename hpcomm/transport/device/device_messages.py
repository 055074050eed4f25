"""Messages with an end on a device: whole through pinned memory, or header, answer and pieces.

Both ranks of a large message take part in choosing its path: the sender's header says what it can do and
offers memory that could be opened; the receiver tries, chooses, and answers.

    sender      header: capabilities, offer ──>                              ──> data, by the chosen path
    receiver                                  tries the offer, chooses ──> answer
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ...core.buffer import Buffer, DeviceBuffer, as_buffer, detached
from ...core.comm import Comm
from ...core.operation import Call, Carrier
from ...core.request import Stages
from ...device.arrays import Place
from ...device.driver import Device, watching
from ...errors import ConfigError, LayoutError, MismatchError, where
from .. import mpi as transport
from ..guarded_receive import guarded, most
from ..matching import fill, is_there
from ..progress import Together, drive, in_thread
from ..scheduled import rounds
from . import cuda_aware, ipc, nccl_transport
from .device_headers import HEADER, Answer, Header, announced_length, is_header, pack, unpack
from .path_choice import Choice, choose_message
from .pipeline import Line, cut, receive_pieces, send_pieces
from .staging import After, DeviceSink, DeviceSource, Sink, Source, sink_of, source_of, station

_WHY = 120  # characters of a reason
_opened = ipc.Opened()


def carried(
    call: Call, stages: Callable[[], Stages], seen: MPI.Status | None = None, is_core: bool = False
) -> Call:
    """Let call be carried out by stages, now or in the background. is_core: see Carrier."""
    after = call.after

    def carry() -> None:
        after.renew()
        drive(stages())
        after.order()

    def background() -> Stages:
        after.renew()
        yield from stages()
        return call.finish(seen)

    call.carrier = Carrier(carry, background, is_core=is_core)
    return call


class _Held(NamedTuple):
    """A message that was received to look at it, and is still to be received by the user."""

    source: int
    tag: int
    raw: bytearray


_Offered = tuple[ipc.Slab | None, list[ipc.Slot] | None, ipc.Offer | ipc.Lent | str]


class _Large(NamedTuple):
    """A large message at one of its ends. place: where the array is on a device, in C order."""

    call: Call
    look: Buffer
    place: Place | None
    header: Header
    line: Line
    event: int


class Messages:
    """What a communicator has for messages.

    own: this rank, as messages to itself have it; between groups there are none
    held: what probe had to receive, in the order of arrival
    paths: ("to" or "from", rank) -> the path of the last large message, and why no better one
    """

    def __init__(
        self, comm: Comm, plain: MPI.Comm, channel: MPI.Comm, forced: str, whole: Callable[[int], bool]
    ) -> None:
        self.plain, self._apart, self.channel = plain, watching(comm.block_channel), channel
        self._own = MPI.UNDEFINED if comm.is_inter else comm.rank
        self.forced, self._goes_whole = forced, whole
        self._serial = itertools.count()
        self.opened = _opened
        self.held: list[_Held] = []
        self.paths: dict[tuple[str, int], str] = {}
        self._pairs: dict[tuple[str, int, bytes, bytes], nccl_transport.Pair] = {}

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
        return as_buffer(detached(look.place.pack()))

    def send(self, call: Call, look: Buffer, copy: bool = False) -> Call:
        """Let a message be sent from an array anywhere; copy: the array may be changed at once."""
        if copy:
            look = self.copy(look)
        whole = self._goes_whole(look.nbytes) or call.peer == MPI.PROC_NULL
        call.after = After()
        return carried(call, lambda: self._send_whole(call, look) if whole else self._send_large(call, look))

    def recv(self, call: Call, look: Buffer, seen: MPI.Status) -> Call:
        """Let a message be received into an array that may lie on a device; seen: filled."""
        if look.place is not None and look.frozen:
            raise LayoutError(f"out {look.frozen}", hint="give a contiguous array that can be written")
        whole = self._goes_whole(look.nbytes) or call.peer == MPI.PROC_NULL
        call.after = After()
        return carried(
            call, lambda: (self._recv_whole if whole else self._recv_large)(call, look, seen), seen
        )

    def _send_whole(self, call: Call, look: Buffer) -> Stages:
        count = look.size
        source = source_of(look, 1, count, count)
        source.begin()
        source.bring(0, count)
        for each in source.landed():
            each.Wait()
        array = source.columns(0, count)
        begin = (
            self.plain.Issend if call.moves else self.plain.Isend
        )  # a large one waits for an answer anyway
        yield [begin(transport.spec(array, count, look.dtype), call.peer, call.tag)]
        source.end()

    def look(self, source: int, tag: int, seen: MPI.Status) -> bool:
        """Whether a message has come; seen is filled, of a large one from what its header says.

        MPI tells the length of a message without receiving it, but not what it holds: so one that may be a
        header is received, and held for who receives it.
        """
        found = self._find(source, tag)
        if found is None:
            if not is_there(self.plain, source, tag, seen):
                return False
            if seen.Get_elements(MPI.BYTE) != HEADER:
                return True
            message = self.plain.Improbe(seen.Get_source(), seen.Get_tag(), seen)
            if message is None:  # another thread has it
                return False
            found = _Held(seen.Get_source(), seen.Get_tag(), bytearray(HEADER))
            message.Recv([found.raw, MPI.BYTE])
            self.held.append(found)
        self._show(found, seen)
        return True

    def _find(self, source: int, tag: int) -> _Held | None:
        fits = (x for x in self.held if source in (MPI.ANY_SOURCE, x.source) and tag in (MPI.ANY_TAG, x.tag))
        return next(fits, None)

    def _show(self, held: _Held, seen: MPI.Status) -> None:
        seen.Set_source(held.source)
        seen.Set_tag(held.tag)
        announced = announced_length(held.raw)
        seen.Set_elements(MPI.BYTE, len(held.raw) if announced is None else announced)

    def take(self, source: int, tag: int, seen: MPI.Status) -> bytearray | None:
        """What is held of a message that a receive asks for, if it is."""
        found = self._find(source, tag)
        if found is None:
            return None
        self.held.remove(found)
        self._show(found, seen)
        return found.raw

    def _recv_held(self, call: Call, look: Buffer, raw: bytearray, seen: MPI.Status) -> Stages:
        """Receive a plain message that is held."""
        if is_header(raw) or len(raw) != look.nbytes:
            if is_header(raw):  # its sender is told, too
                header: Header = unpack(raw)
                answer = [pack(Answer(False)), MPI.BYTE]
                yield [self.channel.Isend(answer, seen.Get_source(), header.tag + 1)]
            raise _misfit(call, seen.Get_elements(MPI.BYTE), look.nbytes)
        sink = sink_of(look, 1, look.size, look.size)
        sink.begin()
        columns = sink.columns(0, look.size)
        columns[...] = np.frombuffer(raw, columns.dtype).reshape(columns.shape)
        sink.deliver(0, look.size)
        sink.end(call.after)

    def _recv_whole(self, call: Call, look: Buffer, seen: MPI.Status) -> Stages:
        if (raw := self.take(call.peer, call.tag, seen)) is not None:
            yield from self._recv_held(call, look, raw, seen)
            return
        count = look.size
        sink = sink_of(look, 1, count, count)
        sink.begin()
        for each in sink.free():
            each.Wait()
        part = guarded(transport.spec(sink.columns(0, count), count, look.dtype), most(call.comm, False))
        statuses = yield [self.plain.Irecv(part, call.peer, call.tag)]
        fill(seen, statuses[0])
        if call.peer != MPI.PROC_NULL:
            transport.check_length(call.comm, "recv", seen, look.nbytes)
            sink.deliver(0, count)
            sink.end(call.after)

    def begin(self, look: Buffer, way: str) -> int:
        """Let what goes "down" from an array, or "up" to it, come after what the current stream holds now.

        The event is for pass_on and take_in, which may be carried on by another thread.
        """
        if look.place is None:
            return 0
        there = station(look.place.device)
        return self._begin(look.place, there.down if way == "down" else there.up)

    def return_event(self, look: Buffer, event: int) -> None:
        """Give an event back, also one of an array that was not sent or received after all."""
        if look.place is not None:
            station(look.place.device).return_event(event)

    def pass_on(self, call: Call, look: Buffer, event: int, apart: MPI.Comm | None = None) -> Stages:
        """Send a large message that its receiver knows of, apart from the user's."""
        return self._send_large(call, look, apart or self._apart, event)

    def take_in(self, call: Call, look: Buffer, event: int, apart: MPI.Comm | None = None) -> Stages:
        """Receive it."""
        seen = MPI.Status()
        try:
            header = bytearray(HEADER)
            yield [(apart or self._apart).Irecv([header, MPI.BYTE], call.peer, call.tag)]
            seen.Set_source(call.peer)
            yield from self.announced(call, look, header, seen, event)
        finally:
            self.return_event(look, event)

    def _send_large(self, call: Call, look: Buffer, mpi: MPI.Comm | None = None, event: int = 0) -> Stages:
        """Header, answer, data. The header goes in the order of the user's messages, and holds no data."""
        place = look.packed() if isinstance(look, DeviceBuffer) else None
        if place is not None and mpi is None:
            event = self._begin(place, station(place.device).down)
        tags = (transport.largest_tag() - rounds.TAGS) // 2
        tag = rounds.TAGS + 2 * (next(self._serial) % (tags - 1))
        kept, slots, offer = self._offer(look, place, call.peer == self._own, event)
        header = Header(look.nbytes, tag, offer, "x is in host memory", b"")
        if place is not None:
            header = header._replace(direct=cuda_aware.rumour("send"), device=place.device.identity())
        said, line = bytearray(HEADER), Line(self.channel, call.peer, tag)
        yield [
            line.take_answer([said, MPI.BYTE]),
            (mpi or self.plain).Isend([pack(header), MPI.BYTE], call.peer, call.tag),
        ]
        try:
            yield from self._give(_Large(call, look, place, header, line, event), unpack(said), kept, slots)
        finally:
            if kept is not None and slots is not None:
                kept.free += slots
            if place is not None:
                station(place.device).return_event(event)

    def _give(
        self, large: _Large, answer: Answer, kept: ipc.Slab | None, slots: list[ipc.Slot] | None
    ) -> Stages:
        """The data of a message, as its receiver has answered; kept, slots: see _offer."""
        call, look, place, _, line, event = large
        if not answer.fits:
            raise _misfit(call, look.nbytes)
        self._note(call, ("to", line.peer), answer)
        path = answer.choice.path
        if path == "nccl":
            yield from self._by_nccl(large, answer)
        elif path == "pipeline":
            count = look.size
            source = Source(look, 1, None) if place is None else DeviceSource(place, 1, count, answer.piece)
            yield from send_pieces(line, source, look.dtype, count, answer.piece)
        elif path == "direct":
            assert place is not None
            yield from cuda_aware.passes(line.give, place, event)
        else:
            assert place is not None
            if kept is None or slots is None:
                yield from ipc.lends(line, place)
            else:
                yield from ipc.sends(line, place, kept, slots, answer.itself)
            call.after.leave(station(place.device), station(place.device).down, place)

    def _begin(self, place: Place, stream: int) -> int:
        """Let stream come after what the user's has been given so far, and return that event."""
        there = station(place.device)
        event = there.user_event(place)
        there.device.wait(stream, event)
        return event

    def _offer(self, look: Buffer, place: Place | None, to_itself: bool, event: int) -> _Offered:
        """The slab for an array, slots of it, and the offer of both; or why there is none.

        To itself a rank offers no slab, but the array as it is at an event.
        """
        if place is None:
            return None, None, "x is in host memory"
        if self.forced not in ("auto", "ipc", "schedule"):
            return None, None, f"{self.forced} is forced"
        if to_itself:
            return None, None, ipc.Lent(place.device.index, place.address, event)
        kept = ipc.slab(place.device)
        if not isinstance(kept, ipc.Slab):
            return None, None, f"the sender cannot export memory: {kept[:_WHY]}"
        slots = kept.take()
        if slots is None:
            return None, None, "all slots of the sender's slab are in use"
        return kept, slots, kept.offer(slots, place, look.nbytes)

    def _note(self, call: Call, way: tuple[str, int], answer: Answer) -> None:
        """Keep which path it is; both ranks refuse one that is not what the user has forced."""
        path, refused = answer.choice.path, answer.choice.refused
        if not path:
            raise ConfigError(
                f"{self.forced} is forced, but cannot carry this message: {refused[self.forced]}",
                where(call.verb, call.comm),
                "gpu='auto' or HPCOMM_GPU=auto",
            )
        how = ", through the slab"
        if way[1] == self._own:
            how = ", within this process"
        elif answer.itself:
            how = ", opened itself"
        detail = how if path == "ipc" else ""
        whys = "".join(f"; {name}: refused, {why}" for name, why in refused.items())
        self.paths[way] = path + detail + whys

    def _recv_large(self, call: Call, look: Buffer, seen: MPI.Status) -> Stages:
        event = 0
        if look.place is not None:  # now, as in send
            event = self._begin(look.place, station(look.place.device).up)
        try:
            header = self.take(call.peer, call.tag, seen)
            if header is None:
                header = bytearray(HEADER)
                part = guarded((header, HEADER, MPI.BYTE), 2 * HEADER)  # any message may come here
                statuses = yield [self.plain.Irecv(part, call.peer, call.tag)]
                fill(seen, statuses[0])
            if not is_header(header):
                raise _misfit(call, seen.Get_elements(MPI.BYTE), look.nbytes)
            yield from self.announced(call, look, header, seen, event)
        finally:
            self.return_event(look, event)

    def announced(self, call: Call, look: Buffer, raw: bytearray, seen: MPI.Status, event: int = 0) -> Stages:
        """Receive the large message that a header has announced."""
        place, source, header = look.place, seen.Get_source(), unpack(raw)
        if header.nbytes != look.nbytes:
            yield [self.channel.Isend([pack(Answer(False)), MPI.BYTE], source, header.tag + 1)]
            raise _misfit(call, header.nbytes, look.nbytes)
        answer, base, itself = yield from self._answer(header, look, source)
        line = Line(self.channel, source, header.tag)
        yield [line.give_answer([pack(answer), MPI.BYTE])]
        self._note(call, ("from", source), answer)
        path = answer.choice.path
        if path == "ipc":
            assert place is not None
            if isinstance(header.ipc, ipc.Lent):
                yield from ipc.copies(line, place, header.ipc)
            else:
                yield from ipc.receives(line, place, self.opened, header.ipc, base, itself)
            call.after.leave(station(place.device), station(place.device).up, place)
        elif path == "direct":
            assert place is not None
            yield from cuda_aware.passes(line.take, place, event)
        elif path == "nccl":
            yield from self._by_nccl(_Large(call, look, place, header, line, event), answer)
        else:
            count, piece = look.size, answer.piece
            sink = Sink(look, 1) if place is None else DeviceSink(place, 1, count, piece)
            yield from receive_pieces(line, sink, look.dtype, count, piece)
            sink.end(call.after or After())
        seen.Set_elements(MPI.BYTE, header.nbytes)

    def _answer(self, header: Header, look: Buffer, source: int) -> Stages:
        """(what to answer to a header, where the sender's slab is here, and its array, if it was opened)"""
        place = look.place
        lacks, base, itself = yield from self._lacks(header, place)
        # Why each path cannot be taken is known by now; the sender is told the choice, and cuts as we do.
        choice = choose_message(self.forced, **{name: why[:_WHY] for name, why in lacks.items()})
        both_hosts = place is None and not header.device
        piece = look.size if both_hosts else cut(look.size, 1, look.dtype.itemsize)
        answer = Answer(True, choice, piece, itself is not None)
        if choice.path == "nccl":
            assert place is not None
            mine = place.device.identity()
            pair = self._pair("from", source, place.device, header.device, mine)
            unique = place.device.nccl().unique() if pair.given == 0 else b""
            answer = answer._replace(device=mine, number=pair.number(), unique=unique)
        return answer, base, itself

    def _lacks(self, header: Header, place: Place | None) -> Stages:
        """Why each path cannot be taken, and where the sender's memory is here, as _open has it."""
        lacks, base, itself = dict.fromkeys(("ipc", "direct", "nccl"), "out is in host memory"), 0, None
        if not header.device:
            lacks = dict.fromkeys(lacks, "x is in host memory")
        elif place is not None:
            lacks["ipc"], base, itself = self._open(header.ipc, place.device)
            if lacks["ipc"] and self.forced in ("auto", "direct"):
                lacks["direct"] = header.direct or cuda_aware.rumour("send")
                if not lacks["direct"]:
                    lacks["direct"] = (yield from in_thread(cuda_aware.evidence))["send"]
            lacks["nccl"] = nccl_transport.RISK
            if self.forced == "nccl":
                lacks["nccl"] = nccl_transport.lack_between(place.device, header.device)
        return lacks, base, itself

    def _open(self, offer: Any, device: Device) -> tuple[str, int, int | None]:
        """Why the sender's memory is not to be opened, else "", where its slab is, and its array, if so."""
        if isinstance(offer, ipc.Lent):
            return "" if offer.device == device.index else "x lies on another device of this rank", 0, None
        if not isinstance(offer, ipc.Offer):
            return offer, 0, None
        base = self.opened.slab(device, offer)
        if isinstance(base, str):
            return base, 0, None
        return "", base, self.opened.direct(device, offer)

    def _pair(
        self, way: str, peer: int, device: Device, sender: bytes, receiver: bytes
    ) -> nccl_transport.Pair:
        key = way, peer, sender, receiver  # devices; a rank may have several
        if key not in self._pairs:
            self._pairs[key] = nccl_transport.Pair(device, way == "to")
        return self._pairs[key]

    def _by_nccl(self, large: _Large, answer: Answer) -> Stages:
        """Carry a message by NCCL; both ranks raise if that does not come up."""
        call, _, place, header, line, event = large
        assert place is not None
        way = "to" if call.verb == "send" else "from"
        pair = self._pair(way, line.peer, place.device, header.device, answer.device)
        if why := (yield from pair.carry(line, place, answer.number, answer.unique, event)):
            self._note(call, (way, line.peer), answer._replace(choice=Choice("", {"nccl": why})))
        call.after.leave(station(place.device), pair.stream, place)

    def leave(self) -> Stages:
        """Give back what pairs of ranks hold together, all at once: their order need not be the same here."""
        yield [Together([pair.leave() for pair in self._pairs.values()])]
        self._pairs.clear()


def _misfit(call: Call, sent: int, room: int | None = None) -> MismatchError:
    what = "" if room is None else f", the array that receives it {room}"
    return MismatchError(
        f"the message has {sent} bytes{what or ', the array that receives it has not'}",
        where(call.verb, call.comm),
        "give both ranks the same shape and dtype",
    )
