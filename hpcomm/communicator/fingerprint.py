"""Fingerprints: 16 bytes for each call that the program makes, by which `hpcomm diff` compares two runs.

Where the environment asks for them, the methods that a program calls are wrapped once, when their classes are
made (shell.watched). So calls take the way that they always take, and else nothing is looked at. What hpcomm
calls for itself is not written down.

    0.kinds    lines of JSON: {"ranks": 4, "mpi": "Open MPI v5.0.11"}, then one for each kind of call and line
               of the program, when it first comes
    0.calls    for each call, in the order of the program: number of that line, 32 bits of what this rank
               gave, 64 bits of what it got; zeros: it has not ended

of rank 0, or of ocean.0 in a job of several programs. A call is written by one write() when it has ended, or
when its Request was waited for. So whatever kills a rank, what is in the files is whole.

What a rank gets is added up by core/checksum.py. Where ranks get parts of one whole ("parts"), or all the
same ("same"), runs of other numbers of ranks can be compared, too. Of objects their parts count, as for
comm.same (verbs/leaves.py).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from itertools import count
from math import prod
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary
from zlib import crc32

from .._lazy import MPI, loaded, np
from ..agree.values import bits
from ..core import checksum
from ..core.present import calling
from ..core.request import Request
from ..core.signature import NEIGHBOURS
from ..core.verbs import ROOT_RECEIVES, ROOT_SENDS, TABLE
from ..errors import ConfigError, calling_frame, is_ours, source_line
from ..transport.late import buffer, host_copy
from .shell import FINGERPRINT
from .verbs.leaves import leaves

if TYPE_CHECKING:
    from types import FrameType

CALL = Struct("<IIQ")
KINDS, CALLS = ".kinds", ".calls"  # endings of names of files


def _table(same: str = "", parts: str = "", each: str = "") -> dict[str, str]:
    """How what the ranks get hangs together, by method."""
    named = (("same", same), ("parts", parts), ("each", each))
    return {name: how for how, names in named for name in names.split()}


_VERB = re.compile(rf"(i?send|i?recv|sendrecv|{'|'.join([*TABLE, *NEIGHBOURS])})(_object|_ragged)?")
_TOGETHER = _table(
    "barrier broadcast same all_gather all_reduce all_reduce_loc broadcast_object all_reduce_object"
    " broadcast_ragged all_gather_ragged",
    "scatter gather reduce reduce_scatter reduce_object",
)
_COUPLED = _table(parts="put get exchange")
_METHODS = {  # of other classes than those of verbs
    "Field": _table(
        "all_gather __getitem__ sum mean var std min max argmin argmax norm dot",
        "update_halo gather scatter redistribute",
    ),
    "Halo": _table(parts="__call__ wait"),
    "Link": _COUPLED,
    "Plan": _table(each="__call__ wait"),
    "Program": _COUPLED,
    "Redistribution": _table(each="__call__"),
}
_PASSING = (  # modules of ours that pass a program's call on
    "hpcomm.compat.", "hpcomm.differentiable.", "hpcomm.communicator.mpi4py_names.",
    "hpcomm.fields.autograd.", "hpcomm.fields.numpy_protocol.",
)  # fmt: skip
_GIVEN = ("x", "obj", "xs", "objs")
_UNTOLD = ("out", "status", "async_op", "time", "timeout")  # arguments that do not change what comes out


def watch(kind: type) -> None:
    """Wrap the methods of a class that a program calls."""
    of = kind.__name__.removeprefix("_Direct")
    own = _METHODS.get(of, {})
    for name in own or [name for name in vars(kind) if name in _TOGETHER or _VERB.fullmatch(name)]:
        setattr(kind, name, _watched(getattr(kind, name), name, own.get(name, ""), of if own else ""))


def _watched(method: Callable[..., Any], name: str, how: str, of: str) -> Callable[..., Any]:
    """of: the class; "": of verbs."""
    names = [*signature(method).parameters][1:]

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = _program(sys._getframe(1))
        if frame is None:
            return method(self, *args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        verb = self.waits_for[3] if of == "Plan" else name
        its = how if of not in ("", "Plan") else _TOGETHER.get(verb, "each")
        note = Note(_ranks(self, of), verb, its, _end_of(given))
        words, key = partial(_words, of, self, name, given), (name, *map(_kind, given.items()))
        note.begin(frame, key, words, _brought(note, verb, given) if of in ("", "Redistribution") else None)
        result = method(self, *args, **kwargs)
        if isinstance(result, Request):
            _later(result, note)
        elif fields := _fields(self, name, given) if of else ():
            note.end(fields, [each.array for each in fields if hasattr(each, "array")] or None)
        else:
            note.end(result)
        return result

    return call


def _program(frame: FrameType) -> FrameType | None:
    """The frame that calls us, if that is the program's; None: this is a part of another call."""
    at: FrameType | None = frame
    while at is not None and is_ours(at.f_code):
        passes = at.f_code.co_name == "batch_isend_irecv" or f"{at.f_globals['__name__']}.".startswith(
            _PASSING
        )
        at = at.f_back if passes else None
    return at and _outside(at)


