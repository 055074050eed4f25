"""The present call: what each thread of this process is doing in hpcomm, as data that other threads read.

Who makes a call on the general path writes it down here; a call may make others:

    thread ──> innermost ── outer ──> ... ── outer ──> outermost: what the program called

    verb      short text    "all_reduce", "recv_object"
    comm      communicator  of which others are told the name, and the number tag_base
    number    of the call   there; MESSAGE, NONE, or NEXT: the one that its call log, or the core, is at
    peer      rank          that a message comes from or goes to; None or below 0: any
    tag       number        of a message; None or below 0: any
    ends      yes or no     whether it ends by itself, as it has a timeout of its own
    looks     yes or no     whether it looks itself whether the rank that it waits for lives
    shown     text          what str() says of the arguments

What the native core carries out, and messages that were known before, are written by node/present.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread, get_ident
from threading import enumerate as threads
from typing import Any

from ..errors import HpcommError
from .comm import Comm
from .verbs import receives

MESSAGE, NONE, NEXT = 0, -1, -3
EXCHANGE = "exchange"  # the verb of a wait for fields of another program

innermost: dict[int, calling] = {}  # by thread
at_error: Callable[[calling, BaseException], None] | None = None  # to call for what ends the outermost


def is_own(thread: Thread) -> bool:
    """Whether it is one of hpcomm's, which calls nothing for itself."""
    return thread.name.startswith("hpcomm")


def has_other_threads() -> bool:
    """Whether the program has others than its main thread."""
    return sum(not is_own(each) for each in threads()) > 1


class calling:  # noqa: N801  a context, read as a word
    """While the calling thread makes a call of verb on comm.

    Args:
        x: its array, or what is said in its place.
        words: arguments to be told by name; what was left away is not.
    """

    __slots__ = ("__weakref__", "_thread", "comm", "noted", "outer", "verb", "words", "x")
    number = NEXT
    peer: int | None = None
    tag: int | None = None
    ends = looks = False

    def __init__(self, comm: Comm | None, verb: str, x: object = None, **words: object) -> None:
        self.comm, self.verb, self.x, self.words = comm, verb, x, words
        self.outer: calling | None = None
        self.noted: object = None  # what tells it from others that node/present.py has noted

    def __enter__(self) -> calling:
        self._thread = thread = get_ident()
        self.outer = innermost.get(thread)
        innermost[thread] = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.outer is not None:
            innermost[self._thread] = self.outer
        else:
            innermost.pop(self._thread, None)
            if isinstance(error, HpcommError):
                error.during = error.during or str(self)
            elif error is not None and at_error is not None:
                at_error(self, error)

    @property
    def waits(self) -> bool:
        """Whether it is for the others, and not begun only."""
        return not self.words.get("async_op")

    def named(self) -> dict[str, object]:
        """Its arguments by name."""
        return self.words

    @property
    def sent(self) -> tuple[int | None, int]:
        """Of sendrecv: where its message goes, None: not known; and its tag."""
        dest, tag = self.words.get("dest"), self.words.get("sendtag")
        return dest if isinstance(dest, int) else None, tag if isinstance(tag, int) else 0

    def __str__(self) -> str:
        shown = [] if self.x is None else [_shown(self.x)]
        for name, value in self.named().items():
            if not (value is None or value is False or (isinstance(value, (dict, tuple)) and not value)):
                shown.append(f"{name}={_word(value)}")
        return f"{self.verb}({', '.join(shown)})"


class messaging(calling):  # noqa: N801
    """The same of a message, which comes from peer or goes there."""

    __slots__ = ("peer", "tag")
    number = MESSAGE

    def __init__(
        self, comm: Comm | None, verb: str, x: object, peer: int | None, tag: int | None, **words: object
    ) -> None:
        self.comm, self.verb, self.x, self.words = comm, verb, x, words
        self.outer = self.noted = None
        self.peer, self.tag = peer, tag

    def named(self) -> dict[str, object]:
        end = "dest" if receives(self.verb) is None else "source"
        return {**self.words, end: _known(self.peer), "tag": _known(self.tag)}


class looking(messaging):  # noqa: N801
    """The same of a message of torch's, which the node core may carry."""

    __slots__ = ()
    looks = True


class looking_for_a_time(looking):  # noqa: N801
    """The same, which ends by itself."""

    __slots__ = ()
    ends = True


class exchanging(looking):  # noqa: N801
    """The same of a planned exchange, which waits for one of its ranks now."""

    __slots__ = ()

    def named(self) -> dict[str, object]:
        return {"peer": self.peer}


def _known(number: object) -> object:
    """None in place of what MPI has for any."""
    return None if isinstance(number, int) and number < 0 else number


class waiting(calling):  # noqa: N801
    """While the calling thread waits for what was begun before.

    Args:
        what: a Request or a Plan, whose call says which.
        verb: what the program called for it.
        ends: whether only for a time.
    """

    __slots__ = ("ends", "number", "peer", "tag", "what", "word")

    def __init__(self, what: Any, word: str = "wait", ends: bool = False) -> None:
        comm, self.peer, self.number, verb, self.tag = what.waits_for or (None, None, NONE, word, None)
        super().__init__(comm, verb)
        self.what, self.word, self.ends = what, word, ends

    def __str__(self) -> str:
        return f"{self.word}({self.what.call})"


class meeting(calling):  # noqa: N801
    """While the calling thread makes a call that some ranks of comm make together, and that no log has.

    Args:
        ranks: of comm, None: all.
    """

    __slots__ = ("ranks",)
    number = NONE

    def __init__(self, comm: Comm, verb: str, ranks: Sequence[int] | None = None) -> None:
        super().__init__(comm, verb)
        self.ranks = range(comm.size) if ranks is None else ranks


class several(calling):  # noqa: N801
    """While the calling thread asks several requests again and again, until all are complete, or any.

    Args:
        asked: a Polled: its requests are those that are not complete; is_any: whether one is enough.
        ends: whether only for a time.
    """

    __slots__ = ("asked", "ends")
    looks, number = True, NONE

    def __init__(self, verb: str, asked: Any, ends: bool) -> None:
        super().__init__(None, verb)
        self.asked, self.ends = asked, ends
        self.note()

    def note(self) -> None:
        """Note that asked has other requests now: this is another wait, as it has made progress."""
        needs = (getattr(each, "waits_for", None) for each in self.asked.requests)
        self.comm, self.noted = next((each[0] for each in needs if each), None), object()

    def __str__(self) -> str:
        requests = self.asked.requests
        more = f" and {len(requests) - 1} more" * (len(requests) > 1)
        return f"{self.verb}({requests[0].call if requests else ''}{more})"


class saying(calling):  # noqa: N801
    """While the calling thread makes a call that words() tell."""

    __slots__ = ("_say",)

    def __init__(self, words: Callable[[], str], comm: Comm | None = None) -> None:
        super().__init__(comm, "a call")
        self._say = words

    def __str__(self) -> str:
        return self._say()


class polling(saying):  # noqa: N801
    """The same of a wait that no call of another rank ends, such as that for a lock."""

    __slots__ = ()
    number = NONE


def _word(value: object) -> str:
    try:
        return getattr(value, "__name__", None) or repr(value)
    except Exception:  # whatever it is, it is described where an error is told
        return f"a {type(value).__name__}"


def _shown(x: object) -> str:
    if isinstance(x, str):
        return x
    with suppress(Exception):  # whatever it is, as memory that was released
        dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
        if dtype is not None and shape is not None:
            return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    return type(x).__name__
