"""Payloads: data whose receiver knows neither type nor size, as a header and memory blocks.

A payload is a short description and any number of memory blocks. `_object` verbs wrap Python objects (the
description is a pickle, the blocks are the arrays inside it, never copied into the pickle). `_ragged` verbs
wrap single arrays. payload_transport.py moves both.

    header    number of blocks | tag of the parts | a mark for each block | the blocks that fit

The mark is the length of a block that is in the header, and below 0 for one that is not: -1 - length.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..._lazy import NDArray, np
from ...core.buffer import DeviceBuffer
from ...core.limits import HEADER
from ...core.types import Bytes
from ...errors import HpcommError, PeerFailedError
from ..making.block_channel import part_tag

_LEAST_HEADER = 128  # of so many ranks that such headers of all would be more than
_HEADERS = 1 << 20  # bytes, as long as that is possible
_PIECE = 1 << 30  # bytes of the largest single MPI message
_ALIGN = 64
_HEAD = struct.Struct("<qq")  # number of blocks, tag of the parts (-1: everything is here)
_FIRST = struct.Struct("<qqq")  # and the mark of the first block
_ONE = struct.Struct("<qqq40x")  # the same and the length of the only block, which stands at _ALIGN

ARRAY = b"\x93hpcomm"  # how the description of an array begins; no pickle does: both share one channel
_REFUSED = b"\x94refused: "  # and what comes in place of something that its rank refuses to send

Block: TypeAlias = Any  # memoryview or uint8 array
Payload: TypeAlias = list[Block]  # flat views of bytes, the description first


def refusal(error: HpcommError) -> Payload:
    """In place of what is refused: those who wait for it learn why nothing comes."""
    return [memoryview(_REFUSED + error.what.encode())]


def check_came(first: bytes | memoryview, rank: int | None) -> None:
    """Refuse what begins with this block if it says that nothing comes, from that rank.

    Raises:
        PeerFailedError: it does.
    """
    if first[:1] == _REFUSED[:1] and bytes(first[: len(_REFUSED)]) == _REFUSED:
        what = bytes(first[len(_REFUSED) :]).decode()
        whose = "its rank" if rank is None else f"rank {rank}"
        ranks = () if rank is None else (rank,)
        raise PeerFailedError(
            f"nothing came: on {whose} {what}", None, "look at that rank's own error", ranks
        )


class OnDevice(bytearray):
    """A block whose elements lie on a device, out of the host's reach.

    Attributes:
        look: the array, in C order.
        library: the module that it is of.
    """

    look: DeviceBuffer
    library: str


class DevicePayload(list[Block]):
    """A payload to be sent, with such blocks among the others (device_payload.py)."""


class Headed(NamedTuple):
    """A payload behind its header, as it travels.

    Attributes:
        tag: of what follows the header; -1: nothing does.
        lengths: those of all blocks, if they are too many for the header; they follow it first.
        blocks: those that are not in the header.
    """

    header: bytearray
    tag: int = -1
    lengths: Sequence[memoryview] = ()
    blocks: Sequence[Block] = ()

    @property
    def parts(self) -> list[memoryview]:
        """What follows the header, in pieces that one message can carry."""
        return [*self.lengths, *cut(self.blocks)]


def only_block(headers: memoryview, at: int = 0) -> Block | None:
    """The block of the header that stands there, if it holds one and nothing else, as most do."""
    count, _, nbytes = _FIRST.unpack_from(headers, at)
    return headers[at + _ALIGN : at + _ALIGN + nbytes] if count == 1 and nbytes >= 0 else None


def comes_alone(headers: Bytes, at: int) -> bool:
    """Whether the header that stands there announces one block that follows, and nothing else."""
    count, _, mark = _FIRST.unpack_from(headers, at)
    return bool(count == 1 and mark < 0)


def lengths_after(headers: Bytes, at: int) -> tuple[int, tuple[int, ...]]:
    """Of the header that stands there: how many lengths follow it, and those known of blocks that do."""
    count, _, mark = _FIRST.unpack_from(headers, at)
    if count == 1:
        return 0, (-1 - mark,) if mark < 0 else ()
    if count < 0:
        return -count, ()
    marks = struct.unpack_from(f"<{count}q", headers, at + _HEAD.size)
    return 0, tuple(-1 - mark for mark in marks if mark < 0)


def room(ranks: int) -> int:
    """Bytes of a header in collectives of so many ranks, each of which may get one of every other."""
    return HEADER if ranks * HEADER <= _HEADERS else max(_LEAST_HEADER, _HEADERS // ranks // _ALIGN * _ALIGN)


def name_tag(header: bytearray) -> None:
    """Have a header name a tag even if no part of its own follows."""
    count, tag = _HEAD.unpack_from(header, 0)
    if tag < 0:
        _HEAD.pack_into(header, 0, count, part_tag())


def tag_of(headers: Bytes, nbytes: int, rank: int) -> int:
    """The tag that a rank's header names, where each has so many bytes."""
    return int(_HEAD.unpack_from(headers, rank * nbytes)[1])


