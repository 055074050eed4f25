"""Which element types a rank has sent on a communicator, recorded in the node segment for receivers.

    words of a rank    32 words, by dest | 32 words, by tag | 4 times: type, and text of its first call

A plain message does not say what its elements are. So before a rank sends the first message of an element
type to another rank, or with another tag, it sets the bit of that type in two words: that of the receiver and
that of the tag. (Ranks and tags 32 apart share theirs.) Bits are never cleared. A receiver that misses its
own type in either word knows for certain that it has received another one. The bits do not tell which of
several types a message had. Bytes, and elements that only numpy knows, fit any type. Who looks at `comm.mpi`
may send anything, so all of its bits are set.

Objects and ragged arrays, which travel apart, have one bit more. So of a receive that waits it can be told
that its message has not been sent, and one of the other sort has: see instead().
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core import buffer
from ..errors import HpcommError, MismatchError, calling_frame, source_line, where
from ..node.call_log import KINDS
from ..node.words import Words, words_of_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.buffer import Buffer
    from ..core.comm import Comm
    from ..core.dtypes import Dtype

_PLACES = 32  # words of each sort
_TEXT = 120  # bytes of a first call that is kept, behind a word that says which it is
_SLOTS = range(2 * _PLACES, KINDS, 1 + words_of_text(_TEXT))  # where those are
_ANY, _BYTES = -1, 1
_PAYLOAD = 1 << 62  # objects, and ragged arrays


def note(comm: Comm, verb: str, look: Buffer, dest: int, tag: int) -> None:
    """Before an array is sent."""
    if comm.message_kinds is not None:
        comm.message_kinds.noted(look.dtype).note(verb, look, dest, tag)


def match(comm: Comm, verb: str, look: Buffer, source: int, tag: int) -> None:
    """Refuse a message that has come to an array, and is of another element type."""
    if comm.message_kinds is not None:
        comm.message_kinds.sure(look.dtype).match(verb, look, source, tag)


class Kinds:
    """Those of one communicator.

    Args:
        own: this rank's words, which others read; theirs: those of the other ranks of the node.
    """

    def __init__(self, comm: Comm, own: Words, theirs: Mapping[int, Words]) -> None:
        self._comm, self._own, self._theirs = comm, own, theirs
        self._noting = threading.Lock()
        self._noted: dict[int, Noted] = {_PAYLOAD: Noted(self, _PAYLOAD)}
        self._sure: dict[int, Sure] = {}

    def noted(self, dtype: Dtype) -> Noted:
        """The places in which this kind is noted."""
        bit = _bit(dtype)
        return self._noted.setdefault(bit, Noted(self, bit))

    def sure(self, dtype: Dtype) -> Sure:
        """The sources and tags of which this kind may come."""
        bit = _bit(dtype)
        return self._sure.setdefault(bit, Sure(self, bit, str(dtype)))

    def note_parcel(self, verb: str, x: object, dest: int, tag: int) -> None:
        """Before an object or a ragged array is sent."""
        self._noted[_PAYLOAD].note(verb, x, dest, tag)

    def instead(self, source: int, tag: int, is_payload: bool) -> str | None:
        """The first call with which source sent another sort of message, if it has sent none of this one.

        Args:
            tag: below 0: any.
            is_payload: whether objects or ragged arrays are meant, or else plain arrays.

        Returns:
            None if it may have sent this sort; empty if only the call is not known.
        """
        words = self._theirs.get(source)
        if words is None:
            return None
        here, there = words[source_place(self._comm.rank)], _ANY if tag < 0 else words[tag_place(tag)]
        if here & there & (_PAYLOAD if is_payload else ~_PAYLOAD):
            return None
        return self.sent(source, tag)[1] if is_payload else self._first(words, _PAYLOAD)

    def open(self) -> None:
        """Say that this rank may send anything unseen."""
        with self._noting:
            for i in range(2 * _PLACES):
                self._own[i] = _ANY

    def set(self, bit: int, places: tuple[int, ...], which: int, text: str) -> None:
        with self._noting:
            if text:
                self._keep(which << 8 | bit.bit_length(), text)
            for i in places:
                self._own[i] |= bit

    def _keep(self, which: int, text: str) -> None:
        """Keep the first call that sent this kind to this rank, while there is room."""
        for at in _SLOTS:
            if self._own[at] in (0, which):
                if not self._own[at]:
                    self._own.write(at + 1, text, _TEXT)
                    self._own[at] = which
                return

    def fits(self, bit: int, source: int, tag: int) -> bool:
        """Whether source may have sent this kind with tag; below 0: any tag."""
        words = self._theirs.get(source)
        if words is None or bit == _BYTES:
            return True
        fit, here = bit | _BYTES, words[source_place(self._comm.rank)] & ~_PAYLOAD
        if not here:  # nothing is known of who sent it
            return True
        return bool(here & fit and (tag < 0 or words[tag_place(tag)] & fit))

    def sent(self, source: int, tag: int) -> tuple[str, str]:
        """The kinds that source may have sent with tag, and its first call that sent the only one."""
        from ..core.dtypes import BY_NAME

        words = self._theirs[source]
        here, there = words[source_place(self._comm.rank)], _ANY if tag < 0 else words[tag_place(tag)]
        bits = (here & there or here) & ~_PAYLOAD
        names = [name for name, dtype in BY_NAME.items() if bits & _bit(dtype)]
        return " or ".join(names), self._first(words, bits) if len(names) == 1 else ""

    def _first(self, words: Words, bit: int) -> str:
        """The first call that sent this kind to this rank, if it was kept."""
        which = self._comm.rank << 8 | bit.bit_length()
        return next((words.read(at + 1, _TEXT) for at in _SLOTS if words[at] == which), "")

    def mismatch(self, name: str, source: int, tag: int, x: object, verb: str) -> MismatchError:
        names, text = self.sent(source, tag)
        mine = f"{verb}({_described(x, name)}, source={source})"
        frame = calling_frame()
        if frame is not None:
            mine += f" at {source_line(frame.f_code, frame.f_lineno)}"
        theirs = f", first by {text}" if text else ""
        rows = f"  rank {self._comm.rank}: {mine}\n  rank {source}: has sent it {names} only{theirs}"
        return MismatchError(
            f"a message of {names} came to an array of {name}.\n{rows}",
            where(verb, self._comm),
            "give both ranks the same dtype, or use send_ragged and recv_ragged, which carry it; what is "
            "meant to be read as another dtype is sent as bytes: x.view('uint8')",
        )


class Noted(set[int]):
    """The places in which a rank has noted that it sends a kind."""

    def __init__(self, kinds: Kinds, bit: int) -> None:
        super().__init__()
        self._kinds, self._bit = kinds, bit

    def note(self, verb: str, x: object, dest: int, tag: int) -> None:
        """Before x is sent to dest; verb: as the user called it."""
        places = source_place(dest), tag_place(tag)
        if dest < 0 or (places[0] in self and places[1] in self):
            return
        text = ""
        if places[0] not in self:
            frame = calling_frame(sys._getframe(1))
            line = "" if frame is None else f" at {source_line(frame.f_code, frame.f_lineno)}"
            text = f"{verb}({_described(x, type(x).__name__)}, dest={dest}, tag={tag}){line}"
        self._kinds.set(self._bit, places, dest, text)
        self.update(places)


class Sure(set[int]):
    """Of which sources and tags a kind was seen to come; see key()."""

    def __init__(self, kinds: Kinds, bit: int, name: str) -> None:
        super().__init__()
        self._kinds, self._bit, self._name = kinds, bit, name

    def match(self, verb: str, x: object, source: int, tag: int) -> None:
        """Of a message that has come to x.

        Raises:
            MismatchError: source has never sent this kind.
        """
        key = source << 6 | tag & 63
        if key in self or source < 0:
            return
        if not self._kinds.fits(self._bit, source, tag):
            raise self._kinds.mismatch(self._name, source, tag, x, verb)
        self.add(key)


def source_place(rank: int) -> int:
    return rank % _PLACES


def tag_place(tag: int) -> int:
    return _PLACES + tag % _PLACES


def _bit(dtype: Dtype) -> int:
    return _BYTES if dtype.kind == "o" or dtype.name == "uint8" else 1 << dtype.code


def _described(x: object, otherwise: str) -> str:
    with suppress(HpcommError, RuntimeError):
        return str(x if isinstance(x, buffer.Buffer) else buffer.as_buffer(buffer.detached(x)))
    return otherwise
