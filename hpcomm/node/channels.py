"""Channels of planned exchanges: messages to ranks of the node, packed where the receiver unpacks them.

Two copies, where MPI makes three or drives an engine for datatypes. A channel has two boxes, used in turn, so
its sender may be one exchange ahead of its receiver, as with MPI, and no further (_native/channel.c).
"""

from __future__ import annotations

from ..core.comm import Comm
from ..core.limits import NODE_SPINS
from ..errors import has_ended, where
from . import segment
from .native import core, native_core


def has_memory() -> bool:
    """Whether the ranks of this node have channels at all; the same on all of them."""
    return segment.current is not None


def reserved(nbytes: int) -> int:
    """Room for messages of so many bytes, for attached() at both ends; 0: there is none."""
    return _near().shared.reserve_channel(nbytes) or 0


def attached(at: int, comm: Comm, peer: int, verb: str) -> native_core.Channel:
    """One end of a channel, which both ends take once. Its waits raise PeerFailedError."""
    native, near = core(), _near()
    assert native is not None
    hook, spins = _Watch(comm, peer, verb), 0 if near.is_crowded else NODE_SPINS
    made: native_core.Channel = native.Channel(near.shared, at, peer, hook, spins, verb=verb)
    return made


def _near() -> segment.NodeSegment:
    assert segment.current is not None
    return segment.current


class _Watch:
    """What a wait for a peer calls again and again. end: whose wait, and for whom."""

    def __init__(self, comm: Comm, peer: int, verb: str) -> None:
        self.end, self._verb, self._is_gone = (comm, peer), verb, False

    def __call__(self, *_: object) -> None:
        comm, peer = self.end
        comm.move_on()  # others may wait for what MPI has to do here
        if self._is_gone:  # and what it had left to say has not been it
            raise has_ended(f"the {self._verb}", where(self._verb, comm), [peer])
        self._is_gone = comm.near.regions[peer].gone


def end_of(channel: object) -> tuple[Comm, int] | None:
    """Of which communicator a channel is, and the rank at its other end; None: it is no channel."""
    hook = getattr(channel, "hook", None)
    return hook.end if isinstance(hook, _Watch) else None
