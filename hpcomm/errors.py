"""The exceptions of hpcomm.

HpcommError
├── UsageError        you, here
│   ├── LayoutError   shape, strides, overlap, place of an array
│   ├── DtypeError    an element type or operator that cannot serve
│   ├── RankError     a rank or root that does not exist here
│   └── ConfigError   environment, launcher, installation
│       └── MissingError   a package that is not installed (also an ImportError)
├── MismatchError     the ranks disagree
├── TransportError    the library below failed
├── WaitTimeoutError  somebody did not come (also a builtin TimeoutError)
└── PeerFailedError   a rank has ended (.ranks)

Every message has the same lines in the same order: what happened, where, what to try.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from types import CodeType, FrameType
from typing import Protocol, TypeVar

__all__ = [
    "ConfigError",
    "DtypeError",
    "HpcommError",
    "LayoutError",
    "MismatchError",
    "MissingError",
    "MissingFileError",
    "PeerFailedError",
    "RankError",
    "TransportError",
    "UsageError",
    "WaitTimeoutError",
]

NAMED = 16  # ranks, or runs of them, in one message
_PACKAGE = __file__.rpartition("errors.py")[0]
_APPS = _PACKAGE + "apps/"
Key = TypeVar("Key")
Value = TypeVar("Value")


class Ranks(Protocol):
    """What an error says of a communicator."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


class HpcommError(Exception):
    """Base class of hpcomm's errors.

    Attributes:
        what: one line: what happened.
        where: operation, communicator, rank, line.
        hint: what to try.
        during: the call that it has ended.
    """

    during = ""

    def __init__(self, what: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint
        self._line = "" if where else where_called()  # for who cannot say more

    def __str__(self) -> str:
        lines = [self.what]
        if self.where or self._line:
            lines.append(f"  where: {self.where or self._line}")
        if self.hint:
            lines.append(f"  try:   {self.hint}")
        return "\n".join(lines)


def placed(error: HpcommError, verb: str, comm: Ranks | None) -> HpcommError:
    """The error with where filled in, if whoever raised it deep below did not know, and which verb takes any
    object."""
    if error.where is None:
        error.where = where(verb, comm)
    if error.hint and OBJECT_FORM in error.hint:
        name = verb.rpartition(" ")[2].removesuffix("_ragged")
        known = name in _OF_OBJECTS
        error.hint = error.hint.replace(OBJECT_FORM, f"{name if known else 'all_gather'}_object")
    if error.hint == GRADIENT_FORM and verb.removeprefix("i") in _DIFFERENTIABLE:
        error.hint = error.hint.replace(",", f".{verb.removeprefix('i')},", 1)
    return error


class located:  # noqa: N801  a context, read as a word
    """An error of ours that leaves it was raised by verb on comm, where nothing more is known."""

    def __init__(self, verb: str, comm: Ranks | None) -> None:
        self.verb, self.comm = verb, comm

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, HpcommError):
            placed(error, self.verb, self.comm).__suppress_context__ = True


class UsageError(HpcommError):
    """A call that cannot be carried out as written; refused before any other rank commits."""


class LayoutError(UsageError):
    """Shape, strides, overlap or place of an array does not fit the call."""


class DtypeError(UsageError):
    """An element type that the call or the operator cannot serve rightly."""


class RankError(UsageError):
    """A rank or root that this communicator does not have."""


class ConfigError(UsageError):
    """The environment, launcher or installation does not allow what was asked."""


class MissingError(ConfigError, ImportError):
    """A package that the call needs is not installed, or cannot be loaded."""


class MismatchError(HpcommError):
    """The ranks of a communicator do not agree about a call, or a message does not fit its receiver.

    Attributes:
        lacks: how many bytes a message was too short for the contiguous array that it has partly filled.
        source, tag, nbytes: of that message: its sender, tag and length.
    """

    lacks = 0
    source = tag = -1
    nbytes = 0


class TransportError(HpcommError):
    """The MPI library failed; error_class is MPI's own number for it."""

    def __init__(
        self, what: str, where: str | None = None, hint: str | None = None, error_class: int | None = None
    ) -> None:
        super().__init__(what, where, hint)
        self.error_class = error_class


class MissingFileError(TransportError, FileNotFoundError):
    """A file that is to be read is not there."""


class WaitTimeoutError(HpcommError, TimeoutError):
    """A wait ended before the transfer did; the request stays valid and may be waited for again."""


class PeerFailedError(HpcommError):
    """Ranks that this call needs have ended; ranks names them."""

    def __init__(
        self, what: str, where: str | None = None, hint: str | None = None, ranks: Iterable[int] = ()
    ) -> None:
        super().__init__(what, where, hint)
        self.ranks = tuple(ranks)


def has_ended(what: str, where: str, ranks: Sequence[int], more: Iterable[str] = ()) -> PeerFailedError:
    """The error where what needs ranks that have ended. more: lines about them."""
    hint = "look at what that rank printed; every rank must make the matching calls"
    have = "have" if len(ranks) > 1 else "has"
    told = "\n".join([f"{what} needs {named(ranks)}, which {have} ended", *more])
    return PeerFailedError(told, where, hint, ranks)


