"""Trace: when each call of the program began and ended, for `hpcomm report`.

Where it is asked for, the methods that a program calls are wrapped, as for fingerprints (program_calls.py).
So without a trace calls cost nothing more.

    0.rows     lines of JSON: what this rank is, with its host and clock; then one for each line of the
               program and communicator: the call in words, and which ranks make it
    0.trace    records of 40 bytes, in the order in which calls ended:

               0       8      16      24     28     32     36     40
               ├───────┼───────┼───────┼──────┼──────┼──────┼──────┤
               │ begin │  end  │ bytes │ row  │ peer │ tag  │  of  │
               └───────┴───────┴───────┴──────┴──────┴──────┴──────┘

of rank 0, or of ocean.0 in a job of several programs. All numbers are little-endian.

    begin, end    ns of this host's monotonic clock
    bytes         that this rank gives, or gets where it gives nothing; of objects as they travel
    row           number of the line in 0.rows, from 1 on; 0: here is no record
    peer, tag     root, or the other rank of a message; -1: any or none. Of sendrecv source and dest
    of            this is the wait for a call in the background: the number of its record, from 1 on

The file is memory that is written in place: whatever kills a rank, what it has called is there.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from struct import Struct
from threading import current_thread, get_ident, main_thread
from types import FrameType
from typing import Any

from ..core.request import Request
from ..errors import UsageError, demand, source_line
from ..job.host import host_mark
from . import shell
from .payloads import pickling
from .payloads.payload import Payload
from .program_calls import Rows, alone, later, methods, outside, program, ranks_of, reader, words_of

Find = Callable[[FrameType], FrameType | None]

RECORD = Struct("<QQQiiiI")
ROWS, RECORDS = ".rows", ".trace"  # endings of names of files
RANGE = "range"  # in place of a verb
_AT_ONCE = 8192  # records by which the file grows: whole pages of memory
_clock = time.monotonic_ns


class _Log(Rows):
    """The files of this rank, which makes its first call on comm."""

    def __init__(self, comm: Any, folder: str) -> None:
        self._codes: list[Any] = []  # whose id() is in keys of rows
        self._pages: dict[int, Any] = {}
        more = {"clock": host_mark(), "wall": time.time_ns(), "monotonic": _clock()}
        super().__init__(comm, folder, (ROWS, RECORDS), "trace", host=os.uname().nodename, **more)

    def add(self, *fields: int) -> int:
        """Write a record; its number, from 1 on."""
        page, at = divmod(n := next(self.numbers), _AT_ONCE)
        RECORD.pack_into(self._pages.get(page) or self._page(page), at * RECORD.size, *fields)
        return n + 1

    def _page(self, page: int) -> Any:
        nbytes = _AT_ONCE * RECORD.size
        with alone:
            if page not in self._pages:
                try:
                    os.posix_fallocate(self.records, page * nbytes, nbytes)
                    self._pages[page] = mmap.mmap(self.records, nbytes, offset=page * nbytes)
                except OSError as error:  # the program goes on
                    print(f"hpcomm: {self.unwritable(error)}", file=sys.stderr)
                    self._pages[page] = bytearray(nbytes)
                self._pages.pop(page - 2, None)
            return self._pages[page]

    def at(self, frame: FrameType, find: Find, about: Callable[[], dict[str, Any]], *what: object) -> int:
        """The row of a call that frame makes; 0: it is a part of another call.

        find: which frame is the program's; what: tells calls of one place apart.
        """
        key = (id(frame.f_code), frame.f_lasti, get_ident(), *what)
        if (known := self._rows.get(key)) or (line := find(frame)) is None:
            return known or 0
        key = (id(line.f_code), line.f_lasti, *key[2:])
        if key not in self._rows:
            self._codes.append(line.f_code)
            self.row(key, partial(dict, _placed(line, about())))
        return self._rows[key]


def _placed(line: FrameType, about: dict[str, Any]) -> dict[str, Any]:
    thread = {} if current_thread() is main_thread() else {"thread": current_thread().name}
    return {"line": source_line(line.f_code, line.f_lineno), **thread, **about}


_log: _Log | None = None
_folder = ""  # of the trace that is made now
_wrapped: list[tuple[type, str, Any]] = []  # with the method itself; None: of a base class
_objects: dict[int, tuple[int, int]] = {}  # by thread: bytes of objects that it has given, and got
_early: list[tuple[int, int, dict[str, Any]]] = []  # ranges before this rank's first call


def _opened(comm: Any) -> _Log | None:
    global _log
    with alone:
        if _log is not None or not _folder:
            return _log
        _log = made = _Log(comm, _folder)
    for begin, end, said in _early:
        made.add(begin, end, 0, made.row(str(said), partial(dict, said)), -1, -1, 0)
    return made


def watch(kind: type) -> None:
    """Wrap the methods of a class that a program calls."""
    for name, _, of in methods(kind):
        if name == "start":  # of a plan: it does not wait
            continue
        _wrapped.append((kind, name, vars(kind).get(name)))
        setattr(kind, name, _traced(getattr(kind, name), name, of))


def _traced(method: Callable[..., Any], name: str, of: str) -> Callable[..., Any]:
    """of: the class; "": of verbs."""
    defaults = {each.name: each.default for each in [*signature(method).parameters.values()][1:]}
    names, is_both, is_object = [*defaults], "sendrecv" in name, name.endswith("_object")
    read = reader(method)
    peers = ("source", "src") if is_both else ("dest", "dst", "source", "src", "root")
    has_ends, tags = {"dest", "source", "root"} & {*names}, ("dest", "dst") if is_both else ("tag",)

    @wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        before = _objects.get(get_ident(), (0, 0)) if is_object else (0, 0)
        begin = _clock()
        result = method(self, *args, **given)
        end = _clock()
        comm = ranks_of(self, of)
        if (log := _log or _opened(comm)) is None:
            return result
        told = partial(about, self, comm, args, given)
        if not (row := log.at(sys._getframe(1), program, told, _number(comm), name)):
            return result
        x, ends = args[0] if args else given.get(names[0] if names else ""), (-1, -1)
        nbytes = _since(before) if is_object else _nbytes(x) or _nbytes(result)
        if has_ends:
            given = {**defaults, **dict(zip(names, args, strict=False)), **given}
            ends = _number_of(given, peers), _number_of(given, tags)
        number = log.add(begin, end, nbytes, row, *ends, 0)
        if isinstance(result, Request):
            later(result, partial(_waited, number, row, ends))
        return result

    def about(self: Any, comm: Any, args: Any, given: Any) -> dict[str, Any]:
        words = words_of(of, self, name, read(args, given))
        return {"call": words, "verb": name, "of": of, **_told(comm), **_planned(self, of, name)}

    return call


def _hear(payload: Payload, is_given: bool) -> None:
    gave, got = _objects.get(get_ident(), (0, 0))
    nbytes = sum(block.look.nbytes if hasattr(block, "look") else len(block) for block in payload)
    _objects[get_ident()] = (gave + nbytes, got) if is_given else (gave, got + nbytes)


def _since(before: tuple[int, int]) -> int:
    """Bytes of objects that this thread has given since then, or got where it has given nothing."""
    gave, got = _objects.get(get_ident(), before)
    return gave - before[0] or got - before[1]


def _number_of(given: dict[str, Any], names: tuple[str, ...]) -> int:
    """The first of these arguments that is a number; -1: none is."""
    return next((int(given[name]) for name in names if hasattr(given.get(name), "__index__")), -1)


def _planned(x: Any, of: str, name: str) -> dict[str, Any]:
    """What a plan says of its calls, which have no arguments."""
    if of == "Plan":
        _, peer, _, verb, tag = x.waits_for
        return {"verb": verb, "peer": -1 if peer is None else peer, "tag": -1 if tag is None else tag}
    exchange: Any = getattr(x, "_halo", None) if name == "update_halo" else x
    return {"near": exchange.sources, "sends": exchange.sends} if hasattr(exchange, "sources") else {}


def is_on() -> bool:
    """Whether this process makes a trace now."""
    return bool(_folder)


def torch_call(
    comm: Any, verb: str, peer: int | None, words: str, tensors: Any, deed: Callable[[], None]
) -> Callable[[], None]:
    """The deed of a call of torch.distributed, or its end; a message is taken to begin now."""
    since = _clock() if verb in ("send", "recv") else 0
    if (log := _log or _opened(comm)) is None:
        return deed
    about = {"call": words, "verb": verb, "of": "", **_told(comm)}
    row = log.at(sys._getframe(1), outside, lambda: about, _number(comm), verb)
    nbytes = _nbytes(tensors)

    def run() -> None:
        begin = since or _clock()
        deed()
        if _folder:
            log.add(begin, _clock(), nbytes, row, -1 if peer is None else peer, -1, 0)

    return run


def _number(comm: Any) -> int:
    """What tells communicators apart, on all ranks; 0: it has one rank."""
    return int(getattr(comm, "context", comm).tag_base)


def _told(comm: Any) -> dict[str, Any]:
    return {"on": comm.name, "comm": _number(comm), "rank": comm.rank, "size": comm.size}


def _nbytes(x: Any) -> int:
    """Of an array, or of those in a list."""
    if getattr(x, "is_sparse", False):  # torch refuses nbytes
        own = x.detach().coalesce()
        x = [own.indices(), own.values()]
    nbytes = getattr(x, "nbytes", None)
    if nbytes is None and isinstance(x, (list, tuple)):
        return sum(map(_nbytes, x))
    return nbytes if isinstance(nbytes, int) and nbytes > 0 else 0


def _waited(number: int, of: int, ends: tuple[int, int], result: Any, since: int, frame: FrameType) -> None:
    """The call of this record was waited for."""
    end = _clock()
    if (log := _log) is not None:
        row = log.at(frame, outside, lambda: {"call": "wait", "verb": "wait"}, "wait", of)
        log.add(since, end, 0, row, *ends, number)


class trace:  # noqa: N801  a context, read as a word
    """Record when each call of this rank begins and ends, while the context lasts (docs/tracing.md).

    All ranks trace the same part of the program, or what a rank has called cannot be put beside what others
    have. Groups of torch.distributed are traced if they are made meanwhile. `hpcomm run --trace` traces all.

    Args:
        folder: where each rank writes two files; those of an earlier trace are replaced.

    Raises:
        UsageError: this process makes a trace already.

    Example:
        >>> with hpcomm.trace("steps"):
        ...     with hpcomm.trace.range("forward"):
        ...         step()
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        demand(folder, (str, os.PathLike), "folder", "trace", 'trace("folder")')
        self.folder = os.fspath(folder)

    def begin(self) -> None:
        """Begin, where a `with` does not fit."""
        global _folder
        if _folder:
            hint = "one trace at a time, and none in a job that hpcomm run --trace has started"
            raise UsageError(f"a trace is being written to {_folder}", "trace", hint)
        _folder = self.folder
        pickling.heard = _hear
        shell.watchers.append(watch)
        for kind in shell.kinds:
            watch(kind)

    def end(self) -> None:
        """End it; once more: nothing."""
        global _folder, _log
        if not _folder:
            return
        _folder, _log, pickling.heard = "", None, None
        shell.watchers.remove(watch)
        for kind, name, method in _wrapped:
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)
        _wrapped.clear()
        _early.clear()

    def __enter__(self) -> trace:
        self.begin()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self.end()

    class range:  # noqa: N801
        """A part of the program, by the name that the trace is to show. Without a trace it does nothing."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> trace.range:
            self._since = _clock()
            return self

        def __exit__(self, kind: object, error: object, at: object) -> None:
            end, about, frame = _clock(), {"call": self.name, "verb": RANGE}, sys._getframe(1)
            if (log := _log) is not None:
                row = log.at(frame, outside, lambda: about, RANGE, self.name)
                log.add(self._since, end, 0, row, -1, -1, 0)
            elif _folder:
                _early.append((self._since, end, _placed(outside(frame), about)))