def are_whole(headers: Bytes, nbytes: int) -> bool:
    """Whether all headers, of so many bytes each, hold one block and nothing else: see only_block."""
    for at in range(0, len(headers), nbytes):
        count, _, mark = _FIRST.unpack_from(headers, at)
        if count != 1 or mark < 0:
            return False
    return True


def headed(blocks: Payload, room: int, exactly: bool = False) -> Headed:
    """A payload behind a header of at most so many bytes, or of exactly so many, as in a collective."""
    if len(blocks) == 1 and (nbytes := blocks[0].nbytes) <= room - _ALIGN:  # what most are
        header = bytearray(room if exactly else _ALIGN + nbytes)
        _ONE.pack_into(header, 0, 1, -1, nbytes)
        header[_ALIGN : _ALIGN + nbytes] = blocks[0]
        return Headed(header)
    end = _HEAD.size + 8 * len(blocks)
    if end > room:  # thousands of blocks: their lengths travel as a part of their own
        tag = part_tag()
        lengths = memoryview(struct.pack(f"<{len(blocks)}q", *(b.nbytes for b in blocks)))
        return Headed(bytearray(_HEAD.pack(-len(blocks), tag).ljust(room, b"\0")), tag, [lengths], blocks)
    marks, here, after = [], [], []
    for block in blocks:
        nbytes = block.nbytes
        at = (end + _ALIGN - 1) & -_ALIGN
        if at + nbytes <= room:
            marks.append(nbytes)
            here.append((at, block))
            end = at + nbytes
            continue
        marks.append(-1 - nbytes)
        after.append(block)
    tag = part_tag() if after else -1
    header = bytearray(room if exactly else end)
    struct.pack_into(f"<2q{len(blocks)}q", header, 0, len(blocks), tag, *marks)
    for at, block in here:
        header[at : at + block.nbytes] = block
    return Headed(header, tag, (), after)


def cut(blocks: Sequence[Block]) -> list[memoryview]:
    """The same memory in pieces that one message can carry."""
    sizes = [*map(len, blocks)]
    if blocks and min(sizes) and max(sizes) <= _PIECE:
        return [*blocks]
    return [b[i : i + _PIECE] if b.nbytes > _PIECE else b for b in blocks for i in range(0, b.nbytes, _PIECE)]


_POOLED = range(64 << 10, 16 << 20)  # bytes of blocks that are worth keeping
_POOL = 4  # blocks kept
_pool: list[NDArray[np.uint8]] = []
_pooling = threading.Lock()  # whoever finds a block unused has it before the next one looks


def pooled(nbytes: int) -> memoryview:
    """Memory to receive into; that of an earlier object which is gone, if one fits.

    Fresh memory costs a page fault for every 4 KiB, as much as the transfer itself. What was received
    holds on to its block, so the number of references tells whether anybody still looks at it.
    """
    if nbytes not in _POOLED:
        return np.empty(nbytes, np.uint8).data
    with _pooling:
        for block, references in zip(_pool, [*map(sys.getrefcount, _pool)], strict=True):
            if references == _UNUSED and block.nbytes == nbytes:
                return block.data
        block = np.empty(nbytes, np.uint8)
        _pool.append(block)
        if len(_pool) > _POOL:
            del _pool[0]
    return block.data


(_UNUSED,) = map(sys.getrefcount, [object()])  # of what only a list holds; Pythons count differently


class Opened:
    """What a header says, as far as it is known: the blocks, and those that are still to come.

    Args:
        memory: what gives the memory of so many bytes for the next block that is to come.

    Attributes:
        tag: of the parts that follow; -1: none.
        blocks: the payload; to_come: those of its blocks that follow.
    """

    __slots__ = ("_count", "_memory", "blocks", "tag", "to_come")

    def __init__(self, header: Bytes, memory: Callable[[int], memoryview] = pooled) -> None:
        self._count, self.tag = _HEAD.unpack_from(header, 0)
        self._memory = memory
        self.blocks: Payload = []
        self.to_come: list[memoryview] = []
        if self._count < 0:
            return
        view = memoryview(header)
        end = _HEAD.size + 8 * self._count
        for mark in struct.unpack_from(f"<{self._count}q", header, _HEAD.size):
            if mark >= 0:
                at = (end + _ALIGN - 1) & -_ALIGN
                end = at + mark
                self.blocks.append(view[at:end])
            else:
                block = memory(-1 - mark)
                self.blocks.append(block)
                self.to_come.append(block)

    def lengths_to_come(self) -> bytearray | None:
        return bytearray(-8 * self._count) if self._count < 0 else None

    def take_lengths(self, data: bytearray) -> None:
        self.blocks = self.to_come = [*map(self._memory, struct.unpack(f"<{-self._count}q", data))]