def _outside(frame: FrameType) -> FrameType:
    """The innermost frame of the program from frame outwards, torch's own left out; there is none: frame."""
    at = calling_frame(frame)
    while at is not None and str(at.f_globals.get("__name__")).startswith("torch."):
        at = at.f_back and calling_frame(at.f_back)
    return at or frame


def _ranks(x: Any, of: str) -> Any:
    """The ranks that make a call of x."""
    return x.waits_for[0] if of == "Plan" else x.local if of == "Link" else x.comm if of else x.context


def _end_of(given: Mapping[str, Any]) -> Any:
    """The root, or the other rank of a message; None: there is none."""
    ends = (given.get(name) for name in ("root", "src", "dst", "source", "dest"))
    return next((end for end in ends if end is not None), None)


def _kind(item: tuple[str, Any]) -> object:
    """What tells kinds of calls apart by an argument."""
    name, x = item
    if name in _UNTOLD:
        return None
    if isinstance(shape := getattr(x, "shape", None), tuple):
        return name, type(x), getattr(x, "dtype", None), shape
    is_word = name not in _GIVEN and isinstance(x, (int, str, type(None)))
    return name, x if is_word else str(getattr(x, "name", type(x)))


def _words(of: str, self: Any, name: str, given: Mapping[str, Any]) -> str:
    """A call in words: what has to be alike in both runs."""
    if of == "Plan":
        return f"plan of {self.call}"
    if of in ("Halo", "Link", "Program"):
        fields = ", ".join(f"{each.name} {each.dtype}" for each in _fields(self, name, given))
        return f"{of}.{name}({fields})"
    said = {key: x for key, x in given.items() if key not in _UNTOLD}
    x = next((said.pop(each) for each in _GIVEN if said.get(each) is not None), given.get("out"))
    told = calling(None, f"{of}.{name}" if of else name, self if of == "Field" else x)
    told.x = "str" if isinstance(told.x, str) else told.x  # a value, and not a word of the call
    told.words = said  # some have the names of its own arguments
    return str(told)


def _brought(note: Note, verb: str, given: Mapping[str, Any]) -> Any:
    """What this rank gives that counts; None: nothing."""
    base = verb.removesuffix("_object").removesuffix("_ragged")
    if note.is_nobody or (base in ROOT_SENDS and (note.end_at or 0) != note.rank) or base in NEIGHBOURS:
        return None
    return next((given[x] for x in _GIVEN if x in given), None)


def _fields(self: Any, name: str, given: Mapping[str, Any]) -> list[Any]:
    """The fields that a call moves."""
    if name in ("put", "get"):
        fields = next(iter(given.values()))
        return [*fields] if isinstance(fields, (list, tuple)) else [fields]
    if name == "exchange":
        links = [self.link(peer) for peer in self.peers] if hasattr(self, "peers") else [self]
        return [each.field for link in links for each in (*link.gives.values(), *link.takes.values())]
    return [self] if name == "update_halo" else getattr(self, "fields", [])


