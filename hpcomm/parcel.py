"""Parcels: data whose receiver knows nothing about it yet.

A parcel is a short description and any number of memory blocks. `_object` verbs wrap Python objects
(the description is a pickle, the blocks are the arrays inside it, never copied into the pickle);
`_ragged` verbs wrap single arrays. Both are moved by the functions here.

First everybody exchanges cards of fixed size. What fits on the card is on it, so that small data
travel in one round; what does not follows block by block, straight from and into its memory, in
pieces that any MPI takes. In a message to a rank of the same node, large blocks are handed over on a
shelf (shelf.py) while there is room, and the card says where they stand.
"""

from __future__ import annotations

import itertools
import struct
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .p2p import Arrival
from .request import Stages
from .shelf import LEAST

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from .communicator import Communicator
    from .shelf import Shelves
    from .transport import mpi as transport
else:
    from .lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = [
    "Parcel",
    "all_gather",
    "all_to_all",
    "broadcast",
    "gather",
    "ireceive",
    "isend",
    "receive",
    "run",
    "scatter",
    "send",
]

CARD = 1024  # bytes of a card in collectives
LETTER = 32 * 1024  # bytes up to which a message travels whole, copied once on either side
PIECE = 1 << 30  # bytes of the largest single MPI message
_ALIGN = 64
_HEAD = struct.Struct("<qq")  # number of blocks, tag of the parts (-1: everything is here)
_MARK = struct.Struct("<q")
_FIRST = struct.Struct("<qqq")  # and the mark of the first block
_LITTLE = 4096  # bytes that are wiped in no time
_LETTER = struct.Struct("<qqq40x")  # and the length of the only block, which stands at _ALIGN

ARRAY = b"\x93hpcomm"  # how the description of an array begins; no pickle does: both share one channel

_serial = itertools.count()

Block = Any  # memoryview or uint8 array


class Parcel:
    """description: bytes; blocks: flat byte views. The description counts as block 0 on the way."""

    __slots__ = ("blocks",)

    def __init__(self, description: bytes | bytearray | memoryview, blocks: Sequence[Any] = ()) -> None:
        self.blocks: list[Block] = [memoryview(description)]
        if blocks:
            self.blocks += [memoryview(b).cast("B") for b in blocks]

    @classmethod
    def of(cls, blocks: list[Block]) -> Parcel:
        """From blocks that are flat byte views already, the description first."""
        made = cls.__new__(cls)
        made.blocks = blocks
        return made

    @property
    def description(self) -> Any:
        return self.blocks[0]

    @property
    def contents(self) -> list[Block]:
        return self.blocks[1:]


