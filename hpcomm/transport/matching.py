"""Message envelopes (source, dest, tag) and matched probes.

MPI matches a receive that it knows of. A receive of unknown length must see the message first, so it waits as
an Arrival. It probes until it finds a message, and takes it out of MPI's matching (MPI_Improbe, MPI_Mprobe).

    asked for ── in _waiting, in the order of the calls
       │  Test(): Iprobe finds a message (source, tag)
       ├─ an earlier Arrival takes such messages ──> that one is tested first (MPI's order of receives)
       └─ else Improbe: .message holds it ──> received by its owner, with MPI_Mrecv
       withdraw(): no longer waits; what comes is for others

_matching makes a probe and the decision about it one step, where several threads receive.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from .._lazy import MPI, LazyModule, np
from ..core.patience import until
from ..core.status import Status
from ..errors import HpcommError, RankError, UsageError, known_ranks, placed

if TYPE_CHECKING:
    from ..core.comm import Comm
    from ..core.types import AnyStatus
    from . import mpi as transport
else:
    transport = LazyModule("hpcomm.transport.mpi")

T = TypeVar("T")
_ANY_MPI = 32767  # tags up to here are taken by every MPI
_MOST = 1024  # tags that are kept


class Envelope(NamedTuple):
    """Which message a receive takes, as MPI's numbers, and the user's Status, which it fills."""

    source: int
    tag: int
    status: AnyStatus | None = None


class Ends(NamedTuple):
    """Where the two messages of a sendrecv go and come from, as MPI's numbers."""

    dest: int
    source: int
    sendtag: int
    recvtag: int


