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

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, wraps
from math import prod
from struct import Struct
from types import FrameType
from typing import Any
from zlib import crc32

from .._lazy import NDArray, np
from ..agree.values import PADDED, bits
from ..core import checksum
from ..core.request import Request
from ..core.verbs import ROOT_RECEIVES, ROOT_SENDS
from ..errors import source_line
from ..transport.late import buffer, host_copy
from .program_calls import (
    GIVEN,
    NOBODY,
    ROOT,
    TOGETHER,
    UNTOLD,
    Rows,
    alone,
    end_of,
    fields_of,
    later,
    methods,
    outside,
    planned,
    program,
    ranks_of,
    reader,
    words_of,
)
from .shell import FINGERPRINT
from .verbs.leaves import leaves

CALL = Struct("<IIQ")
KINDS, CALLS = ".kinds", ".calls"  # endings of names of files


def watch(kind: type) -> None:
    """Wrap the methods of a class that a program calls."""
    for name, how, of in methods(kind):
        if of != "Window":  # what a rank reads there depends on when it does
            setattr(kind, name, _watched(getattr(kind, name), name, how, of))


def _watched(method: Callable[..., Any], name: str, how: str, of: str) -> Callable[..., Any]:
    """of: the class; "": of verbs."""
    read = reader(method)

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = program(sys._getframe(1))
        if frame is None:
            return method(self, *args, **kwargs)
        given, verb = read(args, kwargs), name
        if of == "Plan":
            if name == "wait":
                result = method(self, *args, **kwargs)
                self.note.end(result)
                return result
            given, verb = planned(self), self.waits_for[3]
        its = how if of not in ("", "Plan") else TOGETHER.get(verb, "each")
        note = Note(ranks_of(self, of), verb, its, end_of(given))
        words = partial(words_of, of, self, name.removeprefix("i"), given)  # isend and send(async_op=True)
        key = (name, *map(_kind, given.items()))
        note.begin(frame, key, words, _brought(note, of, verb, self, given))
        result = method(self, *args, **kwargs)
        if name == "start":
            self.note = note
        elif isinstance(result, Request):
            later(result, lambda got, *_: note.end(got))
        elif fields := fields_of(self, name, given) if of else ():
            note.end(fields, [each.array for each in fields if hasattr(each, "array")] or None)
        else:
            note.end(result)
        return result

    return call


def _kind(item: tuple[str, Any]) -> object:
    """What tells kinds of calls apart by an argument."""
    name, x = item
    if name in UNTOLD:
        return None
    if isinstance(shape := getattr(x, "shape", None), tuple):
        return name, type(x), getattr(x, "dtype", None), shape
    if name not in GIVEN and isinstance(x, (int, str, tuple, slice)):
        return name, repr(x)
    return name, str(getattr(x, "name", type(x)))


def _brought(note: Note, of: str, verb: str, caller: Any, given: Mapping[str, Any]) -> Any:
    """What this rank gives that counts; None: nothing. of: as in _watched."""
    base, end = verb.removesuffix("_object").removesuffix("_ragged"), note.end_at or 0
    root = ROOT if getattr(note.comm, "is_inter", False) else note.rank
    gives = given.get("dest") != NOBODY
    if base in ROOT_SENDS or base in ROOT_RECEIVES:
        gives = end == root if base in ROOT_SENDS else end >= 0
    if not gives:
        return None
    if of == "Field" and verb not in ("scatter", "update_halo"):  # its own elements
        return [caller, *(x for name, x in given.items() if name == "other")]
    if of not in ("", "Field", "Plan", "Redistribution"):
        return None
    x: Any = next((given[x] for x in GIVEN if x in given), None)
    if base == "neighbour_all_to_all":
        with suppress(TypeError):  # what has no blocks the call itself refuses
            ends, x = note.comm.mpi_handle.outedges, getattr(x, "array", x)  # a plan has looked at it
            return [part for part, rank in zip(x, ends, strict=False) if rank >= 0]
    return x


