"""Which ranks of another program have ended, where there are too many ranks for each to tell each.

    a rank that ends ── end notice ──> two ranks of the other program, its delegates
    a rank that waits ── question ──> delegates in its own program ── who has ended ──> that rank

A question has the number of the collective call in which it is asked, because who has ended may have given
its part of that one before. So nobody hears of ends that nobody waits for, and there are as many messages as
ranks that end or wait. Where both delegates have ended themselves, deadlines tell (docs/mpmd.md).
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from .._lazy import MPI

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = 64  # ranks of a program up to which all are told
_ASK, _ANSWER = 32097, 32098  # tags
_CALL = struct.Struct("q")
_ASK_S = 0.2  # between an answer and the next question


def informed(size: int) -> list[int]:
    """Whom of so many ranks a rank of the other program tells that it ends."""
    return list(range(size)) if size <= FEW else [0, size // 2]


class EndedRanks:
    """What a rank of a large program hears from others of it, and tells them, of ends in another one.

    Args:
        mates: a duplicate of the program's own communicator, for this alone.
        remote_size: ranks of the other program.
    """

    def __init__(self, mates: MPI.Comm, remote_size: int) -> None:
        self._mates, self._nbytes = mates, -(-remote_size // 8)
        self._notaries = informed(mates.Get_size())
        self._me = mates.Get_rank()
        self._asked: dict[int, tuple[Any, Any, bytearray]] = {}  # question, answer, and where that comes to
        self._due: dict[int, float] = {}  # when the next question may follow
        self._going: list[MPI.Request] = []

    @property
    def is_told(self) -> bool:
        """Whether ranks that end tell this one."""
        return self._me in self._notaries

    def serve(self, gone: set[int], gone_before: Callable[[int], set[int]]) -> None:
        """Answer ranks of the own program that ask; gone_before(call) did not come to it. Never blocks."""
        status, answers = MPI.Status(), dict[int, bytes]()
        while self.is_told and self._mates.Iprobe(MPI.ANY_SOURCE, _ASK, status):
            mate, question = status.Get_source(), bytearray(_CALL.size)
            self._mates.Recv([question, MPI.BYTE], mate, _ASK)
            (call,) = _CALL.unpack(question)
            if call not in answers:
                answers[call] = self._bits(gone) + self._bits(gone_before(call))
            self._going = [each for each in self._going if not each.Test()]
            self._going.append(self._mates.Isend([answers[call], MPI.BYTE], mate, _ANSWER))

    def _bits(self, gone: set[int]) -> bytes:
        bits = bytearray(self._nbytes)
        for rank in gone:
            bits[rank // 8] |= 1 << rank % 8
        return bytes(bits)

    def ask(self, call: int) -> tuple[set[int], set[int]]:
        """Who has ended, and who did so before a collective call: of this number, or of one asked before.

        By answers that have come; asks anew. Never blocks.
        """
        found: set[int] = set()
        for mate in self._notaries:
            if mate == self._me:
                continue
            if mate in self._asked:
                if self._asked[mate][1].Test():
                    for i, byte in enumerate(self._asked.pop(mate)[2]):
                        found.update(8 * i + bit for bit in range(8) if byte >> bit & 1)
                    self._due[mate] = time.monotonic() + _ASK_S
            elif time.monotonic() >= self._due.get(mate, 0.0):
                answer = bytearray(2 * self._nbytes)
                coming = self._mates.Irecv([answer, MPI.BYTE], mate, _ANSWER)
                going = self._mates.Isend([_CALL.pack(call), MPI.BYTE], mate, _ASK)
                self._asked[mate] = going, coming, answer
        first = 8 * self._nbytes  # bit of the second part
        return {bit for bit in found if bit < first}, {bit - first for bit in found if bit >= first}

    def close(self) -> None:
        """Expect no more answers."""
        for _, coming, _ in self._asked.values():
            coming.Cancel()
            coming.Free()
        self._asked.clear()
