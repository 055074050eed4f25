"""Device arrays in payloads: inside objects, and as ragged arrays.

    the payload         description, block, array on a device, block ...
    as it travels       manifest, description, block, label, block ...        then the array, by itself

In place of such an array its label travels among the blocks: library, dtype, shape. Few elements follow the
label directly. Many follow as a message from device to device, which takes the paths of messages of arrays
(device_messages.py). The array arrives on the current device of the same library, where the receiver has
loaded that and has a device, else in host memory. The host waits for its end: an object is not put together
before all of it has arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ..._lazy import loaded, np
from ...core import buffer, dtypes
from ...core.buffer import Buffer, DeviceBuffer, Shape
from ...core.dtypes import Dtype
from ...core.operation import Call
from ...core.request import Stages
from ...core.types import AnyArray
from ...device.libraries import LIBRARIES, library_of
from ...transport.late import host_copy, staging
from ...transport.progress import Moving
from ..context import Context
from ..making.block_channel import part_tag
from .payload import OnDevice, Payload

_DEVICE_MARK = b"\x95laden"  # how a manifest begins; no description of a payload does
_LABEL = struct.Struct("<q32s24sq")  # tag of what follows (-1: it stands behind), library, dtype, axes


def block_of(look: DeviceBuffer) -> OnDevice:
    """What stands for an array in a payload.

    Raises:
        LayoutError: it is strided, and no kernel is known to pack it.
    """
    place = look.packed()
    block = OnDevice()
    block.look = look if place is look.place else buffer.DeviceBuffer(place.array, place)
    block.library = library_of(look.give())
    return block


def copied(block: OnDevice) -> object:
    """The same elements in an array of their own."""
    look = block.look
    if look.place.pack is not None:
        return look.place.pack()
    made, after = _room(block.library, look.dtype, look.shape), staging.After()
    _fill(made, host_copy.to_host(look), after)
    after.order()
    return made.give()


def has_device_arrays(payload: Payload) -> bool:
    """Whether a payload that has come has arrays for devices in it."""
    return bytes(payload[0][: len(_DEVICE_MARK)]) == _DEVICE_MARK


def load(comm: Context, payload: Payload, ranks: Sequence[int]) -> tuple[Payload, list[Moving]]:
    """The payload as it travels to ranks, and what follows it to each of them, already under way."""
    blocks: list[Any] = []
    follows: list[tuple[DeviceBuffer, int]] = []
    labels = []
    for at, block in enumerate(payload):
        if not isinstance(block, OnDevice):
            blocks.append(block)
            continue
        look, tag = block.look, -1
        if comm.devices is not None and comm.devices.follows(look.nbytes, ranks):
            tag = part_tag()
            follows.append((look, tag))
        labels.append(at)
        blocks.append(memoryview(_label(block, tag)))
    manifest = memoryview(_DEVICE_MARK + struct.pack(f"<{len(labels)}q", *labels))
    return [manifest, *blocks], [_depart(comm, follows, rank) for rank in ranks if follows]


def _label(block: OnDevice, tag: int) -> bytearray:
    look = block.look
    shape = look.shape
    head = _LABEL.pack(tag, block.library.encode(), look.dtype.name.encode(), len(shape))
    label = bytearray(head + struct.pack(f"<{len(shape)}q", *shape))
    if tag < 0:
        label += host_copy.to_host(look).data.cast("B") if look.nbytes else b""
    return label


def _depart(comm: Context, follows: list[tuple[DeviceBuffer, int]], rank: int) -> Moving:
    """Begin to send arrays to a rank, one after the other."""
    messages = comm.devices.messages
    # Now, in this thread, whose current streams are those of the caller:
    going = [(look, tag, messages.begin(look, "down")) for look, tag in follows]

    def stages() -> Stages:
        after = staging.After()
        try:
            while going:
                look, tag, event = going.pop(0)
                yield from messages.pass_on(_call(comm, "send", look, rank, tag, after), look, event)
        finally:  # where one was refused, those behind it are not sent
            for look, _, event in going:
                messages.return_event(look, event)
        yield [after]

    return Moving(stages())


def unload(comm: Context, payload: Payload, source: int) -> Stages:
    """The payload that was loaded, with arrays where labels came; what follows is received from source."""
    manifest, *blocks = payload
    messages = comm.devices.messages
    coming: list[tuple[Buffer, int, int]] = []
    after = staging.After()
    for (at,) in struct.iter_unpack("<q", manifest[len(_DEVICE_MARK) :]):
        look, tag = _read(blocks[at], after)
        blocks[at] = look.give()
        if tag >= 0:
            coming.append((look, tag, messages.begin(look, "up")))
    try:
        while coming:
            look, tag, event = coming.pop(0)
            yield from messages.take_in(_call(comm, "recv", look, source, tag, after), look, event)
    finally:
        for look, _, event in coming:
            messages.return_event(look, event)
    yield [after]
    return blocks


def _read(label: Any, after: staging.After) -> tuple[Buffer, int]:
    """A new array for what a label says, filled if its elements stand there, and the tag of what follows."""
    tag, library, name, axes = _LABEL.unpack_from(label, 0)
    end = _LABEL.size + 8 * axes
    shape = struct.unpack_from(f"<{axes}q", label, _LABEL.size)
    look = _room(_text(library), dtypes.BY_NAME[_text(name)], shape)
    if tag < 0 and look.nbytes:
        _fill(look, np.frombuffer(label[end:], look.dtype.storage).reshape(shape), after)
    return look, tag


def _call(comm: Context, verb: str, look: Buffer, peer: int, tag: int, after: staging.After) -> Call:
    call = Call(comm, verb, peer=peer, tag=tag)
    call.look, call.after = look, after
    return call


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _room(library: str, dtype: Dtype, shape: Shape) -> Buffer:
    """A new array of library on its current device, if this process has both; else one in host memory."""
    known = LIBRARIES.get(library) if loaded(library) is not None else None
    made = None if known is None else known.room(shape, dtype)
    return buffer.empty(shape, dtype) if made is None else buffer.as_buffer(made)


def _fill(look: Buffer, data: AnyArray, after: staging.After) -> None:
    if look.place is None:
        look.array[...] = data
    else:
        host_copy.Upload(look).fill(data, after)
