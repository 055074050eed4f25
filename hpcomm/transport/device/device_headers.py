"""Headers of large device messages: what their sender announces, and what their receiver answers."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

from .path_choice import Choice

HEADER = 1536  # bytes of a header, and of an answer
_MAGIC = b"\x93hpcomm device message\0"


class Header(NamedTuple):
    """What announces a large message.

    tag: of its data, and the next one of what the receiver says; ipc: an Offer, of a rank to itself a Lent,
    or why there is none;
    direct: why MPI is not to be given the array, or ""; device: the identity of where it lies, if on a device
    """

    nbytes: int
    tag: int
    ipc: Any
    direct: str
    device: bytes


class Answer(NamedTuple):
    """What its receiver says to that.

    piece: elements, in a pipeline; itself: the array was opened itself; device: where it goes to, for nccl;
    number, unique: see nccl.Pair.carry
    """

    fits: bool
    choice: Choice = Choice("", {})
    piece: int = 0
    itself: bool = False
    device: bytes = b""
    number: int = 0
    unique: bytes = b""


def pack(said: Header | Answer) -> bytes:
    packed = _MAGIC + pickle.dumps(said)
    assert len(packed) <= HEADER, len(packed)
    return packed.ljust(HEADER, b"\0")


def unpack(header: bytearray) -> Any:
    return pickle.loads(header[len(_MAGIC) :])


def is_header(raw: bytearray) -> bool:
    """Whether a message of a header's length is one."""
    return len(raw) == HEADER and raw.startswith(_MAGIC)


def announced_length(raw: bytearray) -> int | None:
    """Bytes of the message that a header announces; None if it is no header, but a message itself."""
    return int(unpack(raw).nbytes) if is_header(raw) else None
