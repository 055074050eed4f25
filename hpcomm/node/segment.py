"""Node segment: what every rank of a node records for the others, in words of the native core's memory.

    record of a rank    ended, failed, asked, answered | mark | pipe, domain, aborted | others: asked,
                        answered, file | answer: a text | note: a text | calls begun: a text

Others only read it, except that they may ask for the answer. A living rank holds a lock on a byte of the file
behind the memory, whose name is gone as soon as all have it open. The kernel takes the lock away when the
process ends, in whatever manner, and tells all who have the file: also those in other containers, where
process ids differ.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import MPI, LazyModule
from ..job.survive import VARIABLE
from . import native
from .words import Words, words_of_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..job import first_end
    from ._native import core
else:
    first_end = LazyModule("hpcomm.job.first_end")

_ENDED, _FAILED, _ASKED, _ANSWERED, _MARK = range(5)  # its mark: see core.mark; 7 to 12: see Region
_ANSWER, ANSWER_BYTES, _NOTE_BYTES, _BEGUN_BYTES = 13, 4096, 512, 2048
_NOTE = _ANSWER + words_of_text(ANSWER_BYTES)
_BEGUN = _NOTE + words_of_text(_NOTE_BYTES)
_WORDS = _BEGUN + words_of_text(_BEGUN_BYTES)  # of a rank
_NBYTES = 1 << 30  # of address space; memory is taken as communicators need it
_LOOKED_AT = 256  # ranks of a communicator, of which each is asked for its job
_NAME = 80  # bytes of a file's name
_ENTRY = struct.Struct("q 7s")  # where the records begin, a number drawn for the node: see mpmd/jobs.py
_LOCK = struct.Struct("hhqqi4x")  # fcntl(2) on 64-bit Linux: its type, whence, begin, length, whose it is
survives = bool(os.environ.get(VARIABLE))  # whether the job goes on when a rank dies
_CORES = 2048  # of a node; where there are more, some count as one


class _Word:
    """A word of a record, as an attribute of it."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, region: Region, kind: type[Region]) -> int:
        return region._words[self._at]

    def __set__(self, region: Region, value: int) -> None:
        region._words[self._at] = value


