"""Parcels: data whose receiver knows nothing about it yet.

A parcel is a short description and any number of memory blocks. `_object` verbs wrap Python objects
(the description is a pickle, the blocks are the arrays inside it, never copied into the pickle);
`_ragged` verbs wrap single arrays. Both are moved by the functions here.

First everybody exchanges cards of fixed size. What fits on the card is on it, so that small data
travel in one round; what does not follows block by block, straight from and into its memory, in
pieces that any MPI takes.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .p2p import Arrival, largest_tag
from .request import Stages

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from .communicator import Communicator
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")

__all__ = ["Parcel", "all_gather", "all_to_all", "broadcast", "gather", "receive", "run", "scatter", "send"]

CARD = 1024  # bytes of a card in collectives
LETTER = 32 * 1024  # bytes up to which a message travels whole, copied once on either side
PIECE = 1 << 30  # bytes of the largest single MPI message
_ALIGN = 64
_HEAD = struct.Struct("<qq")  # number of blocks, tag of the parts (-1: everything is here)

ARRAY = b"\x93hpcomm"  # how the description of an array begins; no pickle does: both share one channel

_serial = itertools.count()

Block = Any  # memoryview or uint8 array


class Parcel:
    """description: bytes; blocks: flat byte views. The description counts as block 0 on the way."""

    __slots__ = ("blocks",)

    def __init__(self, description: bytes | bytearray | memoryview, blocks: Sequence[Any] = ()) -> None:
        self.blocks: list[Block] = [memoryview(description), *(memoryview(b).cast("B") for b in blocks)]

    @property
    def description(self) -> Any:
        return self.blocks[0]

    @property
    def contents(self) -> list[Block]:
        return self.blocks[1:]


def _lay_out(lengths: Sequence[int], start: int) -> tuple[list[int], int]:
    """Where blocks of these lengths begin behind start, each aligned, and where the last one ends."""
    offsets = []
    for length in lengths:
        start = -(-start // _ALIGN) * _ALIGN
        offsets.append(start)
        start += length
    return offsets, start


def _card(parcel: Parcel, room: int, exactly: bool) -> tuple[bytearray, int]:
    """A card for parcel, and the tag of the parts that follow it (-1: none)."""
    lengths = [b.nbytes for b in parcel.blocks]
    head = _HEAD.size + 8 * len(lengths)
    offsets, end = _lay_out(lengths, head)
    whole = end <= room
    tag = -1 if whole else next(_serial) % largest_tag()
    if head > room:  # thousands of blocks: their lengths travel as a part of their own
        card = bytearray(room)
        _HEAD.pack_into(card, 0, -len(lengths), tag)
        return card, tag
    card = bytearray(room if exactly else end if whole else head)
    _HEAD.pack_into(card, 0, len(lengths), tag)
    struct.pack_into(f"<{len(lengths)}q", card, _HEAD.size, *lengths)
    if whole:
        for offset, block in zip(offsets, parcel.blocks, strict=True):
            card[offset : offset + block.nbytes] = block
    return card, tag


_POOLED = range(64 << 10, 16 << 20)  # bytes of blocks that are worth keeping
_POOL = 4  # blocks kept
_pool: list[Any] = []


def _memory(nbytes: int) -> Any:
    """Memory to receive into; that of an earlier object which is gone, if one fits.

    Fresh memory costs a page fault for every 4 KiB, as much as the transfer itself. What was received
    holds on to its block, so the number of references tells whether anybody still looks at it.
    """
    if nbytes not in _POOLED:
        return np.empty(nbytes, np.uint8)
    for block in _pool:
        if block.nbytes == nbytes and sys.getrefcount(block) == _UNUSED:
            return block
    block = np.empty(nbytes, np.uint8)
    _pool.append(block)
    if len(_pool) > _POOL:
        del _pool[0]
    return block


_UNUSED = 3  # the pool's reference, the loop's, and getrefcount's own


class _Opened:
    """What a card says, as far as it is known: the blocks, and the pieces of memory still to be filled."""

    def __init__(self, card: Any) -> None:
        self.count, self.tag = _HEAD.unpack_from(card, 0)
        self.blocks: list[Any] = []
        if self.count >= 0:
            self._set(struct.unpack_from(f"<{self.count}q", card, _HEAD.size), card)

    def _set(self, lengths: Sequence[int], card: Any) -> None:
        if self.tag < 0:
            offsets, _ = _lay_out(lengths, _HEAD.size + 8 * len(lengths))
            view = memoryview(card)
            self.blocks = [view[o : o + n] for o, n in zip(offsets, lengths, strict=True)]
        else:
            self.blocks = [_memory(n).data for n in lengths]

    def lengths_to_come(self) -> bytearray | None:
        return bytearray(-8 * self.count) if self.count < 0 else None

    def take_lengths(self, data: bytearray) -> None:
        self._set(struct.unpack(f"<{-self.count}q", data), b"")

    def pieces(self) -> list[Any]:
        if self.tag < 0:
            return []
        return [block[i : i + PIECE] for block in self.blocks for i in range(0, block.nbytes, PIECE)]

    def parcel(self) -> Parcel:
        made = Parcel(b"")
        made.blocks = self.blocks
        return made


def run(stages: Stages) -> Any:
    """Carry out all stages now."""
    try:
        pending = next(stages)
        while True:
            for request in pending:
                if isinstance(request, Arrival):
                    request.Wait()
            MPI.Request.Waitall([r for r in pending if not isinstance(r, Arrival)])
            pending = stages.send([])
    except StopIteration as end:
        return end.value


def send(comm: Communicator, parcel: Parcel, dest: int, tag: int, blocking: bool) -> Stages:
    """Send parcel to dest: one message if it is small, else a card and its parts."""
    card, part_tag = _card(parcel, LETTER, exactly=False)
    pieces: list[Any] = [] if part_tag < 0 else _parts_after(card, parcel)
    byte, parts = MPI.BYTE, comm._parts
    if blocking:
        comm._shadow.Send((card, byte), dest, tag)
        for piece in pieces:
            parts.Send((piece, byte), dest, part_tag)
        return None
    first = comm._shadow.Isend((card, byte), dest, tag)
    yield [first, *(parts.Isend((piece, byte), dest, part_tag) for piece in pieces)]
    return None


def _parts_after(card: bytearray, parcel: Parcel) -> list[Any]:
    lengths = [b.nbytes for b in parcel.blocks]
    pieces = [block[i : i + PIECE] for block in parcel.blocks for i in range(0, block.nbytes, PIECE)]
    if _HEAD.unpack_from(card, 0)[0] < 0:
        pieces.insert(0, memoryview(struct.pack(f"<{len(lengths)}q", *lengths)))
    return pieces


def receive(comm: Communicator, source: int, tag: int) -> Stages:
    """Receive a parcel; the value is (parcel, status), the parcel None from hpcomm.PROC_NULL."""
    arrival = Arrival(comm._shadow, source, tag)
    yield [arrival]
    if source == MPI.PROC_NULL:
        return None, arrival.status
    card = np.empty(arrival.status.Get_elements(MPI.BYTE), np.uint8)
    arrival.message.Recv([card, MPI.BYTE])
    opened = _Opened(card)
    yield from _fetch(comm, opened, arrival.status.Get_source())
    return opened.parcel(), arrival.status


def _fetch(comm: Communicator, opened: _Opened, source: int) -> Stages:
    """Receive the parts that follow a card from source."""
    lengths = opened.lengths_to_come()
    if lengths is not None:
        yield [comm._parts.Irecv([lengths, MPI.BYTE], source, opened.tag)]
        opened.take_lengths(lengths)
    pieces = opened.pieces()
    if pieces:
        yield [comm._parts.Irecv([piece, MPI.BYTE], source, opened.tag) for piece in pieces]


def broadcast(comm: Communicator, parcel: Parcel | None, root: int, blocking: bool) -> Stages:
    """Give every rank root's parcel."""
    mpi = comm._shadow
    if parcel is not None:
        card, _ = _card(parcel, CARD, exactly=True)
    else:
        card = bytearray(CARD)
    yield from _collective(mpi, "Bcast", blocking, [card, MPI.BYTE], root)
    if parcel is None:
        opened = _Opened(card)
        if blocking:
            lengths = opened.lengths_to_come()
            if lengths is not None:
                mpi.Bcast([lengths, MPI.BYTE], root)
                opened.take_lengths(lengths)
            for piece in opened.pieces():
                mpi.Bcast([piece, MPI.BYTE], root)
        else:
            yield from _fetch(comm, opened, root)
        return opened.parcel()
    tag = _HEAD.unpack_from(card, 0)[1]
    if tag >= 0:
        pieces = _parts_after(card, parcel)
        if blocking:
            for piece in pieces:
                mpi.Bcast([piece, MPI.BYTE], root)
        else:
            yield [
                comm._parts.Isend([p, MPI.BYTE], r, tag) for r in range(mpi.size) if r != root for p in pieces
            ]
    return parcel