class Arrival:
    """A message that is still to come, waited for as an MPI request is; then .message holds it.

    As with MPI's own receives, a message is for the first of those that wait for one like it.
    """

    def __init__(self, mpi: MPI.Comm, source: int, tag: int) -> None:
        self.mpi, self._source, self._tag = mpi, source, tag
        self.status = MPI.Status()
        self.message: Any = None
        self._is_inside = False  # whether MPI waits for it: no other thread may take it then
        key, forget = id(self), _waiting.pop
        _waiting[key] = weakref.ref(self, lambda _: forget(key, None))

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802  as MPI.Request has it
        with _matching:
            # The loop: what the probe found may be for an earlier Arrival; then there may be another message.
            seen = MPI.Status()  # its own status may be MPI's just now
            while (
                not self._is_inside
                and self.message is None
                and self.mpi.Iprobe(self._source, self._tag, seen)
            ):
                source, tag = seen.source, seen.tag
                first = self
                if source != MPI.PROC_NULL:
                    first = next((each for each in _in_order() if each._takes(self.mpi, source, tag)), self)
                if first is not self:
                    first.Test()
                else:
                    self.message = self.mpi.Improbe(source, tag, self.status)
            return self._is_here()

    def Wait(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        if self._is_here():  # another one has seen to it
            return True
        with _matching:
            self._is_inside = len(_waiting) == 1 and self.message is None
        if self._is_inside:  # nobody else could want it: let MPI wait, which takes no turns of Python
            try:
                self.message = self.mpi.Mprobe(self._source, self._tag, self.status)
            finally:
                self._is_inside = False
            return self._is_here()
        return until(self.Test)

    def withdraw(self) -> bool:
        """Leave what comes to others; whether none has come before."""
        with _matching:
            _waiting.pop(id(self), None)
            return self.message is None

    def _is_here(self) -> bool:
        if self.message is not None:
            self.withdraw()
        return self.message is not None

    def _takes(self, mpi: MPI.Comm, source: int, tag: int) -> bool:
        return (
            self.mpi is mpi
            and self.message is None
            and self._source in (source, MPI.ANY_SOURCE)
            and self._tag in (tag, MPI.ANY_TAG)
        )


_waiting: dict[int, weakref.ref[Arrival]] = {}  # in the order in which they were asked for
_matching = threading.RLock()


def is_there(mpi: MPI.Comm, source: int, tag: int, seen: MPI.Status) -> bool:
    """MPI_Iprobe, of what no Arrival takes: as with MPI's own receives, theirs is not seen by a probe."""
    with _matching:
        while mpi.Iprobe(source, tag, seen):
            its = seen.source, seen.tag
            first = next((each for each in (_in_order() if _waiting else ()) if each._takes(mpi, *its)), None)
            if first is None or seen.source == MPI.PROC_NULL:
                return True
            first.Test()
        return False


def is_awaited(mpi: MPI.Comm, source: int | None = None, tag: int | None = None) -> bool:
    """Whether an Arrival may take a message that a receive from source with tag could take; None: any."""
    any_source, any_tag = (None, MPI.ANY_SOURCE), (None, MPI.ANY_TAG)
    return any(
        each.mpi is mpi
        and each.message is None
        and (source in any_source or each._source in (source, MPI.ANY_SOURCE))
        and (tag in any_tag or each._tag in (tag, MPI.ANY_TAG))
        for each in (_in_order() if _waiting else ())
    )


def some_wait() -> bool:
    """Whether there is any Arrival."""
    return bool(_waiting)


def _in_order() -> list[Arrival]:
    return [each for reference in list(_waiting.values()) if (each := reference()) is not None]


def fill(status: AnyStatus | None, seen: MPI.Status) -> Any:
    """Copy what MPI saw into the user's Status, or into mpi4py's."""
    if status is None:
        status = Status()
    if isinstance(status, MPI.Status):
        status.Set_source(seen.Get_source())
        status.Set_tag(seen.Get_tag())
        status.Set_elements(MPI.BYTE, seen.Get_elements(MPI.BYTE))
    else:
        status.source, status.tag = seen.Get_source(), seen.Get_tag()
        status.nbytes = seen.Get_elements(MPI.BYTE)
    return status


def peer_rank(comm: Comm, peer: object, name: str) -> int:
    """name: of the argument; a "source" may be any."""
    size = comm.remote_size if comm.is_inter else comm.size
    if type(peer) is int and 0 <= peer < size:
        return peer
    if name == "source" and peer in (None, MPI.ANY_SOURCE):
        return MPI.ANY_SOURCE
    if not _is_number(peer):
        raise RankError(f"{name} must be a rank, not {peer!r}", hint=f"a rank from 0 to {size - 1}")
    if 0 <= peer < size or peer == MPI.PROC_NULL:
        return int(peer)
    hint = f"a rank from 0 to {size - 1}" if comm.is_inter else known_ranks(comm)
    raise RankError(f"{name} {peer} is no rank of '{comm.name}'", hint=hint)


def _is_number(rank: object) -> TypeGuard[int]:
    return isinstance(rank, (int, np.integer)) and not isinstance(rank, bool)


def is_root(comm: Comm, root: Any) -> bool:
    """Whether this rank is root. Root's own group says MPI.ROOT, or beside it MPI.PROC_NULL, both below 0.

    Raises:
        RankError: there is no such root.
    """
    is_rank = type(root) is int or _is_number(root)
    if is_rank and 0 <= root < (comm.remote_size if comm.is_inter else comm.size):
        return bool(comm.rank == root) and not comm.is_inter
    if not comm.is_inter:
        raise RankError(f"root {root!r} is no rank of '{comm.name}'", hint=known_ranks(comm))
    if is_rank and root in (MPI.ROOT, MPI.PROC_NULL):
        return bool(root == MPI.ROOT)
    raise RankError(
        f"root {root!r} is no rank of the other group of '{comm.name}'",
        hint=f"0 to {comm.remote_size - 1} in the group away from the root; hpcomm.ROOT at the root, "
        "hpcomm.PROC_NULL beside it",
    )


def source_and_tag(comm: Comm, verb: str, source: object, tag: object) -> tuple[int, int]:
    """Source and tag as MPI takes them, or an error that names verb."""
    try:
        comm.check_open(verb)
        return peer_rank(comm, source, "source"), tag_number(comm, tag)
    except HpcommError as error:
        raise placed(error, verb, comm) from None


def is_plain_tag(tag: object) -> bool:
    """Whether every MPI takes it."""
    return type(tag) is int and 0 <= tag <= _ANY_MPI


def add_tag(tags: set[T], tag: T) -> None:
    """Keep a tag, or a rank and a tag, and not too many."""
    if len(tags) >= _MOST:
        tags.clear()
    tags.add(tag)


def tag_number(comm: Comm, tag: Any, sending: bool = False) -> int:
    if tag is None and not sending:
        return MPI.ANY_TAG
    if is_plain_tag(tag):
        return int(tag)
    if tag == MPI.ANY_TAG and not sending:
        return MPI.ANY_TAG
    if not isinstance(tag, (int, np.integer)) or not 0 <= tag <= transport.largest_tag():
        raise UsageError(f"tag {tag!r} cannot be sent", hint=f"a number from 0 to {transport.largest_tag()}")
    return int(tag)
