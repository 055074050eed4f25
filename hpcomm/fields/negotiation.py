"""Capability negotiation: what the two ends of each message of an exchange agree on beforehand.

Each end tells the other what it would have; a message takes a special path only if both ends can.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.limits import SLOT_MOST
from ..node.slots import CARD, Box, Outbox, has_memory, inbox
from ..transport.datatypes import alone, is_scattered
from ..transport.endpoints import on_device

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..communicator.communicator import Communicator
else:
    from .._lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")

__all__ = ["Capabilities", "agreed"]

_ALONE, _ABOARD, _BOXED = 1, 2, 4  # bits of a wish: views as messages of their own, on a device, by slots
_WISH = struct.Struct("=q")


class Capabilities(NamedTuple):
    """Of messages, told apart by (source, dest).

    apart: their views go as messages of their own, because both ends would have it so.
    device_side: one end or both lie on a device.
    outboxes, inboxes: by the other rank, the two slots in shared memory that they go through.
    """

    apart: Collection[tuple[int, int]] = ()
    device_side: Collection[tuple[int, int]] = ()
    outboxes: Mapping[int, tuple[Box, Box]] = {}
    inboxes: Mapping[int, tuple[Box, Box]] = {}


def agreed(
    comm: Communicator,
    mpi: MPI.Comm,
    tag: int,
    outgoing: Mapping[int, Sequence[Any]],
    incoming: Mapping[int, Sequence[Any]],
    boxes: bool,
) -> Capabilities:
    """What is agreed for the messages of this rank to and from others, who call it, too.

    Two rounds of small messages between the two ends of each message:

        1  both    wish of this end; from the sender also the name of its slots' file, if it has made one
        2  dest    whether it could open that file (not from another container)

    A message goes by slots, or in messages of its own, only if both ends wish it; it counts as one between
    devices if either end is on one.

    Args:
        boxes: whether messages may go through shared memory; the same on all ranks.
    """
    me = comm.rank
    outbox = _outbox(comm, outgoing) if boxes else None
    laid = {} if outbox is None else {(me, p): outbox.card(p) for p in outbox.sizes}
    wishes = {(me, p): _wish(views, sending=True) for p, views in outgoing.items()}
    wishes |= {(p, me): _wish(views, sending=False) for p, views in incoming.items()}
    for pair, wish in wishes.items():  # wishes of both directions: this rank is source or dest
        here = boxes and wish != _ABOARD and pair[0] in comm.node_regions and has_memory()
        if pair in laid or here:
            wishes[pair] |= _BOXED
    mine = {pair: _WISH.pack(wish) + laid.get(pair, bytes(CARD.size)) for pair, wish in wishes.items()}
    cards = _traded(mpi, tag, me, mine, wishes, _WISH.size + CARD.size)
    theirs = {pair: _WISH.unpack_from(card)[0] for pair, card in cards.items()}
    both = {pair: wish & theirs[pair] for pair, wish in wishes.items()}
    boxed = [pair for pair, flags in both.items() if flags & _BOXED]
    inboxes = {source: inbox(cards[source, me][_WISH.size :]) for source, dest in boxed if dest == me}
    told = {(source, me): bytes([there is not None]) for source, there in inboxes.items()}
    seen = _traded(mpi, tag, me, told, [pair for pair in boxed if pair[0] == me], 1)
    if outbox is not None:  # whoever will open the file has done so: nothing is left behind if we die
        outbox.hide()
    return Capabilities(
        {pair for pair, flags in both.items() if flags & _ALONE},
        {pair for pair, wish in wishes.items() if (wish | theirs[pair]) & _ABOARD},
        {dest: outbox.boxes(dest) for (_, dest), so in seen.items() if outbox is not None and so[0]},
        {source: there for source, there in inboxes.items() if there is not None},
    )


def _outbox(comm: Communicator, outgoing: Mapping[int, Sequence[Any]]) -> Outbox | None:
    """Memory for what goes to ranks of this node, if there is some."""
    sizes = {
        peer: nbytes
        for peer, views in outgoing.items()
        if peer in comm.node_regions and not any(map(on_device, views)) and not is_scattered(views)
        if (nbytes := sum(view.nbytes for view in views)) <= SLOT_MOST
    }
    if sizes and has_memory():
        with suppress(OSError):  # MPI has some
            return Outbox(sizes)
    return None


def _wish(views: Sequence[Any], sending: bool) -> int:
    """How this end would have views sent, or gets them."""
    if any(map(on_device, views)):
        return _ABOARD
    return _ALONE if alone(views, sending) else 0


def _traded(
    mpi: MPI.Comm,
    tag: int,
    me: int,
    told: Mapping[tuple[int, int], bytes],
    about: Collection[tuple[int, int]],
    nbytes: int,
) -> dict[tuple[int, int], bytearray]:
    """Tell the other end of some messages what it is to know, and hear as much about others.

    Both may be about either direction between two ranks: these are told apart by their order.
    """
    heard = {pair: bytearray(nbytes) for pair in about}
    going = [
        mpi.Irecv([heard[pair], MPI.BYTE], sum(pair) - me, tag)
        for pair in sorted(heard, key=lambda pair: pair[0] != me)
    ]
    going += [
        mpi.Isend([told[pair], MPI.BYTE], sum(pair) - me, tag)
        for pair in sorted(told, key=lambda pair: pair[0] == me)
    ]
    MPI.Request.Waitall(going)
    return heard
