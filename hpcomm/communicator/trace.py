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
    bytes         that this rank gives, or gets where it gives nothing; 0 of objects
    row           number of the line in 0.rows, from 1 on; 0: here is no record
    peer, tag     root, or the other rank of a message; -1: any or none. Of sendrecv source and dest
    of            this is the wait for a call in the background: the number of its record, from 1 on

The file is memory that is written in place: whatever kills a rank, what it has called is there.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, signature
from itertools import count
from pathlib import Path
from struct import Struct
from threading import current_thread, get_ident, main_thread
from typing import TYPE_CHECKING, Any

from ..core.request import Request
from ..errors import UsageError, demand, source_line
from . import shell
from .program_calls import Rows, alone, later, methods, outside, program, ranks_of, words_of

if TYPE_CHECKING:
    from types import FrameType

    About = Callable[[FrameType], dict[str, Any]]

RECORD = Struct("<QQQiiiI")
ROWS, RECORDS = ".rows", ".trace"  # endings of names of files
RANGE = "range"  # in place of a verb
_AT_ONCE = 8192  # records by which the file grows: whole pages of memory
_clock = time.monotonic_ns


class _Log(Rows):
    """The files of this rank, which makes its first call on comm."""

    def __init__(self, comm: Any, folder: str) -> None:
        self.known: dict[Any, int] = {}  # rows by place in the program
        self._codes: list[Any] = []  # whose id() is in there
        self._pages: dict[int, Any] = {}
        self._number, clock = count().__next__, socket.gethostname()
        with suppress(OSError):
            clock = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        now = {"wall": time.time_ns(), "monotonic": _clock()}
        super().__init__(
            comm, folder, (ROWS, RECORDS), "trace", host=socket.gethostname(), clock=clock, **now
        )

    def add(self, *fields: int) -> int:
        """Write a record; its number, from 1 on."""
        page, at = divmod(n := self._number(), _AT_ONCE)
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

    def at(self, frame: FrameType, key: tuple[object, ...], about: About) -> int:
        """The row of a call that frame makes; 0: it is a part of another call."""
        line = program(frame)
        if line is None:
            return 0
        key = (id(line.f_code), line.f_lasti, *key[2:])
        if key not in self.known:
            self._codes.append(line.f_code)
            thread = {} if current_thread() is main_thread() else {"thread": current_thread().name}
            said = {"line": source_line(line.f_code, line.f_lineno), **thread, **about(line)}
            self.known[key] = self.row(key, lambda: said)
        return self.known[key]


_log: _Log | None = None
_folder = ""  # of the trace that is made now
_wrapped: list[tuple[type, str, Any]] = []  # with the method itself; None: of a base class


def _opened(comm: Any) -> _Log | None:
    global _log
    if _log is None and _folder:
        made = _Log(comm, _folder)
        with alone:
            _log = _log or made
    return _log


def watch(kind: type) -> None:
    """Wrap the methods of a class that a program calls."""
    for name, _, of in methods(kind):
        _wrapped.append((kind, name, vars(kind).get(name)))
        setattr(kind, name, _traced(getattr(kind, name), name, of))


class _Argument:
    """One of a method's: where it is, and its names."""

    def __init__(self, parameters: list[Parameter], *names: str) -> None:
        found = [i for i, each in enumerate(parameters) if each.name in names]
        self._at, self._names = (found[0] if found else sys.maxsize), names
        default = parameters[found[0]].default if found else None
        self._default = default if isinstance(default, int) else -1

    def __call__(self, args: tuple[Any, ...], given: dict[str, Any]) -> int:
        value = args[self._at] if self._at < len(args) else None
        for name in self._names if given and value is None else ():
            value = given.get(name) if value is None else value
        return value if type(value) is int and -(2**31) <= value < 2**31 else self._default


