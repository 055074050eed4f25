"""Capability negotiation: what the two ends of each message of an exchange agree on beforehand.

Each end tells the other what it would have; a message takes a special path only if both ends can.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .._lazy import MPI
from ..communicator.communicator import Communicator
from ..communicator.making.groups import Channel as Lines
from ..core.limits import CHANNEL_MOST
from ..core.types import NpArray
from ..errors import MismatchError
from ..node.channels import attached, has_memory, reserved
from ..node.native import native_core as core
from ..transport.datatypes import alone, is_scattered
from ..transport.endpoints import count, on_device

# Bits of a wish: views as messages of their own, on a device, by a channel:
_ALONE, _ON_DEVICE, _BY_CHANNEL = 1, 2, 4
_WISH = struct.Struct("=qq")  # bits, bytes of the message
_PLACE = struct.Struct("=Q")  # of a channel; 0: there was no room


class Capabilities(NamedTuple):
    """Of messages, told apart by (source, dest).

    apart: their views go as messages of their own, because both ends would have it so.
    device_side: one end or both lie on a device.
    channels: of this node, that they go through.
    """

    apart: Collection[tuple[int, int]] = ()
    device_side: Collection[tuple[int, int]] = ()
    channels: Mapping[tuple[int, int], core.Channel] = {}


def agreed(
    comm: Communicator,
    lines: Lines,
    outgoing: Mapping[int, Sequence[Any]],
    incoming: Mapping[int, Sequence[Any]],
    verb: str,
    near: bool,
) -> Capabilities:
    """What is agreed for the messages of this rank to and from others, who call it, too.

    Two rounds of small messages between the two ends of each message:

        1  both    wish of this end
        2  source  where in the node's memory the channel is, if both wish for one

    A message goes by a channel, or in messages of its own, only if both ends wish it; it counts as one
    between devices if either end is on one.

    Args:
        lines: for these messages of it.
        near: whether messages may go by channels; the same on all ranks.
    """
    me, (mpi, tag, _) = comm.rank, lines
    peers = comm.context.near.regions if near and has_memory() else {}
    wishes = {(me, p): _wish(views, True, p in peers) for p, views in outgoing.items()}
    wishes |= {(p, me): _wish(views, False, p in peers) for p, views in incoming.items()}
    theirs = _traded(mpi, tag, me, wishes, wishes, _WISH)
    near_bytes = {pair: n for pair, (flags, n) in wishes.items() if flags & theirs[pair][0] & _BY_CHANNEL}
    terms = Capabilities(
        {pair for pair, (flags, _) in wishes.items() if flags & theirs[pair][0] & _ALONE},
        {pair for pair, (flags, _) in wishes.items() if (flags | theirs[pair][0]) & _ON_DEVICE},
        _channels(comm, mpi, tag, near_bytes, verb),
    )
    for pair, (_, nbytes) in wishes.items():  # at last: others wait for this rank until here
        if nbytes != theirs[pair][1]:
            raise MismatchError(
                f"from rank {pair[0]} to rank {pair[1]} go {nbytes} bytes as this rank has it, "
                f"{theirs[pair][1]} as the other has it",
                hint="the same shapes, halos and dtypes on all ranks",
            )
    return terms


def _wish(views: Sequence[NpArray], sending: bool, is_near: bool) -> tuple[int, int]:
    """How this end would have views sent, or gets them, and their bytes."""
    nbytes = sum(count(view) * view.dtype.itemsize for view in views)
    if any(map(on_device, views)):
        return _ON_DEVICE, nbytes
    goes = is_near and (not sending or (nbytes <= CHANNEL_MOST and not is_scattered(views)))
    return (_ALONE if alone(views, sending) else 0) | (_BY_CHANNEL if goes else 0), nbytes


def _channels(
    comm: Communicator, mpi: MPI.Comm, tag: int, nbytes: Mapping[tuple[int, int], int], verb: str
) -> dict[tuple[int, int], core.Channel]:
    """The channels of messages of nbytes that go by one, if their source has room, and tells where."""
    me = comm.rank
    laid = {pair: (reserved(most),) for pair, most in nbytes.items() if pair[0] == me}
    places = laid | _traded(mpi, tag, me, laid, [pair for pair in nbytes if pair not in laid], _PLACE)
    return {pair: attached(at, comm.context, sum(pair) - me, verb) for pair, (at,) in places.items() if at}


def _traded(
    mpi: MPI.Comm,
    tag: int,
    me: int,
    told: Mapping[tuple[int, int], tuple[int, ...]],
    about: Collection[tuple[int, int]],
    form: struct.Struct,
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Tell the other end of some messages what it is to know, and hear as much about others.

    Both may be about either direction between two ranks: these are told apart by their order.
    """
    heard = {pair: bytearray(form.size) for pair in about}
    going = [
        mpi.Irecv([heard[pair], MPI.BYTE], sum(pair) - me, tag)
        for pair in sorted(heard, key=lambda pair: pair[0] != me)
    ]
    going += [
        mpi.Isend([form.pack(*told[pair]), MPI.BYTE], sum(pair) - me, tag)
        for pair in sorted(told, key=lambda pair: pair[0] == me)
    ]
    MPI.Request.Waitall(going)
    return {pair: form.unpack(each) for pair, each in heard.items()}