class Region:
    """The record of one rank.

    Args:
        file, byte: what its owner locks.
    """

    pipe = _Word(7)  # the owner's file that job/first_end.py watches; 0: none
    domain = _Word(8)  # of memory, near which the owner ran when it began
    failed = _Word(_FAILED)  # 1: this rank is about to end by failure; the others may still say so before
    aborted = _Word(9)  # the status with which this rank ends the job; 0: it does not
    # How often it was asked what the ranks of other nodes do, how often it has answered, and a descriptor of
    # its own of the file with the last answer: see agree/doing.py.
    others_asked, others_answered, others_file = _Word(10), _Word(11), _Word(12)

    def __init__(self, words: Words, file: int, byte: int) -> None:
        self._words = words
        self._file, self._byte = file, byte
        self._process = False  # whether we have seen that its owner holds the lock

    def hold(self) -> None:
        """Take the lock of one's own record, for life."""
        with suppress(OSError):  # no locks here: then only ends that are said are seen
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte)

    @property
    def mark(self) -> list[int]:
        """By which another process sees whether it can reach the owner's memory."""
        return [self._words[_MARK + i] for i in range(3)]

    @mark.setter
    def mark(self, mark: Sequence[int]) -> None:
        for i, word in enumerate(mark):
            self._words[_MARK + i] = word

    def look(self) -> None:
        """See whether the owner holds its lock: then its end can be seen. Not for one's own record."""
        self._process = self.is_held

    @property
    def is_held(self) -> bool:
        """Whether a process has the lock; who looks takes it for a moment, beside others who look."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, self._byte)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)
        return False

    @property
    def ended(self) -> bool:
        return bool(self._words[_ENDED])

    @property
    def begun(self) -> bytes:
        """What end() was given."""
        return bytes.fromhex(self._words.read(_BEGUN, _BEGUN_BYTES))

    def end(self, begun: bytes = b"") -> None:
        """Say that this rank will make no more calls. begun: which it has made, for agree/end_notices.py."""
        if len(text := begun.hex()) <= _BEGUN_BYTES:
            self._words.write(_BEGUN, text, _BEGUN_BYTES)
        self._words[_ENDED] = 1

    @property
    def gone(self) -> bool:
        """Whether the owner has ended in whatever manner, also without saying so."""
        return self.ended or (self._process and not self.is_held)

    @property
    def died(self) -> bool:
        """Whether it has, and the job goes on without it."""
        return survives and not self.ended and self.gone

    @property
    def stopped(self) -> bool:
        """Whether the owner's process stands still, as far as that is seen from here."""
        with suppress(OSError), open(f"/proc/{self._owner()}/stat", "rb") as stat:  # noqa: PTH123  in a loop
            return stat.read().rpartition(b") ")[2][:1] == b"T"
        return False

    def _owner(self) -> int:
        """The process that holds the lock; 0: none, or not one that has a number here."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._byte, 1, 0)
        *_, process = _LOCK.unpack(fcntl.fcntl(self._file, fcntl.F_GETLK, asked))
        return int(process)

    def kill(self) -> None:
        """Kill the owner's process, and no other one that has got its number meanwhile."""
        import signal

        with suppress(OSError):
            if not (process := self._owner()):
                return
            handle = os.pidfd_open(process)
            try:
                if self._owner() == process:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def ask(self) -> int:
        """Ask the owner to post what it is doing; returns the number of the question."""
        return self._words.add(_ASKED, 1)

    def ask_for_others(self) -> int:
        """Ask the owner to ask those of other nodes; others_answered is this number, or more, once it has."""
        return self._words.add(10, 1)

    @property
    def question(self) -> int | None:
        """The number of a question not yet answered."""
        asked = self._words[_ASKED]
        return asked if asked != self._words[_ANSWERED] else None

    def answer(self, question: int, text: str) -> None:
        self._words.write(_ANSWER, text, ANSWER_BYTES)
        self._words[_ANSWERED] = question

    def answer_to(self, question: int) -> str | None:
        """The text, once the owner has answered this question or a later one."""
        return None if self._words[_ANSWERED] < question else self._words.read(_ANSWER, ANSWER_BYTES)

    @property
    def note(self) -> str:
        """What the owner has to say to all ranks of the node."""
        return self._words.read(_NOTE, _NOTE_BYTES)

    @note.setter
    def note(self, text: str) -> None:
        self._words.write(_NOTE, text, _NOTE_BYTES)


class NodeSegment(NamedTuple):
    """What the ranks of this node share."""

    regions: list[Region]  # their records
    domains: bytes  # of memory, near which each ran when it began
    here: int  # whose record is this rank's own
    node: int  # a number common to the node
    shared: core.Segment  # the native core's memory
    is_crowded: bool  # more ranks than cores that they may use, all together
    direct: bool  # each of them can read and write the others' memory

    @property
    def mine(self) -> Region:
        return self.regions[self.here]

    def take_word(self) -> bool:
        """Take the lock of who speaks for all ranks of the node; False: another one has it."""
        try:
            fcntl.lockf(self.shared.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, len(self.regions))
        except OSError as error:  # no locks here: then each speaks for itself
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def give_word(self) -> None:
        """Let another rank speak."""
        with suppress(OSError):
            fcntl.lockf(self.shared.fileno(), fcntl.LOCK_UN, 1, len(self.regions))

    def reserved(self, ranks: Sequence[int]) -> int | None:
        """A place for these ranks, each one's part near it; None: there is no room."""
        return self.shared.reserve(len(ranks), bytes([self.domains[rank] for rank in ranks]))

    def near(self, mpi: MPI.Comm) -> list[tuple[int, int]]:
        """Those ranks of mpi, or of its other group, that are on this node: (rank, whose record), by rank.

        Asks nobody.
        """
        return _near(_here[0], mpi)


