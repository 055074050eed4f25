"""Which element types a rank has sent on a communicator, recorded in the node segment for receivers.

    words of a rank    32 words, by dest | 32 words, by tag | 4 times: type, and text of its first call

A plain message does not say what its elements are. So before a rank sends the first message of an element
type to another rank, or with another tag, it sets the bit of that type in two words: that of the receiver and
that of the tag. (Ranks and tags 32 apart share theirs.) Bits are never cleared. A receiver that misses its
own type in either word knows for certain that it has received another one. The bits do not tell which of
several types a message had. Bytes, and elements that only numpy knows, fit any type. Who looks at `comm.mpi`
may send anything, so all of its bits are set.

Objects and ragged arrays travel on a communicator of their own, and have one bit more. Messages of one source
and tag are to be received in the order in which they were sent, of whatever sort they are, as with mpi4py. So
where a message of the other sort is there, and none of the sort that is waited for has ever been sent, the
receive waits in vain: see crossed().
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

from .._lazy import MPI
from ..core import buffer
from ..core.buffer import Buffer
from ..core.comm import Comm
from ..core.dtypes import Dtype
from ..core.present import calling, has_other_threads
from ..core.request import rounds_under_way
from ..core.untaken import untaken
from ..core.verbs import receives
from ..errors import HpcommError, MismatchError, at_line, where
from ..node.call_log import KINDS
from ..node.words import Words, words_of_text
from . import runtime
from .present_calls import describe_call

_PLACES = 32  # words of each sort
_TEXT = 120  # bytes of a first call that is kept, behind a word that says which it is
_SLOTS = range(2 * _PLACES, KINDS, 1 + words_of_text(_TEXT))  # where those are
_ANY, _BYTES = -1, 1
_SORTS = "an array", "an object or a ragged array"
_PAYLOAD = 1 << 62  # objects, and ragged arrays


def note(comm: Comm, verb: str, look: Buffer, dest: int, tag: int) -> None:
    """Before an array is sent."""
    if comm.message_kinds is not None:
        comm.message_kinds.of(look.dtype).note(verb, look, dest, tag)


def match(comm: Comm, verb: str, look: Buffer, source: int, tag: int) -> None:
    """Refuse a message that has come to an array, and is of another element type."""
    if comm.message_kinds is not None:
        comm.message_kinds.of(look.dtype).match(verb, look, source, tag)


class Kinds:
    """Those of one communicator.

    Args:
        own: this rank's words, which others read; theirs: those of the other ranks of the node.

    Attributes:
        payloads: the kind of objects and ragged arrays.
    """

    def __init__(self, comm: Comm, own: Words, theirs: Mapping[int, Words]) -> None:
        self.comm, self._own, self._theirs = comm, own, theirs
        self._noting = threading.Lock()
        self._of: dict[int, Kind] = {}
        self.payloads = Kind(self, _PAYLOAD, "")

    def of(self, dtype: Dtype) -> Kind:
        """The kind of arrays of this dtype."""
        bit = _bit(dtype)
        return self._of.get(bit) or self._of.setdefault(bit, Kind(self, bit, str(dtype)))

    def seen(self, source: int, tag: int) -> tuple[int, int] | None:
        """The bits that source has set for this rank, and for a tag; below 0: any. None: it has no words."""
        words = self._theirs.get(source)
        if words is None:
            return None
        return words[source_place(self.comm.rank)], _ANY if tag < 0 else words[tag_place(tag)]

    def instead(self, source: int, tag: int, is_payload: bool) -> str | None:
        """The first call with which source sent another sort of message, if it has sent none of this one.

        Args:
            tag: below 0: any.
            is_payload: whether objects or ragged arrays are meant, or else plain arrays.

        Returns:
            None if it may have sent this sort; empty if only the call is not known.
        """
        here, there = self.seen(source, tag) or (_ANY, _ANY)
        if here & there & (_PAYLOAD if is_payload else ~_PAYLOAD):
            return None
        return self.sent(source, tag)[1] if is_payload else self._first(source, _PAYLOAD)

    def open(self) -> None:
        """Say that this rank may send anything unseen."""
        with self._noting:
            for i in range(2 * _PLACES):
                self._own[i] = _ANY

    def set(self, bit: int, places: tuple[int, ...], which: int, text: str) -> None:
        """Set a bit; keep the first call that sent this kind to a rank, while there is room."""
        kind = which << 8 | bit.bit_length()
        with self._noting:
            at = next((at for at in _SLOTS if self._own[at] in (0, kind)), None) if text else None
            if at is not None and not self._own[at]:
                self._own.write(at + 1, text, _TEXT)
                self._own[at] = kind
            for i in places:
                self._own[i] |= bit

    def sent(self, source: int, tag: int) -> tuple[str, str]:
        """The kinds that source may have sent with tag, and its first call that sent the only one."""
        from ..core.dtypes import BY_NAME

        here, there = self.seen(source, tag) or (0, 0)
        bits = (here & there or here) & ~_PAYLOAD
        names = [name for name, dtype in BY_NAME.items() if bits & _bit(dtype)]
        return " or ".join(names), self._first(source, bits) if len(names) == 1 else ""

    def _first(self, source: int, bit: int) -> str:
        """Its first call that sent this kind to this rank, if it was kept."""
        words, which = self._theirs[source], self.comm.rank << 8 | bit.bit_length()
        return next((words.read(at + 1, _TEXT) for at in _SLOTS if words[at] == which), "")


class Kind:
    """One of them.

    Attributes:
        noted: the places in which this rank has noted that it sends it.
    """

    def __init__(self, kinds: Kinds, bit: int, name: str) -> None:
        self._kinds, self._bit, self._name = kinds, bit, name
        self.noted: set[int] = set()
        self._sure: set[int] = set()  # sources and tags of which it was seen to come

    def note(self, verb: str, x: object, dest: int, tag: int) -> None:
        """Before x is sent to dest; verb: as the user called it."""
        places = source_place(dest), tag_place(tag)
        if dest < 0 or self.noted.issuperset(places):
            return
        text = ""
        if places[0] not in self.noted:
            text = f"{verb}({_described(x, type(x).__name__)}, dest={dest}, tag={tag}){at_line()}"
        self._kinds.set(self._bit, places, dest, text)
        self.noted.update(places)

    def match(self, verb: str, x: object, source: int, tag: int) -> None:
        """Of a message that has come to x.

        Raises:
            MismatchError: source has never sent this kind.
        """
        key = source << 6 | tag & 63
        if key in self._sure or source < 0:
            return
        here, there = self._kinds.seen(source, tag) or (0, 0)
        fit, here = self._bit | _BYTES, here & ~_PAYLOAD
        is_any = self._bit == _BYTES or not here  # or nothing is known of who sent it
        if not (is_any or (here & fit and there & fit)):
            raise self._mismatch(source, tag, x, verb)
        self._sure.add(key)

    def _mismatch(self, source: int, tag: int, x: object, verb: str) -> MismatchError:
        comm, name = self._kinds.comm, self._name
        names, text = self._kinds.sent(source, tag)
        mine = f"{verb}({_described(x, name)}, source={source}){at_line()}"
        theirs = f", first by {text}" if text else ""
        rows = f"  rank {comm.rank}: {mine}\n  rank {source}: has sent it {names} only{theirs}"
        return MismatchError(
            f"a message of {names} came to an array of {name}.\n{rows}",
            where(verb, comm),
            "give both ranks the same dtype, or use send_ragged and recv_ragged, which carry it; what is "
            "meant to be read as another dtype is sent as bytes: x.view('uint8')",
        )


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


def crossed(comm: Comm, call: calling) -> str | None:
    """What is to be said of a receive in which the main thread waits; None: all is well so far.

    Only the main thread of a program without others is judged: those might take the message.
    """
    source, of_objects = call.peer, receives(call.verb)
    tag = -1 if call.tag is None else call.tag
    if of_objects is None or source is None or source < 0 or comm.message_kinds is None or rounds_under_way:
        return None
    if not runtime.has_threads() or has_other_threads():
        return None
    first = comm.message_kinds.instead(source, tag, of_objects)
    mpi = comm.mpi_handle if of_objects else comm.object_comm
    if first is None or not mpi.Iprobe(source, MPI.ANY_TAG if tag < 0 else tag):
        return None
    wanted, sent = _SORTS[of_objects], _SORTS[not of_objects]
    what = "a probe" if "probe" in call.verb else "a receive"
    error = MismatchError(
        f"{what} waits for {wanted}, and {sent} is there.\n"
        f"  rank {comm.rank}: {describe_call()}\n  rank {source}: {first or 'sent it'}",
        where(call.verb, comm),
        "recv for what send sends, recv_object for send_object, recv_ragged for send_ragged, probe or"
        " probe_object before it; those of one"
        " source and tag in the order in which they were sent",
    )
    return f"{type(error).__name__}: {error}"


def passed_over(comm: Comm, call: calling) -> str:
    """A message that is there, and that the receive in which the main thread waits does not take."""
    of_objects = receives(call.verb)
    if of_objects is None or rounds_under_way or not (call.looks or runtime.has_threads()):
        return ""
    return untaken(comm, of_objects, call.peer)
