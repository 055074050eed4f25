"""Call log: what one rank of a communicator has begun, call by call, for others to compare with theirs.

It is in the native core, but of calls that the core does not carry out: those in the background, and those
that go by MPI. Beside it a rank leaves words: why it has refused a call, and of which types its messages were
(agree/message_kinds.py).

    words of a rank    call refused, why (a text), message types
"""

from __future__ import annotations

from .native import native_core as core
from .words import Words, words_of_text

KINDS = 136  # words for message types
_REFUSED, _WHY, _WHY_BYTES = 0, 1, 376
_KINDS = _WHY + words_of_text(_WHY_BYTES)  # and KINDS more: at most core.WORDS


class CallLog:
    """That of one rank of node, in memory. kinds: its words for message types."""

    __slots__ = ("_node", "_rank", "_words", "kinds")

    def __init__(self, node: core.Node, rank: int, memory: core.Segment) -> None:
        self._node, self._rank, at = node, rank, node.words(rank)
        self._words, self.kinds = Words(memory, at), Words(memory, at + 8 * _KINDS)

    def post(self, signature: int) -> int:
        """Write this rank's own next call; its number, from 1 on."""
        return self._node.log_call(signature)

    def posted(self, call: int) -> int | None:
        """The signature of a call, or None if its rank has not come to it or is so far on that it is gone.

        None, too, where the communicator is closed, as by another thread.
        """
        return self._node.logged_call(self._rank, call) if call > 0 else None

    def last(self, most: int) -> list[tuple[int, int]]:
        """The numbers and signatures of as many last calls, the oldest first."""
        end = self.last_call()
        found = ((call, self.posted(call)) for call in range(max(1, end - most + 1), end + 1))
        return [(call, signature) for call, signature in found if signature is not None]

    def last_call(self) -> int:
        """The number of the last call that its rank has come to; 0 before the first, and once closed."""
        return self._node.last_logged(self._rank)

    def refuse(self, call: int, why: str) -> None:
        """Leave why this rank refuses a call, before that is posted."""
        self._words[_REFUSED] = call
        self._words.write(_WHY, why, _WHY_BYTES)

    def refusal(self, call: int) -> str:
        """Why its rank refused a call; empty if it has refused another one since."""
        return self._words.read(_WHY, _WHY_BYTES) if self._words[_REFUSED] == call else ""