class Note:
    """A call under way, of which is written down what comes of it.

    Attributes:
        comm, rank: who makes it.
        end_at, is_nobody: its root, or the other rank of a message; nothing comes from there.
    """

    __slots__ = ("_given", "_how", "_number", "_row", "_verb", "comm", "end_at", "is_nobody", "rank")

    def __init__(self, comm: Any, verb: str, how: str, end_at: int | None) -> None:
        self.comm, self._verb, self._how = comm, verb, how
        self.rank, self.end_at = comm.rank, end_at
        self.is_nobody = end_at == NOBODY

    def begin(self, frame: FrameType, key: object, words: Callable[[], str], brought: Any) -> None:
        """Take the next number. key: what tells kinds of calls on a line apart; brought: what this rank
        gives."""
        comm, self._given = self.comm, self._short(brought)

        def about() -> dict[str, Any]:
            line = source_line(frame.f_code, frame.f_lineno)
            return {"call": words(), "on": comm.name, "size": comm.size, "how": self._how, "line": line}

        log = _log or _opened(comm)
        self._number = next(log.numbers)
        self._row = log.row((frame.f_code, frame.f_lasti, comm.name, comm.size, key), about)

    def end(self, got: Any, around: Any = None) -> None:
        """Write it down. around: what is looked at in place of what this rank gave."""
        if self.is_nobody or (self._verb == "exscan" and self.rank == 0):
            got = None  # what was there before
        is_part = self._verb in ("scatter", "reduce_scatter") and not hasattr(got, "own_checksum")
        first = self.rank * _length(got) if is_part else 0
        given = self._short(around) or self._given
        record = CALL.pack(self._row, given, 0 if got is None else self._sum(got, first))
        log = _log or _opened(self.comm)
        log.put(log.records, record, CALL.size * self._number)

    def _short(self, x: Any) -> int:
        """32 bits that tell x; 0: there is none."""
        return 0 if x is None else self._sum(x) >> 32 or 1

    def _sum(self, x: Any, first: int = 0) -> int:
        """The checksum of x behind so many elements. A list of arrays is one long array, but as an object."""
        is_object = self._verb == "same" or self._verb.endswith("_object")
        return checksum.of_elements(_crcs(x)) if is_object else _sum(x, first)[0]


def torch_call(
    comm: Any, verb: str, end_at: int | None, words: str, ends: tuple[Any, Any], deed: Callable[[], None]
) -> Callable[[], None]:
    """The deed of a call of torch.distributed, or its end, after which it is written down.

    ends: what this rank gives, and where it receives.
    """
    inputs, outputs = ends
    note = Note(comm, verb, TOGETHER.get(verb, "each"), end_at)
    idle = verb == "scatter" or (verb == "broadcast" and end_at != comm.rank)
    note.begin(outside(sys._getframe(1)), words, lambda: words, None if idle else inputs)

    def run() -> None:
        deed()
        note.end(None if verb in ROOT_RECEIVES and end_at != comm.rank else outputs)

    return run


# -- what is written -----------------------------------------------------------------------------------
_log: Rows | None = None


def _opened(comm: Any) -> Rows:
    """The files of this rank, which makes its first call on comm."""
    global _log
    with alone:
        _log = _log or Rows(comm, os.environ[FINGERPRINT], (KINDS, CALLS), "fingerprint")
    return _log


# -- what is added up ----------------------------------------------------------------------------------
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
        array = _crcs(x)
    return checksum.of_elements(array, first), array.size


def _crcs(x: Any) -> NDArray[np.uint32]:
    """Of the parts of an object; where it cannot be looked into, of its type."""
    try:
        found = [crc32(f"{leaf.path} {leaf.crc}".encode()) for leaf in leaves(x)]
    except Exception:  # whatever it is
        found = [crc32(type(x).__qualname__.encode())]
    return np.array(found, np.uint32)


def _array(x: Any) -> Any:
    """An array in host memory; None: it is of no elements that count, such as Python's objects."""
    with suppress(Exception):  # a library's own, too: the call itself has gone well
        look: Any = buffer.as_buffer(buffer.detached(x))
        array = look.array if look.place is None else host_copy.to_host(look)
        if array.dtype.char in PADDED:
            rows = np.ascontiguousarray(bits(array))
            return rows.view(f"V{rows.shape[1]}")
        return array
    return None