def _near(here: MPI.Group, mpi: MPI.Comm) -> list[tuple[int, int]]:
    group = mpi.Get_remote_group() if isinstance(mpi, MPI.Intercomm) else mpi.Get_group()
    ranks = here.Translate_ranks(None, group)
    group.Free()
    return sorted((rank, i) for i, rank in enumerate(ranks) if rank != MPI.UNDEFINED)


def ranks_here(mpi: MPI.Comm) -> list[int]:
    """Those of mpi's ranks that are on this node, also where they share no memory. Asks nobody."""
    return [rank for rank, _ in _near(_here[0], mpi)] if _here else [mpi.rank]


def has_foreigners(mpi: MPI.Comm) -> bool:
    """Whether some of mpi's ranks, or those at its other side, are of another job, such as spawned ones.

    The same on all. Asks nobody.

    Of many, the first and the last are looked at: where two jobs are merged, one of them is a foreigner.
    """
    mine = MPI.COMM_WORLD.Get_group()
    its = mpi.Get_remote_group() if isinstance(mpi, MPI.Intercomm) else mpi.Get_group()
    looked_at = range(its.size) if its.size <= _LOOKED_AT else (0, its.size - 1)
    try:
        return MPI.UNDEFINED in its.Translate_ranks(looked_at, mine)
    finally:
        its.Free()
        mine.Free()


_here: list[MPI.Group] = []  # the ranks of this node, once MPI is up
current: NodeSegment | None = None  # of this node, once MPI is up; None where ranks share no memory


Tell = Callable[[bytes], list[bytes]]  # tells all ranks what each says, as many bytes on each. Collective


def telling(mpi: MPI.Comm) -> Tell:
    """All that the ranks of mpi need of MPI to share memory."""

    def tell(said: bytes) -> list[bytes]:
        nbytes, heard = len(said), bytearray(len(said) * mpi.size)
        mpi.Allgather([said, MPI.BYTE], [heard, MPI.BYTE])
        return [bytes(heard[i : i + nbytes]) for i in range(0, len(heard), nbytes)]

    return tell


def open_segment(world: MPI.Intracomm) -> NodeSegment | None:
    """Set up the node segment of this node (collective over world); None where ranks share no memory, or have
    no core."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    _here[:] = [node.Get_group()]
    try:
        tell = telling(node)
        made = shared_by(tell, node.rank, node.size)
        if made is None:
            _say_lack(tell, world.rank)
        return made
    finally:
        node.Free()


def shared_by(tell: Tell, here: int, size: int) -> NodeSegment | None:
    """The node segment of ranks that are on one node, of which this one is here. Collective."""
    shared = opened(tell, here, _NBYTES)
    at = number = 0
    if shared is not None:
        place = 0 if here else shared.reserve_words(size * _WORDS) or 0
        at, drawn = _ENTRY.unpack(tell(_ENTRY.pack(place, os.urandom(7)))[0])
        number = int.from_bytes(drawn, "little")
        if at and not here:
            shared.note_records(at, size * _WORDS)
    if shared is None or not at:
        return None
    regions = _records(tell, here, size, shared, at)
    core = native.core()
    assert core is not None
    direct = all_of(tell, all(core.reaches(*region.mark) for region in regions))
    crowded = size > _cores(tell)
    domains = bytes(region.domain for region in regions)
    return NodeSegment(regions, domains, here, number, shared, crowded, direct)


def records_of(shared: core.Segment) -> list[Region]:
    """The records of a job's ranks, for a process that looks on; none where they are not there yet.

    Raises:
        OSError: EPROTO: they are those of another version.
    """
    at, words = shared.records()
    if words % _WORDS:
        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
    return [Region(Words(shared, at + 8 * _WORDS * i), shared.fileno(), i) for i in range(words // _WORDS)]


def _records(tell: Tell, here: int, size: int, shared: core.Segment, at: int) -> list[Region]:
    """The records of the node's ranks, which begin at a place; each has filled in its own. Collective."""
    file, module = shared.fileno(), native.core()
    assert module is not None
    regions = [Region(Words(shared, at + 8 * _WORDS * i), file, i) for i in range(size)]
    mine = regions[here]
    mine.hold()
    mine.mark, mine.domain = module.mark(), module.domain()
    if "PMI_FD" in os.environ:  # MPICH's launcher
        mine.pipe = first_end.hold()
    tell(b".")
    for i in range(1, size):
        regions[(here + i) % size].look()
    if here == 0 and all(region.pipe for region in regions):
        first_end.watch(file, at, 8 * _WORDS, [(region.mark[0], region.pipe) for region in regions])
    return regions


