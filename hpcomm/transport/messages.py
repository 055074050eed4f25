"""Messages of which an end may lie on a device: whole through pinned memory, or card, answer and pieces.

Both ranks of a large message take part in choosing its path: the sender's card offers what could be opened,
the receiver tries, and answers.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..buffer import Buffer, DeviceBuffer, as_buffer
from ..errors import ConfigError, LayoutError, MismatchError, where
from . import ipc, rounds
from . import mpi as transport
from .pieces import cut, receive_pieces, send_pieces
from .progress import drive
from .staging import After, DeviceSink, DeviceSource, Sink, Source, sink_of, source_of, station

if TYPE_CHECKING:
    from ..call import Call
    from ..device.arrays import Place
    from ..request import Stages

__all__ = ["Messages", "carried"]

_CARD = 1024  # bytes of what announces a large message
_MAGIC = b"\x93hpcomm device message\0"
_opened = ipc.Opened()


def carried(call: Call, stages: Callable[[], Stages], seen: MPI.Status | None = None) -> Call:
    """Let call be carried out by stages, now or in the background."""
    after = call.after

    def carry() -> None:
        after.renew()
        drive(stages())
        after.order()

    def background() -> Stages:
        after.renew()
        yield from stages()
        return call.finish(seen)

    call.carry, call.stages = carry, background
    return call


class Messages:
    """What a communicator has for messages.

    paths: ("to" or "from", rank) -> the path of the last large message, and why not a better one
    """

    def __init__(self, plain: Any, channel: Any, forced: str, whole: Callable[[int], bool]) -> None:
        self.plain, self.channel, self.forced, self._goes_whole = plain, channel, forced, whole
        self._serial = itertools.count()
        self.opened = _opened
        self.paths: dict[tuple[str, int], tuple[str, str]] = {}

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
        yield [self.plain.Isend(transport.spec(array, count, look.dtype), call.peer, call.tag)]
        source.end()

    def _recv_whole(self, call: Call, look: Buffer, seen: MPI.Status) -> Stages:
        count = look.size
        sink = sink_of(look, 1, count, count)
        sink.begin()
        for each in sink.free():
            each.Wait()
        part = transport.spec(sink.columns(0, count), count, look.dtype)
        statuses = yield [self.plain.Irecv(part, call.peer, call.tag)]
        _copy_status(statuses[0], seen)
        if call.peer != MPI.PROC_NULL:
            transport.check_length(call.comm, "recv", seen, look.nbytes)
            sink.deliver(0, count)
            sink.end(call.after)

    def _send_large(self, call: Call, look: Buffer) -> Stages:
        """Card, answer, data. The card goes in the order of the user's messages, and holds no data."""
        place = look.packed() if isinstance(look, DeviceBuffer) else None
        if place is not None:  # now: what the current stream holds at this moment is what counts
            station(place.device).follow(station(place.device).down, place)
        tags = (transport.largest_tag() - rounds.TAGS) // 2
        tag = rounds.TAGS + 2 * (next(self._serial) % (tags - 1))
        kept, offer = self._offer(look, place)
        lanes = kept.take() if isinstance(kept, ipc.Slab) else None
        if isinstance(kept, ipc.Slab) and place is not None:
            if lanes is None:
                offer = "all slots of the sender's slab are in use"
            else:
                offer = kept.offer(lanes, place, look.nbytes)
        card, answer = _pack((look.nbytes, tag, offer)), bytearray(_CARD)
        yield [
            self.channel.Irecv([answer, MPI.BYTE], call.peer, tag + 1),
            self.plain.Isend([card, MPI.BYTE], call.peer, call.tag),
        ]
        fits, piece, path, why = _unpack(answer)
        try:
            if not fits:
                raise _misfit(call, look.nbytes)
            self.paths["to", call.peer] = path, why
            self._refuse(call, path, why)
            if path == "pipeline":
                count = look.size
                source = Source(look, 1, None) if place is None else DeviceSource(place, 1, count, piece)
                yield from send_pieces(self.channel, call.peer, tag, source, look.dtype, count, piece)
            else:
                assert place is not None
                assert isinstance(kept, ipc.Slab)
                assert lanes is not None
                direct = path == "ipc, opened itself"
                yield from ipc.sends(self.channel, tag, call.peer, place, look.nbytes, kept, lanes, direct)
                call.after.leave(station(place.device), station(place.device).down, place)
        finally:
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

    def _refuse(self, call: Call, path: str, why: str) -> None:
        """Both ranks refuse a path that is not the one that the user has forced."""
        if self.forced == "ipc" and path == "pipeline":
            raise ConfigError(
                f"HPCOMM_GPU=ipc forces IPC, which cannot carry this message: {why}",
                where(call.verb, call.comm),
                "HPCOMM_GPU=auto",
            )

    def _recv_large(self, call: Call, look: Buffer, seen: MPI.Status) -> Stages:
        if look.place is not None:  # now, as in send
            station(look.place.device).follow(station(look.place.device).up, look.place)
        card = bytearray(_CARD)
        statuses = yield [self.plain.Irecv([card, MPI.BYTE], call.peer, call.tag)]
        _copy_status(statuses[0], seen)
        if not card.startswith(_MAGIC):
            raise _misfit(call, seen.Get_elements(MPI.BYTE), look.nbytes)
        yield from self.announced(call, look, card, seen, call.after)

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
        piece = look.size if both_hosts else cut(look.size, 1, look.dtype.itemsize)
        yield [self.channel.Isend([_pack((fits, piece, path, why)), MPI.BYTE], source, tag + 1)]
        if not fits:
            raise _misfit(call, nbytes, look.nbytes)
        self.paths["from", source] = path, why
        self._refuse(call, path, why)
        if why or place is None:
            count = look.size
            sink = Sink(look, 1) if place is None else DeviceSink(place, 1, count, piece)
            yield from receive_pieces(self.channel, source, tag, sink, look.dtype, count, piece)
            sink.end(after or After())
        else:
            assert after is not None
            parts = self.channel, tag, source, place, nbytes, self.opened, offer, base, direct
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
        base = self.opened.slab(place.device, offer)
        if isinstance(base, str):
            return base, 0, None
        return "", base, self.opened.direct(place.device, offer)


def _pack(said: Any) -> bytes:
    return (_MAGIC + pickle.dumps(said)).ljust(_CARD, b"\0")


def _unpack(card: bytearray) -> Any:
    return pickle.loads(card[len(_MAGIC) :])


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