def gather(comm: Communicator, parcel: Parcel, root: int, blocking: bool) -> Stages:
    """Collect all parcels on root: a list there, None elsewhere."""
    mpi = comm._shadow
    is_root = mpi.rank == root
    card, tag = _card(parcel, CARD, exactly=True)
    cards = bytearray(CARD * mpi.size) if is_root else None
    yield from _collective(
        mpi, "Gather", blocking, [card, MPI.BYTE], [cards, CARD, MPI.BYTE] if is_root else None, root
    )
    if not is_root:
        if tag >= 0:
            yield [comm._parts.Isend([piece, MPI.BYTE], root, tag) for piece in _parts_after(card, parcel)]
        return None
    assert cards is not None
    return (yield from _open_all(comm, cards, parcel, None))


def all_gather(comm: Communicator, parcel: Parcel, blocking: bool) -> Stages:
    """Collect all parcels everywhere."""
    mpi = comm._shadow
    card, tag = _card(parcel, CARD, exactly=True)
    cards = bytearray(CARD * mpi.size)
    yield from _collective(mpi, "Allgather", blocking, [card, MPI.BYTE], [cards, CARD, MPI.BYTE])
    sends = []
    if tag >= 0:
        pieces = _parts_after(card, parcel)
        sends = [
            comm._parts.Isend([p, MPI.BYTE], r, tag) for r in range(mpi.size) if r != mpi.rank for p in pieces
        ]
    return (yield from _open_all(comm, cards, parcel, sends))


