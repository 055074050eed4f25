"""End notices: a rank tells others that it ends, and which calls it had begun.

MPI keeps a rank that has ended in MPI_Finalize, and leaves those that need it waiting. So each counts its
collective calls, on each communicator, and says the numbers at its end. Who has begun one more than that
waits in vain.

    ranks of one node with the core    in the record of the rank in the node segment. Calls of one group are
                                       in its call log, so that only those of two groups are counted
    several nodes, or without it       by MPI

By the same messages a rank asks those of other nodes what they are doing (watch/report.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

from .._lazy import MPI
from ..core.comm import Comm
from ..core.operation import Call
from ..core.patience import until
from ..core.verbs import MUTUAL
from ..node.segment import NodeSegment
from . import runtime
from .letters import FEW, Letters

_ENTRY = struct.Struct("2I")  # a communicator's number by chance, and how many calls on it were begun
_MOST = 400  # communicators: so many entries MPI sends without waiting for the receiver
_END, _QUESTION, _REPORT, _ANSWER = range(4)  # tags; _REPORT: a question of one that will speak for all
_LAST_WORDS_S = 0.2  # for what is said at the same moment, which nobody else would receive


def awaited(call: Call) -> tuple[int | None, int]:
    """Of whom a plan waits for an end is told, as Request.waits_for has it: the rank, and -1, or 0 for one.

    Where nobody gets through before all have begun, or starts are counted, who has ended is missing. Else it
    may have done its part.
    """
    comm = call.comm
    if call.verb in ("send", "recv"):
        return call.peer, 0
    if call.verb in MUTUAL or comm.is_inter or comm.agreement.again is not None:
        return None, -1
    return call.root if call.verb in ("broadcast", "scatter") and call.root != comm.rank else None, 0


class EndNotices:
    """What this rank says at its end, and hears of others.

    Args:
        mpi: for this alone, of all ranks.
        near: what the ranks of this node share.
        answer: what this rank says to those that ask what it is doing.
        meanwhile: is called again and again while this rank waits for such answers.

    Attributes:
        counts: collective calls begun, by a communicator's tag_base; 0 where they are not counted, too.
        elsewhere: how many ranks other nodes have.
        by_message: whether all ranks tell each other by MPI. Else those of a node are seen to have ended:
            all are there, they would be too many messages, or no thread can receive them.
        all_hear: whether all ranks hear until the last one has ended. Else those that have ended finalize
            MPI, and are told nothing: UCX complains of messages that nobody received.
    """

    all_hear = False

    def __init__(
        self,
        mpi: MPI.Intracomm,
        near: NodeSegment | None,
        answer: Callable[[], str],
        meanwhile: Callable[[], None],
    ) -> None:
        self._mpi, self._letters, self._answer, self._meanwhile = mpi, Letters(mpi), answer, meanwhile
        records = {} if near is None else {rank: near.regions[i] for rank, i in near.near(mpi)}
        self.by_message = len(records) < mpi.size <= FEW and runtime.has_threads()
        self._near = [(rank, region) for rank, region in records.items() if rank != mpi.rank]
        self.counts: dict[int, int] = {}  # see the class
        # Of communicators: who their ranks are in mpi; of two groups the other one, which messages reach,
        self._members: dict[int, list[int]] = {}
        self._mates: dict[int, list[int]] = {}  # and of this one
        self._ended: dict[int, dict[int, int]] = {}  # by rank: what it had begun
        self.rank = mpi.rank
        self.elsewhere = mpi.size - len(records)
        self.far = [i for i in range(mpi.size) if i != mpi.rank and i not in records and self.by_message]
        self._asked: dict[int, float] = {}  # by rank: when it has last asked, to report, what others do
        self._answers: dict[int, str] = {}

    def know(self, comm: Comm) -> None:
        """Note whose ranks those of comm are, while that can be asked, if no record of theirs shows it."""
        if not (comm.is_inter or self.by_message):
            return
        mpi, mark = comm.carriers.plain, comm.tag_base
        self.counts[mark], self._members[mark] = 0, self._whose(mpi.Get_group())
        if comm.is_inter:
            self._mates[mark] = self._members[mark]
            self._members[mark] = self._whose(mpi.Get_remote_group())

    def _whose(self, group: MPI.Group) -> list[int]:
        everybody = self._mpi.Get_group()
        ranks = group.Translate_ranks(None, everybody)
        everybody.Free()
        group.Free()
        return ranks

    def count(self, comm: Comm, made: Any, is_seen: bool) -> Any:
        """made, an Agreement, which counts calls on comm from now on: refused ones only where all hear of it.

        is_seen: records show the calls of one group, or need not.
        """
        if not comm.is_inter and (is_seen or not self.by_message):
            return made
        begun, mark = self.counts, comm.tag_base

        def counting(function: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*call: Any) -> Any:
                begun[mark] = begun.get(mark, 0) + 1
                return function(*call)

            return counted

        made.enter, made.late = counting(made.enter), counting(made.late)
        made.again = counting(lambda: None)
        if made.compares_all or (comm.is_inter and made.level == "light"):
            made.refuse = counting(made.refuse)
        return made

    def forget(self, comm: Comm) -> None:
        """comm is closed: who ends after that is not missing in it."""
        for each in (self._members, self._mates, self.counts):
            each.pop(comm.tag_base, None)

    def hear(self) -> None:
        """Hear what has come, or is to be seen, and answer those that ask. Never blocks."""
        if not self.by_message:
            for rank, region in self._near:
                if rank not in self._ended and region.ended:
                    self._ended[rank] = dict(_ENTRY.iter_unpack(region.begun))
            return
        for rank, tag, said in self._letters.come():
            if tag in (_QUESTION, _REPORT):
                if tag == _REPORT:
                    self._asked[rank] = time.monotonic()
                self._letters.send([rank], _ANSWER, self._answer().encode())
            elif tag == _ANSWER:
                self._answers[rank] = said.decode()
            else:
                self._ended[rank] = dict(_ENTRY.iter_unpack(said))

    def ask(self, seconds: float, reports: bool) -> dict[int, str]:
        """What ranks of other nodes say that they are doing, by rank; "": one that does not answer in time.

        reports: whether this rank is about to speak for all.
        """
        gone = {*self._ended, *self._letters.failed()}
        self._answers, asked = {}, [rank for rank in self.far if rank not in gone]
        self._letters.send(asked, _REPORT if reports else _QUESTION, b"")
        end = time.monotonic() + seconds
        while len(self._answers) < len(asked) and time.monotonic() < end:
            self.hear()
            self._meanwhile()
            time.sleep(1e-3)
        return {rank: self._answers.get(rank, "") for rank in asked}

    def leaves_word_to_others(self, seconds: float) -> bool:
        """Whether a rank before this one has asked in the last seconds, which so speaks for all."""
        after = time.monotonic() - seconds
        return any(rank < self.rank and when > after for rank, when in self._asked.items())

    def members(self, comm: Comm) -> list[int]:
        """Who the ranks of comm are in the job, of two groups those of the other one; none: not known."""
        return self._members.get(comm.tag_base, [])

    def ended(self) -> set[int]:
        """The ranks that have said so."""
        self.hear()
        return {*self._ended}

    def lost(self, comm: Comm, is_message: bool, is_here: bool = False) -> list[int]:
        """The ranks of comm that have ended; for a collective call, who did before this rank's last one.

        Of two groups, those of the other one; is_here: of this rank's own.
        """
        self.hear()
        mark, ended = comm.tag_base, self._ended
        begun, members = self.counts.get(mark, 0), (self._mates if is_here else self._members).get(mark, ())
        gone = [(rank, its) for rank, its in enumerate(members) if its in ended]
        return [rank for rank, its in gone if is_message or ended[its].get(mark, begun) < begun]

    def begun(self) -> bytes:
        """What this rank says at its end; nothing where it has too much to say."""
        entries = [_ENTRY.pack(*entry) for entry in self.counts.items()]
        return b"".join(entries if len(entries) <= _MOST else [])

    def say(self) -> None:
        """Tell all others that this rank makes no more calls."""
        gone = self._letters.failed() | (set() if self.all_hear else self.ended())
        others = [rank for rank in range(self._mpi.size) if rank != self._mpi.rank and rank not in gone]
        self._letters.send(others, _END, self.begun())
        until(lambda: self.ended().issuperset(others), _LAST_WORDS_S)

    def stop(self) -> None:
        """Hear no more: MPI is about to be finalized."""
        self._letters.stop()
