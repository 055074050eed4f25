"""Values that all ranks should hold: a checksum of each result, compared with the signature of the next call.

That is check="values". Results of broadcast, all_reduce and all_gather count, of arrays and ragged arrays:

    call     all_reduce ──> result       broadcast ──> result             barrier
    said     signature        crc 1      signature, 1 and crc 1  crc 2    signature, 2 and crc 2

A rank says how many results it has, and a checksum of all of them. They are compared where all have as many:
a result in the background counts when it is waited for, and those begun later after it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any
from zlib import crc32

from .._lazy import MPI, np
from ..core.comm import Comm
from ..core.signature import VERB, VERBS, describe
from ..core.types import AnyArray
from ..errors import calling_frame, line_number, passing, source_line
from .differences import Call, calls_of, holding

_EQUAL = frozenset(("broadcast", "all_reduce", "all_gather"))  # verbs whose results are the same on all ranks
_KEPT = 1000  # results of which is known where they came from
_CRC = (1 << 32) - 1
PADDED = "gGV"  # kinds of elements that may have bytes without a meaning: longdouble, structures
# A result: its number, from 1; the checksum of its bytes; the signature of its call; the program's line: its
# code, and the place in that. No named tuple, which takes four times as long to make.
_Row = tuple[int, int, int, CodeType, int]


class Values:
    """The results of a communicator's calls on this rank.

    Attributes:
        said: how many results are done, times 2^32, and a checksum of these.
        signature: of the last call about which the ranks have agreed.
        since: what was done since the last comparison.
    """

    __slots__ = ("_begun", "_crc", "_done", "_late", "said", "signature", "since")

    def __init__(self) -> None:
        self.said = self.signature = self._begun = self._done = self._crc = 0
        self._late: dict[int, _Row] = {}  # done before others that were begun earlier
        self.since: deque[_Row] = deque(maxlen=_KEPT)

    def hold(self, verb: str, found: Any, depth: int = 1) -> None:
        """Look at the result of a call that has waited for it.

        Args:
            depth: how many frames there are up to where the program's may be.
        """
        if verb not in _EQUAL:
            return
        frame: Any = sys._getframe(depth)
        if passing.get(frame.f_code.co_filename, True):
            frame = calling_frame(frame) or frame
        self._begun = number = self._begun + 1
        try:
            crc = _crc(found) if found.dtype.char in PADDED else crc32(found)
        except (AttributeError, BufferError, TypeError, ValueError):  # other than contiguous arrays of numpy
            crc = _crc(found)
        self._count((number, crc, self.signature, frame.f_code, frame.f_lasti))

    def later(self, verb: str, finish: Callable[..., Any]) -> Callable[..., Any]:
        """finish, of a call in the background about which the ranks have just agreed; looks at its result."""
        if verb not in _EQUAL:
            return finish
        self._begun = number = self._begun + 1
        frame: Any = calling_frame() or sys._getframe()
        place = self.signature, frame.f_code, frame.f_lasti
        del frame

        def finish_and_count(*given: Any) -> Any:
            crc = 0
            try:
                found = finish(*given)
                crc = _crc(found)
            finally:
                self._count((number, crc, *place))
            return found

        return finish_and_count

    def _count(self, row: _Row) -> None:
        done = self._done + 1
        if row[0] != done:
            self._late[row[0]] = row
            return
        crc = self._crc * 5 + row[1] & _CRC
        self.since.append(row)
        while self._late and (late := self._late.pop(done + 1, None)) is not None:
            done, crc = done + 1, crc * 5 + late[1] & _CRC
            self.since.append(late)
        self._done, self._crc, self.said = done, crc, done << 32 | crc

    def difference(self, comm: Comm, ranks: MPI.Comm, most: int, least: int) -> str:
        """What is wrong, where ranks have not said the same; "": they do not have as many results yet.

        It is about the first result that differs. From here on only later ones count.

        Args:
            ranks: MPI's communicator for comparisons.
            most, least: of what the ranks have said.
        """
        if most >> 32 != least >> 32:
            return ""
        mine = {row[0]: row for row in self.since}
        known = [dict(each) for each in ranks.allgather([row[:2] for row in self.since])]
        numbers = set(known[0]).intersection(*known)
        first = min((n for n in numbers if len({each[n] for each in known}) > 1), default=0)
        text, verb = "what they were given long ago", "a collective call"
        if first:
            _, crc, called, code, at = mine[first]
            line = source_line(code, line_number(code, at))
            text, verb = f"{crc:08x}: {describe(called, comm.size)} at {line}", VERBS[called & VERB]
        calls = calls_of(ranks, comm.rank, Call(text))
        self._crc, self.said = 0, self._done << 32
        self.since.clear()
        return f"{verb} gave the ranks of '{comm.name}' different values.\n" + "\n".join(holding(calls))


def _crc(found: Any) -> int:
    """Of the bytes of an array, or of each of a list."""
    if isinstance(found, (list, tuple)):
        crc = 0
        for each in found:
            crc = crc32(_crc(each).to_bytes(4, "little"), crc)
        return crc
    if type(found) is not np.ndarray and hasattr(found, "__dlpack__"):
        from ..core.buffer import as_buffer, detached

        found = as_buffer(detached(found)).array
    return crc_of(np.asarray(found))


def crc_of(array: AnyArray, start: int = 0) -> int:
    """Of an array's bytes, in the order of its elements."""
    return crc32(np.ascontiguousarray(bits(array)).data, start)


def bits(array: AnyArray) -> AnyArray:
    """A row of bytes for each element, without those that only fill it up."""
    rows = flat(array).view(np.uint8).reshape(array.size, array.itemsize)
    return rows[:, _places(array.dtype)] if array.dtype.char in PADDED else rows


@lru_cache
def _places(dtype: np.dtype[Any]) -> list[int]:
    """Which bytes of an element hold its value: not those between fields, nor six of x86's longdouble."""
    if dtype.subdtype is not None:
        kind = dtype.base
        return [i + at for i in range(0, dtype.itemsize, kind.itemsize) for at in _places(kind)]
    if dtype.fields is not None:
        return sorted({start + at for kind, start, *_ in dtype.fields.values() for at in _places(kind)})
    if dtype.char in "gG" and np.finfo(dtype).nmant == 63:
        return [i + at for i in range(0, dtype.itemsize, np.dtype("g").itemsize) for at in range(10)]
    return [*range(dtype.itemsize)]


def flat(array: AnyArray) -> AnyArray:
    """Its elements one after the other, without a copy where they lie so."""
    return np.ascontiguousarray(array).reshape(-1)