class Note:
    """A call under way, of which is written down what comes of it.

    Attributes:
        rank, end_at, is_nobody: who makes it; its root, or the other rank of a message; which is no rank.
    """

    __slots__ = ("_comm", "_given", "_how", "_number", "_row", "_verb", "end_at", "is_nobody", "rank")

    def __init__(self, comm: Any, verb: str, how: str, end_at: Any) -> None:
        self._comm, self._verb, self._how = comm, verb, how
        self.rank, self.end_at = comm.rank, end_at
        self.is_nobody = type(end_at) is int and end_at < 0

    def begin(self, frame: FrameType, key: object, words: Callable[[], str], brought: Any) -> None:
        """Take the next number. key: what tells kinds of calls on a line apart; brought: what this rank
        gives."""
        log, comm, self._given = _log(self._comm), self._comm, _short(brought)

        def about() -> dict[str, Any]:
            line = source_line(frame.f_code, frame.f_lineno)
            return {"call": words(), "on": comm.name, "size": comm.size, "how": self._how, "line": line}

        self._number = next(log.numbers)
        self._row = log.row((frame.f_code, frame.f_lasti, comm.name, comm.size, key), about)

    def end(self, got: Any, around: Any = None) -> None:
        """Write it down. around: what is looked at in place of what this rank gave."""
        if self.is_nobody or (self._verb == "exscan" and self.rank == 0):
            got = None  # what was there before
        first = self.rank * _length(got) if self._verb in ("scatter", "reduce_scatter") else 0
        given = _short(around) or self._given
        _log(self._comm).write(self._number, self._row, given, 0 if got is None else _sum(got, first)[0])


def torch_call(
    comm: Any, verb: str, end_at: int | None, words: str, inputs: Any, outputs: Any, deed: Callable[[], None]
) -> Callable[[], None]:
    """The deed of a call of torch.distributed, or its end, after which it is written down."""
    note = Note(comm, verb, _TOGETHER.get(verb, "each"), end_at)
    idle = verb == "scatter" or (verb == "broadcast" and end_at != comm.rank)
    note.begin(_outside(sys._getframe(1)), words, lambda: words, None if idle else inputs)

    def run() -> None:
        deed()
        note.end(None if verb in ROOT_RECEIVES and end_at != comm.rank else outputs)

    return run


# -- calls in the background ---------------------------------------------------------------------------
_under_way: WeakKeyDictionary[Request[Any], Note] = WeakKeyDictionary()
_waited: set[type] = set()


def _later(request: Request[Any], note: Note) -> None:
    """Write the call down when request is first waited for."""
    _under_way[request] = note
    if (kind := type(request)) in _waited:
        return
    _waited.add(kind)
    wait, awaited = kind.wait, kind.__await__

    def ended(self: Request[Any], result: Any) -> Any:
        if (note := _under_way.pop(self, None)) is not None:
            note.end(result)
        return result

    @wraps(awaited)
    def stages(self: Request[Any]) -> Any:
        return ended(self, (yield from awaited(self)))

    setattr(kind, "wait", wraps(wait)(lambda self, timeout=None: ended(self, wait(self, timeout))))  # noqa: B010
    setattr(kind, "__await__", stages)  # noqa: B010