def _traced(method: Callable[..., Any], name: str, of: str) -> Callable[..., Any]:
    """of: the class; "": of verbs."""
    parameters = [*signature(method).parameters.values()][1:]
    names = [each.name for each in parameters]
    first = names[0] if names else ""
    peer_of = _Argument(
        parameters, *(("source", "src") if "sendrecv" in name else ("dest", "dst", "source", "src", "root"))
    )
    tag_of = _Argument(parameters, *(("dest", "dst") if "sendrecv" in name else ("tag",)))
    has_ends = {"dest", "source", "root"} & {*names}

    @wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        begin = _clock()
        result = method(self, *args, **given)
        end = _clock()
        comm = ranks_of(self, of)
        if (log := _log or _opened(comm)) is None:
            return result
        frame = sys._getframe(1)
        key = (id(frame.f_code), frame.f_lasti, get_ident(), _number(comm), name)
        row = log.known.get(key) or log.at(frame, key, lambda _: about(self, comm, args, given))
        if not row:
            return result
        nbytes = _nbytes(args[0] if args else given.get(first)) or _nbytes(result)
        ends = (peer_of(args, given), tag_of(args, given)) if has_ends else (-1, -1)
        number = log.add(begin, end, nbytes, row, *ends, 0)
        if isinstance(result, Request):
            later(result, partial(_waited, number, row, ends))
        return result

    def about(self: Any, comm: Any, args: Any, given: Any) -> dict[str, Any]:
        words = words_of(of, self, name, {**dict(zip(names, args, strict=False)), **given})
        return {"call": words, "verb": name, "of": of, **_told(comm), **_planned(self, of)}

    return call


def _planned(x: Any, of: str) -> dict[str, Any]:
    """What a plan says of its calls, which have no arguments."""
    if of == "Plan":
        _, peer, _, verb, tag = x.waits_for
        return {"verb": verb, "peer": -1 if peer is None else peer, "tag": -1 if tag is None else tag}
    exchange = getattr(x, "_halo", x)
    return {"near": exchange.sources, "sends": exchange.sends} if hasattr(exchange, "sources") else {}


def is_on() -> bool:
    """Whether this process makes a trace now."""
    return bool(_folder)


def torch_call(
    comm: Any, verb: str, peer: int | None, words: str, tensors: Any, deed: Callable[[], None]
) -> Callable[[], None]:
    """The deed of a call of torch.distributed, or its end; a message is taken to begin now."""
    line, since = outside(sys._getframe(1)), _clock() if verb in ("send", "recv") else 0
    if (log := _log or _opened(comm)) is None:
        return deed
    key = (id(line.f_code), line.f_lasti, get_ident(), _number(comm), verb)
    about = {"call": words, "verb": verb, "of": "", **_told(comm)}
    row, nbytes = log.known.get(key) or log.at(line, key, lambda _: about), _nbytes(tensors)

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
    nbytes = getattr(x, "nbytes", None)
    if nbytes is None and isinstance(x, (list, tuple)):
        return sum(map(_nbytes, x))
    return nbytes if isinstance(nbytes, int) and nbytes > 0 else 0


def _waited(number: int, of: int, ends: tuple[int, int], result: Any, since: int, frame: FrameType) -> None:
    """The call of this record was waited for."""
    end = _clock()
    if (log := _log) is not None:
        key = (id(frame.f_code), frame.f_lasti, get_ident(), "wait", of)
        row = log.known.get(key) or log.at(outside(frame), key, lambda _: {"call": "wait", "verb": "wait"})
        if row:
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
        shell.watchers.append(watch)
        for kind in shell.kinds:
            watch(kind)

    def end(self) -> None:
        """End it; once more: nothing."""
        global _folder, _log
        if not _folder:
            return
        _folder, _log = "", None
        shell.watchers.remove(watch)
        for kind, name, method in _wrapped:
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)
        _wrapped.clear()

    def __enter__(self) -> trace:
        self.begin()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self.end()

    class range:  # noqa: N801
        """A part of the program that the trace is to show under this name. Without a trace it does nothing.

        What comes before this rank's first call of hpcomm is not shown.
        """

        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> trace.range:
            self._since = _clock()
            return self

        def __exit__(self, kind: object, error: object, at: object) -> None:
            end = _clock()
            if (log := _log) is not None:
                frame = sys._getframe(1)
                key = (id(frame.f_code), frame.f_lasti, get_ident(), RANGE, self.name)
                about = {"call": self.name, "verb": RANGE}
                row = log.known.get(key) or log.at(outside(frame), key, lambda _: about)
                log.add(self._since, end, 0, row, -1, -1, 0)