def opened(tell: Tell, here: int, nbytes: int) -> core.Segment | None:
    """Memory of the native core for the ranks of a node; None on all where one cannot have it. Collective.

    Args:
        here: which of them this is.
    """
    has_core = native.core() is not None
    made, failed = _segment(nbytes) if has_core and here == 0 else (None, errno.EPERM)
    name = tell((made.name if made is not None else "").encode().ljust(_NAME, b"\0"))[0].rstrip(b"\0")
    if has_core and here and name:
        made, failed = _segment(nbytes, name.decode())
    (worst,) = max(tell(bytes([failed])))
    native.refused = native.REFUSED.get(worst, native.NO_ROOM)
    if made is not None and here == 0:
        made.unlink()
    return None if worst else made


def _segment(*given: Any) -> tuple[core.Segment | None, int]:
    """A segment, or why the system refuses it: no /dev/shm, it is full, a limit. doctor shows it."""
    module = native.core()
    assert module is not None
    try:
        return module.Segment(*given), 0
    except OSError as error:
        return None, error.errno or errno.EPERM


def all_of(tell: Tell, here: bool) -> bool:
    """Whether it is so on all ranks."""
    return bytes([False]) not in tell(bytes([here]))


def _say_lack(tell: Tell, world_rank: int) -> None:
    """Say on one rank why those of a node share no memory, unless somebody wants to do without, or has to."""
    lack = native.missing()
    said = tell(bytes([lack is None, lack not in (native.OFF, native.LINUX)]))
    have_all, is_wanted = (all(each) for each in zip(*said, strict=True))
    if is_wanted and world_rank == 0 and len(said) > 1:
        native.warn(native.refused if have_all else lack or native.ELSEWHERE)


def exchanged(mpi: MPI.Comm, ranks: Sequence[int], entry: bytes) -> list[bytes]:
    """The entries of some ranks of mpi, who all call.

    Cost: log2 of their number messages (Bruck), whatever the number of ranks of mpi.
    """
    nbytes, n, here = len(entry), len(ranks), ranks.index(mpi.Get_rank())
    entries = memoryview(bytearray(nbytes * n))
    entries[:nbytes] = entry
    have = 1
    while have < n:
        some = min(have, n - have)
        going, coming = entries[: some * nbytes], entries[have * nbytes : (have + some) * nbytes]
        dest, source = ranks[here - have], ranks[(here + have) % n]
        mpi.Sendrecv([going, MPI.BYTE], dest, 0, [coming, MPI.BYTE], source, 0)
        have += some
    return [bytes(entries[i * nbytes : (i + 1) * nbytes]) for i in ((j - here) % n for j in range(n))]


def _cores(tell: Tell) -> int:
    """How many cores the ranks may use: each alone may be bound to one."""
    mine = sum(1 << core for core in {core % _CORES for core in os.sched_getaffinity(0)})
    told = tell(mine.to_bytes(_CORES // 8, "little"))
    return reduce(or_, (int.from_bytes(its, "little") for its in told)).bit_count()