def incomplete(
    call: str, seconds: float, place: str, lack: str = "make the matching call"
) -> WaitTimeoutError:
    """The error where a call is not complete in time. lack: what another rank may not have done."""
    hint = f"wait again, or look for the rank that did not {lack}"
    return WaitTimeoutError(f"{call} was not complete after {float(seconds):g} s", place, hint)


def named(ranks: Collection[int], most: int = NAMED) -> str:
    """`rank 2`, `ranks 2, 5-8`, `ranks 2, 5 and others`: at most so many runs of them."""
    runs = spans(sorted(ranks)).split(", ")
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(runs[:most])}" + " and others" * (len(runs) > most)


def counted(n: int, what: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{n} {what}{'s' * (n != 1)}"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def spans(ranks: Iterable[int]) -> str:
    """`0-3, 8`: ascending ranks, with runs drawn together."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


OBJECT_FORM = "the call's _object form"  # in hints of who does not know the verb
GRADIENT_FORM = "hpcomm.differentiable, which keeps it; x.detach() or torch.no_grad() where it is not wanted"
_DIFFERENTIABLE = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "recv",
    "reduce_scatter",
    "send",
    "update_halo",
)
_OF_OBJECTS = ("send", "recv", "isend", "irecv", "sendrecv", "broadcast", "gather", "all_gather", "scatter",
               "all_to_all", "reduce", "all_reduce")  # fmt: skip
# Modules of Python that call us for a user, or for nobody.
_BETWEEN = ("contextlib", "copy", "pickle", "threading", "runpy", "importlib._bootstrap", "typing_extensions")

_known: dict[str, bool] = {}  # by file: whether it is ours,
passing: dict[str, bool] = {}  # and whether it is ours, or passes a user's call on to us


def is_ours(code: CodeType) -> bool:
    """Whether code belongs to hpcomm proper; its apps count as a user's programs."""
    return in_package(code.co_filename)


def in_package(name: str) -> bool:
    """The same of a file's name."""
    ours = _known.get(name)
    if ours is None:
        ours = _known[name] = name.startswith(_PACKAGE) and not name.startswith(_APPS)
    return ours


def calling_frame(frame: FrameType | None = None) -> FrameType | None:
    """The innermost frame outside hpcomm, from frame (default: here) outwards: the user's line."""
    if frame is None:
        frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        passes = passing.get(name)
        if passes is None:
            passes = is_ours(frame.f_code) or _is_between(frame.f_globals.get("__name__", ""))
            passing[name] = passes
        if not passes:
            break
        frame = frame.f_back
    return frame


def _is_between(module: str) -> bool:
    """Whether code of a module only passes a user's call on to us, or begins a thread of ours."""
    return module in _BETWEEN or module.startswith(("torch.distributed.", "multiprocessing."))


def warn(text: str, kind: type[Warning] = RuntimeWarning) -> None:
    """Warn at the user's line. Call it where nobody waits for this rank: a warning may be an error."""
    frame = calling_frame()
    if frame is not None:
        warnings.warn_explicit(text, kind, frame.f_code.co_filename, frame.f_lineno)


def source_line(code: CodeType, lineno: int | None) -> str:
    """`train.py:41`: the last part of the path, because messages are read on narrow screens."""
    return f"{code.co_filename.rpartition('/')[2]}:{lineno}"


def line_number(code: CodeType, at: int) -> int | None:
    """The line of code in which its byte number at lies."""
    return next((line for low, end, line in code.co_lines() if low <= at < end), None)


def demand(x: object, kind: type | tuple[type, ...], name: str, verb: str, hint: str) -> None:
    """Refuse x if it is of no such type."""
    if not isinstance(x, kind):
        raise UsageError(f"{name} is of type {type(x).__name__}", where(verb, None), hint)


def did_you_mean(word: object, known: Iterable[str], otherwise: str) -> str:
    """The hint where a word is none of those known: the one that looks most like it, else otherwise."""
    from difflib import get_close_matches

    close = get_close_matches(str(word), list(known), 1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def known_ranks(comm: Ranks) -> str:
    """The hint where a rank is none of comm's."""
    if comm.size == 1 and comm.name == "world":
        return "rank 0, the only one here; `hpcomm run -n 2 python program.py` starts two"
    return f"a rank from 0 to {comm.size - 1}"


def where_called() -> str:
    """`train.py:41`: the line that called us; empty in commands and threads of our own."""
    raising = sys._getframe(2)
    frame = calling_frame(raising) if is_ours(raising.f_code) else None
    while frame is not None and frame.f_globals.get("__name__", "").startswith("hpcomm."):
        frame = calling_frame(frame.f_back) if frame.f_back else None  # what dataclasses make for us
    if frame is None or frame.f_code.co_filename.endswith(("/bin/hpcomm", "<string>")):
        return ""
    return source_line(frame.f_code, frame.f_lineno)


def where(verb: str, comm: Ranks | None) -> str:
    """`all_reduce on communicator 'tp' (rank 1 of 4) at train.py:41`."""
    text = verb
    if comm is not None:
        text += f" on communicator '{comm.name}' (rank {comm.rank} of {comm.size})"
    return text + at_line()


def at_line() -> str:
    """` at train.py:41`: the user's line; empty: there is none."""
    frame = calling_frame()
    return "" if frame is None else f" at {source_line(frame.f_code, frame.f_lineno)}"