def _lay_out(lengths: Sequence[int], start: int, room: int) -> tuple[list[int], int]:
    """Where blocks of these lengths stand behind start, each aligned, and where the last one ends.

    A block that does not fit into room stands nowhere: -1.
    """
    offsets = []
    for length in lengths:
        at = -(-start // _ALIGN) * _ALIGN
        if at + length > room:
            offsets.append(-1)
        else:
            offsets.append(at)
            start = at + length
    return offsets, start


_PLACE = 1 << 48  # more bytes than a block has


def _card(parcel: Parcel, room: int, exactly: bool, shelves: Shelves | None = None) -> tuple[bytearray, int]:
    """A card for parcel, and the tag of the parts that follow it (-1: none).

    The card holds a mark for each block, and those blocks that fit. The mark is the length of a block
    that is on the card, and below 0 for one that is not: -1 - length, and PLACE less for each slot up to
    that where the block stands, if it stands on a shelf.
    """
    lengths = [b.nbytes for b in parcel.blocks]
    if len(lengths) == 1 and not exactly and lengths[0] <= room - _ALIGN:  # what most messages are
        return bytearray(_LETTER.pack(1, -1, lengths[0])) + parcel.blocks[0], -1
    head = _HEAD.size + 8 * len(lengths)
    if head > room:  # thousands of blocks: their lengths travel as a part of their own
        card, tag = bytearray(room), next(_serial) % transport.largest_tag()
        _HEAD.pack_into(card, 0, -len(lengths), tag)
        return card, tag
    offsets, end = _lay_out(lengths, head, room)
    marks = [n if at >= 0 else -1 - n for n, at in zip(lengths, offsets, strict=True)]
    if shelves is not None:
        for i, block in enumerate(parcel.blocks):
            if marks[i] < -LEAST:
                marks[i] -= _PLACE * (1 + shelves.put(block))
    tag = next(_serial) % transport.largest_tag() if any(map(_follows, marks)) else -1
    card = bytearray(room if exactly else end)
    struct.pack_into(f"<2q{len(lengths)}q", card, 0, len(lengths), tag, *marks)
    for offset, block in zip(offsets, parcel.blocks, strict=True):
        if offset >= 0:
            card[offset : offset + block.nbytes] = block
    return card, tag


def _follows(mark: int) -> bool:
    """Whether the block of this mark comes by a message of its own."""
    return -_PLACE <= mark < 0


_POOLED = range(64 << 10, 16 << 20)  # bytes of blocks that are worth keeping
_POOL = 4  # blocks kept
_pool: list[Any] = []
_pooling = threading.Lock()  # whoever finds a block unused has it before the next one looks


def _memory(nbytes: int) -> Any:
    """Memory to receive into; that of an earlier object which is gone, if one fits.

    Fresh memory costs a page fault for every 4 KiB, as much as the transfer itself. What was received
    holds on to its block, so the number of references tells whether anybody still looks at it.
    """
    if nbytes not in _POOLED:
        return np.empty(nbytes, np.uint8).data
    with _pooling:
        for block, references in zip(_pool, _references(_pool), strict=True):
            if references == _UNUSED and block.nbytes == nbytes:
                return block.data
        block = np.empty(nbytes, np.uint8)
        _pool.append(block)
        if len(_pool) > _POOL:
            del _pool[0]
    return block.data


def _references(blocks: list[Any]) -> list[int]:
    return [sys.getrefcount(block) for block in blocks]


_UNUSED = _references([object()])[0]  # of what only a list holds; Pythons count differently


class _Opened:
    """What a card says, as far as it is known: the blocks, and those that are still to come.

    shelves, owner: where blocks may stand, and whose shelf that is.
    """

    def __init__(self, card: Any, room: int, shelves: Shelves | None = None, owner: int = -1) -> None:
        self.count, self.tag = _HEAD.unpack_from(card, 0)
        self.blocks: list[Any] = []
        self._to_come: list[Any] = []
        if self.count < 0:
            return
        view = memoryview(card)
        if self.count == 1 and (nbytes := _MARK.unpack_from(card, _HEAD.size)[0]) >= 0:
            self.blocks.append(view[_ALIGN : _ALIGN + nbytes])
            return
        head = _HEAD.size + 8 * self.count
        marks = struct.unpack_from(f"<{self.count}q", card, _HEAD.size)
        offsets, _ = _lay_out([n if n >= 0 else room + 1 for n in marks], head, room)
        for mark, at in zip(marks, offsets, strict=True):
            if mark >= 0:
                self.blocks.append(view[at : at + mark])
            elif _follows(mark):
                self._expect(-1 - mark)
            else:
                assert shelves is not None
                place, nbytes = divmod(-1 - mark, _PLACE)
                self.blocks.append(shelves.take(owner, place - 1, nbytes))

    def _expect(self, nbytes: int) -> None:
        block = _memory(nbytes)
        self.blocks.append(block)
        self._to_come.append(block)

    def lengths_to_come(self) -> bytearray | None:
        return bytearray(-8 * self.count) if self.count < 0 else None

    def take_lengths(self, data: bytearray) -> None:
        for nbytes in struct.unpack(f"<{-self.count}q", data):
            self._expect(nbytes)

    def pieces(self) -> list[Any]:
        return _cut(self._to_come)

    def parcel(self) -> Parcel:
        return Parcel.of(self.blocks)


def _cut(blocks: Sequence[Any]) -> list[Any]:
    """The same memory in pieces that one message can carry."""
    return [b[i : i + PIECE] if b.nbytes > PIECE else b for b in blocks for i in range(0, b.nbytes, PIECE)]


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


def send(comm: Communicator, parcel: Parcel, dest: int, tag: int) -> None:
    """Send parcel to dest: one message if it is small, else a card and its parts."""
    card, part_tag, pieces = _message(comm, parcel, dest)
    comm._shadow.Send((card, MPI.BYTE), dest, tag)
    for piece in pieces:
        comm._parts.Send((piece, MPI.BYTE), dest, part_tag)


def isend(comm: Communicator, parcel: Parcel, dest: int, tag: int) -> Stages:
    """The same in the background."""
    card, part_tag, pieces = _message(comm, parcel, dest)
    first = comm._shadow.Isend((card, MPI.BYTE), dest, tag)
    yield [first, *(comm._parts.Isend((piece, MPI.BYTE), dest, part_tag) for piece in pieces)]


def _message(comm: Communicator, parcel: Parcel, dest: int) -> tuple[bytearray, int, list[Any]]:
    """The card of a message, and the tag of the parts that follow it."""
    card, part_tag = _card(parcel, LETTER, False, comm._shelves if dest in comm._shelf_of else None)
    return card, part_tag, [] if part_tag < 0 else _parts_after(card, parcel)


def _parts_after(card: bytearray, parcel: Parcel) -> list[Any]:
    count = _HEAD.unpack_from(card, 0)[0]
    if count < 0:
        lengths = [b.nbytes for b in parcel.blocks]
        return [memoryview(struct.pack(f"<{len(lengths)}q", *lengths)), *_cut(parcel.blocks)]
    marks = struct.unpack_from(f"<{count}q", card, _HEAD.size)
    return _cut([block for block, mark in zip(parcel.blocks, marks, strict=True) if _follows(mark)])


def receive(comm: Communicator, source: int, tag: int) -> tuple[Parcel | None, MPI.Status]:
    """Receive a parcel, None from hpcomm.PROC_NULL, and who sent it."""
    arrival = Arrival(comm._shadow, source, tag)
    arrival.Wait()
    if source == MPI.PROC_NULL:
        return None, arrival.status
    card, source = _take(arrival)
    count, _, nbytes = _FIRST.unpack_from(card, 0)
    if count == 1 and nbytes >= 0:  # a letter of one block, as most messages are
        return Parcel.of([memoryview(card)[_ALIGN : _ALIGN + nbytes]]), arrival.status
    opened = _opened(comm, card, source)
    pieces = opened.pieces()
    if len(pieces) == 1:  # the usual one; MPI is quicker to receive than to wait for requests
        comm._parts.Recv((pieces[0], MPI.BYTE), source, opened.tag)
    elif opened.tag >= 0:
        run(_fetch(comm, opened, source))
    return opened.parcel(), arrival.status


def ireceive(comm: Communicator, source: int, tag: int) -> Stages:
    """The same in the background."""
    arrival = Arrival(comm._shadow, source, tag)
    yield [arrival]
    if source == MPI.PROC_NULL:
        return None, arrival.status
    card, source = _take(arrival)
    opened = _opened(comm, card, source)
    yield from _fetch(comm, opened, source)
    return opened.parcel(), arrival.status


def _take(arrival: Arrival) -> tuple[Any, int]:
    """The card that has arrived, and from whom."""
    nbytes = arrival.status.Get_elements(MPI.BYTE)
    card = bytearray(nbytes) if nbytes < _LITTLE else np.empty(nbytes, np.uint8)
    arrival.message.Recv((card, MPI.BYTE))
    return card, arrival.status.Get_source()


def _opened(comm: Communicator, card: Any, source: int) -> _Opened:
    return _Opened(card, LETTER, comm._shelves, comm._shelf_of.get(source, -1))


def _fetch(comm: Communicator, opened: _Opened, source: int) -> Stages:
    """Receive the parts that follow a card from source."""
    lengths = opened.lengths_to_come()
    if lengths is not None:
        yield [comm._parts.Irecv([lengths, MPI.BYTE], source, opened.tag)]
        opened.take_lengths(lengths)
    pieces = opened.pieces()
    if pieces:
        yield [comm._parts.Irecv([piece, MPI.BYTE], source, opened.tag) for piece in pieces]


# Between two groups (an inter-communicator) cards go from all ranks of one to those of the other; a root is
# given as a rank there, MPI.ROOT at itself, and MPI.PROC_NULL at those beside it, who have nothing to do.


def _partners(comm: Communicator) -> Sequence[int]:
    """The ranks whose parcels come from elsewhere."""
    if comm.is_inter:
        return range(comm.remote_size)
    return [r for r in range(comm.size) if r != comm.rank]


def _cards(comm: Communicator) -> bytearray:
    """Room for a card of each rank, those of the other group if there are two."""
    return bytearray(CARD * (comm.remote_size if comm.is_inter else comm.size))


def broadcast(comm: Communicator, parcel: Parcel | None, root: int, blocking: bool) -> Stages:
    """Give every rank root's parcel; None beside the root of another group."""
    mpi = comm._shadow
    if parcel is not None:
        card, _ = _card(parcel, CARD, exactly=True)
    else:
        card = bytearray(CARD)
    yield from _collective(mpi, "Bcast", blocking, [card, MPI.BYTE], root)
    if root == MPI.PROC_NULL:
        return None
    blocking = blocking and not comm.is_inter  # those beside the root do not know how many pieces there are
    if parcel is None:
        opened = _Opened(card, CARD)
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
            yield [comm._parts.Isend([p, MPI.BYTE], r, tag) for r in _partners(comm) for p in pieces]
    return parcel


def gather(comm: Communicator, parcel: Parcel, root: int, blocking: bool) -> Stages:
    """Collect all parcels on root: a list there, None elsewhere."""
    mpi = comm._shadow
    is_root = root == MPI.ROOT if comm.is_inter else mpi.rank == root
    gives = root >= 0  # not the root of another group, nor those beside it
    card, tag = _card(parcel, CARD, exactly=True)
    cards = _cards(comm) if is_root else None
    yield from _collective(
        mpi,
        "Gather",
        blocking,
        [card, MPI.BYTE] if gives else None,
        [cards, CARD, MPI.BYTE] if is_root else None,
        root,
    )
    if not is_root:
        if tag >= 0 and gives:
            yield [comm._parts.Isend([piece, MPI.BYTE], root, tag) for piece in _parts_after(card, parcel)]
        return None
    assert cards is not None
    return (yield from _open_all(comm, cards, parcel, None))


def all_gather(comm: Communicator, parcel: Parcel, blocking: bool) -> Stages:
    """Collect all parcels everywhere."""
    mpi = comm._shadow
    card, tag = _card(parcel, CARD, exactly=True)
    cards = _cards(comm)
    yield from _collective(mpi, "Allgather", blocking, [card, MPI.BYTE], [cards, CARD, MPI.BYTE])
    sends = []
    if tag >= 0:
        pieces = _parts_after(card, parcel)
        sends = [comm._parts.Isend([p, MPI.BYTE], r, tag) for r in _partners(comm) for p in pieces]
    return (yield from _open_all(comm, cards, parcel, sends))


def scatter(comm: Communicator, parcels: Sequence[Parcel] | None, root: int, blocking: bool) -> Stages:
    """Give each rank its own of root's parcels; None beside, and at, the root of another group."""
    mpi = comm._shadow
    card = bytearray(CARD)
    cards = None
    made: list[tuple[bytearray, int]] = []
    if parcels is not None:
        made = [_card(parcel, CARD, exactly=True) for parcel in parcels]
        cards = b"".join(bytes(c) for c, _ in made)
    yield from _collective(
        mpi,
        "Scatter",
        blocking,
        None if cards is None else [cards, CARD, MPI.BYTE],
        [card, MPI.BYTE] if root >= 0 else None,
        root,
    )
    if root == MPI.PROC_NULL:
        return None
    if parcels is None:
        opened = _Opened(card, CARD)
        yield from _fetch(comm, opened, root)
        return opened.parcel()
    yield _send_parts(comm, parcels, made)
    return None if comm.is_inter else parcels[root]


def all_to_all(comm: Communicator, parcels: Sequence[Parcel], blocking: bool) -> Stages:
    """Send parcel j to rank j, receive one from every rank."""
    mpi = comm._shadow
    made = [_card(parcel, CARD, exactly=True) for parcel in parcels]
    cards = _cards(comm)
    joined = b"".join(bytes(c) for c, _ in made)
    yield from _collective(mpi, "Alltoall", blocking, [joined, CARD, MPI.BYTE], [cards, CARD, MPI.BYTE])
    own = None if comm.is_inter else parcels[mpi.rank]
    return (yield from _open_all(comm, cards, own, _send_parts(comm, parcels, made)))


def _send_parts(
    comm: Communicator, parcels: Sequence[Parcel], made: list[tuple[bytearray, int]]
) -> list[MPI.Request]:
    return [
        comm._parts.Isend([piece, MPI.BYTE], rank, tag)
        for rank, (parcel, (card, tag)) in enumerate(zip(parcels, made, strict=True))
        if tag >= 0 and (comm.is_inter or rank != comm.rank)
        for piece in _parts_after(card, parcel)
    ]


def _open_all(
    comm: Communicator, cards: bytearray, own: Parcel | None, sends: list[MPI.Request] | None
) -> Stages:
    """Open the cards of all ranks and receive what follows them. own: this rank's, in one group."""
    mpi = comm._parts
    view = memoryview(cards)
    opened = {r: _Opened(view[r * CARD : (r + 1) * CARD], CARD) for r in _partners(comm)}
    lengths = {r: data for r, o in opened.items() if (data := o.lengths_to_come()) is not None}
    if lengths:
        yield [mpi.Irecv([data, MPI.BYTE], r, opened[r].tag) for r, data in lengths.items()]
        for r, data in lengths.items():
            opened[r].take_lengths(data)
    waits = list(sends or [])
    waits += [mpi.Irecv([piece, MPI.BYTE], r, o.tag) for r, o in opened.items() for piece in o.pieces()]
    if waits:
        yield waits
    return [opened[r].parcel() if r in opened else own for r in range(len(cards) // CARD)]


def _collective(mpi: MPI.Comm, name: str, blocking: bool, *arguments: Any) -> Stages:
    """Stage one of a collective: the blocking function where nobody waits in the background, it is faster."""
    if blocking:
        getattr(mpi, name)(*arguments)
    else:
        yield [getattr(mpi, f"I{name.lower()}")(*arguments)]
    return None