def scatter(comm: Communicator, parcels: Sequence[Parcel] | None, root: int, blocking: bool) -> Stages:
    """Give each rank its own of root's parcels."""
    mpi = comm._shadow
    card = bytearray(CARD)
    cards = None
    made: list[tuple[bytearray, int]] = []
    if parcels is not None:
        made = [_card(parcel, CARD, exactly=True) for parcel in parcels]
        cards = b"".join(bytes(c) for c, _ in made)
    yield from _collective(
        mpi, "Scatter", blocking, None if cards is None else [cards, CARD, MPI.BYTE], [card, MPI.BYTE], root
    )
    if parcels is None:
        opened = _Opened(card)
        yield from _fetch(comm, opened, root)
        return opened.parcel()
    yield _send_parts(comm, parcels, made)
    return parcels[root]


def all_to_all(comm: Communicator, parcels: Sequence[Parcel], blocking: bool) -> Stages:
    """Send parcel j to rank j, receive one from every rank."""
    mpi = comm._shadow
    made = [_card(parcel, CARD, exactly=True) for parcel in parcels]
    cards = bytearray(CARD * mpi.size)
    joined = b"".join(bytes(c) for c, _ in made)
    yield from _collective(mpi, "Alltoall", blocking, [joined, CARD, MPI.BYTE], [cards, CARD, MPI.BYTE])
    return (yield from _open_all(comm, cards, parcels[mpi.rank], _send_parts(comm, parcels, made)))


def _send_parts(
    comm: Communicator, parcels: Sequence[Parcel], made: list[tuple[bytearray, int]]
) -> list[MPI.Request]:
    return [
        comm._parts.Isend([piece, MPI.BYTE], rank, tag)
        for rank, (parcel, (card, tag)) in enumerate(zip(parcels, made, strict=True))
        if tag >= 0 and rank != comm.rank
        for piece in _parts_after(card, parcel)
    ]


def _open_all(comm: Communicator, cards: bytearray, own: Parcel, sends: list[MPI.Request] | None) -> Stages:
    """Open the cards of all ranks and receive what follows them."""
    mpi = comm._parts
    view = memoryview(cards)
    opened = {r: _Opened(view[r * CARD : (r + 1) * CARD]) for r in range(mpi.size) if r != mpi.rank}
    lengths = {r: data for r, o in opened.items() if (data := o.lengths_to_come()) is not None}
    if lengths:
        yield [mpi.Irecv([data, MPI.BYTE], r, opened[r].tag) for r, data in lengths.items()]
        for r, data in lengths.items():
            opened[r].take_lengths(data)
    waits = list(sends or [])
    waits += [mpi.Irecv([piece, MPI.BYTE], r, o.tag) for r, o in opened.items() for piece in o.pieces()]
    if waits:
        yield waits
    return [own if r == mpi.rank else opened[r].parcel() for r in range(mpi.size)]


def _collective(mpi: MPI.Comm, name: str, blocking: bool, *arguments: Any) -> Stages:
    """Stage one of a collective: the blocking function where nobody waits in the background, it is faster."""
    if blocking:
        getattr(mpi, name)(*arguments)
    else:
        yield [getattr(mpi, f"I{name.lower()}")(*arguments)]
    return None
