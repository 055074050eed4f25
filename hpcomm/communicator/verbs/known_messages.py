"""Known messages: those whose checks have been made, so that the next like them is one call of MPI.

The general path of a message (p2p.py) looks at everything: the array, the rank, the tag, whether the sender
has noted that it sends such elements, whether another receive waits already. When it has found a call right,
that is kept, by type of array, dtype and rank, in comm.known.sends and comm.known.receives. Their look
returns the array as mpi4py takes it, or None where it is not contiguous, too long, read-only, or not in the
host's memory. Then, as for all that is not known, the general path takes over and says what is wrong.
Under a rank alone stands the last kind for it, which the next call mostly is of.

Nothing is kept while something needs the general path, and all is forgotten when that begins: an observer, a
timeout, a receive of unknown length in the background, close().
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from ..._lazy import MPI, loaded
from ...agree.message_kinds import Kind, tag_place
from ...core.comm import Comm
from ...core.dtypes import Dtype
from ...core.limits import GUARD_PROBED
from ...core.patience import patience
from ...transport import guarded_receive
from ...transport.late import transport
from ...transport.matching import add_tag, is_awaited, is_plain_tag

Part: TypeAlias = "tuple[Any, int, MPI.Datatype]"  # memory, elements, type: what mpi4py takes
Look: TypeAlias = "Callable[[Any], Part | None]"
Known: TypeAlias = "tuple[Part, int, set[Any]]"

_MOST = 1024  # kinds of calls


class KnownSend:  # slots are read quicker than a tuple's names
    """A kind of send: tags that were right, how to look at the next array, and the kind of its elements."""

    __slots__ = ("dtype", "elements", "kind", "look", "tags")

    def __init__(self, kind: type[Any], dtype: Any, look: Look, elements: Kind | None) -> None:
        self.kind, self.dtype, self.look, self.elements = kind, dtype, look, elements
        self.tags: set[int] = set()


class KnownReceive:
    """A kind of receive: tags that were right, and how to look at the next array, also of an irecv.

    probed: from how many elements on the message is to be looked at first.
    """

    __slots__ = ("dtype", "kind", "look", "look_later", "probed", "tags")

    def __init__(self, kind: type[Any], dtype: Any, look: Look, look_later: Look, probed: int) -> None:
        self.kind, self.dtype, self.look, self.look_later, self.probed = kind, dtype, look, look_later, probed
        self.tags: set[Any] = set()


class KnownMessages:
    """Of one communicator: by type of array, dtype and rank, and the last ones by rank alone.

    Attributes:
        payloads: of objects and ragged arrays that are sent: receiver and tag.
    """

    __slots__ = ("payloads", "receives", "sends")

    def __init__(self) -> None:
        self.sends: dict[Any, KnownSend] = {}
        self.receives: dict[Any, KnownReceive] = {}
        self.payloads: set[tuple[int, int]] = set()

    def forget(self) -> None:
        """Let all messages take the general path again."""
        self.sends.clear()
        self.receives.clear()
        self.payloads.clear()


def known_send(comm: Comm, x: Any, dest: Any, tag: Any) -> Part | None:
    """x as mpi4py takes it, if such a send was found right before; else None."""
    try:
        known = comm.known.sends[dest]
        if type(x) is not known.kind or x.dtype is not known.dtype or tag not in known.tags:
            known = _other_send(comm, x, dest, tag)
        return known.look(x) if type(tag) is int and type(dest) is int else None  # True and 1.0 are 1, too
    except (AttributeError, KeyError, TypeError):  # no array, not known, cannot be hashed
        return None


def known_receive(comm: Comm, out: Any, source: int | None, tag: int | None, waits: bool) -> Known | None:
    """How to receive into out, if such a receive was found right before; else None.

    Args:
        waits: whether the call waits for the message; else it has to be from one rank.

    Returns:
        out as mpi4py takes it; from how many elements on the message is to be looked at first; the tags of
        which the element type has matched, or, from any source, ranks and tags.
    """
    try:
        if source is None and waits:
            source = MPI.ANY_SOURCE
        known = comm.known.receives[source]
        if type(out) is not known.kind or out.dtype is not known.dtype:
            known = comm.known.receives[source] = comm.known.receives[type(out), out.dtype, source]
        if type(source) is not int or not (tag is None or is_plain_tag(tag)) or (source < 0 and not waits):
            return None
        part = known.look(out) if waits else known.look_later(out)
        return None if part is None else (part, known.probed, known.tags)
    except (AttributeError, KeyError, TypeError):
        return None


def check_known(comm: Comm, verb: str, out: Any, source: int, seen: MPI.Status, tags: set[Any]) -> None:
    """Look at a message that has come to a known receive from source, or from any."""
    its = seen.tag if source >= 0 else (seen.source, seen.tag)
    if its not in tags or seen.Get_count() != out.nbytes:
        transport.check_arrived(comm, verb, out, seen)
        add_tag(tags, its)


def _other_send(comm: Comm, x: Any, dest: int, tag: int) -> KnownSend:
    """As known_send, of another kind or tag than the last one to dest.

    Raises:
        KeyError: it is not known.
    """
    known: KnownSend = comm.known.sends[type(x), x.dtype, dest]
    if tag not in known.tags:
        if not is_plain_tag(tag) or not (known.elements is None or tag_place(tag) in known.elements.noted):
            raise KeyError(tag)
        add_tag(known.tags, tag)
    comm.known.sends[dest] = known
    return known


def remember_send(comm: Comm, x: object, dtype: Dtype, dest: int) -> None:
    """Keep a send that was found right, and whose element type was noted for dest and its tag."""
    key = type(x), getattr(x, "dtype", None), dest
    if key in comm.known.sends or dest == comm.rank or not _may_be_known(comm, comm.known.sends, dest):
        return
    if (look := _look(comm, x, dtype)) is not None:
        elements = None if comm.message_kinds is None else comm.message_kinds.of(dtype)
        comm.known.sends[dest] = comm.known.sends[key] = KnownSend(*key[:2], look, elements)


def remember_receive(comm: Comm, out: object, dtype: Dtype, source: int) -> None:
    """Keep a receive that was found right."""
    key = type(out), getattr(out, "dtype", None), source
    peer = 0 if source == MPI.ANY_SOURCE else source
    if key in comm.known.receives or not _may_be_known(comm, comm.known.receives, peer):
        return
    now = later = 0  # elements up to which a receive is guarded
    if guarded_receive.is_needed():
        now, later = (-(-n // dtype.itemsize) for n in (GUARD_PROBED, guarded_receive.most(comm, False)))
    look, look_later = _look(comm, out, dtype, now), _look(comm, out, dtype, later)
    if look is not None and look_later is not None and not is_awaited(comm.mpi_handle):
        known = KnownReceive(*key[:2], look, look_later, now or sys.maxsize)
        comm.known.receives[source] = comm.known.receives[key] = known


def _may_be_known(comm: Comm, known: dict[Any, Any], peer: int) -> bool:
    if len(known) >= _MOST:
        known.clear()
    if comm.observers or comm.is_closed or comm.disagreed or patience(comm) or comm.is_inter:
        return False
    return 0 <= peer < comm.size and (comm.devices is None or not comm.devices.messages.held)


def _look(comm: Comm, x: object, dtype: Dtype, guarded: int | None = None) -> Look | None:
    """What looks at arrays like x; None: there is nothing quicker than the general path.

    guarded: of arrays to receive into: up to how many elements nothing is to be written behind them.
    """
    kind = MPI.UINT16_T if dtype.kind == "h" else transport.native(dtype)
    if kind is None:
        return None
    most = transport.largest_count * dtype.itemsize
    if comm.devices is not None:
        most = min(most, comm.devices.eager)
    numpy, torch = loaded("numpy"), loaded("torch")
    if numpy is not None and type(x) is numpy.ndarray:
        if guarded is None:
            return _look_at_numpy(kind, most // dtype.itemsize)
        return _land_in_numpy(kind, most // dtype.itemsize, guarded)
    if torch is not None and type(x) is torch.Tensor and dtype.kind != "c":  # which may be lazy conjugates
        return _look_at_torch(kind, dtype.itemsize, most, guarded or 0, _knows_devices(torch))
    return None


def _look_at_numpy(kind: MPI.Datatype, most: int) -> Look:
    def look(x: Any) -> Part | None:
        n = x.size
        return (x, n, kind) if n <= most and x.flags.c_contiguous else None

    return look


def _land_in_numpy(kind: MPI.Datatype, most: int, guarded: int) -> Look:
    guards = guarded_receive.guards(kind)

    def look(x: Any) -> Part | None:
        n = x.size
        if n > most or not x.flags.carray:
            return None
        if n >= guarded:
            return x, n, kind
        return (x, 1, guards[n]) if n else None

    return look


def _look_at_torch(kind: MPI.Datatype, itemsize: int, most: int, guarded: int, has_devices: bool) -> Look:
    """By address, since mpi4py takes microseconds to look into a tensor."""
    guards, fromaddress = guarded_receive.guards(kind), MPI.buffer.fromaddress

    def look(x: Any) -> Part | None:
        try:
            nbytes = x.nbytes
            # A lazy negative has gaps, unless it is a single element.
            is_plain = x.is_contiguous() if nbytes > itemsize else nbytes and not x.is_neg()
            if not is_plain or nbytes > most or (has_devices and not x.is_cpu) or x.requires_grad:
                return None
            address = x.data_ptr()
        except RuntimeError:  # sparse tensors, and those of torch.func, have no memory of their own
            return None
        if not address:  # its storage was freed
            return None
        n = nbytes // itemsize
        memory = fromaddress(address, nbytes)
        return (memory, n, kind) if n >= guarded else (memory, 1, guards[n])

    return look


def _knows_devices(torch: object) -> bool:
    """Whether tensors of this build of torch may have an address that is not in the host's memory."""
    accelerator = getattr(torch, "accelerator", None)
    try:
        return accelerator is None or accelerator.current_accelerator() is not None
    except RuntimeError:  # torch 2.6, built for a device that this machine has not
        return True