# -- what is written -----------------------------------------------------------------------------------
class _Log:
    """The files of this rank, which makes its first call on comm."""

    def __init__(self, comm: Any) -> None:
        self.numbers, self._rows, self._at = count(), dict[Any, int](), 0
        stem, about = _whose(comm)
        self._folder = Path(os.environ[FINGERPRINT])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._kinds, self._calls = (
                os.open(self._folder / f"{stem}{end}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o666)
                for end in (KINDS, CALLS)
            )
        except OSError as error:
            raise self._unwritable(error) from error
        self._say(about)

    def row(self, key: Any, about: Callable[[], dict[str, Any]]) -> int:
        """The number of a kind of calls, from 1 on."""
        with _alone:
            if key not in self._rows:
                self._say(about())
                self._rows[key] = len(self._rows) + 1
            return self._rows[key]

    def _say(self, about: dict[str, Any]) -> None:
        line = json.dumps(about).encode() + b"\n"
        self._put(self._kinds, line, self._at)
        self._at += len(line)

    def write(self, number: int, row: int, given: int, got: int) -> None:
        """Write a call down at its place."""
        self._put(self._calls, CALL.pack(row, given, got), CALL.size * number)

    def _put(self, file: int, data: bytes, at: int) -> None:
        try:
            os.pwrite(file, data, at)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        hint = "a folder that can be written, with room, for hpcomm run --fingerprint"
        return ConfigError(f"fingerprints cannot be written in {self._folder}: {error.strerror}", hint=hint)


_logs: list[_Log] = []
_alone = Lock()


def _log(comm: Any) -> _Log:
    if not _logs:
        with _alone:
            if not _logs:
                _logs.append(_Log(comm))
    return _logs[0]


def _whose(comm: Any) -> tuple[str, dict[str, Any]]:
    """The program and rank that this process is, and what is to be said of the run."""
    rank, size, library, program = comm.rank, comm.size, "no MPI", os.environ.get("HPCOMM_PROGRAM", "")
    if loaded("mpi4py.MPI") is not None and MPI.Is_initialized():
        library = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
        if MPI.COMM_WORLD.size >= size:
            rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if MPI.Comm.Get_parent() != MPI.COMM_NULL:
            program = "spawned"
    spans = dict(each.split("=") for each in os.environ.get("HPCOMM_PROGRAMS", "").split())
    if program in spans:
        first, last = map(int, spans[program].split("-"))
        rank, size = rank - first, last - first + 1
    return f"{program}.{rank}" if program else str(rank), {"ranks": size, "mpi": library}


# -- what is added up ----------------------------------------------------------------------------------
def _short(x: Any) -> int:
    """32 bits that tell x; 0: there is none."""
    return 0 if x is None else _sum(x)[0] >> 32 or 1


def _length(x: Any) -> int:
    """How many elements an array, or a list of arrays, has."""
    return sum(map(_length, x)) if isinstance(x, (list, tuple)) else prod(getattr(x, "shape", ()))


def _sum(x: Any, first: int = 0) -> tuple[int, int]:
    """The checksum of x behind so many elements, and how many x is."""
    if hasattr(x, "own_checksum"):  # a field, whose elements have places of their own
        return x.own_checksum() * (2 * first + 1) % 2**64, 1
    if isinstance(x, (list, tuple)) and all(hasattr(part, "shape") for part in x):
        total, n = 0, 0
        for part in x:
            more, length = _sum(part, first + n)
            total, n = total + more, n + length
        return total % 2**64, n
    if (array := _array(x) if hasattr(x, "shape") else None) is None:
        array = np.fromiter(_crcs(x), np.uint32)
    return checksum.of_elements(array, first), array.size


def _crcs(x: Any) -> Iterator[int]:
    """Of the parts of an object; where it cannot be looked into, of its type."""
    try:
        yield from [crc32(f"{leaf.path} {leaf.crc}".encode()) for leaf in leaves(x)]
    except Exception:  # whatever it is
        yield crc32(type(x).__qualname__.encode())


def _array(x: Any) -> Any:
    """An array in host memory; None: it is of no elements that count, such as Python's objects."""
    with suppress(Exception):  # a library's own, too: the call itself has gone well
        look: Any = buffer.as_buffer(buffer.detached(x))
        array = look.array if look.place is None else host_copy.to_host(look)
        return bits(array) if array.dtype.char in "gG" else array
    return None
