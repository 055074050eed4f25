"""Words of the native core's memory: what one rank writes and others read, 64 bits at a time."""

from __future__ import annotations

import threading
import time

from .native import native_core as core

_LOOKS = 1000  # at a text that its writer changes
# Threads of this process write to the same words, also through Words of their own.
_writing = threading.RLock()


def words_of_text(nbytes: int) -> int:
    """How many words a text of up to so many bytes takes."""
    return 2 + -(-nbytes // 8)


class Words:
    """The words from byte `at` of memory on; words[i] = value is seen after all that was stored before."""

    __slots__ = ("_at", "_memory")

    def __init__(self, memory: core.Segment, at: int) -> None:
        self._memory, self._at = memory, at

    def __getitem__(self, i: int) -> int:
        return self._memory.load(self._at + 8 * i)

    def __setitem__(self, i: int, value: int) -> None:
        self._memory.store(self._at + 8 * i, value)

    def add(self, i: int, value: int) -> int:
        """Add to a word that others add to as well; what stands there then."""
        return self._memory.add(self._at + 8 * i, value)

    def write(self, i: int, text: str, most: int) -> None:
        """Leave up to so many bytes of a text. The first word counts its changes: odd while it changes."""
        data = text.encode()[:most]
        with _writing:
            self[i] |= 1  # odd already: an exception, as of a signal, has ended the last write
            self[i + 1] = len(data)
            self._memory.store_bytes(self._at + 8 * (i + 2), data.ljust(-(-len(data) // 8) * 8, b"\0"))
            self[i] += 1

    def read(self, i: int, most: int) -> str:
        """The text; empty where there is none, or its writer has ended over it."""
        for _ in range(_LOOKS):
            changes, length = self[i], min(self[i + 1], most)
            data = self._memory.load_bytes(self._at + 8 * (i + 2), -(-length // 8))
            if changes % 2 == 0 and self[i] == changes:
                return data[:length].decode(errors="replace")
            time.sleep(1e-6)
        return ""
